"""An event flow with count windows and time windows, whose partitions change while it runs; and processes that die at it.

python -m tests.maintenance.repartition_case '{"home": "...", "group": "...", "partitions": 5, "kill": {"phase": "copied"}}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pipelines import Lake, Runtime, spark_session
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.flowmix import Average, Count, Flow, Max, Policy, Sum
from pipelines.maintenance.repartition import RepartitionReport, repartition
from pipelines.sources import FixedBatches

BATCHES, EVENTS, KEYS = 12, 60, 17
SCHEMA = "k string, v bigint, timestamp bigint, id string"
TABLES = ("sums", "averages")
SOURCE, COUNTED, TIMED = "readings", "readings__1", "readings__2"
"""The queries: the source's, which has no state, and those of the windows."""


def batch(number: int) -> list[tuple[str, int, int, str]]:
    """Sixty events of seventeen keys within twelve seconds."""
    places = range(number * EVENTS, (number + 1) * EVENTS)
    return [(f"k{place % KEYS}", place % 19, 100_000 + place * 200, f"e{place}") for place in places]


def flow(batches: int = BATCHES) -> Flow:
    """Count windows, and behind them time windows, each in a query of its own."""
    return (
        Flow("scaled", windows="channels")
        .stream("readings", FixedBatches(SCHEMA, [batch(n) for n in range(batches)]))
        .partition("k")
        .aggregate(Sum("v", "sum"), Count(output="n"), trigger=Policy.count(4), evict=Policy.count(6))
        .persist("sums")
        .aggregate(Average("sum", "avg"), Max("n", "most"), trigger=Policy.time(7), evict=Policy.time(20))
        .persist("averages")
        .build()
    )


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    """Every table's rows, in one order."""
    return {
        name: sorted((tuple(row.values()) for row in lake.state(name).scan().to_pylist()), key=repr) for name in TABLES
    }


def checkpoint(lake: Lake, group: str) -> Checkpoint:
    return Checkpoint("scaled", lake.checkpoint_path("scaled", group))


def changed(spark: SparkSession, lake: Lake, group: str, partitions: int, progress: Any = None) -> RepartitionReport:
    """Repartition a query of the flow, as a worker does between two runs."""
    own = checkpoint(lake, group)
    with own.running(5):
        return repartition(spark, own, partitions, copies=lake.root / "copies", progress=progress)


def run(spark: SparkSession, lake: Lake, **more: Any) -> None:
    Runtime(spark, lake, max_attempts=30).catch_up(flow(), **more)


def _die() -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main(plan: dict[str, Any]) -> None:
    kill = plan["kill"]

    def progress(phase: str) -> None:
        if phase == kill["phase"]:
            threading.Timer(kill["after"], _die).start() if kill.get("after") else _die()

    session = spark_session(
        "crash", master="local[2]", conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    )
    changed(session, Lake(Path(plan["home"])), plan["group"], plan["partitions"], progress)
    threading.Event().wait(kill.get("after", 0) + 5)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
