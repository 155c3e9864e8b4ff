"""Accumulators over the values of one field, for the built-in aggregators."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from pipelines.aggregators.exact import ExactSum, TotalError, ends_fit
from pipelines.aggregators.ordering import SEVERAL, order_key, values_of
from pipelines.aggregators.window import Accumulator, Rows, number


class OfField(Accumulator):
    """Over the values of one field: an event without the field is passed over, each value of a list counts, but for nulls."""

    def __init__(self, name: str, field: str) -> None:
        self._name, self._field = name, field
        self.fields = (field,)
        self.clear()

    def added(self, event: Mapping[str, Any]) -> None:
        value = event.get(self._field)
        if isinstance(value, SEVERAL):
            for item in value:
                if item is not None:
                    self.add(item)
        elif value is not None:
            self.add(value)

    def evicted(self, event: Mapping[str, Any]) -> None:
        value = event.get(self._field)
        if isinstance(value, SEVERAL):
            for item in value:
                if item is not None:
                    self.remove(item)
        elif value is not None:
            self.remove(value)

    @abstractmethod
    def add(self, value: Any) -> None:
        """Take in a value."""

    @abstractmethod
    def remove(self, value: Any) -> None:
        """Let the oldest value go."""


class RunningTotal(OfField):
    """Sum and number of the values."""

    def __init__(self, name: str, field: str) -> None:
        self.total, self.count = ExactSum(), 0
        super().__init__(name, field)

    def added(self, event: Mapping[str, Any]) -> None:
        value: Any = event.get(self._field)
        kind = type(value)
        if kind is int:
            self.total.whole += value
            self.count += 1
        elif kind is float:
            self.total.add_float(value, 1)
            self.count += 1
        elif value is not None:
            super().added(event)

    def evicted(self, event: Mapping[str, Any]) -> None:
        value: Any = event.get(self._field)
        kind = type(value)
        if kind is int:
            self.total.whole -= value
            self.count -= 1
        elif kind is float:
            self.total.add_float(value, -1)
            self.count -= 1
        elif value is not None:
            super().evicted(event)

    def add(self, value: Any) -> None:
        self.total.add(number(self._name, self._field, value))
        self.count += 1

    def remove(self, value: Any) -> None:
        self.total.add(value, -1)
        self.count -= 1

    def clear(self) -> None:
        self.total.clear()
        self.count = 0

    def aggregate(self) -> Any:
        return self.total.value

    def check_total(self, items: Sequence[Mapping[str, Any]] | None = None) -> None:
        total = self.total
        if total.floats:
            return
        kept = [total.value]
        if items is not None:
            kept = [v for item in items for v in values_of(item.get(self._field)) if v is not None]
        if not ends_fit(kept):
            raise TotalError(self._field, decimal=bool(total.decimals))

    def save(self) -> Any:
        return [self.count, self.total.save()]

    def restore(self, state: Any) -> None:
        self.count, total = state
        self.total.restore(total)


class Mean(RunningTotal):
    """Sum by number, as a float; 0.0 of none (Flowmix rules 5.2)."""

    def aggregate(self) -> float:
        total = self.total.value
        if not self.count:
            return 0.0
        return float(total / self.count) if isinstance(total, Decimal) else total / self.count

    def check_total(self, items: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Find nothing: a mean is a float."""


class KeptEntries(Accumulator):
    """Keeps one entry an event, in order of arrival; the window adds its events again when it is restored."""

    saves = False

    def __init__(self, fields: tuple[str, ...] | None) -> None:
        self.fields = fields
        self.entries: deque[Any] = deque()

    @abstractmethod
    def entry(self, event: Mapping[str, Any]) -> Any:
        """Return what to keep of an event."""

    def added(self, event: Mapping[str, Any]) -> None:
        self.entries.append(self.entry(event))

    def evicted(self, event: Mapping[str, Any]) -> None:
        self.entries.popleft()

    def clear(self) -> None:
        self.entries.clear()

    def save(self) -> Any:
        return list(self.entries)

    def restore(self, state: Any) -> None:
        self.entries = deque(state)


class Tally(Accumulator):
    """Counts by the values of some fields; an event that lacks one is passed over, several values are combined, but for nulls.

    Args:
        fields: one or more.
        output: the field of the count in `Rows` of (fields, count), in the order of the values; None: the number of
            different values is the result.
    """

    def __init__(self, fields: tuple[str, ...], output: str | None = None) -> None:
        self.fields: tuple[str, ...] = fields
        self._output = output
        self._counts: dict[Any, list[Any]] = {}

    def _values(self, event: Mapping[str, Any]) -> Any:
        given = ([value for value in values_of(event.get(field)) if value is not None] for field in self.fields)
        return itertools.product(*given)

    def added(self, event: Mapping[str, Any]) -> None:
        for values in self._values(event):
            key = tuple(map(_identity, values))
            entry = self._counts.get(key)
            if entry is None:
                self._counts[key] = [values, 1]
            else:
                entry[1] += 1

    def evicted(self, event: Mapping[str, Any]) -> None:
        for values in self._values(event):
            key = tuple(map(_identity, values))
            entry = self._counts[key]
            entry[1] -= 1
            if not entry[1]:
                del self._counts[key]

    def clear(self) -> None:
        self._counts.clear()

    def aggregate(self) -> Any:
        if self._output is None:
            return len(self._counts)
        counts = sorted(self._counts.values(), key=lambda entry: tuple(map(order_key, entry[0])))
        return Rows({**dict(zip(self.fields, values, strict=True)), self._output: count} for values, count in counts)

    def save(self) -> Any:
        return [[list(values), count] for values, count in self._counts.values()]

    def restore(self, state: Any) -> None:
        # Earlier releases counted nulls among several values.
        there = ((values, count) for values, count in state if None not in values)
        self._counts = {tuple(map(_identity, values)): [tuple(values), count] for values, count in there}


def _identity(value: Any) -> Any:
    """Return a value that is equal where `order_key` is: the value itself where that holds for it."""
    kind = type(value)
    if kind is str or kind is int:
        return value
    name, inside = order_key(value)
    return inside if name == "number" else (name, inside)
