"""Growth: a batch and a read as the table grows older, by its batches. (Growth by keys: keyed counts; by flows: the crowd.)

Batches between the ages are committed by the state's own writer, without Spark; those that are measured are the stream's.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from rich.progress import track

from benchmarks.keyed_counts import arrive
from benchmarks.measure import Ratio, scratch, seconds
from pipelines import Lake, Runtime
from pipelines.maintenance import compact
from pipelines.sources import ParquetFiles
from pipelines.state.record import BATCH, BatchRecord
from pipelines.state.writer import StateWriter
from pipelines.trident import Count, DeltaState, TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEER = "ours, when the table was ten batches old."
AGES = (10, 1_000, 10_000)
BATCHES, READS, ROWS = 12, 15, 100
COMPACTED_EVERY = 1_000
WANTED = [{"key": key} for key in range(10)]


def measure(spark: SparkSession) -> list[Ratio]:
    """Batches and reads of a table at some ages, against those when it was young."""
    with scratch("growth") as folder:
        ages = _by_age(spark, folder)
    first = ages[AGES[0]]
    return [
        Ratio(f"{what}, table of {age:,} batches", f"of {AGES[0]}", 1000 * taken, 1000 * first[what], "ms", 1.5)
        for age in AGES[1:]
        for what, taken in ages[age].items()
    ]


def _by_age(spark: SparkSession, folder: Path) -> dict[int, dict[str, float]]:
    """Seconds of a batch, and behind a compaction of a read and of one of the past: per age, compacted every thousand batches."""
    lake, rng, found = Lake(folder / "lake"), np.random.default_rng(5), dict[int, dict[str, float]]()
    for age in AGES:
        found[age] = {"a batch": _batch_seconds(spark, lake, folder, rng)}
        while (last := lake.state("counts").last_txid() or 0) < age - 1:
            _grow_older(lake, min(age, last + COMPACTED_EVERY), rng)
            if last + COMPACTED_EVERY < age:
                # The stream's checkpoint knows nothing of these batches.
                shutil.rmtree(lake.root / "checkpoints")
                compact(spark, lake, _topology(folder))
        found[age]["a batch"] = _batch_seconds(spark, lake, folder, rng)
        compact(spark, lake, _topology(folder))
        past = (lake.state("counts").last_txid() or 0) - 5
        for what, txid in (("a read of 10 keys", None), ("a read of 10 keys, five batches ago", past)):
            # As a process that has not read it before.
            found[age][what] = _median(lambda txid=txid: Lake(lake.root).state("counts").get(WANTED, txid=txid))
    return found


def _topology(folder: Path) -> TridentTopology:
    topology = TridentTopology("counting")
    stream = topology.new_stream("events", ParquetFiles(folder / "in", "key bigint", max_files_per_batch=1))
    stream.group_by("key").persistent_aggregate(DeltaState("counts"), Count(), "n")
    return topology


def _batch_seconds(spark: SparkSession, lake: Lake, folder: Path, rng: np.random.Generator) -> float:
    """Run some batches with a fresh checkpoint, which goes on behind the table's last one."""
    for old in (folder / "in", lake.root / "checkpoints"):
        shutil.rmtree(old, ignore_errors=True)
    for number in range(BATCHES):
        arrive(folder / "in", number, rng.integers(0, ROWS, ROWS))
    report = Runtime(spark, lake).catch_up(_topology(folder), on_fresh_checkpoint="continue")
    return statistics.median(batch.seconds for batch in report.batches[2:])


def _grow_older(lake: Lake, age: int, rng: np.random.Generator) -> None:
    state = lake.state("counts")
    writer, last = StateWriter(state, state.declared), state.last_txid() or 0
    commits = state.commits.batches()
    epoch = max(commit.epoch or 0 for commit in commits)
    for txid in track(range(last + 1, age), f"{age:,} batches"):
        keys, counts = np.unique(rng.integers(0, ROWS, ROWS), return_counts=True)
        record = BatchRecord(kind=BATCH, flow="counting", epoch=epoch, txid=txid)
        writer.append_arrow(pa.table({"key": keys, "n": counts}), record, f"counting/counts/{epoch}")


def _median(read: Callable[[], object]) -> float:
    return statistics.median([seconds(read) for _ in range(READS)][3:])
