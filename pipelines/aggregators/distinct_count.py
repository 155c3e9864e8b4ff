"""DistinctCount: how many different values a field has, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pipelines import spark_functions as F
from pipelines.aggregators.base import ColumnAggregator, Total, plain_total
from pipelines.aggregators.ordering import freeze
from pipelines.aggregators.values import Tally
from pipelines.aggregators.window import EventAggregator, Types

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column


class DistinctCount(ColumnAggregator, EventAggregator):
    """Number of different non-null values of one field, as bigint; 0 if there are none.

    The partial value is the array of the different values itself, so that batches can be folded: a key costs as much
    room as it has values.

    In an event flow `DistinctCount("v", "n")`; the output is "distinct_count" unless named. Exact.
    """

    default_output: ClassVar[str] = "distinct_count"

    def accumulator(self) -> Tally:
        return Tally((str(self.field),))

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        return [(self.named, "bigint")]

    def init(self, *values: Any) -> list[Any]:
        return [] if values[0] is None else [values[0]]

    def combine(self, a: list[Any], b: list[Any]) -> list[Any]:
        known = {freeze(value) for value in a}
        return a + [value for value in b if freeze(value) not in known]

    def zero(self) -> list[Any]:
        return []

    def finish(self, value: list[Any]) -> int:
        return len(value)

    def partial(self, *inputs: Column) -> Column:
        return F.collect_set(inputs[0])

    def fold(self, value: Column) -> Column:
        return F.array_distinct(F.flatten(F.collect_list(value)))

    def result(self, value: Column) -> Column:
        return F.size(value).cast("bigint")

    def fold_sql(self, column: str, total: Total = plain_total, kind: pa.DataType | None = None) -> str:
        return f"array_distinct(flatten(array_agg({column})))"

    def result_sql(self, column: str, total: Total = plain_total, kind: pa.DataType | None = None) -> str:
        # The length of an empty list is null in DataFusion.
        return f"CAST(coalesce(array_length({self.fold_sql(column)}), 0) AS BIGINT)"
