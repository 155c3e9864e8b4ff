"""Aligned and session windows in arrays: the open spans of all keys are a table, with partial values of their aggregators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.aggregators.exact import TotalError
from pipelines.graph import events
from pipelines.windows.aggregate import rows_of
from pipelines.windows.aligned import DayPlaces, FixedPlaces, places_of
from pipelines.windows.arrays import Arrays, Ints, numbered, ramps
from pipelines.windows.buffer import SECOND, WindowContext
from pipelines.windows.event_rows import as_lists
from pipelines.windows.operations import BOUNDS, DAY, AlignedWindow, SessionWindow, SpanWindow
from pipelines.windows.partials import BatchRows, EventsBySpan, Partial, partial_of

START, END = "_start", "_end"
"""Columns of a state: the bounds of an open span, in ms, the end exclusive."""
_MILLIS: Final = pa.timestamp("ms", "UTC")
# An event may be in a thousand hopping windows. So many pairs of an event and a window are laid out at once (some 300 MB).
ENTRIES_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class _Spans:
    """The spans that the events of a batch are in: their bounds in ms, and what is in them."""

    groups: EventsBySpan
    start: Ints
    end: Ints


class _Kind(ABC):
    """The layout of spans."""

    per_key: bool
    """Whether a key has one open span at most."""

    def patience(self, depth: int) -> int:
        """Return how many ms behind its end a span is emitted, of a window with so many before it."""
        # What windows upstream made of a span that ends with this one comes behind the ticks of that clock.
        return depth

    @abstractmethod
    def spans(self, rows: pa.Table, keys: Ints, state: pa.Table | None, state_keys: Ints) -> _Spans:
        """Return the spans of a batch's rows, which are in the order of the clock; `keys` are the numbers of their keys."""


class _Aligned(_Kind):
    per_key = False

    def __init__(self, places: FixedPlaces | DayPlaces, lags: frozenset[int]) -> None:
        self._places, self._lags = places, lags

    def spans(self, rows: pa.Table, keys: Ints, state: pa.Table | None, state_keys: Ints) -> _Spans:
        row, start, end = (
            fixed(self._places, self._times(rows))
            if isinstance(self._places, FixedPlaces)
            else by_days(self._places, self._times(rows))
        )
        known = len(state_keys)
        old_start = np.zeros(0, np.int64) if state is None else state[START].to_numpy()
        all_keys, all_starts = np.concatenate([state_keys, keys[row]]), np.concatenate([old_start, start])
        places = pa.array(all_starts).dictionary_encode()
        pairs = pa.array(all_keys * len(places.dictionary) + places.indices.to_numpy())
        # The state's spans are all different, so their numbers are those of their rows.
        coded = pairs.dictionary_encode()
        of = coded.indices.to_numpy().astype(np.int64)[known:]
        is_touched = np.bincount(of, minlength=len(coded.dictionary)) > 0
        touched, of = np.flatnonzero(is_touched), (np.cumsum(is_touched) - 1)[of]
        first = np.zeros(len(touched), np.int64)
        first[of[::-1]] = np.arange(len(of))[::-1]
        groups = EventsBySpan(len(touched), of, row, np.where(touched < known, touched, -1))
        return _Spans(groups, start[first], end[first])

    def _times(self, rows: pa.Table) -> Ints:
        placed = clocks = rows[events.CLOCK].to_numpy()
        if not self._lags or events.TIME not in rows.column_names:
            return clocks
        # Results of aligned windows upstream are of the last ms of their span, and come a little later than that.
        times = rows[events.TIME].fill_null(np.iinfo(np.int64).min).to_numpy()
        for lag in self._lags:
            placed = np.where(times == clocks - lag, times, placed)
        return placed


def fixed(places: FixedPlaces, at: Ints) -> tuple[Ints, Ints, Ints]:
    """Return which of some times lie in which windows: the times' indexes, starts and ends of the windows, by time."""
    last = (at - places.offset) // places.every * places.every + places.offset
    most = -(-places.size // places.every)
    starts = last[:, None] - np.arange(most - 1, -1, -1) * places.every
    inside = starts + places.size > at[:, None]
    row, _ = np.nonzero(inside)
    return row, starts[inside], starts[inside] + places.size


def by_days(places: DayPlaces, at: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the same for windows of whole days of a time zone."""
    starts, ends = _windows_near(places, np.unique(at // (DAY * SECOND)))
    order = np.argsort(at, kind="stable")
    first, last = (np.searchsorted(at, bounds, sorter=order) for bounds in (starts, ends))
    counts = last - first
    row = order[np.repeat(first, counts) + ramps(counts)]
    by_row = np.argsort(row, kind="stable")
    return row[by_row], np.repeat(starts, counts)[by_row], np.repeat(ends, counts)[by_row]


def _windows_near(places: DayPlaces, days: Ints) -> tuple[Ints, Ints]:
    """Return the starts and ends of all windows that hold times of some days of UTC, and of some others, in order."""
    # A zone's clocks are less than a day away from UTC: the first window begins behind the day, the last one ends before it.
    behind = (days + 1 - places.offset // DAY) // places.every * places.every
    most = (places.size + 2) // places.every + 1
    day = np.unique(behind[:, None] - np.arange(most) * places.every)
    known, number = np.unique(np.concatenate([day, day + places.every, day + places.size]), return_inverse=True)
    begins = np.array([places.begins(one) for one in known.tolist()], np.int64)
    start, following, end = np.split(begins[number], 3)
    # A day that the zone has skipped begins with the next one, whose window is the one that counts.
    there = start < following
    return start[there], end[there]


class _Sessions(_Kind):
    per_key = True

    def __init__(self, gap: int) -> None:
        self._gap = gap

    def patience(self, depth: int) -> int:
        # An event at the very end belongs to it.
        return 1

    def spans(self, rows: pa.Table, keys: Ints, state: pa.Table | None, state_keys: Ints) -> _Spans:
        row = np.argsort(keys, kind="stable")
        key, clock = keys[row], rows[events.CLOCK].to_numpy()[row]
        known = np.full(int(max(keys.max(initial=-1), state_keys.max(initial=-1))) + 1, -1)
        known[state_keys] = np.arange(len(state_keys))
        first = np.append(True, key[1:] != key[:-1]) if len(key) else np.zeros(0, bool)
        new = first.copy()
        new[1:] |= clock[1:] - clock[:-1] > self._gap
        old = known[key[first]]
        if state is not None:
            goes_on = (old >= 0) & (clock[first] <= state[END].to_numpy()[old])
            old = np.where(goes_on, old, -1)
        of = np.cumsum(new) - 1
        begins = np.flatnonzero(new)
        before = np.full(len(begins), -1)
        before[of[first]] = old
        start = clock[begins]
        if state is not None:
            start = np.where(before >= 0, state[START].to_numpy()[before], start)
        last = np.append(begins[1:], len(row)) - 1
        return _Spans(EventsBySpan(len(begins), of, row, before), start, clock[last] + self._gap)


class SpanArrays(Arrays):
    """The windows by key of `aligned` or `session`.

    A state has a row per open span: the partition fields, its bounds, and the columns of its aggregators (`partials`).
    """

    def __init__(self, operation: SpanWindow, context: WindowContext, schema: pa.Schema) -> None:
        super().__init__(context, schema)
        self._aggregators = operation.aggregators
        self._kind: _Kind
        self._most_open = 1
        if isinstance(operation, AlignedWindow):
            self._kind = _Aligned(places_of(operation), context.lags)
            self._most_open = 1 - (-operation.lasts // operation.every)
        else:
            assert isinstance(operation, SessionWindow)
            self._kind = _Sessions(operation.gap * SECOND)
        # By the fields that a batch has: their types decide.
        self._partials = lru_cache(maxsize=2)(self._partials_of)

    def _partials_of(self, types: pa.Schema) -> list[Partial]:
        return [partial_of(f"_{number}", maker, types) for number, maker in enumerate(self._aggregators)]

    def _run(
        self, state: pa.Table | None, rows: pa.Table, clock: int
    ) -> tuple[pa.Table, pa.Table | None, pa.Table | None]:
        partials = self._partials(rows.schema)
        state = state if state is not None and state.num_rows else None
        if not rows.num_rows:
            if state is None:
                return self._schema.empty_table(), None, None
            closed = self._closes(state) <= clock
            left = state.filter(pa.array(~closed))
            return self._results(state.filter(pa.array(closed)), partials), left, left.slice(0, 0)
        most = max(1, ENTRIES_AT_ONCE // self._most_open) if not self._kind.per_key else rows.num_rows
        in_parts = rows.num_rows > most
        while rows.num_rows > most:
            fresh, rest = self._with(state, rows.slice(0, most), partials)
            state = fresh if rest is None else pa.concat_tables([rest.cast(fresh.schema), fresh]).combine_chunks()
            rows = rows.slice(most)
        fresh, rest = self._with(state, rows, partials)
        closed = self._closes(fresh) <= clock
        ended, fresh = fresh.filter(pa.array(closed)), fresh.filter(pa.array(~closed))
        if rest is None:
            return self._results(ended, partials), fresh, None
        rest = rest.cast(fresh.schema)
        gone = self._closes(rest) <= clock
        ended = pa.concat_tables([ended, rest.filter(pa.array(gone))])
        left = pa.concat_tables([rest.filter(pa.array(~gone)), fresh]).combine_chunks()
        return self._results(ended, partials), left, None if in_parts else fresh

    def _with(
        self, state: pa.Table | None, rows: pa.Table, partials: list[Partial]
    ) -> tuple[pa.Table, pa.Table | None]:
        """Return the spans that have events of a batch, and those of the state that have none."""
        numbers, names = numbered(self._context.partition, state, rows)
        known = 0 if state is None else state.num_rows
        spans = self._kind.spans(rows, numbers[known:], state, numbers[:known])
        groups, batch = spans.groups, BatchRows(rows, self._context.several)
        first = np.zeros(groups.number, np.int64)
        first[groups.of[::-1]] = groups.row[::-1]
        source = pa.array(np.where(groups.old >= 0, groups.old, known + first))
        made: dict[str, Any] = {name: names[name].take(source) for name in self._context.partition}
        made |= {START: spans.start, END: spans.end}
        try:
            for partial in partials:
                made |= partial.merged(groups, batch, state)
        except TotalError as error:
            raise ArithmeticError(f"{error} in the window {self._named(pa.table(made), error.number)}") from error
        if state is None:
            return pa.table(made), None
        untouched = np.ones(known, bool)
        untouched[groups.old[groups.known]] = False
        return pa.table(made), state.filter(pa.array(untouched))

    def _named(self, spans: pa.Table, number: int) -> str:
        """Return the text of a span for messages."""
        span = spans.slice(number, 1).to_pylist()[0]
        bounds = " to ".join(f"{np.datetime64(span[bound], 'ms')}Z" for bound in (START, END))
        return ", ".join([bounds, *(f"{name} {span[name]!r}" for name in self._context.partition)])

    def _closes(self, spans: pa.Table, depth: int | None = None) -> Ints:
        """Return the first clock at which no event of a span can come any more.

        Args:
            depth: that the window has; None: its own.
        """
        found: Ints = spans[END].to_numpy() + self._kind.patience(self._context.depth if depth is None else depth)
        return found

    def _results(self, spans: pa.Table, partials: list[Partial]) -> pa.Table:
        if not spans.num_rows:
            return self._schema.empty_table()
        values = [partial.values(spans) for partial in partials]
        of, outputs = self._outputs(values, spans.num_rows)
        spans = spans.take(pa.array(of))
        own, of_key = np.unique(numbered(self._context.partition, None, spans)[0], return_inverse=True)
        first = np.zeros(len(own), np.int64)
        first[of_key[::-1]] = np.arange(len(of_key))[::-1]
        texts = self._texts(spans.take(pa.array(first)), len(own))
        clocks = self._closes(spans)
        # Spans of a key may end together, by the calendar: their results are numbered as one, the span that began first first.
        order = np.lexsort((spans[START].to_numpy(), clocks, of_key))
        begins = (np.diff(of_key[order], prepend=-1) != 0) | (np.diff(clocks[order], prepend=0) != 0)
        number = np.empty(len(order), np.int64)
        number[order] = ramps(np.diff(np.flatnonzero(begins), append=len(order)))
        made: dict[str, Any] = {name: spans[name] for name in self._context.partition}
        made |= {name: spans[column].cast(_MILLIS) for name, column in zip(BOUNDS, (START, END), strict=True)}
        made |= outputs
        made |= {events.ID: self._ids(texts, of_key, clocks, number)}
        made |= {events.TIME: pc.subtract(spans[END], 1), events.CLOCK: clocks}
        made |= {events.ORDER: self._orders(texts, of_key, number)}
        return self._table(made, len(number))

    def _outputs(self, values: list[Any], size: int) -> tuple[Ints, dict[str, Any]]:
        """Return per result the row of its span, in their order, and the fields that the aggregators make."""
        if not any(type(value) is list for value in values):
            named = [aggregator.named for aggregator in self._aggregators]
            return np.arange(size), dict(zip(named, values, strict=True))
        named = [aggregator.named for aggregator in self._aggregators]
        columns = [value if type(value) is list else pa.array(value).to_pylist() for value in values]
        made = [rows_of(row, named) for row in zip(*columns, strict=True)]
        of = np.repeat(np.arange(size), [len(rows) for rows in made])
        outputs = [name for aggregator in self._aggregators for name in aggregator.result_fields]
        flat = [row for rows in made for row in rows]
        kinds = {field.name: field.type for field in self._schema}
        return of, {name: as_lists([row.get(name) for row in flat], kinds[name]) for name in outputs}

    def laid_over(self, windows: list[pa.Table], clock: int | None, depth: int | None = None) -> pa.Table | None:
        key = self._context.partition
        rows = self._last_of(windows, key if self._kind.per_key else (*key, START))
        # A whole state alone holds none that has ended, but where the window has fewer before it than when it was left.
        if rows is None or clock is None or len(windows) == 1:
            return rows
        return rows.filter(pa.array(self._closes(rows, depth) > clock))

    def _due(self, windows: pa.Table) -> int:
        return int(self._closes(windows).min())
