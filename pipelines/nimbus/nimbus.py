"""Nimbus: what submits, watches, rebalances and kills deployed flows. The one door for people, scripts and Dagster.

It writes what is wanted into the registry and reads from there what is; supervisors and workers do the rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import tenacity

from pipelines.catalog.flow import FlowSettings
from pipelines.execution.checkpoint.ownership import host_name
from pipelines.execution.runners.sessions import refuse_sources_on_stores
from pipelines.nimbus import deployed, flow_settings
from pipelines.nimbus.cluster import Cluster
from pipelines.nimbus.errors import (
    DeployError,
    NotAliveError,
    NoTransitionError,
    RebalanceError,
    RegistryError,
    VersionError,
    WaitError,
)
from pipelines.nimbus.processes import supervisor
from pipelines.nimbus.processes.life import may_live
from pipelines.nimbus.registry.lifecycle import (
    PROTECTED_SETTINGS,
    REMOVED_SETTINGS,
    Request,
    Status,
    check_request,
)
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.records import (
    Content,
    DeployedFlow,
    Happened,
    Version,
    merged,
    wait_taken,
    without_gone,
)
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings, registry_url
from pipelines.nimbus.status import ClusterStatus, FlowStatus
from pipelines.private import refuse_secrets

if TYPE_CHECKING:
    from pipelines.state.lake import Lake

_SUPERVISOR_SECONDS = 20.0
_POLL_SECONDS = 0.2
_TRIGGER_SECONDS = 5.0
_TRIES = 5


class Nimbus:
    """Deployed flows of one registry.

    Args:
        store_url: `sqlite:///path` or `postgresql://user@host/database`.
        lake: Where the flows' tables and checkpoints are.
        settings: Of Nimbus' processes; by default the environment's.
        migrate: Make the registry's tables, or bring them to this release's form. Not for who only looks: somebody may be
            restoring them.

    Raises:
        RegistryError: The registry cannot be opened.
    """

    def __init__(
        self, store_url: str, lake: Lake, *, settings: NimbusSettings | None = None, migrate: bool = True
    ) -> None:
        self.lake = lake
        self.store = Store.migrated(store_url) if migrate else Store(store_url)
        self.settings = settings or NimbusSettings.from_environment()
        self.registry, self.places = Registry(self.store), Places(self.store)
        self._cluster = Cluster(self.store, self.settings)

    @classmethod
    def from_environment(cls, *, migrate: bool = True) -> Nimbus:
        """Open the registry and the lake that the environment names (TRIDELTA_REGISTRY, TRIDELTA_LAKE, TRIDELTA_HOME)."""
        from pipelines.state.lake import Lake

        return cls(registry_url(), Lake(FlowSettings.from_environment().lake), migrate=migrate)

    def close(self) -> None:
        """Give the registry's connections back. Flows go on."""
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
        trigger_seconds: float = _TRIGGER_SECONDS,
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
            DeployError: The file holds another flow.
        """
        asked = _Asked(flow, file, workers, parallelism, {"trigger_seconds": trigger_seconds, **settings})
        return self._submit(asked, inactive)

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
        asked = _Asked(flow, file, workers, parallelism, _chosen(trigger_seconds, settings))
        return self._cluster.status(self._update(asked)[0])

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
        asked = _Asked(flow, file, workers, parallelism, _chosen(trigger_seconds, settings))
        name = asked.name()
        alive = {deployed_flow.name: deployed_flow for deployed_flow in self.registry.flows()}
        if name not in alive:
            new = replace(asked, settings={"trigger_seconds": _TRIGGER_SECONDS, **asked.settings})
            return self._submit(new, inactive), "submitted"
        updated, done = self._update(asked, if_it_differs=True)
        return self._cluster.status(updated), done

    def roll_back(self, flow: str, to: int | None = None, *, seen: FlowStatus | None = None) -> FlowStatus:
        """Bring an earlier version back, as a new one; without `to` the one before.

        Args:
            flow: Its name.
            to: The number of that version.
            seen: The flow as it was when it was found that this is to be done; None: it is found now.

        Raises:
            NotAliveError, NoTransitionError
            VersionError: There is no such version; or another has come meanwhile, which nobody has asked to be taken back.
            SubmitError: What a rebalance has set does not fit it.
        """
        current = self.registry.flow(flow)
        if seen is not None and (seen.id, seen.version) != (current.id, current.version.number):
            problem = "another has taken its place" if seen.id == current.id else "the flow was submitted again"
            raise VersionError(flow, seen.version, problem, current.version.number)
        target = current.version.before if to is None else to
        for version in self.registry.versions(flow):
            if version.number == target:
                deployed.check_deployed(current.with_content(version.content, Request()))
        return self._cluster.status(self.registry.roll_back(flow, to, seen=current))

    def versions(self, name: str) -> list[Version]:
        """Return every version of a deployed flow, the oldest first."""
        return self.registry.versions(name)

    # --- statuses ---------------------------------------------------------------------------------------------------

    def activate(self, flow: str) -> FlowStatus:
        """Let its queries run.

        Raises:
            NotAliveError, NoTransitionError
        """
        return self._cluster.status(self.registry.activate(flow))

    def deactivate(self, flow: str) -> FlowStatus:
        """Drain its queries; they stay deployed. Raises as `activate`."""
        return self._cluster.status(self.registry.deactivate(flow))

    def kill(self, flow: str, wait_seconds: float | None = None) -> FlowStatus:
        """Drain its queries, and remove it after `wait_seconds` (by default its message time-out, or 30 s).

        Its tables and checkpoints stay. Raises as `activate`.
        """
        wait_seconds = wait_taken(flow, wait_seconds)
        return self._cluster.status(self.registry.kill(flow, wait_seconds=wait_seconds))

    def rebalance(
        self,
        flow: str,
        *,
        workers: int | None = None,
        parallelism: Mapping[str, int] | None = None,
        settings: Mapping[str, Any] | None = None,
        wait_seconds: float | None = None,
    ) -> FlowStatus:
        """Drain its queries, and place them again: with other workers, partitions or settings, or the same.

        It goes on as soon as all have drained; after `wait_seconds` those that have not are stopped in mid-batch.

        Raises:
            NotAliveError, NoTransitionError
            RebalanceError: A component is unknown, a number is not above 0, or more than its windows can use; `owner` is
                an update's to change.
            SubmitError: A setting is unknown or of another kind.
        """
        request = self.check_rebalance(flow, workers=workers, parallelism=parallelism, settings=settings)
        wait_seconds = wait_taken(flow, wait_seconds)
        return self._cluster.status(self.registry.rebalance(flow, request, wait_seconds=wait_seconds))

    def check_rebalance(
        self,
        flow: str,
        *,
        workers: int | None = None,
        parallelism: Mapping[str, int] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Request:
        """Return what a rebalance would set, and change nothing. Raises as `rebalance`."""
        for what, given in (("parallelism", parallelism), ("settings", settings)):
            if given is not None and not isinstance(given, Mapping):
                raise RebalanceError(flow, f"{what} must be values by name, not {given!r}", value=given)
        asked = {name: value for name, value in (settings or {}).items() if name not in REMOVED_SETTINGS}
        request = Request(workers, dict(parallelism or {}), asked)
        current = self.registry.flow(flow)
        # All entries of a table together: one threshold is bound by others.
        both = merged(current.settings, asked)
        flow_settings.check_settings(flow, {name: both[name] for name in asked})
        for name in asked.keys() & PROTECTED_SETTINGS:
            problem = f"a rebalance does not change {name}, an update does: tridelta update {flow} --setting {name}=..."
            raise RebalanceError(flow, problem, value=asked[name])
        refuse_secrets(asked.get("spark", {}))
        content = current.version.content
        queries = content.definition.get("queries", ())
        flow_settings.check_user_workers(flow, asked, [query["group"] for query in queries])
        check_request(flow, request, content.components)
        deployed.check_partitions(flow, queries, request.parallelism)
        return request

    # --- looking ----------------------------------------------------------------------------------------------------

    def cluster(self) -> ClusterStatus:
        """Return what runs, where, how far, how late."""
        return self._cluster.cluster()

    def flow(self, name: str) -> FlowStatus:
        """Return a deployed flow.

        Raises:
            NotAliveError: No flow of this name is deployed.
        """
        return self._cluster.status(self.registry.flow(name))

    def history(self, name: str) -> list[Happened]:
        """Return what happened to the flows of this name, the oldest first."""
        return self.registry.history(name)

    def wait(self, flow: str, *, until: str, seconds: float) -> FlowStatus | None:
        """Wait for a deployed flow.

        Args:
            flow: Its name.
            until: `running` (every query of an active flow, in the current version), `stopped` (none), `batch` (one more
                has come through), `gone` (removed).
            seconds: For how long.

        Returns:
            The flow as it is then; None once it is gone.

        Raises:
            ValueError: `until` is none of these.
            NotAliveError: It is not deployed (but for `gone`).
            WaitError: It has not come there in time; the text says where it stands.
        """
        reached: dict[str, Callable[[FlowStatus], bool]] = {
            # What a change asks for is due first: until the leader has looked, the queries run on as before.
            "running": lambda now: now.running and now.status == Status.ACTIVE and not (now.waits and not now.problem),
            # Unknown for a flow whose beats cannot be read.
            "stopped": lambda now: now.stopped and not (now.problem and not now.tasks),
            "batch": lambda now: self._finished(now) > start,
            "gone": lambda _: False,
        }
        if until not in reached:
            raise ValueError(f"nobody can wait until a flow is {until!r}: it is one of {', '.join(reached)}")
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
                raise WaitError(flow, until, seconds, now.whereabouts)
            time.sleep(_POLL_SECONDS)

    def ensure_supervisor(self) -> str:
        """Start a supervisor on this machine if none is alive here; its id.

        Raises:
            RegistryError: It does not come up.
        """
        if (name := self._supervisor_here()) is not None:
            return name
        supervisor.start_detached(self.store, self.settings)
        deadline = time.monotonic() + _SUPERVISOR_SECONDS
        while (name := self._supervisor_here()) is None:
            if time.monotonic() > deadline:
                expected = supervisor.default_name()
                log = self.settings.supervisor_folder(expected) / "supervisor.jsonl"
                raise RegistryError(self.store.url, f"has seen no supervisor {expected} come up", hint=f"see {log}")
            time.sleep(_POLL_SECONDS)
        return name

    def _finished(self, flow: FlowStatus) -> int:
        """Count the finished batches of its queries by their checkpoints: the first beats of a new worker know of no batch."""
        from pipelines.execution.checkpoint.engine_files import Checkpoint

        groups = [task.group for task in flow.tasks]
        return sum(
            Checkpoint(flow.name, self.lake.checkpoint_path(flow.name, group)).finished_batches() for group in groups
        )

    # --- parts ------------------------------------------------------------------------------------------------------

    def _supervisor_here(self) -> str | None:
        """Return a supervisor of this host that holds its lease and lives: a beat alone may be a dead one's last."""
        others = (beat.supervisor for beat in self.places.supervisors() if beat.host == host_name())
        for name in (supervisor.default_name(), *others):
            held = self.registry.leases.holder(f"supervisor:{name}")
            if held is not None and may_live(self.settings, name, held.holder):
                return name
        return None

    def _submit(self, asked: _Asked, inactive: bool) -> FlowStatus:
        content, name = self._content(asked)
        status = Status.INACTIVE if inactive else Status.ACTIVE
        return self._cluster.status(self.registry.submit(name, content, status=status))

    def _content(self, asked: _Asked, current: Content | None = None) -> tuple[Content, str]:
        """Return the content of a version, on top of the current one, and its flow's name."""
        flow, file = asked.flow, asked.file
        topology, definition = deployed.from_file(file) if file is not None else deployed.from_catalog(flow or "")
        if flow is not None and topology.name != flow:
            hint = f"name it as before, or kill {flow} and submit the file"
            raise DeployError(flow, f"{file} holds the flow {topology.name}", hint=hint)
        # Its worker may have started before somebody named S3.
        what = "a deployed flow with a source on this store and its lake elsewhere"
        refuse_sources_on_stores(topology, self.lake.root, what)
        definition |= {"lake": str(self.lake.root), "code": deployed.code_digest(definition)}
        parallelism, settings = dict(asked.parallelism or {}), asked.settings
        if current is not None:
            there, groups = deployed.names_of(topology)
            parallelism = deployed.asked_before(current, there) | parallelism
            before = flow_settings.going_on(topology.name, current.settings, settings)
            settings = merged(without_gone(before, there, groups), settings)
        content = deployed.content_of(
            topology,
            definition,
            workers=asked.workers,
            parallelism=parallelism,
            settings=settings,
            default_parallelism=len(os.sched_getaffinity(0)),
        )
        return content, topology.name

    def _update(self, asked: _Asked, *, if_it_differs: bool = False) -> tuple[DeployedFlow, str]:
        """Give a flow its next version: what is asked for on top of the current one, also where others update it now."""
        said = Request(asked.workers, asked.parallelism or {}, asked.settings)
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(VersionError), stop=tenacity.stop_after_attempt(_TRIES), reraise=True
        ):
            with attempt:
                current = self.registry.flow(asked.name())
                content = self._next(asked, current.version.content)
                same = if_it_differs and content == current.version.content
                new = current.with_content(content, said)
                if same and _holding(new) == _holding(current):
                    if current.status is Status.KILLED:
                        raise NoTransitionError("UPDATE", current.status, current.id)
                    return current, "unchanged"
                deployed.check_deployed(new)
                return self.registry.update(current.name, content, seen=current, said=said), "updated"
        raise AssertionError("it returns or raises")

    def _next(self, asked: _Asked, current: Content) -> Content:
        """Return the content of a flow's next version."""
        file = asked.file
        if file is None:
            file = deployed.file_before(current)
        workers = current.workers if asked.workers is None else asked.workers
        return self._content(replace(asked, flow=asked.name(), file=file, workers=workers), current)[0]


@dataclass(frozen=True)
class _Asked:
    """The request of a submission or an update; None: as the flow has it, or the default."""

    flow: str | None
    file: Path | None
    workers: int | None
    parallelism: Mapping[str, int] | None
    settings: Mapping[str, Any]

    def name(self) -> str:
        """Return the flow's name, from the file if none is given."""
        return self.flow or deployed.from_file(_named(self.file))[0].name


def _holding(flow: DeployedFlow) -> object:
    return flow.workers, flow.parallelism, flow.settings


def _chosen(trigger_seconds: float | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings} | ({} if trigger_seconds is None else {"trigger_seconds": trigger_seconds})


def _named(file: Path | None) -> Path:
    if file is None:
        raise ValueError("name a flow of the catalog, or a file")
    return file
