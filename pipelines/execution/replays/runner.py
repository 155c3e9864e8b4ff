"""Replay quarantined rows: each lot is a batch of its own, with a transaction id in each table (docs/adr/0024).

While it works it holds the locks of the flow: no backfill, no compaction and no batch of a stream commits meanwhile, so what
the tables say of themselves stays true until the last commit. Between two parts of many rows it lets go of them. A replay that
is cut off is finished by the next one, before anything else: what a table has committed under its number is not done again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pipelines.errors import BatchError, GateError, LockedError, ReadPointError, TrideltaError, UnknownStateError
from pipelines.execution.batch.group import BatchGroup
from pipelines.execution.batch.quarantine import quarantine_writer, table_columns
from pipelines.execution.checkpoint.belonging import Belonging
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.replay_records import Record, Records, app_id
from pipelines.execution.protocol.failures import lake_fault, reason_of
from pipelines.execution.protocol.groups import group_name, spout_groups
from pipelines.execution.replays.counted import Counted, Verdict, replaced_since
from pipelines.execution.replays.report import LotReport, ReplayReport
from pipelines.execution.replays.selection import (
    NUMBER,
    EntryPlace,
    Lot,
    ReplayError,
    Selection,
    check_names,
    entry_of,
    instead,
    keys_of,
    lots,
    rounds,
    stored_rows,
)
from pipelines.execution.replays.work import Order, Work
from pipelines.graph import nodes
from pipelines.state.quarantine import FILE_GONE, NAME, is_poison
from pipelines.state.record import FORGOTTEN, POISON
from pipelines.state.schema import SLICE_COLUMN, TXID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.execution.events.hooks import Listener
    from pipelines.state.lake import Lake
    from pipelines.state.table import StateTable
    from pipelines.trident.topology import TridentTopology

UNLIKE = "the stored text no longer matches the flow's fields: they have changed since"
PUT_BACK = (
    "its file was gone from the source when its batch came again: put it there under a new name, then a batch reads it"
)
UNDECIDED = "a replay of them was cut off, and the tables' logs no longer say what counts of it"


@dataclass
class _SoFar:
    """The work of a run so far."""

    numbers: list[int] = field(default_factory=list)
    resumed: list[LotReport] = field(default_factory=list)
    reports: list[LotReport] = field(default_factory=list)
    refusals: list[TrideltaError] = field(default_factory=list)


class Replayer:
    """Replays quarantined rows of one flow.

    Args:
        listeners: called around each commit; the txid that they get is the replay's number.
        lock_wait_seconds: how long to wait for a batch, a backfill or a compaction of the flow.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        topology: TridentTopology,
        *,
        listeners: tuple[Listener, ...] = (),
        lock_wait_seconds: float = 600.0,
        progress: Callable[[LotReport], None] | None = None,
    ) -> None:
        self._spark, self._lake, self._topology = spark, lake, topology
        self._listeners, self._wait, self._progress = listeners, lock_wait_seconds, progress
        self._writer = quarantine_writer(lake, topology.name)
        self._records = Records(lake.quarantine_path(topology.name))
        self._groups: dict[str, BatchGroup] = {}
        self._held: list[Checkpoint] = []

    def run(self, selection: Selection) -> ReplayReport:
        """Finish what was cut off, then replay what is selected.

        Raises:
            UnknownStateError: the flow has not run yet.
            ReplayError: none of the selected rows can be replayed.
            LockedError: the flow's batch, a backfill or a compaction holds it for too long.
        """
        started, name = time.monotonic(), self._topology.name
        rejected = quarantine_of(self._lake, self._topology)
        check_names(selection, rejected, self._topology)
        if rejected is None:
            return ReplayReport(name, ())
        self._writer.prepare(table_columns())
        done = _SoFar()
        with self._alone():
            self._finish_all(done)
            # Before the rows are read that the tables are asked about.
            seen = self._versions()
            first, *further = rounds(lots(self._writer.table, selection, self._topology)) or [[]]
            self._replay_all(first, seen, done)
        for parts in further:
            # Streams and backfills that wait for the flow have it first.
            time.sleep(_FREE_SECONDS)
            with self._alone():
                # As a replay of these rows by another process would begin: whatever has worked meanwhile may have changed all.
                self._groups.clear()
                self._finish_all(done)
                seen = self._versions()
                self._replay_all([self._again(part, selection) for part in parts], seen, done)
        if done.refusals and len(done.refusals) == len(done.reports) and not done.numbers:
            raise done.refusals[0]
        reports = (*done.resumed, *done.reports)
        return ReplayReport(name, reports, resumed=tuple(done.numbers), seconds=time.monotonic() - started)

    def _finish_all(self, done: _SoFar) -> None:
        for record in self._unfinished():
            done.numbers.append(record.number)
            done.resumed.append(self._reported(self._finish(record)))

    def _replay_all(self, parts: Iterable[Lot], seen: dict[str, int], done: _SoFar) -> None:
        for lot in parts:
            if not lot.rows.num_rows:
                continue
            try:
                done.reports.append(self._reported(self._replay(lot, seen)))
            except (ReplayError, GateError) as error:
                done.refusals.append(error)
                done.reports.append(self._reported(refused_lot(lot, error)))

    def _again(self, part: Lot, selection: Selection) -> Lot:
        """Return of a part what quarantine still holds: not what was replayed, judged again or reset since it was read."""
        found = lots(self._writer.table, part.within(selection), self._topology)
        mine = (lot for lot in found if (lot.stage, lot.stream) == (part.stage, part.stream))
        return next((lot.common(part) for lot in mine), part.only(set()))

    def _reported(self, report: LotReport) -> LotReport:
        if self._progress:
            self._progress(report)
        return report

    def _unfinished(self) -> list[Record]:
        """Return the replays that were cut off, and those whose commit in quarantine has gone with the power: its rows are back.

        One that was given up with nothing committed has landed none.
        """
        last, table = self._writer.committed(app_id(self._topology.name, NAME)) or 0, self._writer.table.id
        return [
            record
            for record in self._records.all()
            if record.finished is None
            or (record.left is None and record.landed and record.number > last and record.quarantine == table)
        ]

    # --- a lot ------------------------------------------------------------------------------------------------------

    def _versions(self) -> dict[str, int]:
        """Return the version of each table: what counts rows behind it, and is no commit of ours, is another process's."""
        states = [self._lake.written_by(node) for node in self._topology.persists]
        found = {table.name: table.version() for table in states if table.exists()}
        return {**found, NAME: self._writer.table.version()}

    def _replay(self, lot: Lot, seen: dict[str, int]) -> LotReport:
        with self._named(lot):
            work = self._work(entry_of(self._topology, lot))
            for sink in work.sinks:
                # The table of a state that was added comes into being with the work.
                seen.setdefault(sink.name, sink.table.version())
            rows, unlike = work.look(lot)
            judge = self._judge(work)
            apart = {**dict.fromkeys(unlike, UNLIKE), **self._undecided(lot, judge), **_of_gone_files(lot)}
            verdict = judge.judge(row for row in rows if row.number not in apart)
            left = {**apart, **verdict.left}
            going = lot.only({row.number for row in rows} - set(left))
            if not going.rows.num_rows:
                return self._report(lot, left=left)
            record = self._record(self._next_number(work), going, work, verdict, seen)
            order = Order(going, record, verdict.counted, seen)
            report = work.run(order, lambda: self._note(work), lambda: self._begin(record, going))
            self._still_held()
            self._records.finish(record, report.landed, report.refused)
            return self._report(lot, report, left)

    def _begin(self, record: Record, lot: Lot) -> None:
        self._still_held()
        self._records.begin(record, lot.rows)

    def _still_held(self) -> None:
        for checkpoint in self._held:
            checkpoint.still_held()

    def _note(self, work: Work) -> None:
        """Note how far the tables have come: older copies of the states lack rows that are about to be in them alone.

        Quarantine as it is now: what it gives up may be back, and goes again (`_unfinished`).
        """
        tables = [*(sink.table for sink in work.sinks), self._writer.table]
        for checkpoint in self._held:
            Belonging(checkpoint, self._lake).note_on(tables)

    def _finish(self, record: Record) -> LotReport:
        """Finish a replay that was cut off: commit what it had not, but for what backfills have counted meanwhile."""
        lot = Lot(record.stage, record.stream, self._records.rows(record))
        with self._named(lot):
            try:
                entry = entry_of(self._topology, lot)
            except ReplayError as error:
                problem = f"replay {record.number} was cut off, and has to be finished first: {error.problem}"
                raise ReplayError(
                    self._topology.name, lot.what, problem, "give the flow its former shape back"
                ) from None
            work, seen = self._work(entry), self._versions()
            # A state that was added since has nothing of the replay, and may have been backfilled.
            since = {sink.name: replaced_since(sink.table, record.versions.get(sink.name, 0)) for sink in work.sinks}
            known = {name: replaced for name, replaced in since.items() if replaced is not None}
            judged = replaced_since(self._writer.table, record.versions[NAME], work.group.name)
            if judged is None or len(known) < len(since) or self._comes_again(record, lot, work):
                return self._given_up(record, lot, work)
            rows, unlike = work.look(lot)
            if unlike:
                problem = f"replay {record.number} was cut off, and has to be finished first: {UNLIKE}"
                raise ReplayError(self._topology.name, lot.what, problem, "give the flow its former fields back")
            counted = {}
            for name, replaced in known.items():
                fresh = {row.number for row in rows if row.slice in replaced}
                counted[name] = frozenset({*record.left_out.get(name, ()), *fresh})
            try:
                report = work.run(Order(lot, record, counted, seen), lambda: self._note(work))
            except ReadPointError:
                # What a committed state held before is gone, and with it what would be rejected of its rows.
                return self._given_up(record, lot, work)
            self._still_held()
            self._records.finish(record, report.landed, report.refused)
            return self._report(lot, report)

    def _comes_again(self, record: Record, lot: Lot, work: Work) -> bool:
        """Return whether the stream takes the rows of a replay that has committed nothing: the plan of their batch was lost."""
        if not is_poison(lot.stage) or any(work.is_committed(sink, record) for sink in work.sinks):
            return False
        txids = {*lot.rows[TXID].to_pylist()}
        # Once it came by another plan it has other rows, also where it was left out again since.
        since = [commit for commit in self._writer.table.history() if commit.version > record.versions[NAME]]
        others = (commit for commit in since if commit.kind in (POISON, FORGOTTEN) and commit.group == work.group.name)
        return any(commit.txid in txids for commit in others) or self._judge(work).comes_again(txids)

    def _given_up(self, record: Record, lot: Lot, work: Work) -> LotReport:
        """Close a replay of which the tables no longer say what they have got since, so that others can go on.

        What has committed nothing might as well not have been begun. Else its rows stay in quarantine: some states have got
        them, and may have lost them since.
        """
        report = LotReport(lot.stage, lot.stream, {}, number=record.number)
        if (self._writer.committed(app_id(self._topology.name, NAME)) or 0) >= record.number:
            # All is done but its record: what was rejected again is in quarantine, and not known from the rest.
            work.on_disk()
            report, why = replace(report, rows=by_rule(lot), landed=lot.rows.num_rows), None
        elif any(work.is_committed(sink, record) for sink in work.sinks):
            why = UNDECIDED
            report = self._report(lot, report, dict.fromkeys(lot.rows[NUMBER].to_pylist(), why))
        else:
            why = None
        self._still_held()
        self._records.finish(record, report.landed, {}, why)
        return report

    def _undecided(self, lot: Lot, judge: Counted) -> dict[int, str]:
        """Return the rows that a replay was given up with, unless a backfill has judged them since."""
        left: dict[int, str] = {}
        for record in self._records.all():
            if record.left is None or record.finished is None:
                continue
            held, given_up = stored_rows(self._records.rows(record)), datetime.fromisoformat(record.finished)
            for number, slice_, key in zip(
                lot.rows[NUMBER].to_pylist(), lot.rows[SLICE_COLUMN].to_pylist(), keys_of(lot.rows), strict=True
            ):
                if number not in left and held[key] > 0 and not judge.judged_since(slice_, given_up):
                    held[key] -= 1
                    left[number] = record.left
        return left

    def _work(self, entry: EntryPlace) -> Work:
        return Work(self._spark, self._lake, self._group(entry.spouts), entry, self._listeners)

    def _judge(self, work: Work) -> Counted:
        states = {sink.name: sink.table for sink in work.sinks}
        return Counted(self._writer.table, states, self._checkpoint(work.group.name), drops=work.entry.drops)

    def _record(self, number: int, lot: Lot, work: Work, verdict: Verdict, seen: Mapping[str, int]) -> Record:
        return Record(
            number=number,
            stage=lot.stage,
            stream=lot.stream,
            started=datetime.now(UTC).isoformat(),
            versions={name: seen[name] for name in (NAME, *(sink.name for sink in work.sinks))},
            left_out={name: sorted(numbers) for name, numbers in verdict.counted.items() if numbers},
            rows=lot.rows.num_rows,
            quarantine=self._writer.table.id,
        )

    def _next_number(self, work: Work) -> int:
        """Return a number above all that a table knows, also where the records were lost."""
        known = [self._records.last, self._writer.committed(app_id(self._topology.name, NAME)) or 0]
        known += [sink.writer.committed(app_id(self._topology.name, sink.name)) or 0 for sink in work.sinks]
        return max(known) + 1

    def _report(self, lot: Lot, done: LotReport | None = None, left: Mapping[int, str] | None = None) -> LotReport:
        done = done or LotReport(lot.stage, lot.stream, {})
        return replace(
            done,
            rows=by_rule(lot),
            left={**done.left, **Counter((left or {}).values())},
            # What only waits for its file loses its last copy to a reset.
            hint=instead(self._topology) if any(why != PUT_BACK for why in (left or {}).values()) else "",
        )

    # --- locks ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the flow between two batches of its streams, with no backfill or compaction of it at work."""
        self._held = checkpoints = [self._checkpoint(group_name(spouts)) for spouts in spout_groups(self._topology)]
        with ExitStack() as locks:
            for checkpoint in sorted(checkpoints, key=lambda checkpoint: checkpoint.folder.name):
                locks.enter_context(checkpoint.rewriting(self._wait))
                Belonging(checkpoint, self._lake).check()
            locks.enter_context(wait_for_whole_batches(self._lake, self._topology, checkpoints, self._wait))
            yield

    def _checkpoint(self, group: str) -> Checkpoint:
        return Checkpoint(self._topology.name, self._lake.checkpoint_path(self._topology.name, group))

    def _group(self, spouts: tuple[nodes.SpoutNode, ...]) -> BatchGroup:
        name = group_name(spouts)
        if name not in self._groups:
            self._groups[name] = BatchGroup(self._spark, self._lake, self._topology, spouts)
        return self._groups[name]

    @contextmanager
    def _named(self, lot: Lot) -> Iterator[None]:
        """Turn an error of Spark's, of the user's function or of the disk into one with what a reader needs of it."""
        try:
            yield
        except TrideltaError:
            raise
        except (PySparkException, Py4JJavaError, OSError, DeltaError) as error:
            raise lake_fault(error, str(self._lake.root), "rows were replayed") or BatchError(
                f'flow "{self._topology.name}": the replay of {lot.what} stopped: {reason_of(error)}',
                hint="correct the flow and replay again: what is committed is not done twice",
            ) from error


def quarantine_of(lake: Lake, topology: TridentTopology) -> StateTable | None:
    """Return a flow's quarantine; None for one that has run and rejected nothing."""
    try:
        return lake.quarantine(topology.name)
    except UnknownStateError:
        if any(lake.written_by(node).exists() for node in topology.persists):
            return None
        raise


def look(lake: Lake, topology: TridentTopology, selection: Selection) -> ReplayReport:
    """Return what a replay would take, by place and rule, and what it would refuse. No Spark; changes nothing.

    Whether single rows are counted already, or do not read back, only the replay itself finds out.
    """
    reports = []
    rejected = quarantine_of(lake, topology)
    check_names(selection, rejected, topology)
    for lot in lots(rejected, selection, topology) if rejected is not None else ():
        try:
            entry_of(topology, lot)
            reports.append(LotReport(lot.stage, lot.stream, by_rule(lot)))
        except ReplayError as error:
            reports.append(refused_lot(lot, error))
    return ReplayReport(topology.name, tuple(reports), dry_run=True)


def planned(lake: Lake, topology: TridentTopology, selection: Selection) -> ReplayReport:
    """Look before a replay: what cannot be done is refused before Spark starts."""
    report = look(lake, topology, selection)
    possible = [lot_report for lot_report in report.lots if not lot_report.left]
    if report.lots and not possible and not unfinished(lake, topology):
        first = report.lots[0]
        lot = Lot(first.stage, first.stream, pa.table({}))
        raise ReplayError(topology.name, lot.what, next(iter(first.left)), first.hint)
    return report if report.lots else replace(report, dry_run=False)


def unfinished(lake: Lake, topology: TridentTopology) -> list[Record]:
    """Return the replays of a flow that were cut off."""
    return Records(lake.quarantine_path(topology.name)).unfinished()


def _of_gone_files(lot: Lot) -> dict[int, str]:
    """Return the rows whose source is to be given their file again: then a batch brings them."""
    found = zip(lot.rows[NUMBER].to_pylist(), lot.rows["rule"].to_pylist(), strict=True)
    return {number: PUT_BACK for number, rule in found if rule == FILE_GONE}


def by_rule(lot: Lot) -> dict[str, int]:
    """Return how many rows each rule rejected."""
    return dict(Counter(lot.rows["rule"].to_pylist()))


def refused_lot(lot: Lot, error: TrideltaError) -> LotReport:
    """Report a lot that stays as it is."""
    why = error.problem if isinstance(error, ReplayError) else str(error).splitlines()[0]
    return LotReport(lot.stage, lot.stream, by_rule(lot), left={why: lot.rows.num_rows}, hint=error.hint)


# Between a batch's end and Spark's own commit of it lie some tens of milliseconds, in which the lock is free.
_POLL_SECONDS = 0.05
# Longer than whoever waits for a lock, or on a store for a lease, takes to ask again.
_FREE_SECONDS = 0.5


@contextmanager
def wait_for_whole_batches(
    lake: Lake, topology: TridentTopology, checkpoints: Sequence[Checkpoint], wait_seconds: float
) -> Iterator[None]:
    """Hold the commit locks at a moment when every committed batch is done.

    A batch that has committed and that Spark has not marked as done comes again after a crash. A state that is not
    transactional then takes it again, by the gates of that day: a row of it that was replayed meanwhile would be in it twice.

    Raises:
        ReplayError: a batch is half done and nobody is there to finish it.
        LockedError: no such moment came.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        with ExitStack() as locks:
            for query in sorted(checkpoints, key=lambda query: query.folder.name):
                locks.enter_context(query.committing(wait_seconds))
            half = _half(lake, topology, checkpoints)
            if half is None:
                yield
                return
        checkpoint, txid = half
        if not checkpoint.is_running():
            raise ReplayError(
                topology.name,
                "quarantined rows",
                f"batch {txid} was committed and cut off before Spark marked it as done, so it comes again",
                f"finish it first: tridelta run {topology.name} --max-batches 1",
            )
        if time.monotonic() > deadline:
            raise LockedError(topology.name, str(checkpoint.folder), wait_seconds)
        time.sleep(_POLL_SECONDS)


def _half(lake: Lake, topology: TridentTopology, checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, int] | None:
    """Return a batch that some table has committed and that Spark has not marked as done."""
    by_name = {checkpoint.folder.name: checkpoint for checkpoint in checkpoints}
    for spouts in spout_groups(topology):
        checkpoint = by_name[group_name(spouts)]
        epoch = checkpoint.epoch
        if epoch is None:
            continue
        done = epoch.first_txid + checkpoint.finished_batches()
        reached = {node.id for spout in spouts for node in topology.graph.descendants(spout.id)}
        for node in topology.persists:
            table = lake.written_by(node)
            if node.id not in reached or not table.exists() or not isinstance(node, nodes.PersistNode):
                continue
            last = table.commits.last_batch()
            if last is not None and last.epoch == epoch.number and last.txid is not None and last.txid >= done:
                return checkpoint, last.txid
    return None
