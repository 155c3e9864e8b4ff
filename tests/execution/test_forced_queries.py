"""A query that is stopped in mid-batch: its batch is not begun again, and what failed costs it nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import LockedError, PoisonBatchError
from pipelines.execution.batch.position import Position
from pipelines.execution.batch.stream_batch import Shared
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.execution.protocol.coordinator import BatchState
from pipelines.execution.protocol.tracker import BatchTracker, Stage
from pipelines.execution.runners import batch_attempts
from pipelines.execution.runners.batch_attempts import BatchAttempts
from pipelines.execution.runners.stopping import Drained, Stopping
from pipelines.execution.runners.stream import StreamRunner
from pipelines.places.lease import LeaseLostError
from pipelines.places.store import StoreError
from pipelines.sources import JsonFiles
from pipelines.state.turns import LateWriterError
from pipelines.trident import DeltaState, TridentTopology, row_function
from tests.execution.memory_attempts import MemoryAttemptStore


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    """Leaves what a batch binds for the log as it was: here attempts are called without the batch around them."""
    with structlog.contextvars.bound_contextvars(attempt=0):
        yield


def attempts_of(store: MemoryAttemptStore, max_attempts: int) -> Any:
    """What tries batches, without a query."""
    sources = SimpleNamespace(events=lambda _: None, clocks=lambda _: None, has_windows=False, fault=lambda _: None)
    group: Any = SimpleNamespace(
        name="words", topology=SimpleNamespace(name="f"), sources=sources, lake=SimpleNamespace(root="/lake")
    )
    tracker = BatchTracker([Stage("source", group="words/1")], attempts=store, max_attempts=max_attempts, first_txid=0)
    counters: Any = None
    checkpoint: Any = SimpleNamespace(plan=lambda _: "a plan", write=lambda *_: None, folder=Path("/no/such"))
    poison: Any = SimpleNamespace(seen=lambda: -1, keep=lambda *_: "nowhere")
    shared = Shared(group, Epoch(1, 0), tracker, (), {}, (), counters)
    return BatchAttempts(shared, checkpoint, poison, Stopping(), max_attempts, set())


def batch_runner() -> Any:
    """A runner with what a batch needs before it is tried."""
    runner: Any = StreamRunner.__new__(StreamRunner)
    runner._attempts = attempts = attempts_of(MemoryAttemptStore(), 1)
    runner._group, runner._epoch, runner.stopping = attempts._group, attempts._epoch, attempts._stopping
    runner.error, runner._stop_after, runner._wait = None, None, 0.0
    runner._checkpoint = SimpleNamespace(committing=lambda _: nullcontext())
    return runner


@pytest.mark.parametrize(("max_attempts", "when"), [(1, "in the attempt"), (3, "in the attempt"), (3, "behind it")])
def test_once_it_is_forced_no_further_attempt_is_opened(
    monkeypatch: pytest.MonkeyPatch, max_attempts: int, when: str
) -> None:
    store, tried = MemoryAttemptStore(), list[int]()
    attempts = attempts_of(store, max_attempts)

    class Cancelled:
        """A batch whose job Spark has cancelled."""

        def __init__(self, _: Any) -> None:
            pass

        def run(self, batch: Any, *_: Any) -> None:
            tried.append(batch.attempt)
            if when == "in the attempt":
                attempts._stopping.forced.set()
            raise PySparkException("job cancelled")

        def failed(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(batch_attempts, "StreamBatch", Cancelled)
    monkeypatch.setattr(time, "sleep", lambda _: attempts._stopping.forced.set())
    with pytest.raises(Drained):
        attempts.run(0, dict, Position(frozenset(), 0))
    record = store.get("words/1")[0]
    assert tried == [0]
    assert (record.state, record.tries) == (BatchState.FAILED, 0 if when == "in the attempt" else 1)


def test_a_batch_of_which_no_frame_can_be_made_is_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    store, kept = MemoryAttemptStore(), list[Any]()
    attempts = attempts_of(store, 2)

    def fails() -> Any:
        raise AnalysisException("no such file")

    def keep(_epoch: Any, _batch: Any, rows: Any, *_: Any) -> str:
        kept.append(rows)
        return "nowhere"

    attempts._poison.keep = keep
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(PoisonBatchError, match="no such file"):
        attempts.run(0, fails, Position(frozenset(), 0))
    assert (store.get("words/1")[0].state, store.get("words/1")[0].tries) == (BatchState.POISON, 2)
    with pytest.raises(AnalysisException):
        kept[0]()


def test_once_it_is_forced_the_windows_of_a_skipped_batch_are_left_to_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts, tried = attempts_of(MemoryAttemptStore(), 1), list[int]()

    def cancelled(_: Any) -> None:
        tried.append(1)
        attempts._stopping.forced.set()
        raise PySparkException("job cancelled")

    attempts._group.sources.clocks = cancelled
    with pytest.raises(Drained):
        attempts.run_windows(0, dict, -1)
    assert tried == [1]


def test_once_it_is_forced_windows_are_not_run_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts, tried = attempts_of(MemoryAttemptStore(), 3), list[int]()

    def fails(_: Any) -> None:
        tried.append(1)
        raise PySparkException("no such column")

    attempts._group.sources.clocks = fails
    monkeypatch.setattr(time, "sleep", lambda _: attempts._stopping.forced.set())
    with pytest.raises(Drained):
        attempts.run_windows(0, dict, -1)
    assert tried == [1]


class JobCancelledError(Py4JJavaError):
    """A job that Spark has cancelled, as a call of the driver says it: py4j's error, none of PySpark's."""

    def __init__(self) -> None:
        Py4JError.__init__(self, "An error occurred while calling o1.collect")

    def __str__(self) -> str:
        return "An error occurred while calling o1.collect: org.apache.spark.SparkException: Job 1 cancelled"


@pytest.mark.parametrize("where", ["in windows", "in what quarantine keeps", "where quarantine forgets"])
@pytest.mark.parametrize(
    "error", [JobCancelledError(), InterruptedError("interrupted"), StoreError("s3://lake", "interrupted", hint="")]
)
@pytest.mark.parametrize("forced", [True, False], ids=["forced", "not forced"])
def test_whatever_fails_once_it_is_forced_is_left_to_the_next_start(where: str, error: Exception, forced: bool) -> None:
    runner = batch_runner()
    attempts = runner._attempts

    def fails(*_: Any) -> None:
        if forced:
            runner.stopping.forced.set()
        raise error

    runner._run = {
        "in windows": lambda *_: attempts.run_windows(0, dict, -1),
        "in what quarantine keeps": lambda *_: attempts.keep_skipped(0, dict, -1),
        "where quarantine forgets": lambda *_: attempts.expect_other_rows(0, "a plan"),
    }[where]
    runner._group.sources.clocks = attempts._poison.keep_skipped = attempts._poison.release = fails
    attempts._tracker = SimpleNamespace(
        group=lambda: SimpleNamespace(
            record=lambda _: SimpleNamespace(in_windows=True, attempt=0, reason=""),
            planned_otherwise=lambda *_: [0],
            confirm=lambda _: None,
        )
    )
    with pytest.raises(Drained if forced else type(error)):
        runner._on_spark_batch(None, 0)
    assert isinstance(runner.error, Drained) is forced


@pytest.mark.parametrize(
    "error",
    [
        LateWriterError("s", "batch 0", "another has it"),
        LeaseLostError("f", "file", "gone"),
        PoisonBatchError("f", 0, 1, "", "", stream="s"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_verdict_and_a_lost_lease_are_told_once_it_is_forced(error: Exception) -> None:
    runner = batch_runner()

    def fails(*_: Any) -> None:
        runner.stopping.forced.set()
        raise error

    runner._run = fails
    with pytest.raises(type(error)):
        runner._on_spark_batch(None, 0)
    assert runner.error is error


@pytest.mark.parametrize("told", ["forced", "draining"])
def test_a_batch_that_waits_for_another_process_is_not_begun_once_it_is_to_end(tmp_path: Path, told: str) -> None:
    runner, checkpoint = batch_runner(), Checkpoint("f", tmp_path / "words")
    runner._checkpoint, runner._wait, runner._run = checkpoint, 12.0, lambda *_: pytest.fail("it was begun")
    threading.Timer(0.3, getattr(runner.stopping, told).set).start()
    began = time.monotonic()
    with checkpoint.committing(0), pytest.raises(Drained):
        runner._on_spark_batch(None, 0)
    assert time.monotonic() - began < 10


def test_a_batch_waits_for_another_process_as_long_as_it_may(tmp_path: Path) -> None:
    runner, checkpoint = batch_runner(), Checkpoint("f", tmp_path / "words")
    runner._checkpoint, runner._wait = checkpoint, 1.5
    began = time.monotonic()
    with checkpoint.committing(0), pytest.raises(LockedError, match=r"1\.5 s"):
        runner._on_spark_batch(None, 0)
    assert 1.5 <= time.monotonic() - began < 10


@pytest.mark.slow
def test_a_batch_whose_job_hangs_ends_and_comes_again(spark: SparkSession, tmp_path: Path) -> None:
    go, there = tmp_path / "go", tmp_path / "there"

    @row_function("bigint")
    def hangs(value: Any) -> Iterator[Any]:
        there.touch()
        while not go.exists():
            time.sleep(0.1)
        yield value

    topology = TridentTopology("hangs")
    rows = topology.new_stream("in", JsonFiles(tmp_path / "in", "n bigint"))
    rows.each("n", hangs, "m").partition_persist(DeltaState("kept"), "m")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text(json.dumps({"n": 7}) + "\n")
    lake = Lake(tmp_path / "lake")
    runtime = Runtime(spark, lake, max_attempts=1)
    running = runtime.stream(topology, trigger_seconds=0.1)
    (part,) = running._parts
    until = time.monotonic() + 60
    while not there.exists() and time.monotonic() < until:
        time.sleep(0.1)
    part.runner.stopping.forced.set()
    stopping = threading.Thread(target=part.query.stop, daemon=True)
    stopping.start()
    stopping.join(60)
    assert not stopping.is_alive()
    assert running.stop() == []
    record = Checkpoint("hangs", lake.checkpoint_path("hangs", "in")).attempts().get("in/1")[0]
    assert (record.state, record.tries) == (BatchState.FAILED, 0)
    go.touch()
    (report,) = runtime.catch_up(topology).batches
    assert (report.attempt, report.received) == (1, 1)
