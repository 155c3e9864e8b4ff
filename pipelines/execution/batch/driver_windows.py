"""Windows of a stream's own source, run in the driver within its batch (docs/adr/0054).

A batch begins with the state that the newest record below it names. The rows that are in time go in as Arrow, what comes out
stands in the plan in the window's place, and the file with the state behind it is named by the record of each output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, BooleanType, DatetimeType, NumericType

from pipelines.errors import BatchError, ChangeoverError, DefinitionError, NotTextError
from pipelines.execution.batch.channels import clocks_after
from pipelines.execution.batch.group_sources import clock_of
from pipelines.execution.batch.poison import Kept, PoisonRows
from pipelines.execution.batch.window_conversion import ChannelWindows, channel_is_empty
from pipelines.execution.checkpoint.belonging import Belonging, Named, epoch_beyond, keep_named, named_by
from pipelines.execution.checkpoint.changeover import refuse_skipped, windows_on_channels
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.execution.checkpoint.waiting_rows import Waiting, WaitingRows
from pipelines.execution.checkpoint.window_begin import (
    Begun,
    StateFiles,
    StateRef,
    WindowPlaceError,
    WindowStateError,
    end_all,
    ended_in,
    is_elsewhere,
    state_files,
)
from pipelines.execution.checkpoint.window_files import (
    Between,
    Definition,
    KeptStates,
    WindowFailure,
    WindowFiles,
    waiting_in,
)
from pipelines.execution.checkpoint.window_state import check_fields
from pipelines.execution.protocol.failures import reason_of
from pipelines.graph import events, nodes
from pipelines.graph.dialects import SPARK
from pipelines.planner.step import column, struct
from pipelines.planner.windows import numbered
from pipelines.spark.arrow_frame import arrow_frame, to_arrow
from pipelines.state.texts import check_texts
from pipelines.windows.array_kinds import OneByOne, wanted_columns, windows_of
from pipelines.windows.arrays import WindowContent, conformed
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
    """

    def __init__(self, group: BatchGroup, checkpoint: Place, version: str | None = None) -> None:
        self._group = group
        self._files: StateFiles = state_files(checkpoint)
        self._stages = [_Stage(group, node) for node in group.windows]
        self._node = self._stages[0].node
        arrays = [stage.arrays for stage in self._stages]
        self._version = version
        self._states = WindowFiles(self._files, arrays, self._definition(checkpoint))
        self._begun = Begun(0)
        self.hold = False
        """Whether the windows held anything when `check` saw them."""
        self.rows = 0
        """How many windows the last state holds that was checked, or that a batch has left."""
        self._a_byte: tuple[float, float] | None = None
        """How many rows, and bytes of them, the last batch had per byte of its source; None: not known."""

    def _definition(self, checkpoint: Place) -> Definition:
        stages, group = self._stages, self._group
        forms = [
            f"{stage.form}: {', '.join(f'{name} {kind}' for name, kind in stage.read.items())}" for stage in stages
        ]
        operations = [stage.node.operation for stage in stages]
        keys = [stage.node.context.partition for stage in stages]
        each = tuple(map(signature, operations, keys, forms))
        own = each[0] if len(stages) == 1 else signature((operations, keys), (), " | ".join(forms))
        belonging = Belonging(Checkpoint(group.topology.name, checkpoint), group.lake)
        return Definition(own, each, self._version, belonging.paths(sink.table for sink in group.sinks))

    @property
    def whole_events(self) -> dict[str, dict[str, str]]:
        """Return the fields of the events that windows keep as a whole, by operation (`window_state.FieldsByOperation`)."""
        return self._taken([stage for stage in self._stages if stage.sees_all])

    @staticmethod
    def _taken(stages: Iterable[_Stage]) -> dict[str, dict[str, str]]:
        return {
            signature(s.node.operation, s.node.context.partition, s.node.context.prefix).hex(): s.fields for s in stages
        }

    @property
    def channel(self) -> str:
        """Return the name of its watermark."""
        return self._node.channel

    # --- the life of the checkpoint ---------------------------------------------------------------------------------

    def begin(self, txid: int, checkpoint: Checkpoint) -> None:
        """Begin with empty windows, with a fresh checkpoint, whose first batch is `txid`."""
        self._remove_all(checkpoint)
        Begun(txid).write(self._files)

    def _remove_all(self, checkpoint: Checkpoint) -> None:
        for name in self._files.names():
            # They are all that the windows of a run hold that has taken this one's place.
            checkpoint.still_held()
            self._files.remove(name)
        checkpoint.still_held()

    def take_over(self, checkpoint: Checkpoint, wait_seconds: float, check: Callable[[], None]) -> None:
        """Take over what the windows hold that ran on a channel until now, as the state that the next batch begins with.

        A fresh epoch begins, for the outputs hold the txids of another query. Cut off before the last file, the windows are
        still on the channel.

        Args:
            wait_seconds: how long to wait for another process that runs that query, or replaces slices.
            check: raises where the checkpoint and its tables do not belong together, which the new epoch would hide.

        Raises:
            WindowPlaceError: what they hold cannot be taken over; nothing was changed.
            WindowFieldError: a field that they hold has got another type; nothing was changed.
            ChangeoverError: a batch is still to be left out.
            LockedError: another process holds one of the locks.
        """
        epoch = checkpoint.epoch
        if epoch is None or ended_in(self._files):
            return
        former = ChannelWindows.of(self._group)
        if former is None:
            # A batch that ran would have gone into the channel, or have been named by a record: then the folder is lost.
            unrun = checkpoint.finished_batches() == 0 and next(_named_of(self._group), None) is None
            if is_elsewhere(checkpoint, True) and unrun and channel_is_empty(self._group):
                Begun(epoch.first_txid).write(self._files)
            return
        with former.checkpoint.running(wait_seconds), checkpoint.committing(wait_seconds):
            if is_elsewhere(checkpoint, True):
                check()
                former.check_tables()
                refuse_skipped(checkpoint)
                self._refuse_claims()
                # What they hold of a field has the type that it had on the channel.
                check_fields(former.checkpoint, self._group.name, self._taken(self._stages), held=True)
                taken = former.read(self._stages)
                self._remove_all(checkpoint)
                self._release_again({*checkpoint.unfinished()}, checkpoint)
                epoch = checkpoint.begin(self._next_epoch(checkpoint), same_tables=True)
                txid = epoch.txid(epoch.first_batch)
                Begun(txid, self._states.begin(txid - 1, taken.states), taken.clocks).write(self._files)
            former.put_aside()

    def change(
        self, checkpoint: Checkpoint, wait_seconds: float, check: Callable[[], None], *, on_purpose: bool
    ) -> tuple[str, ...]:
        """Go on with windows of a changed definition, where the query stands.

        Windows of the same operation keep what they hold, the others begin empty; what waits for the clock goes into the first,
        or, where it was kept without a field that the first one takes, into quarantine (`check`). A fresh epoch begins: its
        first state stands behind all that records name. Cut off before the last file, the former definition could still go on,
        and it can come back with what it held for as long as no batch has come behind the change.

        Args:
            wait_seconds: how long to wait for another process that replaces slices.
            check: raises where the checkpoint and its tables do not belong together, which the new epoch would hide.
            on_purpose: someone says that it was changed; else another version of the flow than that of the state says it.

        Returns:
            The windows that begin empty.
        """
        if checkpoint.epoch is None:
            return ()
        sinks = [sink.table for sink in self._group.sinks]
        keep_named(checkpoint, self._group.lake, sinks)
        begun, ended = Begun.of(self._files), ended_in(self._files)
        named = next(named_by(self._group.name, sinks, None, begun or ended), None)
        self._begun = begun or ended or Begun(0)
        state = self._state_of(named) if begun or ended else None
        # Where a record names a state, and nobody has ended the windows, their folder is lost.
        is_lost = begun is None and named is not None and not ended
        is_left = not ended and ChannelWindows.of(self._group) is not None
        is_new = begun is None and not is_left and (on_purpose or self._version is not None)
        if is_lost or not (is_new or self._is_changed(state, on_purpose)):
            return ()
        # No batch has come since they began: the state of the definition before has all of theirs, and what they left out.
        former = self._begun.former if state is not None and state == self._begun.state else None
        # Those that come again bring what was left out with them.
        first = _first_unmarked(checkpoint)
        kept = self._kept_of(former, first) if former is not None else None
        if kept is None:
            former = None
            kept = self._states.kept_of(state, first) if state else None
        states = kept.states if kept else (WindowContent(),) * len(self._stages)
        states, left = self._fitting(states)
        with checkpoint.committing(wait_seconds):
            check()
            self._release_again(_unfinished(self._group, checkpoint), checkpoint)
            if former is not None:
                # What was left out here waits in the state of the definition before.
                PoisonRows(self._group).forget_again(self._begun.first, checkpoint)
            epoch = checkpoint.begin(self._next_epoch(checkpoint, behind=1), same_tables=True)
            txid = epoch.txid(epoch.first_batch)
            clocks = dict(named.clocks) if named else {}
            begun = Begun(txid, self._states.begin(txid - 1, states, left), clocks, former or state)
            begun.write(self._files)
        empty = kept.empty if kept else range(len(self._stages))
        return tuple(self._stages[number].node.label for number in empty)

    def _release_again(self, unfinished: set[int], checkpoint: Checkpoint) -> None:
        """Release what comes again with an epoch that is about to begin, perhaps under other txids: it would count twice.

        An older copy of the checkpoint, or of its attempts, may not know a batch that was left out: quarantine tells of it. What
        waited is out of quarantine before it is taken back: cut off in between, it counts as waiting all the same (`change`).
        """
        first, poison = _first_unmarked(checkpoint), PoisonRows(self._group)
        for txid in sorted(unfinished | {kept for kept in poison.kept() if kept >= first}):
            poison.release_again(txid, checkpoint)
        self._states.waiting.take_back(first, checkpoint)

    def _kept_of(self, former: StateRef, below: int) -> KeptStates | None:
        """Return what the windows keep of the state of the definition before; None: it is gone."""
        with suppress(WindowStateError):
            return self._states.kept_of(former, below)
        return None

    def _is_changed(self, state: StateRef | None, on_purpose: bool) -> bool:
        """Return whether another definition has left a state, and was changed on purpose."""
        if state is None:
            return False
        is_own, version = self._states.left_by(state)
        is_other = None not in (self._version, version) and self._version != version
        return not is_own and (on_purpose or is_other)

    def _fitting(self, states: tuple[WindowContent, ...]) -> tuple[tuple[WindowContent, ...], pa.Table | None]:
        """Return states without what waits for the clock and lacks a field that the first window takes, and that.

        Raises:
            ChangeoverError: a field has another type.
        """
        pending, schema = states[0].pending, self._stages[0].row_schema
        if pending is None:
            return states, None
        if not self._stages[0].takes(pending):
            return (replace(states[0], pending=None), *states[1:]), pending
        try:
            conformed(pending, schema)
        except pa.ArrowException as error:
            problem = f"{pending.num_rows} event(s) that wait for the watermark do not fit its windows: {error}"
            raise ChangeoverError(self._group.topology.name, self._group.name, problem) from error
        return states, None

    def check_forms(self, former: ChannelWindows) -> None:
        """Check that what the windows hold on their channel could be taken over."""
        former.check_forms(self._stages)

    def _next_epoch(self, checkpoint: Checkpoint, behind: int = 0) -> Epoch:
        """Return an epoch that goes on in Spark's part as it is, `behind` txids further than all that the outputs hold."""
        outputs = [sink.table for sink in self._group.sinks]
        epoch = epoch_beyond(checkpoint, outputs, checkpoint.finished_batches() - 1)
        return replace(epoch, first_txid=epoch.first_txid + behind)

    def check(self, checkpoint: Checkpoint) -> None:
        """Read the state that the next batch needs."""
        self._refuse_claims()
        self._states.waiting.still_held = checkpoint.still_held
        begun = Begun.of(self._files)
        if begun is None:
            raise WindowStateError.of_lost(self._group.topology.name, self._group.name)
        self._begun = begun
        newest = self._state_of(next(self._named(None), None))
        self.hold, self.rows = newest is not None, self._states.rows(newest)
        if newest is not None:
            self._states.check(newest)
            if newest == begun.state:
                self._keep_left(begun, checkpoint.epoch)
        elif checkpoint.committed_txid() is not None:
            raise WindowStateError(
                f"of the stream {self._group.name}", "is named by no record of the batches behind it"
            )

    def _keep_left(self, begun: Begun, epoch: Epoch | None) -> None:
        """Put into quarantine what waited and did not fit the windows that have begun: each start, until a batch has come."""
        assert begun.state is not None
        left = self._states.left_out(begun.state)
        if left is None or epoch is None:
            return
        there = {*left.column_names}
        lacks = ", ".join(name for name in self._stages[0].fields if name not in there) or "its id and time"
        reason = (
            f"it waited for the watermark when the windows were changed, and was kept without what they take: {lacks}"
        )
        PoisonRows(self._group).keep_waiting(epoch, begun.first, left, self._node.context.stream, reason)

    def _refuse_claims(self) -> None:
        filled = [sink.name for sink in self._group.sinks if sink.table.commits.claims()]
        if filled:
            raise DefinitionError(
                f'flow "{self._group.topology.name}": a bounded run has filled state "{filled[0]}", and the windows of the '
                f'stream "{self._group.name}" would not know its events',
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
                self._states.clear(behind[1])

    # --- what the records name --------------------------------------------------------------------------------------

    def _named(self, below: int | None) -> Iterator[Named]:
        return named_by(self._group.name, [sink.table for sink in self._group.sinks], below, self._begun)

    def _state_of(self, named: Named | None) -> StateRef | None:
        """Return the state behind a batch; None: the windows are empty, for they began behind it."""
        return None if named is None or named.txid < self._begun.first else named.state

    def clock_before(self, txid: int) -> int | None:
        """Return the watermark before a batch, in ms; None: nothing is known of it."""
        named = next(self._named(txid), None)
        return clock_of(named.clocks, self._group.sources.origins) if named else None

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
            self.rows = self._states.rows(known.state)
            return Windowed(known, self._frames(self._states.results(known.state)))
        before = next(self._named(batch.txid), None)
        first, parent = self._stages[0], self._node.parents[0]
        frame = first.rows(numbered(run.frames([parent], {})[parent], batch.txid))
        at_once = self._may_come_at_once(position.bytes)
        # An attempt that fails on its rows, and a batch without any, say nothing of the next one.
        self._a_byte = None
        with closing(_Rows(frame, self._most, at_once)) as taken:
            if position.bytes and taken.number:
                self._a_byte = taken.number / position.bytes, taken.bytes / position.bytes
            given = before.clocks if before else {}
            clocks = clocks_after(self._group, self._node, given, position.clocks, run.counts)
            clock = clock_of(clocks, self._group.sources.origins)
            pieces = ((first.checked(rows), end) for rows, end in taken.pieces(NEVER if clock is None else clock))
            try:
                results, state = self._states.run(
                    batch.txid, batch.attempt, self._state_of(before), pieces, partial(self._between, run, {})
                )
            except WindowFailure as failure:
                self._blame(batch, position.plan, self._state_of(before), clock, partial(self._between, run, {}))
                if failure.is_between or isinstance(failure.error, NotTextError):  # it says where by itself
                    raise failure.error from failure.error.__cause__
                where = self._stages[failure.number].where
                raise BatchError(f"{where} failed: {reason_of(failure.error)}") from failure.error
        self.rows = self._states.rows(state)
        return Windowed(Named(batch.txid, state, clocks), self._frames(results))

    def _blame(
        self, batch: Batch, plan: str | None, before: StateRef | None, clock: int | None, between: Between
    ) -> None:
        """Note of an attempt that failed in the windows whether it did so by what waits: a skip is to leave that out, too."""
        end, none = NEVER if clock is None else clock, self._stages[0].row_schema.empty_table()
        waiting, is_blamed = None, False
        # An error that is not of the rows says nothing of what waits, and must not take the place of the attempt's own.
        with suppress(Exception):
            is_blamed = before is not None and self._states.waiting_fail(batch.txid, before, (none, end), between)
        if before is not None and is_blamed:
            begun = self._begun
            # While no batch has come behind a change, the definition before comes back with its own state.
            former = begun.former.file if begun.former is not None and before == begun.state else None
            waiting = Waiting(before.file, end, batch.attempt, plan, former)
        self._states.waiting.blame(batch.txid, waiting)

    def failed(self, batch: Batch) -> None:
        """Note that an attempt has failed, be it in the windows or not: only what it failed by itself is to be left out."""
        self._states.waiting.failed(batch.txid, batch.attempt)

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
        waiting = self._states.waiting.blamed(batch.txid, tries, plan)
        if before is None or waiting is None or waiting.state != before.file:
            self._states.waiting.release(batch.txid, None)
            return
        # Where it was cut off behind both, quarantine may be an older copy by now, which lacks them.
        rows = self._states.waiting_up_to(batch.txid, before, waiting.clock)
        if rows is not None and rows.num_rows:
            why = f"it waited for the watermark, and batch {batch.txid} failed by such events: {record.reason}"
            poison = PoisonRows(self._group)
            poison.keep_waiting_of(epoch, batch, rows, self._node.context.stream, Kept(why, seen, plan))
        self._states.waiting.release(batch.txid, waiting)

    def take_back_waiting(self, txid: int) -> None:
        """Let what waits count as the windows' again, where it was left out with a batch that comes again and is tried."""
        self._states.waiting.release(txid, None)

    def _between(self, run: PlanRun, given: dict[int, DataFrame], number: int, results: pa.Table) -> pa.Table:
        """Return the rows of the window behind one, from its results and those of the ones before it (`given`)."""
        stage = self._stages[number + 1]
        given[self._stages[number].node.id] = arrow_frame(self._group.spark, results)
        parent = stage.node.parents[0]
        return stage.checked(to_arrow(stage.rows(run.frames([parent], {}, given)[parent])))

    def _frames(self, results: Iterable[pa.Table]) -> dict[int, DataFrame]:
        return {
            stage.node.id: arrow_frame(self._group.spark, made)
            for stage, made in zip(self._stages, results, strict=True)
        }

    @property
    def _most(self) -> int:
        """Return how many rows may be in the driver at once."""
        first = self._stages[0]
        return EVENTS_AT_ONCE if first.sees_all or isinstance(first.arrays, OneByOne) else ROWS_AT_ONCE

    def _may_come_at_once(self, size: int | None) -> bool:
        """Return whether a batch of so many bytes has few rows, and small ones, as far as the one before tells."""
        if size is None or self._a_byte is None:
            return False
        rows, of_rows = self._a_byte
        return size * rows <= self._most and size * of_rows <= BYTES_AT_ONCE


def end_windows(group: BatchGroup, checkpoint: Checkpoint, wait_seconds: float, check: Callable[[], None]) -> int:
    """End the windows that ran in a query's batch and that its changed definition has no more.

    Args:
        wait_seconds: how long to wait for another process that replaces slices.
        check: raises where the checkpoint and its tables do not belong together.

    Returns:
        How many events wait for the clock in them, and come if the windows come back.
    """
    files, sinks = state_files(checkpoint.folder), [sink.table for sink in group.sinks]
    if Begun.of(files) is None or windows_on_channels(group.topology, group.name):
        return 0
    with checkpoint.committing(wait_seconds):
        check()
        # A poison batch keeps its txid: it leaves quarantine when it has come through.
        _unfinished(group, checkpoint)
        if checkpoint.epoch is not None:
            # But one with which rows were left out that wait again: nobody knows of them who has no windows.
            first, left_out = _first_unmarked(checkpoint), WaitingRows(files)
            for txid in left_out.released_since(first):
                PoisonRows(group).release_again(txid, checkpoint)
            left_out.take_back(first, checkpoint)
        keep_named(checkpoint, group.lake, sinks)
        begun = Begun.of(files)
        assert begun is not None
        named = next(named_by(group.name, sinks, None, begun), None)
        last, waiting = Begun(begun.txid), 0
        if named is not None and named.txid >= begun.first:
            former = begun.former if named.state == begun.state else None
            last = Begun(named.txid + 1, named.state, named.clocks, former)
            with suppress(WindowStateError):
                waiting = waiting_in(files, named.state)
        end_all(files, last)
    return waiting


def _first_unmarked(checkpoint: Checkpoint) -> int:
    """Return the first txid of an epoch that has begun which Spark has not marked as done."""
    epoch = checkpoint.epoch
    assert epoch is not None
    return epoch.txid(checkpoint.finished_batches())


def _unfinished(group: BatchGroup, checkpoint: Checkpoint) -> set[int]:
    """Return the txids that Spark has planned and not finished: under a changed definition they come again, whole.

    So do those whose plans are gone, of which the attempts tell.

    Raises:
        ChangeoverError: one is in some of the tables already, or was skipped, which only the former definition knows.
    """
    epoch, done = checkpoint.epoch, checkpoint.finished_batches()
    if epoch is None:
        return set()
    planned = checkpoint.last_batch() >= done
    if planned and Belonging(checkpoint, group.lake).holds((sink.table for sink in group.sinks), done):
        problem = f"batch {done} of the former definition is in some of its tables and not in all"
        raise ChangeoverError(group.topology.name, group.name, problem)
    refuse_skipped(checkpoint)
    return {*checkpoint.unfinished()}


def check_place(group: BatchGroup, checkpoint: Checkpoint) -> None:
    """Refuse a query whose windows ran in its batch and do no longer, or the other way round: they would begin empty."""
    in_batch = bool(group.windows)
    # A folder that the records name is lost, which the check of the states says.
    is_lost = in_batch and next(_named_of(group), None) and ended_in(state_files(checkpoint.folder)) is None
    if is_elsewhere(checkpoint, in_batch) and not is_lost:
        raise WindowPlaceError(group.topology.name, group.name, in_batch=in_batch)


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


def _named_of(group: BatchGroup) -> Iterator[Named]:
    return named_by(group.name, [sink.table for sink in group.sinks])
