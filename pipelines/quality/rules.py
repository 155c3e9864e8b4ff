"""Row rules: expectations about rows as Spark Columns, with the answers that great-expectations gives.

Each function here returns the *expected* condition of one expectation, as the Spark provider of great-expectations 1.24
defines it (great_expectations/expectations/metrics/*_map_metrics). What is common to all (null values, `row_condition`,
`ignore_row_if`) is added in `compile_row_rule`. A condition that is null counts as not violated, as it does there.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipelines.bounds import shown
from pipelines.errors import FunctionError
from pipelines.graph.plain_values import in_utc
from pipelines.quality import patterns
from pipelines.quality.conditions import condition_column
from pipelines.quality.gate import Check
from pipelines.quality.literals import INTEGRAL, Frame, as_bound, as_whole, between, family, literal, literals

Expected = Callable[[Frame, Mapping[str, Any], str], Column]

_NULL_CHECKS = ("expect_column_values_to_not_be_null", "expect_column_values_to_be_null")
_UNIQUE = ("expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique")


@dataclass(frozen=True)
class RowRule:
    """A check about rows, compiled.

    Attributes:
        considered: the rows it speaks about (null: no), or None for all rows.
        expected: what must hold for them, or None for a rule of uniqueness.
        key: the columns whose combination must be unique, for a rule of uniqueness.
    """

    check: Check
    considered: Column | None
    expected: Column | None
    key: tuple[Column, ...] = ()

    def violated(self, within: Sequence[str] = ()) -> Column:
        """Return true for the rows that violate the rule; false or null for the others.

        Args:
            within: columns each combination of which is a batch of its own.
        """
        if self.expected is not None:
            return ~self.expected if self.considered is None else self.considered & ~self.expected
        # Counting inside the window instead of filtering before it keeps all rows, and the answer is the same:
        # a row that is not considered never adds to a count.
        window = Window.partitionBy(*[F.col(name) for name in within], *self.key)
        if self.considered is None:
            return F.count(F.lit(1)).over(window) > 1
        return self.considered & (F.count(F.when(self.considered, 1)).over(window) > 1)


def _instant(bound: Any) -> Any:
    """Return a day as its first moment in UTC, as Spark compares it with a time, and a time without a zone as one of UTC."""
    day = type(bound) is datetime.date
    return datetime.datetime.combine(bound, datetime.time(), datetime.UTC) if day else in_utc(bound)


def _between(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    field = kwargs["column"]
    low, high = as_bound(kwargs.get("min_value"), operation), as_bound(kwargs.get("max_value"), operation)
    if low is None and high is None:
        raise FunctionError(operation, "min_value and max_value cannot both be None")
    data_type = frame.type_of(field)
    least, most = (literal(bound, data_type, field, operation) for bound in (low, high))
    if low is not None and high is not None and _instant(low) > _instant(high):
        raise FunctionError(operation, f"min_value {low} is greater than max_value {high}")
    return between(frame.column(field), least, most, bool(kwargs.get("strict_min")), bool(kwargs.get("strict_max")))


def _in_set(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    field = kwargs["column"]
    return frame.column(field).isin(literals(kwargs["value_set"], frame.type_of(field), field, operation))


def _lengths_between(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    low, high = as_whole(kwargs.get("min_value"), operation), as_whole(kwargs.get("max_value"), operation)
    if low is None and high is None:
        raise FunctionError(operation, "min_value and max_value cannot both be None")
    length = F.length(patterns.text(frame, kwargs, operation))
    return between(length, low, high, bool(kwargs.get("strict_min")), bool(kwargs.get("strict_max")))


def _length_equals(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    bound = as_bound(kwargs["value"], operation)
    if not isinstance(bound, float):
        raise FunctionError(operation, f"{kwargs['value']!r} is not a number")
    return F.length(patterns.text(frame, kwargs, operation)) == F.lit(bound)


def _pair(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> tuple[Column, Column]:
    """Return both columns of a pair."""
    names = kwargs["column_A"], kwargs["column_B"]
    types = [frame.type_of(name) for name in names]
    if family(types[0]) != family(types[1]):
        shown = " and ".join(f"{name} ({kind.simpleString()})" for name, kind in zip(names, types, strict=True))
        raise FunctionError(operation, f"{shown} do not compare")
    return frame.column(names[0]), frame.column(names[1])


def _greater(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    left, right = _pair(frame, kwargs, operation)
    return (left >= right) | left.eqNullSafe(right) if kwargs.get("or_equal") else left > right


def _pair_equal(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    left, right = _pair(frame, kwargs, operation)
    return left.eqNullSafe(right)


def _pair_in_set(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    names = kwargs["column_A"], kwargs["column_B"]
    conditions = []
    pairs = kwargs["value_pairs_set"]
    if not isinstance(pairs, Iterable) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise FunctionError(operation, f"value_pairs_set is no list of pairs: {shown(pairs)}")
    for pair in pairs:
        values = [
            F.lit(literal(value, frame.type_of(name), name, operation)) for name, value in zip(names, pair, strict=True)
        ]
        conditions.append(frame.column(names[0]).eqNullSafe(values[0]) & frame.column(names[1]).eqNullSafe(values[1]))
    if not conditions:
        raise FunctionError(operation, "value_pairs_set is empty")
    return reduce(lambda left, right: left | right, conditions)


def _columns(kwargs: Mapping[str, Any], operation: str) -> list[str]:
    names = kwargs["column_list"]
    if isinstance(names, str) or len(names) < 2:
        raise FunctionError(operation, f"column_list must name at least 2 columns, not {names!r}")
    return list(names)


def _sum_equals(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    operands, total = [], as_bound(kwargs["sum_total"], operation)
    if not isinstance(total, float):
        raise FunctionError(operation, f"sum_total is not a number: {shown(kwargs['sum_total'])}")
    for name in _columns(kwargs, operation):
        if family(frame.type_of(name)) != "number":
            raise FunctionError(operation, f"{name} is {frame.type_of(name).simpleString()}, not a number")
        value = F.coalesce(frame.column(name), F.lit(0))
        # Two longs may overflow, which raises under ANSI mode.
        operands.append(value.cast(T.DecimalType(38, 0)) if isinstance(frame.type_of(name), INTEGRAL) else value)
    return reduce(lambda left, right: left + right, operands) == F.lit(total)


def _distinct_in_record(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    columns = [frame.column(name) for name in _columns(kwargs, operation)]
    equal = [left.eqNullSafe(right) for index, left in enumerate(columns) for right in columns[index + 1 :]]
    return ~reduce(lambda left, right: left | right, equal)


def _equal_in_record(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    first, *others = (frame.column(name) for name in _columns(kwargs, operation))
    return reduce(lambda left, right: left & right, [first.eqNullSafe(other) for other in others])


def _opposite(expected: Expected) -> Expected:
    return lambda frame, kwargs, operation: ~expected(frame, kwargs, operation)


_EXPECTED: dict[str, Expected] = {
    "column_values_to_not_be_null": lambda frame, kwargs, _: frame.column(kwargs["column"]).isNotNull(),
    "column_values_to_be_null": lambda frame, kwargs, _: frame.column(kwargs["column"]).isNull(),
    "column_values_to_be_between": _between,
    "column_values_to_be_in_set": _in_set,
    "column_values_to_not_be_in_set": _opposite(_in_set),
    "column_values_to_match_regex": patterns.regex,
    "column_values_to_not_match_regex": _opposite(patterns.regex),
    "column_values_to_match_regex_list": patterns.regex_list,
    "column_values_to_not_match_regex_list": patterns.no_regex_of_list,
    "column_values_to_match_like_pattern": patterns.like_pattern,
    "column_values_to_not_match_like_pattern": _opposite(patterns.like_pattern),
    "column_values_to_match_like_pattern_list": patterns.like_list,
    # No pattern at all may match, whatever `match_on` would say.
    "column_values_to_not_match_like_pattern_list": _opposite(patterns.like_list),
    "column_value_lengths_to_be_between": _lengths_between,
    "column_value_lengths_to_equal": _length_equals,
    "column_pair_values_a_to_be_greater_than_b": _greater,
    "column_pair_values_to_be_equal": _pair_equal,
    "column_pair_values_to_be_in_set": _pair_in_set,
    "multicolumn_sum_to_equal": _sum_equals,
    "multicolumn_values_to_be_equal": _equal_in_record,
    "select_column_values_to_be_unique_within_record": _distinct_in_record,
}


def _ignored(check: Check, frame: Frame) -> Column | None:
    """Return the rows that `ignore_row_if` leaves out.

    Source: sparkdf_execution_engine.py, `get_domain_records`.
    """
    ignore = check.kwargs.get("ignore_row_if")
    if check.type is not None and check.type.shape == "pair":
        names, words = [check.kwargs["column_A"], check.kwargs["column_B"]], ("both_values", "either_value", "neither")
    else:
        names, words = list(check.kwargs["column_list"]), ("all_values", "any_value", "never")
    ignore = f"{words[0]}_are_missing" if ignore is None else str(ignore)
    nulls = [frame.column(name).isNull() for name in names]
    if ignore == f"{words[0]}_are_missing":
        return reduce(lambda left, right: left & right, nulls)
    if re.fullmatch(rf"{words[1]}_(is|are)_missing", ignore):
        return reduce(lambda left, right: left | right, nulls)
    if ignore != words[2]:
        raise FunctionError(check.operation, f"unknown ignore_row_if {ignore!r}")
    return None


def compile_row_rule(check: Check, frame: Frame) -> RowRule:
    """Return a row-level check as Spark Columns."""
    operation = check.operation
    considered = condition_column(check.kwargs.get("row_condition"), frame)
    key: tuple[Column, ...] = ()
    if check.type is not None and check.type.shape != "map":
        ignored = _ignored(check, frame)
        if ignored is not None:
            considered = ~ignored if considered is None else considered & ~ignored
    elif check.expectation not in _NULL_CHECKS:
        present = frame.column(check.kwargs["column"]).isNotNull()
        considered = present if considered is None else considered & present
    if check.expectation in _UNIQUE:
        names = check.kwargs.get("column_list") or [check.kwargs["column"]]
        for name in names:
            frame.type_of(name)
        key = tuple(frame.column(name) for name in names)
        return RowRule(check, considered, None, key)
    expected = _EXPECTED[check.expectation.removeprefix("expect_")](frame, check.kwargs, operation)
    return RowRule(check, considered, expected)
