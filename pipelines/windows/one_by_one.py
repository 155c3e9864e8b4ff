"""Any window as a function of state, rows and watermark: its events one by one in Python, a row of state per key.

Where an operation has a form in arrays (`array_kinds`), that is some ten times as fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.windows.arrays import Arrays, State
from pipelines.windows.blob import dumps, loads
from pipelines.windows.buffer import FAR, WindowContext
from pipelines.windows.event import Event
from pipelines.windows.event_rows import items_of, rows_of
from pipelines.windows.keyed import KeyedWindows

TEXT, WAKE, WINDOW = "_text", "_wake", "_window"
"""Columns of a state: what tells the key apart (`key_text`), the first clock at which the window does anything by itself (ms),
and its key with its data, as plain data in bytes; null: the window has gone."""
_STATE = pa.schema([(TEXT, pa.string()), (WAKE, pa.int64()), (WINDOW, pa.binary())])


class OneByOne(Arrays):
    """The windows by key of any operation (`kinds`).

    Args:
        operation, context, schema: as of `array_kinds.arrays_for`.
    """

    def __init__(self, operation: Any, context: WindowContext, schema: pa.Schema) -> None:
        super().__init__(context, schema)
        self._operation = operation

    def _run(
        self, state: pa.Table | None, rows: pa.Table, clock: int
    ) -> tuple[pa.Table, pa.Table | None, pa.Table | None]:
        state = _STATE.empty_table() if state is None else state
        items = items_of(rows)
        windows = KeyedWindows(self._operation, self._context)
        asked = self._asked(state, windows, (event for event, _, _ in items), clock)
        before = [loads(blob) for blob in state[WINDOW].filter(asked).to_pylist()]
        windows.restore({"clock": None, "pending": [], "windows": before})
        made = rows_of(windows.feed(items, clock), self._schema)
        fresh = self._saved(windows)
        # What has gone stays in the changes, so that nobody takes it for unchanged.
        gone = set(state[TEXT].filter(asked).to_pylist()) - set(fresh[TEXT].to_pylist())
        ended = pa.table([sorted(gone), [FAR] * len(gone), [None] * len(gone)], schema=_STATE)
        left = pa.concat_tables([state.filter(pc.invert(asked)), fresh]).combine_chunks()
        return made, left, pa.concat_tables([fresh, ended])

    def of_buckets(self, saved: Iterable[dict[str, Any]], rows: pa.Schema, clock: int) -> State:
        """Return as one state what `KeyedWindows` of separate keys have saved.

        Args:
            rows, clock: as of `joined`.
        """
        return self.joined((self._of_bucket(bucket, rows) for bucket in saved), rows, clock)

    def _of_bucket(self, saved: dict[str, Any], rows: pa.Schema) -> State:
        windows = KeyedWindows(self._operation, self._context)
        windows.restore(saved)
        return State(self._saved(windows), rows_of(windows.pending, rows) if windows.holds_back else None)

    @staticmethod
    def _asked(state: pa.Table, windows: KeyedWindows, happened: Iterable[Event], clock: int) -> pa.ChunkedArray:
        """Return which windows of a state get an event, or do something by themselves."""
        own = pc.is_in(state[TEXT], pa.array(sorted(windows.texts(happened)), pa.string()))
        return pc.or_(own, pc.less_equal(state[WAKE], clock))

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

    def _due(self, windows: pa.Table) -> int:
        return int(pc.min(windows[WAKE]).as_py())
