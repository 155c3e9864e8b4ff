"""Min and Max of a field."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.aggregators.base import ColumnAggregator
from pipelines.aggregators.ordering import OrderKey, order_key
from pipelines.aggregators.values import OfField
from pipelines.aggregators.window import EventAggregator, Types, element_type

if TYPE_CHECKING:
    from pyspark.sql import Column


def is_nan(value: Any) -> bool:
    """Whether a value is not a number. Python's `min` and `max` answer by chance then; Spark holds NaN the greatest."""
    return isinstance(value, float) and value != value


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
    """Greatest value of one field, of its type; nulls are left out, the greatest of none is null.

    In an event flow as `Min`; the output is "max" unless named.
    """

    default_output: ClassVar[str] = "max"
    greatest: ClassVar[bool] = True

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


class Extreme(OfField):
    """The least or greatest value of a window whose oldest values leave first.

    It keeps only values that may become the answer: none that a later one is as good as, but equal ones, so that one
    leaves for each that is evicted.
    """

    saves = False

    def __init__(self, field: str, *, greatest: bool) -> None:
        self._greatest = greatest
        self._rivals: deque[tuple[OrderKey, Any]] = deque()
        super().__init__("Max" if greatest else "Min", field)

    def add(self, value: Any) -> None:
        rivals, key = self._rivals, order_key(value)
        if self._greatest:
            while rivals and rivals[-1][0] < key:
                rivals.pop()
        else:
            while rivals and key < rivals[-1][0]:
                rivals.pop()
        rivals.append((key, value))

    def remove(self, value: Any) -> None:
        if self._rivals and self._rivals[0][0] == order_key(value):
            self._rivals.popleft()

    def clear(self) -> None:
        self._rivals.clear()

    def aggregate(self) -> Any:
        return self._rivals[0][1] if self._rivals else None

    def save(self) -> Any:
        return [value for _, value in self._rivals]

    def restore(self, state: Any) -> None:
        self._rivals = deque((order_key(value), value) for value in state)
