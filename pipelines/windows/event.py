"""An event as the window engine and user code in Python see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Event(dict[str, Any]):
    """Named fields with an id and a time (Flowmix rules 1). A field may hold a list: several values.

    A field that is absent, or null, is not a key. `event["id"]` and `event["timestamp"]` give the attributes where no field
    has the name. An event equals a dict of its fields; where that dict names `id` or `timestamp` they are compared too. A list
    of one value equals the value: a field has values, and this one has that one.

    Attributes:
        id: string.
        timestamp: milliseconds since 1970, UTC.
        stream: where the event came from: the stream that sent it, for a stream's own source that stream.
    """

    __slots__ = ("id", "stream", "timestamp")

    def __init__(self, fields: Mapping[str, Any], id: str, timestamp: int, stream: str = "") -> None:
        super().__init__(fields)
        if None in self.values():
            for name in [name for name, value in self.items() if value is None]:
                del self[name]
        self.id, self.timestamp, self.stream = id, timestamp, stream

    @classmethod
    def whole(cls, fields: Iterable[tuple[str, Any]], id: str, timestamp: int, stream: str) -> Event:
        """Return an event of fields of which none is null: half the work of the constructor."""
        event = cls.__new__(cls)
        event.update(fields)
        event.id, event.timestamp, event.stream = id, timestamp, stream
        return event

    def with_fields(self, fields: Mapping[str, Any]) -> Event:
        """Return the same event (id, time, origin) with other fields."""
        return Event(fields, self.id, self.timestamp, self.stream)

    def values_of(self, field: str) -> list[Any]:
        """Return all values of a field: none if it is absent, several if it holds a list."""
        value = self.get(field)
        if value is None:
            return []
        return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]

    def __missing__(self, name: str) -> Any:
        if name in ("id", "timestamp"):
            return getattr(self, name)
        raise KeyError(name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict):
            return NotImplemented
        if not isinstance(other, Event):
            named = {name: other[name] for name in ("id", "timestamp") if name in other and name not in self}
            if any(getattr(self, name) != value for name, value in named.items()):
                return False
            other = {name: value for name, value in other.items() if name not in named and value is not None}
        return self.keys() == other.keys() and all(_same(value, other[name]) for name, value in self.items())

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (Event, (dict(self), self.id, self.timestamp, self.stream))


def alone(event: Event, several: Iterable[str]) -> Event:
    """Return an event whose fields `several` hold the value itself where they hold a list of one."""
    fields = {name: event[name][0] for name in several if isinstance(event.get(name), list) and len(event[name]) == 1}
    return event.with_fields({**event, **fields}) if fields else event


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, list) and len(value) == 1 and not isinstance(other, list):
        value = value[0]
    elif isinstance(other, list) and len(other) == 1 and not isinstance(value, list):
        other = other[0]
    return bool(value == other)
