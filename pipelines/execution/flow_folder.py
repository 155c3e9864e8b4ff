"""A folder of YAML flows that is watched: what is added, changed or removed there starts, changes or stops that flow alone.

A change drains the flow (its running batches finish) and starts it again under the same checkpoints, so that windows whose
operation is the same go on as they are. What cannot be deployed is told and leaves the running version alone.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines import logs
from pipelines.bounds import ON_FRESH, SECONDS_APART, required, required_choice
from pipelines.errors import (
    DefinitionError,
    FlowFileError,
    FreshCheckpointError,
    MissingPathError,
    SameFlowError,
    StateSchemaError,
    TrideltaError,
)
from pipelines.execution.checkpoint.changeover import Changeover
from pipelines.execution.checkpoint.engine_files import CONTINUE, REFUSE
from pipelines.execution.runtime import RunningFlow, Runtime
from pipelines.flowmix.compile import as_topology
from pipelines.flowmix.flow import Flow
from pipelines.flowmix.yaml_document import content_of
from pipelines.flowmix.yaml_form import load_flow

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class FlowFile:
    """One file as it is now: its content's hash, and the flow that it defines or what is wrong with it."""

    path: Path
    digest: str
    flow: Flow | None = None
    error: TrideltaError | None = None


class FlowFiles:
    """Reads a folder again and again; a file is loaded when its content has changed.

    Args:
        folder: the folder; its subfolders are not looked into, nor files whose names begin with a dot.
        settle_seconds: a file that was written to later than so long ago may not be whole yet: it counts as it was before.
        functions: as of `load_flow`.
    """

    def __init__(
        self, folder: Path, *, settle_seconds: float = 0.5, functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.folder, self._settle, self._functions = folder, settle_seconds, functions
        self._known: dict[Path, FlowFile] = {}

    def read(self) -> list[FlowFile]:
        """Return the files, by name.

        Raises:
            MissingPathError: the folder cannot be read; that says nothing about the flows.
        """
        try:
            paths = sorted(p for p in self.folder.iterdir() if p.suffix in SUFFIXES and not p.name.startswith("."))
        except OSError:
            raise MissingPathError("flows", str(self.folder)) from None
        self._known = {found.path: found for path in paths for found in self._read(path)}
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
            return FlowFile(path, digest, load_flow(path, self._functions))
        except TrideltaError as error:
            return FlowFile(path, digest, error=error)
        except (Exception, SystemExit) as error:
            # Whatever a file brings about is that file's: the flows of the others go on.
            problem = f"cannot be loaded: {type(error).__name__}: {str(error)[:200]}"
            return FlowFile(path, digest, error=FlowFileError(path, [(1, "", problem)]))


def by_flow(files: list[FlowFile], owners: Mapping[str, Path]) -> tuple[dict[str, FlowFile], list[FlowFile]]:
    """Return the files by the flow that they define, and the files whose flow another file defines.

    Args:
        files: the files.
        owners: the files of the flows that are deployed: those keep their names, even while they are faulty.
    """
    faulty = {file.path for file in files if file.flow is None}
    found: dict[str, list[FlowFile]] = {}
    for file in files:
        if file.flow is not None:
            found.setdefault(file.flow.name, []).append(file)
    chosen, refused = {}, []
    for name, several in found.items():
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
        refused += [FlowFile(one.path, one.digest, error=SameFlowError(name, everyone)) for one in others]
    return chosen, refused


logger = logs.logger(__name__)

LONGEST_BACK_OFF = 60.0
"""Seconds. A flow that has died, or could not be started, is tried again after 1, 2, 4, ... seconds."""

_FINAL = (DefinitionError, StateSchemaError, FreshCheckpointError)
"""What waiting does not mend."""

STARTED, CHANGED, STOPPED, DIED, REFUSED, ANEW = "started", "changed", "stopped", "died", "refused", "windows anew"


@dataclass(frozen=True)
class Happening:
    """An event of a flow or a file: `what` is started, changed, stopped, died, refused or windows anew."""

    what: str
    flow: str | None
    file: Path | None = None
    reason: str = ""


@dataclass
class _Deployed:
    """A flow that is to run: the file as it was deployed, and the streams while they run."""

    file: FlowFile
    running: RunningFlow | None = None
    failures: int = 0
    retry_at: float = 0.0

    @property
    def flow(self) -> Flow:
        assert self.file.flow is not None
        return self.file.flow

    def failed(self) -> None:
        self.running = None
        self.retry_at = time.monotonic() + _back_off(self.failures)
        self.failures += 1


class FlowFolder:
    """Keeps the flows of a folder running as its files say.

    Args:
        runtime: runs the flows.
        folder: a folder with `*.yaml` and `*.yml`, a flow each.
        trigger_seconds: how often a stream looks for new events.
        settle_seconds: a file changed later than so long ago is left for the next look: it may not be whole yet.
        on_fresh_checkpoint: what to do where a checkpoint is gone and the tables are not: `refuse`, `continue`, `reset`.
        functions: what the files may name beside the catalog's functions (see `load_flow`).

    Raises:
        MissingPathError: there is no such folder.
    """

    def __init__(
        self,
        runtime: Runtime,
        folder: str | Path,
        *,
        trigger_seconds: float = 1.0,
        settle_seconds: float = 0.5,
        on_fresh_checkpoint: str = REFUSE,
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        required_choice("on_fresh_checkpoint", ON_FRESH, on_fresh_checkpoint)
        required("trigger_seconds", SECONDS_APART, trigger_seconds)
        self._runtime, self._trigger, self._on_fresh = runtime, trigger_seconds, on_fresh_checkpoint
        self._files = FlowFiles(Path(folder), settle_seconds=settle_seconds, functions=functions)
        if not Path(folder).is_dir():
            raise MissingPathError("flows", str(folder))
        self._deployed: dict[str, _Deployed] = {}
        self._refused: dict[tuple[Path, str], str] = {}
        """By file and digest: why it was refused."""
        self._tried: dict[tuple[Path, str], tuple[int, float]] = {}
        """By file and digest: how often a change has failed, and when it may be tried again."""
        self._happened: list[Happening] = []

    @property
    def running(self) -> dict[str, RunningFlow]:
        """The flows whose streams run now."""
        return {name: one.running for name, one in self._deployed.items() if one.running is not None}

    # --- watching ---------------------------------------------------------------------------------------------------

    def watch(self, ended: threading.Event, *, poll_seconds: float = 1.0) -> None:
        """Look at the folder until `ended` is set, then drain all flows."""
        try:
            while not ended.is_set():
                self.look()
                ended.wait(poll_seconds)
        finally:
            self.stop()

    def look(self) -> list[Happening]:
        """Look at the folder once and do what its files say. Returns what has happened since the last look."""
        try:
            files = self._files.read()
        except MissingPathError as error:
            self._refuse(FlowFile(self._files.folder, "", error=error))
            return self._told()
        chosen = self._chosen(files)
        faulty = {file.path for file in files if file.flow is None}
        for name in [n for n, one in self._deployed.items() if n not in chosen and one.file.path not in faulty]:
            self._remove(name)
        for name, file in chosen.items():
            if name not in self._deployed:
                self._add(name, file)
            elif self._deployed[name].file.digest != file.digest:
                self._change(name, file)
            else:
                self._deployed[name].file = file
        self._revive()
        return self._told()

    def once(self) -> list[Happening]:
        """Run what the sources of all flows hold now, a flow after the other, then stop."""
        for name, file in self._chosen(self._files.read()).items():
            try:
                on_fresh = self._made_ready(file)
                assert file.flow is not None
                self._runtime.catch_up(file.flow, on_fresh_checkpoint=on_fresh)
                self._tell(STARTED, name, file)
            except Exception as error:
                self._tell(DIED, name, file, error)
        return self._told()

    def stop(self) -> list[Happening]:
        """Drain all flows."""
        for name in list(self._deployed):
            self._remove(name)
        return self._told()

    def _chosen(self, files: list[FlowFile]) -> dict[str, FlowFile]:
        """Return the file of each flow; report faulty ones."""
        chosen, doubled = by_flow(files, {name: one.file.path for name, one in self._deployed.items()})
        there = {(file.path, file.digest) for file in files}
        self._refused = {key: why for key, why in self._refused.items() if key in there}
        self._tried = {key: when for key, when in self._tried.items() if key in there}
        for file in (*(one for one in files if one.error), *doubled):
            self._refuse(file)
        return chosen

    # --- one flow ---------------------------------------------------------------------------------------------------

    def _add(self, name: str, file: FlowFile) -> None:
        one = self._deployed[name] = _Deployed(file)
        self._start(name, one, STARTED)

    def _start(self, name: str, one: _Deployed, what: str) -> None:
        try:
            one.running = self._begun(one.file)
            self._tell(what, name, one.file)
        except Exception as error:
            one.failed()
            if isinstance(error, _FINAL):
                one.retry_at = math.inf
            self._tell(REFUSED, name, one.file, error)

    def _begun(self, file: FlowFile) -> RunningFlow:
        on_fresh = self._made_ready(file)
        assert file.flow is not None
        return self._runtime.stream(file.flow, trigger_seconds=self._trigger, on_fresh_checkpoint=on_fresh)

    def _made_ready(self, file: FlowFile) -> str:
        """Fit the checkpoints to the definition. Returns what to do with fresh ones."""
        assert file.flow is not None
        changeover = Changeover(self._runtime.lake, as_topology(file.flow))
        changeover.check()
        on_fresh, anew = changeover.make()
        for query in anew:
            reason = f"windows of {query} start again: their number, or the channels that it reads, have changed"
            self._tell(ANEW, file.flow.name, file, reason)
        return CONTINUE if on_fresh == CONTINUE else self._on_fresh

    def _change(self, name: str, file: FlowFile) -> None:
        """Drain a flow and start it as its file says now; if that fails, as it was."""
        if time.monotonic() < self._tried.get((file.path, file.digest), (0, 0.0))[1]:
            return
        one = self._deployed[name]
        assert file.flow is not None
        try:
            changeover = Changeover(self._runtime.lake, as_topology(file.flow))
            changeover.check()
        except TrideltaError as error:
            self._not_changed(name, file, error)
            return
        self._drain(name, one)
        former = Changeover(self._runtime.lake, as_topology(one.flow))
        if changeover.moves(former):
            self._read_to_the_end(one, former, changeover)
        try:
            running = self._begun(file)
        except Exception as error:
            self._not_changed(name, file, error)
            self._start(name, one, STARTED)
            return
        self._deployed[name] = _Deployed(file, running)
        self._tell(CHANGED, name, file)

    def _read_to_the_end(self, one: _Deployed, former: Changeover, new: Changeover) -> None:
        """Let the old queries read what is in their channels: others will read on behind it."""
        name = one.flow.name
        try:
            self._runtime.catch_up(one.flow, on_fresh_checkpoint=CONTINUE)
            waiting = former.left_waiting(new)
        except Exception as error:
            # Perhaps the change is what mends it. Whether the place is one to go on from is looked at again.
            self._tell(DIED, name, one.file, error)
            return
        for query, count in waiting.items():
            reason = f"{count} event(s) wait for the clock in the windows of {query}, which the flow has no more"
            self._tell(ANEW, name, one.file, reason)

    def _remove(self, name: str) -> None:
        one = self._deployed.pop(name)
        self._drain(name, one)
        self._tell(STOPPED, name, one.file)

    def _drain(self, name: str, one: _Deployed) -> None:
        if one.running is None:
            return
        try:
            one.running.stop()
        except Exception as error:
            self._tell(DIED, name, one.file, error)
        one.running = None

    def _revive(self) -> None:
        """Report flows whose streams have died, and start them again after a while."""
        for name, one in self._deployed.items():
            if one.running is not None and not one.running.running:
                lived = bool(one.running.batches)
                self._drain(name, one)
                one.failures = 0 if lived else one.failures
                one.failed()
            elif one.running is None and time.monotonic() >= one.retry_at:
                self._start(name, one, STARTED)

    # --- what is told -----------------------------------------------------------------------------------------------

    def _refuse(self, file: FlowFile, flow: str | None = None) -> None:
        """Report what is wrong with a file, once."""
        key, reason = (file.path, file.digest), str(file.error)
        if self._refused.get(key) != reason:
            self._refused[key] = reason
            self._tell(REFUSED, flow, file, file.error)

    def _not_changed(self, name: str, file: FlowFile, error: Exception) -> None:
        """Report why a change failed; a definition that cannot be right is not tried again, as each trial drains the flow."""
        key = (file.path, file.digest)
        times, _ = self._tried.get(key, (0, 0.0))
        pause = math.inf if isinstance(error, _FINAL) else 10 * _back_off(times)
        self._tried[key] = (times + 1, time.monotonic() + pause)
        self._refuse(FlowFile(file.path, file.digest, error=_as_known(error)), name)

    def _tell(self, what: str, flow: str | None, file: FlowFile, reason: Exception | str | None = None) -> None:
        for line, text in _reasons(reason):
            known = {"flow": flow, "file": str(file.path), "line": line, "reason": text}
            level = logger.info if what in (STARTED, CHANGED, STOPPED) else logger.warning
            level(f"flow {what}", **{name: value for name, value in known.items() if value is not None})
        self._happened.append(Happening(what, flow, file.path, str(reason or "")))

    def _told(self) -> list[Happening]:
        happened, self._happened = self._happened, []
        return happened


def _reasons(reason: Exception | str | None) -> Iterable[tuple[int | None, str | None]]:
    """Return the faulty lines of a file with their problems; for other reasons the text."""
    if isinstance(reason, FlowFileError):
        return [(line, f"{path}: {problem}" if path else problem) for line, path, problem in reason.faults]
    return [(None, None if reason is None else str(reason))]


def _as_known(error: Exception) -> TrideltaError:
    return error if isinstance(error, TrideltaError) else TrideltaError(repr(error))


def _back_off(failures: int) -> float:
    return min(LONGEST_BACK_OFF, 2.0**failures)
