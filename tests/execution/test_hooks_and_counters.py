"""Hooks are told each stage of each batch; what user functions count arrives there (docs/architecture.md#trident)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from unittest.mock import Mock, call

import pytest
import structlog
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import PoisonBatchError
from pipelines.execution.events.hooks import Hook, StageEvent
from pipelines.sources import FixedBatches
from pipelines.trident import Count, DeltaState, TridentTopology, row_function
from pipelines.trident.counters import count, counted, counting_into


class Diary(Hook):
    def __init__(self) -> None:
        self.seen: list[tuple[str, StageEvent]] = []

    def emitted(self, event: StageEvent) -> None:
        self.seen.append(("emitted", event))

    def received(self, event: StageEvent) -> None:
        self.seen.append(("received", event))

    def committed(self, event: StageEvent) -> None:
        self.seen.append(("committed", event))

    def failed(self, event: StageEvent) -> None:
        self.seen.append(("failed", event))


@row_function("string")
def words(sentence: str | None) -> Iterator[str]:
    if not sentence:
        count("empty")
    for word in (sentence or "").split():
        if word == "boom":
            raise ValueError("boom")
        count("words")
        yield word


def topology(batches: list[list[tuple[str]]]) -> TridentTopology:
    found = TridentTopology("hooked")
    stream = found.new_stream("s", FixedBatches("sentence string", batches))
    stream.each("sentence", words, "word").group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "n")
    return found


@pytest.mark.slow
def test_each_stage_of_each_batch_is_told(spark: SparkSession, tmp_path: Path) -> None:
    diary = Diary()
    batches = [[("to be or not to be",), ("",)], [("be",)]]
    report = Runtime(spark, Lake(tmp_path), hooks=[diary]).catch_up(topology(batches))
    told = [(moment, event.stage, event.txid, event.rows) for moment, event in diary.seen]
    assert told == [
        ("emitted", "s", 0, 2),
        ("received", "counts", 0, 2),
        ("committed", "counts", 0, 4),
        ("emitted", "s", 1, 1),
        ("received", "counts", 1, 1),
        ("committed", "counts", 1, 1),
    ]
    assert all(event.seconds > 0 and event.attempt == 0 and event.flow == "hooked" for _, event in diary.seen)
    assert [batch.counters for batch in report.batches] == [{"words": 6, "empty": 1}, {"words": 1}]
    assert diary.seen[2][1].counters == {"words": 6, "empty": 1}


@pytest.mark.slow
def test_a_failed_attempt_is_told_with_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    diary = Diary()
    runtime = Runtime(spark, Lake(tmp_path), hooks=[diary], max_attempts=2)
    with pytest.raises(PoisonBatchError):
        runtime.catch_up(topology([[("a boom",)]]))
    told = [(moment, event.attempt) for moment, event in diary.seen]
    assert told == [("failed", 0), ("failed", 1)]
    assert "ValueError('boom')" in str(diary.seen[0][1].error)


def test_a_hook_that_fails_stops_nothing(spark: SparkSession, tmp_path: Path) -> None:
    class Broken(Hook):
        def committed(self, event: StageEvent) -> None:
            raise RuntimeError("broken hook")

    lake = Lake(tmp_path)
    Runtime(spark, lake, hooks=[Broken()]).catch_up(topology([[("be",)]]))
    assert lake.state("counts").get([{"word": "be"}]) == [{"word": "be", "n": 1}]


def test_outside_a_topology_a_counter_counts_nothing() -> None:
    class Sink(list[dict[str, int]]):
        add = list.append

    sink = Sink()
    with counting_into(sink, "flow/"):
        shipped = counted(lambda: count("inside"))
    count("nobody_listens")
    assert sink == []
    shipped()
    assert sink == [{"flow/inside": 1}]


def test_plans_that_are_built_side_by_side_count_apart() -> None:
    """The batches of two groups run in threads of one process."""

    def built(scope: str) -> Callable[..., None]:
        with counting_into(sinks[scope], scope):
            both.wait()
            shipped = counted(lambda: count("inside"))
            both.wait()
        return shipped

    both, sinks = Barrier(2, timeout=10), {"a/": Mock(), "b/": Mock()}
    with ThreadPoolExecutor(2) as threads:
        plans = list(threads.map(built, sinks))
    for shipped in plans:
        shipped()
    for scope, sink in sinks.items():
        assert sink.add.mock_calls == [call({f"{scope}inside": 1})]


@pytest.mark.slow
def test_what_is_logged_while_a_batch_runs_says_which_one(spark: SparkSession, tmp_path: Path) -> None:
    class Logged(Hook):
        def __init__(self) -> None:
            self.lines: list[tuple[str, int, int]] = []

        def emitted(self, event: StageEvent) -> None:
            bound = structlog.contextvars.get_contextvars()
            self.lines.append((f"{bound['flow']}/{bound['group']}", bound["txid"], bound["attempt"]))

        failed = emitted

    hook = Logged()
    runtime = Runtime(spark, Lake(tmp_path), hooks=[hook])
    with pytest.raises(PoisonBatchError):
        runtime.catch_up(topology([[("to be",)], [("boom",)]]))
    assert hook.lines == [("hooked/s", 0, 0), *(("hooked/s", 1, attempt) for attempt in range(3))]
