"""A change of the windows that run in a query's batch: they come from a channel, have another definition, or end.

The query goes on where it stands, in a fresh epoch; what it has planned and not finished comes again (docs/adr/0063, 0066).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.errors import ChangeoverError
from pipelines.execution.batch.poison import PoisonRows
from pipelines.execution.batch.window_conversion import ChannelWindows, channel_is_empty
from pipelines.execution.checkpoint.belonging import Belonging, Named, epoch_beyond, keep_named, named_by
from pipelines.execution.checkpoint.changeover import refuse_skipped, windows_on_channels
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.execution.checkpoint.waiting_rows import WaitingRows
from pipelines.execution.checkpoint.window_begin import (
    Begun,
    StateRef,
    WindowPlaceError,
    WindowStateError,
    end_all,
    ended_in,
    is_elsewhere,
    state_files,
)
from pipelines.execution.checkpoint.window_files import KeptStates, waiting_in
from pipelines.execution.checkpoint.window_state import check_fields
from pipelines.windows.arrays import WindowContent, conformed

if TYPE_CHECKING:
    from pipelines.execution.batch.driver_windows import DriverWindows
    from pipelines.execution.batch.group import BatchGroup


class WindowsChange:
    """A change of the windows that run in a query's batch: they ran on a channel until now, or had another definition.

    Args:
        windows: as the flow defines them now.
    """

    def __init__(self, windows: DriverWindows) -> None:
        self._windows, self._version = windows, windows.version
        self._group, self._files = windows.group, windows.files
        self._stages, self._states = windows.stages, windows.states

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
                self._windows.refuse_claims()
                # What they hold of a field has the type that it had on the channel.
                check_fields(former.checkpoint, self._group.name, self._windows.fields, held=True)
                taken = former.read(self._stages)
                self._windows.remove_all(checkpoint)
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
        since = begun or ended
        state = named.state if named is not None and since is not None and named.txid >= since.first else None
        # Where a record names a state, and nobody has ended the windows, their folder is lost.
        is_lost = begun is None and named is not None and not ended
        is_left = not ended and ChannelWindows.of(self._group) is not None
        is_new = begun is None and not is_left and (on_purpose or self._version is not None)
        if is_lost or not (is_new or self._is_changed(state, on_purpose)):
            return ()
        # No batch has come since they began: the state of the definition before has all of theirs, and what they left out.
        former = since.former if since is not None and state is not None and state == since.state else None
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
            if former is not None and since is not None:
                # What was left out here waits in the state of the definition before.
                PoisonRows(self._group).forget_again(since.first, checkpoint)
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

    def _next_epoch(self, checkpoint: Checkpoint, behind: int = 0) -> Epoch:
        """Return an epoch that goes on in Spark's part as it is, `behind` txids further than all that the outputs hold."""
        outputs = [sink.table for sink in self._group.sinks]
        epoch = epoch_beyond(checkpoint, outputs, checkpoint.finished_batches() - 1)
        return replace(epoch, first_txid=epoch.first_txid + behind)


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


def _named_of(group: BatchGroup) -> Iterator[Named]:
    return named_by(group.name, [sink.table for sink in group.sinks])
