"""`get` of ten keys of a running state, against Spark and against bare delta-rs."""

from __future__ import annotations

import itertools
import random
import statistics
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import functions as F

from benchmarks.keyed_counts import MILLION, arrive, batches
from benchmarks.measure import Ratio, scratch, seconds
from pipelines import Lake, Runtime
from pipelines.maintenance import compact
from pipelines.sources import ParquetFiles
from pipelines.state.record import BATCH, BatchRecord
from pipelines.state.writer import StateWriter
from pipelines.trident import Count, DeltaState, TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEER = (
    "Spark: `where key in (...)`, group and sum over the state's table, in a warm session. Bare delta-rs: "
    "`DeltaTable` opened for each read, its own SQL with the ten keys."
)
READS = 15
SMALL_BATCHES, SMALL_ROWS = 45, 5_000
"""A stream's batches since the last compaction: one small file each."""


def measure(spark: SparkSession) -> list[Ratio]:
    with scratch("reads") as folder:
        topology = TridentTopology("counting")
        stream = topology.new_stream("events", ParquetFiles(folder / "in", "key bigint", max_files_per_batch=1))
        stream.group_by("key").persistent_aggregate(DeltaState("counts"), Count(), "n")
        lake = Lake(folder / "lake")
        arrive(folder / "in", 0, np.arange(MILLION))
        Runtime(spark, lake).catch_up(topology)
        compact(spark, lake, topology)
        for number, drawn in enumerate(batches(MILLION), 1):
            arrive(folder / "in", number, drawn)
        Runtime(spark, lake).catch_up(topology)
        return [*_compare(spark, lake), *_beside_a_stream(lake)]


def _compare(spark: SparkSession, lake: Lake) -> list[Ratio]:
    choose, state = random.Random(5), lake.state("counts")
    path = str(state.path)

    def ours(keys: list[int]) -> object:
        return state.get([{"key": key} for key in keys])

    def by_spark(keys: list[int]) -> object:
        frame = spark.read.format("delta").load(path).where(F.col("key").isin(keys))
        return frame.groupBy("key").agg(F.sum("n")).collect()

    def bare(keys: list[int]) -> object:
        return _bare(path, keys)

    times: dict[str, list[float]] = {"ours": [], "spark": [], "bare": []}
    for _ in range(READS):
        keys = [choose.randrange(MILLION) for _ in range(10)]
        for name, read in (("ours", ours), ("spark", by_spark), ("bare", bare)):
            times[name].append(1000 * seconds(lambda read=read, keys=keys: read(keys)))
    medians = {name: statistics.median(taken[3:]) for name, taken in times.items()}
    return [
        Ratio("get of 10 keys, 1 M keys", "Spark", medians["ours"], medians["spark"], "ms", 20, "higher"),
        Ratio("get of 10 keys, 1 M keys", "bare delta-rs", medians["ours"], medians["bare"], "ms", 1.5),
    ]


def _beside_a_stream(lake: Lake) -> list[Ratio]:
    """Each read meets a new batch: of the same ten keys as a dashboard asks, and of others."""
    state, rng, choose = lake.state("counts"), np.random.default_rng(7), random.Random(9)
    writer, next_txid = StateWriter(state, state.declared), itertools.count((state.last_txid() or 0) + 1)

    def batch() -> None:
        keys, counts = np.unique(rng.integers(0, MILLION, SMALL_ROWS), return_counts=True)
        record = BatchRecord(kind=BATCH, flow=state.declared.flow, epoch=1, txid=next(next_txid))
        writer.append_arrow(pa.table({"key": keys, "n": counts}), record, "counting/counts/1")

    for _ in range(SMALL_BATCHES):
        batch()
    same = [{"key": key} for key in range(10)]
    asked = {"the same 10 keys": lambda: same, "10 keys": lambda: [{"key": choose.randrange(MILLION)} for _ in same]}
    found = []
    for name, keys in asked.items():
        ours, bare = [], []
        for _ in range(READS):
            batch()
            some = keys()
            ours.append(1000 * seconds(lambda some=some: state.get(some)))
            bare.append(1000 * seconds(lambda some=some: _bare(str(state.path), [one["key"] for one in some])))
        medians = statistics.median(ours[3:]), statistics.median(bare[3:])
        found.append(Ratio(f"get of {name} beside a stream", "bare delta-rs", *medians, "ms", 1.0))
    return found


def _bare(path: str, keys: list[int]) -> object:
    sql = f"SELECT key, sum(n) AS n FROM t WHERE key IN ({', '.join(map(str, keys))}) GROUP BY key"
    return QueryBuilder().register("t", DeltaTable(path)).execute(sql).read_all()
