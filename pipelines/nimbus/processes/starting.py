"""The start of a query of a deployed flow: what it waits for, beside other starts, and makes ready.

It ends where a runner stands that can be started; whoever starts it watches it, too (`task`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import logs
from pipelines.causes import named, shortened
from pipelines.errors import LockedError
from pipelines.execution.checkpoint.engine_files import CONTINUE, MARKER, RESET, Checkpoint
from pipelines.execution.checkpoint.ownership import OtherHostError
from pipelines.execution.protocol.coordinator import AttemptRecord, AttemptStore
from pipelines.nimbus.deployed import DeployedQuery
from pipelines.nimbus.processes.asked import Asked
from pipelines.nimbus.processes.windows_history import WindowsHistory, emptied_reason
from pipelines.nimbus.registry.leases import Lease, Leases
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.status import REPARTITIONING, STARTING
from pipelines.nimbus.telemetry.figures import TaskFigures
from pipelines.state.delta_log import has_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.execution.batch.group import BatchGroup
    from pipelines.execution.report import BatchReport
    from pipelines.execution.runners.admission import Admission
    from pipelines.execution.runners.stream import StreamRunner
    from pipelines.maintenance.repartition import RepartitionReport
    from pipelines.nimbus.registry.records import DeployedFlow
    from pipelines.nimbus.registry.registry import Registry
    from pipelines.places.location import Place
    from pipelines.trident.topology import TridentTopology

logger = logs.logger(__name__)

# Another run of the flow may hold the checkpoint; the task shows that it waits, and tries again after this.
LOCK_WAIT_SECONDS = 5.0
# A compaction holds a flow's checkpoints for minutes at most; behind a backfill, which takes hours, the query runs as it is.
_REWRITE_WAIT_SECONDS = 600.0
# It copies and reads a whole state, and is begun from the start where it is cut off: who has to stop there need not hang.
_REPARTITION_SECONDS = 600.0
# So long a start waits for other starts, and for other processes while other starts wait for it, before it looks around.
_TURN_SECONDS = 1.0
# Queries that start together wait for each other's tables for a moment; one that waits for longer shows for which.
_QUIET_SECONDS = 30.0
_POLL_SECONDS = 0.1


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


class Starting:
    """The starts of a query of a deployed flow: each waits for what others make, and makes its checkpoint ready.

    Args:
        figures: Of its task; they say for whom a start waits.
        asked: By its worker.

    Attributes:
        windows: What starts make of its windows.
        keeps_partitions: Whether this start, however often it is tried, goes on with the partitions that it has: others were
            refused.
    """

    def __init__(
        self,
        application: Application,
        flow: DeployedFlow,
        query: DeployedQuery,
        topology: TridentTopology,
        figures: TaskFigures,
        asked: Asked,
    ) -> None:
        self._application, self._flow, self._query, self._topology = application, flow, query, topology
        self._figures, self._asked = figures, asked
        self.windows = WindowsHistory(application, flow, query.group)
        self.keeps_partitions = False

    @property
    def _lake(self) -> Any:
        from pipelines.state.lake import Lake

        return Lake(str(self._flow.version.content.definition["lake"]))

    @property
    def _copies(self) -> Place:
        """Return where copies of checkpoints are."""
        return self._lake.root / "copies"

    @property
    def checkpoint(self) -> Checkpoint:
        """Return the query's checkpoint."""
        return Checkpoint(self._flow.name, self._lake.checkpoint_path(self._flow.name, self._query.group))

    def pause(self) -> None:
        """Wait before another try, unless it is not to run any more.

        Whoever waits for the checkpoint, or for a turn, has it meanwhile.
        """
        self._asked.unwanted.wait(LOCK_WAIT_SECONDS)

    # --- what it waits for, and makes ready -------------------------------------------------------------------------

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep other starts apart from this one, which may have to wait for them.

        Raises:
            UnwantedError: It is not to run any more: it need not wait for one that hangs.
        """
        preparing, held = self._application.preparing, False
        while self._asked.goes_on and not held:
            held = preparing.acquire(timeout=_TURN_SECONDS)
        if not held:
            raise UnwantedError
        try:
            yield
        finally:
            preparing.release()

    def made_ready(self, checkpoint: Checkpoint, on_fresh: str | None) -> str:
        """Fit the checkpoint to the definition. Returns what to do with a fresh one.

        Args:
            on_fresh: What to do with one whose start would bring rows again; None: what the change of the definition asks for.
        """
        from pipelines.execution.checkpoint.changeover import Changeover
        from pipelines.maintenance.repartition import recover

        with checkpoint.running(LOCK_WAIT_SECONDS):
            half_made = (checkpoint.folder / MARKER).exists()
            # A roll-back copies a whole state; a look for one is not to take longer than any other.
            with self._asked.longer(_REPARTITION_SECONDS) if half_made else nullcontext():
                recover(checkpoint, self._copies)
        with self.turn():
            changeover = Changeover(self._lake, self._topology)
            changeover.check()
            asked_for, emptied = changeover.make(LOCK_WAIT_SECONDS, only=self._query.group)
        if emptied:
            self.windows.emptied(emptied_reason(self._query.group))
            self.windows.try_to_tell()
        return asked_for if asked_for == CONTINUE else on_fresh or asked_for

    def repartition(self, checkpoint: Checkpoint, finish_batch: Callable[[], bool]) -> None:
        """Change the number of partitions, if the flow's parallelism asks for another than the checkpoint has.

        Args:
            finish_batch: Runs the one batch that an earlier life has begun; returns whether to go on behind it.
        """
        from pipelines.maintenance.repartition import RepartitionRefusedError, UnfinishedBatchError, partitions_of

        wanted, present = self._query.partitions, partitions_of(checkpoint)
        if wanted is None or wanted == present or self.keeps_partitions:
            return
        if not checkpoint.has_state:
            checkpoint.set_partitions(wanted)
            return
        self._figures.state = REPARTITIONING
        logger.info("query repartitioning", reason=f"from {present} to {wanted} partitions")
        try:
            try:
                report = self._dealt_out(checkpoint, wanted)
            except UnfinishedBatchError:
                if not finish_batch():
                    return
                report = self._dealt_out(checkpoint, wanted)
        except RepartitionRefusedError as error:
            # It runs as it is: a number that cannot be, or not for hours, is no reason to stand still.
            self.keeps_partitions = True
            self._application.registry.tell(self._flow, "REPARTITION_REFUSED", {"reason": named(error)})
            logger.error("query not repartitioned", reason=str(error))
            self._figures.state = STARTING
            return
        self._application.registry.tell(self._flow, "REPARTITION", {"group": self._query.group} | report.to_json())
        self._figures.state = STARTING

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
                    with self.turn(), self._asked.longer(_REPARTITION_SECONDS):
                        spark, copies = self._application.spark, self._copies
                        return repartition(spark, checkpoint, partitions, copies=copies, wait_seconds=_TURN_SECONDS)
                except LockedError as error:
                    if time.monotonic() >= until:
                        problem = (
                            f"a backfill or a compaction of the flow has not ended for {_REWRITE_WAIT_SECONDS:g} s"
                        )
                        hint = "its next start tries it again"
                        raise RepartitionRefusedError(
                            self._flow.name, self._query.group, partitions, problem, hint
                        ) from error
                    self._figures.last_error = shortened(named(error))
                self.pause()
                if not self._asked.goes_on:
                    raise UnwantedError

    @contextmanager
    def _tells_why_it_waits(self) -> Iterator[None]:
        """Let figures say for whom a start waits. However that ends, they say the last failure again, or none."""
        before = self._figures.last_error
        try:
            yield
        finally:
            self._figures.last_error = before

    def wait_for_channels(self, checkpoint: Checkpoint, on_fresh: str | None) -> None:
        """Wait for the channels that the query reads: other queries make them when they start for the first time.

        Where it starts over it waits for these queries, too: they do not start over behind one that has begun.

        Args:
            on_fresh: As of `made_ready`.
        """
        from pipelines.graph import nodes

        reads = [spout for spout in self._spouts if isinstance(spout, nodes.ChannelSpoutNode)]
        tables = [self._lake.channel_path(name) for spout in reads for name in spout.reads]
        restarts = on_fresh == RESET and checkpoint.epoch is None
        writers = [Checkpoint(self._flow.name, checkpoint.folder.parent / group) for group in self._query.inputs]
        while self._asked.goes_on and not (
            all(map(has_log, tables)) and (not restarts or all(writer.epoch for writer in writers))
        ):
            time.sleep(_POLL_SECONDS)

    def wait_for_states(self, group: BatchGroup) -> None:
        """Wait for the tables that the group's plans read: other queries make them when they start for the first time.

        Those that wait for each other fail, and say so.
        """
        since = time.monotonic()
        awaited, in_vain = tuple[str, ...](), False
        with self._tells_why_it_waits():
            while self._asked.goes_on and not group.ready:
                if group.awaited != awaited:
                    awaited, in_vain = group.awaited, group.waits_in_vain
                time.sleep(_POLL_SECONDS)
                with self.turn():
                    group.prepare(wait=not in_vain)
                if time.monotonic() - since > _QUIET_SECONDS:
                    self._figures.last_error = f"waits for the tables of {', '.join(group.awaited)}"

    @property
    def _spouts(self) -> tuple[Any, ...]:
        from pipelines.execution.protocol.groups import group_name, spout_groups

        return next(spouts for spouts in spout_groups(self._topology) if group_name(spouts) == self._query.group)

    # --- the query ---------------------------------------------------------------------------------------------------

    def group(self, checkpoint: Checkpoint, *, wait: bool = False) -> BatchGroup:
        """Compile the query's batch group.

        Args:
            wait: Whether other queries are to make the tables that its plans read.
        """
        from pipelines.execution.batch.group import BatchGroup
        from pipelines.execution.runners.sessions import check_places, own_session

        spark = self._application.spark
        # Batches of several queries share the cores evenly: each thread's jobs go into a pool of their own.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"{self._flow.name}/{self._query.group}")
        session = own_session(spark, checkpoint.partitions)
        check_places(session, self._lake, self._topology)
        return BatchGroup(session, self._lake, self._topology, self._spouts, wait=wait)

    def runner(
        self, checkpoint: Checkpoint, group: BatchGroup, lease: Lease, on_batch: Callable[[BatchReport], None]
    ) -> StreamRunner:
        """Return what runs the query under its task's lease.

        Args:
            on_batch: Gets the report of each batch that has come through.
        """
        from pipelines.execution.runners.stream import StreamOptions, StreamRunner

        store, leases = self._application.store, self._application.registry.leases
        options = StreamOptions(
            listeners=(partial(self._guard, lease),),
            max_attempts=int(self._flow.settings.get("max_attempts", 3)),
            lock_wait_seconds=600.0,
            # Of the start, for which others wait: it is tried again, beside theirs.
            start_wait_seconds=LOCK_WAIT_SECONDS,
            on_batch=on_batch,
            admission=self._application.admission,
            attempts=lambda own: FencedAttempts(own, store, leases, lease),
            version=f"{self._flow.id}/{self._flow.version.number}",
        )
        return StreamRunner(group, checkpoint, options)

    def _guard(self, lease: Lease, moment: str, state: str, txid: int) -> None:
        """Check before each commit that the query is still ours: a worker that was frozen finds out here at the latest.

        Args:
            lease: Under which it has begun, also where the task has given that back.
        """
        if moment == "committing":
            self._application.registry.leases.check(lease)


@contextmanager
def held_up_by_others() -> Iterator[None]:
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
