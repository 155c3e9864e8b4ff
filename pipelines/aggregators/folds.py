"""Aggregators at work: `Fold` for many groups whose values are found by key, `Running` for one. No Spark here."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any

from pipelines.aggregators.base import CombinerAggregator, ReducerAggregator
from pipelines.aggregators.calls import Row, emitted, initial, row_of, taking

UNSET = object()
"""The value of a combiner that has seen nothing: its zero is put in once, at the end, however the tuples were spread."""


class Fold(ABC):
    """One aggregator of a chain (Trident rules 1.3).

    Attributes:
        aggregator: of any of the three contracts.
        rows_early: whether rows come before the end; `early` then takes them out of a value.
    """

    aggregator: Any
    rows_early = False

    @abstractmethod
    def start(self, batch: Any) -> Any:
        """Return the value before the first tuple."""

    @abstractmethod
    def add(self, value: Any, inputs: Row) -> Any:
        """Return the value with one tuple more."""

    @abstractmethod
    def rows(self, value: Any) -> list[Row]:
        """Return the rows at the end."""

    def early(self, value: Any) -> list[Row]:
        """Return the rows so far, which are taken out."""
        return []

    def kept(self, value: Any) -> Any:
        """Return what a state keeps of a value."""
        return value


class CombinerFold(Fold):
    """A combiner; those over columns by their plain form."""

    def __init__(self, aggregator: CombinerAggregator, inputs: int) -> None:
        self.aggregator = aggregator
        self._init = taking(aggregator.init, 0, inputs)

    def start(self, batch: Any) -> Any:
        return UNSET

    def add(self, value: Any, inputs: Row) -> Any:
        return self.merge(value, self._init(*inputs))

    def merge(self, value: Any, other: Any) -> Any:
        """Return the value with a partial value more."""
        return other if value is UNSET else self.aggregator.merge(value, other)

    def kept(self, value: Any) -> Any:
        """Return the partial value of all tuples, zero included."""
        zero = self.aggregator.zero()
        return zero if value is UNSET else self.aggregator.merge(zero, value)

    def rows(self, value: Any) -> list[Row]:
        return [(self.aggregator.finish(self.kept(value)),)]


class AddedFold(CombinerFold):
    """A sum, or the sum within a mean, of one batch: in the end it is what Spark's own is, in the type of its column."""

    def kept(self, value: Any) -> Any:
        aggregator: Any = self.aggregator
        return aggregator.in_column(super().kept(value))


class ReducerFold(Fold):
    def __init__(self, aggregator: ReducerAggregator, inputs: int) -> None:
        self.aggregator = aggregator
        self._reduce = taking(aggregator.reduce, 1, inputs)

    def start(self, batch: Any) -> Any:
        return self.aggregator.init()

    def add(self, value: Any, inputs: Row) -> Any:
        return self._reduce(value, *inputs)

    def rows(self, value: Any) -> list[Row]:
        return [(value,)]


class General:
    """The calls that a general aggregator and a multi-reducer share: a user's state, and rows at any time.

    A value is the list of the user's state and the rows that wait.
    """

    def __init__(self, label: str, outputs: int) -> None:
        self._label, self._outputs = label, outputs

    def take(self, value: list[Any], given: Any) -> list[Any]:
        """Return what a call gave: the new state, None if it changed the state itself, or a generator of rows."""
        if inspect.isgenerator(given):
            given = self._drained(value, given)
        if given is not None:
            value[0] = given
        return value

    def _drained(self, value: list[Any], generator: Any) -> Any:
        while True:
            try:
                value[1].append(row_of(self._label, next(generator), self._outputs))
            except StopIteration as end:
                return end.value

    def early(self, value: list[Any]) -> list[Row]:
        rows, value[1] = value[1], []
        return rows

    def last(self, value: list[Any], given: Any) -> list[Row]:
        return self.early(value) + emitted(self._label, given, self._outputs)


class AggregatorFold(Fold):
    rows_early = True

    def __init__(self, aggregator: Any, inputs: int, outputs: int) -> None:
        self.aggregator = aggregator
        self._general = General(str(aggregator), outputs)
        self._aggregate = taking(aggregator.aggregate, 1, inputs)

    def start(self, batch: Any) -> list[Any]:
        return [initial(self.aggregator.init, batch), []]

    def add(self, value: list[Any], inputs: Row) -> list[Any]:
        return self._general.take(value, self._aggregate(value[0], *inputs))

    def rows(self, value: list[Any]) -> list[Row]:
        return self._general.last(value, self.aggregator.complete(value[0]))

    def early(self, value: list[Any]) -> list[Row]:
        return self._general.early(value)

    def kept(self, value: list[Any]) -> Any:
        return value[0]


def fold_of(aggregator: Any, inputs: int, outputs: int) -> Fold:
    """Return the fold of an aggregator of any of the three contracts."""
    if isinstance(aggregator, CombinerAggregator):
        return CombinerFold(aggregator, inputs)
    if isinstance(aggregator, ReducerAggregator):
        return ReducerFold(aggregator, inputs)
    return AggregatorFold(aggregator, inputs, outputs)


class Running:
    """One aggregator at work on the tuples of one partition, group or batch.

    Args:
        aggregator: any of the three contracts; those over columns too, by their plain form.
        batch: the batch's id, for `init(batch_id)`.
    """

    def __init__(self, aggregator: Any, inputs: int, outputs: int, batch: Any = None) -> None:
        self._fold = fold_of(aggregator, inputs, outputs)
        self._value = self._fold.start(batch)

    @property
    def state(self) -> Any:
        """Return what a state keeps of it."""
        return self._fold.kept(self._value)

    def go_on_from(self, value: Any) -> None:
        """Go on from a value that a state holds: what is taken in is merged into it or reduced onto it."""
        self._value = value

    def add(self, values: Row) -> None:
        """Take in one tuple's input values."""
        self._value = self._fold.add(self._value, values)

    def complete(self) -> list[Row]:
        """Return the rows: exactly one of a combiner or reducer, any number of a general aggregator."""
        return self._fold.rows(self._value)
