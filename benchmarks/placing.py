"""Placing: 1,000 deployed flows on 200 hosts. The planner alone, and the leader's whole round over a registry that holds them.

Needs no Spark: `python -m benchmarks.placing`.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.assignment import BAR_SECONDS, FLOWS, HOSTS, LOST, SLOTS, cluster, median
from benchmarks.measure import Ratio, scratch, seconds
from pipelines.nimbus import plan_flows
from pipelines.nimbus.processes.leader import Leader
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.records import Content
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings

PEER = (
    "the bars of the design: one second for the planner, a launch (10 s) for what follows it, the time between "
    "two looks."
)
QUERIES, WORKERS, ROUNDS = 10, 3, 5


class Clock:
    """Seconds since 1970, set by hand: a round of the leader looks for dead tasks only now and then."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Registered:
    """A registry with hosts that beat and flows without places."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.store = Clock(), Store.migrated(f"sqlite:///{folder}/registry.db")
        self.places = Places(self.store, clock=self.clock)
        self.leader = Leader(self.store, NimbusSettings(folder), "supervisor:bench", clock=self.clock)
        self.beat(0)
        registry = Registry(self.store, clock=self.clock)
        for number in range(FLOWS):
            registry.submit(f"flow_{number:04d}", _content(f"flow_{number:04d}"))

    def beat(self, lost: int) -> None:
        """All hosts but the first few."""
        for number in range(lost, HOSTS):
            slots = tuple(range(6900, 6900 + SLOTS))
            self.places.beat_supervisor(f"host-{number:03d}", f"host-{number:03d}", slots, started_at=self.clock.now)

    def round(self, later: float) -> float:
        """Seconds of a round so much later."""
        self.clock.now += later
        return seconds(self.leader.tick)


def measure(spark: Any = None) -> list[Ratio]:
    """Seconds for all flows; the planner's against the bar of one second, a round's against the time between two looks."""
    hosts, demands = cluster()
    plan, _ = median(lambda: plan_flows(hosts, demands))
    with scratch("placing") as folder:
        registered = Registered(folder)
        pause = NimbusSettings(folder).monitor_seconds
        first = registered.round(0)
        quiet = statistics.median(registered.round(0.5) for _ in range(ROUNDS))
        looks = statistics.median(registered.round(pause) for _ in range(ROUNDS))
        # The first hosts are silent for longer than the supervisor time-out and a launch; no flow has beaten.
        for _ in range(8):
            registered.clock.now += 17
            registered.beat(LOST)
        lost = registered.round(pause)
        registered.store.close()
    # The bar of a first placing and of one after a loss is the time of a launch that follows it: 10 s.
    rounds = {
        "first round, all are placed": (first, 10.0),
        "round in which nothing has changed": (quiet, BAR_SECONDS),
        "round that looks for dead tasks": (looks, pause),
        f"round after a loss of {LOST} hosts, all tasks silent": (lost, 10.0),
    }
    what = f"{FLOWS} flows on {HOSTS} hosts"
    return [
        Ratio(f"plan {what}", "one second", plan, BAR_SECONDS, "s", 1.0),
        *(Ratio(f"leader, {what}: {name}", "bar", taken, bar, "s", 1.0) for name, (taken, bar) in rounds.items()),
    ]


def _content(name: str) -> Content:
    groups = [{"group": f"q{n}", "components": [f"q{n}"], "inputs": [], "stateful": False} for n in range(QUERIES)]
    definition = {"kind": "catalog", "name": name, "queries": groups, "explicit": {}}
    return Content(definition, {f"q{n}": 1 for n in range(QUERIES)}, WORKERS, {})


if __name__ == "__main__":
    for one in measure():
        print(f"{one.what}: {one.ours:.3f} {one.unit} (bar {one.theirs:g})")
