"""The life of Nimbus' processes on this host, as files beside their logs: found again by a later supervisor, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pipelines.execution.checkpoint.engine_files import write_json
from pipelines.nimbus.settings import NimbusSettings
from pipelines.private import FILE_MODE
from pipelines.processes import ProcessIdentity

SUPERVISOR, STANDBY = "supervisor", "standby"
"""In place of a slot's port."""
STARTING = ".starting"
"""Behind a slot's port: of a process that has not got up yet, and so does not have it."""
LEASE_LOST, SPARK_GONE, STUCK = 3, 4, 5
"""Exit codes: the worker had to end at once; its JVM has died; a query does not stop, or its own rounds."""


@dataclass(frozen=True)
class LifeRecord:
    """A process that has, or had, a slot.

    Attributes:
        life: What tells it from the slot's other processes.
        identity: The process; a number alone may be another process' by now.
        seen: When it beat last, in seconds since 1970; 0: not known.
    """

    life: str
    identity: ProcessIdentity
    seen: float = field(default=0.0, compare=False)

    @property
    def pid(self) -> int:
        """Its process' number."""
        return self.identity.pid

    def process(self) -> psutil.Process | None:
        """Return the process, while it is there (a stopped one is)."""
        return self.identity.process()

    def kill(self) -> None:
        """Kill it, its JVM and all that it has started (SIGKILL); if it has ended, what it has left, as far as that is sure."""
        process = self.process()
        family = [process] if process is not None else self.identity.left_behind(self.seen)
        if not family:
            return
        if process is not None:
            with contextlib.suppress(psutil.Error):
                family += process.children(recursive=True)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for member in family:
            with contextlib.suppress(psutil.Error):
                member.kill()


class Life:
    """The record of one slot.

    Args:
        slot: Its port; `supervisor` for the supervisor itself.
    """

    def __init__(self, settings: NimbusSettings, supervisor: str, slot: int | str) -> None:
        self._file = settings.supervisor_folder(supervisor) / f"{slot}.json"
        self._starting = self._file.with_name(f"{slot}{STARTING}.json")
        self._busy = self._file.with_name(f"{slot}.busy")

    def starting(self, life: str, identity: ProcessIdentity) -> None:
        """Record a process that is started for the slot. It may find that another has it: that one's record stays."""
        write_json(self._starting, {"life": life, **identity.to_json()}, mode=FILE_MODE)

    def begun(self, life: str) -> None:
        """Record that this process has the slot."""
        write_json(self._file, {"life": life, **ProcessIdentity.of().to_json()}, mode=FILE_MODE)
        started = _read(self._starting)
        if started is not None and started.life == life:
            self._starting.unlink(missing_ok=True)

    def read(self) -> LifeRecord | None:
        """Return the last process that had the slot; None if none had, or the file was lost."""
        return _read(self._file)

    def touch(self) -> None:
        """Beat without the registry: its supervisor sees it."""
        with contextlib.suppress(OSError):
            os.utime(self._file)

    def touched(self) -> int:
        """Return the time of the last touch, in nanoseconds; 0 if there is no file."""
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return 0

    def mark_busy(self) -> None:
        """Say that a request is under way, which nothing in the slot may show: its supervisor sees it."""
        with contextlib.suppress(OSError):
            self._busy.touch(mode=FILE_MODE)

    def marked_busy(self) -> int:
        """Return when it was said last that a request is under way, in nanoseconds; 0 if it was not."""
        try:
            return self._busy.stat().st_mtime_ns
        except OSError:
            return 0

    def forget(self, life: str | None = None) -> None:
        """Free the slot; of one process alone, if no other has it by now."""
        written = self.read()
        if life is None or written is None or written.life == life:
            self._file.unlink(missing_ok=True)
            self._busy.unlink(missing_ok=True)


def _read(file: Path) -> LifeRecord | None:
    try:
        with file.open(encoding="utf-8") as opened:
            # Both are of one open file: the next process of the slot puts another in its place.
            written, seen = json.load(opened), os.fstat(opened.fileno()).st_mtime
        return LifeRecord(str(written["life"]), ProcessIdentity.read(written), seen)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def holder_of(supervisor: str, port: int, life: str) -> str:
    """Return the name under which a worker takes leases."""
    return f"{supervisor}:{port}:{life}"


def may_live(settings: NimbusSettings, supervisor: str, holder: str) -> bool:
    """Return whether the holder of a supervisor's lease may be alive: it is, or nothing here was written by it."""
    record = Life(settings, supervisor, SUPERVISOR).read()
    return record is None or record.life != holder or record.process() is not None


@dataclass(frozen=True)
class Ended:
    """The processes that a shutdown has ended.

    Attributes:
        supervisors: By name.
        workers: As `supervisor:port`; those that drained.
        killed: Those that had not ended within the time that they have.
    """

    supervisors: tuple[str, ...]
    workers: tuple[str, ...]
    killed: tuple[str, ...]


def shut_down(settings: NimbusSettings) -> Ended:
    """End the supervisors of this host and drain their workers. Flows stay deployed: a supervisor runs them again.

    Args:
        settings: Whose home says which processes are meant, and how long they have (`stop_seconds`).
    """
    leaders = {key: record for key, record in _living(settings).items() if key[1] == SUPERVISOR}
    late = end(list(leaders.values()), settings.stop_seconds, alone=True)
    # Not before these have ended: until then they start workers.
    others = {key: record for key, record in _living(settings).items() if key[1] != SUPERVISOR}
    late += end(list(others.values()), settings.stop_seconds)
    drained = {key: record for key, record in others.items() if key[1] != STANDBY and record not in late}
    return Ended(
        tuple(name for name, _ in leaders),
        tuple(f"{name}:{slot.removesuffix(STARTING)}" for name, slot in drained),
        tuple(
            f"{name}:{slot.removesuffix(STARTING)}"
            for (name, slot), record in (leaders | others).items()
            if record in late
        ),
    )


def _living(settings: NimbusSettings) -> dict[tuple[str, str], LifeRecord]:
    """Return the processes of this host that live, by supervisor and slot."""
    found: dict[tuple[str, str], LifeRecord] = {}
    for file in sorted((settings.home / "supervisors").glob("*/*.json")):
        record = None if file.stem.endswith(".endpoint") else _read(file)
        # One that is starting may be the slot's by now; and a slot may have another beside it.
        if record is not None and record.process() is not None and record not in found.values():
            found[file.parent.name, file.stem] = record
    return found


def end(records: Sequence[LifeRecord], seconds: float, *, alone: bool = False) -> list[LifeRecord]:
    """End processes: SIGTERM, patience, SIGKILL. Returns those that needed the last.

    Args:
        seconds: For how long to be patient.
        alone: Do not kill what they have started.
    """
    for record in records:
        # A standby ends with its supervisor.
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGTERM)
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(record.process() for record in records):
        time.sleep(0.1)
    late = [record for record in records if record.process() is not None]
    for record in late:
        if not alone:
            record.kill()
        elif process := record.process():
            with contextlib.suppress(psutil.Error):
                process.kill()
    return late
