"""The watermarks that a batch commits into a channel (docs/architecture.md#event-flows).

A channel's commit ends with a row that is no event: nothing older than its clock will come. Behind a source the clock is the
latest event so far less the allowed delay; behind other channels that of the origin that is furthest behind.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.execution.batch.group_sources import clock_of
from pipelines.graph import events, nodes
from pipelines.state.schema import SLICE_COLUMN
from pipelines.windows.bucket import clock_row

if TYPE_CHECKING:
    from pipelines.execution.batch.group import BatchGroup

LATEST, LATE = "latest", "late"
"""Among the counts of a batch: the latest clock of a source's events, in ms; the events that came behind the watermark."""


def clocks_after(
    group: BatchGroup,
    node: nodes.ChannelNode | nodes.BatchWindowNode,
    before: Mapping[str, int],
    heard: Mapping[str, int],
    counts: Mapping[str, Any],
    at: int | None = None,
) -> dict[str, int]:
    """Return the watermark of each input behind a batch.

    Args:
        node: the channel, or the window that runs in the batch.
        before: the same behind the batch before.
        heard: what the channels that the group reads have said in this batch.
        counts: the batch's counts; of a source's events `LATEST`.
        at: of a channel that does not go by the events of a source the clock of the batch.
    """
    said = dict(heard)
    latest = counts.get(LATEST) if node.clock == nodes.EVENTS else at
    if latest is not None:
        for spout in group.spouts:
            if spout not in group.sources.channels or node.clock != nodes.EVENTS:
                mark = latest - node.delay
                said[spout.stream] = max(mark, said.get(spout.stream, mark))
    return {origin: max(clock, before.get(origin, clock)) for origin, clock in {**before, **said}.items()}


def watermark_of(group: BatchGroup, node: nodes.ChannelNode, clocks: Mapping[str, int]) -> int | None:
    """Return the watermark of a channel, by what `clocks_after` gave.

    One that does not go by the events of a source has a clock of its own: what windows before it have said is another time.
    """
    origins = group.sources.origins if node.clock == nodes.EVENTS else [spout.stream for spout in group.spouts]
    return clock_of(clocks, origins)


def with_last_clock(
    rows: pa.Table, node: nodes.ChannelNode, heard: Mapping[str, int], counts: Mapping[str, Any], slice_: str
) -> pa.Table:
    """Return the rows of a slice of a bounded run with the latest time of all that its channel's clock goes by."""
    read = [*heard.values(), *([counts[LATEST]] if counts.get(LATEST) is not None else [])]
    known = read if node.clock == nodes.EVENTS else []
    known += [clock] if (clock := pc.max(rows[events.CLOCK]).as_py()) is not None else []
    if not known:
        return rows
    word = clock_row(rows.schema, max(known), "")
    if SLICE_COLUMN in rows.column_names:
        at = rows.schema.get_field_index(SLICE_COLUMN)
        word = word.set_column(at, rows.schema.field(at), pa.array([slice_], rows.schema.field(at).type))
    return pa.concat_tables([rows, word])


def now() -> int:
    """Return the time of a batch, in ms."""
    return int(time.time() * 1000)


def with_clock(rows: pa.Table, clock: int | None) -> pa.Table:
    """Return the rows to commit, with the row about the watermark if it is known."""
    return rows if clock is None else pa.concat_tables([rows, clock_row(rows.schema, clock, "")])
