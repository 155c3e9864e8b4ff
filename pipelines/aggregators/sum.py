"""Sum of a numeric field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.aggregators.base import ColumnAggregator

if TYPE_CHECKING:
    from pyspark.sql import Column


class Sum(ColumnAggregator):
    """Sum of one field: bigint for integers, double or decimal otherwise. Nulls add nothing; a sum of none is 0."""

    def init(self, *values: Any) -> Any:
        return 0 if values[0] is None else values[0]

    def combine(self, a: Any, b: Any) -> Any:
        return a + b

    def zero(self) -> int:
        return 0

    def partial(self, *inputs: Column) -> Column:
        from pyspark.sql import functions as F

        return F.coalesce(F.sum(inputs[0]), F.lit(0))

    def fold(self, value: Column) -> Column:
        from pyspark.sql import functions as F

        return F.sum(value)

    def fold_sql(self, column: str) -> str:
        return f"sum({column})"
