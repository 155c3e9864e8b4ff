"""One replay at work: the plan over its rows, a commit in each state, then the one in quarantine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from pipelines.execution.batch.accounts import with_hash
from pipelines.execution.batch.commits import Announced, computed, prepared
from pipelines.execution.batch.plan_run import Base, Reads
from pipelines.execution.batch.quarantine import GROUP, NAME, SOURCE
from pipelines.execution.replays.counted import Row, is_poison, replaced_since
from pipelines.execution.replays.plan_run import UNREADABLE, ReplayRun, check_readable, rows_of_gate, rows_of_source
from pipelines.execution.replays.record import LotReport
from pipelines.execution.replays.selection import NUMBER, STORED, Lot, completed, stored_rows
from pipelines.execution.report import StateCommit
from pipelines.graph import nodes
from pipelines.planner.step import REPLAYED
from pipelines.sources.base import CORRUPT
from pipelines.state.kinds import MAP
from pipelines.state.record import REPLAY, BatchRecord, generation
from pipelines.state.schema import GEN, NO_SLICE, SLICE_COLUMN, TXID, UNSLICED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.execution.batch.group import BatchGroup, Sink
    from pipelines.execution.events.hooks import Listener
    from pipelines.execution.replays.entry import Entry
    from pipelines.execution.replays.record import Record
    from pipelines.state.lake import Lake
    from pipelines.state.table import StateTable

Numbers = frozenset[int]


class Work:
    """Replays lots that enter at one place.

    Args:
        spark: the session.
        lake: where the tables are.
        group: the batch group of the place.
        entry: the place.
        listeners: called around each commit.
    """

    def __init__(
        self, spark: SparkSession, lake: Lake, group: BatchGroup, entry: Entry, listeners: tuple[Listener, ...]
    ) -> None:
        self._spark, self._lake, self.group, self.entry, self._listeners = spark, lake, group, entry, listeners
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
            schema = self.group.entrance.schema(node)
            check_readable(self.group.topology, lot, schema)
            rows = rows_of_source(self._spark, lot, node, schema)
        else:
            schema = self.group.schema_at(node)
            check_readable(self.group.topology, lot, schema)
            rows = rows_of_gate(self._spark, lot, schema, sliced=self.entry.sliced)
        return ReplayRun(
            self.group, node, rows, f"replay {number}", Reads(self._state(number), base=self._base(number))
        )

    def _state(self, number: int) -> Callable[[str, bool], tuple[StateTable, int | None]]:
        def state(name: str, behind: bool) -> tuple[StateTable, int | None]:
            table = self._lake.state(name)
            own = _versions_of(table, number)
            if not own:
                return table, None
            return table, own[-1] if behind else own[0] - 1

        return state

    def _base(self, number: int) -> Callable[[str], Base]:
        def base(name: str) -> Base:
            table = self._lake.state(name)
            own = _versions_of(table, number)
            return Base(table, own[0] - 1 if own else None)

        return base

    # --- committing -------------------------------------------------------------------------------------------------

    def run(
        self, lot: Lot, record: Record, counted: Mapping[str, Numbers], begin: Callable[[], None] | None = None
    ) -> LotReport:
        """Commit the rows into each state that does not count them, then what is refused again into quarantine.

        Args:
            counted: of each state the rows that it counts already.
            begin: writes the replay down; called when all of the first states is computed and nothing committed.

        Raises:
            GateError: a gate refuses them all.
        """
        run, commits = self._run(lot, record.number), []
        try:
            for wave in self.group.waves:
                sinks = [sink for sink in wave if sink in self.sinks]
                if sinks:
                    commits += self._wave(run, sinks, lot, record, counted, begin)
                    begin = None
            again = self._again(run, lot, record)
        finally:
            run.close()
        self._quarantine(lot, record, again)
        everywhere = frozenset.intersection(*(counted.get(sink.name, frozenset()) for sink in self.sinks))
        numbers = set(lot.rows[NUMBER].to_pylist()) - everywhere
        return LotReport(
            stage=lot.stage,
            stream=lot.stream,
            rows={},
            number=record.number,
            landed=len(numbers - set(again[REPLAYED].to_pylist())),
            counted=len(everywhere),
            refused=dict(Counter(again["rule"].to_pylist())) if again.num_rows else {},
            commits=tuple(commits),
        )

    def _wave(
        self,
        run: ReplayRun,
        sinks: list[Sink],
        lot: Lot,
        record: Record,
        counted: Mapping[str, Numbers],
        begin: Callable[[], None] | None,
    ) -> list[StateCommit]:
        todo = [sink for sink in sinks if (sink.writer.committed(self._app_id(sink.name)) or 0) < record.number]
        parts: dict[Numbers, list[Sink]] = {}
        # Those that are committed are looked at too: what a gate refuses has to be known of all of them.
        for sink in sinks:
            parts.setdefault(counted.get(sink.name, frozenset()), []).append(sink)
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
                done.append(self._commit(sink, rows, seconds, lot, record))
            else:
                done.append(StateCommit(sink.name, sink.table.version(), 0, 0.0, replayed=True))
        return done

    def _commit(self, sink: Sink, result: pa.Table, seconds: float, lot: Lot, record: Record) -> StateCommit:
        started, ready = time.monotonic(), prepared(result, sink.node)
        rows = ready.rows
        said = self._said(sink.table, record, rows.num_rows, received=lot.rows.num_rows, digest=ready.hash)
        write = sink.writer.merge_arrow if sink.writer.declared.layout == MAP else sink.writer.append_replay
        # On a durable lake it is on the disk before quarantine gives the rows up.
        commits = Announced(self._listeners, self._lake)
        version = commits.commit(
            sink.name, record.number, sink.writer, lambda: write(rows, said, self._app_id(sink.name))
        )
        return StateCommit(sink.name, version, rows.num_rows, seconds + time.monotonic() - started)

    def _said(
        self, table: StateTable, record: Record, rows: int, *, received: int, digest: int | None = None
    ) -> BatchRecord:
        txid = table.last_txid()
        return BatchRecord(
            kind=REPLAY,
            flow=self._flow,
            epoch=max((commit.epoch or 0 for commit in table.commits.batches()[-1:]), default=0),
            txid=-1 if txid is None else txid,
            received=received,
            rows=rows,
            hash=digest,
            replay=record.number,
        )

    # --- quarantine -------------------------------------------------------------------------------------------------

    def _again(self, run: ReplayRun, lot: Lot, record: Record) -> pa.Table:
        """Return what is refused again, as it will be stored, with `_replayed`: each row with the batch that refused it first."""
        refused = run.refused_again()
        origin = {row[NUMBER]: row for row in lot.rows.to_pylist()}
        latest = max(lot.rows[TXID].to_pylist())
        fresh = replaced_since(self.group.quarantine.table, record.versions[NAME], self.group.name)
        kept = []
        for refused_row in refused.to_pylist():
            if fresh is None or refused_row[SLICE_COLUMN] in fresh:
                continue  # a backfill, or a reset, has judged it since
            first: Mapping[str, Any] = origin.get(refused_row[REPLAYED], {})
            txid = first.get(TXID, latest)
            row = {**refused_row, TXID: txid, GEN: generation(txid), "file": first.get("file"), GROUP: self.group.name}
            if refused_row["stage"] == SOURCE and first:
                row["row"] = first["row"]
            kept.append(row)
        names = {name: pa.int64() if name in (TXID, GEN) else pa.string() for name in STORED}
        return pa.Table.from_pylist(kept, schema=pa.schema({**names, REPLAYED: pa.int64()}))

    def _quarantine(self, lot: Lot, record: Record, again: pa.Table) -> None:
        """Remove the replayed rows and add what is refused again, in one commit. All other rows of their txids stay."""
        writer, app_id = self.group.quarantine, self._app_id(NAME)
        if (writer.committed(app_id) or 0) >= record.number:
            return
        txids = lot.rows[TXID].to_pylist()
        first, last = min(txids), max(txids)
        seen = writer.table.version()
        held = completed(writer.table.stored(f"{TXID} BETWEEN {first} AND {last}"))
        gone, stays = stored_rows(lot.rows), []
        for key in zip(*(held[name].to_pylist() for name in STORED if name != GEN), strict=True):
            stays.append(gone[key] <= 0)
            gone[key] -= 1
        rows = pa.concat_tables([held.filter(pa.array(stays, pa.bool_())), again.select(STORED)])
        said = self._said(writer.table, record, rows.num_rows, received=lot.rows.num_rows)
        Announced(self._listeners).commit(
            NAME, record.number, writer, lambda: writer.replace_refused(rows, said, app_id, (first, last), seen)
        )

    def _app_id(self, table: str) -> str:
        return app_id(self._flow, table)


def app_id(flow: str, table: str) -> str:
    """Return the transaction id of replays in a table."""
    return f"{flow}/{table}/replay"


def _versions_of(table: StateTable, number: int) -> list[int]:
    return [
        commit.version for commit in table.history() if commit.record is not None and commit.record.replay == number
    ]
