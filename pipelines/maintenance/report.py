"""Reports of a compaction, typed and JSON-able, and the measuring of a table for them."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from pipelines.errors import FarTimeError
from pipelines.maintenance.plan import parts_of
from pipelines.state.delta_log import versions
from pipelines.state.far_times import plain_rows
from pipelines.state.kinds import ROWS
from pipelines.state.literals import quoted
from pipelines.state.schema import ROLL_UP
from pipelines.state.table import StateTable


@dataclass(frozen=True)
class TableFigures:
    """A table at one moment.

    Attributes:
        files: data files of the last version.
        bytes: their size.
        rows: stored rows (partial values in a log state).
        log_files: commits in the Delta log.
        generations: generations that hold rows.
        slices: slices that hold rows, the roll-up not counted.
        get_ms: milliseconds of a warm `get` of ten keys, the median of a few; None for tables without keys to ask for, or with
            a date or time among their rows that Python does not have.
    """

    files: int
    bytes: int
    rows: int
    log_files: int
    generations: int
    slices: int
    get_ms: float | None = None


@dataclass(frozen=True)
class TableReport:
    """The compaction of one table.

    Attributes:
        state: its name; `quarantine of <flow>` for the flow's quarantine.
        layout: `log` or `rows`.
        version: the table's version afterwards.
        seconds: of all the work on this table.
        slices_folded: slices whose closed generations were rewritten.
        rolled_up: whether a new roll-up over all slices was written.
        files_removed: data files that the vacuum deleted from disk.
        log_files_removed: commits that the log cleanup deleted.
        conflicts: how often Delta refused the commit, and the work was done again on a fresh snapshot.
        rows_let_go: rows that were deleted: of a channel those that all its readers had taken, of the quarantine old ones.
        left_overs_removed: half-written files of killed writers, and empty folders.
    """

    state: str
    layout: str
    version: int
    seconds: float
    before: TableFigures
    after: TableFigures
    slices_folded: int = 0
    rolled_up: bool = False
    files_removed: int = 0
    log_files_removed: int = 0
    conflicts: int = 0
    rows_let_go: int = 0
    left_overs_removed: int = 0


@dataclass(frozen=True)
class Total:
    """Sums over the tables of a flow."""

    tables: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows_before: int
    rows_after: int


@dataclass(frozen=True)
class CompactionReport:
    """One compaction of a flow: a report a table."""

    flow: str
    tables: tuple[TableReport, ...]
    seconds: float

    @property
    def total(self) -> Total:
        before, after = [t.before for t in self.tables], [t.after for t in self.tables]
        return Total(
            tables=len(self.tables),
            files_before=sum(f.files for f in before),
            files_after=sum(f.files for f in after),
            bytes_before=sum(f.bytes for f in before),
            bytes_after=sum(f.bytes for f in after),
            rows_before=sum(f.rows for f in before),
            rows_after=sum(f.rows for f in after),
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "total": asdict(self.total)}


_KEYS = 10
# The first read opens the version; of the next ones the median, so that one stall of a busy machine does not count.
_READS = 5


def measure(table: StateTable) -> TableFigures:
    """Return the figures of the table's last version."""
    opened = DeltaTable(str(table.path))
    parts = parts_of(opened)
    return TableFigures(
        files=sum(part.files for part in parts),
        bytes=sum(part.bytes for part in parts),
        rows=sum(part.rows for part in parts),
        log_files=len(versions(table.path)),
        generations=len({part.gen for part in parts}),
        slices=len({part.slice for part in parts} - {ROLL_UP}),
        get_ms=_get_ms(table, opened),
    )


def _get_ms(table: StateTable, opened: DeltaTable) -> float | None:
    if table.declared.layout == ROWS:
        return None
    # At a named version, so that the files are read: keys of the last one are kept in memory.
    version = opened.version()
    try:
        keys = _some_keys(table, opened)
        if not keys:
            return None
        table.get(keys, version=version)
    except FarTimeError:
        return None
    times = []
    for _ in range(_READS):
        started = time.perf_counter()
        table.get(keys, version=version)
        times.append(time.perf_counter() - started)
    return round(statistics.median(times) * 1000, 1)


def _some_keys(table: StateTable, opened: DeltaTable) -> list[dict[str, Any]]:
    names = table.declared.keys
    columns = ", ".join(quoted(name) for name in names) or "1"
    query = QueryBuilder().register("state", opened).execute(f"SELECT {columns} FROM state LIMIT {_KEYS}")
    rows = pa.table(query.read_all())
    if any(map(pa.types.is_nested, rows.schema.types)):
        return []
    return plain_rows(rows, table.name, names) if names else [{}] * min(1, rows.num_rows)
