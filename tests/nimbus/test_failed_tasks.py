"""What a task that fails leaves behind: no query that runs on without it, and no thread that tries without a pause. No Spark."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.execution.checkpoint.engine_files import REFUSE, Checkpoint
from pipelines.execution.runners.stopping import Stopping
from pipelines.maintenance import repartition
from pipelines.nimbus.errors import RegistryError, RegistryLeaseLostError
from pipelines.nimbus.processes.task import Task
from pipelines.nimbus.registry.leases import Leases
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.telemetry.figures import TaskFigures
from tests.nimbus.test_channel_waits import Reader
from tests.nimbus.test_stuck_queries import unfinished

SILENT = RegistryError("sqlite:///r.db", "does not answer")


class Query:
    """A query that runs until it is stopped."""

    def __init__(self) -> None:
        self.isActive, self.ended = True, threading.Event()

    def stop(self) -> None:
        self.isActive = False
        self.ended.set()


class Runner:
    """Of a runner what a task asks it. `held` is whether its checkpoint was while it drained."""

    window_rows = None
    emptied_windows = ()
    events_wait = 0
    error = None

    def __init__(self, checkpoint: Checkpoint, query: Query) -> None:
        self._checkpoint, self._query = checkpoint, query
        self.stopping, self.held, self.drains = Stopping(), list[bool](), threading.Event()
        self.ahead: Callable[..., None] | None = None
        self.fails: Exception | None = None
        self.hangs = False

    def read_ahead(self, watch: Callable[..., None]) -> bool:
        if self.ahead is not None:
            watch(self, self._query, self._checkpoint.spark)
        return True

    def start(self, **_: Any) -> Query:
        return self._query

    def finish(self, query: Query) -> None:
        if self.fails is not None and query.isActive:
            raise self.fails

    def drain(self, query: Query) -> None:
        self.held.append(self._checkpoint.is_running())
        self.drains.set()
        if self.hangs:
            assert query.ended.wait(20)
        query.stop()


class Failing(Reader):
    """A task of whose query all is ready."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, REFUSE)
        self.begin("s__1")
        self.checkpoint = Checkpoint("f", self.lake.checkpoint_path("f", self.query.group))
        self.streaming = Query()
        self.runner = Runner(self.checkpoint, self.streaming)
        registry: Any = SimpleNamespace(tell=self._tell)
        self.share(preparing=threading.Lock(), registry=registry, spark=None)
        self.lease = SimpleNamespace()  # type: ignore[assignment]
        starting, group = self._starting, SimpleNamespace(ready=True, topology=None, name="s__1")
        monkeypatch.setattr(starting, "made_ready", lambda *_: REFUSE)
        monkeypatch.setattr(starting, "group", lambda *_, **__: group)
        monkeypatch.setattr(starting, "runner", lambda *_: self.runner)
        monkeypatch.setattr("pipelines.nimbus.processes.task.lineage_run", lambda *_: _Nothing())
        monkeypatch.setattr(self.figures, "look", lambda *_: None)
        self.failure: Exception | None = None

    def _tell(self, *_: Any) -> None:
        raise SILENT

    def run(self) -> None:
        try:
            self._live()
        except Exception as error:
            self.failure = error


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(tmp_path, monkeypatch)


def look_fails(task: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: Any) -> None:
        raise SILENT

    monkeypatch.setattr(task.figures, "look", look)


def telling_fails(task: Failing, _: pytest.MonkeyPatch) -> None:
    task.runner.emptied_windows = ("w",)  # type: ignore[assignment]


def ahead_fails(task: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    task.runner.ahead = print
    look_fails(task, monkeypatch)


def one_batch_fails(task: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    task.runner.fails = SILENT
    task._starting._query = replace(task.query, partitions=4)
    monkeypatch.setattr(Checkpoint, "has_state", True)
    monkeypatch.setattr(repartition, "partitions_of", lambda _: 2)
    monkeypatch.setattr(repartition, "repartition", unfinished)


@pytest.mark.parametrize("fails", [look_fails, telling_fails, ahead_fails, one_batch_fails])
def test_a_query_ends_before_its_checkpoint_is_given_back_by_a_thread_that_fails(
    task: Failing, monkeypatch: pytest.MonkeyPatch, fails: Callable[[Failing, pytest.MonkeyPatch], None]
) -> None:
    fails(task, monkeypatch)
    task.start()
    assert not task.waits(20)
    assert task.failure is SILENT
    assert not task.streaming.isActive
    assert task.runner.held == [True]
    assert not task.checkpoint.is_running()


def test_one_that_does_not_drain_then_can_be_stopped_and_counts_as_stuck(
    task: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_fails(task, monkeypatch)
    task.runner.hangs, over = True, threading.Event()

    def stop() -> None:
        over.wait(20)
        Query.stop(task.streaming)

    monkeypatch.setattr(task.streaming, "stop", stop)
    task.start()
    assert task.runner.drains.wait(20)
    assert task.figures.state == "draining"
    task.leave()
    task.force()
    time.sleep(0.05)
    assert task.runner.stopping.forced.is_set()
    assert task.stopping_seconds > 0
    assert task.checkpoint.is_running()
    over.set()
    assert not task.waits(20)
    assert task.failure is SILENT


def test_one_that_cannot_be_drained_at_first_is_tried_again(task: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.nimbus.processes.task._WATCH_SECONDS", 0.01)
    look_fails(task, monkeypatch)
    answers = [OSError("no answer"), OSError("no answer")]
    drain = task.runner.drain

    def drains(query: Query) -> None:
        if answers:
            raise answers.pop()
        drain(query)

    monkeypatch.setattr(task.runner, "drain", drains)
    task.start()
    assert not task.waits(20)
    assert task.failure is SILENT
    assert not task.streaming.isActive


def test_a_folder_that_cannot_be_looked_at_ends_no_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exists(path: Path) -> bool:
        raise OSError(116, "Stale file handle", str(path))

    report = json.dumps({"sources": [{"description": "FileStreamSource[file:/data/in]"}]})
    progress = SimpleNamespace(json=lambda: report)
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(lastProgress=lambda: progress))
    figures = TaskFigures("q", 1.0)
    figures.gone = ["/data/in"]
    monkeypatch.setattr(Path, "exists", exists)
    figures.look(query, tmp_path)
    # It was missing when that was known last.
    assert figures.gone == ["/data/in"]


def test_a_query_commits_nothing_under_a_lease_that_its_task_has_given_back(task: Failing, tmp_path: Path) -> None:
    leases = Leases(Store.migrated(f"sqlite:///{tmp_path}/other.db"))
    lease = task.lease = leases.take("task:f/q", "h", 60.0)
    task.share(registry=SimpleNamespace(leases=leases))
    task._starting._guard(lease, "committing", "sums", 1)
    task._release()
    with pytest.raises(RegistryLeaseLostError):
        task._starting._guard(lease, "committing", "sums", 1)


@pytest.mark.parametrize("wanted", [False, True])
def test_a_lease_that_cannot_be_taken_is_tried_after_a_pause(
    task: Failing, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """The task of a flow that is inactive, or drains, has none yet."""
    tries, tried = list[float](), threading.Event()

    def take(*_: object) -> None:
        tries.append(time.monotonic())
        tried.set()
        raise SILENT

    registry = SimpleNamespace(tell=task._tell, leases=SimpleNamespace(take=take))
    task.share(registry=registry, holder="h", lease_seconds=1.0)
    task.lease = None
    monkeypatch.setattr(task, "run", lambda: Task.run(task))
    task.want(wanted=wanted)
    task.start()
    assert tried.wait(20)
    time.sleep(0.5)
    assert len(tries) == 1
    task.leave()
    began = time.monotonic()
    assert not task.waits(20)
    assert time.monotonic() - began < 0.9
