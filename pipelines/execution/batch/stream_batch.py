"""One batch of a stream: attempts, the plan, the commits, the accounts (docs/architecture.md#a-tuples-way, #batch-protocol)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.util import inheritable_thread_target

from pipelines.execution.batch.accounts import HASH, with_hash
from pipelines.execution.batch.channels import LATE, clocks_after, now, watermark_of, with_clock
from pipelines.execution.batch.commits import Announced, computed, computed_together, own_rows, prepared, with_hashes
from pipelines.execution.batch.former_life import FormerLife
from pipelines.execution.batch.group import BatchGroup, Sink
from pipelines.execution.batch.plan_run import (
    RECEIVED,
    REJECTED,
    XOR,
    KeptVerdicts,
    PlanRun,
    Reads,
)
from pipelines.execution.batch.position import Claims, Position, claimed_rows
from pipelines.execution.batch.quarantine import of_group, refused_rows, table_columns
from pipelines.execution.checkpoint.listed_files import LISTED
from pipelines.execution.events.hooks import Counters, Hook, StageEvent, tell
from pipelines.execution.protocol.coordinator import Batch
from pipelines.execution.protocol.tracker import BatchTracker
from pipelines.execution.report import BatchReport, StateCommit
from pipelines.graph import events, nodes
from pipelines.planner.siblings import Siblings, siblings_of
from pipelines.planner.windows import with_clock_row
from pipelines.spark.observations import observed
from pipelines.spark.session import is_local
from pipelines.state.kinds import TRANSACTIONAL
from pipelines.state.quarantine import NAME
from pipelines.state.record import BATCH, BatchRecord
from pipelines.state.schema import SLICE_COLUMN
from pipelines.state.texts import check_texts
from pipelines.state.turns import LateWriterError, rejected_id, stream_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.execution.batch.driver_windows import DriverWindows, Windowed
    from pipelines.execution.batch.group_sources import Frames
    from pipelines.execution.checkpoint.engine_files import Epoch
    from pipelines.execution.events.hooks import Listener
    from pipelines.state.sums import Room

# Up to so many rows per commit travels through the driver as Arrow (some tens of MB), beyond Spark writes it where it lies.
# At 500,000 rows of a key and a count both ways take about as long on two cores; fewer rows favour the driver.
DRIVER_ROWS = 500_000
# A first batch has no earlier one to judge by: above so many bytes of input assume that the result is large.
DRIVER_BYTES = 128 * 1024 * 1024
# The results of several states come by one job while they have no more rows than this altogether: each row has the columns of
# all states on its way. Beyond it the rows take longer than the jobs.
JOINT_ROWS = 100_000
JOINT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Shared:
    """The parts that all batches of a runner share.

    Attributes:
        sizes: rows of each state's last commit, kept from batch to batch.
        before_close: called when all is committed, before the batch counts as done; None: nothing is to do.
        windows: those that run in the batch; None: there are none.
        is_taken: tells whether Spark has marked a batch as done, or another process has made attempts of its own.
    """

    group: BatchGroup
    epoch: Epoch
    tracker: BatchTracker
    listeners: tuple[Listener, ...]
    sizes: dict[str, int]
    hooks: tuple[Hook, ...]
    counters: Counters
    before_close: Callable[[], None] | None = None
    windows: DriverWindows | None = None
    is_taken: Callable[[int], bool] = lambda txid: False


@dataclass
class _Attempt:
    """One attempt at a batch, while it works.

    Attributes:
        runs: the evaluations of the plan, each with the rows that it left out.
        received: what each state's part of the plan took in.
        windowed: what the windows that run in the batch have made.
        read: by name the version and Delta's id of each other flow's table that the plan has asked, or a first life of the batch.
        judged: verdicts that hold for all of the runs.
        complete: whether one run passes all gates and makes all states.
        rejected: what quarantine leaves out and what it gets, where that was worked out before the first commit.
        settled: whether a first life's verdict holds on: quarantine keeps what it has got of it.
    """

    batch: Batch
    sources: Frames
    position: Position
    known: Mapping[str, bool]
    commits: list[StateCommit] = field(default_factory=list)
    runs: list[tuple[Claims, PlanRun]] = field(default_factory=list)
    received: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    windowed: Windowed | None = None
    read: dict[str, tuple[int, str]] = field(default_factory=dict)
    judged: KeptVerdicts = field(default_factory=KeptVerdicts)
    complete: bool = False
    rejected: tuple[Claims, pa.Table | None] | None = None
    settled: bool = False


class StreamBatch:
    """Runs the attempts at one txid."""

    def __init__(self, shared: Shared) -> None:
        self._group, self._epoch, self._tracker, self._sizes = shared.group, shared.epoch, shared.tracker, shared.sizes
        self._hooks, self._counters, self._before_close = shared.hooks, shared.counters, shared.before_close
        self._windows, self._is_taken = shared.windows, shared.is_taken
        self._announced = Announced(shared.listeners)
        self._started = time.monotonic()
        self._emitted: dict[int, pa.Table] = {}
        self._former = FormerLife(shared.group, shared.epoch)
        self._plan: str | None = None

    def run(self, batch: Batch, sources: Frames, position: Position) -> BatchReport:
        """Compute, commit and account for a batch.

        Raises:
            GateError: a gate refused it; nothing behind the gate is committed.
            AccountingError: a stage received other than what was emitted.
            LateWriterError: another process has written a state since.
        """
        self._started, self._plan = time.monotonic(), position.plan
        self._counters.start()
        self._tracker.commit_signal(batch)
        last = self._former.look()
        if self._is_taken(batch.txid):
            # An opaque state would take it again, though nobody replays what is done.
            raise LateWriterError(self._group.name, f"batch {batch.txid}", "another process has taken or finished it")
        known = {sink.name: self._former.knows(sink, last[sink.name], batch.txid) for sink in self._group.sinks}
        attempt = _Attempt(batch, sources, position, known, read=self._former.read_before(known, batch.txid))
        try:
            skipped = self._commit_all(attempt)
            counts = attempt.runs[0][1].counts
            for sink in self._group.sinks:
                if sink.name in skipped and sink.writer.declared.kind == TRANSACTIONAL:
                    attempt.received |= self._former.received_before(sink, batch.txid)
            quarantined = self._quarantine(attempt, counts)
            self._account(batch, counts, attempt.commits, attempt.received)
            # Each wave passes gates of its own: the first run that has one reports it.
            gates: dict[str, dict[str, Any]] = {}
            for _, run in attempt.runs:
                gates |= {result["gate"]: result for result in run.gate_results() if result["gate"] not in gates}
        finally:
            for _, run in attempt.runs:
                run.close()
        if self._before_close is not None:
            self._before_close()
        self._tracker.close(batch)
        return BatchReport(
            flow=self._group.topology.name,
            group=self._group.name,
            txid=batch.txid,
            attempt=batch.attempt,
            received=counts[RECEIVED],
            quarantined=quarantined,
            commits=tuple(sorted(attempt.commits, key=lambda commit: list(known).index(commit.state))),
            seconds=time.monotonic() - self._started,
            gates=tuple(gates.values()),
            counters=self._counters.since_start(),
        )

    def _commit_all(self, attempt: _Attempt) -> set[str]:
        """Commit all states, wave by wave. Return those that have the batch already and take nothing."""
        batch = attempt.batch
        skipped = self._former.skipping(attempt.known, batch.txid, attempt.position)
        attempt.settled = bool(skipped) or self._former.is_replayed(attempt.known, batch.txid)
        attempt.commits += [
            self._former.replayed(sink, batch.txid) for sink in self._group.sinks if sink.name in skipped
        ]
        for wave in self._group.waves:
            todo = tuple(sink for sink in wave if sink.name not in skipped)
            by_claims = self._by_claims(todo, attempt.position)
            attempt.complete = not skipped and len(self._group.waves) == len(by_claims) == 1
            for claimed, sinks in by_claims:
                run = self._plan_run(attempt)
                attempt.runs.append((claimed, run))
                done = self._commit(attempt, run, claimed, sinks)
                attempt.received |= {commit.state: run.counts for commit in done}
                attempt.commits += done
        if not attempt.runs:
            attempt.runs.append(({}, self._plan_run(attempt)))
            attempt.runs[0][1].count_now()
        return skipped

    def _plan_run(self, attempt: _Attempt) -> PlanRun:
        batch = attempt.batch

        def watermark(channel: str) -> int | None:
            if self._windows is not None and channel == self._windows.channel:
                return self._windows.clock_before(batch.txid)
            sink = next(sink for sink in self._group.sinks if sink.name == channel)
            return self._watermark(sink, sink.clocks_before(batch.txid))

        reads = Reads(
            partial(self._former.state_as_of, batch.txid, attempt.read),
            self._emitted,
            partial(self._former.base, batch.txid),
            watermark,
            judged=attempt.judged,
        )
        return PlanRun(self._group, attempt.sources, f"batch {batch.txid}", reads, txid=batch.txid)

    # --- commits ----------------------------------------------------------------------------------------------------

    def _by_claims(self, sinks: tuple[Sink, ...], position: Position) -> list[tuple[Claims, list[Sink]]]:
        """Group the sinks by the rows that they leave out (nearly always: none, one group)."""
        groups: dict[frozenset[tuple[str, frozenset[str]]], list[Sink]] = {}
        for sink in sinks:
            claimed = claimed_rows(sink.table, position)
            groups.setdefault(frozenset(claimed.items()), []).append(sink)
        return [(dict(claimed), members) for claimed, members in groups.items()]

    def _commit(self, attempt: _Attempt, run: PlanRun, claimed: Claims, sinks: list[Sink]) -> list[StateCommit]:
        late = [sink for sink in sinks if sink.is_late]
        in_time = [sink for sink in sinks if not sink.is_late]
        self._run_windows(attempt, run)
        small = [sink for sink in in_time if self._is_small(sink, attempt.position)]
        siblings = siblings_of(sink.node for sink in small)
        with self._counters.collected():
            frames = self._frames(attempt, run, [sink.node.id for sink in in_time], claimed, siblings)
        results = self._compute(run, small, frames, attempt.position, siblings)
        # All is computed before the first commit, and what does not fit is refused, so that no state has the batch; the first
        # one sees to itself. The commits follow one another in topological order.
        for name, (rows, _) in results.items():
            check_texts(name, rows)
        rooms = {sink.name: self._room(attempt, sink, results) for sink in in_time[1:]}
        if attempt.complete and len(results) == len(in_time):
            self._reject(attempt, run, claimed)
        done = []
        for sink in in_time:
            if sink.name in results:
                done.append(self._commit_arrow(attempt, run, sink, *results[sink.name], rooms.get(sink.name)))
            elif sink.is_channel:
                done.append(self._commit_large_channel(attempt, run, sink, frames[sink.node.id]))
            else:
                done.append(self._commit_spark(attempt, sink, frames[sink.node.id]))
        return done + [self._commit_late(attempt, run, sink, claimed) for sink in late]

    def _room(self, attempt: _Attempt, sink: Sink, results: Mapping[str, tuple[pa.Table, float]]) -> Room | None:
        """See that a state's small results fit its totals."""
        if sink.name not in results:
            return None
        return sink.writer.room(results[sink.name][0], attempt.batch.txid, known=attempt.known[sink.name])

    def _commit_late(self, attempt: _Attempt, run: PlanRun, sink: Sink, claimed: Claims) -> StateCommit:
        """Commit the late events, behind the others: they are computed only if the counts say that there are any."""
        if run.counts.get(LATE, 1):
            rows, seconds = computed(with_hash(self._frames(attempt, run, [sink.node.id], claimed)[sink.node.id]))
        else:
            empty = sink.writer.empty().select(sink.writer.declared.names)
            rows, seconds = empty.append_column(HASH, pa.array([], pa.int64())), 0.0
        return self._commit_arrow(attempt, run, sink, rows, seconds)

    def _frames(
        self,
        attempt: _Attempt,
        run: PlanRun,
        wanted: Sequence[int],
        claimed: Claims,
        siblings: Sequence[Siblings] = (),
    ) -> Mapping[int, DataFrame]:
        """Return the frames of some nodes, the results of the windows that run in the batch in the place of these."""
        self._run_windows(attempt, run)
        given = attempt.windowed.frames if attempt.windowed else None
        return run.frames(wanted, claimed, given, siblings)

    def _run_windows(self, attempt: _Attempt, run: PlanRun) -> None:
        """Run the windows that run in the batch, once per attempt: each record names what they leave."""
        if self._windows is not None and attempt.windowed is None:
            with self._counters.collected():
                attempt.windowed = self._windows.run(attempt.batch, run, attempt.position)

    def _compute(
        self,
        run: PlanRun,
        sinks: list[Sink],
        frames: Mapping[int, DataFrame],
        position: Position,
        siblings: Sequence[Siblings],
    ) -> dict[str, tuple[pa.Table, float]]:
        """Compute the small results, of siblings together. Return the rows of each state, and the seconds that they took."""
        names = {sink.node.id: sink.name for sink in sinks}
        common = {names[family.first.id]: family for family in siblings}
        members = {member.id for family in siblings for member in family.members}
        # A channel is accounted for by count, so its rows need no hash.
        hashed = {sink.name for sink in sinks if not sink.is_channel and sink.node.id not in members}
        by_name = {name: frames[node_id] for node_id, name in names.items() if node_id not in members}
        by_name |= {name: with_hashes(frames[family.first.id], family) for name, family in common.items()}
        results = self._compute_frames(run, by_name, hashed, joint=self._are_tiny(list(names.values()), position))
        for name, family in common.items():
            rows, seconds = results[name]
            results |= {state: (own, seconds) for state, own in own_rows(rows, family).items()}
        return results

    def _compute_frames(
        self, run: PlanRun, frames: dict[str, DataFrame], hashed: set[str], *, joint: bool
    ) -> dict[str, tuple[pa.Table, float]]:
        """Compute frames: in one job where they are so small that its fixed costs weigh (`joint`), else in parallel where
        that is safe.

        Counts are observed below a frame that is kept for several consumers: only the job that fills it may run then, or
        a second one would finish on blocks whose counts have not arrived yet. So the first result comes alone, and the
        others together if that has filled all there is to fill. Within one job a block is locked while it is filled, but two
        executors would both fill it, and count twice.
        """
        names = list(frames)
        if len(names) > 1 and joint and (self._one_process or not run.kept_frames):
            results, seconds = computed_together(frames, hashed)
            return {name: (rows, seconds) for name, rows in results.items()}
        frames |= {name: with_hash(frames[name]) for name in hashed}
        alone = names if run.kept_frames > 1 else names[:1]
        done = {name: computed(frames[name]) for name in alone}
        with ThreadPoolExecutor(max_workers=2) as pool:
            target = inheritable_thread_target(self._group.spark)(computed)
            jobs = {name: pool.submit(target, frames[name]) for name in names[len(alone) :]}
            return done | {name: job.result() for name, job in jobs.items()}

    @property
    def _one_process(self) -> bool:
        return is_local(str(self._group.spark.sparkContext.master))

    def _are_tiny(self, names: list[str], position: Position) -> bool:
        if all(name in self._sizes for name in names):
            return sum(self._sizes[name] for name in names) <= JOINT_ROWS
        return position.bytes is not None and position.bytes <= JOINT_BYTES

    def _is_small(self, sink: Sink, position: Position) -> bool:
        if sink.node.updater is not None:
            return True
        if sink.name in self._sizes:
            return self._sizes[sink.name] <= DRIVER_ROWS
        return position.bytes is not None and position.bytes <= DRIVER_BYTES

    def _record(
        self,
        attempt: _Attempt,
        counts: Mapping[str, Any],
        rows: int,
        digest: int | None,
        clocks: dict[str, int] | None = None,
    ) -> BatchRecord:
        batch, named = attempt.batch, attempt.windowed.named if attempt.windowed is not None else None
        return BatchRecord(
            kind=BATCH,
            flow=self._group.topology.name,
            epoch=self._epoch.number,
            txid=batch.txid,
            attempt=batch.attempt,
            received=counts[RECEIVED],
            rows=rows,
            received_hash=counts.get(XOR),
            fields=self._group.fields,
            hash=digest,
            offsets=self._offsets(attempt),
            gates=self._group.gates,
            read={name: version for name, (version, _) in attempt.read.items()} or None,
            read_ids={name: made for name, (_, made) in attempt.read.items()} or None,
            clocks=dict(named.clocks) if named is not None and clocks is None else clocks,
            windows=named.shown(self._group.name) if named is not None else None,
        )

    def _offsets(self, attempt: _Attempt) -> dict[str, Any]:
        own = {"batch": attempt.batch.txid - self._epoch.first_txid, "plan": self._plan}
        return own if attempt.position.listed is None else {**own, LISTED: attempt.position.listed}

    def _commit_arrow(
        self, attempt: _Attempt, run: PlanRun, sink: Sink, result: pa.Table, seconds: float, room: Room | None = None
    ) -> StateCommit:
        started = time.monotonic()
        ready = prepared(result, sink.node)
        rows, clocks = ready.rows, None
        if ready.emitted is not None:
            self._emitted[sink.node.id] = ready.emitted
        if sink.is_channel:
            # Its watermark rows are no rows of the batch, so a channel is accounted for by count.
            clocks = self._clocks(attempt, run, sink, pc.max(rows[events.CLOCK]).as_py())
            # Its readers know no slices, and take a commit whole if it is one file: so one partition, the clock's row in it.
            rows = rows.drop_columns([SLICE_COLUMN]) if SLICE_COLUMN in rows.column_names else rows
            rows = with_clock(rows, self._watermark(sink, clocks))
        record = self._record(attempt, run.counts, rows.num_rows, ready.hash, clocks)
        version = self._write(attempt, sink, rows, record, room)
        self._sizes[sink.name] = result.num_rows
        return StateCommit(sink.name, version, rows.num_rows, seconds + time.monotonic() - started)

    def _write(self, attempt: _Attempt, sink: Sink, rows: Any, record: BatchRecord, room: Room | None = None) -> int:
        """Commit rows (Arrow, or a frame) to a state. Return the version."""
        app_id = stream_id(self._group.topology.name, sink.name, self._epoch.number)
        known, seen = attempt.known[sink.name], self._former.seen[sink.name]
        return self._announced.commit(
            sink.name,
            attempt.batch.txid,
            sink.writer,
            lambda: sink.writer.commit_batch(rows, record, app_id, known=known, seen=seen, room=room),
        )

    def _clocks(self, attempt: _Attempt, run: PlanRun, sink: Sink, latest: int | None) -> dict[str, int]:
        node = sink.node
        assert isinstance(node, nodes.ChannelNode)
        at, before = now() if node.clock == nodes.NOW else latest, sink.clocks_before(attempt.batch.txid)
        return clocks_after(self._group, node, before, attempt.position.clocks, run.counts, at)

    def _watermark(self, sink: Sink, clocks: Mapping[str, int]) -> int | None:
        assert isinstance(sink.node, nodes.ChannelNode)
        return watermark_of(self._group, sink.node, clocks)

    def _commit_large_channel(self, attempt: _Attempt, run: PlanRun, sink: Sink, frame: DataFrame) -> StateCommit:
        """Let Spark write a channel where its rows are, once the latest clock is known."""
        frame = frame.persist()
        try:
            latest = frame.agg(F.max(events.CLOCK)).collect()[0][0]
            clocks = self._clocks(attempt, run, sink, latest)
            # One file, as readers need it: in one partition of the table, from one task.
            whole = with_clock_row(frame.drop(SLICE_COLUMN), self._watermark(sink, clocks)).coalesce(1)
            return self._commit_spark(attempt, sink, whole, clocks=clocks)
        finally:
            frame.unpersist()

    def _commit_spark(
        self, attempt: _Attempt, sink: Sink, frame: DataFrame, clocks: dict[str, int] | None = None
    ) -> StateCommit:
        started, emitted = time.monotonic(), Observation()
        counted = frame.observe(emitted, F.count(F.lit(1)).alias(RECEIVED))
        # The record is written before Spark has seen a row: the count is in Delta's own metrics, the hash is not kept.
        record = self._record(attempt, {RECEIVED: 0}, 0, None, clocks)
        version = self._write(attempt, sink, counted, record)
        rows = observed(emitted)[RECEIVED]
        self._sizes[sink.name] = rows
        return StateCommit(sink.name, version, rows, time.monotonic() - started)

    def _reject(self, attempt: _Attempt, run: PlanRun, claimed: Claims) -> None:
        """Compute the rejected rows, if the run that makes the states has them: a fault there leaves no state ahead."""
        if (self._group.last_gates or run.counts[REJECTED]) and self._claimed_rejected(attempt) == claimed:
            attempt.rejected = claimed, run.rejected_rows(claimed)

    def _claimed_rejected(self, attempt: _Attempt) -> Claims | None:
        """Return the rows that quarantine leaves out of the batch; None: it keeps what it has from a first life."""
        writer = self._group.quarantine
        if not writer.table.exists():
            return {}
        if attempt.settled and self._former.is_rejected(attempt.batch.txid):
            return None
        return claimed_rows(writer.table, attempt.position, self._group.name)

    def _quarantine(self, attempt: _Attempt, counts: Mapping[str, Any]) -> int:
        """Commit the rejected rows of the batch, unless those of a first life stay. Return how many there are."""
        may_hold = any(attempt.known.values())
        if not (
            self._group.last_gates or counts[REJECTED] or (may_hold and self._former.is_rejected(attempt.batch.txid))
        ):
            return 0
        if attempt.rejected is not None:
            return self._commit_quarantine(attempt, attempt.rejected[1], counts)
        claimed = self._claimed_rejected(attempt)
        if claimed is None:
            own = (c for c in self._group.quarantine.table.commits.batches() if c.group in (None, self._group.name))
            return next((c.rows for c in reversed([*own]) if c.txid == attempt.batch.txid), 0)
        run = next((run for known, run in attempt.runs if attempt.complete and known == claimed), None)
        if run is None:
            run = self._plan_run(attempt)
            attempt.runs.append((claimed, run))
            # No further than the gates: what a state held before the batch may have been vacuumed since.
            for each in self._frames(attempt, run, self._group.last_gates, claimed).values():
                each.write.format("noop").mode("overwrite").save()
        return self._commit_quarantine(attempt, run.rejected_rows(claimed), counts)

    def _commit_quarantine(self, attempt: _Attempt, rows: pa.Table | None, counts: Mapping[str, Any]) -> int:
        """Commit rejected rows, or none in the place of a first life's. Return how many there are."""
        group, writer, txid = self._group, self._group.quarantine, attempt.batch.txid
        again = self._former.is_rejected(txid)
        if not again and (rows is None or not rows.num_rows):
            return 0
        writer.prepare(table_columns())
        of = writer.empty() if rows is None else of_group(rows, group.name)
        record = self._record(attempt, counts, of.num_rows, None).model_copy(update={"group": group.name})
        app_id = rejected_id(group.topology.name, group.name, self._epoch.number)
        seen = self._former.rejected_seen

        def commit() -> int:
            if again:
                return writer.replace_rows(of, record, refused_rows(group.rejected, txid), seen=seen, app_id=app_id)
            return writer.append_arrow(of, record, app_id, seen=seen)

        self._announced.commit(NAME, txid, writer, commit)
        return of.num_rows

    def _account(
        self,
        batch: Batch,
        counts: Mapping[str, Any],
        commits: list[StateCommit],
        received: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Feed the tracker: what came in, what each state's part of the plan took in, and what its table says it holds."""
        self._tracker.emitted(batch, self._group.source_stage, counts[RECEIVED], xor=counts.get(XOR))
        self._tell_hooks("emitted", batch, self._group.source_stage, counts[RECEIVED])
        for commit in commits:
            own = received.get(commit.state, counts)
            self._tracker.received(batch, commit.state, own[RECEIVED], xor=own.get(XOR))
            self._tell_hooks("received", batch, commit.state, own[RECEIVED])
            held = self._held(commit, batch.txid)
            self._tracker.committed(batch, commit.state, emitted=commit.rows, committed=held)
            self._tell_hooks("committed", batch, commit.state, held, commit.seconds)

    def _held(self, commit: StateCommit, txid: int) -> int:
        """Return rows that the table's own log says this txid wrote."""
        table = next(sink.table for sink in self._group.sinks if sink.name == commit.state)
        commits = [c for c in reversed(table.commits.batches()) if c.txid == txid][:1]
        if not commits:
            return commit.rows
        written, record = commits[0].written, commits[0].record
        if written is None:
            # delta-rs counts no rows of files that others wrote: by the files' own footers they are in the record.
            written = record.rows if record is not None and record.rows else commit.rows
        return written

    def failed(self, batch: Batch, reason: str) -> None:
        """Tell the hooks that an attempt has failed."""
        self._tell_hooks("failed", batch, self._group.name, 0, error=reason)

    def _tell_hooks(
        self, moment: str, batch: Batch, stage: str, rows: int, seconds: float | None = None, error: str | None = None
    ) -> None:
        if self._hooks:
            event = StageEvent(
                flow=self._group.topology.name,
                group=self._group.name,
                stage=stage,
                txid=batch.txid,
                attempt=batch.attempt,
                rows=rows,
                seconds=time.monotonic() - self._started if seconds is None else seconds,
                counters=self._counters.since_start(),
                error=error,
            )
            tell(self._hooks, moment, event)
