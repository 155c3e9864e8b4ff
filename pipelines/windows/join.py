"""The window of `join` (Flowmix rules 4): the left events of a key, waiting for right ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from pipelines.aggregators.ordering import distinct, values_of
from pipelines.errors import FlowError
from pipelines.windows.buffer import (
    FAR,
    NOTHING,
    Fired,
    Key,
    Window,
    WindowContext,
    restored_event,
    saved_event,
    tick_of_age,
)
from pipelines.windows.event import Event
from pipelines.windows.operations import JoinWindow

_EMPTY_FOR: Final = 10_000
"""How long a key without left events is kept, in ms: making its window again for each right event costs more."""


class JoinBuffer(Window):
    """Left events and their clocks. Age counts when a left event comes, and at the ticks."""

    __slots__ = ("_age", "_keep", "_lefts", "_lifetime", "_operation", "_written")

    def __init__(self, operation: JoinWindow, key: Key, context: WindowContext) -> None:
        super().__init__(key, context)
        self._operation = operation
        self._age, self._keep = operation.evict.age, operation.evict.stores
        self._lifetime = operation.window_evict_millis
        self._lefts: deque[tuple[Event, int]] = deque()
        self._written = 0

    def event(self, event: Event, now: int) -> Sequence[Event]:
        is_left = event.stream == self._operation.left
        # A right event may come before the tick of its second was played.
        self._drop_old(now if is_left else now // 1000 * 1000)
        self._written = now
        if is_left:
            if self._keep and len(self._lefts) >= self._keep:
                self._lefts.popleft()
            self._lefts.append((event, now))
            if len(self._lefts) == 1:
                self.wake = min(self.wake, self._due())
            return NOTHING
        if event.stream == self._operation.right:
            self.wake = min(self.wake, self._due())
            return [union(left, event) for left, _ in self._lefts]
        text = "Received event for stream that does not match the join. Flowmix has been miswired."
        seen = (
            f"{text} It came from {event.stream!r}; the join is of {self._operation.left} and {self._operation.right}"
        )
        raise FlowError(self.context.flow, seen, stream=self.context.stream)

    def _drop_old(self, now: int) -> None:
        if self._age is not None:
            lefts = self._lefts
            while lefts and now - lefts[0][1] >= self._age:
                lefts.popleft()

    def advance(self, now: int) -> Sequence[Fired]:
        self._drop_old(now // 1000 * 1000)
        self.wake = self._due()
        return ()

    def _due(self) -> int:
        if not self._lefts:
            return self._written + _EMPTY_FOR
        clock = FAR if self._age is None else tick_of_age(self._lefts[-1][1], self._age)
        return clock if self._lifetime is None else min(clock, self._written + self._lifetime)

    def expired(self, now: int) -> bool:
        if not self._lefts:
            return now - self._written >= _EMPTY_FOR
        return self._lifetime is not None and now - self._written >= self._lifetime

    def save(self) -> dict[str, Any]:
        return {"written": self._written, "lefts": [[saved_event(event), at] for event, at in self._lefts]}

    def restore(self, state: dict[str, Any]) -> None:
        self._written = state["written"]
        self._lefts = deque((restored_event(event), at) for event, at in state["lefts"])
        self.wake = self._due()


def union(left: Event, right: Event) -> Event:
    """Return the fields of both, with id, time and origin of the left one; different values of a field stand side by side."""
    fields: dict[str, Any] = dict(left)
    for name, value in right.items():
        there = fields.get(name)
        if there is None:
            fields[name] = value
        elif type(there) is not type(value) or there != value or isinstance(value, list | tuple):
            both = distinct([*values_of(there), *values_of(value)])
            fields[name] = both if len(both) > 1 or isinstance(there, list) or isinstance(value, list) else both[0]
    return Event(fields, left.id, left.timestamp, left.stream)
