"""Average of a numeric field, exact over batches: the stored value is the pair of sum and count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pipelines import spark_functions as F
from pipelines.aggregators.base import ColumnAggregator, Total, plain_total
from pipelines.aggregators.exact import in_column, plus
from pipelines.aggregators.values import Mean
from pipelines.aggregators.window import EventAggregator, Types, numeric_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column


class Average(ColumnAggregator, EventAggregator):
    """Mean of the non-null values of one field, as double; null if there are none.

    A mean of means is wrong, so the partial value is `struct<sum, count bigint>`: sums of integers stay exact, and the
    division happens once, when the state is read.

    In an event flow `Average("v", "mean")`; the output is "avg" unless named, and of none it is 0.0 (Flowmix rules 5.2).
    """

    default_output: ClassVar[str] = "avg"
    numeric: ClassVar[bool] = True

    def accumulator(self) -> Mean:
        return Mean("Average", str(self.field))

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        numeric_type("Average", str(self.field), types)
        return [(self.named, "double")]

    def init(self, *values: Any) -> dict[str, Any]:
        return {"sum": values[0] or 0, "count": 0 if values[0] is None else 1}

    def combine(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        return {"sum": plus(a["sum"], b["sum"]), "count": a["count"] + b["count"]}

    def zero(self) -> dict[str, Any]:
        return {"sum": 0, "count": 0}

    def finish(self, value: dict[str, Any]) -> float | None:
        return None if not value["count"] else float(value["sum"]) / value["count"]

    def unrounded(self, *inputs: Column) -> Column:
        return F.struct(F.sum(inputs[0]).alias("sum"), F.count(inputs[0]).alias("count"))

    def in_column(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return the sum and count of a batch as Spark makes them for a topology."""
        return {**value, "sum": in_column(value["sum"])}

    def partial(self, *inputs: Column) -> Column:
        return F.struct(F.coalesce(F.sum(inputs[0]), F.lit(0)).alias("sum"), F.count(inputs[0]).alias("count"))

    def fold(self, value: Column) -> Column:
        return F.struct(F.sum(value["sum"]).alias("sum"), F.sum(value["count"]).alias("count"))

    def result(self, value: Column) -> Column:
        count = value["count"]
        return F.when(count > 0, value["sum"].cast("double") / count)

    def result_sql(self, column: str, total: Total = plain_total, kind: pa.DataType | None = None) -> str:
        added, count = total(f"{column}['sum']", "sum"), total(f"{column}['count']", "count")
        return f"CASE WHEN {count} > 0 THEN CAST({added} AS DOUBLE) / {count} END"

    def fold_sql(self, column: str, total: Total = plain_total, kind: pa.DataType | None = None) -> str:
        added, count = total(f"{column}['sum']", "sum"), total(f"{column}['count']", "count")
        return f"named_struct('sum', {added}, 'count', {count})"
