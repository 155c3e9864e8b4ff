"""The windows of `sort` (Flowmix rules 5.3)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from functools import total_ordering
from operator import itemgetter
from typing import Any, NamedTuple

from pipelines.aggregators.ordering import foremost
from pipelines.windows.buffer import (
    FAR,
    NOTHING,
    SECOND,
    Fired,
    Key,
    Window,
    WindowContext,
    restored_event,
    saved_event,
    tick_of_age,
)
from pipelines.windows.event import Event
from pipelines.windows.operations import PROGRESSIVE, TOP_N, TUMBLING, SortWindow


class Kept(NamedTuple):
    """An event of the window, by its place in the order; of equal ones the earlier comes first."""

    place: Any
    number: int
    clock: int
    event: Event


@total_ordering
class Descending:
    """A sort key turned round."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descending) and self.key == other.key

    def __lt__(self, other: Descending) -> bool:
        return other.key < self.key

    __hash__ = None  # type: ignore[assignment]


_PLACE: Callable[[Kept], Any] = itemgetter(0, 1)


class SortBuffer(Window):
    """The window's events, in order (tumbling: as they came, put in order when they go)."""

    __slots__ = (
        "_age",
        "_at",
        "_by",
        "_by_count",
        "_by_ticks",
        "_empties",
        "_kept",
        "_lifetime",
        "_mode",
        "_number",
        "_size",
        "_ticks",
        "_within",
        "_written",
    )

    def __init__(self, operation: SortWindow, key: Key, context: WindowContext) -> None:
        super().__init__(key, context)
        self._by, self._mode, self._size = operation.by, operation.mode, operation.size or 0
        trigger = operation.trigger if operation.mode != PROGRESSIVE else None
        self._by_count = None if trigger is None else trigger.events
        self._by_ticks = None if trigger is None else trigger.ticks
        self._within = None if trigger is None else trigger.within
        self._empties = operation.mode == TUMBLING or operation.flush
        self._age = None if operation.evict is None else operation.evict.age
        self._lifetime = operation.window_evict_millis
        self._kept: list[Kept] = []
        self._ticks = self._number = self._at = 0
        # None: no event yet; every number is the clock of one, as there is time before 1970.
        self._written: int | None = None

    def event(self, event: Event, now: int) -> Sequence[Event]:
        if self._written is None:
            self._written, self._at = now, now // SECOND
            self.wake = self._due()
        elif not self._kept:
            # An empty window is not woken by the ticks that its trigger counts.
            self.advance(now)
        self._written = now
        self._drop_old(now)
        self._add(Kept(place(event, self._by), self._number, now, event))
        self._number += 1
        if self._mode == PROGRESSIVE:
            return self._progress()
        if self._by_count is not None:
            self._ticks += 1
            if self._ticks == self._by_count:
                return self._fire()
        elif self._within is not None and self._near(self._within):
            return self._fire()
        return NOTHING

    def _add(self, new: Kept) -> None:
        """Put an event into the window; a full top-N lets the last one go, be it the new one (the fault of rules 5.3.6)."""
        if self._mode == TUMBLING:
            self._kept.append(new)
            if len(self._kept) == 1:
                self.wake = min(self.wake, self._due())
            return
        full = self._mode == TOP_N and self._age is None and len(self._kept) >= self._size
        if full and not new.place < self._kept[-1].place:
            return
        insort(self._kept, new, key=_PLACE)
        if full:
            self._kept.pop()
        if len(self._kept) == 1:
            self.wake = min(self.wake, self._due())

    def _progress(self) -> Sequence[Event]:
        """Return the whole window, or when it is full the last in the order, which leaves (rules 5.3.4)."""
        if len(self._kept) >= self._size:
            return (self._kept.pop().event,)
        return [item.event for item in self._kept]

    def _near(self, within: int) -> bool:
        """Check whether the youngest and the oldest of two events or more are at most so many ms apart (rules 5.3.3)."""
        if len(self._kept) < 2:
            return False
        if self._mode == TUMBLING:
            first, last = self._kept[0].clock, self._kept[-1].clock
        else:
            clocks = [item.clock for item in self._kept]
            first, last = min(clocks), max(clocks)
        return last - first <= within

    def _fire(self) -> list[Event]:
        shown = self._kept if self._mode == TOP_N else sorted(self._kept, key=_PLACE)
        made = [item.event for item in (shown[: self._size] if self._mode == TOP_N else shown)]
        if self._empties:
            self._kept = []
        self._ticks = 0
        return made

    def _drop_old(self, now: int) -> None:
        """Drop those of an age, oldest first wherever they stand in the order (the fault of rules 5.3.8)."""
        if self._age is not None and any(now - item.clock >= self._age for item in self._kept):
            self._kept = [item for item in self._kept if now - item.clock < self._age]

    def advance(self, now: int) -> Sequence[Fired]:
        if self._written is None:
            return ()
        last = min(now, self._written + self._lifetime - 1) // SECOND
        made: list[Fired] = []
        while (tick := self._next_fire()) is not None and tick <= last:
            if not self._kept:
                period = self._by_ticks or 1
                self._at, self._ticks = tick + (last - tick) // period * period, 0
                continue
            self._at = tick
            self._drop_old(tick * SECOND)
            made += [(event, tick * SECOND) for event in self._fire()]
        if last > self._at:
            if self._by_ticks is not None:
                self._ticks += last - self._at
            self._at = last
            self._drop_old(last * SECOND)
        self.wake = self._due()
        return made

    def _next_fire(self) -> int | None:
        if self._by_ticks is None:
            return None
        left = self._by_ticks - self._ticks
        return self._at + left if left > 0 else None

    def _due(self) -> int:
        if self._written is None:
            return FAR
        clock = self._written + self._lifetime
        if self._kept and (tick := self._next_fire()) is not None:
            clock = min(clock, tick * SECOND)
        if self._age is not None and self._kept:
            clock = min(clock, tick_of_age(self._written, self._age))
        return clock

    def expired(self, now: int) -> bool:
        return self._written is not None and now - self._written >= self._lifetime

    def save(self) -> dict[str, Any]:
        kept = [[saved_event(item.event), item.number, item.clock] for item in self._kept]
        return {"counts": [self._ticks, self._number, self._written, self._at], "kept": kept}

    def restore(self, state: dict[str, Any]) -> None:
        self._ticks, self._number, self._written, self._at = state["counts"]
        events = [(restored_event(event), number, clock) for event, number, clock in state["kept"]]
        self._kept = [Kept(place(event, self._by), number, clock, event) for event, number, clock in events]
        self.wake = self._due()


def place(event: Event, by: Sequence[tuple[str, bool]]) -> tuple[Any, ...]:
    """Return where an event stands: field by field, absent values last either way.

    If a field has several values, the one that comes first in the order counts.
    """
    ranks: list[Any] = []
    for field, descending in by:
        key = foremost(event.get(field), descending)
        if key is None:
            ranks.append((1,))
        else:
            ranks.append((0, Descending(key) if descending else key))
    return tuple(ranks)
