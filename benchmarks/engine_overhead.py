"""Engine overhead: read, explode, group, commit, against the same job written by hand in PySpark."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from benchmarks.measure import Ratio, paired, scratch, seconds
from pipelines import Lake, Runtime
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, Split, TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES = 8
ROUNDS = 3
WORDS = [f"word{number}" for number in range(20_000)]


def measure(spark: SparkSession) -> list[Ratio]:
    """Small batches, where the commit weighs most, and large ones, where the work does."""
    found = []
    for lines, label in ((2_000, "2 k lines a batch"), (200_000, "200 k lines a batch")):
        with scratch("overhead") as folder:
            generate(folder / "in", BATCHES, lines)
            ours, theirs = compare(spark, folder)
        found.append(Ratio(f"word count, {label}", "foreachBatch + Delta append", ours, theirs, "s", 1.05))
    return found


def compare(spark: SparkSession, folder: Path) -> tuple[float, float]:
    number = iter(range(1000))
    return paired(
        lambda: seconds(lambda: engine(spark, folder, next(number))),
        lambda: seconds(lambda: by_hand(spark, folder, next(number))),
        ROUNDS,
    )


def generate(folder: Path, batches: int, lines: int) -> None:
    choose = random.Random(7)
    folder.mkdir(parents=True)
    for number in range(batches):
        file = folder / f"{number:04d}.json"
        with file.open("w") as out:
            for _ in range(lines):
                out.write(json.dumps({"sentence": " ".join(choose.choices(WORDS, k=8))}) + "\n")
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def engine(spark: SparkSession, folder: Path, number: int) -> None:
    topology = TridentTopology("wordcount")
    source = JsonFiles(folder / "in", "sentence string", max_files_per_batch=1)
    stream = topology.new_stream("sentences", source).each("sentence", Split(), "word")
    stream.group_by("word").persistent_aggregate(DeltaState("word_counts"), Count(), "count")
    report = Runtime(spark, Lake(folder / f"lake{number}")).catch_up(topology)
    assert len(report.batches) == BATCHES


def by_hand(spark: SparkSession, folder: Path, number: int) -> None:
    """What a careful engineer writes: one append a batch, with its transaction id."""
    table = str(folder / f"hand{number}" / "table")

    def batch(frame: DataFrame, batch_id: int) -> None:
        words = frame.select(F.explode(F.filter(F.split("sentence", " "), lambda word: word != "")).alias("word"))
        counts = words.groupBy("word").agg(F.count(F.lit(1)).alias("count")).withColumn("txid", F.lit(batch_id))
        write = counts.write.format("delta").mode("append").option("txnAppId", "hand").option("txnVersion", batch_id)
        write.save(table)

    query = (
        spark.readStream.schema("sentence string")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder / "in"))
        .writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(folder / f"hand{number}" / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
