"""The attempts at a batch: one after the other until one comes through, none is left, or its query is to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import structlog
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pipelines import logs
from pipelines.errors import (
    AccountingError,
    BatchError,
    BehindStateError,
    GateError,
    LostRowsError,
    PoisonBatchError,
    TrideltaError,
)
from pipelines.execution.batch.poison import PoisonRows
from pipelines.execution.batch.position import Position
from pipelines.execution.batch.stream_batch import Shared, StreamBatch
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.keeps import Keeps
from pipelines.execution.checkpoint.window_begin import WindowStateError
from pipelines.execution.protocol.coordinator import GONE, Batch, BatchState, Poison, RefusedError
from pipelines.execution.protocol.failures import back_off, is_of_rows, lake_fault, missing_module, reason_of
from pipelines.execution.report import BatchReport
from pipelines.execution.runners.stopping import Drained, Stopping
from pipelines.places.lease import LeaseLostError
from pipelines.places.store import StoreError
from pipelines.state.turns import LateWriterError

if TYPE_CHECKING:
    from pipelines.execution.batch.group_sources import Frames

logger = logs.logger(__name__)


class BatchAttempts:
    """Tries the batches of a query.

    Args:
        shared: what all its batches share.
        stopping: whether the query is to end.
        max_attempts: at a batch, before it is poison.
        left_over: poison batches of former starts, some of which this one may see come through.
    """

    def __init__(
        self,
        shared: Shared,
        checkpoint: Checkpoint,
        poison: PoisonRows,
        stopping: Stopping,
        max_attempts: int,
        left_over: set[int],
    ) -> None:
        self._shared, self._group, self._epoch, self._tracker = shared, shared.group, shared.epoch, shared.tracker
        self._checkpoint, self._poison, self._stopping = checkpoint, poison, stopping
        self._max_attempts, self._left_over = max_attempts, left_over
        self._scope, self._keeps = shared.epoch.scope(shared.group.name), Keeps(checkpoint)

    def expect_other_rows(self, txid: int, plan: str | None) -> None:
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
            # What waited is out of quarantine by now. Whoever changes the windows must not find it left out of their state.
            self._take_back_waiting(other)
            tracked.plan_again(other, plan if other == txid else GONE)
            logger.warning("batch comes by another plan", flow=self._group.topology.name, txid=other)

    def run(self, txid: int, frames: Callable[[], Frames], position: Position) -> BatchReport:
        """Try a batch until an attempt comes through, or none is left.

        Args:
            frames: makes the frames of its sources, once it can; so of the further methods.
        """
        stream_batch = StreamBatch(self._shared)
        # Its record may be lost, which said that it was left out.
        self._take_back_waiting(txid)
        sources, clocks, tries = self._events(frames), None, 0
        while True:
            batch = self._open(txid, sources, position.plan)
            structlog.contextvars.bind_contextvars(attempt=batch.attempt)
            self._tell("opened", txid)
            try:
                if clocks is None:
                    # This also runs the windows to their end, which the state store demands even of a batch replayed.
                    clocks = self._group.sources.clocks(frames())
                report = stream_batch.run(batch, sources(), replace(position, clocks=clocks))
                if batch.attempt or txid in self._left_over:
                    self._poison.come_through(txid, report.received)
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
                in_windows = clocks is None and self._group.sources.has_windows
                self._after_failure(batch, error, sources, tries, in_windows=in_windows)
                time.sleep(back_off(tries))

    def _events(self, frames: Callable[[], Frames]) -> Callable[[], Frames]:
        return cache(lambda: self._group.sources.events(frames()))

    def keep_skipped(self, txid: int, frames: Callable[[], Frames], seen: int) -> int:
        """Keep the rows of a skipped batch: the process died, or the lake failed, between its last attempt and quarantine.

        Returns the version of quarantine behind that.
        """
        record = self._tracker.group().record(txid)
        assert record is not None
        rows = None if record.in_windows else self._events(frames)
        batch, plan = Batch(self._scope, txid, record.attempt), self._plan(txid)
        if self._keeps.end_the_process(batch, plan):
            self._poison.left_in_source(batch, self._keeps.file)
            return seen
        with self._keeps.begun(batch, plan):
            return self._poison.keep_skipped(self._epoch, batch, rows, record.reason, seen, plan)

    def _keep(self, batch: Batch, rows: Callable[[], Frames] | None, reason: str, seen: int, plan: str | None) -> str:
        """Put the rows of a poison batch into quarantine; return where they are."""
        if self._keeps.end_the_process(batch, plan):
            return self._poison.left_in_source(batch, self._keeps.file)
        with self._keeps.begun(batch, plan):
            return self._poison.keep(self._epoch, batch, rows, reason, seen, plan)

    def leave_out_waiting(self, txid: int, seen: int) -> None:
        """Leave out with a skipped batch what waits in its windows, if it failed by that."""
        record = self._tracker.group().record(txid)
        if self._shared.windows is not None and record is not None:
            batch = Batch(self._scope, txid, record.attempt)
            self._shared.windows.leave_out_waiting(self._epoch, batch, record, self._plan(txid), seen)

    def _take_back_waiting(self, txid: int) -> None:
        """Let what waits in the windows count as theirs again, where it was left out with a batch that comes again."""
        if self._shared.windows is not None:
            self._checkpoint.still_held()
            self._shared.windows.take_back_waiting(txid)

    def run_windows(self, txid: int, frames: Callable[[], Frames], seen: int) -> None:
        """Run the windows of a skipped batch to their end, which the state store demands of every batch.

        Raises:
            BatchError: they fail, too. With the next start the batch's rows are kept from them.
        """
        for tries in range(1, self._max_attempts + 1):
            self._stopping.leave_if_forced()
            try:
                self._group.sources.clocks(frames())
                return
            except (PySparkException, Py4JJavaError) as error:
                self._stopping.leave_if_forced(error)
                if (outside := self._outside(error, txid)) is not None:
                    raise outside from error
                if not is_of_rows(error):
                    raise
                if tries < self._max_attempts:
                    time.sleep(back_off(tries))
                    continue
                batch, reason = Batch(self._scope, txid, 0), reason_of(error)
                kept = self._keep(batch, None, reason, seen, self._plan(txid))
                self._tracker.keep_from_windows(txid)
                raise BatchError(
                    f'flow "{self._group.topology.name}": batch {txid} of "{self._group.name}" is skipped, but fails in the '
                    f"windows, too: {reason}",
                    hint=f"run the flow again: now its rows do not reach the windows; they are kept in {kept}",
                ) from error

    def _leave_if_forced(self, batch: Batch, error: Exception) -> None:
        """Leave a batch to the next start where the query was stopped in the middle of it, at no cost to the batch."""
        if self._stopping.forced.is_set():
            # Its lease may be lost, or its lake away. Then the attempt counts, as one in which the process died.
            with suppress(TrideltaError):
                self._tracker.withdraw(batch, "the query was stopped in mid-batch")
            raise Drained from error

    def _open(self, txid: int, sources: Callable[[], Frames], plan: str | None) -> Batch:
        """Open the next attempt.

        Raises:
            PoisonBatchError: no attempt is left, for the process died in each of them.
        """
        self._stopping.leave_if_forced()
        try:
            return self._tracker.open(txid, plan=plan)
        except RefusedError as error:
            record, seen = error.record, self._poison_seen(txid)
            if self._group.sources.has_windows:
                # Nobody knows where; if in the windows, whoever works them out again may die again.
                self._tracker.keep_from_windows(txid)
            rows = None if self._group.sources.has_windows else sources
            batch = Batch(self._scope, txid, record.attempt)
            kept = self._keep(batch, rows, record.reason, seen, plan)
            raise self._stopped(txid, record.tries, record.reason, kept) from None

    def _after_failure(
        self, batch: Batch, error: Exception, sources: Callable[[], Frames], tries: int, *, in_windows: bool
    ) -> None:
        """Let a further attempt come, or stop the flow.

        Args:
            in_windows: the windows of the query failed: their rows are not to be had.

        Raises:
            DiskFullError, LostRowsError, MissingModuleError, StoreError: nothing is wrong with the batch.
            PoisonBatchError: no attempt is left, or the same rows can only fail again.
        """
        fault = self._group.sources.fault(error)
        if (outside := self._outside(error, batch.txid)) is not None:
            with suppress(StoreError):  # it may be what fails
                self._tracker.withdraw(batch, reason_of(outside))
            raise outside from error
        seen = self._poison_seen(batch.txid)
        if self._shared.windows is not None:
            # Before it is recorded: a process that dies in between has died in the attempt.
            self._shared.windows.failed(batch)
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
        kept = self._keep(batch, rows, reason, seen, self._plan(batch.txid))
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
        if self._shared.is_taken(txid):
            raise LateWriterError(self._group.name, f"batch {txid}", "another process has taken or finished it")
        return seen

    def _stopped(self, txid: int, tries: int, reason: str, kept: str) -> PoisonBatchError:
        return PoisonBatchError(self._group.topology.name, txid, tries, reason, kept, stream=self._group.name)

    def _outside(self, error: Exception, txid: int) -> TrideltaError | None:
        """Return what an error comes from if not from the batch: a disk, a store, lost rows, a module that a worker lacks."""
        fault = self._group.sources.fault(error)
        outside: TrideltaError | None = lake_fault(error, str(self._group.lake.root), f"batch {txid} was written")
        outside = outside or missing_module(error, self._group.topology.name)
        return outside or (fault if isinstance(fault, LostRowsError) else None)

    def _tell(self, moment: str, txid: int) -> None:
        for listener in self._shared.listeners:
            listener(moment, "", txid)
