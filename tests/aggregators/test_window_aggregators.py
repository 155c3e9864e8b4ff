"""Flowmix rules 5.2: the aggregators over event windows."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.aggregators import (
    AssocCount,
    Average,
    Collect,
    Count,
    DistinctCount,
    FirstN,
    GroupCount,
    LastN,
    Max,
    Min,
    StdDev,
    Sum,
    WindowAggregator,
)
from pipelines.aggregators.exact import ExactSum, fits, fsum, shortened
from pipelines.aggregators.window import EventAggregator
from pipelines.errors import AggregationError, FunctionError
from pipelines.graph.nodes import Aggregation
from pipelines.windows.buffer import key_text
from pipelines.windows.tuples import TupleChain


def value(one: EventAggregator, added: list[Any], evicted: int = 0, field: str = "v") -> Any:
    """What it gives after these values of `v` came and the first `evicted` of them left."""
    at_work = one.accumulator()
    events = [item if isinstance(item, dict) else {field: item} for item in added]
    for event in events:
        at_work.added(event)
    for event in events[:evicted]:
        at_work.evicted(event)
    return at_work.aggregate()


def test_rule_8_average_test() -> None:
    assert value(Average("v"), [1, 10, -5], 1) == 2.5
    assert value(Average("v"), [33] * 4, 4) == 0.0


def test_rule_8_count_test() -> None:
    assert value(Count(field="v"), [33] * 4, 1) == 3
    assert value(Count(field="v"), [33] * 4, 4) == 0


def test_rule_8_sum_test() -> None:
    assert value(Sum("v"), [3, 1, 1, 1, 1], 1) == 4
    assert value(Sum("v"), [33] * 4, 4) == 0


def test_rule_5_2_items_without_the_field_are_passed_over() -> None:
    events = [{"w": 1}, {"v": 2}, {"w": 3}]
    assert value(Sum("v"), events, 1) == 2
    assert value(Count(field="v"), events) == 1
    assert value(Count(), events) == 3
    assert value(Min("v"), [{"w": 1}]) is None


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (Sum("v"), 4),
        (Average("v"), 2.0),
        (StdDev("v"), math.sqrt(2)),
        (Min("v"), 1),
        (Max("v"), 3),
        (DistinctCount("v"), 2),
        (AssocCount("v"), [{"v": 1, "assoc_count": 1}, {"v": 3, "assoc_count": 1}]),
        (GroupCount("v", "w"), [{"v": n, "w": "x", "group_count": 1} for n in (1, 3)]),
    ],
)
def test_a_null_among_several_values_is_absent(one: EventAggregator, expected: Any) -> None:
    events = [{"v": items, "w": ["x", None]} for items in ([7, None], [None], [1, None], [None, 3])]
    assert value(one, events, 2) == expected


@pytest.mark.parametrize("one", [Min("v"), DistinctCount("v"), AssocCount("v")])
def test_a_null_that_an_earlier_release_has_kept_is_absent(one: EventAggregator) -> None:
    kept = one.accumulator()
    kept.restore([None, 1] if isinstance(one, Min) else [[[None], 1], [[1], 1]])
    kept.evicted({"v": [None]})
    assert kept.aggregate() == (1 if not isinstance(one, AssocCount) else [{"v": 1, "assoc_count": 1}])


@pytest.mark.parametrize("one", [Sum("v"), Average("v"), StdDev("v")])
@pytest.mark.parametrize("wrong", ["12", True, b"1"])
def test_rule_5_2_wrong_type(one: EventAggregator, wrong: Any) -> None:
    with pytest.raises(AggregationError, match="Problem converting value") as caught:
        value(one, [wrong])
    assert (caught.value.field, caught.value.value, caught.value.type) == ("v", wrong, type(wrong).__name__)
    with pytest.raises(AggregationError):
        one.result_types({"v": "string"})


def test_default_outputs() -> None:
    made = [Count(), Sum("v"), Average("v"), Min("v"), Max("v"), DistinctCount("v"), FirstN(1, field="v")]
    made += [LastN(1, field="v"), Collect("v"), StdDev("v")]
    names = ["count", "sum", "avg", "min", "max", "distinct_count", "first", "last", "collected", "std_dev"]
    assert [one.named for one in made] == names
    assert AssocCount("v").result_fields == ("v", "assoc_count")
    assert GroupCount("v", "w", output="n").result_fields == ("v", "w", "n")


def test_types() -> None:
    types = {"n": "int", "x": "float", "d": "decimal(10,2)", "t": "array<string>", "u": None}
    assert Sum("n").result_types(types) == [("sum", "bigint")]
    assert Sum("x", "s").result_types(types) == [("s", "double")]
    assert Sum("d").result_types(types) == [("sum", "decimal(20, 2)")]
    assert Sum("u").result_types(types) == [("sum", None)]
    assert Max("t").result_types(types) == [("max", "string")]
    assert Collect("n").result_types(types) == [("collected", "array<int>")]
    assert AssocCount("t").result_types(types) == [("t", "string"), ("assoc_count", "bigint")]
    assert Sum("v").result_types({"v": " ARRAY<INT> "}) == [("sum", "bigint")]


def test_the_fields_of_a_struct_keep_their_capitals() -> None:
    """By another name Arrow would find no values."""
    types = {"v": "struct<Aa: bigint, b: string>", "w": "array<struct<Qq: int>>"}
    for one in (Min("v"), Max("v"), AssocCount("v")):
        assert one.result_types(types)[0][1] == types["v"]
    for one in (Collect("v"), FirstN(1, field="v"), LastN(1, "v")):
        assert one.result_types(types)[0][1] == f"array<{types['v']}>"
    assert Collect("w").result_types(types) == [("collected", types["w"])]
    assert GroupCount("v", "w").result_types(types)[:2] == [("v", types["v"]), ("w", "struct<Qq: int>")]


def test_several_values_of_a_field_all_count() -> None:
    assert value(Sum("v"), [[1, 2], 3, [10, 20]], 1) == 33
    assert value(Average("v"), [[1, 2], 3]) == 2.0
    assert value(Count(field="v"), [[1, 2], 3]) == 2
    assert value(Max("v"), [[9, 2], 3], 1) == 3
    assert value(DistinctCount("v"), [[1, 2], 2, [3]], 1) == 2


def test_assoc_and_group_count() -> None:
    assert value(AssocCount("v"), ["b", "a", "b", 1, True], 1) == [
        {"v": True, "assoc_count": 1},
        {"v": 1, "assoc_count": 1},
        {"v": "a", "assoc_count": 1},
        {"v": "b", "assoc_count": 1},
    ]
    events = [{"v": 1, "w": ["x", "y"]}, {"v": 1, "w": "x"}, {"v": 2}]
    assert value(GroupCount("v", "w", output="n"), events) == [
        {"v": 1, "w": "x", "n": 2},
        {"v": 1, "w": "y", "n": 1},
    ]


def test_first_and_last() -> None:
    events = [{"v": n, "w": w} for n, w in ((5, "a"), (1, "b"), (3, "c"), (1, "d"))]
    assert value(FirstN(2, field="w"), events) == ["a", "b"]
    assert value(FirstN(2, field="w"), events, 2) == ["c", "d"]
    assert value(FirstN(3, "v", field="w"), events) == ["b", "d", "c"]
    assert value(FirstN(2, "v", True), events) == [5, 3]
    assert value(LastN(2, field="w"), events) == ["c", "d"]
    assert value(LastN(2, "v", field="w"), events) == ["c", "a"]
    with pytest.raises(FunctionError):
        FirstN(2).check()
    with pytest.raises(FunctionError):
        LastN(0)


def test_of_several_values_of_a_sort_field_the_one_that_comes_first_counts() -> None:
    """A join gives a list of one value on Spark, and the value on other engines: both stand in one place."""
    events = [{"v": v, "w": w} for v, w in (([5, 1], "a"), ([2], "b"), (2, "c"), ([], "d"), (4, "e"))]
    assert value(FirstN(9, "v", field="w"), events) == ["a", "b", "c", "e", "d"]
    assert value(FirstN(9, "v", True, field="w"), events) == ["a", "e", "b", "c", "d"]


def test_std_dev() -> None:
    assert value(StdDev("v"), [2, 4, 4, 4, 5, 5, 7, 9]) == pytest.approx(2.13808993)
    assert value(StdDev("v"), [100, 1, 1.5], 1) == pytest.approx(0.35355339)
    assert value(StdDev("v"), [7]) == 0.0
    shifted = [1e9 + n for n in (4, 7, 13, 16)]
    assert value(StdDev("v"), [1e300, *shifted], 1) == pytest.approx(math.sqrt(30))


@given(
    st.lists(st.floats(allow_nan=True) | st.integers() | st.decimals(-99, 99, places=2), max_size=30),
    st.integers(0, 30),
)
def test_exact_sum_forgets_what_left(values: list[Any], gone: int) -> None:
    total, fresh = ExactSum(), ExactSum()
    for one in values:
        total.add(one)
    for one in values[:gone]:
        total.add(one, -1)
    for one in reversed(values[gone:]):
        fresh.add(one)
    again = ExactSum()
    again.restore(total.save())
    for one in (total, again):
        assert type(one.value) is type(fresh.value)
        assert one.value == fresh.value or one.value != one.value


def test_sums_by_type() -> None:
    assert value(Sum("v"), [0.1] * 10) == 1.0
    assert value(Sum("v"), [2**60, 2**60]) == 2**61
    assert value(Sum("v"), [Decimal("1.10"), 2]) == Decimal("3.10")
    assert math.isnan(value(Sum("v"), [math.inf, -math.inf]))
    assert value(Sum("v"), [math.inf, 1.0], 1) == 1.0


def test_huge_floats_leave_no_trace() -> None:
    huge = [1e308, 1e308]
    assert value(Sum("v"), huge) == math.inf
    assert value(Sum("v"), [*huge, 1.0, 2.0], 2) == 3.0
    assert value(Average("v"), [*huge, -1e308, -1e308]) == 0.0
    assert fsum([*huge, -math.inf]) == -math.inf
    assert fsum([-1e308, -1e308]) == -math.inf
    assert math.isnan(fsum([*huge, math.inf, -math.inf]))
    # Exact, and no longer with each value.
    parts = shortened([*huge, 1.0, *([0.1] * 1000), *huge])
    assert len(parts) < 8
    assert shortened([*parts, *(-each for each in 2 * huge)]) == shortened([1.0, *([0.1] * 1000)])


def test_a_sum_of_decimals_keeps_every_digit() -> None:
    long = Decimal("1234567890123456789012345678901234.5678")
    assert value(Sum("v"), [long]) == long
    assert value(Sum("v"), [Decimal("0.0001"), long], 1) == long
    assert value(Sum("v"), [10**33, Decimal("0.0001")]) == Decimal(f"{10**33}.0001")


@pytest.mark.parametrize("year", [1, 1600, 1970, 9000])
def test_times_a_microsecond_apart_are_different(year: int) -> None:
    times = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(microseconds=n) for n in range(3)]
    assert value(DistinctCount("v"), times) == 3
    assert (value(Min("v"), times), value(Max("v"), times)) == (times[0], times[2])


def test_intervals_are_in_order() -> None:
    lengths = [timedelta(2), timedelta(10), timedelta(-1)]
    assert (value(Min("v"), lengths), value(Max("v"), lengths)) == (timedelta(-1), timedelta(10))


def test_keys_of_times_keep_their_texts() -> None:
    texts = [key_text(((datetime(year, 12, 31, tzinfo=UTC),),)) for year in (1969, 9999)]
    assert texts == ["datetime with zone:-86400.0", "datetime with zone:253402214400.0"]
    near = datetime(2242, 1, 1, 0, 0, 0, 1, UTC)
    assert key_text(((near,),)) == f"datetime with zone:{near.timestamp()!r}"
    far = key_text(((datetime.max.replace(tzinfo=UTC),),))
    assert far == "datetime with zone:Fraction(253402300799999999, 1000000)"


class Last(WindowAggregator):
    outputs = "last string, n bigint"

    def __init__(self, start: int = 0) -> None:
        self.seen: list[str] = []
        self.n = start

    def added(self, event: Any) -> None:
        self.seen.append(event["v"])
        self.n += 1

    def evicted(self, event: Any) -> None:
        self.seen.remove(event["v"])

    def aggregate(self) -> Any:
        return {"last": self.seen[-1], "n": self.n} if self.seen else []


def test_own_aggregator() -> None:
    own = Last(5)
    assert own.result_fields == ("last", "n")
    assert value(own, ["a", "b"], 1) == [{"last": "b", "n": 7}]
    assert value(own, []) == []
    at_work = own.accumulator()
    at_work.added({"v": "x"})
    again = own.accumulator()
    again.restore(at_work.save())
    at_work.added({"v": "y"})
    assert again.aggregate() == [{"last": "x", "n": 6}]
    assert own.seen == []


def test_own_aggregator_errors() -> None:
    class NoEvicted(WindowAggregator):
        outputs = "x double"

        def added(self, event: Any) -> None: ...
        def aggregate(self) -> Any: ...

    class Opened(Last):
        def __init__(self) -> None:
            super().__init__()
            self.file = object()

    with pytest.raises(FunctionError, match="has no evicted"):
        NoEvicted().check()
    with pytest.raises(FunctionError, match="its file holds"):
        Opened().check()
    broken = Last()
    broken.aggregate = lambda: 5  # type: ignore[method-assign]
    with pytest.raises(FunctionError, match="for the outputs"):
        value(broken, ["a"])


def test_a_sum_of_another_class_is_compared_with_no_number() -> None:
    class Own:
        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

    assert fits(Own())
    assert fits(2**63 - 1)
    assert fits(-(2**63))
    assert not fits(2**63)
    assert not fits(-(2**63) - 1)


def test_a_sum_of_ones_own_in_a_chain_of_tuples_may_hold_what_it_likes() -> None:
    class Own(Sum):
        pass

    chain = TupleChain((Aggregation(Own(), ("v",), ("sum",), ("bigint",)),)).accumulator()
    chain.added({"v": 2**63})
    chain.check_total()
