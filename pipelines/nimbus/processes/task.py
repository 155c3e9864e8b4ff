"""A task: one streaming query of a deployed flow, in a thread of its worker.

It runs while it is wanted, and drains when it is not: the running batch finishes, Spark's own commit included. A query that
fails is started again, after a pause that doubles. Whoever beats for it reads its figures.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from pipelines import logs
from pipelines.causes import named, shortened
from pipelines.errors import DefinitionError, FreshCheckpointError, StateSchemaError
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.ownership import leased
from pipelines.execution.events.openlineage import STREAMING, LineageRun, lineage_run
from pipelines.nimbus.deployed import DeployedQuery, component_id
from pipelines.nimbus.errors import LeaseHeldError, RegistryError, RegistryLeaseLostError
from pipelines.nimbus.processes.asked import Asked
from pipelines.nimbus.processes.back_off import pause_after
from pipelines.nimbus.processes.starting import (
    LOCK_WAIT_SECONDS,
    Application,
    HeldUpError,
    Starting,
    UnwantedError,
    held_up_by_others,
)
from pipelines.nimbus.registry.leases import Lease
from pipelines.nimbus.status import ASSIGNED, DRAINED, DRAINING, STARTING
from pipelines.nimbus.telemetry.figures import TaskFigures

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from pipelines.execution.batch.group import BatchGroup
    from pipelines.execution.report import BatchReport
    from pipelines.execution.runners.stream import StreamRunner
    from pipelines.nimbus.processes.former import FormerVersion
    from pipelines.nimbus.registry.records import DeployedFlow
    from pipelines.places.location import Place
    from pipelines.trident.topology import TridentTopology


logger = logs.logger(__name__)

LONGEST_BACK_OFF = 60.0
"""Seconds between two starts of a query that fails."""
# A query that has come through for so long has recovered: its next failure is a first one.
_RECOVERED_SECONDS = 120.0
# For so long a start that another process holds up is tried again before it counts as one that fails.
_START_WAIT_SECONDS = 600.0
_POLL_SECONDS = 0.1
# How often a query that runs is asked whether it does: each time is a call to the JVM, and a host may have a hundred queries.
_WATCH_SECONDS = 0.5

Key = tuple[int, int]
"""A flow's serial and a task of it."""

FINAL = (DefinitionError, StateSchemaError, FreshCheckpointError)
"""What waiting does not mend."""


class Task(threading.Thread):
    """One query of a deployed flow.

    Args:
        flow: The flow, as it was deployed when the task came here.
    """

    def __init__(
        self, application: Application, flow: DeployedFlow, query: DeployedQuery, topology: TridentTopology
    ) -> None:
        super().__init__(name=f"{flow.name}/{query.group}", daemon=True)
        self._application, self.flow, self.query = application, flow, query
        settings = flow.settings
        trigger = float(settings.get("trigger_seconds", 5.0))
        self._trigger: float | None = trigger
        sources = [spout.source.inner for spout in topology.spouts]
        self.figures = TaskFigures(query.group, trigger, sources)
        self._on_fresh: str | None = settings.get("on_fresh_checkpoint")
        """What to do with a fresh checkpoint whose start would bring rows again; None: what a change asks for."""
        self._with_siblings = True
        """Whether the flow's other queries start beside it, and make the tables that it reads."""
        self._asked, self._leaving = Asked(), threading.Event()
        self._starting = Starting(application, flow, query, topology, self.figures, self._asked)
        self.lease: Lease | None = None
        self._failures = 0
        self._streaming: StreamingQuery | None = None
        self._running: StreamRunner | None = None
        self._stopping: threading.Thread | None = None
        self._lineage: LineageRun | None = None
        self.lost: RegistryLeaseLostError | None = None
        self.ran = False
        """Whether its query has ever run here."""
        self.revision = 0
        """The version of the assignment that put it here."""
        self.ahead: FormerVersion | None = None
        """The version before, which reads to its end under the lease of this one, which begins behind it."""

    # --- what the worker asks ---------------------------------------------------------------------------------------

    def want(self, wanted: bool) -> None:
        """Run, or drain."""
        self._asked.want(wanted)

    def leave(self) -> None:
        """Drain, give the lease back and end."""
        self._leaving.set()
        self.want(wanted=False)

    @property
    def wanted(self) -> bool:
        """Return whether it is to run: neither to drain nor to leave."""
        return self._asked.wanted.is_set() and not self._leaving.is_set()

    @property
    def left(self) -> bool:
        """Return whether it was told to leave: it may not have come to an end of its own."""
        return self._leaving.is_set()

    def force(self) -> None:
        """Stop in the middle of a batch, or of a start: the time to drain is over. What is not committed comes again.

        Returns at once: where a batch hangs outside Spark, Spark's stop waits for it.
        """
        if self.ahead is not None:
            self.ahead.force()
        self._asked.force()
        running, streaming = self._running, self._streaming
        if running is not None:
            # First: a job that the stop cancels is not to be begun again.
            running.stopping.forced.set()
        if streaming is None or (self._stopping is not None and self._stopping.is_alive()):
            return
        self._stopping = threading.Thread(
            target=self._stop_query, args=(streaming,), name=f"{self.name} stops", daemon=True
        )
        self._stopping.start()

    @property
    def drains(self) -> bool:
        """Return whether it is to drain and has not, be it wanted again meanwhile: in its batch, or in a start that goes on."""
        return self.figures.state == DRAINING or self._asked.drains

    @property
    def stopping_seconds(self) -> float:
        """Return for how long its query has been asked to stop in mid-batch, or its start; 0: it was not, or it has ended."""
        if self.ahead is not None and self.ahead.reads:
            return self.ahead.stopping_seconds
        return self._asked.stopping_seconds

    def _stop_query(self, streaming: StreamingQuery) -> None:
        with structlog.contextvars.bound_contextvars(flow=self.flow.name, group=self.query.group):
            try:
                if streaming.isActive:
                    self._log("forced", "its time to drain is over")
                    streaming.stop()
            except Exception as error:
                # The next look tries again.
                logger.warning("query not stopped", reason=shortened(named(error)))

    def events_wait(self, waiting: Mapping[str, int]) -> None:
        """Tell the flow's history how many events wait in windows of queries that are gone; what it does not take, later.

        Only while this task waits for the version before: then its own thread tells nothing.
        """
        with structlog.contextvars.bound_contextvars(flow=self.flow.name, group=self.query.group):
            for query, count in waiting.items():
                self._starting.windows.events_wait(query, count)
            self._starting.windows.try_to_tell()

    def tells_for(self, former: Task) -> None:
        """Tell the flow's history what a query of the version before, which has ended, has changed and could not tell.

        Only while this task waits for the version before.
        """
        with structlog.contextvars.bound_contextvars(flow=self.flow.name, group=self.query.group):
            self._starting.windows.take_over(former._starting.windows)

    # --- its life ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the query until it leaves. Never raises: failures are in its figures."""
        with structlog.contextvars.bound_contextvars(flow=self.flow.name, group=self.query.group):
            # Where what reads ahead was told to leave, whatever comes here next goes on with that first.
            while not (self._leaving.is_set() or self.lost or (self.ahead and self.ahead.left)):
                try:
                    if self.lease is None:
                        self._take_lease()
                    elif self.ahead is not None and not self.ahead.over:
                        # Nothing has drained while that reads: whoever waits for it would stop it in mid-batch.
                        self.figures.state = STARTING if self.wanted or self.ahead.reads else DRAINED
                        self._leaving.wait(_POLL_SECONDS)
                    elif self._asked.wanted.is_set():
                        self.figures.begins()
                        # The lease says who owns the checkpoint: whichever host had it before.
                        with leased():
                            self._live()
                    else:
                        self.figures.state = DRAINED
                        self._asked.wanted.wait(_POLL_SECONDS)
                except RegistryLeaseLostError as error:
                    self.lost = error
                except Exception as error:
                    self._failed(error)
            while self.ahead is not None and self.ahead.reads and self.lost is None:
                self.figures.state = STARTING
                time.sleep(_POLL_SECONDS)
            self._starting.windows.try_to_tell()
            self._release()

    def _take_lease(self) -> None:
        self.figures.state = ASSIGNED
        name = f"task:{component_id(self.flow.name, self.query.group)}"
        try:
            self.lease = self._application.registry.leases.take(
                name, self._application.holder, self._application.lease_seconds
            )
            self.figures.last_error = None  # that it was held
        except LeaseHeldError as error:
            self.figures.last_error = shortened(named(error))
            self._leaving.wait(1.0)

    def _release(self) -> None:
        lease, self.lease = self.lease, None
        if lease is None or self.lost is not None:
            return
        try:
            self._application.registry.leases.release(lease)
        except RegistryError as error:
            logger.warning("lease not given back", reason=str(error))

    def _live(self) -> None:
        """Run the query once, from its start to its end. A start that another process holds up is tried again.

        Raises:
            LockedError: That has held it up for too long.
        """
        self._starting.keeps_partitions, held_for, told = False, 0.0, False
        while (held := self._held_up()) is not None:
            # Not what it has waited for besides, as for another number of partitions.
            held_for += held.seconds
            if held_for >= _START_WAIT_SECONDS:
                raise held.held
            if not told:
                # Not in its figures: who sees an error there takes the start for one that has failed.
                logger.warning("query waits for another process", reason=str(held))
                told = True
            paused_at = time.monotonic()
            self._starting.pause()
            if not self._asked.wanted.is_set():
                return
            held_for += time.monotonic() - paused_at

    def _held_up(self) -> HeldUpError | None:
        """Run the query once; return what holds up its start, None if it has run, or was not to any more."""
        try:
            with self._asked.begun(), suppress(UnwantedError):
                self._run_once()
        except HeldUpError as error:
            return error
        finally:
            # What a start has changed stays so, whatever has become of it.
            self._starting.windows.try_to_tell()
        return None

    def _run_once(self) -> None:
        self.figures.state = STARTING
        checkpoint = self._starting.checkpoint
        self._starting.wait_for_channels(checkpoint, self._on_fresh)
        if not self._asked.goes_on:
            return
        on_fresh = self._starting.made_ready(checkpoint, self._on_fresh)
        with checkpoint.running(LOCK_WAIT_SECONDS):
            self.figures.stands_at(checkpoint)
            self._starting.repartition(checkpoint, partial(self._finish_batch, checkpoint, on_fresh))
            if not self._asked.goes_on:
                # A batch that was stopped there is not begun again.
                return
            with self._starting.turn():
                group = self._starting.group(checkpoint, wait=self._with_siblings)
            self._starting.wait_for_states(group)
            if not group.ready:
                return
            with self._starting.turn():
                runner = self._runner(checkpoint, group)
            try:
                self._running = runner
                with lineage_run(group, STREAMING) as self._lineage:
                    # Beside other starts: it may have much to read.
                    if not (self._asked.goes_on and runner.read_ahead(self._watch_ahead)):
                        return
                    streaming = self._start_query(runner, on_fresh)
                    if streaming is None:
                        return
                    with self._in_charge(runner, streaming):
                        self.ran = True
                        self._starting.windows.tell()
                        self.figures.window_rows = runner.window_rows
                        self.figures.started(self._failures > 0)
                        self._log("running", None)
                        self._watch(runner, streaming, checkpoint.spark)
            finally:
                self._running = self._lineage = None
        self.figures.state = DRAINED
        self._log("drained", None)

    def _start_query(self, runner: StreamRunner, on_fresh: str) -> StreamingQuery | None:
        """Start it in its turn; None: it was not to run any more when that came."""
        try:
            with (
                suppress(UnwantedError),
                self._starting.turn(),
                self._starting.windows.noting(runner),
                held_up_by_others(),
            ):
                return runner.start(on_fresh=on_fresh, trigger_seconds=self._trigger)
        except HeldUpError:
            if self._lineage is not None:
                # It has not failed, and is tried again as another run.
                self._lineage.tell("ABORT")
            raise
        return None

    def _watch(self, runner: StreamRunner, streaming: StreamingQuery, checkpoint: Place) -> None:
        """Wait until the query has ended, by itself or because it is not wanted."""
        since = time.monotonic()
        while self._asked.runs_on() and self.lost is None and runner.error is None and streaming.isActive:
            self.figures.look(streaming, checkpoint)
            if self._failures and time.monotonic() - since > _RECOVERED_SECONDS:
                self._failures = 0
            self._asked.unwanted.wait(_WATCH_SECONDS)
        # One that fails ends by itself, with its error; a stop would hide that.
        if runner.error is None and streaming.isActive:
            self.figures.state = DRAINING
            runner.drain(streaming)
        runner.finish(streaming)

    def _watch_ahead(self, runner: StreamRunner, streaming: StreamingQuery, checkpoint: Place) -> None:
        """Wait for the end of a query that the own one starts behind; it is drained and stopped as that."""
        with self._in_charge(runner, streaming):
            self._watch(runner, streaming, checkpoint)

    @contextmanager
    def _in_charge(self, runner: StreamRunner, streaming: StreamingQuery) -> Iterator[None]:
        """Have a query that runs. Where its thread fails it ends first: behind this its checkpoint is anybody's."""
        self._streaming = streaming
        try:
            yield
        except BaseException:
            self._end_query(runner, streaming)
            raise
        finally:
            self._streaming = None

    def _end_query(self, runner: StreamRunner, streaming: StreamingQuery) -> None:
        """Drain a query that nobody watches any more, if it has not ended. A stop in mid-batch is one of it, as of any other."""
        while True:
            try:
                if not streaming.isActive:
                    return
                self.figures.state = DRAINING
                runner.drain(streaming)
                runner.finish(streaming)
            except Exception as error:
                # What its thread has failed by is told, and not what comes behind that.
                logger.warning("query of a task that failed ends", reason=shortened(named(error)))
                time.sleep(_WATCH_SECONDS)

    def _finish_batch(self, checkpoint: Checkpoint, on_fresh: str) -> bool:
        """Run the one batch that an earlier life has begun, with the partitions that it was begun with.

        Returns:
            Whether to go on behind it; where it was stopped, or is to end, the next start finishes what is left.
        """
        runner = self._runner(checkpoint, self._starting.group(checkpoint))
        try:
            self._running = runner
            if not (self._asked.goes_on and runner.read_ahead(self._watch_ahead)):
                return False
            with self._starting.windows.noting(runner), held_up_by_others():
                streaming = runner.start(on_fresh=on_fresh, trigger_seconds=None, pending_only=True)
            with self._in_charge(runner, streaming):
                runner.finish(streaming)
        finally:
            self._running = None
        return self._asked.goes_on and not runner.stopping.forced.is_set()

    def _runner(self, checkpoint: Checkpoint, group: BatchGroup) -> StreamRunner:
        assert self.lease is not None
        return self._starting.runner(checkpoint, group, self.lease, self._came_through)

    def _came_through(self, report: BatchReport) -> None:
        self.figures.batch(report)
        if self._running is not None:
            self.figures.window_rows = self._running.window_rows
        if self._lineage is not None:
            self._lineage.wrote(report.commits)
        # In the thread of Spark's callback, which does not know what is bound in this one.
        logger.info(
            "batch finished",
            flow=self.flow.name,
            group=self.query.group,
            txid=report.txid,
            attempt=report.attempt,
            rows=report.received,
            quarantined=report.quarantined,
            seconds=round(report.seconds, 3),
        )

    # --- when it fails ----------------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        if isinstance(error.__cause__, RegistryLeaseLostError):
            self.lost = error.__cause__
            return
        self._failures += 1
        pause = pause_after(self._failures, LONGEST_BACK_OFF)
        logger.error("query failed", reason=str(error), kind=type(error).__name__, again_in_seconds=pause)
        detail = {"group": self.query.group, "reason": named(error), "final": isinstance(error, FINAL)}
        try:
            # Before a beat says so: whoever sees that it has failed finds out here what waiting helps.
            if self._failures == 1:
                self._application.registry.tell(self.flow, "TASK_FAILED", detail)
        except RegistryError as problem:
            logger.warning("failure not reported", reason=str(problem))
        self.figures.failed(named(error))
        if self.lease is None:
            # That is taken for a flow that is inactive or drains, too, and a registry may refuse it at once.
            self._leaving.wait(pause)
            return
        until = time.monotonic() + pause
        while time.monotonic() < until and self._asked.wanted.is_set():
            time.sleep(_POLL_SECONDS)

    def _log(self, what: str, why: str | None) -> None:
        logger.info(f"query {what}", **({"reason": why} if why else {}))
