"""Measuring a state table: what it weighs and how long a read takes."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from pipelines.maintenance.plan import parts_of
from pipelines.maintenance.report import TableFigures
from pipelines.state.literals import quoted
from pipelines.state.schema import ROLL_UP, ROWS
from pipelines.state.table import StateTable

_KEYS = 10
# The first read opens the version; of the next ones the median, so that one stall of a busy machine does not count.
_READS = 5


def measure(table: StateTable) -> TableFigures:
    """The figures of the table's last version."""
    opened = DeltaTable(str(table.path))
    parts = parts_of(opened)
    return TableFigures(
        files=sum(part.files for part in parts),
        bytes=sum(part.bytes for part in parts),
        rows=sum(part.rows for part in parts),
        log_files=sum(1 for file in (table.path / "_delta_log").glob("[0-9]*.json") if file.stem.isdigit()),
        generations=len({part.gen for part in parts}),
        slices=len({part.slice for part in parts} - {ROLL_UP}),
        get_ms=_get_ms(table, opened),
    )


def _get_ms(table: StateTable, opened: DeltaTable) -> float | None:
    if table.declared.layout == ROWS:
        return None
    keys = _some_keys(table, opened)
    if not keys:
        return None
    # At a named version, so that the files are read: keys of the last one are kept in memory.
    version = opened.version()
    table.get(keys, version=version)
    times = []
    for _ in range(_READS):
        started = time.perf_counter()
        table.get(keys, version=version)
        times.append(time.perf_counter() - started)
    return round(statistics.median(times) * 1000, 1)


def _some_keys(table: StateTable, opened: DeltaTable) -> list[dict[str, Any]]:
    names = table.declared.keys
    columns = ", ".join(quoted(name) for name in names) or "1"
    found = QueryBuilder().register("state", opened).execute(f"SELECT {columns} FROM state LIMIT {_KEYS}").read_all()
    return pa.table(found).to_pylist() if names else [{}] * min(1, found.num_rows)
