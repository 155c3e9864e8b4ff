"""Windows of a stream's own source, run in the driver within its batch (docs/adr/0054).

A batch begins with the state that the newest record below it names. The rows that are in time go in as Arrow, what comes out
stands in the plan in the window's place, and the file with the state behind it is named by the record of each output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, BooleanType, DatetimeType, NumericType

from pipelines.errors import BatchError, DefinitionError, NotTextError
from pipelines.execution.batch.channels import clocks_after
from pipelines.execution.batch.group_sources import clock_of
from pipelines.execution.batch.poison import Kept, PoisonRows
from pipelines.execution.checkpoint.belonging import Belonging, Named, named_by
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.execution.checkpoint.waiting_rows import Waiting
from pipelines.execution.checkpoint.window_begin import Begun, StateFiles, StateRef, WindowStateError, state_files
from pipelines.execution.checkpoint.window_files import Between, Definition, WindowFailure, WindowFiles
from pipelines.execution.protocol.failures import reason_of
from pipelines.graph import events, nodes
from pipelines.graph.dialects import SPARK
from pipelines.planner.step import column, struct
from pipelines.planner.windows import numbered
from pipelines.spark.arrow_frame import arrow_frame, to_arrow
from pipelines.state.texts import check_texts
from pipelines.windows.array_kinds import OneByOne, wanted_columns, windows_of
from pipelines.windows.bucket import NEVER
from pipelines.windows.signature import signature

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pipelines.execution.batch.group import BatchGroup
    from pipelines.execution.batch.plan_run import PlanRun
    from pipelines.execution.batch.position import Position
    from pipelines.execution.protocol.coordinator import AttemptRecord, Batch
    from pipelines.places.location import Place

# Up to so many rows of a key, some numbers, a clock and an order travel at once (some 50 MB).
ROWS_AT_ONCE = 1_000_000
# As objects of Python each takes some 600 bytes.
EVENTS_AT_ONCE = 250_000
# Of rows with long texts so many bytes: an eighth of what Spark lets a job give back, for the pieces are not all of one size.
BYTES_AT_ONCE = 128_000_000


@dataclass(frozen=True)
class Windowed:
    """The results of the windows over a batch, as frames that stand in their places, and what its records are to name."""

    named: Named
    frames: Mapping[int, DataFrame]


class _Stage:
    """One window of the group's batch, as arrays.

    Attributes:
        taken: the columns that go into them.
        read: the fields that they say they read, with their types: another type is another operation, for what is kept of
            the field would not fit.
        form: in which they are kept.
        row_schema: of what goes into them.
        fields: that go into them, with their types; `sees_all` says that these are all that an event has.
    """

    def __init__(self, group: BatchGroup, node: nodes.BatchWindowNode) -> None:
        self.node = node
        results = struct(", ".join(f"`{n}` {kind}" for n, kind in zip(node.fields, node.types, strict=True)))
        schema = group.schema_at(group.topology.graph[node.parents[0]])
        types, made = (to_arrow_schema(fields, timezone="UTC") for fields in (schema, results))
        self.arrays = windows_of(node.operation, node.context, types, made)
        kinds = {f.name: f.dataType.simpleString() for f in schema.fields if f.name not in events.COLUMNS}
        named = {*node.key, *node.operation.inputs}
        self.read = {name: kind for name, kind in kinds.items() if name in named}
        one_by_one = isinstance(self.arrays, OneByOne)
        carried = wanted_columns(node.operation, node.context)
        self.form = "one by one" if one_by_one else "in the batch"
        # Who sees whole events may look at any field.
        self.sees_all = events.ID in carried
        self.fields = kinds if self.sees_all else self.read
        self.taken = (*self.fields, *carried, events.CLOCK, events.ORDER)
        self.row_schema = pa.schema([types.field(name) for name in self.taken])

    def takes(self, pending: pa.Table) -> bool:
        """Return whether events that wait lack nothing that the windows look at, as those of another definition keep them.

        Windows keep of an event what they take of it. Where they keep it whole, with its own time, a field that is not there is
        new in the source, and null.
        """
        there = {*pending.column_names}
        # Those of earlier releases may have columns for what they did not keep.
        is_whole = {events.ID, events.TIME} <= there and not pending[events.TIME].null_count
        return is_whole or (not self.sees_all and {*self.row_schema.names} <= there)

    def rows(self, frame: DataFrame) -> DataFrame:
        """Return what goes into the windows."""
        return frame.select(*(SPARK.name(name) for name in self.taken))

    @property
    def where(self) -> str:
        """Return what it is, and the user's line."""
        return f"{self.node.label} (defined at {self.node.at})"

    def checked(self, rows: pa.Table) -> pa.Table:
        """Return rows that are to go into the windows.

        In arrays a text is looked at when its window fires. Behind the batch that brought it, none could do without it.

        Raises:
            NotTextError: a text of theirs is none.
        """
        check_texts(self.where, rows)
        return rows


class DriverWindows:
    """The windows of a group's own source.

    Args:
        group: the batch group; it has `windows`.
        version: of the flow's definition, as its author counts; None: not known.

    Attributes:
        files: of the checkpoint.
        stages: each window of the group.
        states: theirs, batch by batch.
    """

    def __init__(self, group: BatchGroup, checkpoint: Place, version: str | None = None) -> None:
        self.group = group
        self.files: StateFiles = state_files(checkpoint)
        self.stages = [_Stage(group, node) for node in group.windows]
        self._node = self.stages[0].node
        arrays = [stage.arrays for stage in self.stages]
        self.version = version
        self.states = WindowFiles(self.files, arrays, self._definition(checkpoint))
        self._begun = Begun(0)
        self.hold = False
        """Whether the windows held anything when `check` saw them."""
        self.rows = 0
        """How many windows the last state holds that was checked, or that a batch has left."""
        self._a_byte: tuple[float, float] | None = None
        """How many rows, and bytes of them, the last batch had per byte of its source; None: not known."""

    def _definition(self, checkpoint: Place) -> Definition:
        stages, group = self.stages, self.group
        forms = [
            f"{stage.form}: {', '.join(f'{name} {kind}' for name, kind in stage.read.items())}" for stage in stages
        ]
        operations = [stage.node.operation for stage in stages]
        keys = [stage.node.context.partition for stage in stages]
        each = tuple(map(signature, operations, keys, forms))
        own = each[0] if len(stages) == 1 else signature((operations, keys), (), " | ".join(forms))
        belonging = Belonging(Checkpoint(group.topology.name, checkpoint), group.lake)
        return Definition(own, each, self.version, belonging.paths(sink.table for sink in group.sinks))

    @property
    def whole_events(self) -> dict[str, dict[str, str]]:
        """Return the fields of the events that windows keep as a whole, by operation (`window_state.FieldsByOperation`)."""
        return _fields_of(stage for stage in self.stages if stage.sees_all)

    @property
    def fields(self) -> dict[str, dict[str, str]]:
        """Return the fields that go into the windows, by operation (`window_state.FieldsByOperation`)."""
        return _fields_of(self.stages)

    @property
    def channel(self) -> str:
        """Return the name of its watermark."""
        return self._node.channel

    # --- the life of the checkpoint ---------------------------------------------------------------------------------

    def begin(self, txid: int, checkpoint: Checkpoint) -> None:
        """Begin with empty windows, with a fresh checkpoint, whose first batch is `txid`."""
        self.remove_all(checkpoint)
        Begun(txid).write(self.files)

    def remove_all(self, checkpoint: Checkpoint) -> None:
        """Remove all that the windows of a checkpoint have left; their lock is this process's."""
        for name in self.files.names():
            # They are all that the windows of a run hold that has taken this one's place.
            checkpoint.still_held()
            self.files.remove(name)
        checkpoint.still_held()

    def check(self, checkpoint: Checkpoint) -> None:
        """Read the state that the next batch needs."""
        self.refuse_claims()
        self.states.waiting.still_held = checkpoint.still_held
        begun = Begun.of(self.files)
        if begun is None:
            raise WindowStateError.of_lost(self.group.topology.name, self.group.name)
        self._begun = begun
        newest = self._state_of(next(self._named(None), None))
        self.hold, self.rows = newest is not None, self.states.rows(newest)
        if newest is not None:
            self.states.check(newest)
            if newest == begun.state:
                self._keep_left(begun, checkpoint.epoch)
        elif checkpoint.committed_txid() is not None:
            raise WindowStateError(f"of the stream {self.group.name}", "is named by no record of the batches behind it")

    def _keep_left(self, begun: Begun, epoch: Epoch | None) -> None:
        """Put into quarantine what waited and did not fit the windows that have begun: each start, until a batch has come."""
        assert begun.state is not None
        left = self.states.left_out(begun.state)
        if left is None or epoch is None:
            return
        there = {*left.column_names}
        lacks = ", ".join(name for name in self.stages[0].fields if name not in there) or "its id and time"
        reason = (
            f"it waited for the watermark when the windows were changed, and was kept without what they take: {lacks}"
        )
        PoisonRows(self.group).keep_waiting(epoch, begun.first, left, self._node.context.stream, reason)

    def refuse_claims(self) -> None:
        """Refuse windows in front of a state that a bounded run has filled."""
        filled = [sink.name for sink in self.group.sinks if sink.table.commits.claims()]
        if filled:
            raise DefinitionError(
                f'flow "{self.group.topology.name}": a bounded run has filled state "{filled[0]}", and the windows of the '
                f'stream "{self.group.name}" would not know its events',
                hint='start over: remove the checkpoint and run the flow with on_fresh_checkpoint="reset"',
            )

    def clear(self, txid: int) -> None:
        """Remove files that no batch needs any more, at the beginning of a batch: Spark has marked the one before as done.

        What that one began with stays for one batch more: a table that is not durable may lose its last commit with the power.
        """
        behind = [ref for named in islice(self._named(txid), 2) if (ref := self._state_of(named)) is not None]
        if len(behind) == 2:
            # One that is gone already is none that a batch needs.
            with suppress(WindowStateError):
                self.states.clear(behind[1])

    # --- what the records name --------------------------------------------------------------------------------------

    def _named(self, below: int | None) -> Iterator[Named]:
        return named_by(self.group.name, [sink.table for sink in self.group.sinks], below, self._begun)

    def _state_of(self, named: Named | None) -> StateRef | None:
        """Return the state behind a batch; None: the windows are empty, for they began behind it."""
        return None if named is None or named.txid < self._begun.first else named.state

    def clock_before(self, txid: int) -> int | None:
        """Return the watermark before a batch, in ms; None: nothing is known of it."""
        named = next(self._named(txid), None)
        return clock_of(named.clocks, self.group.sources.origins) if named else None

    def _known(self, txid: int) -> Named | None:
        named = next(self._named(txid + 1), None)
        return named if named is not None and named.txid == txid else None

    # --- a batch ----------------------------------------------------------------------------------------------------

    def run(self, batch: Batch, run: PlanRun, position: Position) -> Windowed:
        """Run the windows of a batch, or take their results out of the file that an output's record names.

        Args:
            run: the evaluation of the batch's plan; its rows count as they pass.
        """
        known = self._known(batch.txid)
        if known is not None:
            self.rows = self.states.rows(known.state)
            return Windowed(known, self._frames(self.states.results(known.state)))
        before = next(self._named(batch.txid), None)
        first, parent = self.stages[0], self._node.parents[0]
        frame = first.rows(numbered(run.frames([parent], {})[parent], batch.txid))
        at_once = self._may_come_at_once(position.bytes)
        # An attempt that fails on its rows, and a batch without any, say nothing of the next one.
        self._a_byte = None
        with closing(_Rows(frame, self._most, at_once)) as taken:
            if position.bytes and taken.number:
                self._a_byte = taken.number / position.bytes, taken.bytes / position.bytes
            given = before.clocks if before else {}
            clocks = clocks_after(self.group, self._node, given, position.clocks, run.counts)
            clock = clock_of(clocks, self.group.sources.origins)
            pieces = ((first.checked(rows), end) for rows, end in taken.pieces(NEVER if clock is None else clock))
            try:
                results, state = self.states.run(
                    batch.txid, batch.attempt, self._state_of(before), pieces, partial(self._between, run, {})
                )
            except WindowFailure as failure:
                self._blame(batch, position.plan, self._state_of(before), clock, partial(self._between, run, {}))
                if failure.is_between or isinstance(failure.error, NotTextError):  # it says where by itself
                    raise failure.error from failure.error.__cause__
                where = self.stages[failure.number].where
                raise BatchError(f"{where} failed: {reason_of(failure.error)}") from failure.error
        self.rows = self.states.rows(state)
        return Windowed(Named(batch.txid, state, clocks), self._frames(results))

    def _blame(
        self, batch: Batch, plan: str | None, before: StateRef | None, clock: int | None, between: Between
    ) -> None:
        """Note of an attempt that failed in the windows whether it did so by what waits: a skip is to leave that out, too."""
        end, none = NEVER if clock is None else clock, self.stages[0].row_schema.empty_table()
        waiting, is_blamed = None, False
        # An error that is not of the rows says nothing of what waits, and must not take the place of the attempt's own.
        with suppress(Exception):
            is_blamed = before is not None and self.states.waiting_fail(batch.txid, before, (none, end), between)
        if before is not None and is_blamed:
            begun = self._begun
            # While no batch has come behind a change, the definition before comes back with its own state.
            former = begun.former.file if begun.former is not None and before == begun.state else None
            waiting = Waiting(before.file, end, batch.attempt, plan, former)
        self.states.waiting.blame(batch.txid, waiting)

    def failed(self, batch: Batch) -> None:
        """Note that an attempt has failed, be it in the windows or not: only what it failed by itself is to be left out."""
        self.states.waiting.failed(batch.txid, batch.attempt)

    def leave_out_waiting(self, epoch: Epoch, batch: Batch, record: AttemptRecord, plan: str | None, seen: int) -> None:
        """Put what waited into quarantine if a batch that is left out failed by it; from then on the windows do not have it.

        Cut off between the two it is done once more, for Spark has not marked the batch.

        Args:
            batch: the last attempt at it.
            record: of that attempt. Where the process died in it, one before it tells, of those that count as its tries.
            plan: of that attempt.
            seen: the version of quarantine before it was known that the batch is left out; -1: there was none.

        Raises:
            LateWriterError, LeaseLostError: another process has changed the group's rows there since, or has the checkpoint.
        """
        before = self._state_of(next(self._named(batch.txid), None))
        tries = range(batch.attempt - record.tries + 1, batch.attempt + 1)
        waiting = self.states.waiting.blamed(batch.txid, tries, plan)
        if before is None or waiting is None or waiting.state != before.file:
            self.states.waiting.release(batch.txid, None)
            return
        # Where it was cut off behind both, quarantine may be an older copy by now, which lacks them.
        rows = self.states.waiting_up_to(batch.txid, before, waiting.clock)
        if rows is not None and rows.num_rows:
            why = f"it waited for the watermark, and batch {batch.txid} failed by such events: {record.reason}"
            poison = PoisonRows(self.group)
            poison.keep_waiting_of(epoch, batch, rows, self._node.context.stream, Kept(why, seen, plan))
        self.states.waiting.release(batch.txid, waiting)

    def take_back_waiting(self, txid: int) -> None:
        """Let what waits count as the windows' again, where it was left out with a batch that comes again and is tried."""
        self.states.waiting.release(txid, None)

    def _between(self, run: PlanRun, given: dict[int, DataFrame], number: int, results: pa.Table) -> pa.Table:
        """Return the rows of the window behind one, from its results and those of the ones before it (`given`)."""
        stage = self.stages[number + 1]
        given[self.stages[number].node.id] = arrow_frame(self.group.spark, results)
        parent = stage.node.parents[0]
        return stage.checked(to_arrow(stage.rows(run.frames([parent], {}, given)[parent])))

    def _frames(self, results: Iterable[pa.Table]) -> dict[int, DataFrame]:
        return {
            stage.node.id: arrow_frame(self.group.spark, made) for stage, made in zip(self.stages, results, strict=True)
        }

    @property
    def _most(self) -> int:
        """Return how many rows may be in the driver at once."""
        first = self.stages[0]
        return EVENTS_AT_ONCE if first.sees_all or isinstance(first.arrays, OneByOne) else ROWS_AT_ONCE

    def _may_come_at_once(self, size: int | None) -> bool:
        """Return whether a batch of so many bytes has few rows, and small ones, as far as the one before tells."""
        if size is None or self._a_byte is None:
            return False
        rows, of_rows = self._a_byte
        return size * rows <= self._most and size * of_rows <= BYTES_AT_ONCE


def _fields_of(stages: Iterable[_Stage]) -> dict[str, dict[str, str]]:
    return {
        signature(s.node.operation, s.node.context.partition, s.node.context.prefix).hex(): s.fields for s in stages
    }


class _Rows:
    """The rows of a batch on their way to the driver: at once, or in pieces of the clock."""

    def __init__(self, frame: DataFrame, most: int, at_once: bool) -> None:
        self._most = most
        self._table = to_arrow(frame) if at_once else None
        self._frame = frame if at_once else frame.persist()
        if self._table is not None:
            self.number, self.bytes = self._table.num_rows, self._table.nbytes
        else:
            found = self._frame.agg(F.count(F.lit(1)), F.sum(_bytes_of(self._frame))).collect()[0]
            self.number, self.bytes = found[0], found[1] or 0

    def pieces(self, clock: int) -> Iterator[tuple[pa.Table, int]]:
        """Yield rows, and the clock up to which they are all there; with the last the later ones, which wait."""
        number = -(-self.number // self._most)
        if self._table is None:
            # What is in the driver already is there, whatever its size.
            number = max(number, -(-self.bytes // BYTES_AT_ONCE))
        if number <= 1:
            yield to_arrow(self._frame) if self._table is None else self._table, clock
            return
        at = column(events.CLOCK)
        parts = F.percentile_approx(at, [n / number for n in range(1, number)], 10 * number)
        cuts = self._frame.where(at <= F.lit(clock)).agg(parts.alias("cuts")).collect()[0]["cuts"] or []
        ends = [*sorted({cut for cut in cuts if cut < clock}), clock]
        for start, end in pairwise([NEVER, *ends]):
            own = at > F.lit(start) if start > NEVER else F.lit(True)
            yield to_arrow(self._frame.where(own & (at <= F.lit(end)) if end < clock else own)), end

    def close(self) -> None:
        """Give the rows back."""
        self._frame.unpersist()


def _bytes_of(frame: DataFrame) -> Column:
    """Return about how many bytes a row takes in the driver."""
    size = F.lit(8 * len(frame.schema))
    for field in frame.schema:
        if not isinstance(field.dataType, NumericType | DatetimeType | BooleanType):
            value = F.col(SPARK.name(field.name))
            text = value if isinstance(field.dataType, BinaryType) else value.cast("string")
            size += F.coalesce(F.octet_length(text), F.lit(0))
    return size
