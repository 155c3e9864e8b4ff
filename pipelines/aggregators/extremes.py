"""Min and Max of a field."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines import spark_functions as F
from pipelines.aggregators.base import ColumnAggregator, Total, plain_total
from pipelines.aggregators.ordering import order_key, spark_key
from pipelines.aggregators.values import OfField
from pipelines.aggregators.window import EventAggregator, Types, element_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column


class Min(ColumnAggregator, EventAggregator):
    """Least value of one field, of its type; nulls are left out, the least of none is null.

    In an event flow `Min("v", "least")`; the output is "min" unless named. Values of several types are compared by the
    type's name first (`ordering.order_key`).
    """

    default_output: ClassVar[str] = "min"
    greatest: ClassVar[bool] = False

    def accumulator(self) -> Extreme:
        return Extreme(str(self.field), greatest=self.greatest)

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        return [(self.named, element_type(types.get(str(self.field))))]

    def init(self, *values: Any) -> Any:
        return values[0]

    def combine(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        return (max if self.greatest else min)(a, b, key=spark_key)

    def zero(self) -> None:
        return None

    def partial(self, *inputs: Column) -> Column:
        return self.fold(inputs[0])

    def fold(self, value: Column) -> Column:
        return F.max(value) if self.greatest else F.min(value)

    def fold_sql(self, column: str, total: Total = plain_total, kind: pa.DataType | None = None) -> str:
        import pyarrow as pa

        end = "max" if self.greatest else "min"
        if kind is not None and pa.types.is_nested(kind):
            there = f"array_agg({column}) FILTER (WHERE {column} IS NOT NULL)"
            return f"array_sort({there})[{-1 if self.greatest else 1}]"
        if kind is not None and pa.types.is_floating(kind):
            return _end_of_floats(column, greatest=self.greatest)
        return f"{end}({column})"


class Max(Min):
    """Greatest value of one field, of its type; nulls are left out, the greatest of none is null.

    In an event flow as `Min`; the output is "max" unless named.
    """

    default_output: ClassVar[str] = "max"
    greatest: ClassVar[bool] = True


def _end_of_floats(column: str, *, greatest: bool) -> str:
    """Return SQL that orders floats as Spark does: NaN is the greatest.

    Where rows are grouped DataFusion starts at the greatest or least finite number, and is right with NaN by chance.
    """
    end, other, sign = ("max", "min", "-") if greatest else ("min", "max", "")
    infinite = f"CAST('{sign}Infinity' AS DOUBLE)"
    number = f"{end}({column}) FILTER (WHERE NOT isnan({column}) AND {column} <> {infinite})"
    beyond = f"{other}({column}) FILTER (WHERE {column} = {infinite})"
    nan = f"{end}({column}) FILTER (WHERE isnan({column}))"
    return f"coalesce({', '.join((nan, number, beyond) if greatest else (number, beyond, nan))})"


_COMPARED = (int, float, str)


class Extreme(OfField):
    """The least or greatest value of a window whose oldest values leave first.

    It keeps only values that may become the answer: none that a later one is as good as, but equal ones, so that one
    leaves for each that is evicted.
    """

    saves = False

    def __init__(self, field: str, *, greatest: bool) -> None:
        self._greatest = greatest
        self._rivals: deque[Any] = deque()
        # The type of all rivals where Python compares them as `order_key` does, else None.
        self._kind: type | None = None
        super().__init__("Max" if greatest else "Min", field)

    def add(self, value: Any) -> None:
        rivals, kind = self._rivals, type(value)
        if not rivals:
            self._kind = kind if kind in _COMPARED else None
        if kind is not self._kind or value != value:
            self._add_any(value)
            return
        if self._greatest:
            while rivals and rivals[-1] < value:
                rivals.pop()
        else:
            while rivals and value < rivals[-1]:
                rivals.pop()
        rivals.append(value)

    def _add_any(self, value: Any) -> None:
        rivals, key = self._rivals, order_key(value)
        self._kind = None
        if self._greatest:
            while rivals and order_key(rivals[-1]) < key:
                rivals.pop()
        else:
            while rivals and key < order_key(rivals[-1]):
                rivals.pop()
        rivals.append(value)

    def remove(self, value: Any) -> None:
        rivals = self._rivals
        if not rivals:
            return
        plain = type(value) is self._kind
        if rivals[0] == value if plain else order_key(rivals[0]) == order_key(value):
            rivals.popleft()

    def clear(self) -> None:
        self._rivals.clear()

    def aggregate(self) -> Any:
        if not self._rivals:
            return None
        best = self._rivals[0]
        # No form of windows tells -0.0 from 0.0, so that either may be the first of equal ones.
        return best + 0.0 if type(best) is float else best

    def save(self) -> Any:
        return list(self._rivals)

    def restore(self, state: Any) -> None:
        # Earlier releases kept nulls among several values.
        self._rivals, self._kind = deque(value for value in state if value is not None), None
