"""The columns that an event carries beside its fields, in frames and in channel tables.

A row without an id is no event but a watermark row: nothing older than its clock comes from that origin any more.
"""

from __future__ import annotations

from typing import Final

from pipelines.ddl import ENGINE_COLUMNS

ID, TIME, CLOCK, FROM, ORDER, TASK = ENGINE_COLUMNS
"""
- ID, string: the event's id; null in a clock row.
- TIME, bigint: the event's own timestamp, ms since 1970.
- CLOCK, bigint: the clock at which windows take the event: its timestamp, or with `clock="processing"` its arrival, in ms.
- FROM, string: the stream that sent it.
- ORDER, string: decides between events of the same clock.
- TASK, int: the task of a tuple that enters a window of a topology.
"""

COLUMNS: Final = (ID, TIME, CLOCK, FROM, ORDER)
TYPES: Final = ("string", "bigint", "bigint", "string", "string")
DDL: Final = ", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, TYPES, strict=True))

EARLIEST: Final = -59_011_459_200_000
"""Where the times of events begin: 0100-01-01, in ms since 1970."""
BEYOND: Final = 250_246_627_200_000
"""The first time that no event has: 9900-01-01. Python's dates have the years 1 to 9999, and windows end behind their events
(ten years at most), so that a century is left on both sides."""


def nth(order: str, number: int) -> str:
    """Return the order of the n-th (from 0) of what one event or tick made; "~" comes behind all digits."""
    return f"{order}.{number:06d}" if number < 1_000_000 else f"{order}.~{number:012d}"


PUBLIC_ID, PUBLIC_TIME = "event_id", "event_time"
"""The id (string) and the timestamp (timestamp) of an event in the tables that users read."""
