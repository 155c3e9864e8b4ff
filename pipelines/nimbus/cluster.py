"""The placement of what runs: the statuses of flows, tasks and supervisors, from the registry's assignments and beats."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from pipelines.causes import named
from pipelines.nimbus.deployed import DeployedQuery, queries_of, unreadable
from pipelines.nimbus.registry.leases import LEASE
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.records import AssignmentRecord, DeployedFlow, SupervisorBeat, TaskBeat
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.status import (
    ASSIGNED,
    FAILED,
    SILENT,
    CheckStatus,
    ClusterStatus,
    FlowStatus,
    SupervisorStatus,
    TaskStatus,
)

if TYPE_CHECKING:
    from pipelines.nimbus.registry.store import Store
    from pipelines.nimbus.settings import NimbusSettings

_TASK_FIELDS = frozenset(TaskStatus.__dataclass_fields__)
_TASK, _CHECKS = TypeAdapter(TaskStatus), TypeAdapter(dict[str, CheckStatus])


class Cluster:
    """The statuses of one registry.

    Args:
        settings: Their time-outs say who is silent and who is dead.
    """

    def __init__(self, store: Store, settings: NimbusSettings) -> None:
        self._settings = settings
        self._registry, self._places = Registry(store), Places(store)

    def cluster(self) -> ClusterStatus:
        """Return what runs, where, how far, how late."""
        lease = self._registry.leases.holder(LEASE)
        leader = lease.holder if lease else None
        used = self._places.used_slots()
        supervisors = tuple(self._supervisor(beat, used, leader) for beat in self._places.supervisors())
        # All places and all beats with one query each: flows may be hundreds, and some clients look every second.
        places, beats = self._places.assignments(), self._places.beats_of_all()
        flows = tuple(
            self._status(flow, places.get(flow.serial), beats.get(flow.serial, {})) for flow in self._registry.flows()
        )
        return ClusterStatus(time.time(), leader, supervisors, flows)

    def status(self, flow: DeployedFlow) -> FlowStatus:
        """Return where a deployed flow stands."""
        return self._status(flow, self._places.assignment(flow), self._places.beats(flow))

    def _status(self, flow: DeployedFlow, record: AssignmentRecord | None, beats: Mapping[int, TaskBeat]) -> FlowStatus:
        try:
            return _flow_status(flow, self._tasks(flow, record, beats))
        except Exception as error:
            # Another release may have written it: this flow is seen without what it says, and the others as they are.
            return _bare_status(flow, named(unreadable(flow, error)))

    def _tasks(
        self, flow: DeployedFlow, record: AssignmentRecord | None, beats: Mapping[int, TaskBeat]
    ) -> tuple[TaskStatus, ...]:
        workers = record.workers if record else ()
        placed = {task: (worker.supervisor, worker.port) for worker in workers for task in worker.tasks}
        return tuple(
            self._task(query, placed.get(query.task, ("", 0)), beats.get(query.task)) for query in queries_of(flow)
        )

    def _task(self, query: DeployedQuery, slot: tuple[str, int], beat: TaskBeat | None) -> TaskStatus:
        if beat is None:
            return TaskStatus(query.task, query.group, ASSIGNED, *slot, partitions=query.partitions)
        figures = {name: value for name, value in beat.figures.items() if name in _TASK_FIELDS}
        age = max(0.0, time.time() - beat.beat_at)
        # Workers of earlier releases do not say it, and take back no error before they end.
        figures.setdefault("failing", figures.get("state") == FAILED)
        if age > self._settings.task_timeout_seconds:
            figures |= {"state": SILENT, "failing": False}
        figures |= {"task": query.task, "supervisor": slot[0], "port": slot[1], "beat_age_seconds": round(age, 1)}
        try:
            checks = _CHECKS.validate_python(figures.get("checks", {}))
            return _TASK.validate_python({**figures, "checks": {name: vars(check) for name, check in checks.items()}})
        except ValidationError as error:
            # Whoever looks at flows counts on what a status says.
            first = error.errors(include_url=False)[0]
            place = "checks." * (error.title != TaskStatus.__name__) + ".".join(map(str, first["loc"]))
            raise ValueError(f"the beat of {query.group}: {place}: {first['msg']}") from None

    def _supervisor(
        self, beat: SupervisorBeat, used: Mapping[tuple[str, int], list[str]], leader: str | None
    ) -> SupervisorStatus:
        age = max(0.0, time.time() - beat.beat_at)
        return SupervisorStatus(
            id=beat.supervisor,
            host=beat.host,
            ports=beat.ports,
            used={port: tuple(names) for (name, port), names in used.items() if name == beat.supervisor},
            alive=age <= self._settings.supervisor_timeout_seconds,
            beat_age_seconds=round(age, 1),
            started_at=beat.started_at,
            leader=bool(leader) and str(leader).startswith(f"supervisor:{beat.supervisor}:"),
            blacklisted=beat.blacklisted,
        )


def _flow_status(flow: DeployedFlow, tasks: tuple[TaskStatus, ...]) -> FlowStatus:
    bare = _bare_status(flow, flow.problem)
    return replace(bare, parallelism=flow.parallelism, settings=flow.settings, tasks=tasks)


def _bare_status(flow: DeployedFlow, problem: str | None) -> FlowStatus:
    """Return a flow's status without what its version says."""
    standing = flow.standing
    return FlowStatus(
        name=flow.name,
        id=flow.id,
        status=str(flow.status),
        previous=str(standing.previous) if standing.previous else None,
        version=flow.version.number,
        workers=flow.workers,
        parallelism={},
        settings={},
        submitted_at=flow.submitted_at,
        problem=problem,
        due_event=str(standing.due.event) if standing.due else None,
        due_at=standing.due.at if standing.due else None,
        waits=flow.scratch,
    )
