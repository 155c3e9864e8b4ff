"""A supervisor and worker processes that are real but need no Spark: started, found again, buried, killed."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines import logs
from pipelines.nimbus.errors import LeaseHeldError, RegistryError, RegistryLeaseLostError
from pipelines.nimbus.processes.life import Life, LifeRecord, holder_of
from pipelines.nimbus.processes.supervisor import SupervisorProcess, worker_environment
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.records import Content, DeployedFlow
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings
from pipelines.processes import ProcessIdentity

pytestmark = pytest.mark.slow

# A worker in all that its supervisor sees of it: its file, its slot's lease, its end.
_WORKER = """
import os, subprocess, sys, time
from pipelines.nimbus.processes.life import Life, holder_of
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.settings import NimbusSettings, registry_url
from pipelines.nimbus.registry.store import Store

manner, supervisor, port, life = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
settings = NimbusSettings.from_environment()
if manner == "starts slowly":
    time.sleep(600)
Life(settings, supervisor, port).begun(life)
if manner == "dies":
    sys.exit(1)
if manner == "starts another":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "started by a worker"])
store = Store(registry_url())
lease = Registry(store).leases.take(f"slot:{supervisor}:{port}", holder_of(supervisor, port, life), settings.lease_seconds)
while manner == "stays" or Places(store).in_slot(supervisor, port):
    Life(settings, supervisor, port).touch()
    lease = Registry(store).leases.renew(lease, settings.lease_seconds)
    time.sleep(0.05)
Registry(store).leases.release(lease)
"""


@pytest.fixture
def settings(tmp_path: Path) -> NimbusSettings:
    return NimbusSettings(
        tmp_path / "nimbus",
        ports=(1, 2),
        lease_seconds=2.0,
        beat_seconds=0.1,
        monitor_seconds=0.2,
        stop_seconds=1.0,
        task_launch_seconds=60.0,
    )


class Host:
    """One host: a supervisor that looks when it is told to."""

    def __init__(self, store: Store, settings: NimbusSettings, manner: str = "works") -> None:
        self.store, self.settings = store, settings
        self.registry, self.places = Registry(store), Places(store)
        self.supervisor = self.another(manner)

    def another(self, manner: str = "works") -> SupervisorProcess:
        def command(supervisor: str, port: int, life: str) -> list[str]:
            return [sys.executable, "-c", _WORKER, manner, supervisor, str(port), life]

        return SupervisorProcess(self.store, self.settings, "s1", command=command)

    def restart(self, manner: str = "works") -> None:
        """Another supervisor, as after the end of the one before."""
        held = self.registry.leases.holder("supervisor:s1")
        self.registry.leases.release_all(held.holder if held else "")
        self.supervisor = self.another(manner)
        self.supervisor.take_name()
        self.supervisor.find_workers()

    def submit(self, name: str = "a") -> DeployedFlow:
        query = {"group": "q", "components": ["q"], "inputs": [], "stateful": False}
        definition = {"kind": "catalog", "name": name, "queries": [query], "explicit": {}}
        return self.registry.submit(name, Content(definition, {"q": 1}))

    def worker(self) -> LifeRecord | None:
        return next((one for port in (1, 2) if (one := Life(self.settings, "s1", port).read())), None)

    def until(self, reached: Callable[[], object], supervisor: SupervisorProcess | None = None) -> None:
        """Look again and again."""
        deadline = time.monotonic() + 120
        while not reached():
            (supervisor or self.supervisor).look()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def works(self) -> bool:
        worker = self.worker()
        port = next(iter(self.places.used_slots()), ("", 0))[1]
        lease = self.registry.leases.holder(f"slot:s1:{port}")
        return worker is not None and lease is not None and lease.holder == holder_of("s1", port, worker.life)


@pytest.fixture
def host(tmp_path: Path, settings: NimbusSettings) -> Iterator[Host]:
    store = Store.migrated(f"sqlite:///{tmp_path}/registry.db", busy_seconds=1)
    made = Host(store, settings)
    made.supervisor.take_name()
    yield made
    for process in psutil.process_iter(["cmdline"]):
        started = {_WORKER, "started by a worker"} & {*(process.info["cmdline"] or ())}
        if started and str(tmp_path) in str(process.environ()):
            process.kill()
    store.close()


def test_a_slot_with_work_gets_a_worker_and_loses_it_with_the_work(host: Host) -> None:
    flow = host.submit()
    host.until(host.works)
    worker = host.worker()
    assert worker is not None
    assert worker.process() is not None
    host.registry.kill(flow.name, wait_seconds=0)
    host.until(lambda: worker.process() is None and host.worker() is None)
    assert host.registry.history("a")[-1].event == "REMOVE"


def test_a_stand_in_supervises_while_nobody_else_does(host: Host) -> None:
    other = host.another()
    assert not other.stand_in()
    host.supervisor.end()
    assert other.stand_in()
    assert not host.another().stand_in()
    flow = host.submit()
    host.until(host.works, other)
    assert not other.empties
    host.registry.kill(flow.name, wait_seconds=0)
    host.until(lambda: host.worker() is None, other)
    assert not other.empties


def test_a_worker_that_is_killed_comes_again_at_once_and_its_leases_are_free(host: Host) -> None:
    host.submit()
    host.until(host.works)
    first = host.worker()
    assert first is not None
    host.registry.leases.take("task:a/q", holder_of("s1", 1, first.life), 1000)
    first.kill()
    host.until(lambda: host.works() and host.worker() != first)
    assert host.registry.leases.holder("task:a/q") is None
    assert [line.event for line in host.registry.history("a")] == ["SUBMIT", "WORKER_DIED"]


def test_a_worker_that_dies_at_each_start_is_started_less_and_less_often(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.restart("dies")
    host.submit()
    slots = host.supervisor._slots
    host.until(lambda: max(slot.failures for slot in slots.values()) == 3)
    said = [getattr(line, logs.FIELDS, {}) for line in caplog.records]
    assert [facts["again_in_seconds"] for facts in said if facts.get("event") == "worker died"] == [0.0, 1.0, 2.0]


def test_a_worker_that_ends_well_just_after_its_slot_was_looked_at_has_not_died(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["/bin/sh", "-c", f"until [ -e {tmp_path / 'go'} ]; do sleep 0.02; done"]
    supervisor = SupervisorProcess(host.store, host.settings, "s2", command=lambda *_: command)
    supervisor.take_name()
    host.submit()
    host.until(lambda: supervisor._children, supervisor)
    (child,) = supervisor._children

    def ends() -> None:
        (tmp_path / "go").touch()
        child.wait(30)

    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "_keep_standby", ends)
        supervisor.look()
    supervisor.look()
    (again,) = supervisor._children
    again.wait(30)
    assert again is not child
    assert [line.event for line in host.registry.history("a")] == ["SUBMIT"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the system call is that of x86_64")
def test_a_worker_that_ends_well_has_not_died_while_its_last_threads_end(host: Host) -> None:
    ends = "threading.Thread(target=lambda: (time.sleep(0.5), os._exit(0))).start(); ctypes.CDLL(None).syscall(60, 0)"
    command = [sys.executable, "-c", f"import ctypes, os, threading, time; {ends}"]
    supervisor = SupervisorProcess(host.store, host.settings, "s2", command=lambda *_: command)
    supervisor.take_name()
    host.submit()
    host.until(lambda: supervisor._children, supervisor)
    (child,) = supervisor._children
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert child.poll() is None
    supervisor.look()
    assert child.returncode == 0
    assert [line.event for line in host.registry.history("a")] == ["SUBMIT"]


@pytest.mark.parametrize("found", [False, True], ids=["by its supervisor", "by the next one"])
def test_what_a_dead_worker_has_left_is_killed(host: Host, found: bool) -> None:
    """As its JVM, where that does not see at once that it is alone."""
    host.restart("starts another")
    host.submit()
    host.until(host.works)
    record = host.worker()
    assert record is not None
    worker = record.process()
    assert worker is not None
    (left,) = worker.children()
    # It has beaten since.
    first = Life(host.settings, "s1", 1).touched()
    host.until(lambda: Life(host.settings, "s1", 1).touched() > first)
    worker.kill()
    worker.wait(30)
    assert left.is_running()
    if found:
        host.restart()
    host.until(lambda: not left.is_running() or left.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.exhaustive
def test_a_worker_that_is_frozen_is_killed_when_its_lease_has_run_out(host: Host) -> None:
    host.submit()
    host.until(lambda: host.works() and any(slot.beats for slot in host.supervisor._slots.values()))
    frozen = host.worker()
    assert frozen is not None
    os.kill(frozen.pid, signal.SIGSTOP)
    host.until(lambda: host.works() and host.worker() != frozen)
    assert frozen.process() is None


def test_a_worker_that_does_not_leave_an_empty_slot_is_killed(host: Host) -> None:
    host.restart("stays")
    host.submit()
    host.until(host.works)
    worker = host.worker()
    host.registry.kill("a", wait_seconds=0)
    host.until(lambda: worker is not None and worker.process() is None)


def test_a_worker_that_serves_a_request_is_not_killed_for_its_empty_slot(host: Host) -> None:
    """A backfill would end in mid-slice. Once it says so no more, it has its time to end."""
    host.restart("stays")
    host.submit()
    host.until(host.works)
    worker, port = host.worker(), _port(host)
    assert worker is not None
    host.registry.kill("a", wait_seconds=0)
    busy_until = time.monotonic() + 2 * host.settings.stop_seconds + host.settings.lease_seconds
    while time.monotonic() < busy_until:
        Life(host.settings, "s1", port).mark_busy()
        # A clock that is put back does not keep an old mark fresh.
        ahead = time.time() + 86_400
        os.utime(host.settings.supervisor_folder("s1") / f"{port}.busy", (ahead, ahead))
        host.supervisor.look()
        assert worker.process() is not None
        assert not host.supervisor.empties
        time.sleep(0.05)
    host.until(lambda: worker.process() is None)
    assert time.monotonic() > busy_until + host.settings.stop_seconds


def test_another_supervisor_finds_the_workers_and_buries_the_dead(host: Host) -> None:
    host.submit()
    host.until(host.works)
    worker = host.worker()
    assert worker is not None
    host.restart()
    host.until(host.works)
    assert host.worker() == worker
    assert worker.process() is not None
    worker.kill()
    host.restart()
    host.until(lambda: host.works() and host.worker() != worker)


def test_the_lease_of_a_supervisor_that_died_here_is_free_at_once(host: Host) -> None:
    own = host.registry.leases.holder("supervisor:s1")
    assert own is not None
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    file = host.settings.supervisor_folder("s1") / "supervisor.json"
    file.write_text(json.dumps({"life": own.holder, "pid": dead.pid, "created": 1.0}), "utf-8")
    host.another().take_name()
    taken = host.registry.leases.holder("supervisor:s1")
    assert taken is not None
    assert taken.holder != own.holder


def test_a_name_is_held_for_longer_than_a_beat_lasts(host: Host) -> None:
    seldom = replace(host.settings, beat_seconds=20, lease_seconds=60, task_timeout_seconds=60)
    other = SupervisorProcess(host.store, seldom, "s2")
    other.take_name()
    for _ in range(2):
        assert other._own is not None
        assert other._own.expires_at - time.time() > 55
        other._renew_own()


def test_a_second_supervisor_of_a_name_is_refused(host: Host) -> None:
    with pytest.raises(LeaseHeldError, match="supervisor:s1"):
        host.another().take_name()


def test_a_supervisor_whose_own_take_was_not_answered_is_no_other_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = host.registry.leases
    assert host.supervisor._own is not None
    leases.release(host.supervisor._own)
    take = host.supervisor._registry.leases.take

    def cut_off(*given: Any) -> None:
        take(*given)
        raise RegistryError("x", "does not answer: cut off behind the commit", hint="")

    with monkeypatch.context() as cut:
        cut.setattr(host.supervisor._registry.leases, "take", cut_off)
        assert host.supervisor.look()
    assert host.supervisor.look()
    assert host.supervisor._own == leases.holder("supervisor:s1")
    host.supervisor._own = None
    assert host.supervisor.stand_in()


@pytest.mark.parametrize("lives", [False, True], ids=["dead", "alive"])
def test_a_container_that_begins_with_an_empty_home_waits_for_its_former_life(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lives: bool
) -> None:
    monkeypatch.setattr("pipelines.nimbus.processes.supervisor._OWN_LEASE_SECONDS", 2.0)
    own = host.registry.leases.holder("supervisor:s1")
    assert own is not None
    host.registry.leases.release_all(own.holder)
    host.supervisor.take_name()
    again = SupervisorProcess(host.store, replace(host.settings, home=tmp_path / "empty"), "s1")
    again.ending.wait = lambda timeout=None: host.supervisor.look() if lives else time.sleep(timeout or 0)  # type: ignore[method-assign,assignment]
    if lives:
        with pytest.raises(LeaseHeldError, match="supervisor:s1"):
            again.run()
        return
    monkeypatch.setattr(again, "look", again.stop)
    again.run()
    assert host.supervisor._own is not None
    with pytest.raises(RegistryLeaseLostError):
        host.registry.leases.check(host.supervisor._own)


@pytest.mark.parametrize("lives", [False, True], ids=["dead", "alive"])
def test_one_of_two_that_start_at_once_does_not_wait_for_the_end_of_the_other(host: Host, lives: bool) -> None:
    """No shutdown would find it. The first has the lease when it is looked at, and writes its file a moment later."""
    first, second = host.supervisor._holder, host.another()
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    file = host.settings.supervisor_folder("s1") / "supervisor.json"
    file.unlink()
    waited: list[float | None] = []

    def wait(seconds: float | None = None) -> bool:
        waited.append(seconds)
        Life(host.settings, "s1", "supervisor").begun(first)
        if not lives:
            file.write_text(json.dumps({"life": first, "pid": dead.pid, "created": 1.0}), "utf-8")
        return len(waited) > 3 and second.stop() is None

    second.ending.wait = wait  # type: ignore[method-assign]
    second.look = lambda: False  # type: ignore[method-assign]
    if lives:
        with pytest.raises(LeaseHeldError, match="supervisor:s1"):
            second.run()
    else:
        second.run()
        assert second._own is not None
    assert len(waited) == 1


def test_one_that_stood_still_while_another_took_its_name_touches_no_slot(host: Host) -> None:
    host.submit()
    host.until(host.works)
    first, before = host.supervisor, host.worker()
    assert before is not None
    host.restart()
    before.kill()
    host.until(lambda: host.works() and host.worker() != before)
    assert not first.look()
    # That is the wish of nobody: who watches a folder would drain its flows.
    assert not first.ending.is_set()
    assert not first.stand_in()
    assert not first.empties
    first.stop_workers()
    assert host.works()
    assert host.worker() != before


def test_a_worker_that_got_up_late_is_found(host: Host) -> None:
    """Its supervisor ended before it had written its file; the next one starts a worker, which finds the slot taken."""
    host.submit()
    host.until(host.works)
    late = host.worker()
    assert late is not None
    file = host.settings.supervisor_folder("s1") / f"{_port(host)}.json"
    written, _ = file.read_text(), file.unlink()
    host.restart()
    host.until(lambda: host.worker() is not None)
    file.write_text(written)
    host.until(lambda: host.worker() == late and host.works())
    assert late.process() is not None


def _port(host: Host) -> int:
    return next(port for port in (1, 2) if Life(host.settings, "s1", port).read())


def test_workers_are_drained_with_their_supervisor_if_it_is_told_so(host: Host) -> None:
    host.submit()
    host.until(host.works)
    worker = host.worker()
    host.supervisor.stop_workers()
    assert worker is not None
    assert worker.process() is None


def test_a_worker_finds_the_registry_and_settings_by_its_environment(
    host: Host, settings: NimbusSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in worker_environment(host.store, replace(settings, lease_seconds=7.5)).items():
        monkeypatch.setenv(name, value)
    assert NimbusSettings.from_environment() == replace(settings, lease_seconds=7.5)
    assert os.environ["TRIDELTA_REGISTRY"] == str(host.store.engine.url)


def test_a_pid_that_another_process_has_by_now_is_not_killed(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        now = ProcessIdentity.of(child.pid)
        for other in (
            replace(now, ticks=now.ticks - 500),
            replace(now, boot="another boot"),
            ProcessIdentity(child.pid, now.created - 5),
        ):
            LifeRecord("x", other).kill()
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_a_worker_that_has_got_up_is_starting_no_more(host: Host) -> None:
    host.submit()
    host.until(host.works)
    worker = host.worker()
    assert worker is not None
    assert Life(host.settings, "s1", f"{_port(host)}.starting").read() is None
    Life(host.settings, "s1", _port(host)).starting("another", ProcessIdentity.of())
    Life(host.settings, "s1", _port(host)).begun(worker.life)
    assert Life(host.settings, "s1", f"{_port(host)}.starting").read() is not None


def test_tables_that_are_missing_for_a_moment_end_no_supervisor(
    url: str, settings: NimbusSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """As while a database is restored."""
    store = Store.migrated(url, busy_seconds=5)
    host = Host(store, settings)
    host.supervisor.take_name()
    host.supervisor.look()
    store.downgrade("base")
    host.supervisor.look()
    said = [getattr(line, logs.FIELDS, {}) for line in caplog.records]
    assert "has lost its tables" in next(facts["reason"] for facts in said if facts.get("reason"))
    store.upgrade()
    host.supervisor.look()
    assert host.registry.leases.holder("supervisor:s1") == host.supervisor._own
    assert not host.supervisor.ending.is_set()
    store.close()


@pytest.mark.parametrize("other", [False, True], ids=["nobody else", "another supervisor"])
def test_a_registry_file_that_is_replaced_has_one_supervisor_in_the_end(
    host: Host, settings: NimbusSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture, other: bool
) -> None:
    def reasons() -> list[str]:
        return [str(getattr(line, logs.FIELDS, {}).get("reason")) for line in caplog.records]

    host.supervisor.look()
    for file in tmp_path.glob("registry.db*"):
        file.unlink()
    for _ in range(3):
        host.supervisor.look()
    assert "is missing" in reasons()[-1]
    assert not (tmp_path / "registry.db").exists()
    store = Store.migrated(f"sqlite:///{tmp_path}/registry.db", busy_seconds=1)
    second = SupervisorProcess(store, settings, "s1")
    if other:
        second.take_name()
    looks = [host.supervisor.look() for _ in range(3)]
    holder = Registry(store).leases.holder("supervisor:s1")
    assert looks[-1] == (not other)
    assert holder == (second._own if other else host.supervisor._own)
    store.close()


def test_a_registry_file_that_is_replaced_is_said_before_the_new_one_is_used(host: Host, tmp_path: Path) -> None:
    Store.migrated(f"sqlite:///{tmp_path}/new.db").close()
    lease = host.registry.leases.take("x", "me", 60)
    for beside in tmp_path.glob("registry.db-*"):
        beside.unlink()
    (tmp_path / "new.db").replace(tmp_path / "registry.db")
    with pytest.raises(RegistryError, match="was replaced by another file"):
        host.registry.leases.renew(lease, 60)
    with pytest.raises(RegistryLeaseLostError):
        host.registry.leases.renew(lease, 60)
