"""The results of a user's function for an event (Flowmix rules 4, each)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from pipelines.errors import FunctionError
from pipelines.flowmix.operations import Each, several_order
from pipelines.flowmix.values import fitted
from pipelines.windows.event import Event


def made_of(operation: Each, event: Event, order: str) -> list[tuple[Event, str]]:
    """Return the events that the function gives, in order, each with its order; a dict keeps the event's id and time."""
    # A copy: what the function does to it must not reach the other ways along which the event goes.
    given = operation.function(event.with_fields({k: list(v) if isinstance(v, list) else v for k, v in event.items()}))
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [(_made(operation, event, given), order)]
    if not (isinstance(given, list | tuple) or inspect.isgenerator(given)):
        raise FunctionError(operation.label, f"gives {given!r}; an event, a dict, a list of them or None was expected")
    return [(_made(operation, event, result), several_order(order, n)) for n, result in enumerate(given)]


def _made(operation: Each, event: Event, given: Any) -> Event:
    if not isinstance(given, Mapping):
        raise FunctionError(operation.label, f"gives {given!r}; an event, a dict, a list of them or None was expected")
    fields = dict(operation.schema)
    if unknown := [name for name in given if fields and name not in fields]:
        raise FunctionError(operation.label, f"gives {', '.join(unknown)}; its schema has: {', '.join(fields)}")
    made = given if isinstance(given, Event) else event.with_fields(given)
    has_time = made.timestamp is event.timestamp or isinstance(made.timestamp, Integral)
    if not (isinstance(made.id, str) and has_time):
        problem = f"gives an event of id {made.id!r} and timestamp {made.timestamp!r}"
        raise FunctionError(operation.label, problem, hint="an id is a text, a timestamp a whole number of ms")
    shown = {name: fitted(value, fields.get(name)) for name, value in made.items()}
    return Event(shown, made.id, made.timestamp, event.stream)
