"""The streaming runner: a Spark query a batch group, whose foreachBatch is the batch protocol."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from pipelines import logs
from pipelines.errors import TrideltaError
from pipelines.execution.batch.driver_windows import DriverWindows
from pipelines.execution.batch.group import BatchGroup
from pipelines.execution.batch.poison import PoisonRows
from pipelines.execution.batch.position import Position
from pipelines.execution.batch.stream_batch import Shared
from pipelines.execution.batch.windows_change import WindowsChange, check_place, end_windows
from pipelines.execution.checkpoint.belonging import Belonging
from pipelines.execution.checkpoint.damage import make_whole
from pipelines.execution.checkpoint.durable import DurableBatches
from pipelines.execution.checkpoint.engine_files import Checkpoint, StoredAttempts
from pipelines.execution.checkpoint.listed_files import listed
from pipelines.execution.checkpoint.window_state import check_fields
from pipelines.execution.events.hooks import Counters, Hook, Listener
from pipelines.execution.protocol.coordinator import AttemptStore, BatchState
from pipelines.execution.protocol.failures import lake_fault
from pipelines.execution.protocol.tracker import BatchTracker, Stage
from pipelines.execution.report import BatchReport
from pipelines.execution.runners.admission import Admission
from pipelines.execution.runners.batch_attempts import BatchAttempts
from pipelines.execution.runners.claims import SameSources, bytes_of
from pipelines.execution.runners.epochs import Epochs, tables_of
from pipelines.execution.runners.former_windows import Watch, read_to_the_end
from pipelines.execution.runners.spark_callback import SparkCallback
from pipelines.execution.runners.stopping import Drained, Stopping
from pipelines.planner.plan import save_plan
from pipelines.spark.callback_secret import ask_where_none_runs

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from pipelines.execution.batch.group_sources import Frames

logger = logs.logger(__name__)

KEPT_REPORTS = 10_000
"""Keep the reports of the last so many batches."""


@dataclass(frozen=True)
class StreamOptions:
    """The settings of a batch group's stream.

    Attributes:
        lock_wait_seconds: how long to wait for another process that holds the checkpoint.
        start_wait_seconds: how long the start waits for one, where others wait for the start; None: as long as a batch does.
        attempts: makes of the checkpoint's own attempts where they are kept; None: there alone.
        admission: of the application's batches; None: each begins when Spark says so.
        changed_windows: whether someone says that windows were changed on purpose: those of other operations begin empty.
        version: of the flow's definition, as its author counts: with another one than that of the windows' state they were
            changed on purpose; None: not known.
    """

    listeners: tuple[Listener, ...] = ()
    max_attempts: int = 3
    lock_wait_seconds: float = 30.0
    start_wait_seconds: float | None = None
    on_batch: Callable[[BatchReport], None] | None = None
    hooks: tuple[Hook, ...] = ()
    attempts: Callable[[AttemptStore], AttemptStore] | None = None
    admission: Admission | None = None
    changed_windows: bool = False
    version: str | None = None

    @property
    def start_wait(self) -> float:
        """Return how long the start waits for another process, in seconds."""
        return self.lock_wait_seconds if self.start_wait_seconds is None else self.start_wait_seconds


class StreamRunner:
    """Runs one batch group of a flow as a stream."""

    def __init__(self, group: BatchGroup, checkpoint: Checkpoint, options: StreamOptions) -> None:
        self._group, self._checkpoint, self._options = group, checkpoint, options
        self._wait, self._start_wait, self._on_batch = options.lock_wait_seconds, options.start_wait, options.on_batch
        self._poison = PoisonRows(group)
        self._belonging = Belonging(checkpoint, group.lake)
        self._counters = Counters(group.spark, f"{group.topology.name}/{group.name}/")
        self._stop_after: int | None = None
        self._durable: DurableBatches | None = None
        self._windows = DriverWindows(group, checkpoint.folder, options.version) if group.windows else None
        self._epochs = Epochs(group, checkpoint, self._windows, options.attempts, options.start_wait)
        self.emptied_windows: tuple[str, ...] = ()
        """The windows that began empty with the start, for their operation was changed."""
        self.events_wait = 0
        """How many events wait for the clock in windows that a changed definition has no more."""
        self.stopping = Stopping()
        self._turns = options.admission.query(self.stopping.draining.is_set) if options.admission else None
        self.reports: list[BatchReport] = []
        self.batches, self._quarantine_noted, self._goes_on = 0, False, False
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
        self.read_ahead(lambda runner, query, _: runner.finish(query))
        if self._windows:
            WindowsChange(self._windows).take_over(self._checkpoint, self._start_wait, self._belonging.check)
        self._change_windows(partial(self._epochs.check, on_fresh))
        check_place(self._group, self._checkpoint)
        self._epoch = self._epochs.open(on_fresh)
        left_over = self._poison.kept()
        if self._windows:
            self._windows.check(self._checkpoint)
        if self._group.lake.durable and isinstance(self._group.lake.root, Path):
            # What a store has taken is kept.
            self._durable = DurableBatches(self._checkpoint, tables_of(self._group), self._group.lake.root)
        save_plan(self._group.topology, self._checkpoint.folder)
        self._attempts = self._new_attempts(left_over)
        self._stop_after = max_batches
        self._group.sources.start_at(self._checkpoint.start, self._checkpoint.spark)
        self._claims = SameSources(self._group, self._checkpoint)
        self._claims.check()
        frame = self._group.sources.stream(self._group.spark, self._kept_from_windows())
        self._check_fields()
        # Not before: whoever is refused, and puts back what was lost, wants the attempts as they were.
        self._try_again()
        self._callback = SparkCallback(self._in_turn if self._turns else self._on_spark_batch)
        # The session may be the user's own: `foreachBatch` starts what the JVM calls back, without a secret.
        ask_where_none_runs(SparkContext._gateway)
        writer = frame.writeStream.foreachBatch(self._callback)
        writer = writer.option("checkpointLocation", str(self._checkpoint.spark))
        return _triggered(writer, trigger_seconds, pending_only=pending_only).start()

    def read_ahead(self, watch: Watch) -> bool:
        """Run what is to end before the query starts: queries whose windows go over from a channel. `start` does so, too.

        Args:
            watch: waits for the end of such a query, which it may drain, and raises what has stopped it. A stop of this runner
                in mid-batch is one of that query.

        Returns:
            Whether they came to their end; one that was drained or stopped goes on there with the next start.
        """
        self._make_whole()
        return self._windows is None or read_to_the_end(self._group, self._checkpoint, self._options, self, watch)

    def _change_windows(self, check: Callable[[], None]) -> None:
        """Go on with a changed definition of windows that run in the batch, where it was changed on purpose."""
        options, where = self._options, {"flow": self._group.topology.name, "group": self._group.name}
        if self._windows:
            self.emptied_windows = WindowsChange(self._windows).change(
                self._checkpoint, self._start_wait, check, on_purpose=options.changed_windows
            )
            if self.emptied_windows:
                logger.warning("windows begin empty", windows=list(self.emptied_windows), **where)
        elif options.changed_windows or options.version is not None:
            self.events_wait = end_windows(self._group, self._checkpoint, self._start_wait, check)

    def _check_fields(self) -> None:
        taken, held = {**self._group.sources.prelude.taken}, self._checkpoint.has_state
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
            if isinstance(self.error, Drained):
                return
            if self.error is not None:
                raise self.error from self.error.__cause__
            raise self._named(error) from error

    def drain(self, query: StreamingQuery) -> None:
        """End the query between two batches: the running one finishes, Spark's commit included."""
        self.stopping.draining.set()
        while query.isActive and query.status["isTriggerActive"]:
            time.sleep(0.02)
        query.stop()

    def _named(self, error: Exception) -> TrideltaError:
        """Turn an error of Spark's outside our batch into one with what a reader needs of it."""
        known: TrideltaError | None = lake_fault(error, str(self._checkpoint.folder), "Spark wrote its checkpoint")
        known = known or self._group.sources.fault(error)
        if known:
            return known
        text = str(error).split("JVM stacktrace")[0].strip().splitlines()
        return TrideltaError(
            f'flow "{self._group.topology.name}": Spark stopped the stream "{self._group.name}": {text[0] if text else error!r}',
            hint="mend the cause and run the flow again: it continues with the same batch",
        )

    # --- before its first batch -------------------------------------------------------------------------------------

    def _make_whole(self) -> None:
        """Mend what a loss of power has left of the last batch, before anything else reads it."""
        checkpoint, tables = self._checkpoint, tables_of(self._group)
        make_whole(checkpoint.flow, checkpoint.spark, lambda batch: self._belonging.holds(tables, batch))

    def _new_tracker(self, attempts: AttemptStore) -> BatchTracker:
        scope = self._epoch.scope(self._group.name)
        source = Stage(
            self._group.source_stage,
            lazy=True,
            group=scope,
            transactional=self._group.transactional,
            fields=self._group.fields,
        )
        states = [
            Stage(sink.name, upstream=(source.name,), commits=True, lazy=True, group=scope)
            for sink in self._group.sinks
        ]
        return BatchTracker(
            [source, *states],
            attempts=attempts,
            max_attempts=self._options.max_attempts,
            first_txid=self._epoch.first_txid,
        )

    def _new_attempts(self, left_over: set[int]) -> BatchAttempts:
        checkpoint, epoch, kept = self._checkpoint, self._epoch, self._epochs.attempts()
        self._tracker = self._new_tracker(kept)

        def is_taken(txid: int) -> bool:
            """Return whether another process has finished the batch, or has made attempts since this one's."""
            finished = checkpoint.is_finished(txid - epoch.first_txid)
            # Under a lease of the registry each commit asks for that.
            return finished or (isinstance(kept, StoredAttempts) and kept.is_overtaken())

        shared = Shared(
            self._group,
            epoch,
            self._tracker,
            self._options.listeners,
            {},
            self._options.hooks,
            self._counters,
            self._durable.committed if self._durable else None,
            self._windows,
            is_taken,
        )
        return BatchAttempts(shared, checkpoint, self._poison, self.stopping, self._options.max_attempts, left_over)

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
            if self.stopping.draining.is_set() or (self._stop_after is not None and self.batches >= self._stop_after):
                raise Drained
            # Whatever is logged in this thread, by whomever, says which batch it is about.
            of = {"flow": self._group.topology.name, "group": self._group.name, "txid": self._epoch.txid(batch_id)}
            committing = self.stopping.committing(self._checkpoint, self._wait)
            with structlog.contextvars.bound_contextvars(**of, attempt=0), committing:
                report = self._run(frame, batch_id)
                self._note_quarantine()
            self.reports.append(report)
            # Those of a stream that runs for months are not wanted whole.
            del self.reports[:-KEPT_REPORTS]
            self.batches += 1
            if self._on_batch:
                self._on_batch(report)
        except Exception as error:
            if self.stopping.is_cut_off(error):
                self.error = Drained()
                raise self.error from error
            doing = f"batch {self._epoch.txid(batch_id)} was written"
            known = isinstance(error, TrideltaError | Drained)
            self.error = error if known else lake_fault(error, str(self._group.lake.root), doing) or error
            raise
        except BaseException as error:
            # The bridge to the JVM passes on Exceptions only; anything else would leave Spark waiting for an answer.
            self.error = error
            raise RuntimeError(repr(error)) from error

    def _note_quarantine(self) -> None:
        """Note the quarantine, which is made with the first row that is rejected, in the middle of a stream."""
        table = self._group.quarantine.table
        if not self._quarantine_noted and table.exists():
            self._belonging.note_on([table], also_new=True)
            self._quarantine_noted = True

    def _run(self, frame: DataFrame, batch_id: int) -> BatchReport:
        if self._durable:
            self._durable.planned(batch_id)
        if not self._goes_on:
            # Spark's part is there, and nothing of the batch is anywhere yet.
            self._checkpoint.goes_on()
            self._goes_on = True
        txid, plan = self._epoch.txid(batch_id), self._checkpoint.plan(batch_id)
        self._attempts.expect_other_rows(txid, plan)
        skipped = self._tracker.state(txid) is BatchState.SKIPPED
        report = BatchReport(self._group.topology.name, self._group.name, txid, 0, 0, 0, (), 0.0, skipped=True)
        seen = self._poison.seen() if skipped else -1
        kept = not skipped or self._poison.is_kept(self._epoch, txid, self._checkpoint.planned_at(batch_id), plan)
        if skipped and kept and not self._group.sources.has_windows:
            self._attempts.leave_out_waiting(txid, seen)
            self._on_disk()
            return report
        self._claims.check_planned(batch_id)
        if self._windows:
            self._windows.clear(txid)
        sources = self._group.sources
        taken = sources.positions_by_source(self._checkpoint.spark, batch_id, batch_id)
        self._claims.check_moved(taken)
        files = frozenset[str]().union(*taken)
        said = listed(self._checkpoint, batch_id, taken)
        position = Position(files, bytes_of(files), plan=plan, by_source=tuple(taken), listed=said)
        started = time.monotonic()
        frame = frame.persist() if sources.kept else frame
        try:
            # In an attempt, which counts: of a file that is laid out otherwise Spark may refuse to make any frame.
            frames = cache(partial(sources.frames, frame, taken, txid))
            if skipped:
                self._leave_out(txid, frames, seen, kept=kept)
            else:
                report = self._attempts.run(txid, frames, position)
            return replace(report, seconds=time.monotonic() - started)
        finally:
            if sources.kept:
                frame.unpersist()

    def _leave_out(self, txid: int, frames: Callable[[], Frames], seen: int, *, kept: bool) -> None:
        """Leave a skipped batch out, whose rows quarantine still lacks (not `kept`), or the state of its windows."""
        if self._group.sources.has_windows:
            self._attempts.run_windows(txid, frames, seen)
        if not kept:
            # Whoever else has changed quarantine since is seen by the second commit, too.
            behind = self._attempts.keep_skipped(txid, frames, seen)
            self._attempts.leave_out_waiting(txid, behind)
        self._on_disk()

    def _on_disk(self) -> None:
        """Have what is left out on the disk, if the lake is durable: behind Spark's mark nobody looks for it again."""
        if self._durable:
            self._durable.committed()

    @property
    def window_rows(self) -> int | None:
        """Return how many windows hold something that run in the query's batch; None: none run there."""
        return self._windows.rows if self._windows else None


def _triggered(writer: DataStreamWriter, seconds: float | None, *, pending_only: bool) -> DataStreamWriter:
    if pending_only:
        # Of Spark's triggers the one that runs a single batch: a further one would only be begun.
        return writer.trigger(once=True)
    if seconds is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=_interval(seconds))


def _interval(seconds: float) -> str:
    """Return seconds as Spark reads an interval: it takes nine digits behind the point, and no exponent."""
    return f"{round(seconds * 1000)} milliseconds"
