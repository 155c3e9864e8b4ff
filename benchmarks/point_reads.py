"""`get` of ten keys of a running state, against Spark and against bare delta-rs."""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING

import numpy as np
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import functions as F

from benchmarks.keyed_counts import MILLION, arrive, batches
from benchmarks.measure import Ratio, scratch, seconds
from pipelines import Lake, Runtime
from pipelines.maintenance import compact
from pipelines.sources import ParquetFiles
from pipelines.trident import Count, DeltaState, TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READS = 15


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
        return _compare(spark, lake)


def _compare(spark: SparkSession, lake: Lake) -> list[Ratio]:
    choose, state = random.Random(5), lake.state("counts")
    path = str(state.path)

    def ours(keys: list[int]) -> object:
        return state.get([{"key": key} for key in keys])

    def by_spark(keys: list[int]) -> object:
        frame = spark.read.format("delta").load(path).where(F.col("key").isin(keys))
        return frame.groupBy("key").agg(F.sum("n")).collect()

    def bare(keys: list[int]) -> object:
        listed = ", ".join(map(str, keys))
        sql = f"SELECT key, sum(n) AS n FROM t WHERE key IN ({listed}) GROUP BY key"
        return QueryBuilder().register("t", DeltaTable(path)).execute(sql).read_all()

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
