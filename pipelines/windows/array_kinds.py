"""The arrays of each operation: which can be worked so, and how; the others go one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.aggregators import Sum
from pipelines.aggregators.window import WindowAggregator
from pipelines.graph import events
from pipelines.windows.arrays import Arrays, WindowContent
from pipelines.windows.blob import dumps, loads
from pipelines.windows.buffer import FAR, WindowContext, key_text
from pipelines.windows.event import Event
from pipelines.windows.event_rows import items_of, rows_of
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import AggregateWindow, SpanWindow
from pipelines.windows.span_arrays import SpanArrays
from pipelines.windows.tuples import TupleChain
from pipelines.windows.vectorised import ArrayWindows, is_bounded, seconds_between

TEXT, WAKE, WINDOW = "_text", "_wake", "_window"
"""Columns of a state: what tells the key apart (`key_text`), the first clock at which the window does anything by itself (ms),
and its key with its data, as plain data in bytes; null: the window has gone."""
_STATE = pa.schema([(TEXT, pa.string()), (WAKE, pa.int64()), (WINDOW, pa.binary())])


class OneByOne(Arrays):
    """Any window as a function of state, rows and watermark: its events one by one in Python, a row of state per key.

    Where an operation has a form in arrays, that is some ten times as fast.
    """

    def __init__(self, operation: Any, context: WindowContext, schema: pa.Schema) -> None:
        super().__init__(context, schema)
        self._operation = operation
        # Its results are events of Python on their way, some 1 KB each.
        self.every, self.each = seconds_between(operation), 3 * (getattr(operation, "size", None) or 1)

    def _run(
        self, state: pa.Table | None, rows: pa.Table, clock: int
    ) -> tuple[pa.Table, pa.Table | None, pa.Table | None]:
        state = _STATE.empty_table() if state is None else state
        items = items_of(rows)
        windows = KeyedWindows(self._operation, self._context)
        asked = self._asked(state, windows, (event for event, _, _ in items), clock)
        windows.restore({"clock": None, "pending": [], "windows": self._kept(state.filter(asked))})
        made = rows_of(windows.feed(items, clock), self._schema)
        fresh = self._saved(windows)
        # What has gone stays in the changes, so that nobody takes it for unchanged.
        gone = set(state[TEXT].filter(asked).to_pylist()) - set(fresh[TEXT].to_pylist())
        ended = pa.table([sorted(gone), [FAR] * len(gone), [None] * len(gone)], schema=_STATE)
        left = pa.concat_tables([state.filter(pc.invert(asked)), fresh]).combine_chunks()
        return made, left, pa.concat_tables([fresh, ended])

    def _check(self, windows: pa.Table, rows: pa.Table) -> None:
        if not any(isinstance(own, Sum | TupleChain) for own in getattr(self._operation, "aggregators", ())):
            return
        keyed = KeyedWindows(self._operation, self._context)
        fed = pc.is_in(windows[TEXT], pa.array(sorted(keyed.texts(e for e, _, _ in items_of(rows))), pa.string()))
        kept = self._kept(windows.filter(pc.and_(fed, pc.is_valid(windows[WINDOW]))))
        keyed.restore({"clock": None, "pending": [], "windows": kept})
        keyed.check(keyed)

    def of_buckets(self, saved: Iterable[dict[str, Any]], rows: pa.Schema, clock: int) -> WindowContent:
        """Return as one state what `KeyedWindows` of separate keys have saved."""
        return self.joined((self._of_bucket(bucket, rows) for bucket in saved), rows, clock)

    def _of_bucket(self, saved: dict[str, Any], rows: pa.Schema) -> WindowContent:
        windows = KeyedWindows(self._operation, self._context)
        windows.restore(saved)
        return WindowContent(self._saved(windows), rows_of(windows.pending, rows) if windows.holds_back else None)

    @staticmethod
    def _asked(state: pa.Table, windows: KeyedWindows, happened: Iterable[Event], clock: int) -> pa.ChunkedArray:
        """Return which windows of a state get an event, or do something by themselves."""
        own = pc.is_in(state[TEXT], pa.array(sorted(windows.texts(happened)), pa.string()))
        return pc.or_(own, pc.less_equal(state[WAKE], clock))

    @staticmethod
    def _kept(state: pa.Table) -> list[list[Any]]:
        """Return windows as `KeyedWindows.restore` takes them, under the texts that they have here."""
        columns = (state[name].to_pylist() for name in (WINDOW, TEXT))
        return [[*loads(blob), text] for blob, text in zip(*columns, strict=True)]

    @staticmethod
    def _saved(windows: KeyedWindows) -> pa.Table:
        kept = list(windows)
        due = [window.due() for window in kept]
        wakes = [FAR if clock is None else clock for clock in due]
        blobs = [dumps([window.key, window.save()]) for window in kept]
        return pa.table([[window.text for window in kept], wakes, blobs], schema=_STATE)

    def laid_over(self, windows: list[pa.Table], clock: int | None, depth: int | None = None) -> pa.Table | None:
        rows = self._last_of(windows, (TEXT,))
        return None if rows is None else rows.filter(pc.is_valid(rows[WINDOW]))

    def with_own_texts(self, windows: pa.Table) -> pa.Table:
        kept = self._kept(windows)
        known, texts = {text for _, _, text in kept}, list[str]()
        for values, _, before in kept:
            text = key_text(tuple(map(tuple, values)))
            # Earlier releases did not do this and began a second window of the key: that one goes on, the first ends by itself.
            texts.append(before if text in known else text)
            known.add(text)
        return windows.set_column(0, _STATE.field(TEXT), pa.array(texts, pa.string()))

    def _due(self, windows: pa.Table) -> int:
        return int(pc.min(windows[WAKE]).as_py())


def fits(operation: Any, context: WindowContext, types: pa.Schema) -> bool:
    """Check whether the windows of an operation can be worked in arrays: plain keys, and one of

    - windows by policies that fire and hold few events, with built-in numeric aggregators;
    - aligned and session windows, with any aggregator.

    Args:
        types: the fields of the events.
    """
    if not all(name in types.names and _is_key(types.field(name).type) for name in context.partition):
        return False
    return isinstance(operation, SpanWindow) or (
        isinstance(operation, AggregateWindow) and is_bounded(operation, types)
    )


def _is_key(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_signed_integer(kind)


def windows_of(operation: Any, context: WindowContext, types: pa.Schema, schema: pa.Schema) -> Arrays:
    """Return the windows of an operation: in arrays where it `fits`, else one by one.

    Args:
        types: the fields of the events.
        schema: as of `arrays_for`.
    """
    if fits(operation, context, types):
        return arrays_for(operation, context, schema)
    return OneByOne(operation, context, schema)


def arrays_for(operation: Any, context: WindowContext, schema: pa.Schema) -> Arrays:
    """Return the windows of an operation that `fits`.

    Args:
        schema: of the results: partition fields, outputs, and `pipelines.graph.events.COLUMNS`.
    """
    if isinstance(operation, SpanWindow):
        return SpanArrays(operation, context, schema)
    return ArrayWindows(operation, context, schema)


EVENT_COLUMNS = (events.ID, events.TIME, events.FROM)
"""An event's id, own time and origin."""


def wanted_columns(operation: Any, context: WindowContext) -> tuple[str, ...]:
    """Return which of an event's id, own time and origin its windows look at."""
    if sees_whole_events(operation):
        return EVENT_COLUMNS
    return (events.TIME,) if isinstance(operation, SpanWindow) and context.depth else ()


def sees_whole_events(operation: Any) -> bool:
    """Check whether events are its results, or go to a user's aggregator: it may look at any field, at their id and time."""
    if not isinstance(operation, AggregateWindow | SpanWindow):
        return True
    return any(isinstance(aggregator, WindowAggregator | TupleChain) for aggregator in operation.aggregators)
