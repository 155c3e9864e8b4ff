"""Scripts of event flows: what enters each stream, second by second, as events with a clock and an order."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipelines.errors import FieldError, FlowError, nearest
from pipelines.flowmix.definition import StreamDefinition
from pipelines.flowmix.flow import CLOCKS, Flow
from pipelines.flowmix.operations import source_order
from pipelines.flowmix.values import fitted
from pipelines.graph import events
from pipelines.windows.event import Event

Item = tuple[Event, int, str]
"""An event, its clock (ms) and its order."""
Script = Mapping[str, Sequence[Any]]
"""By the name of a stream with a source: events (dicts or Events) and TICKs, in order."""

TICK: Final = "TICK"
"""One second of the clock, in the script of an event flow."""
SECOND = 1000


@dataclass(frozen=True)
class Entries:
    """The events of a script.

    Attributes:
        items: by stream the events that enter it, in the order of (clock, order).
        end: the latest clock of all streams (ms), at which all of them stand in the end.
    """

    items: dict[str, list[Item]]
    end: int


Evaluate = Callable[[StreamDefinition, str, list[dict[str, Any]]], list[Any]]
"""SQL over the rows of a stream's source, one value per row."""


def read_script(flow: Flow, script: Script, clock: str, evaluate: Evaluate) -> Entries:
    """Return the events of a script with their ids, times and clocks.

    The script's clock starts at 0 ms in each stream; a TICK adds a second. An event's time is its "timestamp" (or what the
    stream's SQL says), else the script's clock; its id is its "id" (or by SQL), else made of the stream and its number.

    Args:
        flow: a built flow.
        script: by stream.
        clock: "event": an event's clock is its timestamp; "processing": the script's clock when it arrives.
        evaluate: for SQL.

    Raises:
        FlowError: for a stream without a source, or another clock.
        FieldError: for a field that the source does not have.
    """
    if clock not in CLOCKS:
        raise FlowError(flow.name, f"no clock {clock!r}", hint=f"one of {', '.join(CLOCKS)}")
    known = [stream.name for stream in flow.inputs]
    for name in script:
        if name not in known:
            raise FlowError(
                flow.name,
                f'the script has events for "{name}"; the streams with a source are: {", ".join(known)}{nearest(name, known)}',
            )
    items: dict[str, list[Item]] = {}
    end = 0
    for stream in flow.inputs:
        entered, at = _entries(flow, stream, script.get(stream.name, ()), clock, evaluate)
        items[stream.name] = sorted(entered, key=lambda item: item[1:])
        end = max([end, at, *(item[1] for item in entered)])
    return Entries(items, end)


def _entries(
    flow: Flow, stream: StreamDefinition, script: Sequence[Any], clock: str, evaluate: Evaluate
) -> tuple[list[Item], int]:
    """Return a stream's items, and where its script's clock ends."""
    arrivals: list[tuple[Mapping[str, Any], int]] = []
    at = 0
    for entry in script:
        if isinstance(entry, str) and entry == TICK:
            at += SECOND
        elif isinstance(entry, Mapping):
            arrivals.append((entry, at))
        else:
            raise FlowError(flow.name, f"a script holds events (dicts) and TICKs, not {entry!r}", stream=stream.name)
    rows = [_row(flow, stream, event) for event, _ in arrivals]
    ids = _said(stream, "id", stream.event_id, arrivals, rows, evaluate)
    times = _said(stream, "timestamp", stream.event_timestamp, arrivals, rows, evaluate)
    entered = []
    for number, ((_, arrival), row, id, time) in enumerate(zip(arrivals, rows, ids, times, strict=True)):
        timestamp = arrival if time is None else milliseconds(time)
        if not events.EARLIEST <= timestamp < events.BEYOND:
            # Such a row goes to quarantine, and where the clock goes by arrivals its time is that.
            if clock == "event":
                continue
            timestamp = arrival
        event = Event(row, f"{stream.name}-{number}" if id is None else str(id), timestamp, stream.name)
        now = timestamp if clock == "event" else arrival
        entered.append((event, now, source_order(stream.index, number)))
    return entered, at


def _row(flow: Flow, stream: StreamDefinition, event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's fields, in the types of the source."""
    schema = stream.source_schema
    fields: dict[str, Any] = {}
    for name, value in event.items():
        if name not in schema:
            if name in ("id", "timestamp"):
                continue
            raise FieldError(f'flow "{flow.name}", the script of stream "{stream.name}"', name, tuple(schema))
        fields[name] = (
            _in_ms(value) if schema[name] == "timestamp" and type(value) is int else fitted(value, schema[name])
        )
    return fields


def _in_ms(milliseconds: int) -> datetime.datetime:
    """Return a time of a script as a timestamp column holds it; every engine shows it without a time zone, in UTC."""
    return datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=milliseconds)


def _said(
    stream: StreamDefinition,
    name: str,
    sql: str | None,
    arrivals: Sequence[tuple[Mapping[str, Any], int]],
    rows: list[dict[str, Any]],
    evaluate: Evaluate,
) -> list[Any]:
    """Return each event's id or time: the event's own if the source has no such field, else by the stream's SQL."""
    own = [
        getattr(event, name)
        if isinstance(event, Event)
        else event.get(name)
        if name not in stream.source_schema
        else None
        for event, _ in arrivals
    ]
    if sql is None or all(value is not None for value in own):
        return own
    made = [row.get(sql) for row in rows] if sql in stream.source_schema else evaluate(stream, sql, rows)
    return [other if value is None else value for value, other in zip(own, made, strict=True)]


def milliseconds(value: Any) -> int:
    """Return a time (ms, or a datetime; without zone it is UTC) in ms since 1970."""
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return (aware - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1)
    return int(value)
