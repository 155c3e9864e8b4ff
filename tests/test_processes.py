"""A process is known by its boot and its ticks: a clock that is set makes no process another."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from ops.launcher import run_launcher
from pipelines import processes
from pipelines.nimbus.handover.serving import Endpoint
from pipelines.nimbus.processes.life import Life, LifeRecord
from pipelines.nimbus.settings import NimbusSettings
from pipelines.processes import ProcessIdentity

StepClock = Callable[[float], None]


@pytest.fixture
def step_clock(monkeypatch: pytest.MonkeyPatch) -> StepClock:
    """Set the host's clock: what psutil computes from it (the boot's time plus the ticks) moves with it."""
    create_time = psutil.Process.create_time

    def step(seconds: float) -> None:
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: create_time(self) + seconds)

    return step


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as made:
        yield made
        made.kill()


@pytest.fixture
def without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on macOS."""
    monkeypatch.setattr(processes, "PROC", tmp_path / "proc")


@pytest.mark.parametrize("seconds", [3600.0, -3600.0, 0.7])
def test_a_clock_step_makes_no_worker_dead_nor_unkillable(
    child: subprocess.Popen[bytes], tmp_path: Path, step_clock: StepClock, seconds: float
) -> None:
    settings = NimbusSettings(tmp_path)
    file = settings.supervisor_folder("s1") / "6900.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"life": "x", **ProcessIdentity.of(child.pid).to_json()}))
    step_clock(seconds)
    record = Life(settings, "s1", 6900).read()
    assert record is not None
    assert record.process() is not None
    record.kill()
    assert child.wait(30) == -signal.SIGKILL
    assert record.process() is None


def test_a_clock_step_takes_no_endpoint_and_no_run_away(tmp_path: Path, step_clock: StepClock) -> None:
    (tmp_path / "e.json").write_text(json.dumps(Endpoint(1, "00", ProcessIdentity.of()).to_json()))
    about = {"host": socket.gethostname(), **ProcessIdentity.of().to_json()}
    run = cast("Any", SimpleNamespace(tags={run_launcher.PROCESS_TAG: json.dumps(about)}))
    step_clock(-86_400)
    endpoint = Endpoint.read(tmp_path / "e.json")
    assert endpoint is not None
    assert endpoint.alive
    found = run_launcher._of(run)
    assert found is not None
    assert found.pid == os.getpid()


def test_another_boot_or_another_start_is_another_process() -> None:
    own = ProcessIdentity.of()
    assert own.boot
    assert own.ticks > 0
    assert own.process() is not None
    assert replace(own, boot="2f0c").process() is None
    assert replace(own, ticks=own.ticks + 1).process() is None


def test_a_stopped_process_is_there_but_does_not_run(child: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(child.pid)
    assert identity.runs
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert identity.process() is not None
    assert not identity.runs


def test_a_zombie_and_a_process_that_is_gone_are_not_there(child: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity.process() is None
    child.wait()
    assert identity.process() is None
    assert ProcessIdentity.of(child.pid).process() is None


# A session as a worker's: its leader, a child in its group, and one in a group of its own, as Spark's Python daemon is.
_SESSION = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(sleep).pid, subprocess.Popen(sleep, process_group=0).pid, flush=True)
time.sleep(600)
"""


class Session:
    """A session with its leader's record.

    Attributes:
        leader: The leader.
        children: What it has started.
    """

    def __init__(self, folder: Path) -> None:
        self.settings = NimbusSettings(folder)
        command = [sys.executable, "-c", _SESSION]
        self.leader = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert self.leader.stdout is not None
        with self.leader.stdout as told:
            self.children = [psutil.Process(int(pid)) for pid in told.readline().split()]
        self.identities = [ProcessIdentity.of(child.pid) for child in self.children]
        self._file = self.settings.supervisor_folder("s1") / "6900.json"
        self._file.parent.mkdir(parents=True)
        self.write()

    def write(self, **other: Any) -> None:
        """Record the leader, with other fields than it has."""
        self._file.write_text(json.dumps({"life": "x", **ProcessIdentity.of(self.leader.pid).to_json(), **other}))

    def touched(self, at: float) -> None:
        """Have the leader seen for the last time then, in seconds since 1970."""
        os.utime(self._file, (at, at))

    def record(self) -> LifeRecord:
        found = Life(self.settings, "s1", 6900).read()
        assert found is not None
        return found

    def end_leader(self) -> None:
        self.leader.kill()
        self.leader.wait()

    def left(self) -> int:
        """Return how many children are alive once they have had the time to end."""
        until = time.monotonic() + 1.0
        # A container's first process need not take what ends away: their zombies may stay.
        while (alive := sum(child.process() is not None for child in self.identities)) and time.monotonic() < until:
            time.sleep(0.02)
        return alive


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path)
    yield made
    made.end_leader()
    for child in made.children:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def test_what_a_leader_that_is_gone_has_left_is_killed(session: Session) -> None:
    session.end_leader()
    record = session.record()
    assert record.process() is None
    assert session.left() == 2
    record.kill()
    assert session.left() == 0


def test_the_zombie_of_a_leader_says_whose_its_session_is(session: Session) -> None:
    record = LifeRecord("x", ProcessIdentity.of(session.leader.pid))
    session.leader.kill()
    os.waitid(os.P_PID, session.leader.pid, os.WEXITED | os.WNOWAIT)
    record.kill()
    assert session.left() == 0


def test_a_session_that_may_be_of_another_with_the_same_number_is_left_alone(session: Session) -> None:
    """Its leader has daemonized: it began after the worker was seen for the last time, and is gone as the worker is."""
    identity = session.record().identity
    session.end_leader()
    session.write(**identity.to_json())
    for at in (min(child.create_time() for child in session.children) - 1, time.time() + 3600):
        # The second: the clock was set back, and nobody knows when that was.
        session.touched(at)
        session.record().kill()
    session.write(**replace(identity, boot="another boot").to_json())
    session.record().kill()
    session.write(**replace(identity, ticks=identity.ticks + 100_000).to_json())
    session.record().kill()
    session.write(**replace(identity, boot="", ticks=0).to_json())
    session.record().kill()
    assert session.left() == 2


def test_a_session_whose_leader_is_another_process_is_left_alone(session: Session) -> None:
    identity = session.record().identity
    session.write(**replace(identity, ticks=identity.ticks - 500).to_json())
    session.record().kill()
    assert session.leader.poll() is None
    assert session.left() == 2


def test_a_name_with_brackets_and_blanks_is_read_past(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) R 1 (b) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0")
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert processes._stat(7) == ("S", 4242)


def test_records_of_earlier_releases_are_understood(child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    created = psutil.Process(child.pid).create_time()
    earlier = {"pid": child.pid, "created": created}
    assert ProcessIdentity.read(earlier).process() is not None
    assert ProcessIdentity.read({**earlier, "created": created - 5}).process() is None
    (tmp_path / "e.json").write_text(json.dumps({"port": 1, "key": "00", **earlier}))
    endpoint = Endpoint.read(tmp_path / "e.json")
    assert endpoint is not None
    assert endpoint.alive
    assert not endpoint.waits
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert not endpoint.alive


@pytest.mark.usefixtures("without_proc")
def test_without_proc_the_time_tells(child: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(child.pid)
    assert (identity.boot, identity.ticks) == ("", 0)
    assert ProcessIdentity.read(identity.to_json()).process() is not None
    assert replace(identity, created=identity.created - 5).process() is None
    child.kill()
    child.wait()
    assert identity.process() is None
