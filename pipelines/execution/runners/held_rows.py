"""Rejected rows that had no slice and have one since `slice_by` or a schema was changed: backfills of other slices keep them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.execution.replays.selection import NUMBER, Lot, ReplayError, completed
from pipelines.execution.replays.texts import check_readable, rows_of_source
from pipelines.graph import nodes
from pipelines.planner.step import REPLAYED
from pipelines.sources.base import file_key
from pipelines.state.literals import literal
from pipelines.state.quarantine import SOURCE
from pipelines.state.schema import GEN, NO_SLICE, SLICE_COLUMN, TXID

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pipelines.execution.batch.group import BatchGroup


@dataclass(frozen=True)
class HeldRows:
    """Rows without a slice that quarantine must keep, with their `_txid` and `_gen`, until the slice of each is replaced.

    Attributes:
        slices: by row its slice of today; None: it cannot be told.
    """

    rows: pa.Table | None = None
    slices: tuple[str | None, ...] = ()

    def without(self, slice_: str) -> HeldRows:
        """Return what is kept once a slice is replaced: its rows are judged with it."""
        if self.rows is None:
            return self
        kept = [number for number, own in enumerate(self.slices) if own != slice_]
        return HeldRows(self.rows.take(pa.array(kept, pa.int64())), tuple(self.slices[number] for number in kept))

    def beside(self, rejected: pa.Table) -> pa.Table:
        """Return what was rejected now, together with what is kept, which stays a row of its batch."""
        if self.rows is None:
            return rejected
        names = dict.fromkeys([*rejected.column_names, TXID, GEN])
        return pa.concat_tables([rejected, self.rows.select(list(names))], promote_options="permissive")


def held_rows(group: BatchGroup, rejected: pa.Table | None, counted: Collection[str]) -> HeldRows:
    """Return the rows without a slice that quarantine must keep while a backfill replaces some.

    Args:
        rejected: those that the backfill has rejected for want of a slice.
        counted: the files (as `file_key`) that the stream has counted. Rows of others it will meet itself, but for
            those of slices that a backfill has claimed.
    """
    table = group.quarantine.table
    if not group.sources.sliced or not table.exists():
        return HeldRows()
    text = literal(SLICE_COLUMN, NO_SLICE, pa.string())
    held = completed(table.stored(f"{SLICE_COLUMN} = {text} AND stage = '{SOURCE}' AND {group.rejected}"))
    again = set(_places(rejected)) if rejected is not None else set()
    claimed = _claimed(group)
    # Of files that are neither counted nor claimed the stream leaves nothing out.
    met = frozenset(counted).union(*claimed.values())
    mask = [place not in again and file_key(place[1] or "") in met for place in _places(held)]
    rest = held.filter(pa.array(mask, pa.bool_()))
    files = [file_key(file or "") for file in rest["file"].to_pylist()]
    # A claim is of a whole slice. The states that made it may have done so before the row had its slice.
    today = {
        number: own
        for number, own in sorted(pair for spout in group.spouts for pair in _slices_of(group, spout, rest).items())
        if files[number] in counted or own is None or files[number] in claimed.get(own, ())
    }
    return HeldRows(rest.take(pa.array(list(today), pa.int64())), tuple(today.values())) if today else HeldRows()


def _claimed(group: BatchGroup) -> dict[str, frozenset[str]]:
    """Return by slice the files (as `file_key`) whose rows of it some state leaves out when the stream meets them."""
    claimed: dict[str, frozenset[str]] = {}
    for sink in group.sinks:
        for slice_, files in sink.table.commits.claims().items():
            claimed[slice_] = claimed.get(slice_, frozenset()) | {file_key(file) for file in files}
    return claimed


def _places(rows: pa.Table) -> Iterator[tuple[str | None, str | None]]:
    return zip(rows["row"].to_pylist(), rows["file"].to_pylist(), strict=True)


def _slices_of(group: BatchGroup, spout: nodes.SpoutNode, rows: pa.Table) -> dict[int, str | None]:
    """Return by number the slice of today of a stream's rows, without those that have none."""
    if isinstance(spout, nodes.ChannelSpoutNode):
        return {}
    rows = rows.append_column(NUMBER, pa.array(range(rows.num_rows), pa.int64()))
    # Rows of earlier releases do not name their stream.
    own = {spout.stream, None} if len(group.spouts) == 1 else {spout.stream}
    lot = Lot(SOURCE, spout.stream, rows.filter(pa.array([s in own for s in rows["stream"].to_pylist()], pa.bool_())))
    if not lot.rows.num_rows:
        return {}
    schema = group.sources.schema(spout)
    try:
        check_readable(group.topology, lot, schema)
    except ReplayError:
        # Their texts cannot be read as rows: better twice to be seen than lost.
        return dict.fromkeys(lot.rows[NUMBER].to_pylist())
    frame = group.sources.with_slice(spout, rows_of_source(group.spark, lot, spout, schema))
    today = frame.select(REPLAYED, SLICE_COLUMN).toArrow().to_pylist()
    return {row[REPLAYED]: row[SLICE_COLUMN] for row in today if row[SLICE_COLUMN] != NO_SLICE}
