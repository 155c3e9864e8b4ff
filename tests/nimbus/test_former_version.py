"""The version before of a watched flow reads to its end under leases, while the new one's tasks beat. Needs no Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines import Lake
from pipelines.execution.checkpoint import changeover
from pipelines.execution.checkpoint.ownership import _LEASED
from pipelines.nimbus.deployed import WATCHED
from pipelines.nimbus.errors import RegistryError, RegistryLeaseLostError
from pipelines.nimbus.nimbus import Nimbus
from pipelines.nimbus.processes.former import FormerQuery, FormerVersion
from pipelines.nimbus.processes.leader import Leader
from pipelines.nimbus.processes.starting import Application
from pipelines.nimbus.processes.task import Task
from pipelines.nimbus.processes.windows_history import EVENTS_WAIT, WINDOWS_EMPTIED
from pipelines.nimbus.processes.worker import WorkerProcess
from pipelines.nimbus.registry.lifecycle import Request
from pipelines.nimbus.registry.placements import Placing
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings
from tests.nimbus.test_worker_restart import FakeServer, FakeTask, content

FLOW = """
flow: f
windows: WINDOWS
streams:
  - name: s
    source: {json_files: {path: in, schema: "k string, v bigint"}}
    operations:
      - partition: k
      - aggregate: {aggregators: [{sum: v}], trigger: {count: 1}, evict: {count: 9}}
      - persist: sums
"""
LEASE = 6.0
"""Seconds: a busy machine has stood still for three."""


class Worker:
    """A worker process' parts in this one; what its tasks do is written down, not done.

    Attributes:
        ran: What has run: whether of the version before, its query and its version.
        reads: What a query of the version before does.
        ends: Why the process would have ended at once: it is that of the tests.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        url, self._file, self._patch = f"sqlite:///{folder}/registry.db", folder / "f.yaml", patch
        self.store, self.nimbus = Store.migrated(url), Nimbus(url, Lake(folder / "lake"))
        self.settings = NimbusSettings(folder, lease_seconds=LEASE, beat_seconds=0.1)
        self.process = WorkerProcess(self.store, self.settings, "s1", 1, "x")
        self.ends: list[str] = []
        for ends in (self.process, self.process._beats):
            patch.setattr(ends, "_end_now", lambda code, why: self.ends.append(why))
        self.leases = self.process._registry.leases
        self.process._beats.take_slot(self.process._holder)
        self.process._application = Application(
            None, self.store, self.process._registry, self.process._holder, LEASE, folder, threading.Lock(), None
        )  # type: ignore[arg-type]
        self.ran: list[tuple[bool, str, int]] = []
        self.reads: Callable[[FormerQuery], None] = lambda query: None
        patch.setattr(Task, "_live", lambda task: self._live(task))  # noqa: PLW0108 - a method would be bound
        patch.setattr(changeover.Changeover, "moves", lambda *_: True)
        self.process._beats.start(self.process._tasks, self.process._former)
        self.write("channels")
        flow = self.process._registry.flows()[0]
        self.process._places.assign_all([Placing(flow, {("s1", 1): [1, 2]}, "NEW")])
        self.round()
        self.until(lambda: len(self.ran) == 2)

    def _live(self, task: Task) -> None:
        self.ran.append((isinstance(task, FormerQuery), task.query.group, task.flow.version.number))
        assert _LEASED.get()
        if isinstance(task, FormerQuery):
            self.reads(task)
            return
        task.ran = True
        while task._asked.wanted.is_set():
            task._asked.unwanted.wait(0.1)

    def write(self, windows: str, **settings: Any) -> int:
        """Deploy the flow. Returns its version."""
        self._file.write_text(FLOW.replace("WINDOWS", windows))
        seen, _ = self.nimbus.deploy(file=self._file, application=WATCHED, **settings)
        return seen.version

    def round(self) -> None:
        self.process._follow(self.process._flows())
        for key in [key for key, task in self.process._tasks.items() if not task.is_alive()]:
            self.process._collect(key)

    def change(self) -> None:
        """Have the windows in the batch from now on: the query s__1 is no more."""
        version = self.write("batch")
        flow = self.process._registry.flows()[0]
        self.process._places.assign_all([Placing(flow, {("s1", 1): [1]}, "MONITOR")])
        self.until(lambda: (False, "s", version) in self.ran)

    def until(self, reached: Callable[[], Any]) -> None:
        """Look what is to run, again and again."""
        end = time.monotonic() + 30
        while not reached():
            assert time.monotonic() < end
            self.round()
            time.sleep(0.02)

    def end(self) -> None:
        self.process.ending.set()
        for task in self.process._tasks.values():
            task.leave()
            task.join(10)
        self.process._beats.end()
        self.process._beats._thread.join(10)
        self.nimbus.close()
        self.store.close()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    (tmp_path / "supervisors" / "s1").mkdir(parents=True)
    made = Worker(tmp_path, monkeypatch)
    yield made
    made.end()


def held(worker: Worker, *names: str) -> list[str | None]:
    leases = [worker.leases.holder(f"task:{name}") for name in names]
    return [lease.holder if lease else None for lease in leases]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_it_reads_under_leases_that_are_renewed_and_the_new_tasks_beat(worker: Worker) -> None:
    names, beaten = [], []

    def reads(query: FormerQuery) -> None:
        names.append(held(worker, "f/s", "f/s__1"))
        flow = worker.process._registry.flows()[0]
        while 1 not in worker.process._places.beats(flow):
            time.sleep(0.02)
        begun = worker.process._places.beats(flow)[1].beat_at
        time.sleep(2 * LEASE)
        beat = worker.process._places.beats(flow)[1]
        beaten.append((beat.beat_at > begun + LEASE, beat.figures["version"]))
        names.append(held(worker, "f/s", "f/s__1"))
        assert query.lease is not None
        query._starting._guard(query.lease, "committing", "sums", 1)

    worker.reads = reads
    worker.change()
    assert worker.ran == [(False, "s", 1), (False, "s__1", 1), (True, "s", 1), (True, "s__1", 1), (False, "s", 2)]
    assert names == [[worker.process._holder] * 2] * 4
    assert beaten == [(True, 2)] * 2
    # Of what the new version has no more.
    assert held(worker, "f/s__1") == [None]


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_events_that_wait_in_windows_that_are_gone_are_told_once_the_registry_answers(
    worker: Worker, silent: int
) -> None:
    """They are counted once: the version before is gone then. The start tells what is left, or the end of its task."""
    registry, refused = worker.process._registry, [RegistryError("postgresql://x", "does not answer")] * silent
    tell = registry.tell

    def blip(flow: Any, event: str, *given: Any, **options: Any) -> None:
        if event == EVENTS_WAIT and refused:
            raise refused.pop()
        tell(flow, event, *given, **options)

    def told() -> list[tuple[int, Any]]:
        lines = worker.nimbus.history("f")
        return [(line.version, line.detail["reason"]) for line in lines if line.event == EVENTS_WAIT]

    worker._patch.setattr(registry, "tell", blip)
    worker._patch.setattr(changeover.Changeover, "left_waiting", lambda *_: {"s__1": 3})
    worker.change()
    (task,) = worker.process._tasks.values()
    if silent:
        assert told() == []
        task._starting.windows.try_to_tell()
    task.leave()
    task.join(10)
    assert told() == [(2, "3 event(s) wait for the clock in the windows of s__1, which the flow has no more")]


@pytest.mark.parametrize("silent", [1, 2])
@pytest.mark.parametrize("fails", [False, True])
def test_what_a_query_of_the_version_before_has_changed_is_told_once_the_registry_answers(
    worker: Worker, silent: int, fails: bool
) -> None:
    """By a task of the new version: that query is gone then."""
    registry, refused = worker.process._registry, [RegistryError("postgresql://x", "does not answer")] * silent
    tell = registry.tell

    def blip(flow: Any, event: str, *given: Any, **options: Any) -> None:
        if event == WINDOWS_EMPTIED and refused:
            raise refused.pop()
        tell(flow, event, *given, **options)

    def reads(query: FormerQuery) -> None:
        if query.query.group == "s":
            query._starting.windows.emptied("windows of s begin empty: w")
            query._starting.windows.try_to_tell()
            if fails:
                raise RegistryError("postgresql://x", "does not answer")

    worker._patch.setattr(registry, "tell", blip)
    worker.reads = reads
    worker.change()
    (task,) = worker.process._tasks.values()
    task.leave()
    task.join(10)
    lines = [line for line in worker.nimbus.history("f") if line.event == WINDOWS_EMPTIED]
    assert [(line.version, line.detail["reason"]) for line in lines] == [(1, "windows of s begin empty: w")]


def test_a_query_that_has_lost_its_lease_commits_nothing(worker: Worker) -> None:
    found = []

    def reads(query: FormerQuery) -> None:
        assert query.lease is not None
        # As after the lease has run out, and another worker has taken it and given it back.
        worker.process._former.clear()
        worker.leases.release(query.lease)
        with pytest.raises(RegistryLeaseLostError) as lost:
            query._starting._guard(query.lease, "committing", "sums", 1)
        found.append(query.query.group)
        raise lost.value

    gone: list[int] = []
    worker._patch.setattr(worker.process, "_end_now", lambda code, why: gone.append(code))
    worker.reads = reads
    worker.change()
    assert found == ["s"]
    assert (True, "s__1", 1) not in worker.ran


def test_another_worker_that_has_a_query_keeps_it(worker: Worker) -> None:
    worker.write("batch")
    worker.until(lambda: (False, "s", 2) in worker.ran or not worker.process._tasks)
    lease = worker.leases.take("task:f/s__1", "another", 60.0)
    worker.change()
    assert not any(former for former, *_ in worker.ran)
    worker.leases.check(lease)


def test_a_worker_that_is_to_end_does_not_read_on(worker: Worker) -> None:
    def reads(query: FormerQuery) -> None:
        worker.process.ending.set()
        while query.wanted:
            query._asked.unwanted.wait(0.1)

    worker.reads = reads
    worker.write("batch")
    worker.until(lambda: (True, "s", 1) in worker.ran)
    worker.round()
    assert worker.ran == [(False, "s", 1), (False, "s__1", 1), (True, "s", 1)]


def test_a_checkpoint_that_was_lost_is_not_read_from_its_start(worker: Worker) -> None:
    version = worker.write("channels", on_fresh_checkpoint="continue")
    worker.until(lambda: (False, "s", version) in worker.ran)
    found = []
    worker.reads = lambda query: found.append((query._on_fresh, query._trigger, query.query.partitions))
    worker.change()
    assert found == [(None, None, None)] * 2


class Hangs:
    """What a batch of the version before does that hangs in Python, in which no thread stops another.

    Attributes:
        begun: It has come to the hang.
        over: The hang is over.
        forced: Its runner was told to stop in mid-batch.
        query: Whose batch it is.
    """

    query: FormerQuery

    def __init__(self) -> None:
        self.begun, self.over, self.forced = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, query: FormerQuery) -> None:
        self.query = query
        query._running = SimpleNamespace(stopping=SimpleNamespace(forced=self.forced))  # type: ignore[assignment]
        query._asked._begun = True
        query._streaming = SimpleNamespace(isActive=True, stop=lambda: self.over.wait(30))  # type: ignore[assignment]
        self.begun.set()
        self.over.wait(30)
        query._running, query._streaming, query._asked._begun = None, None, False


@pytest.fixture
def hangs(worker: Worker) -> Iterator[Hangs]:
    """A query of the version before that hangs, when rounds have begun it; rounds are in time."""
    worker.reads = made = Hangs()
    worker.process._server = FakeServer()  # type: ignore[assignment]
    worker.write("batch")
    rounds = threading.Thread(target=worker.until, args=(made.begun.is_set,), daemon=True)
    rounds.start()
    try:
        assert made.begun.wait(20)
        rounds.join(10)
        assert not rounds.is_alive()
        yield made
    finally:
        made.over.set()
        rounds.join(10)


def neighbour(worker: Worker) -> FakeTask:
    """A task of another flow in the slot."""
    flow = worker.process._registry.submit("b", content("b"))
    worker.process._places.assign_all([Placing(flow, {("s1", 1): [1]}, "NEW")])
    task = FakeTask(flow)
    task.lease = None  # type: ignore[attr-defined]
    worker.process._tasks[flow.serial, 1] = task  # type: ignore[assignment]
    return task


@pytest.mark.slow
def test_a_version_before_that_hangs_holds_up_no_other_flow(worker: Worker, hangs: Hangs) -> None:
    process = worker.process
    process._draining._stop_seconds = 0.0
    beside = neighbour(worker)
    worker.round()
    assert beside.told == ["accept True"]
    # What is to run behind it stands still, and has the leases.
    assert [version for former, _, version in worker.ran if not former] == [1, 1]
    assert held(worker, "f/s", "f/s__1") == [process._holder] * 2
    process._registry.kill("f", wait_seconds=0)
    process._registry.fire()
    worker.until(hangs.forced.is_set)
    assert held(worker, "f/s", "f/s__1") == [process._holder] * 2
    assert beside.told[-1] == "accept True"
    # Only the end of its process frees its checkpoint.
    worker.until(process.ending.is_set)
    while not worker.ends:
        worker.round()
        worker.ends += process._draining.cut_off(process._tasks.values())
        time.sleep(0.02)
    assert beside.told[-1] == "leave"
    assert worker.ends == ["f/s", "f/s__1"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["moves", "left_waiting"])
def test_one_that_hangs_beside_its_queries_counts_as_one_that_does_not_stop(worker: Worker, where: str) -> None:
    """In the log of a table, on a mount that does not answer: no query of it is there to be stopped."""
    hangs, over, process = threading.Event(), threading.Event(), worker.process

    def hang(*_: object) -> Any:
        hangs.set()
        assert over.wait(30)
        return {}

    worker._patch.setattr(changeover.Changeover, where, hang)
    process._server = FakeServer()  # type: ignore[assignment]
    worker.write("batch")
    try:
        worker.until(hangs.is_set)
        (former,) = process._former.values()
        assert former.stopping_seconds == 0
        process._registry.kill("f", wait_seconds=0)
        process._registry.fire()
        worker.until(lambda: former.stopping_seconds > 0.1)
        assert {task.stopping_seconds > 0.1 for task in process._tasks.values()} == {True}
        assert process._draining.stuck(process._tasks.values()) == []
        process._draining._stop_seconds = 0.0
        worker.until(process.ending.is_set)
    finally:
        over.set()
    worker.until(lambda: not process._tasks)
    assert former.stopping_seconds == 0


def test_one_that_is_told_to_stop_before_it_reads_is_not_stuck_then(worker: Worker) -> None:
    over = threading.Event()
    former = FormerVersion(worker.process._application, worker.process._registry.flow("f"), None)  # type: ignore[arg-type]
    former.force()
    former.begin(lambda: over.wait(20) and None)
    time.sleep(0.05)
    assert former.stopping_seconds == 0
    former.force()
    time.sleep(0.05)
    assert former.stopping_seconds >= 0.05
    over.set()
    worker.until(lambda: former.over)
    assert former.stopping_seconds == 0


def test_its_leases_are_given_back_when_the_version_before_has_ended(worker: Worker, hangs: Hangs) -> None:
    worker.process._registry.kill("f", wait_seconds=0)
    worker.process._registry.fire()
    worker.until(hangs.forced.is_set)
    hangs.over.set()
    worker.until(lambda: not worker.process._tasks)
    assert held(worker, "f/s", "f/s__1") == [None] * 2
    # Nothing else of that version began, nor of the new one.
    assert worker.ran[2:] == [(True, "s", 1)]


def test_a_worker_that_is_to_end_waits_for_the_version_before(worker: Worker, hangs: Hangs) -> None:
    worker.process.ending.set()
    for _ in range(5):
        worker.round()
        time.sleep(0.05)
    assert len(worker.process._tasks) == 2
    assert held(worker, "f/s", "f/s__1") == [worker.process._holder] * 2
    assert not hangs.forced.is_set()
    hangs.over.set()
    worker.until(lambda: not worker.process._tasks)
    assert held(worker, "f/s", "f/s__1") == [None] * 2


@pytest.mark.parametrize("back", [True, False], ids=["it comes back", "another one"])
def test_a_further_version_goes_on_behind_the_one_that_was_being_read(worker: Worker, hangs: Hangs, back: bool) -> None:
    """Its update ends the reading between two batches; what is left is read before the new one begins."""
    worker.reads = lambda query: None
    version = worker.write("channels" if back else "batch", trigger_seconds=1)
    for _ in range(5):
        worker.round()
        time.sleep(0.05)
    assert worker.ran[2:] == [(True, "s", 1)]
    hangs.over.set()
    worker.until(lambda: (False, "s", version) in worker.ran)
    assert not hangs.forced.is_set()
    assert worker.ran[2:5] == [(True, "s", 1), (True, "s", 1), (True, "s__1", 1)]
    assert {version for former, _, version in worker.ran[5:]} == {version}


def test_a_rebalance_gives_the_version_before_its_time_to_drain(worker: Worker, hangs: Hangs) -> None:
    """Also where the leader does not wait for it."""
    process = worker.process
    process._registry.rebalance("f", Request(), wait_seconds=60)
    worker.round()
    process._registry.hurry(process._registry.flow("f"))
    process._registry.fire()
    process._places.assign_all([Placing(process._registry.flow("f"), {("s2", 1): [1, 2]}, "REBALANCE")])
    for _ in range(5):
        worker.round()
        time.sleep(0.05)
    assert not hangs.forced.is_set()
    assert held(worker, "f/s", "f/s__1") == [process._holder] * 2
    hangs.over.set()
    worker.until(lambda: not process._tasks)
    assert held(worker, "f/s", "f/s__1") == [None] * 2


def states(worker: Worker) -> set[str]:
    """What the tasks of the flow show by their beats of after this call."""
    since, flow = time.time(), worker.process._registry.flow("f")

    def beaten() -> bool:
        return all(beat.beat_at > since for beat in worker.process._places.beats(flow).values())

    worker.until(lambda: worker.process._places.beats(flow) and beaten())
    return {str(beat.figures["state"]) for beat in worker.process._places.beats(flow).values()}


def drained(worker: Worker) -> bool:
    """Whether the leader lets a kill or a rebalance go on."""
    return bool(Leader(worker.store, worker.settings, "leader")._drained([worker.process._registry.flow("f")]))


@pytest.mark.parametrize("ends", ["kill", "rebalance"])
def test_the_wait_is_that_of_the_version_before(worker: Worker, hangs: Hangs, ends: str) -> None:
    """It ends between two batches, and nothing is over before it has."""
    registry = worker.process._registry
    assert states(worker) == {"starting"}
    if ends == "kill":
        registry.kill("f", wait_seconds=60)
    else:
        registry.rebalance("f", Request(), wait_seconds=60)
    worker.until(lambda: hangs.query.left)
    assert states(worker) == {"starting"}
    assert not drained(worker)
    assert not hangs.forced.is_set()
    hangs.over.set()
    worker.until(lambda: drained(worker))
    assert states(worker) == {"drained"}
    # What it has left is not begun again meanwhile.
    assert worker.ran[2:] == [(True, "s", 1)]
    registry.hurry(registry.flow("f"))
    registry.fire()
    if ends == "kill":
        worker.until(lambda: not worker.process._tasks)
        assert worker.ran[2:] == [(True, "s", 1)]
    else:
        worker.until(lambda: (False, "s", 2) in worker.ran)
        assert worker.ran[2:5] == [(True, "s", 1), (True, "s", 1), (True, "s__1", 1)]
    assert not hangs.forced.is_set()


def test_behind_its_wait_a_kill_stops_the_version_before(worker: Worker, hangs: Hangs) -> None:
    registry = worker.process._registry
    registry.kill("f", wait_seconds=1)
    until = time.time() + 1
    while not registry.fire():
        assert not hangs.forced.is_set()
        assert not drained(worker)
        worker.round()
        time.sleep(0.02)
    assert time.time() >= until
    worker.until(hangs.forced.is_set)


def test_a_deactivated_flow_stops_when_its_version_before_has(worker: Worker, hangs: Hangs) -> None:
    worker.nimbus.deactivate("f")
    worker.until(lambda: hangs.query.left)
    assert states(worker) == {"starting"}
    assert not worker.nimbus.flow("f").stopped
    assert not hangs.forced.is_set()
    hangs.over.set()
    worker.until(lambda: worker.nimbus.flow("f").stopped)
    for _ in range(5):
        worker.round()
        time.sleep(0.05)
    assert worker.ran[2:] == [(True, "s", 1)]
    worker.nimbus.activate("f")
    worker.until(lambda: (False, "s", 2) in worker.ran)
    assert worker.ran[2:5] == [(True, "s", 1), (True, "s", 1), (True, "s__1", 1)]


def test_the_version_before_of_an_inactive_flow_reads_once_it_is_active(worker: Worker) -> None:
    worker.nimbus.deactivate("f")
    worker.until(lambda: worker.nimbus.flow("f").stopped)
    version = worker.write("batch")
    worker.until(lambda: {task.flow.version.number for task in worker.process._tasks.values()} == {version})
    for _ in range(5):
        worker.round()
        time.sleep(0.05)
    assert states(worker) == {"drained"}
    assert not any(former for former, *_ in worker.ran)
    worker.nimbus.activate("f")
    worker.until(lambda: (False, "s", version) in worker.ran)
    assert [group for former, group, _ in worker.ran if former] == ["s", "s__1"]
