"""A Nimbus without registry, supervisor and Spark: it keeps flows in a dict and remembers what was asked of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipelines.nimbus.errors import AlreadyAliveError, NotAliveError, WaitError
from pipelines.nimbus.registry.lifecycle import Request
from pipelines.nimbus.registry.records import AssignmentRecord, Happened, Version
from pipelines.nimbus.status import ClusterStatus, FlowStatus, SupervisorStatus
from tests.nimbus.looks import NOW, RUNNING, flow


class FakePlaces:
    """No flow has had a place."""

    last: AssignmentRecord | None = None

    def last_assignment(self, name: str) -> AssignmentRecord | None:
        return self.last


class FakeNimbus:
    """As `Nimbus`, as far as people see it.

    Attributes:
        flows: What is deployed.
        alive: Whether a supervisor is.
        stuck: Whether no wait ever ends well.
        asked: Every call that changes something, in order.
    """

    def __init__(self, *flows: FlowStatus, alive: bool = True) -> None:
        self.flows = {one.name: one for one in flows}
        self.alive, self.stuck = alive, False
        self.asked: list[tuple[Any, ...]] = []
        self.told: list[Happened] = []
        self.places = FakePlaces()
        self.closed = 0

    def __enter__(self) -> FakeNimbus:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def _put(self, name: str, **changes: Any) -> FlowStatus:
        self.flows[name] = replace(self.flow(name), **changes)
        return self.flows[name]

    def submit(self, name: str, **options: Any) -> FlowStatus:
        self.asked.append(("submit", name, options))
        if name in self.flows:
            raise AlreadyAliveError(name, self.flows[name].status)
        self.flows[name] = flow(name, version=1, status="INACTIVE" if options.get("inactive") else "ACTIVE")
        return self.flows[name]

    def update(self, name: str, **options: Any) -> FlowStatus:
        self.asked.append(("update", name, options))
        return self._newer(name)

    def _newer(self, name: str) -> FlowStatus:
        # Its worker is another process from now on.
        tasks = () if self.stuck else (replace(RUNNING, pid=4712),)
        return self._put(name, version=self.flow(name).version + 1, tasks=tasks)

    def deploy(self, name: str, **options: Any) -> tuple[FlowStatus, str]:
        if name in self.flows:
            return self.update(name, **options), "updated"
        return self.submit(name, **options), "submitted"

    def roll_back(self, name: str, to: int | None = None, *, seen: FlowStatus | None = None) -> FlowStatus:
        self.asked.append(("roll_back", name, to))
        return self._newer(name)

    def activate(self, name: str) -> FlowStatus:
        self.asked.append(("activate", name))
        return self._put(name, status="ACTIVE")

    def deactivate(self, name: str) -> FlowStatus:
        self.asked.append(("deactivate", name))
        return self._put(name, status="INACTIVE")

    def kill(self, name: str, wait_seconds: float | None = None) -> FlowStatus:
        self.asked.append(("kill", name, wait_seconds))
        return self._put(name, status="KILLED", due_event="REMOVE", due_at=NOW + 30)

    def rebalance(self, name: str, **request: Any) -> FlowStatus:
        self.asked.append(("rebalance", name, request))
        # The next look finds it rebalanced.
        return replace(self._put(name, workers=request.get("workers") or 1), status="REBALANCING", previous="ACTIVE")

    def check_rebalance(self, name: str, **request: Any) -> Request:
        return Request(**request)

    def wait(self, name: str, *, until: str, seconds: float) -> FlowStatus | None:
        self.asked.append(("wait", name, until, seconds))
        if self.stuck:
            raise WaitError(name, until, seconds, "no slot is free")
        if until == "gone":
            self.flows.pop(name)
            return None
        states = {"running": "running", "batch": "running", "stopped": "drained"}
        return self._put(name, tasks=(replace(RUNNING, state=states[until]),), due_event=None, due_at=None)

    def ensure_supervisor(self) -> str:
        self.asked.append(("ensure_supervisor",))
        self.alive = True
        return "s1"

    def flow(self, name: str) -> FlowStatus:
        if name not in self.flows:
            raise NotAliveError(name, sorted(self.flows))
        return self.flows[name]

    def history(self, name: str) -> list[Happened]:
        return self.told

    def versions(self, name: str) -> list[Version]:
        return []

    def cluster(self) -> ClusterStatus:
        one = SupervisorStatus("s1", "here", (6900, 6901), {}, self.alive, 0.5, NOW, leader=True)
        return ClusterStatus(NOW, "s1", (one,), tuple(self.flows.values()))
