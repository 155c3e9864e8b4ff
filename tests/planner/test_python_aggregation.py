"""Aggregators written in Python on Spark: partial values, one pass, zeros, chains, rows at any time."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.aggregators import Aggregator, Average, CombinerAggregator, Count, FirstN, ReducerAggregator, Sum
from pipelines.sources import FixedBatches
from pipelines.trident import Stream, TridentTopology
from tests.planner.plans import Run, frame_of, rows_of, source

pytestmark = pytest.mark.slow

SCHEMA = "k string, n bigint, x double"
ROWS = [("a", 1, 1.0), ("b", 2, float("nan")), ("a", 3, None), (None, 4, -0.0), (None, 5, 0.0), ("b", 6, float("nan"))]

TOTAL = CombinerAggregator(lambda n: n, lambda a, b: a + b, lambda: 0, returns="bigint")
JOINED = ReducerAggregator(lambda: "", lambda text, n: f"{text}{n}", returns="string")


class Early(Aggregator):
    """Emits each even number as it comes, and at the end the sum and how many there were."""

    returns = ["string", "bigint"]

    def init(self) -> list[int]:
        return []

    def aggregate(self, state: list[int], n: int) -> Iterator[tuple[str, int]]:
        state.append(n)
        if n % 2 == 0:
            yield "even", n

    def complete(self, state: list[int]) -> Iterator[tuple[str, int]]:
        yield "sum", sum(state)
        yield "count", len(state)


def stream() -> Stream:
    return TridentTopology("t").new_stream("s", FixedBatches(SCHEMA, []))


def given(spark: SparkSession, rows: list[tuple[Any, ...]] = ROWS, **more: Any) -> dict[str, Any]:
    # In two partitions of Spark's, so that partial values meet.
    return {"s": source(spark, SCHEMA, rows, **more).repartition(2)}


def test_grouped_kinds_on_spark(spark: SparkSession) -> None:
    grouped = stream().group_by("k")
    assert rows_of(grouped.aggregate("n", TOTAL, "t"), given(spark)) == [("a", 4), ("b", 8), (None, 9)]
    one = source(spark, SCHEMA, ROWS)
    assert rows_of(grouped.aggregate("n", JOINED, "t"), {"s": one}) == [("a", "13"), ("b", "26"), (None, "45")]
    found = rows_of(grouped.aggregate("n", Early(), ["what", "v"]), {"s": one})
    assert found == sorted(
        [
            *[
                ("a", "sum", 4),
                ("a", "count", 2),
                ("b", "even", 2),
                ("b", "even", 6),
                ("b", "sum", 8),
                ("b", "count", 2),
            ],
            *[(None, "even", 4), (None, "sum", 9), (None, "count", 2)],
        ],
        key=repr,
    )
    by_x = rows_of(stream().group_by("x").aggregate("n", TOTAL, "t"), given(spark))
    assert [(repr(x), t) for x, t in by_x] in (
        [("-0.0", 9), ("1.0", 1), ("None", 3), ("nan", 8)],
        [("0.0", 9), ("1.0", 1), ("None", 3), ("nan", 8)],
    ), "NaN is one group, and so is zero"


def test_chains_are_a_cross_product(spark: SparkSession) -> None:
    chain = stream().group_by("k").chained_agg().aggregate("n", Early(), ["what", "v"])
    mixed = chain.aggregate("n", TOTAL, "t").aggregate("n", Average(), "mean").aggregate(Count(), "c").chain_end()
    assert rows_of(mixed, given(spark, ROWS[:3])) == sorted(
        [
            *[("a", "sum", 4, 4, 2.0, 2), ("a", "count", 2, 4, 2.0, 2)],
            *[("b", "even", 2, 2, 2.0, 1), ("b", "sum", 2, 2, 2.0, 1), ("b", "count", 1, 2, 2.0, 1)],
        ],
        key=repr,
    )
    silent = Aggregator(lambda: None, lambda state, n: None, lambda state: None)
    nothing = stream().chained_agg().aggregate("n", silent, "v").aggregate("n", TOTAL, "t").chain_end()
    assert rows_of(nothing, given(spark)) == []
    both = stream().chained_agg().aggregate("n", TOTAL, "t").aggregate("n", Sum(), "s").chain_end()
    assert rows_of(both, given(spark)) == [(21, 21)], "combiners of both kinds meet as partial values"


@pytest.mark.parametrize("sliced", [False, True])
def test_an_empty_batch_gives_one_row(spark: SparkSession, sliced: bool) -> None:
    run = Run(slices=("one", "two")) if sliced else Run()
    frames = given(spark, [], slices=[]) if sliced else given(spark, [])
    empty = {"s": frames["s"].where("n > 5")}
    s = stream()
    rows = {
        "combiner": s.aggregate("n", TOTAL, "t"),
        "reducer": s.aggregate("n", JOINED, "t"),
        "aggregator": s.aggregate("n", Early(), ["what", "v"]),
        "chain": s.chained_agg().aggregate("n", TOTAL, "t").aggregate("n", Average(), "m").chain_end(),
    }
    wanted = {"combiner": [(0,)], "reducer": [("",)], "aggregator": [("count", 0), ("sum", 0)], "chain": [(0, None)]}
    for name, one in rows.items():
        expected = [(*row, slice_) for row in wanted[name] for slice_ in ("one", "two")] if sliced else wanted[name]
        assert rows_of(one, empty, run) == expected, name
    assert rows_of(s.group_by("k").aggregate("n", TOTAL, "t"), empty, run) == []


def test_slices_are_batches_of_their_own(spark: SparkSession) -> None:
    run = Run(slices=("x", "y", "z"))
    frames = {"s": source(spark, SCHEMA, ROWS, slices=["x", "y", "x", "y", "x", "y"])}
    assert rows_of(stream().aggregate("n", TOTAL, "t"), frames, run) == [(0, "z"), (12, "y"), (9, "x")]
    assert rows_of(stream().aggregate("n", JOINED, "t"), frames, run) == [("", "z"), ("135", "x"), ("246", "y")]
    batch = Aggregator(lambda batch: [batch], lambda state, n: None, lambda state: state, returns="string")
    assert rows_of(stream().aggregate("n", batch, "b"), frames, run) == [("x", "x"), ("y", "y"), ("z", "z")]
    txid = Aggregator(lambda batch: [batch], lambda state, n: None, lambda state: state, returns="bigint")
    assert rows_of(stream().aggregate("n", txid, "b"), given(spark), Run(txid=7)) == [(7,)]


def test_values_are_plain_python(spark: SparkSession) -> None:
    schema = (
        "t timestamp, d date, m decimal(10,2), s struct<a: int, t: timestamp>, l array<timestamp>, p map<string, int>"
    )
    at = datetime.datetime(2024, 3, 10, 2, 30)
    row = (at, at.date(), Decimal("1.50"), {"a": 1, "t": at}, [at, None], [("k", 1)])
    seen = ReducerAggregator(lambda: "", lambda text, *values: repr(values), returns="string")
    topology = TridentTopology("t").new_stream("s", FixedBatches(schema, []))
    frames = {"s": source(spark, schema, [row])}
    expected = repr((at, at.date(), Decimal("1.50"), {"a": 1, "t": at}, [at, None], {"k": 1}))
    assert rows_of(topology.aggregate(list("tdmslp"), seen, "out"), frames) == [(expected,)]
    back = ReducerAggregator(
        lambda: None, lambda _, t, s: {"t": t, "s": s}, returns="struct<t: timestamp, s: struct<a: int, t: timestamp>>"
    )
    found = frame_of(topology.group_by("t").aggregate(["t", "s"], back, "out"), frames)
    assert found.selectExpr("t = out.t and out.s.t = t and out.s.a = 1").collect() == [(True,)]


def test_first_n_and_functions_without_inputs(spark: SparkSession) -> None:
    one = {"s": source(spark, SCHEMA, ROWS)}
    found = rows_of(stream().aggregate(["n", "k"], FirstN(2, "n", reverse=True), ["n", "k"]), one)
    assert found == [(5, None), (6, "b")]
    ones = CombinerAggregator(lambda tuple_: 1, lambda a, b: a + b, lambda: 0)
    assert rows_of(stream().aggregate(ones, "c"), one) == [(6,)]


def test_over_kept_frames_it_does_not_wait(spark: SparkSession) -> None:
    """Arrow-optimised functions hang over columnar input (SPARK-58241); passes over Arrow batches do not."""
    kept = source(spark, SCHEMA, ROWS * 500).persist()
    try:
        assert kept.count() == 3000
        s = stream()
        both = s.group_by("k").aggregate("n", TOTAL, "t"), s.aggregate("n", JOINED, "t")
        assert len(rows_of(both[0], {"s": kept})) == 3
        assert len(rows_of(both[1], {"s": kept})[0][0]) == 3000
    finally:
        kept.unpersist()
