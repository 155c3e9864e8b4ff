"""A query that cannot be stopped holds up nothing else in its worker, and the worker restarts for it. No Spark, no processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.execution.checkpoint.engine_files import REFUSE, Checkpoint
from pipelines.execution.runners.stopping import Stopping
from pipelines.maintenance import repartition
from pipelines.maintenance.repartition import UnfinishedBatchError
from pipelines.nimbus.processes.draining import _SLOW_SECONDS as SLOW_SECONDS
from pipelines.nimbus.processes.life import STUCK
from pipelines.nimbus.processes.worker import WorkerProcess
from pipelines.nimbus.registry.lifecycle import Request, Status
from pipelines.nimbus.registry.records import DeployedFlow
from pipelines.nimbus.registry.registry import Registry
from tests.nimbus.test_channel_waits import Reader
from tests.nimbus.test_worker_restart import FakeServer, FakeTask, content, has_spark, registry, worker

__all__ = ["registry", "worker"]

STOP_SECONDS = 60.0


class Stuck(Reader):
    """A task in whose query a batch hangs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, REFUSE)
        self.told, self.stops, self.over = list[str](), threading.Event(), threading.Event()
        self._asked._begun = True
        self._running: Any = SimpleNamespace(stopping=Stopping())
        self._streaming: Any = SimpleNamespace(isActive=True, stop=self._hang)

    def _hang(self) -> None:
        self.told.append("stop")
        self.stops.set()
        self.over.wait(5)

    def is_alive(self) -> bool:
        return not self.over.is_set()


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Stuck]:
    (tmp_path / "stuck").mkdir()
    task = Stuck(tmp_path / "stuck")
    yield task
    task.over.set()


def beside(registry: Registry, worker: WorkerProcess, stuck: Stuck) -> tuple[FakeTask, dict[Any, Any]]:
    """A neighbour in the worker, and what the registry puts there: the flow of the query that hangs was removed."""
    flow = registry.submit("b", content("b"))
    neighbour = FakeTask(flow)
    worker._tasks = {(99, 1): stuck, (flow.serial, 1): neighbour}  # type: ignore[dict-item]
    worker._revisions = {flow.serial: 1}
    worker._server = FakeServer()  # type: ignore[assignment]
    return neighbour, {(flow.serial, 1): flow}


def test_a_query_that_does_not_stop_holds_up_no_other(registry: Registry, worker: WorkerProcess, stuck: Stuck) -> None:
    neighbour, flows = beside(registry, worker, stuck)
    began = time.monotonic()
    for _ in range(3):
        worker._follow(flows)
    assert time.monotonic() - began < 4
    assert neighbour.told == ["accept True"] * 3
    # In a thread of its own, which a busy machine begins late.
    assert stuck.stops.wait(10)
    assert stuck.told == ["stop"]
    assert stuck._running.stopping.forced.is_set()
    # The beats' thread may be who finds out that the flow is gone.
    stuck.force()
    assert not worker.ending.is_set()


def test_a_query_that_has_ended_is_stopped_no_more(registry: Registry, worker: WorkerProcess, stuck: Stuck) -> None:
    _, flows = beside(registry, worker, stuck)
    worker._follow(flows)
    assert stuck.stopping_seconds > 0
    stuck._asked._begun = False
    assert stuck.stopping_seconds == 0


def unfinished(*_: object, **__: object) -> None:
    raise UnfinishedBatchError("f", "q", 4, 0)


def test_a_batch_that_is_stopped_before_a_repartition_is_no_failure_and_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs, and its flow is killed: the query ends there, for its next start to finish the batch."""
    told: list[str] = []
    task = Reader(tmp_path, REFUSE)
    begun, hangs = threading.Event(), threading.Event()

    def finish(query: Any) -> None:
        begun.set()
        hangs.wait(10)

    def start(**_: Any) -> Any:
        assert not begun.is_set()
        return SimpleNamespace(isActive=True, stop=hangs.set)

    runner = SimpleNamespace(
        stopping=Stopping(), start=start, finish=finish, read_ahead=lambda _: True, emptied_windows=(), events_wait=0
    )
    group = SimpleNamespace(ready=True)
    registry = SimpleNamespace(tell=lambda _, what, detail: told.append(what))
    task.share(preparing=threading.Lock(), registry=registry, spark=None)
    task.lease = SimpleNamespace()  # type: ignore[assignment]
    task._starting._query = replace(task.query, partitions=4)
    task.begin("s__1")
    monkeypatch.setattr(task._starting, "made_ready", lambda *_: REFUSE)
    monkeypatch.setattr(task._starting, "group", lambda *_, **__: group)
    monkeypatch.setattr(task._starting, "runner", lambda *_: runner)
    monkeypatch.setattr(Checkpoint, "has_state", True)
    monkeypatch.setattr(repartition, "partitions_of", lambda _: 2)
    monkeypatch.setattr(repartition, "repartition", unfinished)

    def live() -> None:
        try:
            task._live()
        except Exception as error:
            task._failed(error)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    assert begun.wait(10)
    task.leave()
    task.force()
    thread.join(10)
    assert not thread.is_alive()
    assert not told
    assert runner.stopping.forced.is_set()


@dataclass
class Rounds:
    """Rounds of a worker in which a query hangs, by a clock of their own."""

    worker: WorkerProcess
    neighbour: FakeTask
    server: FakeServer
    flows: dict[Any, DeployedFlow]
    now: float = 1000.0
    ended: list[int] = field(default_factory=list)

    def look(self, seconds: float) -> None:
        """A round, so long after the first one, in which the query was to stop."""
        self.now = 1000.0 + seconds
        if not self.ended:
            self.worker._round(None)  # type: ignore[arg-type]


@pytest.fixture
def rounds(
    registry: Registry, worker: WorkerProcess, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rounds]:
    neighbour, flows = beside(registry, worker, stuck)
    rounds = Rounds(worker, neighbour, FakeServer(), flows)
    worker._server = rounds.server  # type: ignore[assignment]
    has_spark(monkeypatch, rounds.server)
    monkeypatch.setattr(worker, "_flows", lambda: flows)
    monkeypatch.setattr(worker, "_end_now", lambda code, why: rounds.ended.append(code))
    monkeypatch.setattr(time, "monotonic", lambda: rounds.now)
    yield rounds
    monkeypatch.undo()


def drains_not(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds.neighbour, "is_alive", lambda: True)


@pytest.mark.parametrize("drains", [True, False], ids=["beside others that drain", "beside one that does not"])
def test_a_worker_restarts_for_a_query_that_cannot_be_stopped(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, drains: bool
) -> None:
    worker, server, neighbour = rounds.worker, rounds.server, rounds.neighbour
    if not drains:
        drains_not(rounds, monkeypatch)
    rounds.look(0)
    rounds.look(STOP_SECONDS - 5)
    assert neighbour.told == ["accept True", "accept True"]
    # What is under way is not cut off, and nothing else is taken.
    server.busy = True
    rounds.look(STOP_SECONDS + 1)
    assert server.refuses
    assert not worker.ending.is_set()
    server.busy = False
    rounds.look(STOP_SECONDS + 2)
    assert worker.ending.is_set()
    assert neighbour.told[-1] == "leave"
    rounds.look(STOP_SECONDS + 3)
    assert rounds.ended == ([STUCK] if drains else [])
    rounds.look(2 * STOP_SECONDS + 4)
    rounds.look(2 * STOP_SECONDS + 10)
    assert rounds.ended == [STUCK]


def test_a_worker_restarts_for_a_start_that_hangs(rounds: Rounds, stuck: Stuck) -> None:
    """Before there is a query: in a store that does not answer."""
    stuck._running = stuck._streaming = None
    rounds.look(0)
    rounds.look(STOP_SECONDS - 5)
    assert not rounds.worker.ending.is_set()
    rounds.look(STOP_SECONDS + 1)
    assert rounds.neighbour.told[-1] == "leave"
    rounds.look(STOP_SECONDS + 2)
    assert rounds.ended == [STUCK]


def rebalances(rounds: Rounds, stuck: Stuck, wait: float) -> None:
    """A rebalance comes that asks for what the flow of the query has, and its wait passes, and its slots are the same."""
    key, worker = (99, stuck.query.task), rounds.worker
    stuck.flow, stuck.revision = replace(stuck.flow, serial=99), 1
    drains = replace(stuck.flow.standing, status=Status.REBALANCING, previous=Status.ACTIVE)
    worker._tasks[key] = worker._tasks.pop((99, 1))
    worker._revisions[99] = 1
    rounds.flows[key] = replace(stuck.flow, standing=drains)
    rounds.look(0)
    rounds.look(wait)
    assert not stuck.stopping_seconds
    assert not stuck.wanted
    # Before the leader has placed it.
    rounds.flows[key] = stuck.flow
    rounds.look(wait + 1)
    assert stuck.wanted


@pytest.mark.parametrize("state", ["starting", "repartitioning", "running"])
def test_a_rebalance_that_changes_nothing_restarts_what_hangs(rounds: Rounds, stuck: Stuck, state: str) -> None:
    """In a store, in a batch that is to be finished before a repartition, in a look at what waits."""
    stuck._running = stuck._streaming = None
    stuck.figures.state = state
    rebalances(rounds, stuck, 30)
    rounds.worker._revisions[99] = 2
    for seconds in (31, 32):
        rounds.look(seconds)
    assert stuck.stopping_seconds > 0
    rounds.look(32 + STOP_SECONDS)
    assert rounds.worker.ending.is_set()
    rounds.look(33 + STOP_SECONDS)
    assert rounds.ended == [STUCK]


@pytest.mark.parametrize("how", ["it starts again", "it goes on"])
def test_a_rebalance_forces_nothing_that_has_drained_or_runs(rounds: Rounds, stuck: Stuck, how: str) -> None:
    stuck.figures.state = "running"
    rebalances(rounds, stuck, 30)
    if how == "it goes on":
        # What held its thread up has let go, and it is wanted again.
        assert stuck._asked.runs_on()
        rounds.worker._revisions[99] = 2
        rounds.look(32)
    else:
        with stuck._asked.begun():
            rounds.worker._revisions[99] = 2
            rounds.look(32)
            assert not stuck.stopping_seconds
    assert not stuck.told
    assert stuck.revision == 2
    assert not rounds.worker._draining.rebalanced


def test_others_have_their_time_to_drain_from_when_the_worker_restarts(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request has held the restart up for longer than that; and what has not drained in time costs its batch nothing."""
    neighbour, begins = rounds.neighbour, 5 * STOP_SECONDS
    drains_not(rounds, monkeypatch)
    rounds.server.busy = True
    for seconds in (0, STOP_SECONDS + 1, begins - 1):
        rounds.look(seconds)
    rounds.server.busy = False
    for seconds in (0, 1, STOP_SECONDS - 1):
        rounds.look(begins + seconds)
        assert neighbour.told[-1] == "leave"
    rounds.look(begins + STOP_SECONDS + 1)
    assert neighbour.told[-1] == "force"
    # Its thread withdraws the attempt.
    rounds.look(begins + STOP_SECONDS + 2)
    assert not rounds.ended
    rounds.look(begins + STOP_SECONDS + 7)
    assert rounds.ended == [STUCK]


def test_a_query_that_hangs_holds_up_no_restart_for_another_reason(rounds: Rounds, stuck: Stuck) -> None:
    """An update that needs another process, perhaps one that mends its hook: nobody has asked for it to be stopped."""
    stuck.flow = replace(stuck.flow, serial=99)
    key, worker = (99, stuck.query.task), rounds.worker
    worker._tasks = {key: stuck, **{key: task for key, task in worker._tasks.items() if task is not stuck}}
    rounds.flows[key] = stuck.flow
    worker._revisions[99] = 1
    worker.ending.set()
    for seconds in (0, SLOW_SECONDS - 1):
        rounds.look(seconds)
        assert not stuck._running.stopping.forced.is_set()
    rounds.look(SLOW_SECONDS + 1)
    assert stuck._running.stopping.forced.is_set()
    rounds.look(SLOW_SECONDS + STOP_SECONDS)
    assert not rounds.ended
    rounds.look(SLOW_SECONDS + STOP_SECONDS + 2)
    assert rounds.ended == [STUCK]


@pytest.mark.parametrize("what", ["nothing", "update", "fewer queries"])
@pytest.mark.parametrize(("timeout", "seconds"), [(None, SLOW_SECONDS), (7, SLOW_SECONDS), (3600, 3600)])
def test_a_restart_waits_for_a_batch_for_as_long_as_its_flow_says(
    registry: Registry,
    rounds: Rounds,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    timeout: int | None,
    seconds: float,
) -> None:
    settings = {} if timeout is None else {"message_timeout_seconds": timeout}
    flow = registry.submit("a", replace(content("a"), settings=settings))
    task = FakeTask(flow)
    monkeypatch.setattr(task, "is_alive", lambda: True)
    if what != "nothing":
        flow = registry.update("a", replace(content("other"), settings=settings))
    worker, number = rounds.worker, 2 if what == "fewer queries" else 1
    worker._tasks, rounds.flows = {(flow.serial, 1): task}, {(flow.serial, number): flow}  # type: ignore[dict-item]
    monkeypatch.setattr(worker, "_flows", lambda: rounds.flows)
    worker._revisions = {flow.serial: 1}
    worker._deployed = {flow.serial: flow}
    worker.ending.set()
    for passed in (0, seconds - 1):
        rounds.look(passed)
        assert "force" not in task.told
    rounds.look(seconds + 1)
    assert task.told[-1] == "force"


@pytest.mark.parametrize("what", ["rebalance", "kill"])
def test_a_restart_cuts_no_wait_that_was_asked_for(
    registry: Registry, rounds: Rounds, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    flow = registry.submit("a", content("a"))
    task = FakeTask(flow)
    monkeypatch.setattr(task, "is_alive", lambda: True)
    drains = registry.kill("a", wait_seconds=600) if what == "kill" else None
    drains = drains or registry.rebalance("a", Request(), wait_seconds=600)
    worker = rounds.worker
    worker._tasks = {(flow.serial, 1): task}  # type: ignore[dict-item]
    monkeypatch.setattr(worker, "_flows", lambda: {(flow.serial, 1): drains})
    worker._revisions = {flow.serial: 1}
    worker.ending.set()
    for seconds in (0, 500):
        rounds.look(seconds)
        assert "force" not in task.told


def test_a_query_has_seconds_to_stop_where_a_worker_has_none_to_end(rounds: Rounds) -> None:
    """Any query that is stopped, and whose job is just being cancelled, would be one that cannot be stopped."""
    worker = rounds.worker
    worker._draining._stop_seconds = 0.0
    for seconds in (0, 1, 4):
        rounds.look(seconds)
        assert not worker.ending.is_set()
    rounds.look(6)
    assert worker.ending.is_set()
    rounds.look(7)
    assert rounds.ended == [STUCK]


def test_flows_beside_it_have_seconds_to_drain_then(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    drains_not(rounds, monkeypatch)
    worker = rounds.worker
    worker._draining._stop_seconds = 0.0
    for seconds in (0, 6, 7, 10):
        rounds.look(seconds)
    assert worker.ending.is_set()
    assert rounds.neighbour.told[-1] == "leave"
    rounds.look(12)
    assert rounds.neighbour.told[-1] == "force"
