"""One bucket of an operation's keys: rows as Arrow in, results as Arrow out, and the clock that decides what is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.graph import events
from pipelines.windows.array_kinds import arrays_for
from pipelines.windows.arrays import EMPTY, WindowContent, from_ipc, to_ipc
from pipelines.windows.blob import dumps, loads
from pipelines.windows.event_rows import items_of, rows_of
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.signature import signature

NEVER = -(2**62)
"""The clock before anything is known."""


@dataclass
class Clocks:
    """The clock of each origin, in ms, and the time when the bucket's windows want to be woken.

    Attributes:
        clocks: by origin.
        due: the earliest clock at which there is something to do without a new event; None: never.
    """

    clocks: dict[str, int] = field(default_factory=dict)
    due: int | None = None

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Clocks:
        return cls(dict(value["edges"]), value["due"])

    def to_json(self) -> dict[str, Any]:
        # "edges" is in checkpoints.
        return {"edges": self.clocks, "due": self.due}

    def hear(self, rows: pa.Table) -> None:
        """Take in clock rows; a clock never goes back."""
        for origin, clock in zip(rows[events.FROM].to_pylist(), rows[events.CLOCK].to_pylist(), strict=True):
            self.clocks[origin] = max(clock, self.clocks.get(origin, NEVER))

    def now(self, origins: Sequence[str]) -> int:
        """Return the clock of an operation: that of the origin that is furthest behind."""
        return min((self.clocks.get(origin, NEVER) for origin in origins), default=NEVER)


@dataclass(frozen=True)
class BucketMaker:
    """An operation as a worker needs to know it. It travels to the workers.

    Args:
        operation: one of `pipelines.windows.operations`.
        context: where it stands in its flow.
        origins: the inputs whose clocks it waits for.
        schema: the Arrow schema of its results, the event's columns included.
        origin: what its watermark rows say for their origin.
        in_arrays: whether its windows are worked in arrays (`array_kinds`).
        where: the operation and the user's line, for errors of the user's code.
    """

    operation: Any
    context: Any
    origins: tuple[str, ...]
    schema: pa.Schema
    origin: str = ""
    in_arrays: bool = False
    where: str = ""

    def __call__(self) -> Bucket:
        return ArrayBucket(self) if self.in_arrays else Bucket(self)


class Bucket:
    """The windows of one bucket for the length of one batch."""

    def __init__(self, plan: BucketMaker) -> None:
        self._plan = plan
        self.signature = signature(plan.operation, plan.context.partition, type(self).__name__)
        self._make()
        self.clocks = Clocks()
        self._now = self._floor = NEVER

    def _make(self) -> None:
        self._windows = KeyedWindows(self._plan.operation, self._plan.context)

    def starts(self, rows: pa.Table, clocks: Clocks, *, bounded: bool = False) -> bool:
        """Take in a batch's rows; false if they wake no window, so that its state need not be read.

        Args:
            bounded: the rows are all that there is: everything is run, up to the latest time of all.
        """
        is_event = self._are_events(rows)
        self._rows = rows.filter(is_event)
        self.clocks = clocks
        self._floor = clocks.now(self._plan.origins)
        clocks.hear(rows.filter(pc.invert(is_event)))
        self._now = clocks.now(self._plan.origins)
        if bounded:
            latest = pc.max(rows[events.CLOCK]).as_py()
            self._now = NEVER if latest is None else latest
        due = clocks.due is not None and clocks.due <= self._now
        return bool(self._rows.num_rows) or due

    def _are_events(self, rows: pa.Table) -> Any:
        return pc.is_valid(rows[events.ID])

    def in_form_of(self, kept: bytes) -> Bucket:
        """Return the bucket that goes on with what the state store holds: an earlier release may have chosen another form."""
        return self

    @staticmethod
    def saved_in(state: bytes) -> dict[str, Any]:
        """Return what `KeyedWindows.save` gave, from a saved state."""
        saved: dict[str, Any] = loads(state)
        return saved

    def restore(self, state: bytes | None) -> None:
        if state:
            self._windows.restore(self.saved_in(state))

    def save(self) -> bytes:
        return dumps(self._windows.save())

    def run(self, number: int) -> pa.Table:
        """Return the results, and in bucket 0 the watermark row."""
        try:
            results = self._fed()
        except Exception as error:
            # One line that starts like this is what reaches the user of all that a worker prints.
            raise RuntimeError(f"{self._plan.where} failed: {' '.join(repr(error).split())}") from error
        return pa.concat_tables([results, self.passed(number)])

    def _fed(self) -> pa.Table:
        order = [(events.CLOCK, "ascending"), (events.ORDER, "ascending")]
        rows = self._rows.take(pc.sort_indices(self._rows, sort_keys=order))
        results = self._windows.feed(items_of(rows, self._floor), self._now)
        self._windows.check()
        self.clocks.due = self._windows.due()
        return rows_of(results, self._plan.schema)

    def passed(self, number: int) -> pa.Table:
        """Return the watermark row alone."""
        if number or self._now == NEVER:
            return self._plan.schema.empty_table()
        return clock_row(self._plan.schema, self._now, self._plan.origin)


class ArrayBucket(Bucket):
    """A bucket whose windows work on all keys at once, in arrays."""

    def _make(self) -> None:
        self._arrays = arrays_for(self._plan.operation, self._plan.context, self._plan.schema)
        self._state = EMPTY

    def _are_events(self, rows: pa.Table) -> Any:
        """Return which rows are events: where its events travel without id, only watermark rows say where they come from."""
        return pc.is_valid(rows[events.ID]) if events.ID in rows.column_names else pc.is_null(rows[events.FROM])

    def in_form_of(self, kept: bytes) -> Bucket:
        other = Bucket(self._plan)
        if not kept.startswith(other.signature):
            return self
        # Of windows one by one too nobody asks for the ids of their events.
        missing = [name for name in (events.ID, events.TIME) if name not in self._rows.column_names]
        other._rows = self._rows
        for name in missing:
            kind = self._plan.schema.field(name).type
            other._rows = other._rows.append_column(name, pa.nulls(self._rows.num_rows, kind))
        other.clocks, other._floor, other._now = self.clocks, self._floor, self._now
        return other

    @staticmethod
    def state_in(state: bytes) -> WindowContent:
        """Return a saved state; its clock is not in it."""
        size = int.from_bytes(state[:8], "big")
        windows, pending = (from_ipc([part]) if part else None for part in (state[8 : 8 + size], state[8 + size :]))
        return WindowContent(windows, pending)

    def restore(self, state: bytes | None) -> None:
        if state:
            self._state = self.state_in(state)

    def save(self) -> bytes:
        state = self._state
        windows = b"" if state.windows is None else to_ipc(state.windows, compression="lz4")
        rest = b"" if state.pending is None else to_ipc(state.pending)
        return len(windows).to_bytes(8, "big") + windows + rest

    def _fed(self) -> pa.Table:
        rows = self._rows
        if self._floor > NEVER:
            at = rows.schema.get_field_index(events.CLOCK)
            rows = rows.set_column(at, rows.schema.field(at), pc.max_element_wise(rows[events.CLOCK], self._floor))
        results, self._state = self._arrays.feed(self._state, rows, self._now)
        self.clocks.due = self._arrays.due(self._state)
        return results


def clock_row(schema: pa.Schema, clock: int, origin: str) -> pa.Table:
    """Return one row that says: nothing older than `clock` comes from `origin` any more."""
    known = {events.CLOCK: clock, events.FROM: origin}
    return pa.table({f.name: pa.array([known.get(f.name)], f.type) for f in schema}, schema=schema)
