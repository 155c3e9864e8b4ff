"""Another order of a state table's rows: by the columns that reads name, so that they skip the files of all others.

| layout | how its closed files lie | what may be asked for |
|---|---|---|
| log | sorted by key, in the order of the keys' declaration | some keys, which then come first |
| map | as batches left them | some keys |
| rows | as they came | some columns |

The table remembers the columns, and each later compaction keeps to them. What the stream writes lies as before until it is
compacted. Reads give the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from pipelines.errors import FieldError
from pipelines.execution.report import Report
from pipelines.maintenance.compaction import KEPT, _Compaction, _Done, checkpoints_of
from pipelines.maintenance.plan import TARGET_FILE_BYTES, parts_of
from pipelines.maintenance.report import TableReport
from pipelines.state.kinds import LOG, MAP, ROWS
from pipelines.state.maintenance_commits import clustered_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.state.lake import Lake
    from pipelines.state.table import StateTable
    from pipelines.state.writer import StateWriter

__all__ = ["ClusteringReport", "clustering_of", "recluster"]


@dataclass(frozen=True)
class ClusteringReport(Report):
    """A state table before and after.

    Attributes:
        by_before, by_after: the columns it is clustered by; none: as its layout has it.
        table: files, bytes, rows and the latency of a read of ten keys, before and after.
        seconds: of everything, waiting for locks included.
    """

    state: str
    layout: str
    by_before: tuple[str, ...]
    by_after: tuple[str, ...]
    table: TableReport
    seconds: float


def clustering_of(table: StateTable) -> tuple[str, ...]:
    """Return the columns by which a state's files are sorted, most important first; of a map state or rows perhaps none."""
    chosen = clustered_by(DeltaTable(str(table.path)))
    if table.declared.layout != LOG:
        return chosen
    return tuple(dict.fromkeys([*chosen, *table.declared.keys]))


def recluster(
    spark: SparkSession | None,
    lake: Lake,
    state: str,
    by: Sequence[str],
    *,
    open_generations: int | None = None,
) -> ClusteringReport:
    """Sort a state's files by some columns, now and with each later compaction.

    Safe beside the flow's stream, as a compaction is: it holds the same locks, and leaves open generations alone. Killed at any
    point the table reads the same, and the same call does the rest.

    Args:
        spark: a session; None if the state is not large.
        by: keys of a log or map state, columns of a table of rows, most important first; none: as its layout has it.
        open_generations: as of `compact`.
    """
    started, table = time.monotonic(), lake.state(state)
    declared, columns = table.declared, tuple(by)
    known = declared.names if declared.layout == ROWS else declared.keys
    for name in columns:
        if name not in known:
            raise FieldError("recluster", name, known)
    before = clustered_by(DeltaTable(str(table.path)))
    work = _Clustering(spark, lake, declared.flow, KEPT)
    work.by = columns
    with work.alone(checkpoints_of(lake, declared.flow), open_generations):
        report = work.table(table)
    return ClusteringReport(state, declared.layout, before, columns, report, time.monotonic() - started)


class _Clustering(_Compaction):
    """A compaction of one table that rewrites all that is closed."""

    by: tuple[str, ...] = ()

    def _rewrite_once(self, writer: StateWriter, done: _Done) -> None:
        table = writer.table
        if table.declared.layout == LOG:
            opened, plan = self._planned(table, self.by, rewrite_all=True)
            self._fold_log(writer, done, opened, plan)
        elif table.declared.layout == MAP:
            with self._between_batches():
                opened = self._opened(table)
                self._sort(writer, opened, None)
                done.slices_folded = 1
        else:
            closed = self._closed_rows(table)
            opened = self._opened(table)
            parts = [part for part in parts_of(opened) if closed.has(part.gen)]
            if parts:
                self._sort(writer, opened, sorted({part.gen for part in parts}))
            done.slices_folded = len({part.slice for part in parts})
        # Last: it is true of what is closed from here on. Beside a batch Delta would refuse it, or the batch.
        if self.by != clustered_by(opened):
            with self._between_batches():
                self._still_held()
                writer.cluster_by(self.by)

    def _sort(self, writer: StateWriter, opened: DeltaTable, generations: list[int] | None) -> None:
        writer.optimize(opened, generations, self._record(writer.table), TARGET_FILE_BYTES, self.by)
