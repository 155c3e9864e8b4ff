"""The functions that a flow's operations call on Spark: over Columns, and over the values of a row as an event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pipelines import spark_functions as F
from pipelines.errors import FunctionError
from pipelines.flowmix import operations as ops
from pipelines.flowmix.criteria import Criteria, Python
from pipelines.flowmix.each import made_of
from pipelines.graph import events
from pipelines.graph.expressions import spark_sql
from pipelines.windows.event import Event, alone

if TYPE_CHECKING:
    from pyspark.sql import Column

Types = dict[str, str]


def any_there(types: Types) -> Callable[..., Column]:
    """Return a condition on fields and the id behind them: one of the fields is there, or it is a watermark's row, without id.

    A list of none is no value (Flowmix rules 1).
    """
    lists = [kind.startswith("array<") for kind in types.values()]

    def there(*columns: Column) -> Column:
        from functools import reduce

        *fields, id_ = columns
        found = (F.size(f) > 0 if several else f.isNotNull() for f, several in zip(fields, lists, strict=True))
        return reduce(lambda a, b: a | b, found, id_.isNull())

    return there


class Expressions:
    """SQL expressions in place of an event's fields, each as its type; a watermark row gets none."""

    def __init__(self, outputs: tuple[tuple[str, str, str], ...]) -> None:
        self._outputs = outputs

    def __call__(self, *columns: Column) -> tuple[Column, ...]:
        own = columns[-len(events.COLUMNS) :]
        made = (F.expr(spark_sql("compute", text)).cast(kind) for _, kind, text in self._outputs)
        return (*(F.when(own[0].isNotNull(), value) for value in made), *own)


def anonymous(*columns: Column) -> tuple[Column, ...]:
    """Clear the id and time of events; a row without an id only carries the watermark and stays without one."""
    assert len(columns) >= len(events.COLUMNS)
    own = len(columns) - len(events.COLUMNS)
    id_ = F.when(columns[own].isNotNull(), F.lit(""))
    return (*columns[:own], id_, F.lit(None).cast("bigint"), *columns[own + 2 :])


def nothing(*_: Column) -> Column:
    return F.lit(False)


def readable(names: tuple[str, ...]) -> Callable[..., tuple[Column, ...]]:
    def readable(*columns: Column) -> tuple[Column, ...]:
        return tuple(
            F.timestamp_millis(column) if name == events.TIME else column
            for name, column in zip(names, columns, strict=True)
        )

    return readable


class RowEvents:
    """Builds events from the values of a row: fields, then the event's columns. It travels to the workers.

    Args:
        fields: of the row.
        several: those of them that a join made arrays: of one value the function gets the value, as on the other engines.
    """

    def __init__(self, fields: tuple[str, ...], several: frozenset[str] = frozenset()) -> None:
        self.fields, self.several = fields, several

    def event(self, values: tuple[Any, ...]) -> Event:
        id_, time, _, origin, _ = values[len(self.fields) :]
        return alone(Event(dict(zip(self.fields, values, strict=False)), id_, time, origin), self.several)


class Matches(RowEvents):
    """A Python predicate over rows; watermark rows pass."""

    def __init__(self, criteria: Criteria, fields: tuple[str, ...], several: frozenset[str] = frozenset()) -> None:
        super().__init__(fields, several)
        self._criteria = criteria
        if not isinstance(criteria, Python):  # the label of a predicate alone is in the plans of deployed flows
            self.__name__ = str(criteria)

    def __call__(self, *values: Any) -> bool:
        return values[len(self.fields)] is None or self._criteria.matches(self.event(values))


class Calls(RowEvents):
    """An `each` over rows; watermark rows pass. `gives` are the fields of what comes out."""

    def __init__(
        self, operation: ops.Each, fields: tuple[str, ...], gives: tuple[str, ...], several: frozenset[str]
    ) -> None:
        super().__init__(fields, several)
        # Without a schema of its own it gives the fields that it got; anything else cannot be a column.
        self._operation, self._gives = operation, gives
        self.__name__ = operation.label

    def __call__(self, *values: Any) -> Iterator[tuple[Any, ...]]:
        id_, time, clock, origin, order = values[len(self.fields) :]
        if id_ is None:
            yield (*([None] * len(self._gives)), id_, time, clock, origin, order)
            return
        for made, place in made_of(self._operation, self.event(values), order):
            if unknown := [name for name in made if name not in self._gives]:
                raise FunctionError(
                    self._operation.label,
                    f"gives {', '.join(unknown)}, whose type nobody says",
                    hint=f'say what it gives: each(function, schema="{unknown[0]} ...")',
                )
            yield (
                *(self._value(name, made.get(name)) for name in self._gives),
                made.id,
                made.timestamp,
                clock,
                origin,
                place,
            )

    def _value(self, name: str, value: Any) -> Any:
        """Return a value as its column holds it: where no schema says otherwise, a field of a join stays an array."""
        alone = not self._operation.schema and name in self.several and not isinstance(value, list | tuple)
        return [value] if alone and value is not None else value
