"""Trident's windows (rules 5) on the reference engine, a stream and a bounded run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.errors import FieldError, FunctionError, PolicyError
from pipelines.sources import FixedBatches
from pipelines.testing import run_topology
from pipelines.trident import (
    Aggregator,
    Collect,
    Count,
    DeltaState,
    Max,
    RowFunction,
    SlidingCountWindow,
    SlidingDurationWindow,
    Split,
    Stream,
    Sum,
    TridentTopology,
    TumblingCountWindow,
    TumblingDurationWindow,
)
from tests.tiers import tier

ENGINES = (
    "reference",
    pytest.param("stream", marks=pytest.mark.slow),
    pytest.param("bounded", marks=[pytest.mark.slow, pytest.mark.exhaustive]),
)


def collected(name: str = "all") -> Aggregator:
    """All values of a window, in order."""
    return Aggregator(
        init=list, aggregate=lambda state, n: state.append(n), complete=lambda state: [(",".join(map(str, state)),)],
        returns="string", output=name,
    )  # fmt: skip


def numbers(*batches: list[int]) -> dict[str, list[list[tuple[int]]]]:
    return {"numbers": [[(n,) for n in batch] for batch in batches]}


def windows(config: Any, aggregator: Any = None, output: str = "all") -> TridentTopology:
    topology = TridentTopology("windowed")
    stream = topology.new_stream("numbers", FixedBatches("n bigint", []))
    stream.window(config, "n", aggregator or collected(), output).partition_persist(DeltaState("results"))
    return topology


@pytest.mark.parametrize("engine", ENGINES)
def test_window_manager_count_5_slide_2(spark: SparkSession, engine: Any) -> None:
    """WindowManagerTest: 1..8 give [1,2], [1..4], [2..6], [4..8]; windows reach across batches."""
    found = run_topology(windows(SlidingCountWindow.of(5, 2)), numbers([1, 2, 3], [4], [], [5, 6, 7, 8]), engine, spark)
    assert [row["all"] for row in found["results"]] == ["1,2", "1,2,3,4", "2,3,4,5,6", "4,5,6,7,8"]


@pytest.mark.parametrize("engine", ENGINES)
def test_window_manager_tumbling_3(spark: SparkSession, engine: Any) -> None:
    """WindowManagerTest: 1..7 give [1..3], [4..6]; 7 waits."""
    found = run_topology(windows(TumblingCountWindow.of(3)), numbers([1, 2, 3, 4], [5, 6, 7]), engine, spark)
    assert [row["all"] for row in found["results"]] == ["1,2,3", "4,5,6"]


@pytest.mark.parametrize("engine", ENGINES)
def test_sliding_count_of_the_originals_example(spark: SparkSession, engine: Any) -> None:
    """JStorm's test 6: SlidingCount(1000, 100): the k-th result is min(100k, 1000). Here a hundredth of it."""
    batches = [list(range(start, start + 5)) for start in range(0, 20, 5)]
    found = run_topology(windows(SlidingCountWindow.of(10, 1), Count(), "count"), numbers(*batches), engine, spark)
    assert sorted(row["count"] for row in found["results"]) == sorted(min(k, 10) for k in range(1, 21))


@pytest.mark.parametrize("engine", ENGINES)
def test_event_time_windows_of_a_duration(spark: SparkSession, engine: Any) -> None:
    """Rules 5: a trigger every slide takes `now - ts < window`; an empty window gives nothing."""
    topology = TridentTopology("by_time")
    (
        topology.new_stream("numbers", FixedBatches("at bigint, n bigint", []))
        .sliding_window(timedelta(seconds=2), timedelta(seconds=1), "n", Sum(), "sum", timestamp="at")
        .partition_persist(DeltaState("results"))
    )
    batches = {"numbers": [[(100, 1), (900, 2)], [(1500, 4)], [(5000, 8), (7500, 16)]]}
    found = run_topology(topology, batches, engine, spark)
    # Ends at 1 s: 1+2; 2 s: 1+2+4; 3 s: 4; 6 s: 8; 7 s: 8. What came at 7.5 s has no trigger yet.
    assert sorted(row["sum"] for row in found["results"]) == [3, 4, 7, 8, 8]


@pytest.mark.parametrize("engine", ENGINES)
def test_windows_are_per_task(spark: SparkSession, engine: Any) -> None:
    """Rules 5: per task, not global and not grouped."""
    topology = TridentTopology("tasks")
    (
        topology.new_stream("words", FixedBatches("word string", []))
        .partition_by("word")
        .tumbling_window(2, "word", Count(), "count")
        .parallelism_hint(2)
        .partition_persist(DeltaState("results"))
    )
    words = [("a",), ("b",), ("c",), ("d",), ("e",), ("f",), ("g",)]
    found = run_topology(topology, {"words": [words[:4], words[4:]]}, engine, spark)
    assert {row["count"] for row in found["results"]} == {2}


@pytest.mark.parametrize(
    "windowed",
    [
        lambda s: s.tumbling_window(2, "n", Sum(), "w").parallelism_hint(2),
        lambda s: s.project("n").parallelism_hint(2).tumbling_window(2, "n", Sum(), "w"),
        lambda s: s.tumbling_window(2, "n", Sum(), "w").filter(RowFunction(lambda w: True)).parallelism_hint(2),
    ],
    ids=["at the window", "before it", "behind it"],
)
def test_a_hint_counts_for_the_window(windowed: Any) -> None:
    """Rule 3.9: a window and what is before and behind it without a repartition have one number of tasks."""
    topology = TridentTopology("hinted")
    stream = topology.new_stream("s", FixedBatches("n bigint", [])).direct("n")
    windowed(stream).partition_persist(DeltaState("results"))
    assert set(topology.build().parallelism.values()) == {1, 2}
    found = run_topology(topology, {"s": [[(0,), (1,), (2,)], [(3,), (5,), (6,), (7,), (8,)]]})
    assert sorted(row["w"] for row in found["results"]) == [2, 4, 12, 14]


@pytest.mark.parametrize(
    "before",
    [
        lambda s: s,
        lambda s: s.shuffle().partition_persist(DeltaState("raw", partitions=2)).new_values_stream(),
    ],
    ids=["a source of one task", "a state of other partitions"],
)
def test_what_a_state_behind_a_window_demands_does_not_reach_before_it(before: Any) -> None:
    """Results are dealt anew where the two sides cannot have one number of tasks."""
    topology = TridentTopology("apart")
    stream = before(topology.new_stream("s", FixedBatches("n bigint", [])))
    stream.tumbling_window(1, "n", Sum(), "w").partition_persist(DeltaState("results", partitions=3))
    plan = topology.build().parallelism
    assert plan["spout-s"] == 1
    assert plan["spout-apart__window1"] == 3
    found = run_topology(topology, {"s": [[(n,) for n in range(9)]]})
    assert sorted(row["w"] for row in found["results"]) == list(range(9))


@pytest.mark.parametrize("engine", ENGINES)
def test_results_of_a_window_are_dealt_alike_by_all_engines(spark: SparkSession, engine: Any) -> None:
    topology = TridentTopology("dealt")
    stream = topology.new_stream("s", FixedBatches("n bigint", [])).direct("n").tumbling_window(1, "n", Sum(), "w")
    stream.partition_aggregate(Count(), "c").parallelism_hint(3).partition_persist(DeltaState("results"))
    found = run_topology(topology, {"s": [[(n,) for n in range(30)]]}, engine, spark)
    assert sorted(row["c"] for row in found["results"]) == [7, 11, 12]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_stands_behind_a_window_goes_on(spark: SparkSession, engine: Any) -> None:
    """Results are a stream like any other: here they are summed in a state."""
    topology = TridentTopology("behind")
    (
        topology.new_stream("sentences", FixedBatches("sentence string", []))
        .each("sentence", Split(), "word")
        .tumbling_window(3, "word", Count(), "n")
        .persistent_aggregate(DeltaState("total"), "n", Sum(), "sum")
    )
    found = run_topology(topology, {"sentences": [[("a b",), ("c d e",)], [("f",)]]}, engine, spark)
    assert found["total"] == [{"sum": 6}]


@pytest.mark.slow
def test_a_stream_meets_windows_of_one_that_is_defined_behind_it(spark: SparkSession) -> None:
    """The query that makes the channel begins first (`tests/testing/test_run_topology.py` has the reference engine)."""
    topology = TridentTopology("order")
    first, other = (topology.new_stream(name, FixedBatches("n bigint", [])) for name in ("a", "b"))
    topology.merge(first, other.tumbling_window(2, "n", Sum(), "n")).partition_persist(DeltaState("out"))
    found = run_topology(topology, {"a": [[(1,)], [(2,)]], "b": [[(10,), (20,)], [(30,), (40,)]]}, "stream", spark)
    assert sorted(row["n"] for row in found["out"]) == [1, 2, 30, 70]


AT = [[(1000, 1), (2000, 2)], [(12000, 3), (13000, 4)], [(25000, 5), (26000, 6)], [(41000, 7), (42000, 8)]]
TEN, TWENTY = timedelta(seconds=10), timedelta(seconds=20)
LATEST_AND_SUM = [Max("at", "at"), Sum("n", "a")]
BEHIND_WINDOWS: dict[str, tuple[Callable[[Stream], Stream], list[int]]] = {
    "count behind count": (
        lambda s: s.tumbling_window(2, "n", Sum(), "a").tumbling_window(2, "a", Sum(), "b"),
        [3 + 7, 11 + 15],
    ),
    # The window of 15 begins at 40 s, and no event has come beyond 42 s.
    "event time behind count": (
        lambda s: s.tumbling_window(2, LATEST_AND_SUM).tumbling_window(TEN, "a", Sum(), "b", timestamp="at"),
        [3, 7, 11],
    ),
    "count behind event time": (
        lambda s: s.tumbling_window(TEN, LATEST_AND_SUM, timestamp="at").tumbling_window(1, "a", Sum(), "b"),
        [3, 7, 11],
    ),
    # Of the first windows 3, 7 and 11 come out, the last one at 26 s: the second one goes by them, as it would by a source's.
    "event time behind event time": (
        lambda s: s.tumbling_window(TEN, LATEST_AND_SUM, timestamp="at").tumbling_window(
            TWENTY, "a", Sum(), "b", timestamp="at"
        ),
        [3 + 7],
    ),
}


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((name, "reference") for name in BEHIND_WINDOWS),
        *(pytest.param(name, "stream", marks=tier(name == "count behind event time")) for name in BEHIND_WINDOWS),
        *(pytest.param(name, "bounded", marks=tier(False)) for name in BEHIND_WINDOWS),
    ],
)
def test_windows_behind_windows_go_by_what_enters_them(spark: SparkSession, engine: Any, name: str) -> None:
    """Rules 5: the clock of a window is that of its own tuples, not of the windows before it; nothing is late."""
    build, sums = BEHIND_WINDOWS[name]
    topology = TridentTopology("twice")
    stream = topology.new_stream("numbers", FixedBatches("at bigint, n bigint", []))
    build(stream).partition_persist(DeltaState("results"))
    found = run_topology(topology, {"numbers": AT}, engine, spark)
    assert [row["b"] for row in found.pop("results")] == sums
    assert not any(found.values())


def test_lengths_of_the_configurations() -> None:
    """TridentWindowingTest 2, in ms."""
    assert (TumblingCountWindow.of(9).size, TumblingCountWindow.of(9).slide) == (9, 9)
    assert (SlidingCountWindow.of(10, 2).size, SlidingCountWindow.of(10, 2).slide) == (10, 2)
    twenty = TumblingDurationWindow.of(timedelta(seconds=20))
    assert (twenty.size, twenty.slide) == (20_000, 20_000)
    fifty = SlidingDurationWindow.of(timedelta(seconds=50), timedelta(seconds=10))
    assert (fifty.size, fifty.slide) == (50_000, 10_000)


def test_results_have_the_types_that_are_said_or_come() -> None:
    topology = TridentTopology("typed")
    stream = topology.new_stream("s", FixedBatches("n int", []))
    stream.tumbling_window(2, "n", Sum(), "w double").partition_persist(DeltaState("said"))
    dealt = stream.tumbling_window(1, "n", Max(), "w").partition_by("w").partition_aggregate("w", Collect(), "all")
    dealt.parallelism_hint(4).partition_persist(DeltaState("come"))
    found = run_topology(topology, {"s": [[(n,) for n in range(1, 9)]]})
    assert [repr(row["w"]) for row in found["said"]] == ["3.0", "7.0", "11.0", "15.0"]
    # As Spark deals ints.
    assert sorted(row["all"] for row in found["come"]) == [[], [1, 3, 7, 8], [2, 4, 5], [6]]


def test_windows_are_checked_at_their_line() -> None:
    stream = TridentTopology("checked").new_stream("numbers", FixedBatches("n bigint", []))
    with pytest.raises(FieldError):
        stream.tumbling_window(3, "m", Count(), "count")
    with pytest.raises(PolicyError):
        stream.sliding_window(3, 4, "n", Count(), "count")
    with pytest.raises(PolicyError):
        stream.sliding_window(3, timedelta(seconds=1), "n", Count(), "count")
    with pytest.raises(FunctionError):
        stream.window(5, "n", Count(), "count")
    with pytest.raises(FieldError):
        stream.tumbling_window(3, "n", Count(), "count", timestamp="at")
