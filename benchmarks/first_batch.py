"""The first batch: from the start of a process to what it commits first, a small count of words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.engine_overhead import generate
from benchmarks.measure import Ratio, paired, scratch
from benchmarks.storm import sentences
from benchmarks.storm.harness import finished

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEER = (
    "a process with Spark and Delta alone, by the settings of Delta's guide, Spark's UI off: hand-written `foreachBatch` with "
    "one append, its jars on the disk as ours are."
)
ROUNDS, LINES = 5, 2_000
BAR = 0.6
PROJECT = Path(__file__).parent.parent


def measure(_spark: SparkSession) -> list[Ratio]:
    """Seconds from a process' start to its first commit; the session given is not used."""
    with scratch("first") as folder:
        generate(folder / "in", 1, LINES)
        # The first process of each kind finds cold files, and ours makes the archive of classes.
        _seconds(folder, "word_count_process", "1"), _seconds(folder, "plain_spark_process")
        ours, theirs = paired(
            lambda: _seconds(folder, "word_count_process", "1"), lambda: _seconds(folder, "plain_spark_process"), ROUNDS
        )
    return [Ratio("a process' start to its first commit", "plain PySpark", ours, theirs, "s", BAR)]


def _seconds(folder: Path, module: str, *passes: str) -> float:
    """Run one process over its own lake; its counts must be right.

    Raises:
        ValueError: they are not.
    """
    with scratch("process") as work:
        counts = work / "counts.tsv"
        command = [sys.executable, "-m", f"benchmarks.{module}", str(folder / "in"), str(work / "lake"), *passes]
        took = finished([*command, str(counts)], PROJECT).from_start_seconds
        if sentences.read_counts(counts) != sentences.recount(folder / "in"):
            raise ValueError(f"{module} counted wrong")
        return took
