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

PEER = (
    "hand-written `foreachBatch` in the same session: read, split, explode, group and one Delta append per batch "
    "with its transaction id (`txnAppId`, `txnVersion`), the files one per batch, Spark's defaults of the "
    "session. It keeps no accounts, no history per batch and no quarantine."
)
BATCHES = 8
ROUNDS = 3
WORDS = [f"word{number}" for number in range(20_000)]


def measure(spark: SparkSession) -> list[Ratio]:
    """Small batches, where the commit weighs most, and large ones, where the work does; and further states."""
    found = []
    for lines, label, bar in ((20, "20 lines", 0.25), (2_000, "2 k lines", 1.05), (200_000, "200 k lines", 1.05)):
        with scratch("overhead") as folder:
            generate(folder / "in", BATCHES, lines)
            ours, theirs = compare(spark, folder)
            if lines == 2_000:
                found.append(further_states(spark, folder))
        found.append(Ratio(f"word count, {label} per batch", "foreachBatch + Delta append", ours, theirs, "s", bar))
    return found


def further_states(spark: SparkSession, folder: Path) -> Ratio:
    """Five states of the same words in place of one."""
    number = iter(range(1000))
    five, one = paired(
        lambda: seconds(lambda: engine(spark, folder, f"five{next(number)}", states=5)),
        lambda: seconds(lambda: engine(spark, folder, f"one{next(number)}")),
        ROUNDS,
    )
    return Ratio("five states, 2 k lines per batch", "one state", five, one, "s", 1.5)


def compare(spark: SparkSession, folder: Path) -> tuple[float, float]:
    number = iter(range(1000))
    return paired(
        lambda: seconds(lambda: engine(spark, folder, str(next(number)))),
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


def engine(spark: SparkSession, folder: Path, number: str, *, states: int = 1) -> None:
    topology = TridentTopology("wordcount")
    source = JsonFiles(folder / "in", "sentence string", max_files_per_batch=1)
    stream = topology.new_stream("sentences", source).each("sentence", Split(), "word")
    for state in ("word_counts", *(f"further_{further}" for further in range(1, states))):
        stream.group_by("word").persistent_aggregate(DeltaState(state), Count(), "count")
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
