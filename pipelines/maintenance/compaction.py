"""Compaction of a flow's tables, beside its running stream."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tenacity
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pipelines import logs
from pipelines.errors import LockedError, NotCompactedError, TooLargeToFoldError, TrideltaError
from pipelines.execution.checkpoint.belonging import Belonging
from pipelines.execution.checkpoint.durable import sync_log_checkpoints, sync_rest, sync_table
from pipelines.execution.checkpoint.engine_files import MARKER, Checkpoint
from pipelines.execution.checkpoint.replay_records import Records
from pipelines.execution.protocol.groups import group_name, readers_of, spout_groups
from pipelines.maintenance import channels, rejected, retention
from pipelines.maintenance.folding import DRIVER_ROWS, STORE_ROWS, compact_map, fold_arrow, fold_spark, merge
from pipelines.maintenance.housekeeping_report import FOR_GOOD, Retention
from pipelines.maintenance.plan import Closed, FoldPlan, closed_generations, parts_of, plan_fold
from pipelines.maintenance.report import CompactionReport, TableReport, measure
from pipelines.places.lease import LeaseLostError
from pipelines.places.location import Location
from pipelines.state.kinds import LOG, MAP, OPAQUE
from pipelines.state.lake import Lake
from pipelines.state.maintenance_commits import PLAIN_NAMES, clustered_by
from pipelines.state.quarantine import NAME
from pipelines.state.record import COMPACTION, GENERATION, BatchRecord
from pipelines.state.slices import to_say_again
from pipelines.state.table import StateTable
from pipelines.state.writer import StateWriter
from pipelines.trident.topology import TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logs.logger(__name__)

# A commit meets another one within milliseconds or not at all: a few tries with a short wait are many.
_TRIES, _WAIT_SECONDS = 5, 0.2
_HALF_MADE = "a former stream's change of partitions was cut off: remove its checkpoint if it will not come back"

KEPT = Retention(quarantine_days=None, wait_seconds=600.0)
"""The retention of a compaction that is given none."""


def kept_here(state_hours: float | None, channel_hours: float | None) -> Retention:
    """Return KEPT as the environment of this process says otherwise, with what was given on top."""
    given = {"state_hours": state_hours, "channel_hours": channel_hours}
    chosen = {name: hours for name, hours in given.items() if hours is not None}
    return Retention.from_environment(KEPT, quarantine_days=KEPT.quarantine_days, **chosen)


_FORMER = {
    "retention_hours": "state_hours",
    "channel_retention_hours": "channel_hours",
    "quarantine_days": "quarantine_days",
    "lock_wait_seconds": "wait_seconds",
}


def compact(
    spark: SparkSession | None,
    lake: Lake,
    flow: TridentTopology | str,
    keep: Retention | None = None,
    *,
    open_generations: int | None = None,
    progress: Callable[[TableReport], None] | None = None,
    **former: float | None,
) -> CompactionReport:
    """Fold, merge, vacuum and clean the tables of a flow. Results of reads stay what they are.

    Safe beside the flow's stream, which appends meanwhile; backfills wait. Killed at any point it leaves tables that
    read the same, and the next run takes up what is left. A table that fails holds up no other: its error comes at the end,
    and where only its rewrite failed its old versions and its log were seen to.

    Args:
        spark: a session; None if no table needs one (large states, tables of rows).
        lake: where the tables are.
        flow: the topology or its name.
        keep: how long states stay readable, channels keep rows that all their readers have taken, and rejected rows
            stay; how long to wait for a backfill or another compaction. None: a week, and rejected rows for good. Channels
            of a flow given by its name alone keep their rows: its readers are not known.
        open_generations: generations to leave as they are, the one that the stream writes included; None: 1 while a
            stream runs, and 0, everything that is committed, while none does.
        progress: called with each table's report.
        former: the names of an earlier release: `retention_hours`, `channel_retention_hours`, `quarantine_days` and
            `lock_wait_seconds`.

    Raises:
        TrideltaError: `open_generations` is negative.
        RetentionSettingError: a retention is out of its range.
        LockedError: a backfill or another compaction holds the flow for too long; or tables had to wait too long for a batch,
            and all others were compacted.
        TooLargeToFoldError: a state needs a session, or is too large for an object store.
        NotCompactedError: several tables were not compacted.
    """
    if former:
        if unknown := former.keys() - _FORMER:
            raise TypeError(f"compact() takes no {', '.join(sorted(unknown))}")
        named: dict[str, Any] = {_FORMER[name]: value for name, value in former.items()}
        keep = replace(keep or KEPT, **named)
    if open_generations is not None and open_generations < 0:
        raise TrideltaError("open_generations cannot be negative")
    started = time.monotonic()
    name = flow if isinstance(flow, str) else flow.name
    work = _Compaction(spark, lake, name, keep or KEPT)
    if not isinstance(flow, str):
        work.readers, work.declared = readers_of(flow), _declared(flow)
    with work.alone(checkpoints_of(lake, flow), open_generations):
        reports = work.each(tables_of(lake, name), progress)
    if work.failed:
        raise _failure(name, work.failed)
    return CompactionReport(name, reports, time.monotonic() - started)


def _failure(flow: str, failed: Mapping[str, Exception]) -> Exception:
    """Return the error of the one table that was not compacted, or one that names them all.

    Where tables were merely busy that is the first one's: they are left for the next round, which else would be told as failed.
    """
    busy = all(isinstance(error, LockedError) for error in failed.values())
    return next(iter(failed.values())) if busy or len(failed) == 1 else NotCompactedError(flow, failed)


def compact_quarantine(lake: Lake, flow: str, keep: Retention) -> TableReport:
    """Compact a flow's quarantine alone, without Spark."""
    table = lake.quarantine(flow)
    work = _Compaction(None, lake, flow, keep)
    with work.alone(checkpoints_of(lake, flow), None):
        return work.table(table)


def checkpoints_of(lake: Lake, flow: TridentTopology | str) -> list[Checkpoint]:
    """Return the checkpoints of the flow's batch groups; of a topology also those that no run has made yet."""
    name = flow if isinstance(flow, str) else flow.name
    declared = frozenset[str]() if isinstance(flow, str) else _declared(flow)
    folder = lake.checkpoint_path(name, "any").parent
    there = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return [Checkpoint(name, lake.checkpoint_path(name, group)) for group in sorted({*declared, *there})]


def _declared(flow: TridentTopology) -> frozenset[str]:
    return frozenset(group_name(spouts) for spouts in spout_groups(flow))


def tables_of(lake: Lake, flow: str) -> Iterator[StateTable]:
    """Yield the tables that a flow has written: states, channels, quarantine."""
    yield from lake.tables_of(flow)
    quarantine = lake.table(lake.quarantine_path(flow), f"quarantine of {flow}")
    if quarantine.exists():
        yield quarantine


@dataclass
class _Done:
    """The work on a table so far, as in its report."""

    slices_folded: int = 0
    rolled_up: bool = False
    conflicts: int = 0
    rows_let_go: int = 0


@dataclass
class _Compaction:
    """One run over a flow's tables."""

    spark: SparkSession | None
    lake: Lake
    flow: str
    kept: Retention
    groups: list[Checkpoint] = field(default_factory=list)
    open_generations: int = 1
    readers: dict[str, set[str]] = field(default_factory=dict)
    declared: frozenset[str] | None = None
    """The batch groups that the flow has now; None: not known."""
    half_made: bool = False
    """Whether a checkpoint of a former stream is half-made, so that what it has read stands nowhere."""
    failed: dict[str, Exception] = field(default_factory=dict)

    @contextmanager
    def alone(self, groups: list[Checkpoint], open_generations: int | None) -> Iterator[None]:
        """Keep backfills and other compactions out; and the stream, where its open generation is rewritten too."""
        self.groups = groups
        with ExitStack() as locks:
            for group in groups:
                own = self._own_tables(group)
                # Of a former stream the tables are another's now, and no start mends its checkpoint: it only limits what may go.
                locks.enter_context(group.rewriting(self.kept.wait_seconds, half_made=own is None))
                if own is not None:
                    Belonging(group, self.lake).check(own)
                elif (group.folder / MARKER).exists():
                    self.half_made = True
                    logger.warning("nothing is removed", flow=self.flow, group=group.folder.name, reason=_HALF_MADE)
            standing = not any(group.is_running() for group in groups)
            self.open_generations = (0 if standing else 1) if open_generations is None else open_generations
            if self.open_generations == 0:
                for group in groups:
                    locks.enter_context(group.committing(self.kept.wait_seconds))
            yield
            self._note()

    def _own_tables(self, group: Checkpoint) -> list[StateTable] | None:
        """Return the tables that a checkpoint is to belong to, none: all that are noted; None for that of a former stream.

        Where the flow is known by its name alone, a table that another query has begun a newer epoch with is that one's.
        """
        if self.declared is not None:
            return [] if group.folder.name in self.declared else None
        noted, epoch = Belonging(group, self.lake), group.epoch
        others = [other for other in self.groups if other.epoch and epoch and other.epoch.number > epoch.number]
        taken_over = {name for other in others for name in Belonging(other, self.lake).known()}
        tables = noted.tables()
        left = [table for table in tables if not taken_over.intersection(noted.paths([table]))]
        if len(left) == len(tables):
            return []
        return left or None

    def _note(self) -> None:
        """Note how far the tables have come: a stream that reads one goes by its versions, which an older copy gives again.

        Query by query: a note of one stops no other. Beside a batch that takes longer than is waited for, the next start does it.
        """
        for group in self.groups:
            lock = group.committing(self.kept.wait_seconds) if self.open_generations else nullcontext()
            with suppress(LockedError), lock:
                Belonging(group, self.lake).note_on()

    def each(
        self, tables: Iterable[StateTable], progress: Callable[[TableReport], None] | None
    ) -> tuple[TableReport, ...]:
        """Compact tables, and remember in `failed` which are not, and why: they hold up no other."""
        reports: list[TableReport] = []
        for table in tables:
            try:
                reports.append(self.table(table))
            except LeaseLostError:
                raise
            except Exception as error:
                if isinstance(error, LockedError):
                    # One batch is waited for once: the others only try, so that tables do not add up their waits.
                    self.kept = replace(self.kept, wait_seconds=0.0)
                logger.error("table not compacted", flow=self.flow, state=table.name, reason=str(error))
                self.failed[table.name] = error
                continue
            if progress:
                progress(reports[-1])
        return tuple(reports)

    # --- a table ----------------------------------------------------------------------------------------------------

    def table(self, table: StateTable) -> TableReport:
        started, writer, done = time.monotonic(), StateWriter(table, table.declared), _Done()
        self._name_plainly(writer)
        before = measure(table)
        # What a reader of a channel needs, a replay that was cut off, or a stream that has the table as its source.
        needs = [self._let_go(table, done), self._needed_by_replays(table), self._needed_by_streams(table)]
        needed = min((version for version in needs if version is not None), default=None)
        not_done = self._rewrite(writer, done)
        self._remember_removed(writer)
        limit = self._bound(table, needed)
        self._say_slices_again(writer, limit)
        files, cleaned = self._clear(writer, limit)
        left_overs = retention.remove_left_overs(table, self._closed_rows(table).settled)
        if not_done is not None:
            raise not_done
        after = measure(table)
        return TableReport(
            state=table.name,
            layout=table.declared.layout,
            version=table.version(),
            seconds=time.monotonic() - started,
            before=before,
            after=after,
            files_removed=files,
            log_files_removed=cleaned,
            left_overs_removed=left_overs,
            **asdict(done),
        )

    def _clear(self, writer: StateWriter, limit: retention.Bound) -> tuple[int, int]:
        """Delete the data files and the log that no reader needs. Return how many files, and how many of the log.

        On a durable lake all is on the disk before anything goes that it stands for.
        """
        table = writer.table
        # What a store has taken is kept.
        asks, last = self.lake.durable and not isinstance(table.path, Location), table.version()
        if asks:
            retention.checkpoint(table)
            sync_rest(table, self.lake.folder)
        self._still_held()
        files = retention.vacuum(writer, limit, self._record(table))
        retention.checkpoint(table)
        if asks:
            sync_table(table, last - 1, self.lake.folder)
            # The log is cleaned up to one of them, which may be older than this compaction.
            sync_log_checkpoints(table, self.lake.folder)
        return files, retention.clean_log(table, limit)

    def _bound(self, table: StateTable, needed: int | None) -> retention.Bound:
        with ExitStack() as locks:
            if math.ceil(self.kept.state_hours) == 0:
                # A batch that commits in between would be neither unfinished nor behind the bound.
                locks.enter_context(self._between_batches())
            unfinished = any(map(_unfinished, self.groups))
            return retention.bound(table, self.kept.state_hours, unfinished=unfinished, needed=needed)

    def _say_slices_again(self, writer: StateWriter, limit: retention.Bound) -> None:
        """Say when slices were made, where the log that says it would else stay, or be missed: it is all that knows it."""
        opened = self._opened(writer.table)
        said = to_say_again(writer.table, limit.version)
        if not said:
            return
        record = self._record(writer.table).model_copy(update={"claims": None, "claims_of": None, **said})
        try:
            writer.say(opened, record)
        except CommitFailedError:
            # Until the next compaction the log stays.
            logger.info("compaction conflict", flow=self.flow, state=writer.table.name, attempt=1)

    def _needed_by_replays(self, table: StateTable) -> int | None:
        quarantine = self.lake.quarantine_path(self.flow)
        return Records(quarantine).needed().get(NAME if table.path == quarantine else table.name)

    def _needed_by_streams(self, table: StateTable) -> int | None:
        """Return the oldest version that a stream of any flow may ask for; None: none reads the table."""
        if self.half_made:
            return 0
        version = self._streamed.get(table.id)
        # As of a channel, the one before: the next version may not be there yet.
        return None if version is None else max(0, min(version, table.version()) - 1)

    @cached_property
    def _streamed(self) -> dict[str, int]:
        # Once: streams only go on meanwhile.
        return channels.streamed(self.lake)

    def _let_go(self, table: StateTable, done: _Done) -> int | None:
        """Delete what has stayed long enough: of a channel what all readers have had, of the quarantine what is old.

        Returns the oldest version that a reader of a channel needs.
        """
        if table.path == self.lake.quarantine_path(self.flow):
            with self._between_batches():
                opened = self._opened(table)
                done.rows_let_go = rejected.let_go(table, opened, self.kept.quarantine_days, self._record(table))
        if table.path.parent != self.lake.channel_path("any").parent:
            return None
        if self.half_made:
            return 0
        asked = self.readers.get(table.name)
        taken = channels.taken(table, self.groups, None if asked is None else len(asked))
        hours = self.kept.state_hours if self.kept.channel_hours is None else self.kept.channel_hours
        txid = None if hours == FOR_GOOD else channels.old_batches(table, taken.before, hours)
        if txid is not None:
            clocks = channels.clocks_of(self.lake, table.name, self.readers, self.groups)
            with self._between_batches():
                opened = self._opened(table)
                done.rows_let_go = channels.let_go(table, opened, txid, self._record(table), clocks)
        return taken.needed

    def _name_plainly(self, writer: StateWriter) -> None:
        """Have Spark name its files without slices, once: an older table may be compacted before its flow starts."""
        if not PLAIN_NAMES.items() <= DeltaTable(str(writer.table.path)).metadata().configuration.items():
            with self._between_batches():
                writer.name_files_plainly(self._opened(writer.table))

    def _remember_removed(self, writer: StateWriter) -> None:
        """Set the table's property for a longer retention than before, once, between two batches of the stream.

        A change of properties is refused to, or makes Delta refuse, whatever commits at the same moment.
        """
        hours = math.ceil(self.kept.state_hours)
        if hours <= retention.remembered_hours(DeltaTable(str(writer.table.path))):
            return
        with self._between_batches():
            self._still_held()
            writer.remember_removed(hours)

    def _rewrite(self, writer: StateWriter, done: _Done) -> Exception | None:
        """Fold or merge; where Delta finds a conflict once more, from what the table holds then.

        Returns why that was not done: the table's versions and its log grow all the same, and are seen to.

        Raises:
            LockedError, LeaseLostError: somebody else is at work; all of it is left to the next run.
        """

        def conflict(state: tenacity.RetryCallState) -> None:
            done.conflicts += 1
            logger.info("compaction conflict", flow=self.flow, state=writer.table.name, attempt=state.attempt_number)

        try:
            for attempt in tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(_conflicts()),
                stop=tenacity.stop_after_attempt(_TRIES),
                wait=tenacity.wait_random_exponential(_WAIT_SECONDS),
                before_sleep=conflict,
                reraise=True,
            ):
                with attempt:
                    self._rewrite_once(writer, done)
        except (LockedError, LeaseLostError):
            raise
        except Exception as error:
            # Here too: what comes behind may fail for a reason of its own.
            logger.error("table not rewritten", flow=self.flow, state=writer.table.name, reason=str(error))
            return error
        return None

    def _rewrite_once(self, writer: StateWriter, done: _Done) -> None:
        table = writer.table
        if table.declared.layout == MAP:
            with self._between_batches():
                done.slices_folded = compact_map(writer, self._opened(table), self._record(table))
            return
        if table.declared.layout == LOG:
            self._fold_log(writer, done, *self._planned(table))
            return
        closed, sealed = self._closed_rows(table), self._closed_rows(table, least=1)
        opened = self._opened(table)
        # Spark's own Delta writer overwrites the commits of others on a store.
        spark = None if isinstance(table.path, Location) else self.spark
        done.slices_folded = merge(writer, spark, opened, closed, self._record(table), sealed=sealed)

    @contextmanager
    def _between_batches(self) -> Iterator[None]:
        """Keep the streams of the flow from committing: for commits that Delta would refuse beside one."""
        with ExitStack() as locks:
            if self.open_generations > 0:
                for group in self.groups:
                    locks.enter_context(group.committing(self.kept.wait_seconds))
            yield

    def _planned(
        self, table: StateTable, by: tuple[str, ...] | None = None, *, rewrite_all: bool = False
    ) -> tuple[DeltaTable, FoldPlan]:
        """Return what a fold of a log is to do, and the version of the table that it reads.

        Which generations are closed is asked before the table is opened: a batch that comes in between is then open.
        """
        closed, sealed = self._closed(table), self._closed(table, least=1)
        opened = self._opened(table)
        parts, order = parts_of(opened), clustered_by(opened) if by is None else by
        plan = plan_fold(parts, closed, order, rewrite_all=rewrite_all)
        if plan.rows > _driver_rows(table):
            # Spark replaces by condition what it has read a while before, so never where a batch may still be appended: that
            # none is rests on locks of files, which another host may not see.
            plan = plan_fold(parts, sealed, order, rewrite_all=rewrite_all)
        return opened, plan

    def _opened(self, table: StateTable) -> DeltaTable:
        """Open the version that a commit starts from, before all else that it rests on is read.

        That nobody has rewritten the table since this compaction began, the leases say; behind that version Delta sees to it.
        """
        opened = DeltaTable(str(table.path))
        self._still_held()
        return opened

    def _still_held(self) -> None:
        for group in self.groups:
            group.still_held()

    def _closed(self, table: StateTable, *, least: int = 0) -> Closed:
        """Return the closed generations, `least` of them counted as open at any rate.

        What an opaque state's last batch wrote is replaced if the batch comes again.
        """
        least = max(least, 1 if table.declared.kind == OPAQUE else 0)
        return closed_generations(table.last_txid(), max(self.open_generations, least))

    def _closed_rows(self, table: StateTable, *, least: int = 0) -> Closed:
        """Return the closed generations of a table of rows.

        Quarantine is written by all batch groups of the flow, each with txids of its own, and by a batch that is poison
        before it is committed: there the batches that Spark has planned tell, group by group. One that has left its group's
        folder behind comes back with an older version of the flow.
        """
        own = self._closed(table, least=least)
        if table.path != self.lake.quarantine_path(self.flow):
            return own
        open_ones = max(self.open_generations, least)
        each = [own, *(closed_generations(_planned_txid(group), open_ones) for group in self.groups)]
        last = max(each, key=lambda closed: closed.before)
        return replace(last, open=frozenset(gen for one in each for gen in range(one.before, one.before + open_ones)))

    def _fold_log(self, writer: StateWriter, done: _Done, opened: DeltaTable, plan: FoldPlan) -> None:
        done.slices_folded, done.rolled_up = len(plan.slices), plan.rolls_up
        if not plan.work:
            return
        record = self._record(writer.table)
        before = min(plan.closed.before * GENERATION, record.txid + 1)
        record = record.model_copy(update={"folded_before": before})
        if plan.rows <= _driver_rows(writer.table):
            fold_arrow(writer, opened, plan, record)
        elif isinstance(writer.table.path, Location):
            hint = "compact it more often, or slice it; its reads stay right"
            raise TooLargeToFoldError(writer.table.name, plan.rows, STORE_ROWS, hint)
        elif self.spark is None:
            hint = f"Spark folds it: tridelta compact {self.flow}; in Python pass a session"
            raise TooLargeToFoldError(writer.table.name, plan.rows, DRIVER_ROWS, hint)
        else:
            fold_spark(writer, self.spark, opened, plan, record)

    def _record(self, table: StateTable) -> BatchRecord:
        """Return what the commit says: the last txid and the epoch that it covers, and every claim that is still alive."""
        txid = table.last_txid()
        claims = _alive(table.commits.claims())
        of = {group: _alive(claims) for group, claims in table.commits.groups_claims().items()}
        return BatchRecord(
            kind=COMPACTION,
            flow=self.flow,
            epoch=max((commit.epoch or 0 for commit in table.history()), default=0),
            txid=-1 if txid is None else txid,
            claims=claims or None,
            claims_of={group: claims for group, claims in of.items() if claims} or None,
        )


def _driver_rows(table: StateTable) -> int:
    """Return up to how many rows are folded without Spark."""
    return STORE_ROWS if isinstance(table.path, Location) else DRIVER_ROWS


def _alive(claims: Mapping[str, frozenset[str]]) -> dict[str, tuple[str, ...]]:
    return {slice_: tuple(sorted(files)) for slice_, files in claims.items() if files}


def _planned_txid(checkpoint: Checkpoint) -> int | None:
    """Return the txid of the last batch that Spark has planned, or of the first one to come; None: an epoch is to begin."""
    epoch = checkpoint.epoch
    return None if epoch is None else epoch.txid(max(0, checkpoint.last_batch()))


def _unfinished(checkpoint: Checkpoint) -> bool:
    """Return whether the last batch that Spark planned lacks Spark's own commit."""
    last = checkpoint.last_batch()
    return last >= 0 and not (checkpoint.spark / "commits" / str(last)).exists()


def _conflicts() -> tuple[type[Exception], ...]:
    """Return the classes by which delta-rs and Delta on Spark say that another commit came first."""
    from delta import exceptions

    # In Python none of them derives from the one that stands for them all.
    return CommitFailedError, *(getattr(exceptions, name) for name in exceptions.__all__)
