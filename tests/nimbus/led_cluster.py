"""A registry and its leader without processes: supervisors and tasks beat when a test says so."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.nimbus.deployed import queries_of
from pipelines.nimbus.processes.leader import Leader
from pipelines.nimbus.registry.leases import LEASE
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.records import Content, DeployedFlow
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings
from tests.nimbus.beats import beat

if TYPE_CHECKING:
    from tests.nimbus.conftest import Clock

SECONDS = 5.0
Slot = tuple[str, int]


def definition(name: str, groups: Sequence[str]) -> dict[str, object]:
    """A version's definition."""
    queries = [{"group": group, "components": [group], "inputs": [], "stateful": False} for group in groups]
    return {"kind": "catalog", "name": name, "queries": queries, "explicit": {}}


class Cluster:
    """A registry, supervisors that beat when they are told to, and a leader."""

    def __init__(self, store: Store, clock: Clock, folder: Path) -> None:
        self.clock, self.store = clock, store
        self.settings = NimbusSettings(folder, monitor_seconds=SECONDS)
        self.registry, self.places = Registry(store, clock=clock), Places(store, clock=clock)
        self.leader = self.another("one")
        self.started = clock.now

    def another(self, name: str) -> Leader:
        return Leader(self.store, self.settings, f"supervisor:{name}", clock=self.clock)

    def supervisors(self, **ports: list[int]) -> None:
        """These beat now."""
        for name, offered in ports.items():
            self.places.beat_supervisor(name, name, offered, started_at=self.started)

    def submit(self, name: str, queries: int | Sequence[str] = 1, workers: int = 1, **settings: object) -> DeployedFlow:
        groups = [f"q{n}" for n in range(queries)] if isinstance(queries, int) else queries
        return self.registry.submit(
            name, Content(definition(name, groups), dict.fromkeys(groups, 1), workers, settings)
        )

    def change(self, name: str, *groups: str) -> DeployedFlow:
        """A new version with these queries."""
        content = self.registry.flow(name).version.content
        components = dict.fromkeys(groups, 1)
        new = replace(content, definition=definition(name, groups), components=components)
        return self.registry.update(name, new)

    def update(self, name: str, **settings: object) -> None:
        content = self.registry.flow(name).version.content
        self.registry.update(name, replace(content, settings=settings))

    def beat(self, flow: DeployedFlow, state: str = "running", tasks: Collection[int] | None = None) -> None:
        """All tasks of a flow beat now, or some."""
        record = self.places.assignment(flow)
        assert record is not None
        for worker in record.workers:
            for task in worker.tasks if tasks is None else {*worker.tasks} & {*tasks}:
                name = f"task:{flow.name}/{task}/{self.clock.now}"
                lease = self.registry.leases.take(name, "w", 1000)
                slot = (worker.supervisor, worker.port)
                beat(self.places, flow, task, slot, lease, lease_seconds=1000, figures={"state": state})

    def places_of(self, name: str) -> dict[tuple[str, int], tuple[int, ...]]:
        record = self.places.assignment(self.registry.flow(name))
        return {(one.supervisor, one.port): one.tasks for one in record.workers} if record else {}

    def slots_of(self, name: str) -> dict[str, Slot]:
        """The slot of each query."""
        at = {task: slot for slot, tasks in self.places_of(name).items() for task in tasks}
        return {query.group: at[query.task] for query in queries_of(self.registry.flow(name)) if query.task in at}

    def holder(self) -> str | None:
        """Who leads."""
        lease = self.registry.leases.holder(LEASE)
        return lease.holder if lease else None

    def look(self, seconds: float = SECONDS) -> None:
        """Time passes, and the leader looks often enough to go on leading."""
        until = self.clock.now + seconds
        while self.clock.now + SECONDS < until:
            self.clock.now += SECONDS
            self.leader.tick()
        self.clock.now = until
        self.leader.tick()
