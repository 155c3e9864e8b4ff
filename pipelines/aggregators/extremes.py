"""Min and Max of a field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.aggregators.base import ColumnAggregator

if TYPE_CHECKING:
    from pyspark.sql import Column


def is_nan(value: Any) -> bool:
    """Whether a value is not a number. Python's `min` and `max` answer by chance then; Spark holds NaN the greatest."""
    return isinstance(value, float) and value != value


class Min(ColumnAggregator):
    """Least value of one field, of its type; nulls are left out, the least of none is null."""

    def init(self, *values: Any) -> Any:
        return values[0]

    def combine(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        if is_nan(a) or is_nan(b):
            return b if is_nan(a) else a
        return min(a, b)

    def zero(self) -> None:
        return None

    def partial(self, *inputs: Column) -> Column:
        return self.fold(inputs[0])

    def fold(self, value: Column) -> Column:
        from pyspark.sql import functions as F

        return F.min(value)

    def fold_sql(self, column: str) -> str:
        return f"min({column})"


class Max(Min):
    """Greatest value of one field, of its type; nulls are left out, the greatest of none is null."""

    def combine(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        if is_nan(a) or is_nan(b):
            return a if is_nan(a) else b
        return max(a, b)

    def fold(self, value: Column) -> Column:
        from pyspark.sql import functions as F

        return F.max(value)

    def fold_sql(self, column: str) -> str:
        return f"max({column})"
