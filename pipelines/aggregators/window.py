"""The contracts of aggregators over the windows of an event flow (Flowmix rules 5.2)."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pipelines.ddl import parse_ddl
from pipelines.errors import AggregationError, FunctionError

Types = Mapping[str, str | None]
"""Spark SQL type of each field, None where it is not known."""

State = Any
"""Plain data: None, bool, int, float, str, bytes, Decimal, date, datetime; lists, tuples, dicts and sets of these."""


class Rows(list[dict[str, Any]]):
    """Any number of results of `Accumulator.aggregate`: the fields of each. (A plain list is one value.)"""


class Accumulator(ABC):
    """One aggregator at work in one window. It sees each event that comes and goes, in the order of arrival.

    Attributes:
        fields: what `evicted` reads of an event: these fields, or None for all of it. Nothing else of an event is stored.
        saves: whether `save` says all; else the window adds its events again when it is restored.
    """

    fields: tuple[str, ...] | None = None
    saves: bool = True

    @abstractmethod
    def added(self, event: Mapping[str, Any]) -> None:
        """Take in an event that came into the window."""

    @abstractmethod
    def evicted(self, event: Mapping[str, Any]) -> None:
        """Let the oldest event go; `event` holds at least `fields`."""

    @abstractmethod
    def aggregate(self) -> Any:
        """Return the value of the window now; `Rows` for several fields or several results."""

    @abstractmethod
    def clear(self) -> None:
        """Let all events go."""

    @abstractmethod
    def save(self) -> State:
        """Return the state as plain data."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Take what `save` gave."""

    def check_total(self, items: Sequence[Mapping[str, Any]] | None = None) -> None:  # noqa: B027 (most have none)
        """Check that a total fits its type.

        Args:
            items: the events of the window, from which the oldest may leave before the next emission; None: all stay.

        Raises:
            TotalError: it does not.
        """


class EventAggregator(ABC):
    """An argument of `aggregate(...)` in an event flow: the built-in aggregators and `WindowAggregator`."""

    default_output: ClassVar[str] = ""

    @abstractmethod
    def accumulator(self) -> Accumulator:
        """Return a new one, for one window."""

    @abstractmethod
    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        """Return the outputs and their Spark SQL types, None where they depend on types that are not known.

        Raises:
            AggregationError: if a field's type is known and cannot be aggregated.
        """

    @property
    def result_fields(self) -> tuple[str, ...]:
        """The fields that it makes."""
        return (self.named,)

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields that it says it reads; a user's own may read others of the event."""
        names = [getattr(self, name, None) for name in ("field", "values_field", "sort_field")]
        names += getattr(self, "fields", None) or ()
        return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))

    @property
    def named(self) -> str:
        """The one output: as given, else the default."""
        return str(getattr(self, "output", None) or self.default_output)

    def check(self) -> None:
        """Check whether it can be used in a window.

        Raises:
            FunctionError: if it names no field to operate on, or lacks a method.
        """
        if not isinstance(getattr(self, "field", None), str):
            name = type(self).__name__
            raise FunctionError(
                name, "Aggregator needs a field to operate it", hint=f'name it: {name}("delay", "output")'
            )

    def __str__(self) -> str:
        return type(self).__name__


class WindowAggregator(EventAggregator):
    """A user's own aggregator. Each window works with a copy of the instance, made before any event.

    Define `added(event)`, `evicted(event)` and `aggregate()`: a value, a dict of several outputs, or a list of dicts for
    several result events. The attributes are its state and must be plain data (None, bool, numbers, text, bytes, dates;
    lists, tuples, dicts and sets of these), or override `save` and `restore`. An emission with `clear_on_trigger` tells it
    of each event that leaves, the newest first (rules 5.1.3).

    ```python
    class Spread(WindowAggregator):
        outputs = "spread double"

        def __init__(self):
            self.values = []
        def added(self, event):
            self.values.append(event["v"])
        def evicted(self, event):
            self.values.remove(event["v"])
        def aggregate(self):
            return max(self.values) - min(self.values) if self.values else None
    ```

    Attributes:
        outputs: the fields that it makes, as DDL.
    """

    outputs: str = ""

    def added(self, event: Any) -> None:
        """Take in an event that came into the window."""
        raise NotImplementedError

    def evicted(self, event: Any) -> None:
        """Let an event go that left the window."""
        raise NotImplementedError

    def aggregate(self) -> Any:
        """Return the value of the window now."""
        raise NotImplementedError

    def save(self) -> State:
        """Return the state as plain data: the instance's attributes."""
        return vars(self)

    def restore(self, state: State) -> None:
        """Take what `save` gave."""
        vars(self).update(state)

    def accumulator(self) -> Accumulator:
        return _Own(copy.deepcopy(self))

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        return list(parse_ddl(self.outputs))

    @property
    def result_fields(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.result_types({}))

    @property
    def named(self) -> str:
        return self.result_fields[0]

    def check(self) -> None:
        name = type(self).__name__
        for method in ("added", "evicted", "aggregate"):
            if getattr(type(self), method) is getattr(WindowAggregator, method):
                raise FunctionError(
                    name, f"has no {method}", hint="define added(event), evicted(event) and aggregate()"
                )
        if not self.outputs.strip():
            raise FunctionError(
                name, "says no outputs", hint='give the fields it makes, like outputs = "spread double"'
            )
        if type(self).save is WindowAggregator.save:
            check_plain(name, vars(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class _Own(Accumulator):
    """A user's aggregator at work."""

    def __init__(self, own: WindowAggregator) -> None:
        self._own, self._name = own, type(own).__name__
        self._outputs = own.result_fields
        self._types = [kind or "" for _, kind in own.result_types({})]

    def added(self, event: Mapping[str, Any]) -> None:
        self._own.added(event)

    def evicted(self, event: Mapping[str, Any]) -> None:
        self._own.evicted(event)

    def clear(self) -> None:
        """Do nothing: `evicted` has been called with each event that left."""

    def aggregate(self) -> Any:
        given = _copied(self._own.aggregate())
        if isinstance(given, Mapping) and self._fit(given):
            return Rows([dict(given)])
        array = len(self._types) == 1 and self._types[0].strip().lower().startswith("array")
        rows = isinstance(given, list) and all(isinstance(row, Mapping) and self._fit(row) for row in given)
        if rows and not (array and not given):
            return Rows(map(dict, given))
        if len(self._outputs) > 1:
            raise FunctionError(self._name, f"gives {given!r} for the outputs {', '.join(self._outputs)}")
        return given

    def _fit(self, row: Mapping[str, Any]) -> bool:
        return all(name in self._outputs for name in row)

    def save(self) -> State:
        state = self._own.save()
        check_plain(self._name, state)
        return copy.deepcopy(state)

    def restore(self, state: State) -> None:
        self._own.restore(copy.deepcopy(state))


def _copied(given: Any) -> Any:
    """Return a result that stays: an aggregator may go on with what it gave, and results are written at the end of the batch."""
    if isinstance(given, Mapping) and (type(given) is dict or not isinstance(given, dict)):  # an event is never changed
        return {name: _copied(value) for name, value in given.items()}
    if type(given) in (list, tuple, set):
        return type(given)(map(_copied, given))
    return given


def check_plain(name: str, state: State) -> None:
    """Check that a state is plain data."""
    items = state.items() if isinstance(state, dict) else [("state", state)]
    for attribute, value in items:
        culprit = _not_plain(value)
        if culprit is not None:
            raise FunctionError(
                name,
                f"cannot be stored: its {attribute} holds {culprit!r}, of type {type(culprit).__name__}",
                hint="keep numbers, text, dates, lists and dicts in its attributes, or override save() and restore(state)",
            )


def _not_plain(value: Any) -> Any:
    from datetime import date
    from decimal import Decimal

    if value is None or type(value) in (bool, int, float, str, bytes):
        return None
    if isinstance(value, date | Decimal):
        return None
    if type(value) is dict:
        inside: Sequence[Any] = [*value, *value.values()]
    elif type(value) in (list, tuple, set):
        inside = list(value)
    else:
        return value
    return next((culprit for item in inside if (culprit := _not_plain(item)) is not None), None)


def number(aggregator: str, field: str, value: Any) -> Any:
    """Return a value that must be a number."""
    from decimal import Decimal

    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise AggregationError(aggregator, field, value)
    return value


WHOLE = ("tinyint", "smallint", "int", "integer", "bigint", "long", "byte", "short")


def element_type(kind: str | None) -> str | None:
    """Return the type of a field's values: of an array its elements', as several values of a field are an array."""
    if kind is None:
        return None
    text = kind.strip()  # as it is: a struct's fields keep their capitals
    return text[len("array<") : -1].strip() if text.lower().startswith("array<") else text


def undivided(types: Types) -> Types:
    """Return the types of a topology's fields, whose arrays are one value each, for those who take an array for several."""
    return {name: kind and f"array<{kind}>" for name, kind in types.items()}


def numeric_type(aggregator: str, field: str, types: Types) -> str | None:
    """Return the type of a numeric field's values."""
    kind = element_type(types.get(field))
    kind = kind and kind.lower()
    if kind is None or kind in ("void", "null"):
        return None
    if kind in WHOLE or kind in ("float", "double", "real") or kind.startswith(("decimal", "numeric", "dec")):
        return kind
    raise AggregationError(aggregator, field, None, kind)
