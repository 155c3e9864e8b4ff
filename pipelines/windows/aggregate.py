"""The window of `aggregate` and `collect` (Flowmix rules 5.1)."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.aggregators.window import Accumulator, Rows
from pipelines.windows.buffer import (
    FAR,
    NOTHING,
    SECOND,
    Fired,
    Key,
    Window,
    WindowContext,
    accumulators,
    restored_event,
    saved_event,
    tick_of_age,
)
from pipelines.windows.event import Event
from pipelines.windows.operations import AggregateWindow


class AggregateBuffer(Window):
    """Accumulators, and of the events only what must be known when they leave."""

    __slots__ = (
        "_added",
        "_age",
        "_at",
        "_by_count",
        "_by_ticks",
        "_chain",
        "_clear",
        "_every_tick",
        "_evicted",
        "_fields",
        "_fires",
        "_group",
        "_items",
        "_keep",
        "_lifetime",
        "_loses_oldest",
        "_names",
        "_ticks",
        "_times",
        "_written",
    )

    def __init__(self, operation: AggregateWindow, key: Key, context: WindowContext) -> None:
        super().__init__(key, context)
        trigger, evict = operation.trigger, operation.evict
        self._chain: list[Accumulator] = accumulators(operation.aggregators, context)
        self._names = [aggregator.named for aggregator in operation.aggregators]
        self._added = [accumulator.added for accumulator in self._chain]
        self._evicted = [accumulator.evicted for accumulator in self._chain]
        self._fields = needed_fields(self._chain)
        self._clear = operation.clear_on_trigger
        self._by_count, self._by_ticks = trigger.events or 0, trigger.ticks
        self._age, self._keep = evict.age, evict.keeps
        # A threshold of 0 is never reached, but for one case of the original (rules 5.1.4).
        self._every_tick = trigger.threshold == 0 and self._by_ticks is None and self._age is not None
        self._lifetime = operation.window_evict_millis
        self._loses_oldest = operation.loses_oldest
        # A user's aggregator must hear when all leave.
        needs_items = self._loses_oldest or (self._clear and self._fields is None)
        self._items: deque[Any] | None = deque() if needs_items else None
        self._times: deque[int] = deque()
        self._group: dict[str, Any] | None = None
        self._ticks = self._fires = self._written = self._at = 0

    def event(self, event: Event, now: int) -> Sequence[Event]:
        if self._group is None:
            self._begin(event, now)
        if self._age is not None:
            self._drop_old(now)
            if not self._times:
                self.wake = min(self.wake, tick_of_age(now, self._age))
            self._times.append(now)
        items = self._items
        if items is not None:
            if self._keep and len(items) >= self._keep:
                self._evict_oldest()
            items.append(event)
        for added in self._added:
            added(event)
        self._written = now
        if self._by_count:
            self._ticks += 1
            if self._ticks == self._by_count:
                return self._fire(now)
        return NOTHING

    def _begin(self, event: Event, now: int) -> None:
        self._group = {name: event[name] for name in self.context.partition if name in event}
        self._written, self._at = now, now // SECOND
        self.wake = self._due()

    def _drop_old(self, now: int) -> None:
        times = self._times
        while times and now - times[0] >= self._age:  # type: ignore[operator]
            times.popleft()
            self._evict_oldest()

    def _evict_oldest(self) -> None:
        oldest = self._items.popleft()  # type: ignore[union-attr]
        for evicted in self._evicted:
            evicted(oldest)

    def advance(self, now: int) -> Sequence[Fired]:
        last = min(now, self._written + self._lifetime - 1) // SECOND
        made: list[Fired] = []
        while (tick := self._next_fire()) is not None and tick <= last:
            self._at = tick
            if self._age is not None:
                self._drop_old(tick * SECOND)
            made += [(event, tick * SECOND) for event in self._fire(tick * SECOND)]
        if last > self._at:
            self._ticks += last - self._at if self._by_ticks is not None else 0
            self._at = last
            if self._age is not None:
                self._drop_old(last * SECOND)
        self.wake = self._due()
        return made

    def _next_fire(self) -> int | None:
        """Return the next tick that emits (rules 5.1.2), counted from 1970."""
        if self._every_tick:
            return self._at + 1
        left = 0 if self._by_ticks is None else self._by_ticks - self._ticks
        return self._at + left if left > 0 else None

    def _fire(self, now: int) -> list[Event]:
        """Emit, and clear if asked to (rules 5.1.3)."""
        made = []
        for fields in rows_of([accumulator.aggregate() for accumulator in self._chain], self._names):
            made.append(self.made({**self._group, **fields} if self._group else fields, now, self._fires))
            self._fires += 1
        if self._clear:
            self._empty()
        self._ticks = 0
        return made

    def _empty(self) -> None:
        if self._items is not None:
            if self._fields is None:
                for event in reversed(self._items):
                    for accumulator in self._chain:
                        accumulator.evicted(event)
            self._items.clear()
        self._times.clear()
        for accumulator in self._chain:
            accumulator.clear()

    def _due(self) -> int:
        if self._group is None:
            return FAR
        clock = self._written + self._lifetime
        if (tick := self._next_fire()) is not None:
            clock = min(clock, tick * SECOND)
        if self._times:
            # Sooner there is no need: whoever looks at the window drops the old ones first.
            clock = min(clock, tick_of_age(self._times[-1], self._age or 0))
        return clock

    def expired(self, now: int) -> bool:
        return self._group is not None and now - self._written >= self._lifetime

    def check(self) -> None:
        for accumulator in self._chain:
            accumulator.check_total(self._items if self._loses_oldest else None)

    def save(self) -> dict[str, Any]:
        readd = self._items is not None
        return {
            "group": self._group,
            "counts": [self._ticks, self._fires, self._written, self._at],
            "items": None if self._items is None else [self._slim(event) for event in self._items],
            "times": list(self._times),
            "chain": [accumulator.save() if accumulator.saves or not readd else None for accumulator in self._chain],
        }

    def _slim(self, event: Mapping[str, Any]) -> list[Any]:
        if self._fields is None:
            return saved_event(event)  # type: ignore[arg-type]
        return [event.get(name) for name in self._fields]

    def restore(self, state: dict[str, Any]) -> None:
        self._group = state["group"]
        self._ticks, self._fires, self._written, self._at = state["counts"]
        self._times = deque(state["times"])
        if self._items is not None:
            self._items = deque(self._whole(item) for item in state["items"])
        for accumulator, saved in zip(self._chain, state["chain"], strict=True):
            if accumulator.saves or self._items is None:
                accumulator.restore(saved)
                continue
            for item in self._items:
                accumulator.added(item)
        self.wake = self._due()

    def _whole(self, item: Sequence[Any]) -> Mapping[str, Any]:
        if self._fields is None:
            return restored_event(item)
        return dict(zip(self._fields, item, strict=True))


def needed_fields(chain: Sequence[Accumulator]) -> tuple[str, ...] | None:
    """Return the fields of an event that must be known when it leaves; None: all of it."""
    names: dict[str, None] = {}
    for accumulator in chain:
        if accumulator.fields is None:
            return None
        names |= dict.fromkeys(accumulator.fields)
    return tuple(names)


def rows_of(values: Sequence[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the fields of each result: one, or where aggregators give lists, one for each combination.

    An empty list makes no result; beside other aggregators its fields are left out.
    """
    if not any(type(value) is Rows for value in values):
        return [dict(zip(names, values, strict=True))]
    alone = len(values) == 1
    lists = []
    for value, name in zip(values, names, strict=True):
        if isinstance(value, Rows):
            lists.append(list(value) or ([] if alone else [{}]))
        else:
            lists.append([{name: value}])
    return crossed(lists)


def crossed(lists: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return every combination of the aggregators' rows, the last varies fastest (Trident rules 1.4)."""
    if len(lists) == 1:
        return lists[0]
    return [{name: value for row in product for name, value in row.items()} for product in itertools.product(*lists)]
