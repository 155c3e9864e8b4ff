"""The fast way for windows by count: all keys of a bucket at once, in arrays. The same answers as `KeyedWindows`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.aggregators import Average, Count, Max, Min, StdDev, Sum
from pipelines.graph import events
from pipelines.windows.array_values import Values, aggregated
from pipelines.windows.arrow_stream import from_ipc, to_ipc
from pipelines.windows.buffer import WindowContext, identity_of, key_text
from pipelines.windows.operations import AggregateWindow

WRITTEN, TICKS, FIRES = "_written", "_ticks", "_fires"
_KINDS: Final = (Count, Sum, Average, Min, Max, StdDev)
Ints = np.ndarray[Any, np.dtype[np.int64]]


def fits(operation: Any, context: WindowContext, types: pa.Schema) -> bool:
    """Check whether `CountWindows` can do it: COUNT trigger and eviction, built-in numeric aggregators, plain keys.

    Args:
        types: the fields of the events.
    """
    if not isinstance(operation, AggregateWindow):
        return False
    trigger, evict = operation.trigger, operation.evict
    counts = trigger.events and trigger.ticks is None and trigger.within is None
    if not counts or evict.events is None or evict.age is not None:
        return False
    if not (evict.keeps or operation.clear_on_trigger):
        return False
    if any(type(one) not in _KINDS for one in operation.aggregators):
        return False
    fields = _fields_of(operation)
    numeric = all(name in types.names and _is_number(types.field(name).type) for name in fields)
    return numeric and all(name in types.names and _is_key(types.field(name).type) for name in context.partition)


def _fields_of(operation: AggregateWindow) -> list[str]:
    """The fields that the aggregators read."""
    named = [getattr(one, "field", None) for one in operation.aggregators]
    return list(dict.fromkeys(str(name) for name in named if name is not None))


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_signed_integer(kind) or pa.types.is_floating(kind)


def _is_key(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_signed_integer(kind)


@dataclass
class _Runs:
    """Rows of one key that share a window, one after the other: of the batch, with what the state holds of them.

    Per run: its key, first row, number of rows, items kept before, ticks and emissions so far.
    """

    keys: list[tuple[Any, ...]]
    first: Ints
    rows: Ints
    kept: Ints
    ticks: Ints
    fires: Ints
    is_last: np.ndarray[Any, np.dtype[np.bool_]]
    state_row: Ints


@dataclass
class _Fired:
    """The rows that emit: where they are, their runs, the numbers and the values of their results."""

    rows: Ints
    runs: Ints
    number: Ints
    outputs: list[Any]


class CountWindows:
    """The windows of one bucket of an operation that `fits`.

    Args:
        operation, context: as of `KeyedWindows`.
        schema: of the results: partition fields, outputs, and `pipelines.graph.events.COLUMNS`.
    """

    def __init__(self, operation: AggregateWindow, context: WindowContext, schema: pa.Schema) -> None:
        self._operation, self._context, self._schema = operation, context, schema
        self._trigger, self._clear = operation.trigger.events or 1, operation.clear_on_trigger
        keep = operation.evict.keeps or self._trigger
        self._keep = min(keep, self._trigger) if self._clear else keep
        self._lifetime = operation.window_evict_millis
        self._fields = _fields_of(operation)
        self.state: pa.Table | None = None

    def run(self, table: pa.Table) -> pa.Table:
        """Return what the rows of a batch make, in the order of (clock, order); they are told apart from ticks by the caller.

        Args:
            table: partition and aggregated fields, `CLOCK` and `ORDER`, in the order of (partition fields, clock, order):
                rows of one key stand together.
        """
        if not table.num_rows:
            return self._schema.empty_table()
        clocks = table[events.CLOCK].to_numpy()
        keys = [table[name].combine_chunks() for name in self._context.partition]
        runs = self._runs(keys, clocks)
        length = runs.kept + runs.rows
        begin = np.concatenate([[0], np.cumsum(length)[:-1]])
        of_row = np.repeat(np.arange(len(runs.rows)), runs.rows)
        place = np.arange(table.num_rows) - runs.first[of_row]
        at = begin[of_row] + runs.kept[of_row] + place
        columns = {name: self._values(name, table[name], runs, begin, at) for name in self._fields}
        counted = runs.ticks[of_row] + place + 1
        fired = np.flatnonzero(counted % self._trigger == 0)
        end = at[fired] + 1
        start = np.maximum(end - self._keep, begin[of_row[fired]])
        outputs = [aggregated(one, columns, start, end) for one in self._operation.aggregators]
        number = runs.fires[of_row[fired]] + counted[fired] // self._trigger - 1
        made = self._results(table, keys, runs, _Fired(fired, of_row[fired], number, outputs))
        self._store(runs, keys, clocks, columns, begin, length)
        return made.sort_by([(events.CLOCK, "ascending"), (events.ORDER, "ascending")])

    def forget(self, clock: int) -> None:
        """Forget the windows that have expired (Flowmix rules 5.1.4)."""
        if self.state is not None:
            self.state = self.state.filter(pc.greater(self.state[WRITTEN], clock - self._lifetime))

    def due(self) -> int | None:
        """Return the clock at which the first window expires."""
        if self.state is None or not self.state.num_rows:
            return None
        return int(pc.min(self.state[WRITTEN]).as_py()) + self._lifetime

    def save(self) -> bytes:
        """Return the state as an Arrow IPC stream."""
        if self.state is None:
            return b""
        return to_ipc(self.state, compression="lz4")

    def restore(self, state: bytes) -> None:
        """Take what `save` gave."""
        self.state = from_ipc([state]) if state else None

    def _runs(self, keys: list[pa.Array], clocks: Ints) -> _Runs:
        total = len(clocks)
        new_key = np.zeros(total, bool)
        new_key[0] = True
        for array in keys:
            codes = pc.fill_null(array.dictionary_encode().indices, -1).to_numpy(zero_copy_only=False)
            new_key[1:] |= codes[1:] != codes[:-1]
        starts = new_key.copy()
        starts[1:] |= clocks[1:] - clocks[:-1] >= self._lifetime
        first = np.flatnonzero(starts)
        rows = np.diff(np.append(first, total))
        run_keys = list(zip(*(array.take(pa.array(first)).to_pylist() for array in keys), strict=True))
        run_keys = run_keys or [()] * len(first)
        state_row = np.full(len(first), -1)
        known = self._known()
        if known:
            for index in np.flatnonzero(new_key[first]):
                state_row[index] = known.get(run_keys[index], -1)
        is_last = np.append(new_key[first][1:], True)
        kept, ticks, fires = np.zeros((3, len(first)), np.int64)
        runs = _Runs(run_keys, first, rows, kept, ticks, fires, is_last, state_row)
        self._join_state(runs, clocks)
        return runs

    def _known(self) -> dict[tuple[Any, ...], int]:
        if self.state is None or not self.state.num_rows:
            return {}
        if not self._context.partition:
            return {(): 0}
        keys = zip(*(self.state[name].to_pylist() for name in self._context.partition), strict=True)
        return {key: row for row, key in enumerate(keys)}

    def _join_state(self, runs: _Runs, clocks: Ints) -> None:
        """A run goes on with the key's window, unless that has expired."""
        found = np.flatnonzero(runs.state_row >= 0)
        if self.state is None or not len(found):
            return
        of_state = runs.state_row[found]
        alive = clocks[runs.first[found]] - self.state[WRITTEN].to_numpy()[of_state] < self._lifetime
        found, of_state = found[alive], of_state[alive]
        runs.ticks[found] = self.state[TICKS].to_numpy()[of_state]
        runs.fires[found] = self.state[FIRES].to_numpy()[of_state]
        runs.kept[found] = self.state["_kept"].to_numpy()[of_state]

    def _values(self, name: str, column: pa.ChunkedArray, runs: _Runs, begin: Ints, at: Ints) -> Values:
        """A field over all runs: what is kept of it, then the rows."""
        size = int((runs.kept + runs.rows).sum())
        found = Values.of(column).spread(at, size)
        old = np.flatnonzero(runs.kept)
        if len(old):
            to = np.repeat(begin[old], runs.kept[old]) + ramps(runs.kept[old])
            found.put(to, Values.of(pa.chunked_array([self._kept_items(name, runs, old)])))
        return found

    def _kept_items(self, name: str, runs: _Runs, old: Ints) -> pa.Array:
        """Return what the state holds of a field for some runs, one after the other. All items of a key have the key's values."""
        assert self.state is not None
        column = self.state[name].combine_chunks()
        if name in self._context.partition:
            return column.take(pa.array(np.repeat(runs.state_row[old], runs.kept[old])))
        return column.take(pa.array(runs.state_row[old])).flatten()

    def _results(self, table: pa.Table, keys: list[pa.Array], runs: _Runs, fired: _Fired) -> pa.Table:
        rows = pa.array(fired.rows)
        clocks, orders = table[events.CLOCK].take(rows), table[events.ORDER].take(rows)
        identity = {int(run): self._identity(runs.keys[run]) for run in np.unique(fired.runs)}
        ids = [
            f"{identity[run]}-{clock}-{n}"
            for run, clock, n in zip(fired.runs.tolist(), clocks.to_pylist(), fired.number.tolist(), strict=True)
        ]
        made: dict[str, Any] = {name: key.take(rows) for name, key in zip(self._context.partition, keys, strict=True)}
        made |= dict(zip(self._operation.outputs, fired.outputs, strict=True))
        stream = pa.array([self._context.stream], pa.string()).take(pa.array(np.zeros(len(fired.rows), np.int64)))
        made |= {events.ID: ids, events.TIME: clocks, events.CLOCK: clocks, events.FROM: stream}
        made[events.ORDER] = pc.binary_join_element_wise(orders.cast(pa.string()), "000000", ".")
        arrays = [_as(made[field.name], field.type) for field in self._schema]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _identity(self, key: tuple[Any, ...]) -> str:
        return identity_of(self._context, key_text(tuple(() if value is None else (value,) for value in key)))

    def _store(
        self,
        runs: _Runs,
        keys: list[pa.Array],
        clocks: Ints,
        columns: dict[str, Values],
        begin: Ints,
        length: Ints,
    ) -> None:
        """The state after the batch: of each key its last run."""
        last = np.flatnonzero(runs.is_last)
        counted = runs.ticks[last] + runs.rows[last]
        ticks = counted % self._trigger
        kept = np.minimum(length[last], self._keep)
        if self._clear:
            kept = np.minimum(ticks, kept)
        ends = begin[last] + length[last]
        items = np.repeat(ends - kept, kept) + ramps(kept)
        offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
        at_end = runs.first[last] + runs.rows[last] - 1
        made: dict[str, Any] = {
            name: key.take(pa.array(at_end)) for name, key in zip(self._context.partition, keys, strict=True)
        }
        made |= {
            WRITTEN: clocks[at_end],
            TICKS: ticks,
            FIRES: runs.fires[last] + counted // self._trigger,
            "_kept": kept,
        }
        for name, values in columns.items():
            if name in self._context.partition:
                continue
            made[name] = pa.ListArray.from_arrays(pa.array(offsets), values.array(items))
        fresh = pa.table(made)
        if self.state is not None and self.state.num_rows:
            untouched = np.ones(self.state.num_rows, bool)
            untouched[runs.state_row[runs.state_row >= 0]] = False
            fresh = pa.concat_tables([self.state.filter(pa.array(untouched)).cast(fresh.schema), fresh])
        self.state = fresh.combine_chunks()


def ramps(lengths: Ints) -> Ints:
    """0, 1, ... up to each of some lengths, one after the other."""
    total = int(lengths.sum())
    return np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _as(values: Any, kind: pa.DataType) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(kind)
    return pa.array(values, kind)
