"""Trident's windows (Trident rules 5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from pipelines.aggregators.folds import Running
from pipelines.windows.aggregate import crossed
from pipelines.windows.buffer import FAR, NOTHING, Fired, Key, Window, WindowContext
from pipelines.windows.event import Event
from pipelines.windows.operations import TaskWindow


class TaskBuffer(Window):
    """The last tuples of a task: of each the input fields' values and its clock."""

    __slots__ = ("_aggregations", "_by_count", "_count", "_fires", "_inputs", "_size", "_slide", "_trigger", "_tuples")

    def __init__(self, operation: TaskWindow, key: Key, context: WindowContext) -> None:
        super().__init__(key, context)
        self._size, self._slide, self._by_count = operation.size, operation.slide, operation.by_count
        self._aggregations, self._inputs = operation.aggregations, operation.inputs
        self._tuples: deque[tuple[tuple[Any, ...], int]] = deque()
        self._count = self._fires = self._trigger = 0

    def event(self, event: Event, now: int) -> Sequence[Event]:
        values = tuple(map(event.get, self._inputs))
        if self._by_count:
            self._tuples.append((values, now))
            self._count += 1
            if len(self._tuples) > self._size:
                self._tuples.popleft()
            if self._count < self._slide:
                return NOTHING
            self._count = 0
            return self._fire(now, len(self._tuples))
        trigger = (now // self._slide + 1) * self._slide
        if trigger > self._trigger or not self._tuples:
            # A time that lies in the past has been seen to by `advance`: nothing is lost.
            self._trigger = trigger
            self._drop_old()
            self.wake = min(self.wake, trigger)
        self._tuples.append((values, now))
        return NOTHING

    def _drop_old(self) -> None:
        """Drop what no later trigger can see."""
        while self._tuples and self._tuples[0][1] < self._trigger - self._size:
            self._tuples.popleft()

    def advance(self, now: int) -> Sequence[Fired]:
        made: list[Fired] = []
        if not self._by_count:
            while self._tuples and self._trigger <= now:
                self._drop_old()
                if not self._tuples:
                    break
                made += [(event, self._trigger) for event in self._fire(self._trigger, len(self._tuples))]
                self._trigger += self._slide
            self._drop_old()
            self.wake = self._trigger if self._tuples else FAR
        return made

    def _fire(self, now: int, count: int) -> list[Event]:
        """Run the aggregators over the window's tuples, started again each time; `init(batch)` gets the clock."""
        if not count:
            return []
        places = [[self._inputs.index(name) for name in aggregation.inputs] for aggregation in self._aggregations]
        chain = [
            Running(aggregation.aggregator, len(aggregation.inputs), len(aggregation.outputs), now)
            for aggregation in self._aggregations
        ]
        for values, _ in self._tuples:
            for aggregator, at in zip(chain, places, strict=True):
                aggregator.add(tuple(values[index] for index in at))
        rows = [
            [dict(zip(aggregation.outputs, row, strict=True)) for row in running.complete()]
            for aggregation, running in zip(self._aggregations, chain, strict=True)
        ]
        made = []
        for fields in crossed(rows):
            made.append(self.made(fields, now, self._fires))
            self._fires += 1
        return made

    def _due(self) -> int:
        return self._trigger if not self._by_count and self._tuples else FAR

    def expired(self, now: int) -> bool:
        """Return False: the number of its next result must not be forgotten; there is one window per task."""
        return False

    def save(self) -> dict[str, Any]:
        return {"counts": [self._count, self._fires, self._trigger], "tuples": [list(pair) for pair in self._tuples]}

    def restore(self, state: dict[str, Any]) -> None:
        self._count, self._fires, self._trigger = state["counts"]
        self._tuples = deque((tuple(values), now) for values, now in state["tuples"])
        self.wake = self._due()
