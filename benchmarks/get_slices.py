"""`get` of ten keys from a state of 365 slices, before and after compaction, against a state of one slice."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from benchmarks.measure import Ratio, scratch
from pipelines.maintenance import compact
from pipelines.state.lake import Lake
from pipelines.state.record import BATCH, GENERATION, BatchRecord
from pipelines.state.schema import SLICE_COLUMN, StateSchema, ValueColumn
from pipelines.state.table import StateTable
from pipelines.state.writer import StateWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEER = "a state of one slice with the same keys; each read at a named version, so that files are read."
FLOW, KEYS, SLICES, READS = "bench", 2000, 365, 30
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
    """Milliseconds of a warm `get` of ten keys: the median, each read with other keys.

    At a named version, so that the files are read: keys of the last version are kept in memory.
    """
    chance, times, version = random.Random(7), [], table.version()
    table.get([{"key": "key-000000"}], version=version)
    for _ in range(reads):
        asked = [{"key": f"key-{chance.randrange(keys):06d}"} for _ in range(10)]
        started = time.perf_counter()
        table.get(asked, version=version)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def measure(spark: SparkSession) -> list[Ratio]:
    """One slice, many as they lie, many compacted beside a stream (its open generation stays), many compacted."""
    with scratch("slices") as folder:
        lake = Lake(folder)
        one, many = fill(lake, "one", 1, KEYS), fill(lake, "many", SLICES, KEYS)
        loose = read_ms(many, KEYS, READS)
        compact(spark, lake, FLOW, open_generations=1)
        beside = read_ms(many, KEYS, READS)
        compact(spark, lake, FLOW)
        compacted, base = read_ms(many, KEYS, READS), read_ms(one, KEYS, READS)
    still_open = SLICES % GENERATION or GENERATION
    print(f"get of 10 keys, {SLICES} slices: {loose:.1f} ms before compaction, ", end="")
    print(f"{beside:.1f} ms with {still_open} batches since, {compacted:.1f} ms compacted; one slice {base:.1f} ms")
    return [Ratio(f"get of 10 keys, {SLICES} slices, compacted", "one slice", compacted, base, "ms", 1.5)]
