"""A window: what one key of a stateful operation keeps of its events, driven by them and by the clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final
from unicodedata import unidata_version

from pipelines.aggregators.ordering import distinct, order_key, values_of
from pipelines.aggregators.window import Accumulator, EventAggregator, State, WindowAggregator
from pipelines.windows.event import Event, alone

SECOND: Final = 1000
FAR: Final = 1 << 62
"""A clock that never comes."""

TEXT_FORM: Final = f"1, Unicode {unidata_version}"
"""The form of the texts of keys (`key_text`). What `repr` escapes goes by Python's tables of Unicode, which change.

The number grows with a change of `key_text`: then states of before are looked up by texts of now (`Arrays.with_own_texts`).
"""

Key = tuple[tuple[Any, ...], ...]
"""For each partition field its different values in order; none where it is absent (Flowmix rules 4, partition)."""

Fired = tuple[Event, int]
"""An event that a tick made, and the clock of that tick."""

NOTHING: Final[tuple[Event, ...]] = ()


@dataclass(frozen=True)
class WindowContext:
    """The place of an operation.

    Args:
        flow, stream: their names.
        operation: the operation's id within the stream, stable over changes of the flow elsewhere.
        partition: names of the partition fields; none: one window for everything.
        depth: how many stateful operations lie before it on the longest way from a source. At the same clock what a tick
            fires here comes before what a tick fired upstream, as the tick does.
        several: fields that a join made arrays on Spark: of one value a user's aggregator gets the value, as on other engines.
        lags: by how many ms results of aligned windows on a way here are behind the clock: an aligned window places them
            by their own time.
    """

    flow: str
    stream: str
    operation: int | str
    partition: tuple[str, ...] = ()
    depth: int = 0
    several: frozenset[str] = frozenset()
    lags: frozenset[int] = frozenset()

    @cached_property
    def prefix(self) -> str:
        """The beginning of the ids of its results."""
        return f"{self.flow}-{self.stream}-{self.operation}"


def accumulators(aggregators: Iterable[EventAggregator], context: WindowContext) -> list[Accumulator]:
    """Return new accumulators for one window."""
    return [
        _Behind(aggregator.accumulator(), context.several)
        if context.several and isinstance(aggregator, WindowAggregator)
        else aggregator.accumulator()
        for aggregator in aggregators
    ]


class _Behind(Accumulator):
    """A user's aggregator at work behind a join."""

    def __init__(self, inner: Accumulator, several: frozenset[str]) -> None:
        self._inner, self._several = inner, several
        self.fields, self.saves = inner.fields, inner.saves

    def added(self, event: Any) -> None:
        self._inner.added(alone(event, self._several))

    def evicted(self, event: Any) -> None:
        self._inner.evicted(alone(event, self._several))

    def aggregate(self) -> Any:
        return self._inner.aggregate()

    def clear(self) -> None:
        self._inner.clear()

    def save(self) -> State:
        return self._inner.save()

    def restore(self, state: State) -> None:
        self._inner.restore(state)


class Window(ABC):
    """One window. Its clock never goes back. Ticks come at every multiple of a second, before the events at that clock.

    Attributes:
        wake: a clock before which `advance` has nothing to do (it may have nothing to do then either).
        entry, raw: for `KeyedWindows`: the clock of its timer, and by what values it is found at once.
    """

    __slots__ = ("context", "entry", "identity", "key", "raw", "text", "wake")

    def __init__(self, key: Key, context: WindowContext) -> None:
        self.key, self.context = key, context
        self.text = key_text(key)
        self.identity: str | None = None
        self.raw: list[Any] = []
        self.wake, self.entry = FAR, FAR

    @abstractmethod
    def event(self, event: Event, now: int) -> Sequence[Event]:
        """Return what an event at clock `now` makes, in order. The ticks up to `now` have been delivered, if `wake` <= `now`."""

    def advance(self, now: int) -> Sequence[Fired]:
        """Return what the ticks up to `now` make, in order, each with its clock; a tick after the window's end makes nothing."""
        return ()

    def due(self) -> int | None:
        """Return the earliest clock at which `advance` emits or empties the window, or the window has expired; None: never."""
        clock = self._due()
        return None if clock >= FAR else clock

    @abstractmethod
    def _due(self) -> int:
        """Return the same; FAR: never."""

    @abstractmethod
    def expired(self, now: int) -> bool:
        """Check whether the window is as good as new and may be forgotten (Flowmix rules 5.1.4)."""

    @abstractmethod
    def save(self) -> dict[str, Any]:
        """Return the state as plain data: None, bool, numbers, text, bytes, dates; lists, tuples, dicts, sets of these."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Take what `save` gave."""

    def check(self) -> None:  # noqa: B027 (most hold no totals)
        """Check that the totals fit their types, behind a batch: it fails, not the ones from the next emission on.

        Raises:
            TotalError: one does not.
        """

    def made(self, fields: dict[str, Any], now: int, number: int) -> Event:
        """Return the n-th event that this window makes; `now` keeps apart the ids of windows of one key."""
        if self.identity is None:
            self.identity = identity_of(self.context, self.text)
        return Event(fields, f"{self.identity}-{now}-{number}", now, self.context.stream)


def identity_of(context: WindowContext, text: str) -> str:
    """Return the beginning of the ids of a key's results."""
    return f"{context.prefix}-{blake2b(text.encode(errors='surrogatepass'), digest_size=10).hexdigest()}"


def key_of(event: Event, partition: Sequence[str]) -> Key:
    """Return the key of an event: [a, b] and [b, a] are one key, 0.0 and -0.0, too; no two different keys look alike."""
    return tuple(tuple(distinct(map(_with_plain_zeros, values_of(event.get(field))))) for field in partition)


def former_texts(event: Event, key: Key, partition: Sequence[str]) -> Iterator[str]:
    """Yield under what texts windows of an event's key may be that earlier releases have kept.

    For these -0.0 was another value than 0.0, and of both in one list the last counted; the values of a map were its entries.
    """
    own = key
    # What has no zero has no such text.
    if "0.0" in key_text(key):
        own = tuple(tuple(distinct(values_of(event.get(field)))) for field in partition)
        yield key_text(own)
        yield key_text(tuple(tuple(map(_with_minus_zeros, values)) for values in key))
    yield key_text(_by_entries(own))


def _by_entries(key: Key) -> Key:
    return tuple(
        tuple(distinct(values[0].items())) if values and isinstance(values[0], dict) and values[0] else values
        for values in key
    )


def _with_plain_zeros(value: Any) -> Any:
    """Return a value with 0.0 for each -0.0 in it."""
    if isinstance(value, float):
        return value + 0.0
    return _of_parts(_with_plain_zeros, value)


def _with_minus_zeros(value: Any) -> Any:
    if isinstance(value, float):
        return value or -0.0
    return _of_parts(_with_minus_zeros, value)


def _of_parts(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [*map(change, value)] if isinstance(value, list) else tuple(map(change, value))
    if isinstance(value, dict):
        return {change(name): change(item) for name, item in value.items()}
    return {*map(change, value)} if isinstance(value, set | frozenset) else value


def key_text(key: Key) -> str:
    """Return a text that tells keys apart, for the order of results and for ids."""
    return ",".join("|".join(map(_text, values)) for values in key)


def shown_key(fields: Mapping[str, Any]) -> str:
    """Return a window's key for messages, behind what it is of; nothing where there is one window for everything."""
    return " of " + ", ".join(f"{name} {value!r}" for name, value in fields.items()) if fields else ""


def _text(value: Any) -> str:
    if type(value) is str or type(value) is int:
        return repr(value)
    if isinstance(value, list | tuple | dict | set | frozenset):
        return repr(order_key(value))
    name, inside = order_key(value)
    # A decimal and a float of one value are one key; True, 1 and 1.0 of one column do not meet.
    return f"{type(value).__name__ if name == 'number' else name}:{inside!r}"


def tick_of_age(clock: int, age: int) -> int:
    """Return the tick at which an event of that clock has that age; the tick of its own clock came before it."""
    return -(-(clock + max(age, 1)) // SECOND) * SECOND


def saved_event(event: Event) -> list[Any]:
    """Return an event as plain data."""
    return [event.id, event.timestamp, event.stream, dict(event)]


def restored_event(state: Sequence[Any]) -> Event:
    """Return what `saved_event` gave."""
    return Event(state[3], state[0], state[1], state[2])
