"""Windows by count and by time in arrays, for aggregates of numbers over plain keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.aggregators import Average, Count, EventAggregator, Max, Min, StdDev, Sum
from pipelines.aggregators.exact import TotalError, fits
from pipelines.graph import events
from pipelines.windows.array_values import Values, aggregated
from pipelines.windows.arrays import Arrays, Ints, numbered, ramps
from pipelines.windows.buffer import FAR, SECOND, WindowContext, shown_key
from pipelines.windows.operations import AggregateWindow, CollectWindow

WRITTEN, TICKS, FIRES, KEPT, BEGUN, CLOCKS = "_written", "_ticks", "_fires", "_kept", "_begun", "_clocks"
_KINDS: Final = (Count, Sum, Average, Min, Max, StdDev)
# Pairs of a life and a clock are compared as one number below this.
_SAFE: Final = 2**62


def is_bounded(operation: AggregateWindow, types: pa.Schema) -> bool:
    """Check whether `ArrayWindows` can do it: windows that fire, built-in numeric aggregators, and few items.

    A window by time that keeps all until it is cleared is not among them: one by one it is a handful of sums.

    Args:
        types: the fields of the events.
    """
    trigger, evict = operation.trigger, operation.evict
    fires = trigger.events or trigger.ticks or _at_every_tick(operation)
    bounded = evict.age is not None or evict.keeps or (operation.clear_on_trigger and trigger.events)
    if not fires or not bounded or any(type(aggregator) not in _KINDS for aggregator in operation.aggregators):
        return False
    return all(name in types.names and _is_number(types.field(name).type) for name in _fields_of(operation))


def _at_every_tick(operation: AggregateWindow | CollectWindow) -> bool:
    """Return whether a threshold of 0 is reached: never, but for one case of the original (rules 5.1.4)."""
    trigger = operation.trigger
    return trigger.threshold == 0 and trigger.ticks is None and operation.evict.age is not None


def seconds_between(operation: Any) -> int:
    """Return after how many seconds a window of any operation fires again by ticks alone; 0: it does not."""
    if isinstance(operation, AggregateWindow | CollectWindow) and _at_every_tick(operation):
        return 1
    trigger = getattr(operation, "trigger", None)
    return 0 if trigger is None else trigger.ticks or 0


def _fields_of(operation: AggregateWindow) -> list[str]:
    """Return the fields that the aggregators read."""
    named = [getattr(aggregator, "field", None) for aggregator in operation.aggregators]
    return list(dict.fromkeys(str(name) for name in named if name is not None))


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_signed_integer(kind) or pa.types.is_floating(kind)


@dataclass
class _Flat:
    """The kept rows and those of a batch, one after the other: by key, in their order.

    By key, of those that the batch may move: its fields, its row in the state (-1: none), the number of its items and rows, its
    first place and its first row. By row, in the same order: its number in the batch, its key, its place, its clock. By place:
    the fields, and the clocks if they are asked for.
    """

    names: pa.Table
    state_row: Ints
    kept: Ints
    rows: Ints
    begin: Ints
    first_row: Ints
    order: Ints
    row_key: Ints
    at: Ints
    row_clocks: Ints
    size: int
    columns: dict[str, Values]
    clocks: Ints


@dataclass
class _Lives:
    """Windows from their first event to their end, a key's one after the other; the first of a key may be the state's.

    Per life: places of its items, and of its rows; second of its first event, emissions, events since the last of them, all
    before the batch; the clock of its last event. By row its life, by key its last life.
    """

    begin: Ints
    end: Ints
    rows: Ints
    first_row: Ints
    begun: Ints
    fires: Ints
    ticks: Ints
    written: Ints
    of_row: Ints
    last: Ints
    key: Ints


@dataclass
class _Fired:
    """Emissions: their lives, clocks, numbers, the places of what the window held, and the rows that made them (None: ticks)."""

    life: Ints
    clock: Ints
    number: Ints
    start: Ints
    end: Ints
    row: Ints | None


class ArrayWindows(Arrays):
    """The windows by key of an operation that `is_bounded`."""

    def __init__(self, operation: AggregateWindow, context: WindowContext, schema: pa.Schema) -> None:
        super().__init__(context, schema)
        self._operation = operation
        self._events = operation.trigger.events or 0
        self._seconds = self.every = seconds_between(operation)
        self._age, self._keep = operation.evict.age, operation.evict.keeps
        self._clear, self._lifetime = operation.clear_on_trigger, operation.window_evict_millis
        self._fields = _fields_of(operation)
        self._items = [name for name in self._fields if name not in context.partition]
        self._timed = bool(self._seconds) or self._age is not None
        # In a window that fires before it is full only what came since counts.
        self._since_fired = self._clear or 0 < self._keep <= self._events

    def laid_over(self, windows: list[pa.Table], clock: int | None, depth: int | None = None) -> pa.Table | None:
        rows = self._last_of(windows, self._context.partition)
        return rows if rows is None or clock is None else rows.filter(pc.greater(rows[WRITTEN], clock - self._lifetime))

    def _due(self, windows: pa.Table) -> int:
        at = windows[WRITTEN].to_numpy() + self._lifetime
        if self._seconds:
            fires = windows[FIRES].to_numpy() + 1
            at = np.minimum(at, (windows[BEGUN].to_numpy() + self._seconds * fires) * SECOND)
        return int(at.min())

    def _run(self, state: pa.Table | None, rows: pa.Table, clock: int) -> tuple[pa.Table, pa.Table | None, Any]:
        state = state if state is not None and state.num_rows else None
        if state is None and not rows.num_rows:
            return self._schema.empty_table(), None, None
        flat = self._laid_out(state, rows)
        lives = self._lives(flat, state)
        fired = self._by_ticks(flat, lives, clock) if self._seconds else self._by_events(flat, lives)
        made = self._results(flat, lives, fired, rows)
        fresh = self._after(flat, lives, fired, clock)
        if state is None:
            return made, fresh, None
        alive = state[WRITTEN].to_numpy() > clock - self._lifetime
        alive[flat.state_row[flat.state_row >= 0]] = False
        rest = state.filter(pa.array(alive))
        return made, pa.concat_tables([rest.cast(fresh.schema), fresh]).combine_chunks(), fresh

    # --- items and rows by key --------------------------------------------------------------------------------------

    def _laid_out(self, state: pa.Table | None, rows: pa.Table) -> _Flat:
        known = 0 if state is None else state.num_rows
        numbers, names = numbered(self._context.partition, state, rows)
        own = numbers[known:]
        count = np.bincount(own, minlength=max(known, int(own.max(initial=-1)) + 1))
        # Without a tick nothing happens to a key that has no row.
        keys = np.arange(len(count)) if self._seconds else np.flatnonzero(count)
        state_row = np.where(keys < known, keys, -1)
        kept = np.zeros(len(keys), np.int64)
        if state is not None:
            kept[state_row >= 0] = state[KEPT].to_numpy()[state_row[state_row >= 0]]
        each = count[keys]
        length = kept + each
        begin, first_row = np.cumsum(length) - length, np.cumsum(each) - each
        order, row_key = np.argsort(own, kind="stable"), np.repeat(np.arange(len(keys)), each)
        at = begin[row_key] + kept[row_key] + np.arange(len(order)) - first_row[row_key]
        clocks = rows[events.CLOCK].to_numpy()[order]
        first = np.zeros(len(count), np.int64)
        first[numbers[::-1]] = np.arange(len(numbers))[::-1]
        names = names.take(pa.array(first[keys])) if self._context.partition else names
        size, none = int(length.sum()), np.zeros(0, np.int64)
        flat = _Flat(names, state_row, kept, each, begin, first_row, order, row_key, at, clocks, size, {}, none)
        self._fill(flat, state, rows)
        return flat

    def _fill(self, flat: _Flat, state: pa.Table | None, rows: pa.Table) -> None:
        """Put fields and clocks at their places."""
        old = np.flatnonzero(flat.kept)
        to = np.repeat(flat.begin[old], flat.kept[old]) + ramps(flat.kept[old])
        for name in self._fields:
            values = Values.of(rows[name])
            values = Values(values.numbers[flat.order], None if values.valid is None else values.valid[flat.order])
            flat.columns[name] = values.spread(flat.at, flat.size)
            if len(old) and state is not None:
                kept = self._kept(name, state, flat.state_row[old])
                flat.columns[name].put(to, Values.of(kept))
        if self._timed:
            flat.clocks = np.zeros(flat.size, np.int64)
            flat.clocks[flat.at] = flat.row_clocks
            if len(old) and state is not None:
                flat.clocks[to] = self._kept(CLOCKS, state, flat.state_row[old]).to_numpy()

    def _kept(self, name: str, state: pa.Table, rows: Ints) -> pa.ChunkedArray:
        """Return what some rows of a state hold of a field, one after the other. All items of a key have the key's values."""
        if name in self._context.partition:
            return state[name].take(pa.array(np.repeat(rows, state[KEPT].to_numpy()[rows])))
        column = state[name].combine_chunks()
        whole = len(rows) == len(column) and (rows == np.arange(len(rows))).all()
        return pa.chunked_array([(column if whole else column.take(pa.array(rows))).flatten()])

    # --- windows ----------------------------------------------------------------------------------------------------

    def _lives(self, flat: _Flat, state: pa.Table | None) -> _Lives:
        known, keys = flat.state_row >= 0, np.arange(len(flat.rows))
        written = np.full(len(keys), -FAR)
        if state is not None:
            written[known] = state[WRITTEN].to_numpy()[flat.state_row[known]]
        new = np.zeros(len(flat.order), bool)
        new[1:] = flat.row_clocks[1:] - flat.row_clocks[:-1] >= self._lifetime
        first = flat.first_row[flat.rows > 0]
        new[first] = flat.row_clocks[first] - written[flat.rows > 0] >= self._lifetime
        fresh = np.bincount(flat.row_key[new], minlength=len(keys))
        number = known + fresh
        base, total = np.cumsum(number) - number, int(number.sum())
        of_row = (base + known - 1 - np.cumsum(fresh) + fresh)[flat.row_key] + np.cumsum(new)
        rows = np.bincount(of_row, minlength=total)
        begin, begun, fires, ticks, last_clock = np.zeros((5, total), np.int64)
        begin[base[known]], begin[of_row[new]] = flat.begin[known], flat.at[new]
        begun[of_row[new]] = flat.row_clocks[new] // SECOND
        last_clock[base[known]] = written[known]
        first_row = np.cumsum(rows) - rows
        last_clock[rows > 0] = flat.row_clocks[(first_row + rows - 1)[rows > 0]]
        if state is not None:
            for name, values in ((BEGUN, begun), (FIRES, fires), (TICKS, ticks)):
                if name != BEGUN or self._seconds:
                    values[base[known]] = state[name].to_numpy()[flat.state_row[known]]
        end, last = np.append(begin[1:], flat.size), base + number - 1
        return _Lives(
            begin, end, rows, first_row, begun, fires, ticks, last_clock, of_row, last, np.repeat(keys, number)
        )

    def _by_events(self, flat: _Flat, lives: _Lives) -> _Fired:
        place = np.arange(len(flat.order)) - lives.first_row[lives.of_row]
        counted = lives.ticks[lives.of_row] + place + 1
        row = np.flatnonzero(counted % self._events == 0)
        life, end = lives.of_row[row], flat.at[row] + 1
        number = lives.fires[life] + counted[row] // self._events - 1
        start = lives.begin[life]
        if self._age is not None:
            # The event itself is in the window, whatever its age.
            young = _place(flat, lives, life, flat.row_clocks[row] - self._age)
            start = np.maximum(start, np.minimum(young, end - 1))
        elif self._keep:
            start = np.maximum(start, end - self._keep)
        if self._clear:
            start = np.maximum(start, end - self._events)
        return _Fired(life, flat.row_clocks[row], number, start, end, row)

    def _by_ticks(self, flat: _Flat, lives: _Lives, clock: int) -> _Fired:
        last = np.minimum(clock, lives.written + self._lifetime - 1) // SECOND
        count = np.maximum((last - lives.begun) // self._seconds - lives.fires, 0)
        life = np.repeat(np.arange(len(count)), count)
        number = lives.fires[life] + ramps(count)
        at = (lives.begun[life] + self._seconds * (number + 1)) * SECOND
        # A tick comes before the events of its clock.
        end = _place(flat, lives, life, at - 1)
        start = lives.begin[life]
        if self._age is not None:
            start = np.maximum(start, np.minimum(_place(flat, lives, life, at - self._age), end))
        elif self._keep:
            start = np.maximum(start, end - self._keep)
        if self._clear and len(life):
            again = np.append(False, life[1:] == life[:-1])
            start = np.maximum(start, np.where(again, np.roll(end, 1), start))
        return _Fired(life, at, number, start, end, None)

    # --- what comes of it -------------------------------------------------------------------------------------------

    def _results(self, flat: _Flat, lives: _Lives, fired: _Fired, rows: pa.Table) -> pa.Table:
        keys = lives.key[fired.life]
        own, of_key = np.unique(keys, return_inverse=True)
        texts = self._texts(flat.names.take(pa.array(own)) if self._context.partition else flat.names, len(own))
        made: dict[str, Any] = {name: flat.names[name].take(pa.array(keys)) for name in self._context.partition}
        chain = self._operation.aggregators
        outputs = [aggregated(aggregator, flat.columns, fired.start, fired.end) for aggregator in chain]
        made |= dict(zip(self._operation.outputs, outputs, strict=True))
        made |= {events.ID: self._ids(texts, of_key, fired.clock, fired.number)}
        made |= {events.TIME: fired.clock, events.CLOCK: fired.clock}
        if fired.row is not None:
            order = rows[events.ORDER].take(pa.array(flat.order[fired.row])).cast(pa.string())
            made[events.ORDER] = pc.binary_join_element_wise(order, "000000", ".")
        else:
            made[events.ORDER] = self._orders(texts, of_key, np.zeros(len(keys), np.int64))
        try:
            return self._table(made, len(keys))
        except OverflowError as error:
            for aggregator, totals in zip(chain, outputs, strict=True):
                beyond = type(aggregator) is Sum and [n for n, total in enumerate(totals) if not fits(total)]
                if beyond:
                    raise self._total_error(aggregator, flat.names, keys[beyond[0]]) from error
            raise

    def _check(self, windows: pa.Table, rows: pa.Table) -> None:
        """Refuse a batch behind which a key holds events whose sum fits no result, for it would stop those behind it."""
        kept = windows[KEPT].to_numpy()
        end, places = np.cumsum(kept), np.arange(len(kept))
        for aggregator in self._operation.aggregators:
            if type(aggregator) is Sum:
                values = Values.of(self._kept(str(aggregator.field), windows, places))
                beyond = values.beyond(end - kept, end, ends=self._operation.loses_oldest)
                if beyond:
                    numbers, _ = numbered(self._context.partition, windows, rows)
                    fed = np.isin(numbers[: len(kept)], numbers[len(kept) :])
                    for key in beyond:
                        if fed[key]:
                            raise self._total_error(aggregator, windows, key)

    def _total_error(self, aggregator: EventAggregator, names: pa.Table, key: int) -> ArithmeticError:
        error = TotalError(str(getattr(aggregator, "field", None)))
        fields = (
            names.slice(int(key), 1).select(self._context.partition).to_pylist() if self._context.partition else [{}]
        )
        return ArithmeticError(f"{error} in the window{shown_key(fields[0])}")

    def _after(self, flat: _Flat, lives: _Lives, fired: _Fired, clock: int) -> pa.Table:
        """Return the state of the keys that the batch may have moved: of each its last life, if it has not ended."""
        counted = lives.ticks + lives.rows
        if self._events:
            ticks, fires = counted % self._events, lives.fires + counted // self._events
        else:
            ticks, fires = counted * 0, lives.fires + np.bincount(fired.life, minlength=len(lives.fires))
        start = self._kept_from(flat, lives, fired, ticks, clock)
        keys = np.flatnonzero(lives.written[lives.last] > clock - self._lifetime)
        last = lives.last[keys]
        kept = lives.end[last] - start[last]
        items, offsets = np.repeat(start[last], kept) + ramps(kept), np.append(0, np.cumsum(kept)).astype(np.int32)
        made: dict[str, Any] = {name: flat.names[name].take(pa.array(keys)) for name in self._context.partition}
        made |= {WRITTEN: lives.written[last], TICKS: ticks[last], FIRES: fires[last], KEPT: kept}
        made |= {BEGUN: lives.begun[last]} if self._seconds else {}
        lists = {name: flat.columns[name].array(items) for name in self._items}
        lists |= {CLOCKS: pa.array(flat.clocks[items])} if self._timed else {}
        made |= {name: pa.ListArray.from_arrays(pa.array(offsets), values) for name, values in lists.items()}
        return pa.table(made)

    def _kept_from(self, flat: _Flat, lives: _Lives, fired: _Fired, ticks: Ints, clock: int) -> Ints:
        """Return the place of the first item of each life that may still count."""
        start = lives.begin.copy()
        if self._since_fired and self._events:
            start = np.maximum(start, lives.end - ticks)
        elif self._clear:
            np.maximum.at(start, fired.life, fired.end)
        if self._age is not None:
            life = np.arange(len(start))
            young = _place(flat, lives, life, np.full(len(start), clock - self._age))
            return np.maximum(start, np.minimum(young, lives.end))
        return np.maximum(start, lives.end - self._keep) if self._keep else start


def _place(flat: _Flat, lives: _Lives, life: Ints, clock: Ints) -> Ints:
    """Return for some lives and clocks the first place of the life whose item is later than the clock, or the life's end."""
    if not flat.size or not len(life):
        return lives.begin[life]
    of_item = np.repeat(np.arange(len(lives.begin)), lives.end - lives.begin)
    low, high = min(flat.clocks.min(), clock.min()), max(flat.clocks.max(), clock.max())
    items, wanted, width = flat.clocks - low, clock - low, int(high) - int(low) + 1
    if width * len(lives.begin) >= _SAFE:
        # Years apart, and many keys: by rank they are small again.
        values, ranks = np.unique(np.concatenate([flat.clocks, clock]), return_inverse=True)
        items, wanted, width = ranks[: flat.size], ranks[flat.size :], len(values)
    return np.searchsorted(of_item * width + items, life * width + wanted, "right")
