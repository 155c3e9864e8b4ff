"""Values of several types of one sort that meet: the plain interpreter brings them together as Spark does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.aggregators.ordering import freeze
from pipelines.planner.plain.meeting import common_of
from pipelines.sources import FixedBatches
from pipelines.spark.arrow_frame import plain_dicts, to_arrow
from pipelines.testing import query_topology, run_topology
from pipelines.trident import (
    OUTER,
    Count,
    DeltaState,
    Equals,
    FixedState,
    MapGet,
    MultiReducer,
    ReducerAggregator,
    Stream,
    Sum,
    TridentTopology,
    mixed,
)
from tests.planner.plans import frame_of, rows_of, source

FIRST, NOON, SECOND = datetime(2024, 1, 1), datetime(2024, 1, 1, 12), datetime(2024, 1, 2)
SCHEMA = "day date, at timestamp, price decimal(10,2), cost double, n int, f float, m decimal(12,4), x int"
ROWS: list[tuple[Any, ...]] = [
    (FIRST.date(), FIRST, Decimal("0.10"), 0.1, 1, 1.0, Decimal(1), 1),
    (SECOND.date(), NOON, Decimal("7.25"), 7.0, 3, 2.5, Decimal("3.5"), 3),
    (None,) * 8,
]
DAYS, PRICES, NUMBERS, DECIMALS = ("day", "at"), ("price", "cost"), ("n", "f"), ("n", "m")
RIGHT = mixed(OUTER, "inner")

Meet = Callable[[Stream, Stream], Stream]


def join(pair: tuple[str, str], **kind: Any) -> Meet:
    """Join the first stream's field with the second one's; `x` is the second one's `n`."""
    a, b = pair

    def meet(left: Stream, right: Stream) -> Stream:
        return left._topology.join(left.project(a), a, right.project([b, "x"]), b, ["k", "x"], **kind)

    return meet


def merge(pair: tuple[str, str]) -> Meet:
    """Count the merged fields' values."""
    a, b = pair
    return lambda left, right: (
        left._topology.merge(left.project(a), right.project(b), outputs="k").group_by("k").aggregate(Count(), "c")
    )


def reduce(pair: tuple[str, str]) -> Meet:
    """Count the tuples of each group."""
    counted = MultiReducer(lambda group: 0, lambda n, *_: n + 1, lambda n, group: n, returns="bigint")
    return lambda left, right: left._topology.multi_reduce(
        [left.group_by(pair[0]), right.group_by(pair[1])], [["n"], ["n"]], counted, "c"
    )


def equal(pair: tuple[str, str]) -> Meet:
    return lambda left, _: left.filter(list(pair), Equals()).project("n")


def query(held: str, asked: str, key: Any) -> Meet:
    def meet(left: Stream, _: Stream) -> Stream:
        state = left._topology.new_static_state(FixedState("held", f"k {held}, x int", "k", [(key, 9)]))
        return left.state_query(state, asked, MapGet(), "y").project(["n", "y"])

    return meet


FOUND = [(1, 9), (3, None), (None, None)]
MEETINGS: dict[str, tuple[Meet, list[tuple[Any, ...]]]] = {
    "join, days": (join(DAYS), [(FIRST.date(), 1), (None, None)]),
    "right join, days": (join(DAYS, kind=RIGHT), [(FIRST, 1), (NOON, 3), (None, None)]),
    "full join, days": (join(DAYS, kind=OUTER), [(FIRST, 1), (NOON, 3), (SECOND, None), (None, None)]),
    "join, prices": (join(PRICES), [(Decimal("0.1"), 1), (None, None)]),
    "right join, prices": (join(PRICES, kind=RIGHT), [(0.1, 1), (7.0, 3), (None, None)]),
    "full join, prices": (join(PRICES, kind=OUTER), [(0.1, 1), (7.0, 3), (7.25, None), (None, None)]),
    "join, numbers": (join(NUMBERS), [(1, 1), (None, None)]),
    "full join, numbers": (join(NUMBERS, kind=OUTER), [(1.0, 1), (2.5, 3), (3.0, None), (None, None)]),
    "right join, decimals": (join(DECIMALS, kind=RIGHT), [(Decimal(1), 1), (Decimal("3.5"), 3), (None, None)]),
    "merge, days": (merge(DAYS), [(FIRST, 2), (NOON, 1), (SECOND, 1), (None, 2)]),
    "merge, prices": (merge(PRICES), [(0.1, 2), (7.0, 1), (7.25, 1), (None, 2)]),
    "merge, numbers": (merge(NUMBERS), [(1.0, 2), (2.5, 1), (3.0, 1), (None, 2)]),
    "merge, decimals": (merge(DECIMALS), [(Decimal(1), 2), (Decimal(3), 1), (Decimal("3.5"), 1), (None, 2)]),
    "reduce, days": (reduce(DAYS), [(1,), (1,), (2,), (2,)]),
    "reduce, prices": (reduce(PRICES), [(1,), (1,), (2,), (2,)]),
    "filter, days": (equal(DAYS), [(1,), (None,)]),
    "filter, prices": (equal(PRICES), [(1,), (None,)]),
    "query of days": (query("date", "at", FIRST.date()), FOUND),
    "query of times": (query("timestamp", "day", FIRST), FOUND),
    "query of doubles": (query("double", "price", 0.1), FOUND),
    "query of decimals": (query("decimal(5,1)", "cost", Decimal("0.1")), FOUND),
    "query of numbers": (query("int", "f", 1), FOUND),
}  # fmt: skip


def met(case: str) -> Stream:
    topology = TridentTopology("t")
    return MEETINGS[case][0](*(topology.new_stream(name, FixedBatches(SCHEMA, [])) for name in ("left", "right")))


def shown(rows: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[str]:
    """Rows as texts in order; 0.10 is 0.1, but no float is a decimal."""
    tuples = (tuple(row.values()) if isinstance(row, Mapping) else row for row in rows)
    return sorted(repr([v.normalize() if isinstance(v, Decimal) else v for v in row]) for row in tuples)


@pytest.mark.parametrize("case", MEETINGS)
def test_meetings(case: str) -> None:
    stream = met(case)
    stream.partition_persist(DeltaState("out"))
    found = run_topology(stream._topology, {"left": [ROWS], "right": [ROWS]})["out"]
    assert shown(found) == shown(MEETINGS[case][1])


@pytest.mark.slow
def test_meetings_on_spark(spark: SparkSession) -> None:
    frame = source(spark, SCHEMA, ROWS)
    for case, (_, wanted) in MEETINGS.items():
        found = frame_of(met(case), {"left": frame, "right": frame})
        assert shown(plain_dicts(to_arrow(found))) == shown(wanted), case


@pytest.mark.parametrize(
    ("held", "asked", "keys"),
    [
        ("date", "timestamp", (FIRST.date(), FIRST, NOON)),
        ("double", "decimal(5,1)", (0.1, Decimal("0.1"), Decimal("0.2"))),
    ],
)
def test_an_own_state_is_asked_in_its_keys_type(held: str, asked: str, keys: tuple[Any, Any, Any]) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatches(f"k {held}", []))
    counts = stream.group_by("k").persistent_aggregate(DeltaState("counts"), Count(), "n")
    topology.new_query_stream("q", f"k {asked}").state_query(counts, "k", MapGet(), "n")
    answer = query_topology(topology, {"s": [[(keys[0],)]]}, "q", [(key,) for key in (*keys[1:], None)])
    assert [row["n"] for row in answer] == [1, None, None]


NUMBER_KINDS = [
    "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(5,1)", "decimal(10,2)", "decimal(12,0)",
    "decimal(38,2)", "decimal(38,20)",
]  # fmt: skip
TIME_KINDS = ["date", "timestamp", "timestamp_ntz"]


def test_the_common_type_is_sparks(spark: SparkSession) -> None:
    pairs = [*product(NUMBER_KINDS, NUMBER_KINDS), *product(TIME_KINDS, TIME_KINDS)]
    casts = ", ".join(f"coalesce(cast(null AS {a}), cast(null AS {b})) AS c{at}" for at, (a, b) in enumerate(pairs))
    kinds = [field.dataType.simpleString() for field in spark.sql(f"SELECT {casts}").schema]
    assert {pair: common_of(pair) for pair in pairs} == dict(zip(pairs, kinds, strict=True))


MAPS: list[tuple[Any, ...]] = [({"a": 1, "b": 2}, 1), ({"b": 2, "a": 1}, 5), ({"a": 2, "b": 1}, 3)]
TOTAL = ReducerAggregator(lambda: 0, lambda total, n: total + n, returns="bigint")


def by_map(aggregator: Any) -> Stream:
    stream = TridentTopology("t").new_stream("s", FixedBatches("m map<string,int>, n bigint", []))
    return stream.group_by("m").aggregate("n", aggregator, "t").project("t")


def test_maps_are_one_key_in_any_order_of_their_entries() -> None:
    for aggregator in (Sum(), TOTAL):
        stream = by_map(aggregator)
        stream.partition_persist(DeltaState("out"))
        assert run_topology(stream._topology, {"s": [MAPS]})["out"] == [{"t": 3}, {"t": 6}]
    nan = float("nan")
    assert freeze({1.0: [nan], nan: 2}) == freeze({float("nan"): 2, 1.0: [nan]})


def test_maps_are_one_key_on_spark(spark: SparkSession) -> None:
    frames = {"s": source(spark, "m map<string,int>, n bigint", MAPS)}
    for aggregator in (Sum(), TOTAL):
        assert rows_of(by_map(aggregator), frames) == [(3,), (6,)]
