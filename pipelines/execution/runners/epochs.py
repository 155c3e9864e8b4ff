"""The epochs of a query: at its start the one of its checkpoint goes on, or a fresh one begins, or the start is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pipelines.errors import ChangedGateError, ChannelReadersError, FreshCheckpointError, StateBehindError
from pipelines.execution.batch.driver_windows import DriverWindows
from pipelines.execution.batch.group import BatchGroup
from pipelines.execution.batch.poison import PoisonRows
from pipelines.execution.batch.quarantine import refused_rows, table_columns, txids_of
from pipelines.execution.checkpoint.belonging import Belonging
from pipelines.execution.checkpoint.engine_files import CONTINUE, RESET, Checkpoint, Epoch
from pipelines.execution.protocol.coordinator import AttemptStore, BatchState
from pipelines.execution.protocol.groups import readers_of
from pipelines.state.kinds import TRANSACTIONAL
from pipelines.state.record import BATCH, POISON, BatchRecord, CommitRecord
from pipelines.state.turns import rejected_id, stream_id

if TYPE_CHECKING:
    from pipelines.state.table import StateTable


class Epochs:
    """The epochs of a batch group's query.

    Args:
        checkpoint: of the query; the caller holds its lock.
        windows: those that run in the batch; None: there are none.
        attempts_in: makes of the checkpoint's own attempts where they are kept; None: there alone.
        wait_seconds: how long to wait for another process that commits.
    """

    def __init__(
        self,
        group: BatchGroup,
        checkpoint: Checkpoint,
        windows: DriverWindows | None,
        attempts_in: Callable[[AttemptStore], AttemptStore] | None,
        wait_seconds: float,
    ) -> None:
        self._group, self._checkpoint, self._windows = group, checkpoint, windows
        self._attempts_in, self._wait = attempts_in, wait_seconds
        self._belonging, self._poison = Belonging(checkpoint, group.lake), PoisonRows(group)

    def attempts(self) -> AttemptStore:
        """Return the attempts as they are now: an epoch that begins removes the file that was there."""
        own = self._checkpoint.attempts()
        return own if self._attempts_in is None else self._attempts_in(own)

    def check(self, on_fresh: str) -> None:
        """Refuse what the epoch of changed windows would hide; tables that only another query has written are not asked."""
        own = [table for table in tables_of(self._group) if self._belonging.knows(table) or not self._belonging.known()]
        self._check(own, on_fresh)

    def open(self, on_fresh: str) -> Epoch:
        """Go on with the epoch that is there, once its tables belong to it, or begin a fresh one."""
        epoch = self._checkpoint.epoch
        if epoch is not None:
            self._check(tables_of(self._group), on_fresh)
            self._belonging.check_listed(tables_of(self._group))
            # A backfill notes what it has filled.
            with self._checkpoint.committing(self._wait):
                self._belonging.note(tables_of(self._group))
            return epoch
        epoch = self._fresh_epoch(on_fresh)
        self._belonging.begun(epoch, tables_of(self._group))
        return epoch

    def _check(self, tables: list[StateTable], on_fresh: str) -> None:
        """Refuse to go on with tables that do not belong to the checkpoint, or lack what it has finished."""
        if tables:
            self._belonging.check(tables)
        self._refuse_other_gates()
        if on_fresh != CONTINUE:
            self._refuse_newcomers()

    def _fresh_epoch(self, on_fresh: str) -> Epoch:
        commits = [(sink.name, commit) for sink in self._group.sinks for commit in sink.table.commits.of_source()]
        if self._group.quarantine.table.exists():
            # It may outlive the states, and a batch whose txid it knows in an epoch would leave no rows there.
            quarantine = self._group.quarantine.table
            commits += [(quarantine.name, commit) for commit in quarantine.commits.batches() if self._is_own(commit)]
        number, refused = self._free_epoch(), self._refused_before()
        # What replays have put back would be there twice, if the source were read again without a word.
        is_held = bool(commits) or (bool(refused) and not self._checkpoint.starts_over)
        if not is_held and on_fresh == RESET:
            self._checkpoint.still_held()
            (self._checkpoint.folder / "start.json").unlink(missing_ok=True)
            self._poison.forget_all()
            return self._begun(Epoch(number, 0))
        if not is_held or on_fresh == CONTINUE:
            # A batch under a txid that quarantine knows would replace rows there, or release them.
            held = {commit.txid or 0 for _, commit in commits} | self._kept_before(is_held=is_held)
            return self._begun(Epoch(number, max(held | refused, default=-1) + 1))
        if on_fresh == RESET:
            self._refuse_readers()
            # Not beside a compaction, whose roll-up would bring the emptied rows back.
            with self._checkpoint.rewriting(self._wait):
                self._checkpoint.still_held()
                # Before all: where the states are empty, nothing would say that what it leaves out is in none.
                (self._checkpoint.folder / "start.json").unlink(missing_ok=True)
                # First: a reset that is cut off behind the states is not known as one, and their rows are refused once more.
                self._reset_quarantine(number)
                for target in self._group.sinks:
                    record = BatchRecord(kind=RESET, flow=self._group.topology.name, epoch=number)
                    target.writer.reset(record, stream_id(record.flow, target.name, number))
            return self._begun(Epoch(number, 0))
        of_replays = self._group.quarantine.table.name, -1, 0
        held_by = [(name, commit.txid or 0, commit.epoch or 0) for name, commit in commits] or [of_replays]
        raise FreshCheckpointError(self._group.topology.name, *max(held_by, key=lambda held: held[1]))

    def _refused_before(self) -> set[int]:
        """Return the txids of former lives under which quarantine holds what gates and the source's format have rejected.

        Of a batch that was left out it is a replay that has put it back there, and no commit names that txid.
        """
        return txids_of(self._group.quarantine, refused_rows(self._group.rejected))

    def _kept_before(self, *, is_held: bool) -> set[int]:
        """Return the poison batches of former lives whose rows quarantine keeps; those whose rows come again give them back.

        Args:
            is_held: whether tables hold batches of former lives.
        """
        kept, checkpoint = self._poison.kept(), self._checkpoint
        if checkpoint.starts_over:
            # These are given back where the epoch begins.
            return kept - set(checkpoint.comes_again)
        # A source that is read on from somewhere else than its start brings those again that nobody has left out.
        again = kept if not is_held and checkpoint.start is None else set[int]()
        if again:
            with checkpoint.committing(self._wait):
                for txid in sorted(again):
                    self._poison.release_again(txid, checkpoint)
        return kept - again

    def _refuse_readers(self) -> None:
        """Refuse to begin anew before queries that go on behind this one's channels, whose tables hold all that comes again."""
        topology = self._group.topology
        channels = {sink.name for sink in self._group.sinks if sink.is_channel}
        readers = set().union(*(of for channel, of in readers_of(topology).items() if channel in channels))
        begun = sorted(
            name for name in readers if Checkpoint(topology.name, self._checkpoint.folder.parent / name).epoch
        )
        if begun:
            raise ChannelReadersError(topology.name, self._group.name, begun)

    def _free_epoch(self) -> int:
        """Return the number of a fresh epoch, which neither the checkpoint nor a table knows, be it by transaction ids."""
        group, quarantine = self._group, self._group.quarantine
        known = [self._checkpoint.last_epoch or 0]
        known += [commit.epoch or 0 for sink in group.sinks for commit in sink.table.history()]
        if not quarantine.table.exists():
            return max(known) + 1
        own = (commit for commit in quarantine.table.history() if self._is_own(commit))
        known += [commit.epoch or 0 for commit in own if commit.kind in (BATCH, POISON)]
        number = max(known) + 1
        # Delta keeps a transaction id for longer than the log keeps its commit.
        while quarantine.committed(rejected_id(group.topology.name, group.name, number)) is not None:
            number += 1
        return number

    def _is_own(self, commit: CommitRecord) -> bool:
        """Return whether a commit of quarantine is of this batch group; those of earlier releases do not name theirs."""
        alone = len(self._group.topology.spouts) == len(self._group.spouts)
        return commit.group == self._group.name or (alone and commit.group is None)

    def _begun(self, epoch: Epoch) -> Epoch:
        """Begin an epoch with a fresh checkpoint and empty windows."""
        for txid in self._checkpoint.comes_again:
            self._poison.release_again(txid, self._checkpoint)
        if self._windows:
            self._windows.begin(epoch.first_txid, self._checkpoint)
        return self._checkpoint.begin(epoch)

    def _reset_quarantine(self, epoch: int) -> None:
        """Empty it: of a flow with several batch groups, which share it, of this one's rows."""
        flow, writer = self._group.topology.name, self._group.quarantine
        if not writer.table.exists():
            return
        record = BatchRecord(kind=RESET, flow=flow, epoch=epoch)
        app_id = rejected_id(flow, self._group.name, epoch)
        if len(self._group.topology.spouts) == len(self._group.spouts):
            writer.reset(record, app_id)
            return
        writer.prepare(table_columns())
        writer.reset(record.model_copy(update={"group": self._group.name}), app_id, among=self._group.rejected)

    def _refuse_newcomers(self) -> None:
        """Refuse a state that was added to a flow that has run, or put back into it, and that no backfill has filled."""
        if self._checkpoint.committed_txid() is None:
            return
        for sink in self._group.sinks:
            # Of windows that begin nothing was late before.
            if not (sink.is_late or self._belonging.is_filled(sink.table)):
                raise StateBehindError(self._group.topology.name, sink.name, self._checkpoint.finished_batches())

    def _refuse_other_gates(self) -> None:
        """Refuse to finish a batch by other gates than those that began it: states that have it do not take it once more."""
        epoch = self._checkpoint.epoch
        if epoch is None:
            return
        first = epoch.txid(self._checkpoint.finished_batches())
        for sink in self._group.sinks:
            last = sink.table.commits.last_batch()
            record = last.record if last is not None else None
            if record is None or record.epoch != epoch.number or record.txid < first:
                continue
            # What earlier releases wrote does not say it.
            if record.gates in (None, self._group.gates):
                continue
            attempt = self.attempts().get(epoch.scope(self._group.name)).get(record.txid)
            # Of one that is left out no rows are judged, nor of one that quarantine has, too.
            left_out = attempt is not None and attempt.state is BatchState.SKIPPED
            if not left_out and not self._all_have(epoch, record.txid):
                raise ChangedGateError(self._group.topology.name, self._group.name, record.txid, sink.name)

    def _all_have(self, epoch: Epoch, txid: int) -> bool:
        """Return whether all tables have a batch for good: none takes it once more."""
        flow, quarantine = self._group.topology.name, self._group.quarantine
        sinks = [(sink.writer, stream_id(flow, sink.name, epoch.number)) for sink in self._group.sinks]
        if not quarantine.table.exists() or any(writer.declared.kind != TRANSACTIONAL for writer, _ in sinks):
            return False
        streams = [*sinks, (quarantine, rejected_id(flow, self._group.name, epoch.number))]
        held = (writer.committed(stream) for writer, stream in streams)
        return all(last is not None and last >= txid for last in held)


def tables_of(group: BatchGroup) -> list[StateTable]:
    """Return all tables that the query of a group writes."""
    return [*(sink.table for sink in group.sinks), group.quarantine.table]
