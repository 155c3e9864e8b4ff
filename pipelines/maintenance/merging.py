"""Merging the small files of tables of rows: the same rows in fewer files."""

from __future__ import annotations

from deltalake import DeltaTable

from pipelines.maintenance.plan import TARGET_FILE_BYTES, Closed, parts_of
from pipelines.state.record import BatchRecord
from pipelines.state.writer import StateWriter


def merge(writer: StateWriter, table: DeltaTable, closed: Closed, record: BatchRecord) -> int:
    """Merge small files within the partitions of closed generations. Returns how many slices were touched.

    Delta's OPTIMIZE: the commit says that no data changed, so a stream that reads the table does not read it again.
    """
    loose = [part for part in parts_of(table) if part.gen < closed.before and part.files > 1]
    if loose:
        writer.optimize(table, sorted({part.gen for part in loose}), record, TARGET_FILE_BYTES)
    return len({part.slice for part in loose})
