"""All windows of one stateful operation, or of one bucket of its keys."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from pipelines.aggregators.exact import TotalError
from pipelines.aggregators.values import KeptEntries
from pipelines.aggregators.window import Accumulator, EventAggregator, Types
from pipelines.graph.events import nth
from pipelines.windows.aggregate import AggregateBuffer
from pipelines.windows.aligned import AlignedBuffer, SessionBuffer
from pipelines.windows.buffer import (
    FAR,
    Fired,
    Key,
    Window,
    WindowContext,
    former_texts,
    key_of,
    key_text,
    restored_event,
    saved_event,
    shown_key,
)
from pipelines.windows.event import Event
from pipelines.windows.join import JoinBuffer
from pipelines.windows.operations import (
    AggregateWindow,
    AlignedWindow,
    CollectWindow,
    JoinWindow,
    SessionWindow,
    SortWindow,
    SwitchWindow,
    TaskWindow,
)
from pipelines.windows.sort import SortBuffer
from pipelines.windows.switch import SwitchBuffer
from pipelines.windows.task_window import TaskBuffer


class _WholeEvents(EventAggregator):
    """All events of the window as structs of their fields."""

    def __init__(self, output: str) -> None:
        self.output = output

    def accumulator(self) -> Accumulator:
        return _Events()

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        return [(self.output, None)]

    def check(self) -> None:
        """Accept: it needs no field."""


class _Events(KeptEntries):
    def __init__(self) -> None:
        super().__init__(None)

    def entry(self, event: Mapping[str, Any]) -> dict[str, Any]:
        return dict(event)

    def aggregate(self) -> list[dict[str, Any]]:
        return list(self.entries)


@lru_cache(maxsize=64)
def _as_aggregate(operation: CollectWindow) -> AggregateWindow:
    return AggregateWindow(
        (_WholeEvents(operation.field),),
        operation.trigger,
        operation.evict,
        operation.clear_on_trigger,
        operation.window_evict_millis,
    )


KINDS: dict[type, Callable[[Any, Key, WindowContext], Window]] = {
    AggregateWindow: AggregateBuffer,
    CollectWindow: lambda operation, key, context: AggregateBuffer(_as_aggregate(operation), key, context),
    AlignedWindow: AlignedBuffer,
    SessionWindow: SessionBuffer,
    SortWindow: SortBuffer,
    SwitchWindow: SwitchBuffer,
    JoinWindow: JoinBuffer,
    TaskWindow: TaskBuffer,
}


def window_for(operation: Any, key: Key, context: WindowContext) -> Window:
    """Return the window of a key."""
    kind = KINDS.get(type(operation))
    if kind is None:
        raise TypeError(f"{type(operation).__name__} is no stateful operation")
    return kind(operation, key, context)


Item = tuple[Event, int, str]
"""An event, its clock in ms, and its place among the events of that clock."""

IN_ORDER = itemgetter(1, 2)


class KeyedWindows:
    """The windows by key. Each sees the ticks up to its event's clock, then the event (contract of `Window`).

    Args:
        operation: one of `pipelines.windows.operations`.
        context: where it stands; its `partition` fields make the key.
    """

    def __init__(self, operation: Any, context: WindowContext) -> None:
        self._operation, self._context = operation, context
        self._partition = context.partition
        self._raw = _raw_key(context.partition)
        self._windows: dict[str, Window] = {}
        # Windows by the raw values of the partition fields, where these are text and whole numbers.
        self._known: dict[Any, Window] = {}
        self._timers: list[tuple[int, int, Window]] = []
        self._timer_number = 0
        self._pending: list[Item] = []
        # Windows that got an event since the last clock.
        self._fed: dict[str, Window] = {}
        self._clock: int | None = None
        self._bang = "!" * (1 + context.depth)

    def __len__(self) -> int:
        return len(self._windows)

    def key_of(self, event: Event) -> Key:
        """Return for each partition field its different values in order (Flowmix rules 4, partition)."""
        return key_of(event, self._partition)

    def texts(self, events: Iterable[Event]) -> set[str]:
        """Return what tells apart the keys of some events (`key_text`)."""
        known, found = set[Any](), set[str]()
        for event in events:
            raw = self._raw(event)
            if raw is None or raw not in known:
                key = self.key_of(event)
                found |= {key_text(key), *former_texts(event, key, self._partition)}
                if raw is not None:
                    known.add(raw)
        return found

    def feed(self, events: Iterable[Item], clock: int) -> list[Item]:
        """Run events up to `clock`, then the ticks up to `clock` for all windows.

        Args:
            events: in order of (clock, order); those after `clock` are held back for a later call.
            clock: ms; never less than in the call before.

        Returns:
            the results in order of (clock, order): those of an event have its clock and order with a number added, those
            of a tick its clock and an order before that of every event.

        Raises:
            ValueError: if an event or the clock goes back.
        """
        if self._clock is not None and clock < self._clock:
            raise ValueError(f"the clock goes back from {self._clock} to {clock}")
        results: list[Item] = []
        self._fed.clear()
        self._run(self._with_pending(events), clock, results)
        self._tick_all(clock, results)
        self._clock = clock
        results.sort(key=IN_ORDER)
        return results

    def check(self, windows: Iterable[Window] | None = None) -> None:
        """Check that what windows hold fits what they will make of it.

        Args:
            windows: None: those that got an event in the last `feed`, for the others are no fault of it.

        Raises:
            ArithmeticError: a total does not, with the key of its window.
        """
        if windows is None:
            windows = [window for text, window in self._fed.items() if self._windows.get(text) is window]
        for window in windows:
            try:
                window.check()
            except TotalError as error:
                values = (own[0] if len(own) == 1 else list(own) for own in window.key)
                key = shown_key(dict(zip(self._partition, values, strict=True)))
                raise ArithmeticError(f"{error} in the window{key}") from error

    def due(self) -> int | None:
        """Return the earliest clock at which `feed` without events would do anything; None: never."""
        timers = self._timers
        while timers:
            at, _, window = timers[0]
            clock = window.due() if window.entry == at else None
            if clock == at:
                break
            heapq.heappop(timers)
            if clock is not None:
                # The window's end moved on with its events.
                window.wake = clock
                self._set_timer(window)
        clocks = [at for at, _, _ in timers[:1]] + [now for _, now, _ in self._pending[:1]]
        return min(clocks, default=None)

    @property
    def pending(self) -> Sequence[Item]:
        """Return the events that wait for a later clock."""
        return self._pending

    @property
    def holds_back(self) -> bool:
        """Check whether events wait for a later clock."""
        return bool(self._pending)

    def _with_pending(self, events: Iterable[Item]) -> Iterable[Item]:
        if not self._pending:
            return events
        held, self._pending = self._pending, []
        return heapq.merge(held, events, key=IN_ORDER)

    def _run(self, events: Iterable[Item], clock: int, results: list[Item]) -> None:
        behind = self._clock if self._clock is not None else -FAR
        known, raw_key, pending, fed = self._known, self._raw, self._pending, self._fed
        for item in events:
            event, now, order = item
            if now > clock:
                pending.append(item)
                continue
            if now < behind:
                raise ValueError(f"event {event.id!r} of clock {now} comes after clock {behind}")
            behind = now
            raw = raw_key(event)
            window = known.get(raw)
            if window is None:
                window = self._window_of(event, raw, now, results)
            if now >= window.wake and not self._awake(window, now, results):
                window = self._window_of(event, raw, now, results)
            made = window.event(event, now)
            fed[window.text] = window
            if made:
                for number, result in enumerate(made):
                    results.append((result, now, nth(order, number)))
            if window.wake < window.entry:
                self._set_timer(window)

    def _window_of(self, event: Event, raw: Any, now: int, results: list[Item]) -> Window:
        key = key_of(event, self._partition)
        text = key_text(key)
        window = self._windows.get(text)
        if window is None:
            window = self._former_window(event, key, now, results)
            if window is None:
                window = window_for(self._operation, key, self._context)
            window.key, window.text, window.identity = key, text, None
            self._windows[text] = window
        if raw is not None:
            self._known[raw] = window
            window.raw.append(raw)
        return window

    def _former_window(self, event: Event, key: Key, now: int, results: list[Item]) -> Window | None:
        """Take out the window that an earlier release has kept for a key under another text; None: there is none."""
        for text in former_texts(event, key, self._partition):
            window = self._windows.get(text)
            # What it has made by then has the ids that it had, wherever a batch ends.
            if window is not None and (now < window.wake or self._awake(window, now, results)):
                return self._windows.pop(text)
        return None

    def _awake(self, window: Window, now: int, results: list[Item]) -> bool:
        """Take what the ticks up to `now` make of a window; return whether it lives on, else it is forgotten."""
        self._take_fired(window, window.advance(now), results)
        if window.expired(now):
            self._forget(window)
            return False
        return True

    def _take_fired(self, window: Window, fired: Iterable[Fired], results: list[Item]) -> None:
        number, before = 0, None
        for event, at in fired:
            number = number + 1 if at == before else 0
            before = at
            results.append((event, at, nth(f"{self._bang}{window.text}", number)))

    def _forget(self, window: Window) -> None:
        del self._windows[window.text]
        window.entry = -FAR
        for raw in window.raw:
            self._known.pop(raw, None)

    def _set_timer(self, window: Window) -> None:
        window.entry = window.wake
        self._timer_number += 1
        heapq.heappush(self._timers, (window.wake, self._timer_number, window))

    def _tick_all(self, clock: int, results: list[Item]) -> None:
        timers = self._timers
        while timers and timers[0][0] <= clock:
            at, _, window = heapq.heappop(timers)
            if window.entry != at:
                continue
            if window.wake <= clock:
                self._take_fired(window, window.advance(clock), results)
                if window.expired(clock):
                    self._forget(window)
                    continue
                if window.wake <= clock:
                    raise RuntimeError(f"the window {window.text} at clock {clock} wakes at {window.wake} without end")
            window.entry = FAR
            if window.wake < FAR:
                self._set_timer(window)

    def save(self) -> dict[str, Any]:
        """Return the state of all windows and what is held back, as plain data."""
        return {
            "clock": self._clock,
            "pending": [[saved_event(event), now, order] for event, now, order in self._pending],
            "windows": [[window.key, window.save()] for window in self._windows.values()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `save` of the same operation gave; behind a window may be the text under which it is kept."""
        self._clock = state["clock"]
        self._pending = [(restored_event(event), now, order) for event, now, order in state["pending"]]
        self._windows, self._known, self._timers = {}, {}, []
        for values, saved, *text in state["windows"]:
            key = tuple(map(tuple, values))
            window = window_for(self._operation, key, self._context)
            window.restore(saved)
            window.text = text[0] if text else window.text
            self._windows[window.text] = window
            if window.wake < FAR:
                self._set_timer(window)

    def __iter__(self) -> Iterator[Window]:
        return iter(self._windows.values())


def _raw_key(partition: tuple[str, ...]) -> Callable[[Event], Any]:
    """Return what finds a window at once: the fields' values as they are, if text or whole numbers; else None.

    Values of other types may be equal and not one key (True and 1), or one key and not equal (lists in another order).
    """
    plain = {str, int, type(None)}
    if not partition:
        return lambda event: ""
    if len(partition) > 1:

        def several(event: Event) -> Any:
            raw = tuple([event.get(field) for field in partition])
            return raw if plain.issuperset(map(type, raw)) else None

        return several
    field = partition[0]

    def one(event: Event) -> Any:
        raw = event.get(field)
        return raw if type(raw) is str or type(raw) is int else None

    return one
