"""The windows of `aligned` and `session`: spans of time with aggregators of their own, emitted when the clock has passed them.

The places of aligned windows are those of Spark's `window`, sessions are those of its `session_window`; days of a time zone
follow its civil calendar (`zoneinfo`), which Spark's do not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo

from pipelines.aggregators.window import Accumulator
from pipelines.windows.aggregate import rows_of
from pipelines.windows.buffer import FAR, NOTHING, SECOND, Fired, Key, Window, WindowContext, accumulators
from pipelines.windows.event import Event
from pipelines.windows.operations import BOUNDS, DAY, AlignedWindow, SessionWindow, SpanWindow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class FixedPlaces:
    """Windows at multiples of a length; all in ms."""

    every: int
    size: int
    offset: int

    def around(self, at: int) -> Iterator[tuple[int, int]]:
        """Yield the windows (start and exclusive end, in ms since 1970) that hold a time, the earliest first."""
        last = (at - self.offset) // self.every * self.every + self.offset
        count = -(-(self.size - (at - last)) // self.every)
        for number in range(count - 1, -1, -1):
            start = last - number * self.every
            yield start, start + self.size


@dataclass(frozen=True)
class DayPlaces:
    """Windows of whole days by the clocks of a zone, counted from 1970-01-01.

    Attributes:
        every, size: days.
        offset: seconds behind midnight by the zone's clocks. A time that the clocks leave out is an hour later, and of one
            that they show twice the first counts (`fold=0`).
    """

    zone: ZoneInfo
    every: int
    size: int
    offset: int

    def around(self, at: int) -> Iterator[tuple[int, int]]:
        local = (_EPOCH + timedelta(milliseconds=at)).astimezone(self.zone)
        # Within a day of the right one, whatever the offset and the zone's clocks do.
        last = (local.date().toordinal() - _FIRST_DAY - self.offset // DAY + 1) // self.every * self.every
        while self.begins(last) > at:
            last -= self.every
        first = last
        while self.begins(first - self.every + self.size) > at:
            first -= self.every
        for day in range(first, last + 1, self.every):
            start, end = self.begins(day), self.begins(day + self.size)
            # A day that the zone has skipped begins with the next one, whose window is the one that counts.
            if end > at and start < self.begins(day + self.every):
                yield start, end

    def begins(self, day: int) -> int:
        """Return when a window that begins on a day would begin, in ms; `day` counts from 1970-01-01 by the zone's calendar."""
        midnight = datetime.combine(date.fromordinal(_FIRST_DAY + day), time())
        local = (midnight + timedelta(seconds=self.offset)).replace(tzinfo=self.zone)
        return (local - _EPOCH) // timedelta(milliseconds=1)


def places_of(operation: AlignedWindow) -> FixedPlaces | DayPlaces:
    """Return where the windows of an operation lie."""
    if operation.time_zone is None:
        return FixedPlaces(operation.every * SECOND, operation.lasts * SECOND, operation.offset * SECOND)
    return DayPlaces(ZoneInfo(operation.time_zone), operation.every // DAY, operation.lasts // DAY, operation.offset)


class Span:
    """A window that is open: its bounds in ms, and its aggregators at work."""

    __slots__ = ("chain", "end", "start")

    def __init__(self, start: int, end: int, chain: list[Accumulator]) -> None:
        self.start, self.end, self.chain = start, end, chain


class SpanBuffer(Window):
    """The open spans of a key, the one that ends first at the front."""

    __slots__ = ("_group", "_makers", "_names", "_spans")

    def __init__(self, operation: SpanWindow, key: Key, context: WindowContext) -> None:
        super().__init__(key, context)
        self._makers = operation.aggregators
        self._names = [aggregator.named for aggregator in operation.aggregators]
        self._spans: list[Span] = []
        self._group: dict[str, Any] | None = None

    @abstractmethod
    def _spans_of(self, event: Event, now: int) -> Iterable[Span]:
        """Return the spans that an event is in; they are open."""

    @abstractmethod
    def _closes(self, span: Span) -> int:
        """Return the first clock at which no event of the span can come any more."""

    def event(self, event: Event, now: int) -> Sequence[Event]:
        if self._group is None:
            self._group = {name: event[name] for name in self.context.partition if name in event}
        for span in self._spans_of(event, now):
            for accumulator in span.chain:
                accumulator.added(event)
        self.wake = self._closes(self._spans[0])
        return NOTHING

    def advance(self, now: int) -> Sequence[Fired]:
        made: list[Fired] = []
        before, number = -FAR, 0
        while self._spans and (clock := self._closes(self._spans[0])) <= now:
            span = self._spans.pop(0)
            for fields in self._results(span):
                number = number + 1 if clock == before else 0
                before = clock
                event = self.made(fields, clock, number)
                event.timestamp = span.end - 1
                made.append((event, clock))
        self.wake = self._due()
        return made

    def _results(self, span: Span) -> Iterator[dict[str, Any]]:
        start, end = (_EPOCH + timedelta(milliseconds=at) for at in (span.start, span.end))
        for fields in rows_of([accumulator.aggregate() for accumulator in span.chain], self._names):
            yield {**(self._group or {}), **dict(zip(BOUNDS, (start, end), strict=True)), **fields}

    def _opened(self, start: int, end: int) -> Span:
        return Span(start, end, accumulators(self._makers, self.context))

    def _due(self) -> int:
        return self._closes(self._spans[0]) if self._spans else FAR

    def expired(self, now: int) -> bool:
        return not self._spans and self._group is not None

    def check(self) -> None:
        for span in self._spans:
            for accumulator in span.chain:
                accumulator.check_total()

    def save(self) -> dict[str, Any]:
        spans = [[span.start, span.end, [accumulator.save() for accumulator in span.chain]] for span in self._spans]
        return {"group": self._group, "spans": spans}

    def restore(self, state: dict[str, Any]) -> None:
        self._group = state["group"]
        for start, end, chain in state["spans"]:
            span = self._opened(start, end)
            for accumulator, saved in zip(span.chain, chain, strict=True):
                accumulator.restore(saved)
            self._spans.append(span)
        self.wake = self._due()


class AlignedBuffer(SpanBuffer):
    """The window of `aligned`."""

    __slots__ = ("_patience", "_places")

    def __init__(self, operation: AlignedWindow, key: Key, context: WindowContext) -> None:
        super().__init__(operation, key, context)
        self._places = places_of(operation)
        # What windows upstream made of a span that ends with this one comes behind the ticks of that clock.
        self._patience = context.depth

    def _spans_of(self, event: Event, now: int) -> Iterable[Span]:
        # Results of aligned windows upstream are of the last ms of their span, and come a little later than that.
        near = event.timestamp is not None and now - event.timestamp in self.context.lags
        known = {span.start: span for span in self._spans}
        wanted = list(self._places.around(event.timestamp if near else now))
        opened = [(start, end) for start, end in wanted if start not in known]
        for start, end in opened:
            known[start] = self._opened(start, end)
            self._spans.append(known[start])
        if opened:
            self._spans.sort(key=attrgetter("end"))
        return [known[start] for start, _ in wanted]

    def _closes(self, span: Span) -> int:
        return span.end + self._patience


class SessionBuffer(SpanBuffer):
    """The window of `session`: one span at most is open."""

    __slots__ = ("_gap",)

    def __init__(self, operation: SessionWindow, key: Key, context: WindowContext) -> None:
        super().__init__(operation, key, context)
        self._gap = operation.gap * SECOND

    def _spans_of(self, event: Event, now: int) -> Iterable[Span]:
        if not self._spans:
            self._spans.append(self._opened(now, now + self._gap))
        self._spans[0].end = now + self._gap
        return self._spans

    def _closes(self, span: Span) -> int:
        # An event at the very end belongs to it.
        return span.end + 1
