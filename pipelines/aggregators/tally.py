"""Counts of each value, or combination of values, in a window."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from pipelines.aggregators.ordering import order_key, values_of
from pipelines.aggregators.window import Accumulator, Rows


class Tally(Accumulator):
    """Counts by the values of some fields; an event that lacks one is passed over, several values are combined.

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
        if len(self.fields) == 1:
            return [(value,) for value in values_of(event.get(self.fields[0]))]
        return itertools.product(*(values_of(event.get(field)) for field in self.fields))

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
        self._counts = {tuple(map(_identity, values)): [tuple(values), count] for values, count in state}


def _identity(value: Any) -> Any:
    """What is equal where `order_key` is: the value itself where that holds for it."""
    kind = type(value)
    if kind is str or kind is int:
        return value
    name, inside = order_key(value)
    return inside if name == "number" else (name, inside)
