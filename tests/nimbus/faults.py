"""What goes wrong in a deployment: faults that the tests and the soak inject from outside, as an unlucky day would."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
from sqlalchemy import update

from pipelines.nimbus.registry.tables import beats, leases, supervisors
from tests.nimbus.deployment import Deployment, jvm_of

HOUR = 3600.0


def kill_worker(here: Deployment, flow: str) -> int:
    """SIGKILL for the Python process of a flow's worker; its JVM is left to itself. Returns its pid."""
    worker = here.worker_of(flow)
    worker.kill()
    return worker.pid


def kill_jvm(here: Deployment, flow: str) -> int:
    """SIGKILL for the worker's JVM, which is its Spark driver. Returns the worker's pid."""
    worker = here.worker_of(flow)
    jvm_of(worker).kill()
    return worker.pid


def kill_both(here: Deployment, flow: str, supervisor: str = "one") -> int:
    """SIGKILL for the supervisor, then for the worker; a new supervisor comes up. Returns the worker's pid."""
    here.kill_supervisor(supervisor)
    pid = kill_worker(here, flow)
    here.start_supervisor(supervisor)
    return pid


def freeze(here: Deployment, *processes: psutil.Process) -> list[psutil.Process]:
    """SIGSTOP for processes and all that they have started, as if their host stood still.

    None of them is inside a transaction then: one that stands still in there would keep everybody out of a SQLite registry.
    """
    with locked(here.home / "nimbus" / "registry.db"):
        family = [one for process in processes for one in [process, *process.children(recursive=True)]]
        _signal(family, signal.SIGSTOP)
    return family


def thaw(family: Iterable[psutil.Process]) -> None:
    """SIGCONT."""
    _signal(family, signal.SIGCONT)


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another process' transaction keeps everybody from writing into a SQLite registry."""
    connection = sqlite3.connect(database, isolation_level=None, timeout=30)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def lock_registry(here: Deployment, seconds: float) -> None:
    """For so long nobody can write into the SQLite registry."""
    with locked(here.home / "nimbus" / "registry.db"):
        time.sleep(seconds)


def step_clock(here: Deployment, seconds: float) -> None:
    """The clock of all hosts jumps ahead: to them what the registry holds is older by so many seconds (below 0: younger)."""
    with here.nimbus.store.write() as connection:
        connection.execute(update(leases).values(expires_at=leases.c.expires_at - seconds))
        connection.execute(update(beats).values(beat_at=beats.c.beat_at - seconds))
        connection.execute(update(supervisors).values(beat_at=supervisors.c.beat_at - seconds))


@contextlib.contextmanager
def own_disk(folder: Path, megabytes: int) -> Iterator[bool]:
    """A file system of its own for a folder; gives whether it may be mounted."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tridelta-test", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Nothing fits onto the disk any more."""
    filler = disk / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], capture_output=True, check=False)
    try:
        yield
    finally:
        filler.unlink()


def by_name(here: Deployment, flow: str) -> dict[str, Callable[[], object]]:
    """The faults of one host that mend themselves, for whoever draws one by lot."""

    def supervisor() -> None:
        here.kill_supervisor()
        time.sleep(2)
        here.start_supervisor("one")

    return {
        "worker killed": lambda: kill_worker(here, flow),
        "JVM killed": lambda: kill_jvm(here, flow),
        "supervisor killed": supervisor,
        "worker and supervisor killed": lambda: kill_both(here, flow),
        "worker frozen": lambda: freeze(here, here.worker_of(flow)),
        "registry locked for 2 s": lambda: lock_registry(here, 2),
        "registry locked for 10 s": lambda: lock_registry(here, 10),
        "clock an hour ahead": lambda: step_clock(here, HOUR),
        "clock an hour back": lambda: step_clock(here, -HOUR),
    }


def _signal(family: Iterable[psutil.Process], number: int) -> None:
    for one in family:
        with contextlib.suppress(psutil.Error):
            one.send_signal(number)
