"""One replay at work: quarantined texts parsed as rows again, the plan over them, a commit in each state and in quarantine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipelines.execution.batch.accounts import with_hash
from pipelines.execution.batch.commits import Announced, computed, prepared
from pipelines.execution.batch.plan_run import Base, PlanRun, Reads, around_own
from pipelines.execution.batch.quarantine import rejected_by_gate, rejected_by_source
from pipelines.execution.checkpoint.replay_records import Record, app_id
from pipelines.execution.replays.counted import Replaced, Row, replaced_since
from pipelines.execution.replays.report import LotReport
from pipelines.execution.replays.selection import NUMBER, STORED, Lot, completed, keys_of, stored_rows
from pipelines.execution.replays.texts import UNREADABLE, check_readable, rows_of_gate, rows_of_source
from pipelines.execution.report import StateCommit
from pipelines.graph import nodes
from pipelines.planner.compile import Compiler
from pipelines.planner.step import REPLAYED
from pipelines.sources.base import CORRUPT, FILE
from pipelines.spark.arrow_frame import empty_frame
from pipelines.state.kinds import MAP
from pipelines.state.quarantine import GROUP, NAME, SOURCE, is_poison
from pipelines.state.record import REPLAY, BatchRecord, generation
from pipelines.state.schema import GEN, NO_SLICE, SLICE_COLUMN, TXID, UNSLICED
from pipelines.state.turns import LateWriterError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.execution.batch.group import BatchGroup, Sink
    from pipelines.execution.events.hooks import Listener
    from pipelines.execution.replays.selection import EntryPlace
    from pipelines.planner.siblings import Siblings
    from pipelines.quality.results import GateResult
    from pipelines.state.lake import Lake
    from pipelines.state.table import StateTable


class ReplayRun(PlanRun):
    """Builds the frames that a replay commits, and tells what is rejected again.

    Args:
        rows: a source's frame, or a gate's tuples, with `_replayed` and `_unreadable` (`texts`).
        reads: what the plan reads beside them.
    """

    def __init__(
        self,
        group: BatchGroup,
        entry: nodes.SpoutNode | nodes.GateNode,
        rows: DataFrame,
        label: str,
        reads: Reads,
    ) -> None:
        self._entry = entry
        self.results: dict[str, GateResult] = {}
        self._rejected_rows: dict[str, DataFrame] = {}
        sources = {spout.id: _nothing(group, spout) for spout in group.spouts}
        if isinstance(entry, nodes.SpoutNode):
            sources[entry.id] = rows
        super().__init__(group, sources, label, reads)
        self.entered = self._marked[entry.id] if isinstance(entry, nodes.SpoutNode) else self._cache(rows)

    def _enter(self, spout: nodes.SpoutNode, source: DataFrame) -> DataFrame:
        return self._cache(self.group.sources.with_slice(spout, source))

    def frames(
        self,
        wanted: Iterable[int],
        left_out: Mapping[str, frozenset[str]],
        given: Mapping[int, DataFrame] | None = None,
        siblings: Sequence[Siblings] = (),
        numbers: frozenset[int] = frozenset(),
    ) -> dict[int, DataFrame]:
        """Return the frames of some nodes, by id.

        Args:
            left_out: none, ever: here rows are left out one by one.
            given: frames that are there already, by node.
            siblings: persists that get one frame, with the rows of all.
            numbers: those rows.
        """
        spouts, given = {}, dict(given or {})
        for spout in self.group.spouts:
            taken = self._without(self._marked[spout.id], numbers).where(~F.expr(self.group.sources.rejected))
            fields = [*spout.fields, SLICE_COLUMN] if self.group.sources.sliced else list(spout.fields)
            spouts[spout.id] = taken.select(*(f"`{name}`" for name in fields), REPLAYED)
        if isinstance(self._entry, nodes.GateNode):
            given[self._entry.id] = self.gate(self._entry, self._without(self.entered, numbers).drop(UNREADABLE))
        return Compiler(self.group.topology.graph, tuple(wanted), self, spouts, given, siblings).frames()

    def _without(self, frame: DataFrame, numbers: frozenset[int]) -> DataFrame:
        if not numbers:
            return frame
        gone = self.group.spark.createDataFrame(pa.table({REPLAYED: pa.array(sorted(numbers), pa.int64())}))
        return frame.join(F.broadcast(gone), REPLAYED, "left_anti")

    def gate(self, node: nodes.GateNode, frame: DataFrame) -> DataFrame:
        """Let a frame pass, at once: few rows come, and the verdict is there before anything is committed."""
        compiled = self.group.compiled_gate(node, frame.drop(REPLAYED))
        annotated = self._cache(compiled.annotate(frame))
        result = self.results[node.gate.name] = compiled.judge(annotated, annotated.drop(REPLAYED))
        result.raise_if_refused(self.label)
        if compiled.drop_names:
            also = [REPLAYED] if REPLAYED in annotated.columns else []
            self._rejected_rows[node.gate.name] = rejected_by_gate(
                compiled.dropped(annotated), node.gate.name, compiled.drop_names, node.fields, also
            )
        return compiled.kept(annotated)

    def rejected_again(self) -> pa.Table:
        """Return what was rejected of the rows that `frames` took last: as quarantine keeps it, with `_slice` and `_replayed`."""
        parts = list(self._rejected_rows.values())
        if isinstance(self._entry, nodes.SpoutNode):
            marked = self._marked[self._entry.id].where(F.expr(self.group.sources.rejected))
            parts.append(rejected_by_source(marked, self._entry, [REPLAYED]))
        nothing = F.lit(None).cast("bigint").alias(REPLAYED)
        whole = [part if REPLAYED in part.columns else part.select("*", nothing) for part in parts]
        if not whole:
            return pa.table({REPLAYED: pa.array([], pa.int64())})
        return reduce(DataFrame.unionByName, whole).toArrow()


def _nothing(group: BatchGroup, spout: nodes.SpoutNode) -> DataFrame:
    """Return a source that gives no row."""
    own = [StructField(CORRUPT, StringType()), StructField(FILE, StringType()), StructField(REPLAYED, LongType())]
    return empty_frame(group.spark, StructType([*group.sources.schema(spout).fields, *own]))


Numbers = frozenset[int]
REJECTED_SINCE = "a backfill has rejected them again since"


@dataclass(frozen=True)
class Order:
    """The order for one replay.

    Attributes:
        counted: of each state the rows that it counts already.
        seen: of each table (`quarantine` too) the version for which that was judged; moves on with each commit.
    """

    lot: Lot
    record: Record
    counted: Mapping[str, Numbers]
    seen: dict[str, int]


class Work:
    """Replays lots that enter at one place."""

    def __init__(
        self, spark: SparkSession, lake: Lake, group: BatchGroup, entry: EntryPlace, listeners: tuple[Listener, ...]
    ) -> None:
        self._spark, self._lake, self.group, self.entry = spark, lake, group, entry
        self._announced = Announced(listeners, lake)
        self.sinks: tuple[Sink, ...] = tuple(sink for sink in group.sinks if sink.node.id in entry.sinks)
        self._flow = group.topology.name

    # --- looking ----------------------------------------------------------------------------------------------------

    def look(self, lot: Lot) -> tuple[list[Row], Numbers]:
        """Return the rows with the slice that each will be counted in, and the numbers of those that do not read back."""
        run = self._run(lot, 0)
        try:
            frame, sliced = run.entered, self.entry.sliced
            slice_ = F.col(SLICE_COLUMN) if sliced else F.lit(UNSLICED)
            if CORRUPT in frame.columns and not sliced:
                slice_ = F.when(F.col(CORRUPT).isNotNull(), NO_SLICE).otherwise(slice_)
            entered = frame.select(REPLAYED, slice_.alias("slice"), UNREADABLE).toArrow().to_pylist()
        finally:
            run.close()
        slices = {row[REPLAYED]: row["slice"] for row in entered}
        rows = [
            Row(
                number=row[NUMBER],
                txid=row[TXID],
                stored=row[SLICE_COLUMN],
                slice=slices[row[NUMBER]],
                file=row["file"],
                poison=is_poison(lot.stage),
            )
            for row in lot.rows.select([NUMBER, TXID, SLICE_COLUMN, "file"]).to_pylist()
        ]
        return rows, frozenset(row[REPLAYED] for row in entered if row[UNREADABLE])

    def _run(self, lot: Lot, number: int) -> ReplayRun:
        node = self.entry.node
        if isinstance(node, nodes.SpoutNode):
            schema = self.group.sources.schema(node)
            check_readable(self.group.topology, lot, schema)
            rows = rows_of_source(self._spark, lot, node, schema)
        else:
            schema = self.group.schema_at(node)
            check_readable(self.group.topology, lot, schema)
            rows = rows_of_gate(self._spark, lot, schema, sliced=self.entry.sliced)
        reads = Reads(
            partial(self._state_as_of, number), base=lambda name: Base(*self._state_as_of(number, name, behind=False))
        )
        return ReplayRun(self.group, node, rows, f"replay {number}", reads)

    def _state_as_of(self, number: int, name: str, behind: bool) -> tuple[StateTable, int | None]:
        table = self._lake.state(name)
        own = [commit.version for commit in table.history() if commit.record and commit.record.replay == number]
        return around_own(table, own, behind)

    # --- committing -------------------------------------------------------------------------------------------------

    def run(self, order: Order, note: Callable[[], None], begin: Callable[[], None] | None = None) -> LotReport:
        """Commit the rows into each state that does not count them, then what is rejected again into quarantine.

        Args:
            note: notes how far the states have come; called before quarantine gives the rows up.
            begin: writes the replay down; called when all of the first states is computed and nothing committed.
        """
        lot, record = order.lot, order.record
        run, commits = self._run(lot, record.number), []
        try:
            for wave in self.group.waves:
                sinks = [sink for sink in wave if sink in self.sinks]
                if sinks:
                    commits += self._wave(run, sinks, order, begin)
                    begin = None
            fresh = self._judged_since(record)
            again = self._again(run, lot, fresh)
        finally:
            run.close()
        note()
        self._quarantine(order, again, fresh)
        rejected = self._rejected_since(lot, fresh)
        everywhere = (
            frozenset.intersection(*(order.counted.get(sink.name, frozenset()) for sink in self.sinks)) - rejected
        )
        numbers = set(lot.rows[NUMBER].to_pylist()) - everywhere - rejected
        return LotReport(
            stage=lot.stage,
            stream=lot.stream,
            rows={},
            number=record.number,
            landed=len(numbers - set(again[REPLAYED].to_pylist())),
            counted=len(everywhere),
            refused=dict(Counter(again["rule"].to_pylist())) if again.num_rows else {},
            left={REJECTED_SINCE: len(rejected)} if rejected else {},
            commits=tuple(commits),
        )

    def _wave(
        self, run: ReplayRun, sinks: list[Sink], order: Order, begin: Callable[[], None] | None
    ) -> list[StateCommit]:
        todo = [sink for sink in sinks if not self.is_committed(sink, order.record)]
        parts: dict[Numbers, list[Sink]] = {}
        # Those that are committed are looked at too: what a gate refuses has to be known of all of them.
        for sink in sinks:
            parts.setdefault(order.counted.get(sink.name, frozenset()), []).append(sink)
        results: dict[str, tuple[pa.Table, float]] = {}
        for numbers, own in parts.items():
            frames = run.frames([sink.node.id for sink in own], {}, numbers=numbers)
            for sink in own:
                if sink in todo:
                    results[sink.name] = computed(with_hash(frames[sink.node.id].drop(REPLAYED)))
        if begin is not None:
            begin()
        done = []
        for sink in sinks:
            if sink in todo:
                rows, seconds = results[sink.name]
                done.append(self._commit(sink, rows, seconds, order))
            else:
                version = sink.table.version()
                self._announced.on_disk(sink.name, sink.table, version)
                done.append(StateCommit(sink.name, version, 0, 0.0, replayed=True))
        return done

    def on_disk(self) -> None:
        """Have quarantine on the disk of a durable lake, before a record says of a replay that was cut off what it has done."""
        table = self.group.quarantine.table
        self._announced.on_disk(NAME, table, table.version())

    def is_committed(self, sink: Sink, record: Record) -> bool:
        """Return whether a state has got a replay's rows, whatever became of them since."""
        return (sink.writer.committed(self._app_id(sink.name)) or 0) >= record.number

    def _commit(self, sink: Sink, result: pa.Table, seconds: float, order: Order) -> StateCommit:
        started, ready = time.monotonic(), prepared(result, sink.node)
        rows, seen, number = ready.rows, order.seen, order.record.number
        said = self._said(sink.table, order, rows.num_rows, digest=ready.hash)
        write = sink.writer.merge_arrow if sink.writer.declared.layout == MAP else sink.writer.append_replay
        # On a durable lake it is on the disk before quarantine gives the rows up, and that before the record says so.
        version = seen[sink.name] = self._announced.commit(
            sink.name, number, sink.writer, lambda: write(rows, said, self._app_id(sink.name), seen=seen[sink.name])
        )
        return StateCommit(sink.name, version, rows.num_rows, seconds + time.monotonic() - started)

    def _said(self, table: StateTable, order: Order, rows: int, *, digest: int | None = None) -> BatchRecord:
        txid = table.last_txid()
        return BatchRecord(
            kind=REPLAY,
            flow=self._flow,
            epoch=max((commit.epoch or 0 for commit in table.commits.batches()[-1:]), default=0),
            txid=-1 if txid is None else txid,
            received=order.lot.rows.num_rows,
            rows=rows,
            hash=digest,
            replay=order.record.number,
        )

    # --- quarantine -------------------------------------------------------------------------------------------------

    def _again(self, run: ReplayRun, lot: Lot, fresh: Replaced) -> pa.Table:
        """Return what is rejected again with `_replayed`, as it will be stored: each row of the batch that rejected it first."""
        rejected = run.rejected_again()
        origin = {row[NUMBER]: row for row in lot.rows.to_pylist()}
        latest = max(lot.rows[TXID].to_pylist())
        kept = []
        for again in rejected.to_pylist():
            if again[SLICE_COLUMN] in fresh:
                continue  # a backfill, or a reset, has judged it since
            first: Mapping[str, Any] = origin.get(again[REPLAYED], {})
            txid = first.get(TXID, latest)
            row = {**again, TXID: txid, GEN: generation(txid), "file": first.get("file"), GROUP: self.group.name}
            if again["stage"] == SOURCE and first:
                row["row"] = first["row"]
            kept.append(row)
        names = {name: pa.int64() if name in (TXID, GEN) else pa.string() for name in STORED}
        return pa.Table.from_pylist(kept, schema=pa.schema({**names, REPLAYED: pa.int64()}))

    def _judged_since(self, record: Record) -> Replaced:
        """Return what backfills and resets have put into quarantine since the replay was written down."""
        fresh = replaced_since(self.group.quarantine.table, record.versions[NAME], self.group.name)
        if fresh is None:
            seen = f"its log no longer tells what came behind version {record.versions[NAME]}"
            raise LateWriterError(self.group.quarantine.table.name, f"replay {record.number}", seen)
        return fresh

    def _rejected_since(self, lot: Lot, fresh: Replaced) -> Numbers:
        """Return the rows that a backfill has put into quarantine once more."""
        if not fresh.slices.intersection(lot.rows[SLICE_COLUMN].to_pylist()):
            return frozenset()

        def places(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
            return zip(*(rows[name].to_pylist() for name in ("stage", "row", SLICE_COLUMN)), strict=True)

        held = Counter(places(completed(self.group.quarantine.table.stored(f"{TXID} = -1"))))
        rejected = set()
        for number, place in zip(lot.rows[NUMBER].to_pylist(), places(lot.rows), strict=True):
            if place[-1] in fresh.slices and held[place] > 0:
                held[place] -= 1
                rejected.add(number)
        return frozenset(rejected)

    def _quarantine(self, order: Order, again: pa.Table, fresh: Replaced) -> None:
        """Remove the replayed rows and add what is rejected again, in one commit. All other rows of their txids stay.

        So do those of slices that quarantine has got since: a backfill has rejected them, though they look like ours.
        """
        lot, number, seen = order.lot, order.record.number, order.seen
        writer, app_id = self.group.quarantine, self._app_id(NAME)
        if (writer.committed(app_id) or 0) >= number:
            self.on_disk()
            return
        txids = lot.rows[TXID].to_pylist()
        first, last = min(txids), max(txids)
        held = completed(writer.table.stored(f"{TXID} BETWEEN {first} AND {last}"))
        ours = pa.array([slice_ not in fresh for slice_ in lot.rows[SLICE_COLUMN].to_pylist()], pa.bool_())
        gone, stays = stored_rows(lot.rows.filter(ours)), []
        for key in keys_of(held):
            stays.append(gone[key] <= 0)
            gone[key] -= 1
        rows = pa.concat_tables([held.filter(pa.array(stays, pa.bool_())), again.select(STORED)])
        said = self._said(writer.table, order, rows.num_rows)
        seen[NAME] = self._announced.commit(
            NAME, number, writer, lambda: writer.replace_rejected(rows, said, app_id, (first, last), seen[NAME])
        )

    def _app_id(self, table: str) -> str:
        return app_id(self._flow, table)
