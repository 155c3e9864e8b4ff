"""From a row's birth to its commit: a stream that runs on and on over files that come five times a second.

Each row carries the time at which its file was written; a batch's commit has the time of Delta's log.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import Ratio, scratch
from pipelines import Lake, Runtime
from pipelines.sources import JsonFiles
from pipelines.state.schema import TXID
from pipelines.trident import DeltaState, TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEER = "the bars of the design: half a second for the median row, one second for the slowest of a hundred."
SECONDS, EVERY, ROWS = 60.0, 0.2, 20
# The first batches load classes.
WARM_SECONDS = 15.0


def measure(spark: SparkSession) -> list[Ratio]:
    """Seconds of the median row and of the 99th of a hundred, at a hundred rows per second."""
    with scratch("freshness") as folder:
        waits = run(spark, folder)
    hundredths = statistics.quantiles(waits, n=100)
    what = f"a row's birth to its commit, {ROWS / EVERY:g} rows per second"
    return [
        Ratio(f"{what}: median", "0.5 s", hundredths[49], 0.5, "s", 1.0),
        Ratio(f"{what}: 99 %", "1 s", hundredths[98], 1.0, "s", 1.0),
    ]


def run(spark: SparkSession, folder: Path) -> list[float]:
    """Seconds from birth to commit, of each row that came once the stream was warm."""
    arrivals = folder / "in"
    arrivals.mkdir()
    topology = TridentTopology("fresh")
    topology.new_stream("rows", JsonFiles(arrivals, "born double, n bigint")).partition_persist(DeltaState("kept"))
    lake = Lake(folder / "lake")
    write(arrivals, 0)
    stream = Runtime(spark, lake).stream(topology, trigger_seconds=0.0)
    began, number = time.time(), 1
    try:
        while time.time() < began + WARM_SECONDS + SECONDS:
            write(arrivals, number)
            number += 1
            time.sleep(max(0.0, began + number * EVERY - time.time()))
    finally:
        stream.stop()
    state = lake.state("kept")
    committed = {commit.txid: commit.time.timestamp() for commit in state.commits.batches()}
    rows = state.stored("true", f"born, {TXID} AS txid").to_pylist()
    return [committed[row["txid"]] - row["born"] for row in rows if row["born"] > began + WARM_SECONDS]


def write(folder: Path, number: int) -> None:
    """Lay down a file of rows that are born now, whole at once."""
    file = folder / f"{number:06d}.json"
    hidden = folder / f".{file.name}"
    hidden.write_text("".join(json.dumps({"born": time.time(), "n": n}) + "\n" for n in range(ROWS)))
    hidden.replace(file)
