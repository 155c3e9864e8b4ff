"""Count: tuples, whatever they hold, or those that have a field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines import spark_functions as F
from pipelines.aggregators.base import AddedUp
from pipelines.aggregators.ordering import values_of
from pipelines.aggregators.window import Accumulator, EventAggregator, Types

if TYPE_CHECKING:
    from pyspark.sql import Column


class Count(AddedUp, EventAggregator):
    """Number of tuples, as bigint (Trident rules 1.3: init 1, zero 0), whatever fields the operation names.

    With a `field` of its own only tuples and events that have it count; an event has none whose list is empty. In an event
    flow `Count("n")` names the output, "count" unless named.
    """

    arity: ClassVar[int] = 0
    default_output: ClassVar[str] = "count"

    def __init__(self, output: str | None = None, *, field: str | None = None) -> None:
        super().__init__(field, output)

    def accumulator(self) -> Accumulator:
        return _EventCount() if self.field is None else _Having(str(self.field))

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        return [(self.named, "bigint")]

    def check(self) -> None:
        """Accept: it needs no field."""

    def init(self, *values: Any) -> int:
        return int(self.field is None or values[0] is not None)

    def combine(self, a: int, b: int) -> int:
        return a + b

    def partial(self, *inputs: Column) -> Column:
        return F.count(F.lit(1) if self.field is None else inputs[0])


class _EventCount(Accumulator):
    """The number of events."""

    fields: tuple[str, ...] | None = ()

    def __init__(self) -> None:
        self._count = 0

    def added(self, event: Mapping[str, Any]) -> None:
        self._count += 1

    def evicted(self, event: Mapping[str, Any]) -> None:
        self._count -= 1

    def aggregate(self) -> int:
        return self._count

    def clear(self) -> None:
        self._count = 0

    def save(self) -> int:
        return self._count

    def restore(self, state: int) -> None:
        self._count = state


class _Having(_EventCount):
    """The number of events that have the field: a value of it, for an empty list is absent (Flowmix rules 1)."""

    saves = False  # Earlier releases counted empty lists.

    def __init__(self, field: str) -> None:
        super().__init__()
        self._field, self.fields = field, (field,)

    def added(self, event: Mapping[str, Any]) -> None:
        self._count += bool(values_of(event.get(self._field)))

    def evicted(self, event: Mapping[str, Any]) -> None:
        self._count -= bool(values_of(event.get(self._field)))
