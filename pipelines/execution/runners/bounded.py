"""The bounded runner: replaces slices of a flow's states by what the source holds of them now.

Each source row counts once, in whatever order streams and backfills meet it. A backfill lists the source's files (C), works
out the wanted slices from all of them, then takes the checkpoint's commit lock, which a stream holds for each of its batches,
and replaces each slice in one commit per state. What the stream has committed of the slice is in C, so it goes with the old
rows; what C holds beyond the stream's position is claimed in the commit's record, and the stream leaves those rows out when
it comes to them (`StreamBatch`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from pipelines.errors import BatchError, DefinitionError, SourceError, TrideltaError
from pipelines.execution.batch.accounts import with_hash
from pipelines.execution.batch.channels import with_last_clock
from pipelines.execution.batch.commits import Announced, prepared
from pipelines.execution.batch.deferred_signals import unbroken
from pipelines.execution.batch.group import BatchGroup, Sink
from pipelines.execution.batch.plan_run import Base, PlanRun, Reads
from pipelines.execution.batch.quarantine import of_group, table_columns
from pipelines.execution.checkpoint.belonging import Belonging
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.events.hooks import Listener
from pipelines.execution.protocol.failures import lake_fault, reason_of
from pipelines.execution.report import BackfillReport, SliceReport, StateCommit
from pipelines.execution.runners.bounded_inputs import refused, versions_read
from pipelines.execution.runners.claims import check_tables, check_unread
from pipelines.execution.runners.held_rows import HeldRows, held_rows
from pipelines.graph import nodes
from pipelines.sources.base import file_key
from pipelines.spark.arrow_frame import to_arrow
from pipelines.state.kinds import MAP, OPAQUE
from pipelines.state.literals import literal
from pipelines.state.quarantine import NAME
from pipelines.state.record import SLICE, BatchRecord
from pipelines.state.schema import NO_SLICE, SLICE_COLUMN, UNSLICED, slice_problem
from pipelines.state.turns import stream_id
from pipelines.state.writer import StateWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.state.table import StateTable

# Slices worked out in one pass: over a year of days in one, while the results of one pass, which travel through the
# driver, stay within what it holds.
SLICES_A_PASS = 400
# New files may arrive while the slices are worked out, and the stream may take them first: then once more, with them.
_PASSES = 5


class SourceGoneError(SourceError):
    """Files that the stream has counted are no longer in the source: replacing a slice would lose their rows."""

    def __init__(self, source: str, files: Sequence[str]) -> None:
        self.source, self.files = source, tuple(files)
        super().__init__(
            f'source "{source}": {len(files)} file(s) that the stream has counted are gone, e.g. {files[0]}; '
            "a backfill would lose their rows",
            hint="put the files back, then backfill again",
        )


class SliceOfMapError(TrideltaError):
    """A slice cannot be put into a map state (again): what is folded into a value cannot be taken out of it."""

    def __init__(self, flow: str, state: str, slice_: str, reason: str) -> None:
        self.flow, self.state, self.slice, self.reason = flow, state, slice_, reason
        super().__init__(
            f'flow "{flow}": slice "{slice_}" cannot be replaced in state "{state}", which is a map: {reason}',
            hint="keep it in layout log (a built-in aggregator), or start over with a fresh checkpoint and "
            'on_fresh_checkpoint="reset"',
        )


@dataclass
class _Pass:
    """The results of one pass over the source, under a name that its commits carry."""

    slices: tuple[str, ...]
    positions: frozenset[str]
    results: dict[str, dict[str, pa.Table]]
    rejected: dict[str, pa.Table]
    counts: dict[str, tuple[int, frozenset[str]]]
    run: PlanRun
    clocks: dict[str, int]
    kept: tuple[DataFrame, ...]
    read: dict[str, tuple[int, str]]
    name: str
    held: HeldRows = field(default_factory=HeldRows)

    def close(self) -> None:
        """Give the kept frames back."""
        self.run.close()
        for frame in self.kept:
            frame.unpersist()


@dataclass(frozen=True)
class _SliceRows:
    """The rows of one slice for one table.

    Attributes:
        hash: the XOR of their hashes; None: not computed.
        streamed: the files that the table's stream has counted.
        read: versions of the other flows' tables that were read, and Delta's ids of these.
        backfill: the name of the pass.
    """

    slice: str
    received: int
    files: frozenset[str]
    backfill: str
    rows: pa.Table = field(default_factory=lambda: pa.table({}))
    hash: int | None = None
    streamed: frozenset[str] = frozenset()
    read: Mapping[str, tuple[int, str]] = field(default_factory=dict)


# For a stream's batch, or for another backfill or compaction.
_WAIT_SECONDS = 600.0


class BoundedRunner:
    """Backfills one batch group of a flow.

    Args:
        checkpoint: the group's checkpoint (of its stream, if it ever had one).
    """

    def __init__(
        self,
        group: BatchGroup,
        checkpoint: Checkpoint,
        *,
        listeners: tuple[Listener, ...] = (),
        on_slice: Callable[[SliceReport], None] | None = None,
    ) -> None:
        self._group, self._checkpoint = group, checkpoint
        self._announced = Announced(listeners, group.lake)
        self._on_slice = on_slice
        self._emitted: dict[int, pa.Table] = {}
        self._seen: dict[str, int] = {}
        self._taken_in: dict[str, dict[str, frozenset[str]]] = {}
        """Of slices that a killed backfill has left half made, the files that each map has taken in."""
        self._pass_name = ""

    def run(self, slices: Sequence[str]) -> BackfillReport:
        """Replace exactly these slices in every state of the group.

        A slice that a gate refuses is reported with its error, and stays as it was in the states behind the gate; so is
        one whose source is a table of another flow that does not hold that slice. The others are not touched by that.

        Raises:
            DefinitionError: a text cannot be a slice.
        """
        started = time.monotonic()
        wanted = tuple(dict.fromkeys(slices))
        for text in wanted:
            problem = slice_problem(text)
            if problem:
                raise DefinitionError(f"{text[:80]!r} cannot be a slice: {problem}")
        belonging = Belonging(self._checkpoint, self._group.lake)
        belonging.check(filling=True)
        # A plan that queries states, or folds into a map, reads what the slices before have committed: one at a time.
        size = 1 if self._group.queries_states or self._maps() else SLICES_A_PASS
        with self._checkpoint.rewriting(_WAIT_SECONDS):
            # What slices are folded into is nobody else's until the last one is in.
            self._seen = {sink.name: sink.table.version() for sink in self._folded()}
            # Not before: another backfill may have put the same slices in while this one waited.
            self._taken_in = self._check_maps(wanted)
            reports = self._without_source(wanted)
            able = [slice_name for slice_name in wanted if slice_name not in reports]
            for start in range(0, len(able), size):
                reports |= {report.slice: report for report in self._whole(tuple(able[start : start + size]))}
            with self._checkpoint.committing(_WAIT_SECONDS):
                # A state that was added or put back, and that every slice was refused to, is not filled by that.
                got = {commit.state for report in reports.values() for commit in report.commits}
                filled = [sink.table for sink in self._group.sinks if sink.name in got or belonging.knows(sink.table)]
                belonging.note(filled, only_these=False)
                belonging.note_on([self._group.quarantine.table], also_new=True)
        in_order = tuple(reports[slice_name] for slice_name in wanted)
        return BackfillReport(self._group.topology.name, in_order, time.monotonic() - started)

    def _without_source(self, slices: tuple[str, ...]) -> dict[str, SliceReport]:
        """Return the slices that another flow has yet to make, as failed."""
        reports = refused(self._group.topology.name, self._group.spouts, slices) if self._group.sources.sliced else {}
        for report in reports.values():
            if self._on_slice:
                self._on_slice(report)
        return reports

    def _maps(self) -> list[Sink]:
        return [sink for sink in self._group.sinks if sink.writer.declared.layout == MAP]

    def _folded(self) -> list[Sink]:
        """Return the maps that slices are folded into, where they are not replaced as a whole."""
        return self._maps() if self._group.sources.sliced else []

    def _check_maps(self, slices: tuple[str, ...]) -> dict[str, dict[str, frozenset[str]]]:
        """Check that a map state takes each slice once, and only while no stream has written it. The whole is replaced freely.

        Returns:
            By slice and map the files that it has taken in, where another state has not: what committed them was cut off, or a
            gate refused the slice behind the map, or that state was added. The others can still get the slice.
        """
        taken_in: dict[str, dict[str, frozenset[str]]] = {}
        if not self._group.sources.sliced or not self._maps():
            return taken_in
        # Not by commits: they go with the log, and a compaction carries the claims on. A slice of no rows may come again.
        claims = {sink.name: sink.table.commits.claims() for sink in self._group.sinks}
        self._check_no_stream(slices, self._maps())
        for sink in self._maps():
            others = [other for other in self._group.sinks if other is not sink]
            for slice_ in slices:
                files = claims[sink.name].get(slice_)
                if not files:
                    continue
                if all(claims[other.name].get(slice_) for other in others):
                    reason = "it is in there already"
                elif any(self._asks(other, sink) for other in others):
                    # What it held before the slice, and what it emitted, is gone.
                    reason = "it is in there already, and another state is made of it"
                else:
                    taken_in.setdefault(slice_, {})[sink.name] = files
                    continue
                raise SliceOfMapError(self._group.topology.name, sink.name, slice_, reason)
        return taken_in

    def _check_no_stream(self, slices: tuple[str, ...], maps: Sequence[Sink]) -> None:
        """Check that no stream has written one of these map states."""
        for sink in maps:
            if slices and sink.table.commits.batches():
                reason = "its stream has counted batches already"
                raise SliceOfMapError(self._group.topology.name, sink.name, slices[0], reason)

    def _asks(self, sink: Sink, state: Sink) -> bool:
        """Return whether a state is made of what another one holds or emits."""
        return any(
            node.id == state.node.id or (isinstance(node, nodes.StateQueryNode) and node.state == state.name)
            for node in self._group.topology.graph.ancestors(sink.node.id)
        )

    def _check_taken_in(self, work: _Pass) -> None:
        """Check that maps which are left out hold the very files that the others get."""
        for slice_ in work.slices:
            _, files = work.counts.get(slice_, (0, frozenset()))
            for name, taken in self._taken_in.get(slice_, {}).items():
                if taken != files:
                    reason = "it is in there already, of other files"
                    raise SliceOfMapError(self._group.topology.name, name, slice_, reason)

    def _whole(self, slices: tuple[str, ...]) -> list[SliceReport]:
        """Replace slices so that a cancelled backfill leaves whole ones: a slice of several waves is ended first."""
        if len(self._group.waves) == 1:
            return self._in_waves(slices)
        with unbroken():
            return self._in_waves(slices)

    def _in_waves(self, slices: tuple[str, ...]) -> list[SliceReport]:
        """Replace slices wave by wave: states that query other states of the flow come after those (`BatchGroup.waves`)."""
        # One name for all waves: it is by it that a replay knows which states were made when quarantine was.
        self._pass_name = uuid4().hex
        merged: list[SliceReport] = []
        for number, wave in enumerate(self._group.waves, 1):
            reports = self._replace(slices, wave, last=number == len(self._group.waves))
            merged = (
                [_together(report, other) for report, other in zip(merged, reports, strict=True)] if merged else reports
            )
        for report in merged:
            if self._on_slice and len(self._group.waves) > 1:
                self._on_slice(report)
        return merged

    def _replace(self, slices: tuple[str, ...], wave: tuple[Sink, ...], *, last: bool) -> list[SliceReport]:
        folded = [sink for sink in self._folded() if sink in wave]
        for _ in range(_PASSES):
            work = self._work_out(slices, wave, last=last)
            try:
                with self._checkpoint.committing(_WAIT_SECONDS):
                    self._look(wave)
                    self._check_no_stream(slices, folded)
                    check_tables(self._group, self._checkpoint)
                    unseen = self._counted_beyond(work.positions)
                    if not unseen:
                        check_unread(self._group, self._checkpoint, work.positions)
                        return list(self._commit(work, wave, last=last))
            except TrideltaError:
                raise
            except Exception as error:
                raise self._named(error, "slices were replaced") from error
            finally:
                work.close()
        raise SourceGoneError(self._group.name, sorted(unseen))

    def _named(self, error: Exception, doing: str) -> TrideltaError:
        """Turn an error of Spark's, of the user's function or of the disk into one with what a reader needs of it."""
        return lake_fault(error, str(self._group.lake.root), doing) or BatchError(
            f'flow "{self._group.topology.name}": the backfill stopped while {doing}: {reason_of(error)}',
            hint="correct the flow or the data and run the backfill again",
        )

    # --- working out ------------------------------------------------------------------------------------------------

    def _work_out(self, slices: tuple[str, ...], wave: tuple[Sink, ...], *, last: bool) -> _Pass:
        read = versions_read(self._group.spouts) if self._group.sources.sliced else {}
        sources, positions = self._group.sources.bounded(self._group.spark)
        # With channels the windows would run once for the clocks and once for the events.
        kept = {id_: frame.persist() for id_, frame in sources.items()} if self._group.sources.channels else {}
        sources |= kept
        clocks = self._group.sources.clocks(sources)
        sources = self._group.sources.events(sources)
        label = f"slices {slices[0]} to {slices[-1]}" if len(slices) > 1 else f"slice {slices[0]}"
        state = self._group.lake.state
        # The whole of a state starts from nothing.
        base = (lambda name: Base(state(name))) if self._group.sources.sliced else None
        reads = Reads(lambda name, behind: (state(name), None), self._emitted, base, heard=clocks)
        run = PlanRun(self._group, sources, label, reads, slices)
        try:
            counts = run.slice_counts()
            # The last wave passes all gates, so that what they refuse is replaced in quarantine once and whole.
            frames = run.frames([sink.node.id for sink in (self._group.sinks if last else wave)], {})
            left_out = self._taken_in.get(slices[0], {})
            computed = [sink for sink in wave if sink.name not in left_out]
            results = {sink.name: _by_slice(to_arrow(with_hash(frames[sink.node.id]))) for sink in computed}
            refused = run.rejected_rows({}) if last else None
            by_slice = _by_slice(refused) if refused is not None else {}
            own = tuple(kept.values())
            return _Pass(slices, positions, results, by_slice, counts, run, clocks, own, read, self._pass_name)
        except Exception as error:
            run.close()
            for frame in kept.values():
                frame.unpersist()
            if isinstance(error, TrideltaError):
                raise
            raise self._named(error, "slices were worked out") from error

    # --- committing -------------------------------------------------------------------------------------------------

    def _look(self, wave: tuple[Sink, ...]) -> None:
        """Note the versions of the tables before anything is asked of them: what comes behind these is another process's.

        A map whose rows are made of what it holds keeps the version that it had then.
        """
        folded, quarantine = self._folded(), self._group.quarantine.table
        self._seen |= {sink.name: sink.table.version() for sink in wave if sink not in folded}
        self._seen[NAME] = quarantine.version() if quarantine.exists() else -1

    def _counted_beyond(self, positions: frozenset[str]) -> frozenset[str]:
        """Return files that the stream has counted and that this pass did not read: new ones, or ones that are gone."""
        read = {file_key(file) for file in positions}
        return frozenset().union(*(self._streamed(sink.table) for sink in self._group.sinks)) - read

    def _streamed(self, table: StateTable) -> frozenset[str]:
        """Return the files (as `file_key`) whose batches this table has committed, or that the present epoch begins behind."""
        epoch = self._checkpoint.epoch
        if epoch is None:
            return frozenset()
        last = max(
            (
                c.txid
                for c in table.commits.batches()
                if c.epoch == epoch.number and c.txid is not None and c.group in (None, self._group.name)
            ),
            default=-1,
        )
        if epoch.first_batch:
            # It goes on in the middle of Spark's checkpoint: what lies before was read in the epoch before.
            last = max(last, epoch.txid(epoch.first_batch) - 1)
        # Quarantine takes it once more, too, where no state keeps it.
        makes_way = table.declared.kind == OPAQUE or (
            table is self._group.quarantine.table and not self._group.transactional
        )
        if makes_way and last >= 0:
            # Spark will replay a batch that it has not marked as done, and what that batch wrote then makes way.
            last = min(last, epoch.first_txid + self._checkpoint.finished_batches() - 1)
        return self._group.sources.positions(self._checkpoint.spark, 0, last - epoch.first_txid)

    def _commit(self, work: _Pass, wave: tuple[Sink, ...], *, last: bool) -> Iterator[SliceReport]:
        self._check_taken_in(work)
        streamed = {sink.name: self._streamed(sink.table) for sink in wave}
        if last:
            work.held = held_rows(self._group, work.rejected.get(NO_SLICE), frozenset().union(*streamed.values()))
        for slice_ in work.slices:
            # Committed in quarantine and all states, and told: or not begun. What has left quarantine is nowhere in between.
            with unbroken():
                if last and slice_ == work.slices[0]:
                    self._commit_rejected(work, NO_SLICE)
                quarantined = self._judged_again(work, slice_) if last else 0
                report = self._commit_everywhere(work, slice_, wave, streamed, quarantined)
                if self._on_slice and len(self._group.waves) == 1:
                    self._on_slice(report)
            yield report

    def _commit_everywhere(
        self,
        work: _Pass,
        slice_: str,
        wave: tuple[Sink, ...],
        streamed: Mapping[str, frozenset[str]],
        quarantined: int,
    ) -> SliceReport:
        started = time.monotonic()
        blocked = work.run.refused_slices.get(slice_, {})
        received, files = work.counts.get(slice_, (0, frozenset()))
        given = _SliceRows(slice_, received, files, work.name)
        commits = [
            self._commit_slice(work, sink, given, streamed[sink.name])
            for sink in wave
            if not self._is_behind(sink, blocked)
        ]
        return SliceReport(
            flow=self._group.topology.name,
            slice=slice_,
            received=received,
            quarantined=quarantined,
            commits=tuple(commits),
            seconds=time.monotonic() - started,
            gates=work.run.gate_results(slice_),
            error="; ".join(blocked.values()) or None,
        )

    def _stays(self, blocked: dict[int, str]) -> bool:
        """Return whether a slice stays in every state as it was: so do its rejected rows, for what passes now is in none.

        Where a state stands before the gate that refuses the slice, quarantine goes with that state.
        """
        return bool(blocked) and all(self._is_behind(sink, blocked) for sink in self._group.sinks)

    def _is_behind(self, sink: Sink, blocked: dict[int, str]) -> bool:
        ancestors = self._group.topology.graph.ancestors(sink.node.id)
        return any(isinstance(node, nodes.GateNode) and node.id in blocked for node in ancestors)

    def _commit_slice(self, work: _Pass, sink: Sink, given: _SliceRows, streamed: frozenset[str]) -> StateCommit:
        started = time.monotonic()
        if sink.name in self._taken_in.get(given.slice, {}):
            version = sink.table.version()
            # By a backfill that was killed, perhaps before it asked the disk.
            self._announced.on_disk(sink.name, sink.table, version)
            return StateCommit(sink.name, version, 0, 0.0, replayed=True)
        result, slice_ = work.results[sink.name].get(given.slice), given.slice
        rows, digest = sink.writer.empty(), 0
        if result is not None:
            ready = prepared(result, sink.node)
            rows, digest = ready.rows, ready.hash or 0
            if ready.emitted is not None:
                self._emitted[sink.node.id] = ready.emitted
        given = replace(given, rows=rows, hash=digest, streamed=streamed, read=work.read)
        if sink.is_channel:
            assert isinstance(sink.node, nodes.ChannelNode)
            ended = with_last_clock(rows, sink.node, work.clocks, work.run.counts, slice_)
            given = replace(given, rows=ended, hash=None)
        version = self._write(sink.writer, sink.name, given)
        return StateCommit(sink.name, version, given.rows.num_rows, time.monotonic() - started)

    def _write(self, writer: StateWriter, name: str, given: _SliceRows) -> int:
        record = self._record(writer, name, given)
        app_id, seen = self._app_id(name, record.epoch), self._seen.get(name)

        def write() -> int:
            if writer.declared.layout != MAP:
                among = self._group.rejected if record.group else None
                return writer.replace_slice(given.rows, record, app_id, seen=seen, among=among)
            if self._group.sources.sliced:
                return writer.merge_arrow(given.rows, record, app_id, seen=seen)
            return writer.replace_map(given.rows, record, app_id, seen=seen)

        version = self._announced.commit(name, record.txid, writer, write)
        if name in self._seen:
            self._seen[name] = version
        return version

    def _record(self, writer: StateWriter, name: str, given: _SliceRows) -> BatchRecord:
        """Return what the commit of a slice says: the last txid that it covers, and the files that the stream has yet to read."""
        group = self._group.name if name == NAME else None
        own = [
            commit.txid for commit in writer.table.commits.batches() if group is None or commit.group in (None, group)
        ]
        txid = own[-1] if own else None
        epoch = self._checkpoint.epoch
        # A map's claims also say that it has the slice, where the stream had read the files before the map began.
        folded = writer.declared.layout == MAP and self._group.sources.sliced
        met = frozenset[str]() if folded else given.streamed
        return BatchRecord(
            kind=SLICE,
            flow=self._group.topology.name,
            epoch=epoch.number if epoch else 0,
            txid=-1 if txid is None else txid,
            slice=given.slice,
            received=given.received,
            rows=given.rows.num_rows,
            hash=given.hash,
            claims=tuple(sorted(file for file in given.files if file_key(file) not in met)),
            backfill=given.backfill,
            read={name: version for name, (version, _) in given.read.items()} or None,
            read_ids={name: made for name, (_, made) in given.read.items()} or None,
            group=group,
        )

    def _app_id(self, name: str, epoch: int) -> str:
        own = f"{NAME}/{self._group.name}" if name == NAME else name
        return stream_id(self._group.topology.name, own, epoch)

    def _judged_again(self, work: _Pass, slice_: str) -> int:
        """Commit a slice's rejected rows, and release those that had no slice and are judged with it. Return how many it has.

        A slice that a gate refuses stays as it was, and so do the rows that would be judged with it.
        """
        if self._stays(work.run.refused_slices.get(slice_, {})):
            return 0
        if slice_ in work.held.slices:
            work.held = work.held.without(slice_)
            self._commit_rejected(work, NO_SLICE)
        return self._commit_rejected(work, slice_)

    def _commit_rejected(self, work: _Pass, slice_: str) -> int:
        """Commit the rejected rows of a slice in place of those that quarantine holds of it. Malformed ones have no slice.

        Those that had none and have one by now stay until that one is replaced: no state counts them.
        """
        writer, rows = self._group.quarantine, work.rejected.get(slice_)
        if writer.table.exists() or rows is not None:
            writer.prepare(table_columns())
        if rows is None and not self._holds_rejected(writer.table, slice_):
            return 0
        rows = writer.empty() if rows is None else of_group(rows, self._group.name)
        if slice_ == NO_SLICE:
            rows = work.held.beside(rows)
        received, files = work.counts.get(slice_, (0, frozenset()))
        # Batches that refuse nothing leave no commit here: files of those since the last one are claimed, too.
        given = _SliceRows(slice_, received, files, work.name, rows, streamed=self._judged(writer.table))
        self._write(writer, NAME, given)
        return rows.num_rows

    def _judged(self, quarantine: StateTable) -> frozenset[str]:
        """Return the files (as `file_key`) up to the last batch that has rejected rows.

        That may be long ago. None where the log of a Delta table no longer says: more is claimed then than the stream will read.
        """
        try:
            return self._streamed(quarantine)
        except (DeltaError, FileNotFoundError):
            return frozenset()

    def _holds_rejected(self, table: StateTable, slice_: str) -> bool:
        text = literal(SLICE_COLUMN, slice_, pa.string())
        return table.exists() and table.count(f"{SLICE_COLUMN} = {text} AND {self._group.rejected}") > 0


def _together(report: SliceReport, other: SliceReport) -> SliceReport:
    """Return the reports of two waves of the same slice."""
    errors = [error for error in (report.error, other.error) if error]
    return replace(
        other,
        commits=report.commits + other.commits,
        seconds=report.seconds + other.seconds,
        error="; ".join(dict.fromkeys(errors)) or None,
    )


def _by_slice(rows: pa.Table) -> dict[str, pa.Table]:
    """Return an Arrow table cut by its slices."""
    if SLICE_COLUMN not in rows.column_names:
        return {UNSLICED: rows} if rows.num_rows else {}
    ordered = rows.sort_by(SLICE_COLUMN)
    runs = pc.run_end_encode(ordered[SLICE_COLUMN].combine_chunks()) if ordered.num_rows else None
    parts, start = {}, 0
    if runs is not None:
        for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            parts[value] = ordered.slice(start, end - start)
            start = end
    return parts


def check_sliced(group: BatchGroup) -> None:
    """Refuse a backfill of a flow that names no slice column."""
    if not group.sources.sliced:
        raise TrideltaError(
            f'flow "{group.topology.name}": stream "{group.name}" names no slice column, so no part of it can be replaced',
            hint='give new_stream(..., slice_by="...") the column of the event date',
        )
