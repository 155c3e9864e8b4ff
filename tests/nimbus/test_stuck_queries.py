"""A query that cannot be stopped holds up nothing else in its worker, and the worker restarts for it. No Spark, no processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.execution.checkpoint.engine_files import REFUSE
from pipelines.nimbus.processes.worker import STUCK, WorkerProcess
from pipelines.nimbus.registry.registry import Registry
from tests.nimbus.test_channel_waits import Reader
from tests.nimbus.test_worker_restart import FakeServer, FakeTask, content, has_spark, registry, worker

__all__ = ["registry", "worker"]

STOP_SECONDS = 60.0


class Stuck(Reader):
    """A task in whose query a batch hangs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, REFUSE)
        self.told, self.over = list[str](), threading.Event()
        self._running: Any = SimpleNamespace(forced=threading.Event())
        self._streaming: Any = SimpleNamespace(isActive=True, stop=self._hang)

    def _hang(self) -> None:
        self.told.append("stop")
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
    assert stuck.told == ["stop"]
    assert stuck._running.forced.is_set()
    # The beats' thread may be who finds out that the flow is gone.
    stuck.force()
    assert not worker.ending.is_set()


def test_a_query_that_has_ended_is_stopped_no_more(registry: Registry, worker: WorkerProcess, stuck: Stuck) -> None:
    _, flows = beside(registry, worker, stuck)
    worker._follow(flows)
    assert stuck.stopping_seconds > 0
    stuck._streaming = None
    assert stuck.stopping_seconds == 0


@pytest.mark.parametrize("drains", [True, False], ids=["beside others that drain", "beside one that does not"])
def test_a_worker_restarts_for_a_query_that_cannot_be_stopped(
    registry: Registry, worker: WorkerProcess, stuck: Stuck, monkeypatch: pytest.MonkeyPatch, drains: bool
) -> None:
    neighbour, flows = beside(registry, worker, stuck)
    server: Any = worker._server
    has_spark(monkeypatch, server)
    monkeypatch.setattr(worker, "_flows", lambda: flows)
    ended = list[int]()
    monkeypatch.setattr(worker, "_end_now", lambda code, why: ended.append(code))
    monkeypatch.setattr(neighbour, "is_alive", lambda: not drains or "leave" not in neighbour.told)

    def look(seconds: float) -> None:
        """A round, so long after the query was to stop."""
        stuck._forced_at -= seconds - stuck.stopping_seconds if stuck.stopping_seconds else 0.0
        worker._round(None)  # type: ignore[arg-type]

    look(0)
    look(STOP_SECONDS - 5)
    assert neighbour.told == ["accept True", "accept True"]
    # What is under way is not cut off, and nothing else is taken.
    server.busy = True
    look(STOP_SECONDS + 1)
    assert server.refuses
    assert not worker.ending.is_set()
    server.busy = False
    look(STOP_SECONDS + 2)
    assert worker.ending.is_set()
    assert neighbour.told[-1] == "leave"
    look(STOP_SECONDS + 3)
    assert ended[:1] == ([STUCK] if drains else [])
    look(2 * STOP_SECONDS + 1)
    assert ended[:1] == [STUCK]
