"""Runtime: runs topologies. The one door of the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pipelines.bounds import (
    ATTEMPTS,
    CHANGED_WINDOWS,
    ON_FRESH,
    ROWS,
    SECONDS_APART,
    WAIT_SECONDS,
    required,
    required_choice,
)
from pipelines.errors import BoundedBesideStreamError, DefinitionError
from pipelines.execution.batch.group import BatchGroup, groups_of
from pipelines.execution.checkpoint.copy import recover
from pipelines.execution.checkpoint.engine_files import BEGIN, REFUSE, Checkpoint
from pipelines.execution.events.hooks import Hook, Listener
from pipelines.execution.events.openlineage import BATCH, STREAMING, LineageRun, lineage_run
from pipelines.execution.report import BackfillReport, BatchReport, RunReport, SliceReport
from pipelines.execution.runners.bounded import BoundedRunner, check_sliced
from pipelines.execution.runners.bounded_inputs import bounded_folder
from pipelines.execution.runners.queries import Answer, QueryRunner
from pipelines.execution.runners.sessions import Partitions, asked_for, check_places, check_session, own_session
from pipelines.execution.runners.stream import StreamOptions, StreamRunner
from pipelines.flowmix.compile import as_topology
from pipelines.places.location import Location
from pipelines.state.lake import Lake
from pipelines.state.schema import UNSLICED
from pipelines.trident.topology import TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pipelines.execution.replays.report import LotReport, ReplayReport
    from pipelines.execution.replays.selection import Selection
    from pipelines.flowmix.flow import Flow

_Report = TypeVar("_Report", BatchReport, SliceReport)


class Runtime:
    """Runs topologies and event flows on a Spark session, into a lake.

    Args:
        spark: a classic session (`pipelines.spark_session()`).
        lake: where tables and checkpoints are.
        listeners: called around each commit (see `Listener`).
        hooks: called per batch and stage with what was emitted, received, committed, and what failed (see `Hook`).
        max_attempts: attempts per batch before it is poison and the flow stops.
        lock_wait_seconds: how long to wait for another process that runs the same flow.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        *,
        listeners: Sequence[Listener] = (),
        hooks: Sequence[Hook] = (),
        max_attempts: int = 3,
        lock_wait_seconds: float = 30.0,
    ) -> None:
        required("max_attempts", ATTEMPTS, max_attempts)
        required("lock_wait_seconds", WAIT_SECONDS, lock_wait_seconds)
        self.spark, self.lake = spark, lake
        self._listeners, self._max_attempts, self._wait = tuple(listeners), max_attempts, lock_wait_seconds
        self._hooks = tuple(hooks)

    # --- streams ----------------------------------------------------------------------------------------------------

    def catch_up(
        self,
        topology: TridentTopology | Flow,
        *,
        on_fresh_checkpoint: str = REFUSE,
        changed_windows: str = REFUSE,
        max_batches: int | None = None,
        partitions: Partitions = None,
        progress: Callable[[BatchReport], None] | None = None,
    ) -> RunReport:
        """Run all that the sources hold now, in batches, then stop. What an earlier run has done is not done again.

        Args:
            topology: the flow.
            on_fresh_checkpoint: what to do if the checkpoint is fresh and the tables are not: `refuse`, `continue`, `reset`.
            changed_windows: what to do with windows in the batch whose operation or key is another than that of their state:
                `refuse`; or `begin`: they begin empty where the query stands, the others keep what they hold.
            max_batches: stop after so many batches per batch group.
            partitions: shuffle partitions per batch group, by its name, or of all. They count from this run on. Windows keep
                those that they have (`pipelines.maintenance.repartition` changes them). None: as before, else the session's.
            progress: called with each batch's report.

        Raises:
            TrideltaError: one of its subclasses says what stopped the run.
        """
        topology = as_topology(topology)
        required_choice("on_fresh_checkpoint", ON_FRESH, on_fresh_checkpoint)
        required_choice("changed_windows", CHANGED_WINDOWS, changed_windows)
        required("max_batches", ROWS, max_batches)
        check_places(self.spark, self.lake, topology)
        started = time.monotonic()
        batches: list[BatchReport] = []
        for group, number in self._groups_and_partitions(topology, partitions):
            checkpoint = self._checkpoint(group)
            with checkpoint.running(self._wait), lineage_run(group, BATCH) as run:
                self._ready(group, checkpoint, number)
                runner = self._runner(
                    group, checkpoint, _and_lineage(progress, run), changed_windows=changed_windows == BEGIN
                )
                query = runner.start(on_fresh=on_fresh_checkpoint, trigger_seconds=None, max_batches=max_batches)
                runner.finish(query)
            batches += runner.reports
        return RunReport(topology.name, tuple(batches), time.monotonic() - started)

    def stream(
        self,
        topology: TridentTopology | Flow,
        *,
        trigger_seconds: float = 1.0,
        on_fresh_checkpoint: str = REFUSE,
        changed_windows: str = REFUSE,
        partitions: Partitions = None,
        progress: Callable[[BatchReport], None] | None = None,
    ) -> RunningFlow:
        """Start the flow's streams and return; `stop()` of the handle drains them.

        Args:
            trigger_seconds: a batch begins that often at most.
            on_fresh_checkpoint, changed_windows, partitions: as of `catch_up`.
        """
        topology = as_topology(topology)
        required_choice("on_fresh_checkpoint", ON_FRESH, on_fresh_checkpoint)
        required_choice("changed_windows", CHANGED_WINDOWS, changed_windows)
        required("trigger_seconds", SECONDS_APART, trigger_seconds)
        check_places(self.spark, self.lake, topology)
        parts: list[_StreamPart] = []
        try:
            for group, number in self._groups_and_partitions(topology, partitions):
                choices = on_fresh_checkpoint, changed_windows == BEGIN
                parts.append(self._started(group, trigger_seconds, *choices, number, progress))
        except BaseException:
            RunningFlow(topology.name, parts).stop()
            raise
        return RunningFlow(topology.name, parts)

    def _started(
        self,
        group: BatchGroup,
        seconds: float,
        on_fresh: str,
        changed_windows: bool,
        partitions: int | None,
        progress: Callable[[BatchReport], None] | None,
    ) -> _StreamPart:
        checkpoint = self._checkpoint(group)
        with ExitStack() as held:
            held.enter_context(checkpoint.running(self._wait))
            run = held.enter_context(lineage_run(group, STREAMING))
            self._ready(group, checkpoint, partitions)
            runner = self._runner(group, checkpoint, _and_lineage(progress, run), changed_windows=changed_windows)
            query = runner.start(on_fresh=on_fresh, trigger_seconds=seconds)
            lock = held.pop_all()
        return _StreamPart(runner, query, lock)

    def skip(self, topology: TridentTopology | Flow, txid: int, *, stream: str | None = None) -> None:
        """Leave a poison batch out: its rows stay in quarantine, the flow goes on behind it.

        Args:
            stream: a stream of the batch group, where several stand at that txid.

        Raises:
            NoPoisonBatchError: if that txid is not a poison batch.
            SeveralPoisonBatchesError: if it is one of several groups, and no stream was given.
        """
        from pipelines.execution.batch.poison import skip

        skip(self.lake, as_topology(topology), txid, stream=stream, lock_wait_seconds=self._wait)

    # --- bounded input ----------------------------------------------------------------------------------------------

    def backfill(
        self,
        topology: TridentTopology | Flow,
        slices: Sequence[str],
        *,
        stream: str | None = None,
        progress: Callable[[SliceReport], None] | None = None,
    ) -> BackfillReport:
        """Replace exactly these slices, each in one commit per state; safe beside a running stream.

        Args:
            topology: a flow whose streams name `slice_by`.
            slices: values of that column, as text (dates as `2013-01-31`).
            stream: only the states of this stream; None: of all.
            progress: called with each slice's report.

        Raises:
            TrideltaError: the flow is not sliced, or its source cannot be read. A slice that a gate refuses does not
                raise: its report carries the error.
        """
        topology = as_topology(topology)
        check_places(self.spark, self.lake, topology)
        groups = self._groups(topology)
        if stream is not None:
            groups = [group for group in groups if any(spout.stream == stream for spout in group.spouts)]
        for group in groups:
            check_sliced(group)
        reports = [self._bounded(group, slices, progress) for group in groups]
        return _merged(topology.name, slices, reports)

    def run_bounded(self, topology: TridentTopology | Flow) -> BackfillReport:
        """Replace the whole of each state of an unsliced flow by what its sources hold now, as one bounded batch.

        Channels between the flow's queries are the run's own, so they are not mixed up with those of its stream.

        Raises:
            BoundedBesideStreamError: a flow with channels or windows whose stream has committed batches.
        """
        topology = as_topology(topology)
        check_places(self.spark, self.lake, topology)
        with bounded_folder(self.lake.root, topology.name) as channels:
            groups = self._groups(topology, self.lake.with_channels(channels))
            if any(group.sources.channels or group.windows for group in groups):
                _refuse_beside_stream(topology, groups)
            reports = [self._bounded(group, [UNSLICED], None) for group in groups]
        return _merged(topology.name, [UNSLICED], reports)

    def _bounded(
        self, group: BatchGroup, slices: Sequence[str], progress: Callable[[SliceReport], None] | None
    ) -> BackfillReport:
        with lineage_run(group, BATCH, slices) as run:
            runner = BoundedRunner(
                group, self._checkpoint(group), listeners=self._listeners, on_slice=_and_lineage(progress, run)
            )
            return runner.run(slices)

    def replay_quarantine(
        self,
        topology: TridentTopology | Flow,
        selection: Selection | None = None,
        *,
        progress: Callable[[LotReport], None] | None = None,
    ) -> ReplayReport:
        """Run quarantined rows through the flow again, as it is now, where they were refused; safe beside its stream.

        Rows that pass now land in the states, once, however often this is called or cut off, and leave quarantine; those
        that do not stay there with their new reason. What was replayed when is kept beside the quarantine.

        Args:
            selection: which rows; None: all.
            progress: called with the report of each place where rows enter.

        Raises:
            UnknownStateError: the flow has not run yet.
            ReplayError: none of the rows can be replayed without counting something twice, or losing it.
        """
        from pipelines.execution.replays.runner import Replayer
        from pipelines.execution.replays.selection import Selection

        wait, topology = max(self._wait, 600.0), as_topology(topology)
        check_places(self.spark, self.lake, topology)
        replayer = Replayer(
            self.spark,
            self.lake,
            topology,
            listeners=self._listeners,
            lock_wait_seconds=wait,
            progress=progress,
        )
        return replayer.run(selection or Selection())

    # --- queries ----------------------------------------------------------------------------------------------------

    def query(
        self, topology: TridentTopology | Flow, name: str, args: Sequence[Sequence[Any]], *, txid: int | None = None
    ) -> list[dict[str, Any]]:
        """Run a query stream over some argument tuples, as one batch of its own (the DRPC use).

        Args:
            topology: the flow that defines the query.
            name: the query stream's name.
            args: one tuple per row, in the order of the query's schema.
            txid: read the states that one batch group of the flow writes as of this txid, and others as they are now.

        Returns:
            The rows of the stream's last operation, as dicts.

        Raises:
            UnknownQueryError, UnknownStateError, ReadPointError
            ArgumentsError: the arguments do not fit the query's schema.
            BatchError: a function of the query failed.
        """
        topology = as_topology(topology)
        return QueryRunner(self.lake, topology, name, self._reaching, txid).ask(args)

    def query_each(
        self, topology: TridentTopology | Flow, name: str, requests: Sequence[Sequence[Any]], *, txid: int | None = None
    ) -> list[Answer]:
        """Answer many requests: each argument tuple is a batch of its own, with an answer or an error of its own.

        Args:
            requests: one tuple of arguments per request.

        Raises:
            UnknownQueryError: if the topology has no such query stream.
        """
        topology = as_topology(topology)
        return QueryRunner(self.lake, topology, name, self._reaching, txid).ask_each(
            [[request] for request in requests]
        )

    # --- parts ------------------------------------------------------------------------------------------------------

    def _reaching(self) -> SparkSession:
        """Return the session, which reaches the lake."""
        if isinstance(self.lake.root, Location):
            check_session(self.spark, self.lake.root)
        return self.spark

    def _groups(self, topology: TridentTopology, lake: Lake | None = None) -> list[BatchGroup]:
        if not topology.spouts:
            raise DefinitionError(f'flow "{topology.name}" has no stream with a source')
        return groups_of(self.spark, lake or self.lake, topology)

    def _groups_and_partitions(
        self, topology: TridentTopology, partitions: Partitions
    ) -> list[tuple[BatchGroup, int | None]]:
        """Return the groups, each with the number of shuffle partitions that is asked for."""
        groups = self._groups(topology)
        asked = asked_for(topology.name, [group.name for group in groups], partitions)
        return [(group, asked.get(group.name)) for group in groups]

    def _ready(self, group: BatchGroup, checkpoint: Checkpoint, partitions: int | None) -> None:
        """Mend the checkpoint, whose lock is held, and give the group a session with the right partitions."""
        recover(checkpoint)
        if partitions is not None:
            checkpoint.set_partitions(partitions)
        group.spark = own_session(self.spark, checkpoint.partitions)

    def _checkpoint(self, group: BatchGroup) -> Checkpoint:
        return Checkpoint(group.topology.name, self.lake.checkpoint_path(group.topology.name, group.name))

    def _runner(
        self,
        group: BatchGroup,
        checkpoint: Checkpoint,
        progress: Callable[[BatchReport], None] | None,
        *,
        changed_windows: bool = False,
    ) -> StreamRunner:
        options = StreamOptions(
            listeners=self._listeners,
            max_attempts=self._max_attempts,
            lock_wait_seconds=max(self._wait, 600.0),
            on_batch=progress,
            hooks=self._hooks,
            changed_windows=changed_windows,
        )
        return StreamRunner(group, checkpoint, options)


@dataclass
class _StreamPart:
    runner: StreamRunner
    query: StreamingQuery
    lock: Any


class RunningFlow:
    """A flow whose streams run in this process."""

    def __init__(self, flow: str, parts: list[_StreamPart]) -> None:
        self.flow, self._parts = flow, parts

    @property
    def batches(self) -> list[BatchReport]:
        """Return the batches so far."""
        return [report for part in self._parts for report in part.runner.reports]

    @property
    def running(self) -> bool:
        return all(part.query.isActive for part in self._parts)

    def stop(self) -> list[BatchReport]:
        """Drain: finish the running batches, Spark's commits included, then end.

        Raises:
            TrideltaError: what stopped a stream before.
        """
        with ExitStack() as stack:
            # One that fails does not keep the others from their end: each is drained, then its lock is let go.
            for part in reversed(self._parts):
                stack.push(part.lock)
                stack.callback(part.runner.finish, part.query)
                stack.callback(part.runner.drain, part.query)
        return self.batches


def _and_lineage(
    progress: Callable[[_Report], None] | None, run: LineageRun | None
) -> Callable[[_Report], None] | None:
    """Return the progress that also takes what was committed into the run's lineage, where that is on."""
    if run is None:
        return progress

    def both(report: _Report) -> None:
        run.wrote(report.commits)
        if progress is not None:
            progress(report)

    return both


def _refuse_beside_stream(topology: TridentTopology, groups: Sequence[BatchGroup]) -> None:
    """Refuse beside a stream, which goes on with its own windows: what a bounded run reads beyond it would come twice."""
    for sink in (sink for group in groups for sink in group.sinks if not sink.is_channel):
        if sink.table.commits.batches():
            raise BoundedBesideStreamError(topology.name, sink.name)


def _merged(flow: str, slices: Sequence[str], reports: Sequence[BackfillReport]) -> BackfillReport:
    """Return one report per slice over all batch groups."""
    seconds = sum(report.seconds for report in reports)
    if len(reports) == 1:
        return reports[0]
    merged = []
    for slice_ in dict.fromkeys(slices):
        parts = [part for report in reports for part in report.slices if part.slice == slice_]
        merged.append(
            SliceReport(
                flow=flow,
                slice=slice_,
                received=sum(part.received for part in parts),
                quarantined=sum(part.quarantined for part in parts),
                commits=tuple(commit for part in parts for commit in part.commits),
                seconds=sum(part.seconds for part in parts),
                gates=tuple(gate for part in parts for gate in part.gates),
                error="; ".join(part.error for part in parts if part.error) or None,
            )
        )
    return BackfillReport(flow, tuple(merged), seconds)
