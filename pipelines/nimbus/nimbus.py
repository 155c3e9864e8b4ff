"""Nimbus: what submits, watches, rebalances and kills deployed flows. The one door for people, scripts and Dagster.

It writes what is wanted into the registry and reads from there what is; supervisors and workers do the rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pipelines.catalog.flow import FlowSettings
from pipelines.nimbus import deployed, flow_settings
from pipelines.nimbus.errors import NotAliveError, RegistryError, WaitError
from pipelines.nimbus.processes import supervisor
from pipelines.nimbus.processes.leader import LEASE
from pipelines.nimbus.registry.lifecycle import Request, Status
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.records import (
    AssignmentRecord,
    Content,
    Flow,
    Happened,
    SubmitOptions,
    SupervisorBeat,
    TaskBeat,
    Version,
    check_wait,
)
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings, registry_url
from pipelines.nimbus.status import ASSIGNED, SILENT, ClusterStatus, FlowStatus, SupervisorStatus, TaskStatus
from pipelines.private import refuse_secrets

if TYPE_CHECKING:
    from pipelines.state.lake import Lake

_POLL_SECONDS = 0.2
_SUPERVISOR_SECONDS = 20.0
_TASK_FIELDS = frozenset(TaskStatus.__dataclass_fields__)


class Nimbus:
    """Deployed flows of one registry.

    Args:
        store_url: `sqlite:///path` or `postgresql://user@host/database`.
        lake: Where the flows' tables and checkpoints are.
        settings: Of Nimbus' processes; by default the environment's.

    Raises:
        RegistryError: The registry cannot be opened.
    """

    def __init__(self, store_url: str, lake: Lake, *, settings: NimbusSettings | None = None) -> None:
        self._begin(Store(store_url), settings or NimbusSettings.from_environment(), lake)

    @classmethod
    def from_environment(cls) -> Nimbus:
        """The registry and the lake that the environment names (TRIDELTA_REGISTRY, TRIDELTA_HOME)."""
        from pipelines.state.lake import Lake

        return cls(registry_url(), Lake(FlowSettings.from_environment().lake))

    @classmethod
    def over(cls, store: Store, settings: NimbusSettings) -> Nimbus:
        """On a registry that is open already; it stays open when this is closed."""
        from pipelines.state.lake import Lake

        made = cls.__new__(cls)
        made._begin(store, settings, Lake(FlowSettings.from_environment().lake), own=False)
        return made

    def _begin(self, store: Store, settings: NimbusSettings, lake: Lake, *, own: bool = True) -> None:
        self.store, self.settings, self.lake, self._own = store, settings, lake, own
        self.registry, self.places = Registry(store), Places(store)

    def close(self) -> None:
        """Give the registry's connections back. Flows go on."""
        if self._own:
            self.store.close()

    def __enter__(self) -> Nimbus:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- versions ---------------------------------------------------------------------------------------------------

    def submit(
        self,
        flow: str | None = None,
        *,
        trigger_seconds: float = 5.0,
        workers: int | None = None,
        parallelism: Mapping[str, int] | None = None,
        inactive: bool = False,
        file: Path | None = None,
        **settings: Any,
    ) -> FlowStatus:
        """Deploy a flow.

        Args:
            flow: A flow of the catalog, by name; may be left out for a file.
            trigger_seconds: How often a batch is to begin.
            workers: The most worker processes (Spark applications) for it; None: it shares one with others.
            parallelism: By stream or state: how many partitions its query works in.
            inactive: Deploy it without running it yet.
            file: A flow written as YAML, in place of the catalog's.
            settings: See `pipelines.nimbus.flow_settings`.

        Raises:
            AlreadyAliveError: It is deployed.
            UnknownFlowError, FlowFileError: There is no such flow; the file is none.
            SubmitError: A setting, a component or a number is not possible.
        """
        chosen = {"trigger_seconds": trigger_seconds, **settings}
        content, name = self._content(flow, file, workers, parallelism, chosen)
        options = SubmitOptions(Status.INACTIVE if inactive else Status.ACTIVE)
        return self._status(self.registry.submit(name, content, options=options))

    def update(
        self,
        flow: str | None = None,
        *,
        trigger_seconds: float | None = None,
        workers: int | None = None,
        parallelism: Mapping[str, int] | None = None,
        file: Path | None = None,
        **settings: Any,
    ) -> FlowStatus:
        """Give a deployed flow a new version: the code that is here now, and settings on top of those that it has.

        Raises:
            NotAliveError, NoTransitionError: It is not deployed; it is being killed or rebalanced.
            SubmitError: As `submit`.
        """
        content, name = self._next(flow, file, trigger_seconds, workers, parallelism, settings)
        return self._status(self.registry.update(name, content))

    def deploy(
        self,
        flow: str | None = None,
        *,
        trigger_seconds: float | None = None,
        workers: int | None = None,
        parallelism: Mapping[str, int] | None = None,
        inactive: bool = False,
        file: Path | None = None,
        **settings: Any,
    ) -> tuple[FlowStatus, str]:
        """Submit a flow, or update it if it is deployed and differs.

        Returns:
            The flow, and what was done: `submitted`, `updated` or `unchanged`.

        Raises: As `submit` and `update`.
        """
        name = flow or deployed.from_file(_named(file))[0].name
        alive = {one.name: one for one in self.registry.flows()}
        if name not in alive:
            made = self.submit(
                flow,
                trigger_seconds=5.0 if trigger_seconds is None else trigger_seconds,
                workers=workers,
                parallelism=parallelism,
                inactive=inactive,
                file=file,
                **settings,
            )
            return made, "submitted"
        content, _ = self._next(flow, file, trigger_seconds, workers, parallelism, settings)
        if content == alive[name].version.content:
            return self._status(alive[name]), "unchanged"
        return self._status(self.registry.update(name, content)), "updated"

    def roll_back(self, flow: str, to: int | None = None) -> FlowStatus:
        """Bring an earlier version back, as a new one; without `to` the one before.

        Raises:
            NotAliveError, NoTransitionError, VersionError
        """
        return self._status(self.registry.roll_back(flow, to))

    def versions(self, name: str) -> list[Version]:
        """Every version of a deployed flow, the oldest first."""
        return self.registry.versions(name)

    # --- statuses ---------------------------------------------------------------------------------------------------

    def activate(self, flow: str) -> FlowStatus:
        """Let its queries run.

        Raises:
            NotAliveError, NoTransitionError
        """
        return self._status(self.registry.activate(flow))

    def deactivate(self, flow: str) -> FlowStatus:
        """Drain its queries; they stay deployed. Raises as `activate`."""
        return self._status(self.registry.deactivate(flow))

    def kill(self, flow: str, wait_seconds: float | None = None) -> FlowStatus:
        """Drain its queries, and remove it after `wait_seconds` (by default its message time-out, or 30 s).

        Its tables and checkpoints stay. Raises as `activate`.
        """
        check_wait(flow, wait_seconds)
        return self._status(self.registry.kill(flow, wait_seconds=wait_seconds))

    def rebalance(
        self,
        flow: str,
        *,
        workers: int | None = None,
        parallelism: Mapping[str, int] | None = None,
        settings: Mapping[str, Any] | None = None,
        wait_seconds: float | None = None,
    ) -> FlowStatus:
        """Drain its queries, and place them anew: with other workers, partitions or settings, or the same.

        It goes on as soon as all have drained; after `wait_seconds` those that have not are stopped in mid-batch.

        Raises:
            NotAliveError, NoTransitionError
            RebalanceError: A component is unknown, a number is not above 0, or more than its windows can use.
            SubmitError: A setting is unknown or of another kind.
        """
        request = Request(workers, dict(parallelism or {}), dict(settings or {}))
        flow_settings.check_settings(flow, request.settings)
        refuse_secrets(request.settings.get("spark", {}))
        queries = self.registry.flow(flow).version.content.definition.get("queries", ())
        flow_settings.check_user_workers(flow, request.settings, [one["group"] for one in queries])
        check_wait(flow, wait_seconds)
        deployed.check_partitions(flow, queries, request.parallelism)
        return self._status(self.registry.rebalance(flow, request, wait_seconds=wait_seconds))

    # --- looking ----------------------------------------------------------------------------------------------------

    def cluster(self) -> ClusterStatus:
        """What runs, where, how far, how late."""
        lease = self.registry.leases.holder(LEASE)
        leader = lease.holder if lease else None
        used = self.places.used_slots()
        supervisors = tuple(self._supervisor(one, used, leader) for one in self.places.supervisors())
        # All places and all beats by a query each: flows may be hundreds, and some look every second.
        places, beats = self.places.assignments(), self.places.beats_of_all()
        flows = tuple(
            self._standing(one, places.get(one.serial), beats.get(one.serial, {})) for one in self.registry.flows()
        )
        return ClusterStatus(time.time(), leader, supervisors, flows)

    def flow(self, name: str) -> FlowStatus:
        """A deployed flow.

        Raises:
            NotAliveError: No flow of this name is deployed.
        """
        return self._status(self.registry.flow(name))

    def history(self, name: str) -> list[Happened]:
        """What happened to the flows of this name, the oldest first."""
        return self.registry.history(name)

    def wait(self, flow: str, *, until: str, seconds: float) -> FlowStatus | None:
        """Wait for a deployed flow.

        Args:
            flow: Its name.
            until: `running` (every query), `stopped` (none), `batch` (one more has come through), `gone` (removed).
            seconds: For how long.

        Returns:
            The flow as it is then; None once it is gone.

        Raises:
            NotAliveError: It is not deployed (but for `gone`).
            WaitError: It has not come there in time; the text says where it stands.
        """
        reached: dict[str, Callable[[FlowStatus], bool]] = {
            "running": lambda now: now.running,
            "stopped": lambda now: now.stopped,
            "batch": lambda now: self._finished(now) > start,
            "gone": lambda _: False,
        }
        start = self._finished(self.flow(flow)) if until == "batch" else 0
        deadline = time.monotonic() + seconds
        while True:
            try:
                now = self.flow(flow)
            except NotAliveError:
                if until == "gone":
                    return None
                raise
            if reached[until](now):
                return now
            if time.monotonic() >= deadline:
                raise WaitError(flow, until, seconds, _seen(now))
            time.sleep(_POLL_SECONDS)

    def ensure_supervisor(self) -> str:
        """Start a supervisor on this machine if none is alive here; its id.

        Raises:
            RegistryError: It does not come up.
        """
        name = supervisor.default_name()
        if self._beats(name):
            return name
        supervisor.start_detached(self.store, self.settings)
        deadline = time.monotonic() + _SUPERVISOR_SECONDS
        while not self._beats(name):
            if time.monotonic() > deadline:
                log = self.settings.supervisor_folder(name) / "supervisor.jsonl"
                raise RegistryError(self.store.url, f"has seen no supervisor {name} come up", hint=f"see {log}")
            time.sleep(_POLL_SECONDS)
        return name

    def _finished(self, flow: FlowStatus) -> int:
        """Batches that its queries have finished, by their checkpoints: beats of a worker that has just come up know none."""
        from pipelines.execution.checkpoint.engine_files import Checkpoint

        groups = [task.group for task in flow.tasks]
        return sum(
            Checkpoint(flow.name, self.lake.checkpoint_path(flow.name, one)).finished_batches() for one in groups
        )

    # --- parts ------------------------------------------------------------------------------------------------------

    def _beats(self, name: str) -> bool:
        """Whether a supervisor holds its lease: a beat alone may be a dead one's last."""
        return self.registry.leases.holder(f"supervisor:{name}") is not None

    def _content(
        self,
        flow: str | None,
        file: Path | None,
        workers: int | None,
        parallelism: Mapping[str, int] | None,
        settings: Mapping[str, Any],
    ) -> tuple[Content, str]:
        topology, definition = deployed.from_file(file) if file is not None else deployed.from_catalog(flow or "")
        if flow is not None and topology.name != flow:
            raise ValueError(f"{file} holds the flow {topology.name}, not {flow}")
        definition |= {"lake": str(self.lake.root), "code": deployed.code_digest(definition)}
        content = deployed.content_of(
            topology,
            definition,
            workers=workers,
            parallelism=parallelism,
            settings=settings,
            default_parallelism=len(os.sched_getaffinity(0)),
        )
        return content, topology.name

    def _next(
        self,
        flow: str | None,
        file: Path | None,
        trigger_seconds: float | None,
        workers: int | None,
        parallelism: Mapping[str, int] | None,
        settings: Mapping[str, Any],
    ) -> tuple[Content, str]:
        """The content of a new version: what is asked for on top of the current one."""
        name = flow or deployed.from_file(_named(file))[0].name
        seen = self.registry.flow(name).version.content
        asked = {**settings} | ({} if trigger_seconds is None else {"trigger_seconds": trigger_seconds})
        if file is None and seen.definition["kind"] == deployed.YAML:
            file = Path(seen.definition["file"])
        return self._content(
            name,
            file,
            seen.workers if workers is None else workers,
            {**seen.definition.get("asked", {}), **(parallelism or {})},
            {**seen.settings, **asked},
        )

    def _status(self, flow: Flow) -> FlowStatus:
        return self._standing(flow, self.places.assignment(flow), self.places.beats(flow))

    def _standing(self, flow: Flow, record: AssignmentRecord | None, beats: Mapping[int, TaskBeat]) -> FlowStatus:
        standing = flow.standing
        return FlowStatus(
            name=flow.name,
            id=flow.id,
            status=str(flow.status),
            previous=str(standing.previous) if standing.previous else None,
            version=flow.version.number,
            workers=flow.workers,
            parallelism=flow.parallelism,
            settings=flow.settings,
            submitted_at=flow.submitted_at,
            tasks=self._tasks(flow, record, beats),
            problem=flow.problem,
            due_event=str(standing.due.event) if standing.due else None,
            due_at=standing.due.at if standing.due else None,
        )

    def _tasks(
        self, flow: Flow, record: AssignmentRecord | None, beats: Mapping[int, TaskBeat]
    ) -> tuple[TaskStatus, ...]:
        placed = {task: (w.supervisor, w.port) for w in (record.workers if record else ()) for task in w.tasks}
        return tuple(
            self._task(query, placed.get(query.task, ("", 0)), beats.get(query.task))
            for query in deployed.queries_of(flow)
        )

    def _task(self, query: deployed.Query, slot: tuple[str, int], beat: TaskBeat | None) -> TaskStatus:
        if beat is None:
            return TaskStatus(query.task, query.group, ASSIGNED, *slot, partitions=query.partitions)
        figures = {name: value for name, value in beat.figures.items() if name in _TASK_FIELDS}
        age = max(0.0, time.time() - beat.beat_at)
        if age > self.settings.task_timeout_seconds:
            figures["state"] = SILENT
        figures["gates"] = tuple(figures.get("gates", ()))
        return TaskStatus(
            **{**figures, "task": query.task, "supervisor": slot[0], "port": slot[1], "beat_age_seconds": round(age, 1)}
        )

    def _supervisor(
        self, beat: SupervisorBeat, used: Mapping[tuple[str, int], list[str]], leader: str | None
    ) -> SupervisorStatus:
        age = max(0.0, time.time() - beat.beat_at)
        return SupervisorStatus(
            id=beat.supervisor,
            host=beat.host,
            ports=beat.ports,
            used={port: tuple(names) for (name, port), names in used.items() if name == beat.supervisor},
            alive=age <= self.settings.supervisor_timeout_seconds,
            beat_age_seconds=round(age, 1),
            started_at=beat.started_at,
            leader=bool(leader) and str(leader).startswith(f"supervisor:{beat.supervisor}:"),
        )


def _named(file: Path | None) -> Path:
    if file is None:
        raise ValueError("name a flow of the catalog, or a file")
    return file


def _seen(flow: FlowStatus) -> str:
    states = ", ".join(f"{task.group} {task.state}" for task in flow.tasks) or "no queries"
    why = flow.problem or flow.last_error
    return f"{flow.status}; {states}" + (f"; {why}" if why else "")
