"""A folder of YAML flows that is watched: what is added, changed or removed there is deployed, updated or killed.

Nimbus runs the flows: this compares the files with what is deployed. A change drains the flow (its running batches finish)
and starts it again under the same checkpoints, so that windows whose operation is the same go on as they are. What cannot be
deployed is reported and leaves the running version alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import logs
from pipelines.bounds import ON_FRESH, SECONDS_APART, required, required_choice
from pipelines.errors import FlowFileError, MissingPathError, PlanFileError, SameFlowError, TrideltaError
from pipelines.execution.checkpoint.changeover import Changeover
from pipelines.execution.checkpoint.engine_files import BEGIN, CONTINUE, REFUSE
from pipelines.flowmix.compile import as_topology
from pipelines.flowmix.flow import Flow
from pipelines.flowmix.yaml_document import content_of
from pipelines.flowmix.yaml_form import load_flow
from pipelines.nimbus.deployed import WATCHED, YAML
from pipelines.nimbus.errors import (
    AlreadyAliveError,
    NimbusError,
    NotAliveError,
    NoTransitionError,
    RegistryError,
    SubmitError,
    VersionError,
)
from pipelines.nimbus.processes.task import FINAL
from pipelines.nimbus.processes.windows_history import EVENTS_WAIT, WINDOWS_EMPTIED, emptied_reason
from pipelines.nimbus.registry.lifecycle import Status
from pipelines.nimbus.status import FAILED, STARTING
from pipelines.planner.plan import TopologyPlan, deployed_plan

if TYPE_CHECKING:
    from pipelines.execution.runtime import Runtime
    from pipelines.nimbus.nimbus import Nimbus
    from pipelines.nimbus.processes.supervisor import SupervisorProcess
    from pipelines.nimbus.registry.records import Version
    from pipelines.nimbus.status import FlowStatus
    from pipelines.state.lake import Lake
    from pipelines.trident.topology import TridentTopology

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class FlowFile:
    """One file as it is now: its content's hash, and the flow that it defines or what is wrong with it."""

    path: Path
    digest: str
    flow: Flow | None = None
    error: Exception | None = None


class FlowFiles:
    """Reads a folder again and again; a file is loaded when its content has changed.

    Args:
        folder: The folder; its subfolders are not looked into, nor files whose names begin with a dot.
        settle_seconds: A file that was written to later than so long ago may not be whole yet: it counts as it was before.
    """

    def __init__(self, folder: Path, *, settle_seconds: float = 0.5) -> None:
        self.folder, self._settle = folder, settle_seconds
        self._known: dict[Path, FlowFile] = {}

    def read(self) -> list[FlowFile]:
        """Return the files, by name.

        Raises:
            MissingPathError: The folder cannot be read; that says nothing about the flows.
        """
        try:
            paths = sorted(p for p in self.folder.iterdir() if p.suffix in SUFFIXES and not p.name.startswith("."))
        except OSError:
            raise MissingPathError("flows", str(self.folder)) from None
        self._known = {file.path: file for path in paths for file in self._read(path)}
        return list(self._known.values())

    def _read(self, path: Path) -> Iterator[FlowFile]:
        known = self._known.get(path)
        try:
            fresh = 0 <= time.time() - path.stat().st_mtime < self._settle
            digest = hashlib.sha256(content_of(path)).hexdigest()
        except FileNotFoundError:
            return
        except FlowFileError as error:
            yield FlowFile(path, "", error=error)
            return
        except OSError as error:
            yield FlowFile(path, "", error=FlowFileError(path, [(1, "", f"cannot be read: {error.strerror}")]))
            return
        if known is not None and (fresh or known.digest == digest):
            yield known
        elif not fresh:
            yield self._load(path, digest)

    def _load(self, path: Path, digest: str) -> FlowFile:
        try:
            return FlowFile(path, digest, load_flow(path))
        except TrideltaError as error:
            return FlowFile(path, digest, error=error)
        except (Exception, SystemExit) as error:
            # Whatever a file brings about is that file's: the flows of the others go on.
            problem = f"cannot be loaded: {type(error).__name__}: {str(error)[:200]}"
            return FlowFile(path, digest, error=FlowFileError(path, [(1, "", problem)]))


def by_flow(files: list[FlowFile], owners: Mapping[str, Path]) -> tuple[dict[str, FlowFile], list[FlowFile]]:
    """Return the files by the flow that they define, and the files whose flow another file defines.

    Args:
        owners: The files of the flows that are deployed: those keep their names, even while they are faulty.
    """
    faulty = {file.path for file in files if file.flow is None}
    by_name: dict[str, list[FlowFile]] = {}
    for file in files:
        if file.flow is not None:
            by_name.setdefault(file.flow.name, []).append(file)
    chosen, refused = {}, []
    for name, several in by_name.items():
        owner = owners.get(name)
        own = [file for file in several if file.path == owner]
        if owner in faulty:
            own, others = [], several
        elif own or len(several) > 1:
            others = [file for file in several if file not in own]
        else:
            own, others = several, []
        if own:
            chosen[name] = own[0]
        everyone = sorted({*(file.path for file in several), *([owner] if owner in faulty else [])})
        refused += [FlowFile(other.path, other.digest, error=SameFlowError(name, everyone)) for other in others]
    return chosen, refused


logger = logs.logger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 600.0
"""Seconds until a change that has failed is tried again, doubled each time: each trial drains the flow."""

STARTED, CHANGED, STOPPED, DIED, REFUSED, EMPTIED = (
    "started",
    "changed",
    "stopped",
    "died",
    "refused",
    "windows begin empty",
)


@dataclass(frozen=True)
class Happening:
    """An event of a flow or a file: `what` is started, changed, stopped, died, refused or windows begin empty."""

    what: str
    flow: str | None
    file: Path | None = None
    reason: str = ""


@dataclass(frozen=True)
class _AskedBack:
    """A roll-back that was asked for, while nobody knows whether it is done.

    Attributes:
        problem: Why the change cannot run.
        final: Whether waiting does not mend that.
        known: What the registry says against the flow since before the roll-back.
    """

    problem: TrideltaError
    final: bool
    known: str | None


@dataclass
class _WatchedFlow:
    """A flow that is deployed.

    Attributes:
        file: The file as it was deployed.
        awaited: The event to report once it has happened: started, changed or stopped; empty: the flow runs.
        version: Its version; 0 for one that an earlier watch has deployed.
        former: What ran before, while a change has not shown that it can run.
        problem: What the registry says against it since before it was deployed.
        asked_back: The roll-back that was asked for, whose answer was cut off: it may be done all the same.
    """

    file: FlowFile
    awaited: str
    version: int = 0
    former: _WatchedFlow | None = None
    problem: str | None = None
    asked_back: _AskedBack | None = None


class FlowFolder:
    """Keeps the flows of a folder deployed as its files say.

    They share a Spark application, apart from those of other deployed flows. In it a changed flow restarts by itself.

    Args:
        folder: A folder with `*.yaml` and `*.yml`, a flow each.
        trigger_seconds: How often a stream looks for new events.
        settle_seconds: A file changed later than so long ago is left for the next look: it may not be whole yet.
        on_fresh_checkpoint: What to do where a checkpoint is gone and the tables are not: `refuse`, `continue`, `reset`.
    """

    def __init__(
        self,
        nimbus: Nimbus,
        folder: str | Path,
        *,
        trigger_seconds: float = 1.0,
        settle_seconds: float = 0.5,
        on_fresh_checkpoint: str = REFUSE,
    ) -> None:
        required_choice("on_fresh_checkpoint", ON_FRESH, on_fresh_checkpoint)
        required("trigger_seconds", SECONDS_APART, trigger_seconds)
        if not Path(folder).is_dir():
            raise MissingPathError("flows", str(folder))
        self._nimbus = nimbus
        self._files = FlowFiles(Path(folder), settle_seconds=settle_seconds)
        self._owner = f"tridelta watch {Path(folder).absolute()}"
        self._settings: dict[str, Any] = {
            "trigger_seconds": trigger_seconds,
            "on_fresh_checkpoint": on_fresh_checkpoint,
            "application": WATCHED,
            "owner": self._owner,
        }
        self._adopted: bool | None = None
        """Whether it knows all that it has deployed; None: it has not looked yet."""
        self.deployed: dict[str, _WatchedFlow] = {}
        """By flow; those that are being removed are among them."""
        self._reporter = _FolderLog()
        self._tried: dict[tuple[Path, str], tuple[int, float]] = {}
        """By file and digest: how often a change has failed, and when it may be tried again."""

    # --- watching ---------------------------------------------------------------------------------------------------

    def look(self) -> list[Happening]:
        """Look at the folder once and have done what its files say. Returns what has happened since the last look."""
        if not self._adopted:
            self._adopt()
        try:
            files = self._files.read()
        except MissingPathError as error:
            self._reporter.refuse(FlowFile(self._files.folder, "", error=error))
        else:
            self._follow(self._chosen(files), {file.path for file in files if file.flow is None})
        self._settle()
        return self._reporter.take()

    @property
    def is_empty(self) -> bool:
        """Check whether none of its flows is deployed any more."""
        return not self.deployed and self._adopted is not False

    def stop(self) -> list[Happening]:
        """Have all flows drained and removed; `deployed` says which are not yet. Raises as `look`."""
        if not self._adopted:
            self._adopt()
        for name, entry in self.deployed.items():
            self._remove(name, entry)
        self._settle()
        return self._reporter.take()

    def _adopt(self) -> None:
        """Take over what an earlier watch of this folder, or a call that was cut off, has deployed."""
        for flow in self._nimbus.cluster().flows:
            if flow.settings.get("owner") != self._owner or flow.name in self.deployed:
                continue
            definition = self._nimbus.versions(flow.name)[-1].content.definition
            file = Path(definition.get("file") or "")
            # Whoever submits a flow may write anything into its owner.
            if definition.get("kind") == YAML and file.parent == self._files.folder.absolute():
                awaited = STOPPED if flow.status == Status.KILLED else STARTED
                self.deployed[flow.name] = _WatchedFlow(FlowFile(file, ""), awaited)
        self._adopted = True

    def _follow(self, chosen: Mapping[str, FlowFile], faulty: set[Path]) -> None:
        """Remove, deploy and update flows."""
        for name, entry in self.deployed.items():
            if name not in chosen and entry.file.path not in faulty:
                self._remove(name, entry)
        for name, file in chosen.items():
            known = self.deployed.get(name)
            if known is None or known.file.digest != file.digest:
                self._put(name, file)
            else:
                known.file = file

    def _chosen(self, files: list[FlowFile]) -> dict[str, FlowFile]:
        """Return the file of each flow; report faulty ones."""
        chosen, doubled = by_flow(files, {name: entry.file.path for name, entry in self.deployed.items()})
        there = {(file.path, file.digest) for file in files}
        self._tried = {key: when for key, when in self._tried.items() if key in there}
        self._reporter.keep(there)
        for file in (*(faulty for faulty in files if faulty.error), *doubled):
            self._reporter.refuse(file)
        return chosen

    # --- one flow ---------------------------------------------------------------------------------------------------

    def _put(self, name: str, file: FlowFile) -> None:
        """Deploy a flow as its file says now."""
        known = self.deployed.get(name)
        removed = known is not None and known.awaited == STOPPED
        if removed or time.monotonic() < self._tried.get((file.path, file.digest), (0, 0.0))[1]:
            return
        assert file.flow is not None
        try:
            if known is None:
                self._refuse_others(name)
            Changeover(self._nimbus.lake, as_topology(file.flow)).check()
            seen, _ = self._nimbus.deploy(name, file=file.path, **self._settings)
        except RegistryError:
            # It may be done all the same.
            self._adopted = False
            if known is not None:
                known.file = replace(known.file, digest="")
            raise
        except Exception as error:
            self._not_changed(name, file, error, final=isinstance(error, FINAL))
            return
        changed = known is not None and known.version and known.version != seen.version
        former = known.former or (None if known.awaited else known) if known and changed else None
        self.deployed[name] = _WatchedFlow(file, CHANGED if changed else STARTED, seen.version, former, seen.problem)

    def _refuse_others(self, name: str) -> None:
        """Refuse a flow that somebody else has deployed."""
        with suppress(NotAliveError):
            raise AlreadyAliveError(name, self._nimbus.flow(name).status)

    def _remove(self, name: str, entry: _WatchedFlow) -> None:
        if entry.awaited != STOPPED:
            with suppress(NotAliveError):
                self._nimbus.kill(name)
            entry.awaited = STOPPED

    def _settle(self) -> None:
        """Report what has become of the flows, and bring the former version of those back whose change cannot run."""
        seen = {flow.name: flow for flow in self._nimbus.cluster().flows} if self.deployed else {}
        for name, entry in list(self.deployed.items()):
            if name not in seen:
                del self.deployed[name]
                self._reporter.tell(STOPPED, name, entry.file)
            elif entry.awaited == STOPPED:
                continue
            elif entry.former is not None and seen[name].version != entry.version:
                self._overtaken(name, entry, entry.former)
            elif seen[name].running:
                self._runs(name, entry, seen[name])
            elif reason := _trouble(seen[name], entry.problem):
                self._failed(name, entry, seen[name], reason)

    def _runs(self, name: str, entry: _WatchedFlow, now: FlowStatus) -> None:
        if entry.awaited:
            for line in self._news(now):
                if line["event"] in (WINDOWS_EMPTIED, EVENTS_WAIT):
                    self._reporter.tell(EMPTIED, name, entry.file, line["reason"])
            self._reporter.tell(entry.awaited, name, entry.file)
        entry.awaited, entry.former = "", None

    def _failed(self, name: str, entry: _WatchedFlow, now: FlowStatus, reason: str) -> None:
        file = FlowFile(entry.file.path, entry.file.digest, error=TrideltaError(reason))
        if not entry.awaited:
            self._reporter.refuse(file, name, DIED)
            entry.awaited = STARTED
        elif entry.former is None:
            # A start that fails is tried again by its worker, later and later.
            self._reporter.refuse(file, name)
        else:
            self._take_back(name, entry, entry.former, now, TrideltaError(reason))

    def _take_back(
        self, name: str, entry: _WatchedFlow, former: _WatchedFlow, now: FlowStatus, problem: TrideltaError
    ) -> None:
        """Bring the former version of a flow back, whose change cannot run."""
        final = any(line.get("final") for line in self._news(now))
        asked = _AskedBack(problem, final, now.problem)
        try:
            version = self._nimbus.roll_back(name, former.version, seen=now).version
        except RegistryError:
            entry.asked_back = asked
            raise
        except (NotAliveError, NoTransitionError, VersionError) as error:
            # Somebody kills, rebalances or updates it in this moment: the next look sees what has become of it.
            logger.warning("not rolled back", flow=name, reason=str(error))
            if isinstance(error, VersionError) and self._overtaken(name, entry, former):
                self._not_changed(name, entry.file, problem, final=final)
            return
        except SubmitError as error:
            # What a rebalance has set does not fit the former one: this one stays, and is tried again by its worker.
            logger.warning("not rolled back", flow=name, reason=str(error))
            self._not_changed(name, entry.file, problem, final=final)
            entry.former = None
            return
        self._is_back(name, entry, former, asked, version)

    def _is_back(self, name: str, entry: _WatchedFlow, former: _WatchedFlow, asked: _AskedBack, version: int) -> None:
        """Follow a flow that was rolled back, and report why."""
        self._not_changed(name, entry.file, asked.problem, final=asked.final)
        self.deployed[name] = _WatchedFlow(former.file, STARTED, version, problem=asked.known)

    def _overtaken(self, name: str, entry: _WatchedFlow, former: _WatchedFlow) -> bool:
        """Follow a flow on trial that has gone over to another version. Returns whether that is somebody else's.

        It stays until the file changes, as any that comes behind the folder's back: nobody has asked for it to be taken back.
        """
        versions: list[Version] = []
        with suppress(NotAliveError):
            versions = self._nimbus.versions(name)
        if not versions or versions[-1].number == entry.version:
            return False
        if entry.asked_back and versions[-1].copy_of == former.version:
            # It was rolled back, and the answer was cut off.
            self._is_back(name, entry, former, entry.asked_back, versions[-1].number)
            return False
        entry.former, entry.version, entry.awaited = None, versions[-1].number, STARTED
        return True

    def _news(self, now: FlowStatus) -> list[dict[str, object]]:
        """Return what the workers have reported of the current version."""
        return [
            {**line.detail, "event": line.event}
            for line in self._nimbus.history(now.name)
            if line.version == now.version and line.at >= now.submitted_at
        ]

    def _not_changed(self, name: str, file: FlowFile, error: Exception, *, final: bool) -> None:
        """Report why a change failed; a definition that cannot be right is not tried again."""
        key = (file.path, file.digest)
        times, _ = self._tried.get(key, (0, 0.0))
        pause = math.inf if final else min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**times)
        self._tried[key] = (times + 1, time.monotonic() + pause)
        self._reporter.refuse(FlowFile(file.path, file.digest, error=error), name)


def _trouble(now: FlowStatus, known: str | None) -> str | None:
    """Return why a flow does not run; None if it only starts or drains."""
    # One that repartitions only says for whom it waits: if that fails, so does its query.
    tried = (task for task in now.tasks if task.version == now.version and task.state in (FAILED, STARTING))
    failed = (task.last_error for task in tried if task.last_error)
    return next(failed, None) or (now.problem if now.problem != known else None)


class _FolderLog:
    """Logs what happens, and keeps it until it is asked for."""

    def __init__(self) -> None:
        self._happened: list[Happening] = []
        self._refused: dict[tuple[Path, str], str] = {}
        """By file and digest: why it was refused."""

    def keep(self, there: set[tuple[Path, str]]) -> None:
        """Forget why files were refused that are there no more."""
        self._refused = {key: why for key, why in self._refused.items() if key in there}

    def refuse(self, file: FlowFile, flow: str | None = None, what: str = REFUSED) -> None:
        """Report what is wrong with a file, once; that a flow has died, each time."""
        key, reason = (file.path, file.digest), str(file.error)
        if what == DIED or self._refused.get(key) != reason:
            self._refused[key] = reason
            self.tell(what, flow, file, file.error)

    def tell(self, what: str, flow: str | None, file: FlowFile, reason: Exception | object = None) -> None:
        """Report an event."""
        for line, text in _reasons(reason):
            known = {"flow": flow, "file": str(file.path), "line": line, "reason": text}
            level = logger.info if what in (STARTED, CHANGED, STOPPED) else logger.warning
            level(f"flow {what}", **{name: value for name, value in known.items() if value is not None})
        self._happened.append(Happening(what, flow, file.path, str(reason or "")))

    def take(self) -> list[Happening]:
        """Return what has happened since the last call."""
        happened, self._happened = self._happened, []
        return happened


def _reasons(reason: Exception | object) -> Iterable[tuple[int | None, str | None]]:
    """Return the faulty lines of a file with their problems; for other reasons the text."""
    if isinstance(reason, FlowFileError):
        return [(line, f"{path}: {problem}" if path else problem) for line, path, problem in reason.faults]
    return [(None, None if reason is None else str(reason))]


def watch(folder: FlowFolder, supervisor: SupervisorProcess, *, poll_seconds: float = 1.0) -> None:
    """Look at a folder until `supervisor.ending` is set, then have its flows drained. Workers that have nothing else end.

    Args:
        supervisor: It supervises this host's slots meanwhile, unless another process does.
    """
    own = False
    while not (supervisor.ending.is_set() and folder.is_empty and not supervisor.empties):
        try:
            own = own or supervisor.stand_in()
            (folder.stop if supervisor.ending.is_set() else folder.look)()
        except NimbusError as error:
            # The registry does not answer, or somebody else changes one of the flows: the next look goes on.
            logger.warning("a look at the folder was broken off", reason=str(error))
        if own and not supervisor.look():
            # Another has the name and supervises this host, as after a sleep of the host.
            supervisor.end()
            own = False
        (time.sleep if supervisor.ending.is_set() else supervisor.ending.wait)(poll_seconds)
    if own:
        supervisor.end()


def run_once(runtime: Runtime, folder: Path, *, on_fresh_checkpoint: str = REFUSE) -> list[Happening]:
    """Run what the sources of all flows of a folder hold now, a flow after the other.

    Args:
        on_fresh_checkpoint: As for `FlowFolder`.
    """
    reporter = _FolderLog()
    files = FlowFiles(folder, settle_seconds=0.0).read()
    chosen, doubled = by_flow(files, {})
    for file in (*(faulty for faulty in files if faulty.error), *doubled):
        reporter.refuse(file)
    for name, file in chosen.items():
        assert file.flow is not None
        try:
            topology = as_topology(file.flow)
            changed = BEGIN if _was_changed(runtime.lake, topology) else REFUSE
            changeover = Changeover(runtime.lake, topology)
            changeover.check()
            on_fresh, emptied = changeover.make()
            for query in emptied:
                reporter.tell(EMPTIED, name, file, emptied_reason(query))
            fresh = CONTINUE if on_fresh == CONTINUE else on_fresh_checkpoint
            runtime.catch_up(topology, on_fresh_checkpoint=fresh, changed_windows=changed)
            reporter.tell(STARTED, name, file)
        except Exception as error:
            reporter.tell(DIED, name, file, error)
    return reporter.take()


def _was_changed(lake: Lake, topology: TridentTopology) -> bool:
    """Return whether a flow's plan is another one than when it ran last: then its author has changed it."""
    stored = None
    with suppress(PlanFileError):
        stored = deployed_plan(lake.root / "checkpoints" / topology.name)
    return stored is not None and stored.plan != json.loads(json.dumps(TopologyPlan.of(topology).to_json()))
