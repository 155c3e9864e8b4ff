"""A task: one streaming query of a deployed flow, in a thread of its worker.

It runs while it is wanted, and drains when it is not: the running batch finishes, Spark's own commit included. A query that
fails is started again, after a pause that doubles. Whoever beats for it reads its figures.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from pipelines import logs
from pipelines.causes import named, shortened
from pipelines.errors import DefinitionError, FreshCheckpointError, LockedError, StateSchemaError
from pipelines.execution.checkpoint.engine_files import CONTINUE, MARKER, REFUSE, RESET, Checkpoint
from pipelines.execution.checkpoint.ownership import OtherHostError, leased
from pipelines.execution.events.openlineage import STREAMING, LineageRun, lineage_run
from pipelines.execution.protocol.coordinator import AttemptRecord, AttemptStore
from pipelines.nimbus.deployed import DeployedQuery, component_id
from pipelines.nimbus.errors import LeaseHeldError, RegistryError, RegistryLeaseLostError
from pipelines.nimbus.processes.back_off import pause_after
from pipelines.nimbus.registry.leases import Lease, Leases
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.status import ASSIGNED, DRAINED, DRAINING, REPARTITIONING, STARTING
from pipelines.nimbus.telemetry.figures import TaskFigures
from pipelines.state.delta_log import has_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pipelines.execution.batch.group import BatchGroup
    from pipelines.execution.report import BatchReport
    from pipelines.execution.runners.admission import Admission
    from pipelines.execution.runners.stream import StreamRunner
    from pipelines.maintenance.repartition import RepartitionReport
    from pipelines.nimbus.processes.former import FormerVersion
    from pipelines.nimbus.registry.records import DeployedFlow
    from pipelines.nimbus.registry.registry import Registry
    from pipelines.places.location import Place
    from pipelines.trident.topology import TridentTopology


class FencedAttempts:
    """The attempts of a checkpoint that a worker runs under a lease.

    They are in the checkpoint's own file: catch-up runs use it too, while no worker does. Before each record is written, a
    transaction of the registry finds out whose the lease is: a worker that has lost it opens and closes no batch any more.

    Args:
        own: The checkpoint's store.
        store, leases: The registry's database and its leases.
        lease: The writer's lease; its token counts, so it need not be replaced when it is renewed.
    """

    def __init__(self, own: AttemptStore, store: Store, leases: Leases, lease: Lease) -> None:
        self._own, self._store, self._leases, self._lease = own, store, leases, lease

    def get(self, group: str) -> Mapping[int, AttemptRecord]:
        """Return every record of the group, by txid."""
        return self._own.get(group)

    def put(self, group: str, txid: int, record: AttemptRecord) -> None:
        """Write or replace one record."""
        with self._store.write() as connection:
            self._leases.guard(connection, self._lease)
        self._own.put(group, txid, record)

    def forget(self, group: str, before: int) -> None:
        """Remove the records of all txids lower than `before`."""
        self._own.forget(group, before)


logger = logs.logger(__name__)

LONGEST_BACK_OFF = 60.0
"""Seconds between two starts of a query that fails."""
# A query that has come through for so long has recovered: its next failure is a first one.
_RECOVERED_SECONDS = 120.0
# Another run of the flow may hold the checkpoint; the task shows that it waits, and tries again after this.
_LOCK_WAIT_SECONDS = 5.0
# A compaction holds a flow's checkpoints for minutes at most; behind a backfill, which takes hours, the query runs as it is.
_REWRITE_WAIT_SECONDS = 600.0
# For so long a start that another process holds up is tried again before it counts as one that fails.
_START_WAIT_SECONDS = 600.0
# It copies and reads a whole state, and is begun from the start where it is cut off: who has to stop there need not hang.
_REPARTITION_SECONDS = 600.0
# So long a start waits for other starts, and for other processes while other starts wait for it, before it looks around.
_TURN_SECONDS = 1.0
_POLL_SECONDS = 0.1
# Queries that start together wait for each other's tables for a moment; one that waits for longer shows for which.
_QUIET_SECONDS = 30.0
# How often a query that runs is asked whether it does: each time is a call to the JVM, and a host may have a hundred queries.
_WATCH_SECONDS = 0.5

Key = tuple[int, int]
"""A flow's serial and a task of it."""

FINAL = (DefinitionError, StateSchemaError, FreshCheckpointError)
"""What waiting does not mend."""

WINDOWS_EMPTIED, EVENTS_WAIT = "WINDOWS_ANEW", "EVENTS_WAIT"
"""Events of a flow's history that say what a change has made of its windows."""


def emptied_reason(query: str) -> str:
    """Say why windows restart empty."""
    return f"windows of {query} begin empty: their number, or the channels that it reads, have changed"


def waiting_reason(query: str, count: int) -> str:
    """Say that events wait in windows that are gone."""
    return f"{count} event(s) wait for the clock in the windows of {query}, which the flow has no more"


class UnwantedError(Exception):
    """A query that was about to start is not to run any more: no failure."""


class HeldUpError(Exception):
    """A query does not start while another process, as a compaction, has its checkpoint: no failure for as long as that may take.

    Args:
        held: What has it.
        seconds: For how long it was waited for.
    """

    def __init__(self, held: LockedError, seconds: float) -> None:
        self.held, self.seconds = held, seconds
        super().__init__(str(held))


@dataclass(frozen=True)
class Application:
    """The things that the tasks of a worker share.

    Attributes:
        store, registry: The registry.
        holder: Under which the worker takes leases.
        folder: Nimbus' own files.
        preparing: Held by a task while it compiles and starts, so that starts do not slow each other down.
        admission: Of the batches of all of them.
    """

    spark: SparkSession
    store: Store
    registry: Registry
    holder: str
    lease_seconds: float
    folder: Path
    preparing: threading.Lock
    admission: Admission


class Task(threading.Thread):
    """One query of a deployed flow.

    Args:
        flow: The flow, as it was deployed when the task came here.
    """

    _with_siblings = True
    """Whether the flow's other queries start beside it, and make the tables that it reads."""

    def __init__(
        self, application: Application, flow: DeployedFlow, query: DeployedQuery, topology: TridentTopology
    ) -> None:
        super().__init__(name=f"{flow.name}/{query.group}", daemon=True)
        self._application, self.flow, self.query, self._topology = application, flow, query, topology
        definition, settings = flow.version.content.definition, flow.settings
        self._lake_root = str(definition["lake"])
        trigger = float(settings.get("trigger_seconds", 5.0))
        self._trigger: float | None = trigger
        sources = [spout.source.inner for spout in topology.spouts]
        self.figures = TaskFigures(query.group, trigger, sources)
        self.lease: Lease | None = None
        self._wanted, self._unwanted, self._leaving = threading.Event(), threading.Event(), threading.Event()
        self._failures = 0
        self._streaming: StreamingQuery | None = None
        self._running: StreamRunner | None = None
        self._stopping: threading.Thread | None = None
        self._begun, self._forced_at = False, 0.0
        """Whether its query is about to start, or runs; and since when that is to stop in mid-batch (0: it is not)."""
        self._allowed = 0.0
        """So many seconds more it may take to stop there."""
        self._keeps_partitions = False
        """Whether this start, however often it is tried, goes on with the partitions that it has: others were refused."""
        self._untold: list[tuple[str, str]] = []
        """Events of its flow's history that the registry has not taken yet, with their reasons."""
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
        (self._unwanted.clear if wanted else self._unwanted.set)()
        (self._wanted.set if wanted else self._wanted.clear)()

    def leave(self) -> None:
        """Drain, give the lease back and end."""
        self._leaving.set()
        self.want(wanted=False)

    @property
    def wanted(self) -> bool:
        """Return whether it is to run: neither to drain nor to leave."""
        return self._wanted.is_set() and not self._leaving.is_set()

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
        if self._begun and not self._forced_at:
            self._forced_at = time.monotonic()
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
    def stopping_seconds(self) -> float:
        """Return for how long its query has been asked to stop in mid-batch, or its start; 0: it was not, or it has ended."""
        if self.ahead is not None and self.ahead.reads:
            return self.ahead.stopping_seconds
        # In the order against that in which its own thread writes them.
        allowed, since = self._allowed, self._forced_at
        return max(0.0, time.monotonic() - since - allowed) if self._begun and since else 0.0

    def _stop_query(self, streaming: StreamingQuery) -> None:
        with structlog.contextvars.bound_contextvars(flow=self.flow.name, group=self.query.group):
            try:
                if streaming.isActive:
                    self._log("forced", "its time to drain is over")
                    streaming.stop()
            except Exception as error:
                # The next look tries again.
                logger.warning("query not stopped", reason=shortened(named(error)))

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
                    elif self._wanted.is_set():
                        # The lease says who owns the checkpoint: whichever host had it before.
                        with leased():
                            self._live()
                    else:
                        self.figures.state = DRAINED
                        self._wanted.wait(_POLL_SECONDS)
                except RegistryLeaseLostError as error:
                    self.lost = error
                except Exception as error:
                    self._failed(error)
            while self.ahead is not None and self.ahead.reads and self.lost is None:
                self.figures.state = STARTING
                time.sleep(_POLL_SECONDS)
            self._try_to_tell()
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
        self._keeps_partitions, held_for, told = False, 0.0, False
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
            # Whoever waits for the checkpoint, or for a turn, has it meanwhile.
            self._unwanted.wait(_LOCK_WAIT_SECONDS)
            if not self._wanted.is_set():
                return
            held_for += time.monotonic() - paused_at

    def _held_up(self) -> HeldUpError | None:
        """Run the query once; return what holds up its start, None if it has run, or was not to any more."""
        self._forced_at = 0.0
        self._begun = True
        try:
            with suppress(UnwantedError):
                self._run_once()
        except HeldUpError as error:
            return error
        finally:
            # Who reads it beside a start that comes later would take that for one that does not stop.
            self._begun = False
            self._forced_at = 0.0
            # What a start has changed stays so, whatever has become of it.
            self._try_to_tell()
        return None

    @property
    def _goes_on(self) -> bool:
        """Return whether its query is to start, or to run on."""
        return self._wanted.is_set() and not self._forced_at

    def _run_once(self) -> None:
        self.figures.state = STARTING
        checkpoint = Checkpoint(self.flow.name, self._lake.checkpoint_path(self.flow.name, self.query.group))
        self._wait_for_channels(checkpoint)
        if not self._goes_on:
            return
        on_fresh = self._made_ready(checkpoint)
        with checkpoint.running(_LOCK_WAIT_SECONDS):
            self.figures.stands_at(checkpoint)
            self._repartition(checkpoint, on_fresh)
            if not self._goes_on:
                # A batch that was stopped there is not begun again.
                return
            with self._preparing():
                group = self._group(checkpoint, wait=self._with_siblings)
            self._wait_for_states(group)
            if not group.ready:
                return
            with self._preparing():
                runner = self._runner(checkpoint, group)
            try:
                self._running = runner
                with lineage_run(group, STREAMING) as self._lineage:
                    # Beside other starts: it may have much to read.
                    if not (self._goes_on and runner.read_ahead(self._watch_ahead)):
                        return
                    streaming = self._start_query(runner, on_fresh)
                    if streaming is None:
                        return
                    with self._in_charge(runner, streaming):
                        self.ran = True
                        self._tell_changes()
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
            with suppress(UnwantedError), self._preparing(), self._noting_changes(runner), self._held_up_by_others():
                return runner.start(on_fresh=on_fresh, trigger_seconds=self._trigger)
        except HeldUpError:
            if self._lineage is not None:
                # It has not failed, and is tried again as another run.
                self._lineage.tell("ABORT")
            raise
        return None

    @contextmanager
    def _held_up_by_others(self) -> Iterator[None]:
        """Tell a start that another process of this host holds up from one that fails.

        Raises:
            HeldUpError
        """
        since = time.monotonic()
        try:
            yield
        except OtherHostError:
            # That one says so for good.
            raise
        except LockedError as error:
            raise HeldUpError(error, time.monotonic() - since) from error

    def _watch(self, runner: StreamRunner, streaming: StreamingQuery, checkpoint: Place) -> None:
        """Wait until the query has ended, by itself or because it is not wanted."""
        since = time.monotonic()
        while self._goes_on and self.lost is None and runner.error is None and streaming.isActive:
            self.figures.look(streaming, checkpoint)
            if self._failures and time.monotonic() - since > _RECOVERED_SECONDS:
                self._failures = 0
            self._unwanted.wait(_WATCH_SECONDS)
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

    # --- before it starts -------------------------------------------------------------------------------------------

    @property
    def _lake(self) -> Any:
        from pipelines.state.lake import Lake

        return Lake(self._lake_root)

    @property
    def _copies(self) -> Place:
        """Return where copies of checkpoints are."""
        return self._lake.root / "copies"

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        """Keep other starts apart from this one, which may have to wait for them.

        Raises:
            UnwantedError: It is not to run any more: it need not wait for one that hangs.
        """
        preparing, held = self._application.preparing, False
        while self._goes_on and not held:
            held = preparing.acquire(timeout=_TURN_SECONDS)
        if not held:
            raise UnwantedError
        try:
            yield
        finally:
            preparing.release()

    @contextmanager
    def _longer(self) -> Iterator[None]:
        """Have longer to stop than a start has. What comes behind it begins to count there."""
        self._allowed = _REPARTITION_SECONDS
        try:
            yield
        finally:
            if self._forced_at:
                self._forced_at = time.monotonic()
            self._allowed = 0.0

    def _made_ready(self, checkpoint: Checkpoint) -> str:
        """Fit the checkpoint to the definition. Returns what to do with a fresh one."""
        from pipelines.execution.checkpoint.changeover import Changeover
        from pipelines.maintenance.repartition import recover

        with checkpoint.running(_LOCK_WAIT_SECONDS):
            half_made = (checkpoint.folder / MARKER).exists()
            # A roll-back copies a whole state; a look for one is not to take longer than any other.
            with self._longer() if half_made else nullcontext():
                recover(checkpoint, self._copies)
        with self._preparing():
            changeover = Changeover(self._lake, self._topology)
            changeover.check()
            on_fresh, emptied = changeover.make(_LOCK_WAIT_SECONDS, only=self.query.group)
        if emptied:
            self._windows_emptied(emptied_reason(self.query.group))
            self._try_to_tell()
        return on_fresh if on_fresh == CONTINUE else self._on_fresh(on_fresh)

    def _on_fresh(self, otherwise: str) -> str:
        """Return what to do with a fresh checkpoint whose start would bring rows again."""
        return str(self.flow.settings.get("on_fresh_checkpoint", otherwise))

    @contextmanager
    def _noting_changes(self, runner: StreamRunner) -> Iterator[None]:
        """Note what a start makes of windows in the batch whose definition has changed, also where it comes to nothing.

        The next one finds them changed, and has nothing to report.
        """
        try:
            yield
        finally:
            if runner.emptied_windows:
                self._windows_emptied(f"windows of {self.query.group} begin empty: {', '.join(runner.emptied_windows)}")
            if runner.events_wait:
                reason = waiting_reason(self.query.group, runner.events_wait)
                logger.warning("events wait", reason=reason)
                self._untold.append((EVENTS_WAIT, reason))

    def _windows_emptied(self, reason: str) -> None:
        self._log("windows begin empty", reason)
        self._untold.append((WINDOWS_EMPTIED, reason))

    def _tell_changes(self) -> None:
        """Tell the flow's history what changed definitions have made of windows.

        Raises:
            RegistryError: It does not take it; what it has not taken is told later.
        """
        while self._untold:
            event, reason = self._untold[0]
            self._application.registry.tell(self.flow, event, {"reason": reason})
            del self._untold[0]

    def _try_to_tell(self) -> None:
        try:
            self._tell_changes()
        except RegistryError as error:
            logger.warning("change of windows not reported yet", reason=str(error))

    def _repartition(self, checkpoint: Checkpoint, on_fresh: str) -> None:
        """Change the number of partitions, if the flow's parallelism asks for another than the checkpoint has."""
        from pipelines.maintenance.repartition import RepartitionRefusedError, UnfinishedBatchError, partitions_of

        wanted, present = self.query.partitions, partitions_of(checkpoint)
        if wanted is None or wanted == present or self._keeps_partitions:
            return
        if not checkpoint.has_state:
            checkpoint.set_partitions(wanted)
            return
        self.figures.state = REPARTITIONING
        self._log("repartitioning", f"from {present} to {wanted} partitions")
        try:
            try:
                report = self._dealt_out(checkpoint, wanted)
            except UnfinishedBatchError:
                if not self._finish_batch(checkpoint, on_fresh):
                    return
                report = self._dealt_out(checkpoint, wanted)
        except RepartitionRefusedError as error:
            # It runs as it is: a number that cannot be, or not for hours, is no reason to stand still.
            self._keeps_partitions = True
            self._application.registry.tell(self.flow, "REPARTITION_REFUSED", {"reason": named(error)})
            logger.error("query not repartitioned", reason=str(error))
            self.figures.state = STARTING
            return
        self._application.registry.tell(self.flow, "REPARTITION", {"group": self.query.group} | report.to_json())
        self.figures.state = STARTING

    def _dealt_out(self, checkpoint: Checkpoint, partitions: int) -> RepartitionReport:
        """Deal its state out again; beside a compaction, once that has ended. Other starts do not wait for that.

        Raises:
            RepartitionRefusedError: It does not end.
        """
        from pipelines.maintenance.repartition import RepartitionRefusedError, repartition

        until = time.monotonic() + _REWRITE_WAIT_SECONDS
        with self._tells_why_it_waits():
            while True:
                try:
                    with self._preparing(), self._longer():
                        spark, copies = self._application.spark, self._copies
                        return repartition(spark, checkpoint, partitions, copies=copies, wait_seconds=_TURN_SECONDS)
                except LockedError as error:
                    if time.monotonic() >= until:
                        problem = (
                            f"a backfill or a compaction of the flow has not ended for {_REWRITE_WAIT_SECONDS:g} s"
                        )
                        hint = "its next start tries it again"
                        raise RepartitionRefusedError(
                            self.flow.name, self.query.group, partitions, problem, hint
                        ) from error
                    self.figures.last_error = shortened(named(error))
                self._unwanted.wait(_LOCK_WAIT_SECONDS)
                if not self._goes_on:
                    raise UnwantedError

    @contextmanager
    def _tells_why_it_waits(self) -> Iterator[None]:
        """Let figures say for whom a start waits. However that ends, they say the last failure again, or none."""
        before = self.figures.last_error
        try:
            yield
        finally:
            self.figures.last_error = before

    def _finish_batch(self, checkpoint: Checkpoint, on_fresh: str) -> bool:
        """Run the one batch that an earlier life has begun, with the partitions that it was begun with.

        Returns:
            Whether to go on behind it; where it was stopped, or is to end, the next start finishes what is left.
        """
        runner = self._runner(checkpoint, self._group(checkpoint))
        try:
            self._running = runner
            if not (self._goes_on and runner.read_ahead(self._watch_ahead)):
                return False
            with self._noting_changes(runner), self._held_up_by_others():
                streaming = runner.start(on_fresh=on_fresh, trigger_seconds=None, pending_only=True)
            with self._in_charge(runner, streaming):
                runner.finish(streaming)
        finally:
            self._running = None
        return self._goes_on and not runner.stopping.forced.is_set()

    def _wait_for_channels(self, checkpoint: Checkpoint) -> None:
        """Wait for the channels that the query reads: other queries make them when they start for the first time.

        Where it starts over it waits for these queries, too: they do not start over behind one that has begun.
        """
        from pipelines.graph import nodes

        reads = [spout for spout in self._spouts if isinstance(spout, nodes.ChannelSpoutNode)]
        tables = [self._lake.channel_path(name) for spout in reads for name in spout.reads]
        restarts = self._on_fresh(REFUSE) == RESET and checkpoint.epoch is None
        writers = [Checkpoint(self.flow.name, checkpoint.folder.parent / group) for group in self.query.inputs]
        while self._goes_on and not (
            all(map(has_log, tables)) and (not restarts or all(writer.epoch for writer in writers))
        ):
            time.sleep(_POLL_SECONDS)

    def _wait_for_states(self, group: BatchGroup) -> None:
        """Wait for the tables that the group's plans read: other queries make them when they start for the first time.

        Those that wait for each other fail, and say so.
        """
        since = time.monotonic()
        awaited, in_vain = tuple[str, ...](), False
        with self._tells_why_it_waits():
            while self._goes_on and not group.ready:
                if group.awaited != awaited:
                    awaited, in_vain = group.awaited, group.waits_in_vain
                time.sleep(_POLL_SECONDS)
                with self._preparing():
                    group.prepare(wait=not in_vain)
                if time.monotonic() - since > _QUIET_SECONDS:
                    self.figures.last_error = f"waits for the tables of {', '.join(group.awaited)}"

    @property
    def _spouts(self) -> tuple[Any, ...]:
        from pipelines.execution.protocol.groups import group_name, spout_groups

        return next(spouts for spouts in spout_groups(self._topology) if group_name(spouts) == self.query.group)

    def _group(self, checkpoint: Checkpoint, *, wait: bool = False) -> BatchGroup:
        from pipelines.execution.batch.group import BatchGroup
        from pipelines.execution.runners.sessions import check_places, own_session

        spark = self._application.spark
        # Batches of several queries share the cores evenly: each thread's jobs go into a pool of their own.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
        session = own_session(spark, checkpoint.partitions)
        check_places(session, self._lake, self._topology)
        return BatchGroup(session, self._lake, self._topology, self._spouts, wait=wait)

    def _runner(self, checkpoint: Checkpoint, group: BatchGroup) -> StreamRunner:
        from pipelines.execution.runners.stream import StreamOptions, StreamRunner

        assert self.lease is not None
        store, leases, lease = self._application.store, self._application.registry.leases, self.lease
        options = StreamOptions(
            listeners=(partial(self._guard, lease),),
            max_attempts=int(self.flow.settings.get("max_attempts", 3)),
            lock_wait_seconds=600.0,
            # Of the start, for which others wait: it is tried again, beside theirs.
            start_wait_seconds=_LOCK_WAIT_SECONDS,
            on_batch=self._came_through,
            admission=self._application.admission,
            attempts=lambda own: FencedAttempts(own, store, leases, lease),
            version=f"{self.flow.id}/{self.flow.version.number}",
        )
        return StreamRunner(group, checkpoint, options)

    def _guard(self, lease: Lease, moment: str, state: str, txid: int) -> None:
        """Check before each commit that the query is still ours: a worker that was frozen finds out here at the latest.

        Args:
            lease: Under which it has begun, also where the task has given that back.
        """
        if moment == "committing":
            self._application.registry.leases.check(lease)

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
        while time.monotonic() < until and self._wanted.is_set():
            time.sleep(_POLL_SECONDS)

    def _log(self, what: str, why: str | None) -> None:
        logger.info(f"query {what}", **({"reason": why} if why else {}))
