"""Collect: all values of a field as one array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines import spark_functions as F
from pipelines.aggregators.base import ColumnAggregator, Total, plain_total
from pipelines.aggregators.ordering import spark_key, values_of
from pipelines.aggregators.values import KeptEntries
from pipelines.aggregators.window import EventAggregator, Types, element_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column


class Collect(ColumnAggregator, EventAggregator):
    """The non-null values of one field as an array, repeated ones too, in ascending order; empty if there are none.

    Sorted, because tuples have no order that survives a shuffle. The partial value holds every value: use it where
    groups are small.

    In an event flow `Collect("v", "values")`, in the order in which the events came; the output is "collected" unless
    named.
    """

    default_output: ClassVar[str] = "collected"

    def accumulator(self) -> _CollectedValues:
        return _CollectedValues(str(self.field))

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        kind = element_type(types.get(str(self.field)))
        return [(self.named, kind and f"array<{kind}>")]

    def init(self, *values: Any) -> list[Any]:
        return [] if values[0] is None else [values[0]]

    def combine(self, a: list[Any], b: list[Any]) -> list[Any]:
        return a + b

    def zero(self) -> list[Any]:
        return []

    def finish(self, value: list[Any]) -> list[Any]:
        return sorted(value, key=spark_key)

    def partial(self, *inputs: Column) -> Column:
        return F.collect_list(inputs[0])

    def fold(self, value: Column) -> Column:
        return F.flatten(F.collect_list(value))

    def result(self, value: Column) -> Column:
        return F.array_sort(value)

    def fold_sql(self, column: str, total: Total = plain_total, kind: pa.DataType | None = None) -> str:
        return f"flatten(array_agg({column}))"

    def result_sql(self, column: str, total: Total = plain_total, kind: pa.DataType | None = None) -> str:
        return f"coalesce(array_sort({self.fold_sql(column)}), make_array())"


class _CollectedValues(KeptEntries):
    """All values of the field, an entry an event."""

    def __init__(self, field: str) -> None:
        super().__init__((field,))
        self._field = field

    def entry(self, event: Mapping[str, Any]) -> list[Any]:
        return list(values_of(event.get(self._field)))

    def aggregate(self) -> list[Any]:
        return [value for entry in self.entries for value in entry]
