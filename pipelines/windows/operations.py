"""The stateful operations: frozen data that checks itself. `kinds.window_for` makes their windows.

Every check of a window operation is here, in the original's words and order (Flowmix rules 2). The fluent form and YAML make
these objects, and add the user's line to what they raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pipelines.aggregators.window import EventAggregator
from pipelines.bounds import LIFETIME_MS
from pipelines.ddl import added
from pipelines.errors import ChainOutputsError, PolicyError, WindowError
from pipelines.graph.fields import checked_name, distinct
from pipelines.windows.policy import COUNT, Policy

HOUR: Final = 3_600_000
"""How long a window lives after its last event unless the operation says otherwise, in ms (Flowmix rules 2)."""

PROGRESSIVE: Final = "progressive"
TUMBLING: Final = "tumbling"
TOP_N: Final = "top_n"


@dataclass(frozen=True)
class _Aggregating:
    """The common part of windows of aggregators."""

    aggregators: tuple[EventAggregator, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The fields that the aggregators say they read."""
        return distinct(name for aggregator in self.aggregators for name in aggregator.reads)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The fields that a result has beside the partition fields."""
        return tuple(name for aggregator in self.aggregators for name in aggregator.result_fields)


@dataclass(frozen=True)
class AggregateWindow(_Aggregating):
    """Values over a window's events (Flowmix rules 5.1): emitted by `trigger`, events leave by `evict`.

    Args:
        aggregators: at least one; their outputs have different names.
        trigger: COUNT events or TIME seconds after the last emission; TIME_DELTA_LT never fires.
        evict: COUNT keeps the last n (0: all), TIME drops events of that age, TIME_DELTA_LT keeps all.
        clear_on_trigger: whether an emission empties the window.
        window_evict_millis: a window that got no event for so long is forgotten.
    """

    trigger: Policy
    evict: Policy
    clear_on_trigger: bool = False
    window_evict_millis: int = HOUR

    def __post_init__(self) -> None:
        _aggregators("aggregate", self.aggregators)
        _policy("aggregate", self.trigger, "Aggregator operator needs to have trigger policy and threshold")
        _policy("aggregate", self.evict, "Aggregator operator needs to have eviction policy and threshold")
        _flag("aggregate", "clear_on_trigger", self.clear_on_trigger)
        _lifetime(self.window_evict_millis)
        _checked("aggregate", self.aggregators, self.outputs)

    @property
    def loses_oldest(self) -> bool:
        """Check whether the oldest events leave by themselves, and not all at once when an emission empties the window."""
        keep = self.evict.keeps
        emptied_before_full = self.clear_on_trigger and 0 < (self.trigger.events or 0) <= keep
        return self.evict.age is not None or (bool(keep) and not emptied_before_full)

    @property
    def label(self) -> str:
        """A short text for drawings and messages."""
        return f"aggregate {', '.join(map(str, self.aggregators))}, every {self.trigger}, of {self.evict}"


@dataclass(frozen=True)
class CollectWindow:
    """One event that holds all events of the window, as a list of their fields, oldest first.

    Policies, clearing and lifetime are those of `AggregateWindow`.

    Args:
        field: the field of the result that holds the list.
    """

    trigger: Policy
    evict: Policy
    clear_on_trigger: bool = False
    field: str = "events"
    window_evict_millis: int = HOUR
    inputs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _policy("collect", self.trigger, "Collect operator needs to have trigger policy and threshold")
        _policy("collect", self.evict, "Collect operator needs to have eviction policy and threshold")
        _flag("collect", "clear_on_trigger", self.clear_on_trigger)
        _lifetime(self.window_evict_millis)
        if not isinstance(self.field, str):
            raise WindowError("collect", f"field is the name of the list of events; got {self.field!r}")
        added("collect", self.field, ())

    @property
    def outputs(self) -> tuple[str, ...]:
        """The fields that a result has beside the partition fields."""
        return (self.field,)

    @property
    def label(self) -> str:
        """A short text for drawings and messages."""
        return f"collect {self.field}, every {self.trigger}, of {self.evict}"


BOUNDS: Final = ("window_start", "window_end")
"""Fields of a result of aligned and session windows: UTC timestamps, the end exclusive."""


@dataclass(frozen=True)
class SpanWindow(_Aggregating):
    """Values over spans of time that the clock opens and closes: what aligned and session windows have in common."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The fields that a result has beside the partition fields."""
        return (*BOUNDS, *super().outputs)


@dataclass(frozen=True)
class AlignedWindow(SpanWindow):
    """Values over windows that lie at fixed places in time: tumbling, or hopping where `size` is more than `every`.

    A window is emitted once, when the clock of the stream has reached its end, so the clock of an event decides: its time in
    a stream with `timestamp=`, else its arrival. Windows without events give no result. What comes behind the watermark
    goes to the late table, as everywhere.

    Args:
        aggregators: at least one; their outputs have different names, and none is one of `BOUNDS`.
        every: seconds from a window's start to the next one's.
        size: seconds that a window lasts; None: `every`.
        offset: seconds by which starts are moved: they are at `offset` behind each multiple of `every` since 1970 (UTC).
        time_zone: a name of the IANA database. Then `every` and `size` are whole days, which begin at `offset` behind
            midnight by that zone's clocks, and have 23 or 25 hours where those are put forward or back.
    """

    every: int
    size: int | None = None
    offset: int = 0
    time_zone: str | None = None

    def __post_init__(self) -> None:
        _aggregators("aligned", self.aggregators)
        _seconds("aligned", "every", self.every, least=1)
        _seconds("aligned", "size", self.lasts, least=self.every)
        if self.lasts > _MOST_OPEN * self.every:
            problem = f"each event would be in {-(-self.lasts // self.every)} windows, more than {_MOST_OPEN}"
            raise WindowError("aligned", problem, hint="a longer `every` or a shorter `size`")
        _seconds("aligned", "offset", self.offset, least=1 - self.every)
        if self.time_zone is not None:
            _zone(self.time_zone, self.every, self.lasts)
        _checked("aligned", self.aggregators, self.outputs)

    @property
    def lasts(self) -> int:
        """The seconds that a window lasts (a day has 86,400)."""
        return self.every if self.size is None else self.size

    @property
    def label(self) -> str:
        """A short text for drawings and messages."""
        size = "" if self.lasts == self.every else f" of {self.lasts} s"
        offset = f", offset {self.offset} s" if self.offset else ""
        zone = f", {self.time_zone}" if self.time_zone else ""
        return f"aligned {', '.join(map(str, self.aggregators))}, every {self.every} s{size}{offset}{zone}"


@dataclass(frozen=True)
class SessionWindow(SpanWindow):
    """Values over sessions: events of a key of which none is more than `gap` behind the one before.

    A session ends `gap` behind its last event (an event at that very ms still belongs to it, as in Spark's `session_window`)
    and is emitted once, as soon as the clock has passed that. Events are taken in the order of the clock, so a session that
    a later one would have merged is never emitted first; what comes behind the watermark goes to the late table.

    Args:
        aggregators: as of `AlignedWindow`.
        gap: seconds.
    """

    gap: int

    def __post_init__(self) -> None:
        _aggregators("session", self.aggregators)
        _seconds("session", "gap", self.gap, least=1)
        _checked("session", self.aggregators, self.outputs)

    @property
    def label(self) -> str:
        """A short text for drawings and messages."""
        return f"session {', '.join(map(str, self.aggregators))}, gap {self.gap} s"


@dataclass(frozen=True)
class SortWindow:
    """The window's events in order (Flowmix rules 5.3). Absent values come last; values of several types have an order too.

    Args:
        by: fields and whether each is descending, at least one.
        mode: "tumbling" emits all that came since the last emission; "top_n" the first `size` in the order of all that
            the window has seen; "progressive" keeps `size` events: below that each event emits the whole window, from
            then on the last in the order, which leaves.
        size: how many events (not for tumbling).
        trigger: when to emit; None for progressive, which looks at each event.
        flush: top_n: whether an emission empties the window.
        window_evict_millis: as of `AggregateWindow`.
        evict: top_n: None, or TIME: events of that age leave, and the window then keeps all younger ones.
    """

    by: tuple[tuple[str, bool], ...]
    mode: Literal["progressive", "tumbling", "top_n"]
    size: int | None = None
    trigger: Policy | None = None
    flush: bool = False
    window_evict_millis: int = HOUR
    evict: Policy | None = None

    def __post_init__(self) -> None:
        if not self.by:
            hint = 'sort("v", ...) or sort("v desc", ...)'
            raise WindowError("sort", "Sort operator needs at least one field name to sort by", hint=hint)
        eviction = "Sort operator needs an eviction policy and threshold"
        if self.mode not in (PROGRESSIVE, TUMBLING, TOP_N):
            seen = f"; got {self.mode}" if self.mode else ""
            raise WindowError("sort", f"{eviction}{seen}", hint="give one of progressive=n, tumbling=policy, top_n=n")
        if self.mode != TUMBLING and (not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1):
            raise WindowError("sort", f"{eviction}; {self.mode} takes a positive number of events, got {self.size!r}")
        if self.mode != PROGRESSIVE:
            _policy("sort", self.trigger, "Sort operator needs a trigger policy and threshold")
        elif self.trigger is not None:
            hint = "leave trigger out, or use top_n"
            raise WindowError("sort", "Sort operator: progressive is triggered by every event", hint=hint)
        _flag("sort", "flush", self.flush)
        if self.flush and self.mode != TOP_N:
            raise WindowError("sort", f"Sort operator: flush goes with top_n, not with {self.mode}")
        if self.evict is not None and (self.mode != TOP_N or self.evict.age is None):
            raise WindowError("sort", f"{self.mode} cannot evict by {self.evict}", hint="top_n takes Policy.time(s)")
        _lifetime(self.window_evict_millis)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The fields that it sorts by."""
        return distinct(name for name, _ in self.by)

    @property
    def label(self) -> str:
        """A short text for drawings and messages."""
        fields = ", ".join(f"{field} desc" if descending else field for field, descending in self.by)
        size = "" if self.size is None else f" {self.size}"
        return f"sort by {fields}, {self.mode}{size}" + (f", every {self.trigger}" if self.trigger else "")


@dataclass(frozen=True)
class SwitchWindow:
    """A gate that passes events until `open` is reached and then drops them until `close` is (Flowmix rules 5.4).

    The original's names: "open" says when the gate closes, "close" when it opens again. It starts passing.

    Args:
        open: COUNT: the n-th event closes it and is dropped; TIME t: the tick t + 1 of passing; TIME_DELTA_LT s: when
            the window is full and its last and first event are at most s seconds apart.
        evict: what is a full window: COUNT n events, or TIME s ticks of passing.
        close: COUNT m: after m dropped events the next one passes; TIME t: at tick t + 1; TIME_DELTA_LT: never.
        window_evict_millis: a gate that saw no event for so long (and for longer than its TIME thresholds) is
            forgotten: it is as new.
    """

    open: Policy
    evict: Policy
    close: Policy
    window_evict_millis: int = HOUR
    inputs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _policy("switch", self.open, "Stop gate operator must have an activation policy and threshold")
        _policy("switch", self.evict, "Stop gate operator must have an eviction policy and threshold")
        _policy("switch", self.close, "Stop gate operator must have an close policy and threshold")
        _lifetime(self.window_evict_millis)

    @property
    def idle_millis(self) -> int:
        """Return how long a gate is kept without events."""
        times = [(p.ticks + 2) * 1000 for p in (self.open, self.evict, self.close) if p.ticks is not None]
        return max([self.window_evict_millis, *times])

    @property
    def label(self) -> str:
        """A short text for drawings and messages."""
        return f"switch: open {self.open}, evict {self.evict}, close {self.close}"


@dataclass(frozen=True)
class JoinWindow:
    """Each event of the right stream with every stored event of the left one (Flowmix rules 4, join).

    Args:
        left, right: streams that the events come from.
        evict: COUNT keeps the last n left events of a key (0: all; TIME_DELTA_LT the same), TIME those younger than that.
        window_evict_millis: forget a key's left events that met no event of the key for so long; None: never.
    """

    left: str
    right: str
    evict: Policy
    window_evict_millis: int | None = None
    inputs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _policy("join", self.evict, "Eviction policy is required by the join operator")
        problem = "Left and right side streams required by the join operator"
        if not self.left or not self.right:
            raise WindowError("join", problem)
        if self.left == self.right:
            raise WindowError("join", f'{problem}: both are "{self.left}"')
        for side in (self.left, self.right):
            checked_name("stream", side)
        if self.window_evict_millis is not None:
            _lifetime(self.window_evict_millis)

    @property
    def label(self) -> str:
        """A short text for drawings and messages."""
        return f"join {self.left} with {self.right}, of {self.evict}"


@dataclass(frozen=True)
class TaskWindow:
    """Trident's windows (Trident rules 5): of a task's tuples, not grouped.

    By count: every `slide` tuples the last `size`. By duration: at every multiple of `slide` ms since 1970 (so that a
    bounded run and a stream agree; the original starts its timer with the worker) the tuples of the last `size` ms
    before it; none, no result. The aggregators' rows are crossed as in a chain (rules 1.4).

    Args:
        size, slide: tuples, or ms.
        unit: "count" or "duration".
        aggregations: `pipelines.graph.nodes.Aggregation`, one or more: what to compute over the window's tuples.
    """

    size: int
    slide: int
    unit: Literal["count", "duration"]
    aggregations: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        for length in (self.size, self.slide):
            if not isinstance(length, int) or isinstance(length, bool) or length not in LIFETIME_MS:
                raise PolicyError(self.unit, length, f"takes a positive whole length, {int(LIFETIME_MS.most)} at most")
        if self.slide > self.size:
            text = f"slideLength '{self.slide}' should always be less than windowLength '{self.size}'"
            raise PolicyError(self.unit, self.slide, f"of a window: {text}")

    @property
    def by_count(self) -> bool:
        """Check whether its lengths are numbers of tuples."""
        return self.unit == COUNT

    @property
    def inputs(self) -> tuple[str, ...]:
        """The fields that the aggregators read; nothing else is stored."""
        return distinct(name for aggregation in self.aggregations for name in aggregation.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The fields of a result."""
        return tuple(name for aggregation in self.aggregations for name in aggregation.outputs)

    @property
    def label(self) -> str:
        """A short text for drawings and messages."""
        unit = "" if self.by_count else " ms"
        return f"window of {self.size}{unit} every {self.slide}{unit}"


Grouping = AggregateWindow | CollectWindow | SpanWindow
"""Operations whose results are new events: of the partition fields and their own outputs."""

DAY: Final = 86_400
_MOST_OPEN: Final = (
    1000  # Windows of a key that are open at once, each with its aggregators: beyond that a hop is a mistake.
)
_LONGEST: Final = 10 * 366 * DAY


def _aggregators(operation: str, given: Sequence[Any]) -> None:
    problem = "Aggregator operator needs an aggregator class"
    if not given:
        raise WindowError(operation, problem, hint=f'{operation}(Count(), ...), {operation}(Sum("v"), ...)')
    for aggregator in given:
        if not isinstance(aggregator, EventAggregator):
            hint = "use those of pipelines.flowmix (with brackets: Count()), or a subclass of WindowAggregator"
            raise WindowError(operation, f"{problem}; {aggregator!r} is no aggregator of event windows", hint=hint)


def _checked(operation: str, given: Sequence[EventAggregator], outputs: tuple[str, ...]) -> None:
    for aggregator in given:
        aggregator.check()
    if len({name.lower() for name in outputs}) < len(outputs):
        raise ChainOutputsError(operation, outputs)
    added(operation, outputs, ())


def _flag(operation: str, name: str, given: object) -> None:
    # 0, 1 and None are as they were written in flows that run: another value would be another window, which begins empty.
    if given is not None and not isinstance(given, int):
        raise WindowError(operation, f"{name} is True or False; got {given!r}")


def _seconds(operation: str, name: str, given: object, *, least: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= _LONGEST:
        raise WindowError(operation, f"{name} is a whole number of seconds from {least} to {_LONGEST}; got {given!r}")


def _zone(name: str, every: int, size: int) -> None:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        hint = 'a name like "Europe/Berlin" or "UTC"'
        raise WindowError("aligned", f"there is no time zone {name!r}", hint=hint) from error
    if every % DAY or size % DAY:
        problem = f"windows in a time zone are of whole days ({DAY} s); got every {every} s, size {size} s"
        raise WindowError("aligned", problem, hint="leave time_zone out, and move shorter windows by offset")


def _policy(operation: str, given: object, problem: str) -> None:
    if not isinstance(given, Policy):
        seen = "" if given is None else f"; got {given!r}"
        hint = "Policy.count(n), Policy.time(seconds) or Policy.time_delta_lt(seconds)"
        raise WindowError(operation, f"{problem}{seen}", hint=hint)


def _lifetime(milliseconds: int) -> None:
    if not isinstance(milliseconds, int) or isinstance(milliseconds, bool) or milliseconds not in LIFETIME_MS:
        raise PolicyError("window_evict_millis", milliseconds, f"takes {LIFETIME_MS}")
