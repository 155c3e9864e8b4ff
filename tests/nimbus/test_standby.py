"""A standby: it takes the slot of a worker that is gone, and does not outlive its supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pipelines.nimbus.processes.life import STANDBY, Life, LifeRecord
from pipelines.nimbus.processes.standby import SlotOrder, Standby, fits, schemes_of, wait_for_order
from pipelines.nimbus.processes.supervisor import SupervisorProcess, keeps_standby
from pipelines.nimbus.registry.records import Content, DeployedFlow
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings
from pipelines.private import private_folder
from tests.nimbus.deployment import PATIENCE, Deployment, wait_for
from tests.nimbus.faults import kill_worker
from tests.nimbus.test_supervisor import _WORKER, Host
from tests.nimbus.test_supervisor import settings as settings

pytestmark = pytest.mark.slow

# In all that its supervisor sees of it: a file once it is up, an order on its standard input, then a worker.
_STANDBY = """
import json, sys
from pipelines.nimbus.processes.standby import wait_for_order
from pipelines.nimbus.settings import NimbusSettings
from pipelines.private import private_folder

manner, supervisor, life = sys.argv[1:4]
if manner == "dies":
    sys.exit(1)
order = wait_for_order(NimbusSettings.from_environment(), supervisor, life)
if order is None:
    sys.exit(0)
sys.argv[1:] = ["works", supervisor, str(order.port), order.life]
"""


class HostWithStandby(Host):
    """A host whose standby is a process without Spark."""

    manner = "stands by"

    def another(self, manner: str = "works") -> SupervisorProcess:
        def command(supervisor: str, port: int, life: str) -> list[str]:
            return [sys.executable, "-c", _WORKER, manner, supervisor, str(port), life]

        def standby(supervisor: str, life: str, lakes: Sequence[str]) -> list[str]:
            return [sys.executable, "-c", _STANDBY + _WORKER, self.manner, supervisor, life]

        return SupervisorProcess(self.store, self.settings, "s1", command=command, standby=standby)

    def next_worker(self, worker: LifeRecord) -> LifeRecord:
        """Kill a worker, and wait for what comes in its place."""
        os.kill(worker.pid, signal.SIGKILL)
        self.until(lambda: self.worker() not in (None, worker) and self.works())
        found = self.worker()
        assert found is not None
        return found

    def standby(self) -> LifeRecord | None:
        return Life(self.settings, "s1", STANDBY).read()

    def submit(self, name: str = "a", partitions: int | None = None, **settings: object) -> DeployedFlow:
        query = {"group": "q", "components": ["q"], "inputs": [], "stateful": True}
        explicit = {"q": partitions} if partitions else {}
        definition = {"kind": "catalog", "name": name, "queries": [query], "explicit": explicit, "lake": "/lake"}
        return self.registry.submit(name, Content(definition, {"q": 1}, settings=settings))


@pytest.fixture
def host(tmp_path: Path, settings: NimbusSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostWithStandby]:
    monkeypatch.setattr("pipelines.nimbus.processes.standby._CALM_SECONDS", 0.1)
    monkeypatch.delenv("TRIDELTA_SPARK_MASTER", raising=False)
    store = Store.migrated(f"sqlite:///{tmp_path}/registry.db", busy_seconds=1)
    made = HostWithStandby(store, settings)
    made.supervisor.take_name()
    yield made
    made.supervisor.end()
    for process in psutil.process_iter(["cmdline"]):
        if any(_WORKER in part for part in process.info["cmdline"] or ()) and str(tmp_path) in str(process.environ()):
            process.kill()
    store.close()


def test_a_master_that_is_set_but_empty_is_none(host: HostWithStandby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_SPARK_MASTER", "")
    assert keeps_standby(host.settings)
    assert fits([host.submit(partitions=1)])


def test_it_takes_the_slot_of_a_worker_that_dies_and_another_one_comes(host: HostWithStandby) -> None:
    host.submit()
    host.until(host.works)
    host.until(lambda: host.supervisor._standby.is_up)  # type: ignore[union-attr]
    worker, standby = host.worker(), host.standby()
    assert worker is not None
    assert standby is not None
    taken = host.next_worker(worker)
    assert taken.pid == standby.pid
    assert taken.life != standby.life
    host.until(lambda: host.standby() is not None and host.supervisor._standby.is_up)  # type: ignore[union-attr]
    another = host.standby()
    assert another is not None
    assert another.pid != standby.pid


def test_a_flow_with_a_spark_of_its_own_gets_that(host: HostWithStandby) -> None:
    host.submit(spark={"spark.sql.shuffle.partitions": "3"})
    host.until(host.works)
    host.until(lambda: host.supervisor._standby.is_up)  # type: ignore[union-attr]
    worker, standby = host.worker(), host.standby()
    assert worker is not None
    assert host.next_worker(worker) != standby
    assert host.standby() == standby


@pytest.mark.exhaustive
def test_one_that_stands_still_is_not_taken(host: HostWithStandby) -> None:
    host.submit()
    host.until(host.works)
    host.until(lambda: host.supervisor._standby.is_up)  # type: ignore[union-attr]
    standby = host.standby()
    assert standby is not None
    os.kill(standby.pid, signal.SIGSTOP)
    host.until(lambda: standby.process() is None)
    host.until(lambda: host.standby() not in (None, standby))


@pytest.mark.exhaustive
def test_one_that_cannot_start_is_tried_after_pauses(host: HostWithStandby) -> None:
    host.manner = "dies"
    host.submit()
    host.until(host.works)
    own = host.supervisor._standby
    assert own is not None
    host.until(lambda: own._failures == 2)
    assert own._again_at > time.monotonic()
    worker = host.worker()
    assert worker is not None
    assert host.next_worker(worker) != worker


def test_it_ends_with_its_supervisor(host: HostWithStandby) -> None:
    host.submit()
    host.until(host.works)
    host.until(lambda: host.supervisor._standby.is_up)  # type: ignore[union-attr]
    standby = host.standby()
    assert standby is not None
    host.supervisor.end()
    wait_for(lambda: standby.process() is None, PATIENCE, lambda: str(standby))
    worker = host.worker()
    assert worker is not None
    assert worker.process() is not None


def test_one_writes_its_record_again_over_that_of_a_standby_that_got_up_late(
    settings: NimbusSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor was killed while it started; it ends at once, and would hide the next supervisor's for good."""
    file, (read, write) = Life(settings, "s1", STANDBY), os.pipe()

    def written() -> str | None:
        record = file.read()
        return record.life if record else None

    with os.fdopen(read) as stdin, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(sys, "stdin", stdin)
        private_folder(settings.supervisor_folder("s1"))
        order = pool.submit(wait_for_order, settings, "s1", "second")
        wait_for(lambda: written() == "second", PATIENCE, lambda: str(file.read()), every=0.01)
        file.begun("first")
        try:
            wait_for(lambda: written() == "second", 5, lambda: str(file.read()), every=0.01)
            # One that was taken is forgotten, and may not have heard of its order yet.
            file.forget()
            time.sleep(3 * settings.beat_seconds)
            assert written() is None
        finally:
            os.write(write, b'{"port": 1, "life": "x"}\n')
            os.close(write)
        assert order.result() == SlotOrder(1, "x")


def test_one_that_no_signal_ends_holds_nobody_up(settings: NimbusSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that hangs in the kernel: its supervisor has workers to look after."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], out: Path) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return started[-1]

    monkeypatch.setattr("pipelines.nimbus.processes.standby._KILLED_SECONDS", 0.1)
    monkeypatch.setattr(LifeRecord, "kill", lambda _: None)
    sleeps = [sys.executable, "-c", "import time; time.sleep(20)"]
    standby = Standby(settings, "s1", start, lambda *_: sleeps)
    first = standby.keep(list, float("-inf"))
    standby._heard_at -= settings.task_launch_seconds + 1
    began = time.monotonic()
    assert standby.keep(list, float("-inf")) is None
    assert time.monotonic() - began < 10
    standby._again_at = 0.0
    assert standby.keep(list, float("-inf")) not in (None, first)
    for child in started:
        assert child.poll() is None
        child.kill()
        child.wait()
        child.stdin.close()  # type: ignore[union-attr]


def test_one_that_starts_has_its_time_beside_a_standby_that_gets_up_late(settings: NimbusSettings) -> None:
    """That of a supervisor that was killed; it writes its record and ends."""

    def start(command: list[str], out: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.PIPE)

    private_folder(settings.supervisor_folder("s1"))
    file, sleeps = Life(settings, "s1", STANDBY), [sys.executable, "-c", "import time; time.sleep(20)"]
    standby = Standby(settings, "s1", start, lambda *_: sleeps)
    child = standby.keep(list, float("-inf"))
    assert child is not None
    try:
        file.begun("other")
        standby.keep(list, float("-inf"))
        standby._heard_at -= settings.lease_seconds + 1
        standby.keep(list, float("-inf"))
        assert standby._child is child
        assert child.poll() is None
        assert not standby.is_up
        # Once it is up it beats, or is killed.
        file.begun(standby._life)
        assert standby.is_up
        standby._heard_at -= settings.lease_seconds + 1
        assert not standby.is_up
        file.touch()
        assert standby.is_up
    finally:
        child.kill()
        child.wait()
        child.stdin.close()  # type: ignore[union-attr]


def test_what_fits(host: HostWithStandby) -> None:
    plain = host.submit("plain")
    assert fits([plain, host.submit("one", 1)])
    assert not fits([plain, host.submit("elsewhere", master="local[2]")])
    assert not fits([host.submit("large", spark={"spark.driver.memory": "3g"})])
    assert not fits([host.submit("many", 1000)])
    assert schemes_of(["/lake", "s3://bucket/lake", ""]) == {"s3"}


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_deployed_flow_goes_on_in_it(tmp_path: Path) -> None:
    """Killed twice: the second time what came in its place."""
    with Deployment(tmp_path / "home", standby=1) as here:
        here.submit("numbers")
        here.runs("numbers")
        for _ in range(2):
            file = Life(here.nimbus.settings, "one", STANDBY)
            wait_for(lambda file=file: file.read() is not None, PATIENCE, here.told)  # type: ignore[misc]
            standby = file.read()
            assert standby is not None
            pid = kill_worker(here, "numbers")
            here.next_batch("numbers", pid)
            assert here.worker_of("numbers").pid == standby.pid
        here.ends_well()
        here.kill_supervisor()
        wait_for(lambda: file.read() is None or file.read().process() is None, PATIENCE, here.told)  # type: ignore[union-attr]
