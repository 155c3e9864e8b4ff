"""Collect: all values of a field as one array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.aggregators.base import ColumnAggregator
from pipelines.aggregators.extremes import is_nan

if TYPE_CHECKING:
    from pyspark.sql import Column


class Collect(ColumnAggregator):
    """The non-null values of one field as an array, repeated ones too, in ascending order; empty if there are none.

    Sorted, because tuples have no order that survives a shuffle. The partial value holds every value: use it where
    groups are small.
    """

    def init(self, *values: Any) -> list[Any]:
        return [] if values[0] is None else [values[0]]

    def combine(self, a: list[Any], b: list[Any]) -> list[Any]:
        return a + b

    def zero(self) -> list[Any]:
        return []

    def finish(self, value: list[Any]) -> list[Any]:
        return sorted(value, key=lambda one: (is_nan(one), 0 if is_nan(one) else one))

    def partial(self, *inputs: Column) -> Column:
        from pyspark.sql import functions as F

        return F.collect_list(inputs[0])

    def fold(self, value: Column) -> Column:
        from pyspark.sql import functions as F

        return F.flatten(F.collect_list(value))

    def result(self, value: Column) -> Column:
        from pyspark.sql import functions as F

        return F.array_sort(value)

    def fold_sql(self, column: str) -> str:
        return f"flatten(array_agg({column}))"

    def result_sql(self, column: str) -> str:
        return f"coalesce(array_sort({self.fold_sql(column)}), make_array())"
