"""Trident rules 1.3: what the parts of an aggregator must satisfy, so that values may be cut and folded anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.aggregators import (
    BUILT_IN,
    Average,
    Collect,
    ColumnAggregator,
    CombinerAggregator,
    Count,
    DistinctCount,
    Max,
    Min,
    ReducerAggregator,
    Sum,
)

INTEGERS = st.none() | st.integers(-(2**40), 2**40)
DECIMALS = st.none() | st.decimals(-1000, 1000, places=2)
FLOATS = st.none() | st.floats(allow_nan=True, allow_infinity=True)

# What each gives of a list of values, said without its own parts.
DIRECT: dict[type[ColumnAggregator], Callable[[list[Any]], Any]] = {
    Count: len,
    Sum: lambda values: sum(v for v in values if v is not None),
    Min: lambda values: min((v for v in values if v is not None), default=None),
    Max: lambda values: max((v for v in values if v is not None), default=None),
    Average: lambda values: (
        float(sum(v for v in values if v is not None)) / sum(v is not None for v in values)
        if any(v is not None for v in values)
        else None
    ),
    DistinctCount: lambda values: len({v for v in values if v is not None}),
    Collect: lambda values: sorted(v for v in values if v is not None),
}


def partial(aggregator: CombinerAggregator, values: list[Any]) -> Any:
    """The value of some tuples, as a partition computes it: from `zero`, each tuple's `init` combined into it."""
    return reduce(lambda value, each: aggregator.combine(value, aggregator.init(each)), values, aggregator.zero())


@pytest.mark.parametrize("kind", BUILT_IN.values())
@given(parts=st.lists(st.lists(INTEGERS)) | st.lists(st.lists(DECIMALS)), data=st.data())
def test_partial_values_fold_to_the_direct_value(
    kind: type[ColumnAggregator], parts: list[list[Any]], data: st.DataObject
) -> None:
    aggregator = kind()
    partials = data.draw(st.permutations([partial(aggregator, part) for part in parts]))
    folded = reduce(aggregator.combine, partials, aggregator.zero())
    assert aggregator.finish(folded) == DIRECT[kind]([value for part in parts for value in part])


@pytest.mark.parametrize("kind", [Min, Max])
@given(values=st.lists(FLOATS, min_size=1), data=st.data())
def test_the_extremes_of_floats_do_not_depend_on_the_order(
    kind: type[ColumnAggregator], values: list[Any], data: st.DataObject
) -> None:
    aggregator = kind()
    one, other = (partial(aggregator, data.draw(st.permutations(values))) for _ in range(2))
    assert one == other or (math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize("kind", BUILT_IN.values())
@given(values=st.lists(INTEGERS))
def test_zero_changes_nothing(kind: type[ColumnAggregator], values: list[Any]) -> None:
    aggregator = kind()
    value = partial(aggregator, values)
    assert aggregator.combine(value, aggregator.zero()) == value == aggregator.combine(aggregator.zero(), value)


@pytest.mark.parametrize(
    ("aggregator", "zero"),
    [(Count(), 0), (Sum(), 0), (Min(), None), (Max(), None), (Average(), None), (DistinctCount(), 0), (Collect(), [])],
)
def test_rule_1_3_the_value_of_nothing(aggregator: ColumnAggregator, zero: Any) -> None:
    assert aggregator.finish(aggregator.zero()) == zero


def test_nan_is_the_greatest_as_in_spark() -> None:
    assert math.isnan(partial(Max(), [1.0, math.nan, math.inf]))
    assert partial(Min(), [math.nan, 1.0]) == 1.0
    assert partial(Min(), [1.0, math.nan]) == 1.0
    assert math.isnan(partial(Min(), [math.nan, None]))


def test_average_is_not_a_mean_of_means() -> None:
    average = Average()
    folded = average.combine(partial(average, [1, 2, 3]), partial(average, [10]))
    assert average.finish(folded) == 4.0


def test_sums_of_decimals_stay_exact() -> None:
    assert partial(Sum(), [Decimal("0.10")] * 3) == Decimal("0.30")


def test_extremes_of_strings() -> None:
    assert (partial(Min(), ["b", None, "a"]), partial(Max(), ["b", None, "a"])) == ("a", "b")


def test_a_combiner_of_ones_own() -> None:
    longest = CombinerAggregator(init=len, combine=max, zero=lambda: 0, returns="int")
    assert partial(longest, ["a", "abc", "ab"]) == 3
    assert (longest.finish(3), longest.returns) == (3, "int")


def test_rule_1_3_a_reducer_of_nothing_is_its_init() -> None:
    reducer = ReducerAggregator(init=lambda: 10, reduce=lambda value, n: value - n)
    assert reduce(reducer.reduce, list[int](), reducer.init()) == 10
    assert reduce(reducer.reduce, [1, 2], reducer.init()) == 7


def test_equal_aggregators_are_equal() -> None:
    assert Sum("x", "sum_x") == Sum("x", "sum_x") != Sum("y", "sum_x")
    assert Sum("x") != Min("x")
    assert len({Sum("x"), Sum("x"), Count("n")}) == 2
    assert repr(Sum("x", "sum_x")) == "Sum('x', 'sum_x')"


def test_a_state_table_can_name_every_built_in() -> None:
    assert {name: kind().finish(kind().zero()) for name, kind in BUILT_IN.items()} == {
        "Count": 0,
        "Sum": 0,
        "Min": None,
        "Max": None,
        "Average": None,
        "DistinctCount": 0,
        "Collect": [],
    }
