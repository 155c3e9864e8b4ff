"""Windows in arrays: all keys at once, as a function of state, rows and watermark. What the kinds of them have in common.

The same answers as `KeyedWindows`. Nothing is changed in place: a state that a batch began with is there as before when the batch
has failed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.graph import events
from pipelines.graph.row_values import to_arrow
from pipelines.windows.buffer import SECOND, WindowContext, identity_of, key_text


def to_ipc(table: pa.Table, compression: str | None = None) -> bytes:
    """Return a table as an Arrow IPC stream: its form on the way through the shuffle and in the state store."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def from_ipc(blobs: Iterable[bytes]) -> pa.Table:
    """Return the tables of some IPC streams of one schema as one table."""
    return pa.concat_tables([pa.ipc.open_stream(blob).read_all() for blob in blobs])


Ints = np.ndarray[Any, np.dtype[np.int64]]
# Behind an hour of silence a window of every second has 3,600 results per key. So many are made at once, 400 MB on their way: in
# arrays a third of a KB each. Each step goes through all keys, so an ordinary batch should be one: 100,000 keys, 10 s of ticks.
RESULTS_AT_ONCE = 1_200_000


@dataclass(frozen=True)
class WindowContent:
    """The content of windows between two batches.

    Attributes:
        windows: one row per key: the partition fields, the clock of its last event (`WRITTEN`, ms), the events since it fired
            (`TICKS`), how often it has fired (`FIRES`), and its items, as lists: the fields that are aggregated. Where a clock
            decides about them `CLOCKS` (ms), and with a trigger by time the second of the first event (`BEGUN`). None: no key.
        pending: rows later than the clock, as they came; None: none.
        clock: up to which all is done, in ms; None: not known.
        changed: of `windows` the rows that the last batch has made; None: all may be.
        unchecked: behind a piece of a batch, rows with the keys of windows that may hold too much; None: none does.
    """

    windows: pa.Table | None = None
    pending: pa.Table | None = None
    clock: int | None = None
    changed: pa.Table | None = None
    unchecked: pa.Table | None = None

    @property
    def keys(self) -> int:
        """Return how many windows there are."""
        return 0 if self.windows is None else self.windows.num_rows


EMPTY: Final = WindowContent()


class Arrays(ABC):
    """The windows by key of an operation.

    Args:
        context: as of `KeyedWindows`.
        schema: of the results: partition fields, outputs, and `pipelines.graph.events.COLUMNS`.
    """

    every = 0
    """After how many seconds a window that gets no event fires again, for as long as it lives; 0: it does not."""
    each = 1
    """How many results that has at most, as far as the operation says it, in the size of those that are made in arrays."""

    def __init__(self, context: WindowContext, schema: pa.Schema) -> None:
        self._context, self._schema = context, schema

    @property
    def depth(self) -> int:
        """Return how many stateful operations lie before it (`WindowContext.depth`)."""
        return self._context.depth

    def feed(
        self, state: WindowContent, rows: pa.Table, clock: int, *, is_piece: bool = False
    ) -> tuple[pa.Table, WindowContent]:
        """Run rows up to `clock`, then the ticks up to `clock` for all windows.

        Args:
            state: behind the batch before.
            rows: partition and aggregated fields, `CLOCK` and `ORDER`, in any order; later ones than `clock` wait.
            clock: ms; never less than that of the state.
            is_piece: the rows may be a part of a batch, behind which `check` comes: later ones may bring a total back.

        Returns:
            The results in the order of (clock, order), and the state behind them.

        Raises:
            ValueError: if a row or the clock goes back.
            ArithmeticError: if a total of a window does not fit its type behind the rows.
        """
        if state.clock is not None and clock < state.clock:
            raise ValueError(f"the clock goes back from {state.clock} to {clock}")
        if state.pending is not None:
            rows = pa.concat_tables([conformed(state.pending, rows.schema), rows])
        in_time = pc.less_equal(rows[events.CLOCK], clock)
        pending, rows = rows.filter(pc.invert(in_time)), in_order(rows.filter(in_time))
        if rows.num_rows and state.clock is not None and rows[events.CLOCK][0].as_py() < state.clock:
            raise ValueError(f"an event of clock {rows[events.CLOCK][0]} comes after clock {state.clock}")
        made, windows, changed = self._in_steps(state, rows, clock)
        unchecked = state.unchecked
        if windows is not None and rows.num_rows:
            # Not behind each step: a sum that only a step ends with is no batch's.
            try:
                self._check(windows if changed is None else changed, rows)
            except ArithmeticError:
                if not is_piece:
                    raise
                own = self._one_per_key(rows)
                unchecked = own if unchecked is None else pa.concat_tables([unchecked, own])
        return made, WindowContent(windows, pending if pending.num_rows else None, clock, changed, unchecked)

    def check(self, state: WindowContent) -> None:
        """Check behind the last piece of a batch what could not be said behind one before.

        Raises:
            ArithmeticError: as of `feed`.
        """
        if state.unchecked is not None and state.windows is not None:
            self._check(state.windows, state.unchecked)

    def _one_per_key(self, rows: pa.Table) -> pa.Table:
        """Return rows with all keys of some, for `_check`."""
        rows = rows.select(list(dict.fromkeys([*self._context.partition, events.CLOCK, events.ORDER])))
        try:
            _, first = np.unique(numbered(self._context.partition, None, rows)[0], return_index=True)
        except pa.ArrowNotImplementedError:
            return rows
        return rows.take(pa.array(first))

    def _in_steps(
        self, state: WindowContent, rows: pa.Table, clock: int
    ) -> tuple[pa.Table, pa.Table | None, pa.Table | None]:
        """Return what `_run` gives, from clock to clock where there would be too many results at once."""
        until, windows, parts = state.clock, state.windows, list[pa.Table]()
        while (until := self._until(until, windows, rows, clock)) < clock:
            size = int(np.searchsorted(rows[events.CLOCK].to_numpy(), until, "right"))
            made, windows, _ = self._run(windows, rows.slice(0, size), until)
            parts.append(made)
            rows = rows.slice(size)
        made, windows, changed = self._run(windows, rows, clock)
        # After several steps any window may have changed.
        return (pa.concat_tables([*parts, made]), windows, None) if parts else (made, windows, changed)

    def _until(self, behind: int | None, windows: pa.Table | None, rows: pa.Table, clock: int) -> int:
        """Return up to which clock the step goes that begins behind another."""
        held = 0 if windows is None else windows.num_rows
        if not self.every or not (held or rows.num_rows):
            return clock
        # Before that nothing comes to pass.
        starts = [self._due(windows)] if held and windows is not None else []
        start, ticks = min([*starts, *rows[events.CLOCK][:1].to_pylist()]), self.every * SECOND
        start = start if behind is None else max(start, behind)
        # Ticks are at whole seconds.
        start = -(-start // SECOND) * SECOND
        if (held + rows.num_rows) * self.each * ((clock - start) // ticks + 1) <= RESULTS_AT_ONCE:
            return clock
        number = max(1, RESULTS_AT_ONCE // (self._keys(windows, rows) * self.each))
        # Short of the next tick of a window that makes one at the start.
        return min(clock, start + number * ticks - 1)

    def _keys(self, windows: pa.Table | None, rows: pa.Table) -> int:
        """Return how many keys windows and rows have; where windows do not show theirs, the more of the two."""
        held = 0 if windows is None else windows.num_rows
        by = self._context.partition
        shown = windows if windows is not None and {*by} <= {*windows.column_names} else None
        try:
            return max(held, int(numbered(by, shown, rows)[0].max(initial=-1)) + 1)
        except pa.ArrowNotImplementedError:
            return max(held, len(set(map(repr, rows.select(by).to_pylist()))))

    @abstractmethod
    def _run(
        self, state: pa.Table | None, rows: pa.Table, clock: int
    ) -> tuple[pa.Table, pa.Table | None, pa.Table | None]:
        """Return the results, the windows behind them, and which of these are not as before (None: all may be).

        Args:
            rows: in time, in the order of (clock, order).
        """

    def _check(self, windows: pa.Table, rows: pa.Table) -> None:  # noqa: B027 (most find nothing)
        """Check behind a batch that what windows with an event of it hold fits what they will make of it.

        Args:
            windows: that the batch has changed, or all.
            rows: of the batch.
        """

    @abstractmethod
    def laid_over(self, windows: list[pa.Table], clock: int | None, depth: int | None = None) -> pa.Table | None:
        """Return the windows of a state of which later ones hold only what had changed: of each window the last row.

        Args:
            windows: the whole one, and what has changed since, oldest first.
            clock: of the last one; what had ended by then is left out.
            depth: of the windows that left them (`WindowContext.depth`); None: as of these.
        """

    def with_own_texts(self, windows: pa.Table) -> pa.Table:
        """Return the windows of a state whose texts of keys have another form than here (`TEXT_FORM`) with their own ones."""
        # Most keep none.
        return windows

    def joined(self, states: Iterable[WindowContent], rows: pa.Schema, clock: int) -> WindowContent:
        """Return the states of separate keys as one.

        Args:
            rows: the schema of the rows that go in, which those that wait get.
            clock: of all of them, in ms.
        """
        parts = list(states)
        windows = [part.windows for part in parts if part.windows is not None]
        pending = [conformed(part.pending, rows) for part in parts if part.pending is not None]
        return WindowContent(self.laid_over(windows, clock), pa.concat_tables(pending) if pending else None, clock)

    @staticmethod
    def _last_of(windows: list[pa.Table], by: tuple[str, ...]) -> pa.Table | None:
        """Return of each window, which some columns tell apart, the last row."""
        if not windows:
            return None
        rows = pa.concat_tables([part.cast(windows[-1].schema) for part in windows]).combine_chunks()
        numbers, _ = numbered(by, None, rows)
        last = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
        last[numbers] = np.arange(len(numbers))
        return rows.take(pa.array(np.sort(last)))

    def due(self, state: WindowContent) -> int | None:
        """Return the earliest clock at which `feed` without rows would do anything; None: never."""
        clocks = [] if state.pending is None else [int(pc.min(state.pending[events.CLOCK]).as_py())]
        if state.windows is not None and state.windows.num_rows:
            clocks.append(self._due(state.windows))
        return min(clocks, default=None)

    @abstractmethod
    def _due(self, windows: pa.Table) -> int:
        """Return the earliest clock at which one of some windows does anything."""

    def _texts(self, keys: pa.Table, number: int) -> list[str]:
        """Return the texts of some keys (`key_text`), from their fields."""
        if not self._context.partition:
            return [key_text(())] * number
        columns = [keys[name].to_pylist() for name in self._context.partition]
        return [
            key_text(tuple(() if value is None else (value,) for value in key)) for key in zip(*columns, strict=True)
        ]

    def _ids(self, texts: list[str], of_key: Ints, clocks: Ints, numbers: Ints) -> pa.Array:
        """Return the ids of results (`Window.made`); `of_key` are the places of their keys among the texts."""
        names = pa.array([identity_of(self._context, text) for text in texts], pa.string()).take(pa.array(of_key))
        return pc.binary_join_element_wise(names, *(pa.array(n).cast(pa.string()) for n in (clocks, numbers)), "-")

    def _orders(self, texts: list[str], of_key: Ints, numbers: Ints) -> pa.Array:
        """Return the places of results of ticks among those of their clock: the key decides, then the number."""
        bang = "!" * (1 + self._context.depth)
        own, of_number = np.unique(numbers, return_inverse=True)
        keys = pa.array([f"{bang}{text}" for text in texts], pa.string()).take(pa.array(of_key))
        ends = pa.array([events.nth("", n) for n in own.tolist()], pa.string()).take(pa.array(of_number))
        return pc.binary_join_element_wise(keys, ends, "")

    def _table(self, made: Mapping[str, Any], number: int) -> pa.Table:
        """Return columns as results, in the order of (clock, order)."""
        stream = pa.repeat(pa.scalar(self._context.stream, pa.string()), number)
        columns = {**made, events.FROM: stream}
        table = pa.Table.from_arrays([as_type(columns[f.name], f.type) for f in self._schema], schema=self._schema)
        return table.sort_by([(events.CLOCK, "ascending"), (events.ORDER, "ascending")])


def numbered(partition: tuple[str, ...], state: pa.Table | None, rows: pa.Table) -> tuple[Ints, pa.Table]:
    """Return the numbers of the keys of a state's rows and then of a batch's, from 0 as they are met, and their fields."""
    known = 0 if state is None else state.num_rows
    if not partition:
        return np.zeros(known + rows.num_rows, np.int64), pa.table({})
    both = {}
    numbers: Any = None
    for name in partition:
        chunks = rows[name].chunks if state is None else [*state[name].cast(rows[name].type).chunks, *rows[name].chunks]
        both[name] = pa.chunked_array(chunks, rows[name].type).combine_chunks()
        own = both[name].dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)
        if numbers is not None:
            pairs = pa.array(numbers * (int(own.max(initial=0)) + 1) + own)
            own = pairs.dictionary_encode().indices.to_numpy().astype(np.int64)
        numbers = own
    return numbers, pa.table(both)


def in_order(rows: pa.Table) -> pa.Table:
    """Return rows in the order of (clock, order). Most come so, or in that of `ORDER`."""
    order, clocks = rows[events.ORDER], rows[events.CLOCK].to_numpy()
    size = rows.num_rows
    if size > 1 and not pc.all(pc.less_equal(order.slice(0, size - 1), order.slice(1))).as_py():
        return rows.sort_by([(events.CLOCK, "ascending"), (events.ORDER, "ascending")])
    if (clocks[1:] >= clocks[:-1]).all():
        return rows
    return rows.take(pa.array(np.argsort(clocks, kind="stable")))


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of an earlier schema as those of a batch: null where a field is new, without what is not there any more."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def ramps(lengths: Ints) -> Ints:
    """Return 0, 1, ... up to each of some lengths, one after the other."""
    total = int(lengths.sum())
    return np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def as_type(values: Any, kind: pa.DataType) -> Any:
    """Return values as Arrow of a type; what does not fit is an error."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(kind)
    return to_arrow(values, kind) if isinstance(values, list) else pa.array(values, kind)
