"""`get` of ten keys from a state of 365 slices, before and after compaction, against a state of one slice.

    python benchmarks/get_slices.py [--keys 2000] [--slices 365] [--reads 30]

All are ratios within one run; the bar is 1.5 x of one slice after compaction (design, section 13). No Spark.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType
from rich.console import Console
from rich.table import Table

from pipelines.maintenance import compact
from pipelines.state.lake import Lake
from pipelines.state.record import BATCH, GENERATION, BatchRecord
from pipelines.state.schema import SLICE_COLUMN, StateSchema, ValueColumn
from pipelines.state.table import StateTable
from pipelines.state.writer import StateWriter

FLOW, BAR = "bench", 1.5
COLUMNS = StructType([StructField("key", StringType()), StructField("count", LongType())])


def fill(lake: Lake, state: str, slices: int, keys: int) -> StateTable:
    """A state whose keys occur in every slice, a batch a slice."""
    schema = StateSchema(
        layout="log",
        flow=FLOW,
        keys=("key",),
        values=(ValueColumn(name="count", aggregator="Count"),),
        columns=(("key", "string"), ("count", "bigint")),
        sliced=slices > 1,
    )
    writer = StateWriter(lake.table(lake.state_path(state), state), schema)
    writer.prepare(COLUMNS)
    names = [f"key-{i:06d}" for i in range(keys)]
    for txid in range(slices):
        rows = pa.table({"key": names, "count": [1] * keys, SLICE_COLUMN: [f"day-{txid:04d}"] * keys})
        writer.append_arrow(rows, BatchRecord(kind=BATCH, flow=FLOW, epoch=1, txid=txid), f"{FLOW}/{state}/1")
    return writer.table


def read_ms(table: StateTable, keys: int, reads: int) -> float:
    """Milliseconds of a warm `get` of ten keys: the median, each read with other keys."""
    chance, times = random.Random(7), []
    table.get([{"key": "key-000000"}])
    for _ in range(reads):
        asked = [{"key": f"key-{chance.randrange(keys):06d}"} for _ in range(10)]
        started = time.perf_counter()
        table.get(asked)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=2000)
    parser.add_argument("--slices", type=int, default=365)
    parser.add_argument("--reads", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        one = fill(lake, "one", 1, options.keys)
        # What a stream that goes on has left open since the last compaction: part of a generation, on top of the closed.
        many = fill(lake, "many", options.slices, options.keys)
        found = [("one slice", one, read_ms(one, options.keys, options.reads))]
        found.append((f"{options.slices} slices", many, read_ms(many, options.keys, options.reads)))
        started = time.perf_counter()
        compact(None, lake, FLOW, open_generations=1)
        seconds = time.perf_counter() - started
        still_open = options.slices % GENERATION or GENERATION
        label = f"{options.slices} slices, compacted, {still_open} batches in the open generation"
        found.append((label, many, read_ms(many, options.keys, options.reads)))
        compact(None, lake, FLOW)
        found.append((f"{options.slices} slices, compacted", many, read_ms(many, options.keys, options.reads)))
        again = read_ms(one, options.keys, options.reads)
    print_table(found, min(found[0][2], again), seconds)


def print_table(found: list[tuple[str, StateTable, float]], base: float, seconds: float) -> None:
    table = Table(title=f"get of 10 keys, warm (compaction took {seconds:.1f} s)")
    for name in ("state", "ms", "x of one slice", f"bar {BAR} x"):
        table.add_column(name, justify="left" if name == "state" else "right")
    for index, (label, _, ms) in enumerate(found):
        ratio = ms / base
        verdict = "" if index + 1 < len(found) else ("met" if ratio <= BAR else "missed")
        table.add_row(label, f"{ms:.1f}", f"{ratio:.2f}", verdict)
    Console().print(table)


if __name__ == "__main__":
    main()
