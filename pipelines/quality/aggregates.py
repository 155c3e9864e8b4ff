"""Whole-batch checks that need no great-expectations: one Spark aggregate each, or a look at the schema.

Source: great_expectations/expectations/metrics/column_aggregate_metrics and `_validate_metric_value_between`.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipelines.errors import FunctionError
from pipelines.quality.conditions import condition_column
from pipelines.quality.gate import Check
from pipelines.quality.literals import INTEGRAL, Frame, as_bound, as_whole, family, value_family
from pipelines.quality.results import CheckResult

_EPOCH = datetime.datetime(1970, 1, 1)

Evaluate = Callable[[Mapping[str, Any]], tuple[bool, Any]]


@dataclass(frozen=True)
class AggregateRule:
    """A whole-batch check, compiled.

    Attributes:
        columns: aggregate Columns by a short name.
        evaluate: success and observed value from the aggregates' values, by the same names.
        distinct: whether an aggregate is a distinct one, which `observe` does not take.
    """

    check: Check
    columns: Mapping[str, Column]
    evaluate: Evaluate
    distinct: bool = False


def in_range(value: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether `value` lies in the range that the expectation's arguments describe; an absent value never does.

    Source: great_expectations/expectations/expectation.py, `_validate_metric_value_between`.
    """
    if value is None:
        return False
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if isinstance(value, datetime.datetime) and not any(isinstance(b, datetime.datetime) for b in (low, high)):
        value = value.date() if any(isinstance(b, datetime.date) for b in (low, high)) else value
    above = low is None or (value > low if kwargs.get("strict_min") else value >= low)
    below = high is None or (value < high if kwargs.get("strict_max") else value <= high)
    return bool(above and below)


def plain(value: Any) -> Any:
    """Return an aggregate's value as great-expectations compares it: no decimals, no NaN."""
    if isinstance(value, decimal.Decimal):
        return float(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def _bounds(check: Check, *, whole: bool = False) -> dict[str, Any]:
    read, operation = (as_whole if whole else as_bound), check.operation
    bounds = {key: read(check.kwargs.get(key), operation) for key in ("min_value", "max_value")}
    return {**check.kwargs, **bounds}


def _statistic(
    function: Callable[[Column], Column], *, numeric: bool
) -> Callable[[Check, Frame], AggregateRule | None]:
    def build(check: Check, frame: Frame) -> AggregateRule | None:
        data_type = frame.type_of(check.kwargs["column"])
        kind, kwargs = family(data_type), _bounds(check)
        bounds = [kwargs[key] for key in ("min_value", "max_value") if kwargs[key] is not None]
        if kind != "number" and (numeric or kind != "time"):
            raise FunctionError(check.operation, f"{check.kwargs['column']} is {data_type.simpleString()}")
        if any(value_family(bound) != kind for bound in bounds):
            reason = f"{bounds} do not compare with {check.kwargs['column']}, which is {data_type.simpleString()}"
            raise FunctionError(check.operation, reason)
        # Dates against times, and zones: great-expectations has rules of its own for them.
        if kind == "time" and not _same_kind_of_time(data_type, bounds):
            return None
        column = _restricted(check, frame, frame.column(check.kwargs["column"]))
        # A sum of longs may overflow, which raises under ANSI mode; great-expectations sums them as double too.
        if check.expectation == "expect_column_sum_to_be_between" and isinstance(data_type, INTEGRAL):
            column = column.cast("double")
        # Collected, a time is in the zone of this host, and the bounds are in UTC.
        counted = isinstance(data_type, T.TimestampType)
        if counted:
            column = F.unix_micros(column)

        def evaluate(values: Mapping[str, Any]) -> tuple[bool, Any]:
            value = plain(values["value"])
            if counted and value is not None:
                value = _EPOCH + datetime.timedelta(microseconds=value)
            return in_range(value, kwargs), value

        return AggregateRule(check, {"value": function(column)}, evaluate)

    return build


def _same_kind_of_time(data_type: T.DataType, bounds: list[Any]) -> bool:
    wanted = datetime.date if isinstance(data_type, T.DateType) else datetime.datetime
    return all(type(bound) is wanted and getattr(bound, "tzinfo", None) is None for bound in bounds)


def _restricted(check: Check, frame: Frame, column: Column) -> Column:
    """Return `column` in the rows of the check's `row_condition`, null elsewhere (aggregates skip nulls)."""
    condition = condition_column(check.kwargs.get("row_condition"), frame)
    return column if condition is None else F.when(condition, column)


def _row_count(check: Check, frame: Frame) -> AggregateRule:
    if check.expectation == "expect_table_row_count_to_equal":
        wanted = as_whole(check.kwargs["value"], check.expectation)
        kwargs: Mapping[str, Any] = {"min_value": wanted, "max_value": wanted}
    else:
        kwargs = _bounds(check, whole=True)
    rows = F.count(_restricted(check, frame, F.lit(1)))
    return AggregateRule(check, {"value": rows}, lambda values: (in_range(values["value"], kwargs), values["value"]))


def _unique_count(check: Check, frame: Frame) -> AggregateRule:
    kwargs, column = _bounds(check, whole=True), _restricted(check, frame, frame.column(check.kwargs["column"]))
    frame.type_of(check.kwargs["column"])
    return AggregateRule(
        check,
        {"value": F.count_distinct(column)},
        lambda values: (in_range(values["value"], kwargs), values["value"]),
        distinct=True,
    )


def _share(check: Check, frame: Frame) -> AggregateRule:
    """Return the rule of a proportion: of distinct values among those present, or of those present among the rows."""
    kwargs, column = _bounds(check), _restricted(check, frame, frame.column(check.kwargs["column"]))
    frame.type_of(check.kwargs["column"])
    distinct, present = "unique" in check.expectation, F.count(column)
    columns = {
        "part": F.count_distinct(column) if distinct else present,
        "whole": present if distinct else F.count(_restricted(check, frame, F.lit(1))),
    }

    def evaluate(values: Mapping[str, Any]) -> tuple[bool, Any]:
        share = values["part"] / values["whole"] if values["whole"] else 0
        return in_range(share, kwargs), share

    return AggregateRule(check, columns, evaluate, distinct)


_RULES: dict[str, Callable[[Check, Frame], AggregateRule | None]] = {
    "expect_table_row_count_to_be_between": _row_count,
    "expect_table_row_count_to_equal": _row_count,
    "expect_column_min_to_be_between": _statistic(F.min, numeric=False),
    "expect_column_max_to_be_between": _statistic(F.max, numeric=False),
    "expect_column_mean_to_be_between": _statistic(F.mean, numeric=True),
    "expect_column_sum_to_be_between": _statistic(F.sum, numeric=True),
    "expect_column_stdev_to_be_between": _statistic(F.stddev_samp, numeric=True),
    "expect_column_unique_value_count_to_be_between": _unique_count,
    "expect_column_proportion_of_unique_values_to_be_between": _share,
    "expect_column_proportion_of_non_null_values_to_be_between": _share,
}


def compile_aggregate(check: Check, frame: Frame) -> AggregateRule | None:
    """Return a whole-batch check as aggregate Columns, or None when great-expectations must run it."""
    build = _RULES.get(check.expectation)
    return build(check, frame) if build else None


def check_schema(check: Check, schema: T.StructType, names: list[str]) -> CheckResult | None:
    """Return the result of a check that the schema alone decides, or None when it does not.

    Args:
        names: the columns that are the table's own, in order.
    """
    kwargs = check.kwargs
    success: bool
    observed: Any = len(names)
    match check.expectation:
        case "expect_column_values_to_be_of_type" | "expect_column_values_to_be_in_type_list":
            success, observed = _type_matches(check, schema)
        case "expect_table_column_count_to_equal":
            success = len(names) == kwargs["value"]
        case "expect_table_column_count_to_be_between":
            success = in_range(len(names), kwargs)
        case "expect_column_to_exist":
            index, observed = kwargs.get("column_index"), names
            success = kwargs["column"] in names and (index is None or names.index(kwargs["column"]) == index)
        case "expect_table_columns_to_match_ordered_list":
            wanted, observed = kwargs.get("column_list"), names
            success = wanted is None or names == list(wanted)
        case "expect_table_columns_to_match_set":
            members, observed = set(kwargs.get("column_set") or ()), names
            success = members == set(names) if kwargs.get("exact_match", True) else members <= set(names)
        case _:
            return None
    return CheckResult(check.name, check.expectation, check.action, success, observed=observed)


def _type_matches(check: Check, schema: T.StructType) -> tuple[bool, str]:
    actual = Frame(schema, "").type_of(check.kwargs["column"])
    wanted = check.kwargs.get("type_list") if "type_" not in check.kwargs else [check.kwargs["type_"]]
    if wanted is None:
        return True, type(actual).__name__
    known = [kind for kind in (getattr(T, str(name), None) for name in wanted) if isinstance(kind, type)]
    if not known:
        raise FunctionError(
            check.operation,
            f"{wanted!r} names no Spark type",
            hint="use the class names of pyspark.sql.types, such as StringType",
        )
    return isinstance(actual, tuple(known)), type(actual).__name__
