"""The assignment planner: 1,000 flows on 200 hosts, placed, watched after a loss of ten hosts, and rebalanced.

Needs no Spark: `python -m benchmarks.assignment`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.measure import Ratio, seconds
from pipelines.nimbus import Component, Demand, Plan, Supervisor, plan_flows

PEER = "one second, the bar of the design."
FLOWS, HOSTS, SLOTS, LOST, ROUNDS = 1000, 200, 20, 10, 5
BAR_SECONDS = 1.0


def cluster() -> tuple[list[Supervisor], list[Demand]]:
    """Two hundred hosts of twenty slots; flows of ten tasks on three workers."""
    parts = [
        Component("source", 2, "spout"),
        Component("clean", 4, inputs=["source"]),
        Component("count", 4, inputs=["clean"]),
    ]
    hosts = [Supervisor(f"host-{n:03d}", range(6900, 6900 + SLOTS)) for n in range(HOSTS)]
    return hosts, [Demand(f"flow_{n:04d}", parts, workers=3) for n in range(FLOWS)]


def median(work: Callable[[], Plan]) -> tuple[float, Plan]:
    """Median seconds, and the plan; none of the flows may be refused."""
    found: list[Plan] = []
    taken = statistics.median(seconds(lambda: found.append(work())) for _ in range(ROUNDS))
    if found[-1].refused:
        raise RuntimeError(f"{len(found[-1].refused)} flows were refused")
    return taken, found[-1]


def measure(spark: Any = None) -> list[Ratio]:
    """Seconds for all flows, against the bar of one second."""
    hosts, demands = cluster()
    new, placed = median(lambda: plan_flows(hosts, demands))
    watch, _ = median(lambda: plan_flows(hosts[LOST:], demands, kind="MONITOR", old=placed.assignments))
    more = [Demand(one.flow, one.components, workers=4) for one in demands]
    rebalance, _ = median(lambda: plan_flows(hosts, more, kind="REBALANCE", old=placed.assignments, reassign=True))
    measured = {"NEW": new, f"MONITOR, {LOST} hosts lost": watch, "REBALANCE 3 -> 4 workers": rebalance}
    return [
        Ratio(f"plan {FLOWS} flows on {HOSTS} hosts: {what}", "one second", taken, BAR_SECONDS, "s", 1.0)
        for what, taken in measured.items()
    ]


if __name__ == "__main__":
    for one in measure():
        print(f"{one.what}: {one.ours:.3f} {one.unit}")
