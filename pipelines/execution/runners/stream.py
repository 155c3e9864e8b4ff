"""The streaming runner: a Spark query a batch group, whose foreachBatch is the batch protocol."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame

from pipelines import logs
from pipelines.errors import (
    AccountingError,
    BatchError,
    BehindStateError,
    ChangedGateError,
    ChannelReadersError,
    FreshCheckpointError,
    GateError,
    LockedError,
    LostRowsError,
    PoisonBatchError,
    StateBehindError,
    TrideltaError,
)
from pipelines.execution.batch.driver_windows import DriverWindows, check_place, end_windows
from pipelines.execution.batch.group import BatchGroup
from pipelines.execution.batch.poison import PoisonRows
from pipelines.execution.batch.position import Position
from pipelines.execution.batch.quarantine import table_columns
from pipelines.execution.batch.stream_batch import Shared, StreamBatch
from pipelines.execution.checkpoint.belonging import Belonging
from pipelines.execution.checkpoint.damage import make_whole
from pipelines.execution.checkpoint.durable import DurableBatches
from pipelines.execution.checkpoint.engine_files import CONTINUE, RESET, Checkpoint, Epoch, StoredAttempts
from pipelines.execution.checkpoint.window_files import WindowStateError
from pipelines.execution.checkpoint.window_state import check_fields
from pipelines.execution.events.hooks import Counters, Hook, Listener
from pipelines.execution.protocol.coordinator import (
    GONE,
    AttemptStore,
    Batch,
    BatchState,
    Poison,
    RefusedError,
)
from pipelines.execution.protocol.failures import back_off, lake_fault, missing_module, reason_of
from pipelines.execution.protocol.groups import readers_of
from pipelines.execution.protocol.tracker import BatchTracker, Stage
from pipelines.execution.report import BatchReport
from pipelines.execution.runners.admission import Admission
from pipelines.execution.runners.claims import SameSources, bytes_of
from pipelines.execution.runners.former_windows import read_to_the_end
from pipelines.execution.runners.spark_callback import SparkCallback
from pipelines.places.lease import LeaseLostError
from pipelines.places.store import StoreError
from pipelines.planner.plan import save_plan
from pipelines.state.kinds import TRANSACTIONAL
from pipelines.state.quarantine import NAME
from pipelines.state.record import BATCH, BatchRecord, CommitRecord
from pipelines.state.turns import LateWriterError, stream_id

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from pipelines.execution.batch.group_sources import Frames
    from pipelines.state.table import StateTable

logger = logs.logger(__name__)

KEPT_REPORTS = 10_000
"""Keep the reports of the last so many batches."""


# How often a batch that waits for the commit lock looks whether its query is to end.
_LOOK_SECONDS = 0.5


class _Drained(Exception):  # noqa: N818 - not an error: the query is asked to end between two batches
    pass


_TOLD_BY_ALL = (_Drained, PoisonBatchError, LateWriterError, LeaseLostError)
"""What ends a query by its own name also where it was stopped in mid-batch: verdicts, and that another process has it."""


@dataclass(frozen=True)
class StreamOptions:
    """The settings of a batch group's stream.

    Attributes:
        lock_wait_seconds: how long to wait for another process that holds the checkpoint.
        attempts: makes of the checkpoint's own attempts where they are kept; None: there alone.
        admission: of the application's batches; None: each begins when Spark says so.
        changed_windows: whether someone says that windows were changed on purpose: those of other operations begin empty.
        version: of the flow's definition, as its author counts: with another one than that of the windows' state they were
            changed on purpose; None: not known.
    """

    listeners: tuple[Listener, ...] = ()
    max_attempts: int = 3
    lock_wait_seconds: float = 30.0
    on_batch: Callable[[BatchReport], None] | None = None
    hooks: tuple[Hook, ...] = ()
    attempts: Callable[[AttemptStore], AttemptStore] | None = None
    admission: Admission | None = None
    changed_windows: bool = False
    version: str | None = None


class StreamRunner:
    """Runs one batch group of a flow as a stream."""

    def __init__(self, group: BatchGroup, checkpoint: Checkpoint, options: StreamOptions) -> None:
        self._group, self._checkpoint, self._listeners = group, checkpoint, options.listeners
        self._max_attempts, self._attempts_in = options.max_attempts, options.attempts
        self._wait, self._on_batch = options.lock_wait_seconds, options.on_batch
        self._options = options
        self._hooks, self._sizes = options.hooks, dict[str, int]()
        self._poison = PoisonRows(group)
        self._left_over: set[int] = set()
        """Poison batches of former starts, some of which this one may see come through."""
        self._belonging = Belonging(checkpoint, group.lake)
        self._counters = Counters(group.spark, f"{group.topology.name}/{group.name}/")
        self._stop_after: int | None = None
        self._durable: DurableBatches | None = None
        self._windows = DriverWindows(group, checkpoint.folder, options.version) if group.windows else None
        self.windows_anew: tuple[str, ...] = ()
        """The windows that began empty with the start, for their operation was changed."""
        self.events_wait = 0
        """How many events wait for the clock in windows that a changed definition has no more."""
        self.draining, self.forced = threading.Event(), threading.Event()
        self._turns = options.admission.query(self.draining.is_set) if options.admission else None
        self.reports: list[BatchReport] = []
        self.batches, self._quarantine_noted = 0, False
        self.error: BaseException | None = None

    # --- the life of the query --------------------------------------------------------------------------------------

    def start(
        self,
        *,
        on_fresh: str,
        trigger_seconds: float | None,
        max_batches: int | None = None,
        pending_only: bool = False,
    ) -> StreamingQuery:
        """Start the query: until the source is read to its end (no trigger), or on and on.

        Args:
            on_fresh: what to do if the checkpoint is fresh and the tables are not.
            trigger_seconds: a batch begins that often at most; None: until the source is read.
            pending_only: end with the batch that an earlier run has begun and not finished.
        """
        self._make_whole()
        if self._windows:
            read_to_the_end(self._group, self._checkpoint, self._options, type(self))
            self._windows.take_over(self._checkpoint, self._wait, self._belonging.check)
        self._change_windows(partial(self._check_before, on_fresh))
        check_place(self._group, self._checkpoint)
        self._epoch = self._open_epoch(on_fresh)
        self._left_over = self._poison.kept()
        if self._windows:
            self._windows.check(self._checkpoint)
        if self._group.lake.durable and isinstance(self._group.lake.root, Path):
            # What a store has taken is kept.
            self._durable = DurableBatches(self._checkpoint, self._tables(), self._group.lake.root)
        save_plan(self._group.topology, self._checkpoint.folder)
        self._tracker = self._new_tracker()
        self._stop_after = max_batches
        self._group.entrance.start_at(self._checkpoint.start, self._checkpoint.spark)
        self._claims = SameSources(self._group, self._checkpoint)
        self._claims.check()
        frame = self._group.entrance.stream(self._group.spark, self._kept_from_windows())
        self._check_fields()
        # Not before: whoever is refused, and puts back what was lost, wants the attempts as they were.
        self._try_again()
        self._callback = SparkCallback(self._in_turn if self._turns else self._on_spark_batch)
        writer = frame.writeStream.foreachBatch(self._callback)
        writer = writer.option("checkpointLocation", str(self._checkpoint.spark))
        if pending_only:
            # Of Spark's triggers the one that runs a single batch: a further one would only be begun.
            return writer.trigger(once=True).start()
        if trigger_seconds is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=_interval(trigger_seconds)).start()

    def _check_before(self, on_fresh: str) -> None:
        """Refuse what the epoch of changed windows would hide; tables that only another query has written are not asked."""
        own = [table for table in self._tables() if self._belonging.knows(table) or not self._belonging.known()]
        if own:
            self._belonging.check(own)
        self._refuse_other_gates()
        if on_fresh != CONTINUE:
            self._refuse_newcomers()

    def _change_windows(self, check: Callable[[], None]) -> None:
        """Go on with a changed definition of windows that run in the batch, where it was changed on purpose."""
        options, where = self._options, {"flow": self._group.topology.name, "group": self._group.name}
        if self._windows:
            self.windows_anew = self._windows.change(
                self._checkpoint, self._wait, check, on_purpose=options.changed_windows
            )
            if self.windows_anew:
                logger.warning("windows begin empty", windows=list(self.windows_anew), **where)
        elif options.changed_windows or options.version is not None:
            self.events_wait = end_windows(self._group, self._checkpoint, self._wait, check)

    def _check_fields(self) -> None:
        taken, held = {**self._group.entrance.prelude.taken}, self._checkpoint.has_state
        if self._windows:
            taken, held = {**taken, **self._windows.whole_events}, held or self._windows.hold
        check_fields(self._checkpoint, self._group.name, taken, held=held)

    def finish(self, query: StreamingQuery) -> None:
        """Wait for the query's end.

        Raises:
            TrideltaError: what stopped it.
        """
        try:
            query.awaitTermination()
            self._callback.release()
        except StreamingQueryException as error:
            self._callback.release()
            if isinstance(self.error, _Drained):
                return
            if self.error is not None:
                raise self.error from self.error.__cause__
            raise self._named(error) from error

    def drain(self, query: StreamingQuery) -> None:
        """End the query between two batches: the running one finishes, Spark's commit included."""
        self.draining.set()
        while query.isActive and query.status["isTriggerActive"]:
            time.sleep(0.02)
        query.stop()

    def _named(self, error: Exception) -> TrideltaError:
        """Turn an error of Spark's outside our batch into one with what a reader needs of it."""
        known: TrideltaError | None = lake_fault(error, str(self._checkpoint.folder), "Spark wrote its checkpoint")
        known = known or self._group.entrance.fault(error)
        if known:
            return known
        text = str(error).split("JVM stacktrace")[0].strip().splitlines()
        return TrideltaError(
            f'flow "{self._group.topology.name}": Spark stopped the stream "{self._group.name}": {text[0] if text else error!r}',
            hint="mend the cause and run the flow again: it continues with the same batch",
        )

    # --- epochs -----------------------------------------------------------------------------------------------------

    def _make_whole(self) -> None:
        """Mend what a loss of power has left of the last batch, before anything else reads it."""
        checkpoint, tables = self._checkpoint, self._tables()
        make_whole(checkpoint.flow, checkpoint.spark, lambda batch: self._belonging.holds(tables, batch))

    def _kept_attempts(self) -> AttemptStore:
        """Return the attempts as they are now: an epoch that begins removes the file that was there."""
        own = self._checkpoint.attempts()
        return own if self._attempts_in is None else self._attempts_in(own)

    def _open_epoch(self, on_fresh: str) -> Epoch:
        epoch = self._checkpoint.epoch
        if epoch is not None:
            self._belonging.check(self._tables())
            self._refuse_other_gates()
            if on_fresh != CONTINUE:
                self._refuse_newcomers()
            # A backfill notes what it has filled.
            with self._checkpoint.committing(self._wait):
                self._belonging.note(self._tables())
            return epoch
        epoch = self._fresh_epoch(on_fresh)
        self._belonging.begun(epoch, self._tables())
        return epoch

    def _tables(self) -> list[StateTable]:
        """Return all tables that the query writes."""
        return [*(sink.table for sink in self._group.sinks), self._group.quarantine.table]

    def _fresh_epoch(self, on_fresh: str) -> Epoch:
        commits = [(sink.name, commit) for sink in self._group.sinks for commit in sink.table.commits.batches()]
        if self._group.quarantine.table.exists():
            # It may outlive the states, and a batch whose txid it knows in an epoch would leave no rows there.
            refused = self._group.quarantine.table
            commits += [(refused.name, commit) for commit in refused.commits.batches() if self._is_own(commit)]
        number = self._free_epoch()
        if not commits:
            if on_fresh == RESET:
                self._checkpoint.still_held()
                (self._checkpoint.folder / "start.json").unlink(missing_ok=True)
                self._poison.forget_all()
            return self._begun(Epoch(number, 0))
        name, last = max(commits, key=lambda pair: pair[1].txid or 0)
        if on_fresh == CONTINUE:
            return self._begun(Epoch(number, (last.txid or 0) + 1))
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
        raise FreshCheckpointError(self._group.topology.name, name, last.txid or 0, last.epoch or 0)

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
        """Return the number of a fresh epoch, whose transaction ids no table knows."""
        group, quarantine = self._group, self._group.quarantine
        known = [commit.epoch or 0 for sink in group.sinks for commit in sink.table.history()]
        if not quarantine.table.exists():
            return max(known, default=0) + 1
        refused = (commit for commit in quarantine.table.history() if commit.kind == BATCH and self._is_own(commit))
        known += [commit.epoch or 0 for commit in refused]
        number = max(known, default=0) + 1
        # Delta keeps a transaction id for longer than the log keeps its commit.
        while quarantine.committed(stream_id(group.topology.name, f"{NAME}/{group.name}", number)) is not None:
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
        app_id = stream_id(flow, f"{NAME}/{self._group.name}", epoch)
        if len(self._group.topology.spouts) == len(self._group.spouts):
            writer.reset(record, app_id)
            return
        writer.prepare(table_columns())
        writer.reset(record.model_copy(update={"group": self._group.name}), app_id, among=self._group.refused)

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
            attempt = self._kept_attempts().get(f"{self._group.name}/{epoch.number}").get(record.txid)
            # Of one that is left out no rows are judged, nor of one that quarantine has, too.
            left_out = attempt is not None and attempt.state is BatchState.SKIPPED
            if not left_out and not self._all_have(epoch, record.txid):
                raise ChangedGateError(self._group.topology.name, self._group.name, record.txid, sink.name)

    def _all_have(self, epoch: Epoch, txid: int) -> bool:
        """Return whether all tables have a batch for good: none takes it once more."""
        flow, quarantine = self._group.topology.name, self._group.quarantine
        sinks = [(sink.writer, sink.name) for sink in self._group.sinks]
        if not quarantine.table.exists() or any(writer.declared.kind != TRANSACTIONAL for writer, _ in sinks):
            return False
        held = (
            writer.committed(stream_id(flow, name, epoch.number))
            for writer, name in [*sinks, (quarantine, f"{NAME}/{self._group.name}")]
        )
        return all(last is not None and last >= txid for last in held)

    def _is_taken(self, txid: int) -> bool:
        """Return whether another process has finished the batch, or has made attempts since this one's."""
        finished = self._checkpoint.is_finished(txid - self._epoch.first_txid)
        # Under a lease of the registry each commit asks for that.
        return finished or (isinstance(self._attempts_kept, StoredAttempts) and self._attempts_kept.is_overtaken())

    def _new_tracker(self) -> BatchTracker:
        self._attempts_kept = self._kept_attempts()
        source = Stage(
            self._group.source_stage,
            lazy=True,
            group=self._scope,
            transactional=self._group.transactional,
            fields=self._group.fields,
        )
        states = [
            Stage(sink.name, upstream=(source.name,), commits=True, lazy=True, group=self._scope)
            for sink in self._group.sinks
        ]
        return BatchTracker(
            [source, *states],
            attempts=self._attempts_kept,
            max_attempts=self._max_attempts,
            first_txid=self._epoch.first_txid,
        )

    def _try_again(self) -> None:
        """Let a poison batch retry: whoever starts the flow again has mended something, or wants to see it fail again."""
        last = self._checkpoint.last_batch()
        for batch_id in (last - 1, last):
            txid = self._epoch.txid(batch_id)
            if batch_id >= 0 and self._tracker.state(txid) is BatchState.POISON:
                self._tracker.retry(txid, accept_source=True)
        # What earlier releases have recorded does not say that it is of another plan than the next one.
        self._tracker.group().lose_plans(self._epoch.txid(last + 1))

    def _kept_from_windows(self) -> frozenset[int]:
        """Return Spark's ids of the batches whose rows the windows must not see: skipped, for they failed there."""
        records = {txid: self._tracker.group().record(txid) for txid in self._tracker.kept_from_windows()}
        batches = {txid - self._epoch.first_txid: record for txid, record in records.items() if record is not None}
        return frozenset(id_ for id_, record in batches.items() if self._checkpoint.has_plan_of(id_, record))

    @property
    def _scope(self) -> str:
        """Return the tracker's name of this group; a new epoch is a new one."""
        return f"{self._group.name}/{self._epoch.number}"

    # --- a batch ----------------------------------------------------------------------------------------------------

    def _in_turn(self, frame: DataFrame, batch_id: int) -> None:
        """Run a batch for Spark in its turn. Spark looks for new rows when this returns: not before the next turn has come."""
        assert self._turns
        self._turns.begin()
        try:
            self._on_spark_batch(frame, batch_id)
        finally:
            self._turns.end(another=self.error is None)

    def _on_spark_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Run a batch for Spark; an error that leaves here ends the query and is raised again by `finish`."""
        try:
            if self.draining.is_set() or (self._stop_after is not None and self.batches >= self._stop_after):
                raise _Drained
            # Whatever is logged in this thread, by whomever, says which batch it is about.
            of = {"flow": self._group.topology.name, "group": self._group.name, "txid": self._epoch.txid(batch_id)}
            with structlog.contextvars.bound_contextvars(**of, attempt=0), self._committing():
                report = self._run(frame, batch_id)
                self._note_quarantine()
            self.reports.append(report)
            # Those of a stream that runs for months are not wanted whole.
            del self.reports[:-KEPT_REPORTS]
            self.batches += 1
            if self._on_batch:
                self._on_batch(report)
        except Exception as error:
            if self.forced.is_set() and not isinstance(error, _TOLD_BY_ALL):
                # A call whose job the stop has cut off fails by many names.
                self.error = _Drained()
                raise self.error from error
            doing = f"batch {self._epoch.txid(batch_id)} was written"
            known = isinstance(error, TrideltaError | _Drained)
            self.error = error if known else lake_fault(error, str(self._group.lake.root), doing) or error
            raise
        except BaseException as error:
            # The bridge to the JVM passes on Exceptions only; anything else would leave Spark waiting for an answer.
            self.error = error
            raise RuntimeError(repr(error)) from error

    @contextmanager
    def _committing(self) -> Iterator[None]:
        """Hold the commit lock; a query that is to end does not wait for whoever has it."""
        until = time.monotonic() + self._wait
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(self._checkpoint.committing(min(_LOOK_SECONDS, self._wait)))
                    break
                except LockedError as error:
                    if self.draining.is_set() or self.forced.is_set():
                        raise _Drained from None
                    if time.monotonic() >= until:
                        raise LockedError(error.flow, error.path, self._wait) from None
            yield

    def _note_quarantine(self) -> None:
        """Note the quarantine, which is made with the first row that is refused, in the middle of a stream."""
        table = self._group.quarantine.table
        if not self._quarantine_noted and table.exists():
            self._belonging.note_on([table], also_new=True)
            self._quarantine_noted = True

    def _run(self, frame: DataFrame, batch_id: int) -> BatchReport:
        txid, plan = self._epoch.txid(batch_id), self._checkpoint.plan(batch_id)
        self._expect_other_rows(txid, plan)
        skipped = self._tracker.state(txid) is BatchState.SKIPPED
        report = BatchReport(self._group.topology.name, self._group.name, txid, 0, 0, 0, (), 0.0, skipped=True)
        seen = self._poison.seen() if skipped else -1
        kept = not skipped or self._poison.is_kept(self._epoch, txid, self._checkpoint.planned_at(batch_id), plan)
        if skipped and kept and not self._group.entrance.has_windows:
            return report
        if self._durable:
            self._durable.planned(batch_id)
        self._claims.check_planned(batch_id)
        if self._windows:
            self._windows.clear(txid)
        entrance = self._group.entrance
        taken = entrance.positions_by_source(self._checkpoint.spark, batch_id, batch_id)
        files = frozenset[str]().union(*taken)
        position = Position(files, bytes_of(files), plan=plan)
        started = time.monotonic()
        frame = frame.persist() if entrance.kept else frame
        try:
            frames = entrance.frames(frame, taken, txid)
            if skipped:
                if entrance.has_windows:
                    self._run_windows(txid, frames, seen)
                if not kept:
                    self._keep_skipped(txid, frames, seen)
            else:
                report = self._attempts(txid, frames, position)
            return replace(report, seconds=time.monotonic() - started)
        finally:
            if entrance.kept:
                frame.unpersist()

    def _expect_other_rows(self, txid: int, plan: str | None) -> None:
        """Forget what came of a batch by a plan that is gone, and of those that were planned behind it: their rows come again.

        Whether it was left out says nothing of the rows of this plan, nor does what its attempts received. What quarantine has
        goes first: cut off behind that, all of it is done once more. Before it goes, nobody else may have kept any since.

        Raises:
            LateWriterError, LeaseLostError: another process has taken the batch.
        """
        if plan is None:
            return
        tracked = self._tracker.group()
        is_lost = txid in self._left_over and tracked.record(txid) is None
        if is_lost and self._poison.is_kept_of_another(self._epoch, txid, plan):
            tracked.recall(txid)
        for other in tracked.planned_otherwise(txid, plan):
            seen = self._poison_seen(txid)
            # Of a lease of the registry only the put of a record tells. Behind it whoever takes it over comes behind `seen`.
            tracked.confirm(other)
            self._poison.release(other, seen)
            tracked.plan_again(other, plan if other == txid else GONE)
            logger.warning("batch comes by another plan", flow=self._group.topology.name, txid=other)

    def _keep_skipped(self, txid: int, frames: Frames, seen: int) -> None:
        """Keep the rows of a skipped batch: the process died, or the lake failed, between its last attempt and quarantine."""
        record = self._tracker.group().record(txid)
        assert record is not None
        rows = None if record.in_windows else self._group.entrance.events(frames)
        batch = Batch(self._scope, txid, record.attempt)
        self._poison.keep_skipped(self._epoch, batch, rows, record.reason, seen, self._plan(txid))

    def _run_windows(self, txid: int, frames: Frames, seen: int) -> None:
        """Run the windows of a skipped batch to their end, which the state store demands of every batch.

        Raises:
            BatchError: they fail, too. With the next start the batch's rows are kept from them.
        """
        for tries in range(1, self._max_attempts + 1):
            if self.forced.is_set():
                raise _Drained
            try:
                self._group.entrance.clocks(frames)
                return
            except PySparkException as error:
                if self.forced.is_set():
                    raise _Drained from error
                if (outside := self._outside(error, txid)) is not None:
                    raise outside from error
                if tries < self._max_attempts:
                    time.sleep(back_off(tries))
                    continue
                batch, reason = Batch(self._scope, txid, 0), reason_of(error)
                kept = self._poison.keep(self._epoch, batch, None, reason, seen, self._plan(txid))
                self._tracker.keep_from_windows(txid)
                raise BatchError(
                    f'flow "{self._group.topology.name}": batch {txid} of "{self._group.name}" is skipped, but fails in the '
                    f"windows, too: {reason}",
                    hint=f"run the flow again: now its rows do not reach the windows; they are kept in {kept}",
                ) from error

    @property
    def window_rows(self) -> int | None:
        """Return how many windows hold something that run in the query's batch; None: none run there."""
        return self._windows.rows if self._windows else None

    def _attempts(self, txid: int, frames: Frames, position: Position) -> BatchReport:
        """Try a batch until an attempt comes through, or none is left."""
        stream_batch = StreamBatch(
            Shared(
                self._group,
                self._epoch,
                self._tracker,
                self._listeners,
                self._sizes,
                self._hooks,
                self._counters,
                self._durable.committed if self._durable else None,
                self._windows,
                self._is_taken,
            )
        )
        sources, clocks, tries = self._group.entrance.events(frames), None, 0
        while True:
            batch = self._open(txid, sources, position.plan)
            structlog.contextvars.bind_contextvars(attempt=batch.attempt)
            self._tell("opened", txid)
            try:
                if clocks is None:
                    # This also runs the windows to their end, which the state store demands even of a batch replayed.
                    clocks = self._group.entrance.clocks(frames)
                report = stream_batch.run(batch, sources, replace(position, clocks=clocks))
                if batch.attempt or txid in self._left_over:
                    self._poison.forget(txid)
                self._tell("closed", txid)
                return report
            except (LateWriterError, LeaseLostError, BehindStateError, WindowStateError) as error:
                # Another process runs the flow and has its own attempts; or what the batch has to begin with is missing.
                stream_batch.failed(batch, reason_of(error))
                raise
            except Exception as error:
                tries += 1
                stream_batch.failed(batch, reason_of(error))
                self._leave_if_forced(batch, error)
                in_windows = clocks is None and self._group.entrance.has_windows
                self._after_failure(batch, error, sources, tries, in_windows=in_windows)
                time.sleep(back_off(tries))

    def _leave_if_forced(self, batch: Batch, error: Exception) -> None:
        """Leave a batch to the next start where the query was stopped in the middle of it, at no cost to the batch."""
        if self.forced.is_set():
            # Its lease may be lost, or its lake away. Then the attempt counts, as one in which the process died.
            with suppress(TrideltaError):
                self._tracker.withdraw(batch, "the query was stopped in mid-batch")
            raise _Drained from error

    def _open(self, txid: int, sources: Frames, plan: str | None) -> Batch:
        """Open the next attempt.

        Raises:
            PoisonBatchError: no attempt is left, for the process died in each of them.
        """
        if self.forced.is_set():
            raise _Drained
        try:
            return self._tracker.open(txid, plan=plan)
        except RefusedError as error:
            record, seen = error.record, self._poison_seen(txid)
            if self._group.entrance.has_windows:
                # Nobody knows where; if in the windows, whoever works them out again may die again.
                self._tracker.keep_from_windows(txid)
            rows = None if self._group.entrance.has_windows else sources
            batch = Batch(self._scope, txid, record.attempt)
            kept = self._poison.keep(self._epoch, batch, rows, record.reason, seen, plan)
            raise self._stopped(txid, record.tries, record.reason, kept) from None

    def _after_failure(self, batch: Batch, error: Exception, sources: Frames, tries: int, *, in_windows: bool) -> None:
        """Let a further attempt come, or stop the flow.

        Args:
            in_windows: the windows of the query failed: their rows are not to be had.

        Raises:
            DiskFullError, LostRowsError, MissingModuleError, StoreError: nothing is wrong with the batch.
            PoisonBatchError: no attempt is left, or the same rows can only fail again.
        """
        fault = self._group.entrance.fault(error)
        if (outside := self._outside(error, batch.txid)) is not None:
            with suppress(StoreError):  # it may be what fails
                self._tracker.withdraw(batch, reason_of(outside))
            raise outside from error
        seen = self._poison_seen(batch.txid)
        outcome = self._tracker.fail(batch, error, in_windows=in_windows)
        reason = reason_of(fault or error)
        logger.warning(
            "attempt failed", flow=self._group.topology.name, txid=batch.txid, attempt=batch.attempt, reason=reason
        )
        if not isinstance(outcome, Poison) and not isinstance(error, GateError | AccountingError):
            return
        while self._tracker.state(batch.txid) is not BatchState.POISON:
            # A gate's verdict or a wrong count is the same at every attempt: use the remaining ones up.
            self._tracker.fail(self._tracker.open(batch.txid), reason)
        rows = None if in_windows else sources
        kept = self._poison.keep(self._epoch, batch, rows, reason, seen, self._plan(batch.txid))
        raise self._stopped(batch.txid, tries, reason, kept) from error

    def _plan(self, txid: int) -> str | None:
        """Return the digest of the plan of the batch at work."""
        return self._checkpoint.plan(txid - self._epoch.first_txid)

    def _poison_seen(self, txid: int) -> int:
        """Return the version of quarantine in which the rows of a batch are missing, for nobody else has taken it before.

        Raises:
            LateWriterError: another process has.
        """
        seen = self._poison.seen()
        if self._is_taken(txid):
            raise LateWriterError(self._group.name, f"batch {txid}", "another process has taken or finished it")
        return seen

    def _stopped(self, txid: int, tries: int, reason: str, kept: str) -> PoisonBatchError:
        return PoisonBatchError(self._group.topology.name, txid, tries, reason, kept, stream=self._group.name)

    def _outside(self, error: Exception, txid: int) -> TrideltaError | None:
        """Return what an error comes from if not from the batch: a disk, a store, lost rows, a module that a worker lacks."""
        fault = self._group.entrance.fault(error)
        outside: TrideltaError | None = lake_fault(error, str(self._group.lake.root), f"batch {txid} was written")
        outside = outside or missing_module(error, self._group.topology.name)
        return outside or (fault if isinstance(fault, LostRowsError) else None)

    def _tell(self, moment: str, txid: int) -> None:
        for listener in self._listeners:
            listener(moment, "", txid)


def _interval(seconds: float) -> str:
    """Return seconds as Spark reads an interval: it takes nine digits behind the point, and no exponent."""
    return f"{round(seconds * 1000)} milliseconds"
