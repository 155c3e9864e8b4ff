"""One deployment that suffers fault after fault while files come in; after each all rows are in the tables, and each once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from pipelines import Runtime
from pipelines.nimbus.deployed import load
from tests.nimbus.deployed_flows import put, rows_of
from tests.nimbus.deployment import PATIENCE, Deployment, jvm_of, processes_of, wait_for
from tests.nimbus.faults import (
    HOUR,
    freeze,
    full,
    kill_both,
    kill_jvm,
    kill_worker,
    lock_registry,
    own_disk,
    step_clock,
)
from tests.nimbus.undisturbed import COLUMNS, seen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BATCHES, BOTH = ("numbers",), ("numbers", "readings")


@pytest.fixture(
    scope="module",
    params=[pytest.param(BATCHES, id="batches"), pytest.param(BOTH, id="and windows", marks=pytest.mark.exhaustive)],
)
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Flows in one worker, which all of these tests share: each fault meets what the last one left."""
    home = tmp_path_factory.mktemp("faults") / "home"
    with own_disk(home / "lake", 512), Deployment(home) as deployed:
        deployed.fed = request.param
        deployed.submit(*deployed.fed)
        deployed.runs(*deployed.fed)
        yield deployed
        deployed.ends_well()


def recovers(here: Deployment, pid: int) -> None:
    """Without a hand's turn another process goes on where the one that is gone has stopped."""
    here.next_batch("numbers", pid)
    here.settles()
    wait_for(lambda: not psutil.pid_exists(pid), PATIENCE, lambda: f"process {pid} is still there")


def test_worker_killed(here: Deployment) -> None:
    jvm = jvm_of(here.worker_of("numbers"))
    with here.feeding(*here.fed):
        pid = kill_worker(here, "numbers")
        here.next_batch("numbers", pid)
    recovers(here, pid)
    # Its JVM has noticed that it is alone.
    wait_for(lambda: not jvm.is_running(), PATIENCE, lambda: f"JVM {jvm} has outlived its worker")
    told = [one for one in here.nimbus.history("numbers") if one.event == "WORKER_DIED"]
    assert told[-1].detail["supervisor"] == "one"


@pytest.mark.exhaustive
def test_jvm_killed(here: Deployment) -> None:
    with here.feeding(*here.fed):
        pid = kill_jvm(here, "numbers")
        here.next_batch("numbers", pid)
    recovers(here, pid)


def test_supervisor_killed(here: Deployment) -> None:
    """The worker goes on without one; the next one finds it."""
    pid = here.worker_of("numbers").pid
    here.kill_supervisor()
    here.next_batch("numbers")
    here.settles()
    here.start_supervisor("one")
    wait_for(lambda: here.nimbus.cluster().leader, PATIENCE, lambda: "nobody leads")
    here.next_batch("numbers")
    here.settles()
    assert here.worker_of("numbers").pid == pid
    log = here.nimbus.settings.supervisor_folder("one") / "supervisor.jsonl"
    # In either slot: on a machine that stands still for long it was moved before.
    found = re.compile(rf'"worker found", "port": \d+, "pid": {pid}\b')
    wait_for(lambda: found.search(log.read_text()), PATIENCE, log.read_text)


@pytest.mark.exhaustive
def test_worker_and_supervisor_killed(here: Deployment) -> None:
    with here.feeding(*here.fed):
        pid = kill_both(here, "numbers")
        here.next_batch("numbers", pid)
    recovers(here, pid)


@pytest.mark.exhaustive
def test_worker_frozen(here: Deployment) -> None:
    """Its supervisor ends it once its lease has run out: nothing of it can wake up again."""
    with here.feeding(*here.fed):
        worker = here.worker_of("numbers")
        family = freeze(here, worker)
        here.next_batch("numbers", worker.pid)
    recovers(here, worker.pid)
    wait_for(lambda: not any(one.is_running() for one in family), PATIENCE, lambda: str(family))


def test_registry_locked_for_a_moment(here: Deployment) -> None:
    """Shorter than a lease: nothing ends."""
    pid = here.worker_of("numbers").pid
    lock_registry(here, 2)
    here.next_batch("numbers")
    here.settles()
    assert here.worker_of("numbers").pid == pid


@pytest.mark.exhaustive
def test_registry_locked_for_long(here: Deployment) -> None:
    """Longer than a lease: a worker that cannot show that it owns its queries ends, and comes again."""
    pid = here.worker_of("numbers").pid
    with here.feeding(*here.fed):
        lock_registry(here, 20)
        here.next_batch("numbers", pid)
    recovers(here, pid)
    reasons = [line["reason"] for line in here.log() if line["event"] == "worker ends at once"]
    assert "the registry has not answered for 12 s" in reasons


@pytest.mark.exhaustive
@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_clock_steps(here: Deployment, seconds: float) -> None:
    """Ahead every lease has run out at once; back none does for an hour, and a worker that dies is still replaced."""
    with here.feeding(*here.fed):
        pid = here.worker_of("numbers").pid
        step_clock(here, seconds)
        if seconds < 0:
            here.next_batch("numbers")
            assert kill_both(here, "numbers") == pid
        here.next_batch("numbers", pid)
    recovers(here, pid)
    wait_for(lambda: here.nimbus.cluster().leader, PATIENCE, lambda: "nobody leads")


def test_disk_full(here: Deployment) -> None:
    """The flows stand and say what to do; as soon as there is room they go on with the same batch."""
    if not here.lake.root.is_mount():
        pytest.skip("this test fills a file system of its own, which may not be mounted here")
    with full(here.lake.root):
        here.feed(*here.fed)
        said = wait_for(lambda: here.nimbus.flow("numbers").last_error, PATIENCE, lambda: str(here.nimbus.cluster()))
        assert str(said).startswith("DiskFullError: no space left on the disk of ")
        assert "make room" in str(said)
    here.settles()
    # Rows are seen as soon as they are committed; the worker tells of the batch a beat later.
    wait_for(lambda: not here.nimbus.flow("numbers").last_error, PATIENCE, lambda: str(here.nimbus.flow("numbers")))


def test_poison(here: Deployment) -> None:
    """A flow whose batch a gate refuses says so and stands; the others in its worker go on. `skip` is the way past it."""
    here.submit("guarded")
    here.runs("guarded")
    here.settles("guarded")
    poison = [row | {"v": -1} for row in rows_of(1)]
    put(here.home / "data" / "guarded", 1, poison)
    here.files["guarded"] = 2
    said = wait_for(lambda: here.nimbus.flow("guarded").last_error, PATIENCE, lambda: str(here.nimbus.flow("guarded")))
    assert "from_zero" in str(said)
    assert "tridelta skip guarded 1" in str(said)
    pid = here.worker_of("numbers").pid
    here.feed("guarded")
    here.next_batch("numbers")
    here.settles(*here.fed)
    assert here.worker_of("numbers").pid == pid
    assert here.nimbus.flow("guarded").last_error
    assert {row[0] for row in seen(here.lake, "guarded")["guarded_kept"]} == {row["id"] for row in rows_of(0)}
    # While it waits for its next try nobody holds its checkpoint.
    flow = here.nimbus.registry.flow("guarded")
    Runtime(None, here.lake).skip(load(flow, here.home / "loaded"), 1)  # type: ignore[arg-type]
    wanted = sorted(tuple(row[name] for name in COLUMNS["guarded_kept"]) for n in (0, 2) for row in rows_of(n))
    wait_for(
        lambda: seen(here.lake, "guarded")["guarded_kept"] == wanted,
        PATIENCE,
        lambda: str(here.nimbus.flow("guarded")),
    )
    here.nimbus.kill("guarded", 1)
    here.nimbus.wait("guarded", until="gone", seconds=PATIENCE)
    del here.files["guarded"]


@pytest.mark.exhaustive
def test_everything_at_once(here: Deployment) -> None:
    """The worker dies, its supervisor too, the clock steps, and the registry is locked when they come back."""
    with here.feeding(*here.fed):
        pid = kill_worker(here, "numbers")
        here.kill_supervisor()
        step_clock(here, HOUR)
        locks = threading.Thread(target=lock_registry, args=(here, 4))
        locks.start()
        time.sleep(0.5)
        here.start_supervisor("one")
        locks.join()
        here.next_batch("numbers", pid)
    recovers(here, pid)


def test_nothing_is_left_behind(here: Deployment) -> None:
    """Of all the lives so far one supervisor, one worker and one JVM are there."""
    wanted = {here.supervisor().pid, here.worker_of("numbers").pid, jvm_of(here.worker_of("numbers")).pid}

    def others() -> list[psutil.Process]:
        # Spark's own Python workers are children of its JVM.
        allowed = wanted | {one.pid for one in jvm_of(here.worker_of("numbers")).children(recursive=True)}
        return [one for one in processes_of(here.home) if one.pid not in allowed]

    wait_for(lambda: not others(), PATIENCE, lambda: str(others()))
    assert len([port for port in (6900, 6901) if here.worker(port=port)]) == 1
