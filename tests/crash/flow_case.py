"""An event flow with windows of several kinds, one behind the other and in two streams: what its kill tests run over."""

from __future__ import annotations

import sys
from typing import Any

from pipelines import Lake, Runtime, spark_session
from pipelines.flowmix import Average, Count, Flow, Max, Policy, Sum
from pipelines.sources import FixedBatches

BATCHES, EVENTS = 48, 12
SCHEMA = "k string, v bigint, timestamp bigint, id string"


def batch(number: int) -> list[tuple[str, int, int, str]]:
    """Twelve events of three keys within six seconds, and one that comes a minute late."""
    events = []
    for n in range(EVENTS):
        place = number * EVENTS + n
        events.append((f"k{place % 3}", place % 17, 100_000 + place * 500, f"e{place}"))
    if number % 4 == 3:
        events.append(("k0", 1000 + number, 100_000 + number * EVENTS * 500 - 60_000, f"late{number}"))
    return events


def flow() -> Flow:
    return (
        Flow("killed")
        .stream("readings", FixedBatches(SCHEMA, [batch(n) for n in range(BATCHES)]))
        .filter("v != 5")
        .persist("readings_kept")
        .partition("k")
        .aggregate(Sum("v", "sum"), Count(output="n"), trigger=Policy.count(4), evict=Policy.count(6))
        .persist("sums")
        .aggregate(
            Average("sum", "avg"),
            Max("n", "most"),
            trigger=Policy.time(7),
            evict=Policy.time(20),
            clear_on_trigger=True,
        )
        .to("worst")
        .output()
        .stream("worst")
        .partition()
        .sort("avg desc", top_n=3, trigger=Policy.count(5))
        .persist("worst_three")
        .build()
    )


TABLES = ("readings_kept", "sums", "killed_readings", "worst_three", "late_killed_readings")


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    """Every table's rows, in one order."""
    return {
        name: sorted((tuple(row.values()) for row in lake.state(name).scan().to_pylist()), key=repr) for name in TABLES
    }


if __name__ == "__main__":
    import json

    from tests.crash.driver import Killer
    from tests.crash.flow_case import flow as shipped
    from tests.lakes import lake_place

    plan = json.loads(sys.argv[1])
    session = spark_session(
        "crash", master="local[2]", conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    )
    runtime = Runtime(session, Lake(lake_place(plan["home"])), listeners=[Killer(plan["kill"])], max_attempts=30)
    # Two batches of each query in turn, so that the windows have many batches of their own.
    while runtime.catch_up(shipped(), max_batches=2).batches:
        pass
