"""Aligned and session windows of topologies: per group or for all tasks, on each engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.errors import DuplicateFieldError, FunctionError, PolicyError, WindowError
from pipelines.sources import FixedBatches
from pipelines.testing import run_topology
from pipelines.trident import (
    Aggregator,
    AlignedDurationWindow,
    Average,
    Collect,
    Count,
    DeltaState,
    DistinctCount,
    Max,
    Min,
    ReducerAggregator,
    SessionDurationWindow,
    Sum,
    TridentTopology,
    TumblingCountWindow,
)
from pipelines.trident.aggregation import parse_aggregations
from pipelines.windows.event import Event
from pipelines.windows.tuples import TupleChain, output_types
from tests.tiers import tier

ENGINES = (
    "reference",
    pytest.param("stream", marks=pytest.mark.slow),
    pytest.param("bounded", marks=[pytest.mark.slow, pytest.mark.exhaustive]),
)
SECOND = timedelta(seconds=1)
members = Aggregator(
    init=list, aggregate=lambda state, n: state.append(n), complete=lambda state: [(",".join(map(str, state)),)],
    returns="string", output="members",
)  # fmt: skip
BATCHES = {
    "s": [
        [("a", 100, 1), ("b", 200, 2), ("a", 2999, 3)],
        [("a", 1500, 4), ("b", 4000, 5), ("a", 3000, 6)],
        [("a", 9000, 7), ("b", 30_000, 8)],
    ]
}


def start() -> Any:
    return TridentTopology("spans"), FixedBatches("k string, at bigint, n bigint", [])


def bounds(row: Any) -> tuple[float, float]:
    return tuple(row[name].replace(tzinfo=UTC).timestamp() for name in ("window_start", "window_end"))  # type: ignore[return-value]


@pytest.mark.parametrize("engine", ENGINES)
def test_windows_of_groups(spark: SparkSession, engine: Any) -> None:
    """Two windows of one topology, with aggregators of the engine and of the user; a tuple within the delay is not late."""
    topology, source = start()
    stream = topology.new_stream("s", source)
    groups = stream.group_by("k")
    hops = AlignedDurationWindow.of(3 * SECOND, 6 * SECOND)
    groups.window(
        hops, [Count("c"), Sum("n", "total"), Average("n", "mean")], timestamp="at", delay=2
    ).partition_persist(DeltaState("hops"))
    groups.window(
        SessionDurationWindow.of(2 * SECOND), "n", members, "members", timestamp="at", delay=2
    ).partition_persist(DeltaState("sessions"))
    found = run_topology(topology, BATCHES, engine, spark)
    # The latest time of all is 30 s, the clock 2 s behind.
    assert sorted((row["k"], *bounds(row), row["c"], row["total"], row["mean"]) for row in found["hops"]) == [
        ("a", -3, 3, 3, 8, 8 / 3), ("a", 0, 6, 4, 14, 3.5), ("a", 3, 9, 1, 6, 6.0), ("a", 6, 12, 1, 7, 7.0),
        ("a", 9, 15, 1, 7, 7.0),
        ("b", -3, 3, 1, 2, 2.0), ("b", 0, 6, 2, 7, 3.5), ("b", 3, 9, 1, 5, 5.0),
    ]  # fmt: skip
    assert sorted((row["k"], *bounds(row), row["members"]) for row in found["sessions"]) == [
        ("a", 0.1, 5, "1,4,3,6"), ("a", 9, 11, "7"), ("b", 0.2, 2.2, "2"), ("b", 4, 6, "5"),
    ]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_one_window_for_all_tasks(spark: SparkSession, engine: Any) -> None:
    """Without groups; what comes late, or has no time, goes to the late table and to no window."""
    topology, source = start()
    stream = topology.new_stream("s", source).partition_by("k")
    every = AlignedDurationWindow.of(3 * SECOND, offset=-SECOND)
    stream.window(every, "n", Sum(), "total", timestamp="at").parallelism_hint(2).partition_persist(DeltaState("sums"))
    found = run_topology(
        topology,
        {"s": [[("a", 100, 1), ("b", 5000, 2), ("c", None, 16)], [("a", 200, 4), ("b", 9000, 8)]]},
        engine,
        spark,
    )
    late = engine != "bounded"  # A bounded run knows all tuples.
    assert sorted((*bounds(row), row["total"]) for row in found["sums"]) == [(-1, 2, 1 if late else 5), (5, 8, 2)]
    assert sorted(row["n"] for row in found["late_spans_window1"]) == ([4, 16] if late else [16])


@pytest.mark.parametrize("engine", ["reference", pytest.param("bounded", marks=tier(False))])
def test_an_array_is_one_value(spark: SparkSession, engine: Any) -> None:
    """In an event flow it is several values of a field."""
    topology = TridentTopology("arrays")
    stream = topology.new_stream("s", FixedBatches("at bigint, tags array<string>, v array<bigint>", []))
    chain = [Collect("tags", "all"), Min("v", "least"), Max("v", "most"), DistinctCount("v", "several")]
    assert output_types(parse_aggregations("window", (chain,), stream), {"tags": "array<string>", "v": " ARRAY<INT>"}) == [
        ("all", "array<array<string>>"), ("least", "ARRAY<INT>"), ("most", "ARRAY<INT>"), ("several", "bigint"),
    ]  # fmt: skip
    stream.tumbling_window(2, chain).partition_persist(DeltaState("counted"))
    stream.window(AlignedDurationWindow.of(SECOND), chain, timestamp="at").partition_persist(DeltaState("timed"))
    found = run_topology(
        topology, {"s": [[(1, ["x", "y"], [2, 1]), (2, ["z"], [2])], [(9000, [], [7])]]}, engine, spark
    )
    made = {"all": [["x", "y"], ["z"]], "least": [2], "most": [2, 1], "several": 2}
    assert found["counted"] == [made]
    assert [{name: row[name] for name in made} for row in found["timed"]] == [made]


def test_times_of_arrival_decide_without_a_timestamp(spark: SparkSession) -> None:
    topology, source = start()
    topology.new_stream("s", source).group_by("k").window(
        AlignedDurationWindow.of(2 * SECOND), Count(), "c"
    ).partition_persist(DeltaState("counts"))
    found = run_topology(topology, {"s": [*BATCHES["s"], [], []]}, "reference", spark)
    assert sorted((row["k"], *bounds(row), row["c"]) for row in found["counts"]) == [
        ("a", 0, 2, 4), ("a", 2, 4, 1), ("b", 0, 2, 2), ("b", 2, 4, 1),
    ]  # fmt: skip


def test_a_chain_goes_on_from_what_it_saved() -> None:
    reducer = ReducerAggregator(lambda: 10, lambda value, n: value + n, returns="bigint")
    topology, source = start()
    given = [Count("c"), Sum("n", "total"), Average("n", "mean")]
    operation = AlignedDurationWindow.of(SECOND)
    stream = topology.new_stream("s", source)
    nodes = [stream.window(operation, *args).node for args in ((given,), ("n", reducer, "r"), ("n", members, "m"))]
    assert len(nodes) == 3
    for args, wanted in (
        ((given,), [{"c": 2, "total": 3, "mean": 1.5}]),
        (("n", reducer, "r"), [{"r": 13}]),
        (("n", members, "m"), [{"m": "1,2"}]),
    ):
        chain = TupleChain(parse_aggregations("window", args, stream))
        first, second = chain.accumulator(), chain.accumulator()
        first.added(Event({"n": 1}, "", 5, ""))
        second.restore(first.save())
        second.added(Event({"n": 2}, "", 6, ""))
        assert second.aggregate() == wanted


def test_refusals() -> None:
    topology, source = start()
    stream = topology.new_stream("s", source)
    with pytest.raises(FunctionError, match="not grouped"):
        stream.group_by("k").window(TumblingCountWindow.of(2), Count(), "c")
    with pytest.raises(PolicyError, match="whole seconds"):
        AlignedDurationWindow.of(timedelta(milliseconds=1500))
    with pytest.raises(PolicyError, match="whole seconds"):
        SessionDurationWindow.of(5)  # type: ignore[arg-type]
    with pytest.raises(WindowError, match="time zone"):
        stream.window(AlignedDurationWindow.of(timedelta(days=1), time_zone="Europe/Bärlin"), Count(), "c")
    with pytest.raises(DuplicateFieldError):
        stream.group_by("k").window(SessionDurationWindow.of(SECOND), Count(), "k")
    with pytest.raises(FunctionError, match="delay is a whole number from 0"):
        stream.window(SessionDurationWindow.of(SECOND), Count(), "c", timestamp="at", delay=10**16)
    assert bounds({name: datetime(1970, 1, 1, 0, 0, 1) for name in ("window_start", "window_end")}) == (1, 1)
