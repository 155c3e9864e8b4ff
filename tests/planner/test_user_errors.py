"""Errors of a user's Python code on Spark name the step, the user's line and the row, in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipelines.aggregators import Aggregator, CombinerAggregator, ReducerAggregator
from pipelines.errors import FunctionError
from pipelines.execution.protocol.failures import reason_of
from pipelines.sources import FixedBatches
from pipelines.state.views import StateView
from pipelines.testing import run_topology
from pipelines.trident import (
    ArrowFunction,
    DeltaState,
    FixedState,
    MapGet,
    Max,
    RowFunction,
    Split,
    Stream,
    Sum,
    TridentTopology,
)
from pipelines.trident.user_code import MultiReducer, QueryFunction, StateUpdater
from tests.planner.plans import Run, frame_of, source

SCHEMA = "k string, n bigint"
ROWS = [("a", 1), ("b", 0), ("c", 3)]


def fails_on_0(n: int) -> int:
    return 1 // n


def yields_on_0(n: int) -> Iterator[int]:
    yield 1 // n


def halves(values: Any) -> Any:
    import pyarrow.compute as pc

    return pc.divide(6, values)


class Updater(StateUpdater):
    keys, values = "k string", "n bigint"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> None:
        state.multi_put([(k,) for k, _ in tuples], [1 // n for _, n in tuples])


class Query(QueryFunction):
    def __init__(self, short: bool) -> None:
        self.short = short

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return arguments[1:] if self.short else arguments

    def execute(self, arguments: tuple[Any, ...], result: Any) -> list[int]:
        return [1 // arguments[0]]


ADD: Any = lambda a, b: a + b  # noqa: E731
ZERO: Any = lambda: 0  # noqa: E731
CASES: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "row function": (lambda s: s.each("n", RowFunction(fails_on_0, ("bigint",)), "d"), "failed on (0,)"),
    "generator": (lambda s: s.each("n", yields_on_0, "d bigint"), "failed on (0,)"),
    "filter": (lambda s: s.filter("n", RowFunction(fails_on_0)), "failed on (0,)"),
    "map": (lambda s: s.map(RowFunction(lambda k, n: (k, 1 // n), ("string", "bigint"))), "failed on ('b', 0)"),
    "wrong width": (
        lambda s: s.each("n", RowFunction(lambda n: (1, 2) if n else (1,), ("int", "int")), ["d", "e"]),
        "it gave 1 value(s) for 2 field(s): (1,)",
    ),
    "peek": (lambda s: s.peek(lambda row: 1 // row["n"]), "failed on ('b', 0)"),
    "arrow function": (lambda s: s.each("n", ArrowFunction(halves, ("bigint",)), "d"), "failed on (0,)"),
    "arrow length": (lambda s: s.each("n", ArrowFunction(lambda n: n[1:], ("bigint",)), "d"), "array(s) of the length"),
    "combiner init": (lambda s: s.aggregate("n", CombinerAggregator(fails_on_0, ADD, ZERO), "d"), "failed on (0,)"),
    "combiner combine": (
        lambda s: s.aggregate("n", CombinerAggregator(lambda n: n, lambda a, b: 1 // b, ZERO), "d"),
        "failed on (0,)",
    ),
    "reducer": (
        lambda s: s.group_by("k").aggregate("n", ReducerAggregator(ZERO, lambda now, n: 1 // n), "d"),
        "failed on (0,)",
    ),
    "reducer type": (
        lambda s: s.group_by("k").aggregate("n", ReducerAggregator(ZERO, lambda now, n: "x" if n == 0 else n), "d"),
        "gave ('x',), which does not fit its output fields",
    ),
    "aggregator": (
        lambda s: s.aggregate("n", Aggregator(list, lambda state, n: 1 // n, lambda state: state), "d"),
        "failed on (0,)",
    ),
    "aggregator complete": (
        lambda s: s.group_by("k").aggregate("n", Aggregator(list, lambda st, n: [n], lambda st: 1 // st[0]), "d"),
        "failed at the end of the group ('b',)",
    ),
    "comparator": (lambda s: s.min_by("n", lambda a, b: a // (b and a) - 1), "failed on"),
    "multi-reducer": (
        lambda s: s._topology.multi_reduce(
            [s, s], ["n", "k"], MultiReducer(list, lambda state, side, v: 1 // v, list), "d bigint"
        ),
        "failed on (0,)",
    ),
    "updater": (
        lambda s: Stream(s._topology, s.partition_persist(DeltaState("u"), updater=Updater()).node),
        "failed on 3 tuples, the first ('a', 1)",
    ),
    "query": (lambda s: s.state_query(fixed(s), "n", Query(False), "d bigint"), "failed on (0,)"),
    "query length": (
        lambda s: s.state_query(fixed(s), "n", Query(True), "d bigint"),
        "Results size is different than argument size: 2 vs 3",
    ),
    "partition": (
        lambda s: s.partition(RowFunction(lambda k, n: 1 // n)).filter("true").parallelism_hint(2).min_by("n"),
        "failed on ('b', 0)",
    ),
}


UNFIT: dict[str, Callable[[Stream], Stream]] = {
    "no inputs": lambda s: s.each(Split(), "word"),
    "a map over other fields": lambda s: s.map(lambda k: k, "k"),
    "a condition as Python's": lambda s: s.filter(["k", "n"], lambda k, n: k == "a" and n > 1),
    "a partition": lambda s: s.partition(lambda k: k).filter("true").parallelism_hint(2).min_by("n"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_function_of_columns_that_fails_names_its_line(spark: SparkSession, name: str) -> None:
    stream = TridentTopology("t").new_stream("s", FixedBatches("k string, n bigint", []))
    with pytest.raises(FunctionError, match=r"at .*test_user_errors.py:\d+: it failed on \d column"):
        frame_of(UNFIT[name](stream), {"s": source(spark, "k string, n bigint", [("a", 1)])})


TYPED: dict[str, Callable[[Stream], Stream]] = {
    "a function": lambda s: s.each("n", lambda n: n + 1, "x int"),
    "the second of two": lambda s: s.each("n", lambda n: (n, n), "y bigint, x int"),
    "a map": lambda s: s.map(lambda k, n: n, "x int"),
    "a generator": lambda s: s.flat_map(lambda k, n: F.explode(F.array(n)), "x int"),
    "an aggregate": lambda s: s.each("n", lambda n: n, "m").aggregate("m", Max(), "x int"),
    "an aggregate beside Python": lambda s: (
        s.each("n", lambda n: n, "m")
        .chained_agg()
        .aggregate("m", Sum(), "x int")
        .aggregate("n", ReducerAggregator(lambda: 0, max), "y")
        .chain_end()
    ),
    "a state": lambda s: s.state_query(fixed(s), "k", MapGet(), "x bigint"),
}


@pytest.mark.parametrize("name", TYPED)
def test_a_type_that_only_spark_knows_to_be_another_is_refused_before_the_start(spark: SparkSession, name: str) -> None:
    stream = TYPED[name](TridentTopology("t").new_stream("s", FixedBatches(SCHEMA, [])))
    come, got = ("int", "bigint") if name == "a state" else ("bigint", "int")
    message = rf'at .*test_user_errors.py:\d+: .*: gives "x {come}"; got "x {got}"'
    with pytest.raises(FunctionError, match=message):
        frame_of(stream, {"s": source(spark, SCHEMA, ROWS)})
    run = Run()
    run.checked = True  # type: ignore[attr-defined]
    # Once: a batch costs no calls to the JVM for it.
    assert "x" in frame_of(stream, {"s": source(spark, SCHEMA, ROWS)}, run).columns
    stream.partition_persist(DeltaState("out"))
    with pytest.raises(FunctionError, match=message):
        run_topology(stream._topology, {"s": [ROWS]}, "reference", spark)


def test_a_type_that_spark_finds_too_is_taken(spark: SparkSession) -> None:
    s = TridentTopology("t").new_stream("s", FixedBatches(SCHEMA, []))
    told = s.each("n", lambda n: F.array(F.struct(n)), "x array<struct<n: BIGINT>>").each(
        "n", lambda n: n / 2, "y double"
    )
    assert frame_of(told, {"s": source(spark, SCHEMA, ROWS)}).columns == ["k", "n", "x", "y"]


def fixed(stream: Stream) -> Any:
    return stream._topology.new_static_state(FixedState("f", "k string, v int", "k", [("a", 1)]))


class NoState:
    def exists(self) -> bool:
        return False

    def view(self, version: int | None) -> StateView:
        raise AssertionError(version)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_error_names_step_line_and_row(spark: SparkSession, name: str) -> None:
    build, expected = CASES[name]
    stream = build(TridentTopology("t").new_stream("s", FixedBatches(SCHEMA, [])))
    frame = frame_of(stream, {"s": source(spark, SCHEMA, ROWS).coalesce(1)}, Run(u=(NoState(), None)))
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    reason = reason_of(caught.value)
    assert expected in reason
    assert f"(defined at {__file__}:" in reason
    label = reason.split(" (defined at")[0]
    assert label in [node.label for node in stream._topology.graph]
    assert "\n" not in reason
