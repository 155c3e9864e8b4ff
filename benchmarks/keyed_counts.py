"""Counts per key over a large state: the log layout against one MERGE per batch."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from benchmarks.measure import Ratio, scratch, seconds
from pipelines import Lake, Runtime
from pipelines.maintenance import compact
from pipelines.sources import ParquetFiles
from pipelines.trident import Count, DeltaState, TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PEER = (
    "hand-written `foreachBatch` with one `MERGE INTO` per batch of counts by key into a Delta table with a row "
    "per key, in the same session; and ours at 10 k keys."
)
ROWS = 100_000
MILLION = 1_000_000
BATCHES = 4
BARS = {MILLION: 2.5, 10 * MILLION: 6.0}


def measure(spark: SparkSession) -> list[Ratio]:
    found, own = [], {}
    for keys in (10_000, MILLION, 10 * MILLION):
        with scratch("keyed") as folder:
            ours = engine(spark, folder, keys)
            own[keys] = ours
            if keys in BARS:
                theirs = merge(spark, folder, keys)
                label = f"keyed counts, {keys // MILLION} M keys, batch of 100 k"
                found.append(Ratio(label, "one MERGE per batch", ours, theirs, "s", BARS[keys], "higher"))
    found.append(
        Ratio("keyed counts, batch at 10 M keys", "itself at 10 k keys", own[10 * MILLION], own[10_000], "s", 1.2)
    )
    return found


def arrive(folder: Path, number: int, keys: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{number:04d}.parquet"
    pq.write_table(pa.table({"key": pa.array(keys, pa.int64())}), file)
    os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def batches(keys: int) -> list[np.ndarray]:
    choose = np.random.default_rng(11)
    return [choose.integers(0, keys, ROWS) for _ in range(BATCHES)]


def engine(spark: SparkSession, folder: Path, keys: int) -> float:
    """Median batch seconds, after the state was filled and compacted."""
    topology = TridentTopology("counting")
    stream = topology.new_stream("events", ParquetFiles(folder / "in", "key bigint", max_files_per_batch=1))
    stream.group_by("key").persistent_aggregate(DeltaState("counts"), Count(), "n")
    arrive(folder / "in", 0, np.arange(keys))
    runtime = Runtime(spark, Lake(folder / "lake"))
    runtime.catch_up(topology)
    compact(spark, Lake(folder / "lake"), topology)
    for number, drawn in enumerate(batches(keys), 1):
        arrive(folder / "in", number, drawn)
    report = runtime.catch_up(topology)
    assert len(report.batches) == BATCHES
    return statistics.median(batch.seconds for batch in report.batches[1:])


def merge(spark: SparkSession, folder: Path, keys: int) -> float:
    """The same by hand: MERGE each batch's counts into one row a key. Median batch seconds."""
    table = str(folder / "merged")
    spark.range(keys).select(F.col("id").alias("key"), F.lit(1).cast("long").alias("n")).write.format("delta").save(
        table
    )
    taken: list[float] = []

    def batch(frame: DataFrame, batch_id: int) -> None:
        counts = frame.groupBy("key").agg(F.count(F.lit(1)).alias("n"))
        counts.createOrReplaceTempView("updates")
        sql = (
            f"MERGE INTO delta.`{table}` t USING updates u ON t.key = u.key "
            "WHEN MATCHED THEN UPDATE SET t.n = t.n + u.n WHEN NOT MATCHED THEN INSERT *"
        )
        taken.append(seconds(lambda: frame.sparkSession.sql(sql).collect()))

    for number, drawn in enumerate(batches(keys)):
        arrive(folder / "hand", number, drawn)
    query = (
        spark.readStream.schema("key bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "hand"))
        .writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(folder / "hand_checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return statistics.median(taken[1:])
