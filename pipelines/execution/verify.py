"""Proof after the fact that a table still holds what its batches committed (docs/architecture.md#batch-protocol).

Each commit's record keeps how many rows it wrote and the XOR of their hashes. Every stored row names the batch that wrote it, so
one pass over the table finds both again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from pipelines.errors import TrideltaError
from pipelines.execution.batch.accounts import former_row_hash, row_hash, xor, xor_of_rows
from pipelines.execution.checkpoint.belonging import Belonging, NotTogetherError, named_by
from pipelines.execution.checkpoint.copy import Marker
from pipelines.execution.checkpoint.damage import spark_damages
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.window_begin import Begun, WindowStateError, ended_in, state_files
from pipelines.execution.checkpoint.window_files import check_files
from pipelines.execution.protocol.groups import group_name, spout_groups
from pipelines.execution.runners.sessions import check_session
from pipelines.graph.nodes import BatchWindowNode
from pipelines.places.location import Location
from pipelines.state.damage import DamagedError, DamagedTableError, table_damages
from pipelines.state.delta_log import has_log
from pipelines.state.kinds import LOG, MAP, NON_TRANSACTIONAL
from pipelines.state.record import BATCH, COMPACTION, REPLAY, RESET, SLICE, CommitRecord
from pipelines.state.schema import GEN, ROLL_UP, SLICE_COLUMN, TXID
from pipelines.state.table import StateTable
from pipelines.state.writer import replay_txid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.graph.nodes import SpoutNode
    from pipelines.state.lake import Lake
    from pipelines.trident.topology import TridentTopology

NO_BATCH = -1
"""The txid of rows that a backfill wrote."""
HOLDS, DIFFERS, BY_COUNT, NOT_CHECKED = "holds", "differs", "holds by count", "not checked"


@dataclass(frozen=True)
class Finding:
    """The finding about one commit.

    Attributes:
        state: the table.
        txid: the batch (for a slice the last one that its replacement covers).
        slice: the slice, for the commit of a backfill.
        verdict: `holds`, `differs`, `holds by count` (no hash was kept), or `not checked`.
        rows: what the record says.
        found: rows that the table holds of it now.
        reason: why it was not checked, or what differs.
    """

    state: str
    txid: int
    slice: str | None
    verdict: str
    rows: int
    found: int
    reason: str = ""


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`: one finding per commit, oldest first."""

    flow: str
    findings: tuple[Finding, ...]
    faults: tuple[TrideltaError, ...] = ()
    """Damaged files of tables and checkpoints, and checkpoints and tables that do not belong together."""

    @property
    def differing(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == DIFFERS)

    def to_json(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "findings": [asdict(finding) for finding in self.findings],
            "faults": [{"fault": type(fault).__name__, "text": str(fault)} for fault in self.faults],
        }


def verify(spark: SparkSession, lake: Lake, topology: TridentTopology) -> VerifyReport:
    """Compare every state of a flow with its commits' records: one Spark job per state.

    Checked are tables of rows, and the generations of log states that compaction has left alone. Not checked are batches
    that a later backfill has replaced in part, and states in map layout, whose rows are overwritten. Channels are compared
    by count, clock rows included, as far as their rows have not been deleted.
    """
    if isinstance(lake.root, Location):
        check_session(spark, lake.root)
    findings: list[Finding] = []
    faults = list(damages(lake, topology))
    damaged = {fault.table for fault in faults if isinstance(fault, DamagedTableError)}
    for node in topology.persists:
        table = lake.written_by(node)
        if table.name not in damaged and table.exists():
            findings += _findings(spark, table, node.fields)
    return VerifyReport(topology.name, tuple(findings), tuple(faults))


def damages(lake: Lake, topology: TridentTopology) -> Iterator[TrideltaError]:
    """Yield the damaged files of a flow's tables and checkpoints, and those that do not belong together. No Spark."""
    quarantine = lake.table(lake.quarantine_path(topology.name), f"quarantine of {topology.name}")
    broken = False
    for table in [*map(lake.written_by, topology.persists), quarantine]:
        if has_log(table.path):
            for fault in table_damages(table.name, table.path):
                broken = True
                yield fault
    for spouts in spout_groups(topology):
        name = group_name(spouts)
        checkpoint = Checkpoint(topology.name, lake.checkpoint_path(topology.name, name))
        belonging = Belonging(checkpoint, lake)
        damaged_files = list(checkpoint_damages(checkpoint, [belonging.known, partial(Marker.of, checkpoint)]))
        yield from damaged_files
        if not damaged_files and not broken:
            try:
                belonging.check()
                belonging.check_listed()
            except NotTogetherError as error:
                yield error
            yield from _window_damages(lake, topology, spouts, checkpoint)


def _window_damages(
    lake: Lake, topology: TridentTopology, spouts: tuple[SpoutNode, ...], checkpoint: Checkpoint
) -> Iterator[TrideltaError]:
    """Yield the fault of the state that the next batch needs, where windows run in the batch."""
    reach = {node.id: node for spout in spouts for node in topology.graph.descendants(spout.id)}
    if not any(isinstance(node, BatchWindowNode) for node in reach.values()):
        return
    written = (lake.written_by(node) for node in topology.persists if node.id in reach)
    tables, files = [table for table in written if table.exists()], state_files(checkpoint.folder)
    try:
        begun = Begun.of(files) or ended_in(files)
        newest = next(named_by(checkpoint.folder.name, tables, None, begun), None)
        if newest is None or checkpoint.epoch is None:
            return
        if begun is None:
            yield WindowStateError.of_lost(topology.name, checkpoint.folder.name)
        elif newest.txid >= begun.first:
            # Else it is what windows of an earlier checkpoint have left.
            check_files(files, newest.state)
    except WindowStateError as error:
        yield error


def checkpoint_damages(checkpoint: Checkpoint, more: Iterable[Callable[[], object]] = ()) -> Iterator[TrideltaError]:
    """Yield every damaged file of a checkpoint: the engine's own, and Spark's.

    Args:
        more: what reads further files of the engine.
    """
    own = (checkpoint.check_epoch, checkpoint.attempts, lambda: checkpoint.start, lambda: checkpoint.partitions)
    for read in (*own, *more):
        try:
            read()
        except DamagedError as error:
            yield error
    yield from spark_damages(checkpoint.flow, checkpoint.spark)


@dataclass(frozen=True)
class _Held:
    """Rows that the table holds, and the XOR of their hashes, in each way in which a record may have it."""

    rows: int
    hashes: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class _Commits:
    """The commits of a table since its last reset, beside what it holds of them.

    Attributes:
        held: what the table holds, by txid and slice.
    """

    table: StateTable
    commits: list[CommitRecord]
    held: dict[tuple[int, str], _Held]

    @cached_property
    def replaced(self) -> dict[str | None, CommitRecord]:
        """The last backfill of each slice."""
        return {commit.slice: commit for commit in self.commits if commit.kind == SLICE}

    @cached_property
    def compactions(self) -> list[tuple[int, int]]:
        """The version of each compaction that has folded rows, or let them go, and the first txid that it has left."""
        records = [(commit.version, commit.record) for commit in self.commits if commit.kind == COMPACTION]
        return [(at, record.folded_before) for at, record in records if record and record.folded_before is not None]

    def _folded(self, commit: CommitRecord) -> bool:
        """Return whether a later compaction has folded what a commit wrote, or let it go.

        Later, because a backfill may come behind the same batch as the compaction; before the first batch its txid is -1.
        """
        return any(at > commit.version and (commit.txid or 0) < before for at, before in self.compactions)

    def findings(self) -> Iterator[Finding]:
        for slice_, commit in self.replaced.items():
            if self._folded(commit):
                yield _unchecked(self.table, commit, "compaction has folded it")
            else:
                yield _judged(self.table, [commit], self.held.get((NO_BATCH, slice_ or ""), _Held(0)))
        by_txid: dict[int, list[CommitRecord]] = defaultdict(list)
        for commit in self.commits:
            if commit.kind == BATCH and commit.txid is not None:
                by_txid[commit.txid].append(commit)
        for txid, records in by_txid.items():
            # The last commit of an opaque batch stands for all of it; each one of a non-transactional batch has added rows.
            counted = records if self.table.declared.kind == NON_TRANSACTIONAL else records[-1:]
            is_log = self.table.declared.layout == LOG
            yield self._finding(counted, txid, "folded it" if is_log else "let its rows go: all readers had them")
        for commit in self.commits:
            if commit.kind == REPLAY and commit.record is not None and commit.record.replay is not None:
                yield self._finding([commit], replay_txid(commit.record.replay), "folded it")

    def _finding(self, counted: list[CommitRecord], stored_txid: int, done: str) -> Finding:
        """Compare commits with the rows that are stored under a txid, all slices together."""
        last, own = counted[-1], [rows for (txid, _), rows in self.held.items() if txid == stored_txid]
        ways = tuple(xor(list(way)) for way in zip(*(rows.hashes for rows in own), strict=True))
        now = _Held(sum(rows.rows for rows in own), ways or (0,))
        if self._folded(counted[0]):
            return _unchecked(self.table, last, f"compaction has {done}")
        replaced_at = max((commit.version for commit in self.replaced.values()), default=-1)
        if last.version < replaced_at and now.rows != sum(commit.rows for commit in counted):
            return _unchecked(self.table, last, "a later backfill has replaced some of its rows")
        return _judged(self.table, counted, now)


def _findings(spark: SparkSession, table: StateTable, fields: Sequence[str]) -> Iterable[Finding]:
    commits = _since_reset(table.commits.counting())
    if table.declared.layout == MAP:
        return [
            _unchecked(table, commit, "rows of a map are overwritten") for commit in commits if commit.kind == BATCH
        ]
    stored = spark.read.format("delta").option("versionAsOf", table.version()).load(str(table.path))
    # A channel's clock rows have no slice.
    counted = stored.where(~F.col(SLICE_COLUMN).eqNullSafe(ROLL_UP)).groupBy(TXID, SLICE_COLUMN, GEN)
    # Earlier releases hashed columns as they came: in the order that the table has, or that the flow has now; maybe without maps.
    former = [former_row_hash(stored.schema, order, added=added) for order in ((), fields) for added in (False, True)]
    ways = dict.fromkeys([row_hash(stored.schema), *former])
    sums = counted.agg(F.count(F.lit(1)), *(F.expr(xor_of_rows(way)) for way in ways)).collect()
    held = {(txid, slice_): _Held(rows, tuple(hashes)) for txid, slice_, _, rows, *hashes in sums}
    return _Commits(table, commits, held).findings()


def _since_reset(commits: list[CommitRecord]) -> list[CommitRecord]:
    last = max((number for number, commit in enumerate(commits) if commit.kind == RESET), default=-1)
    return [commit for commit in commits[last + 1 :] if commit.record is not None]


def _judged(table: StateTable, commits: list[CommitRecord], now: _Held) -> Finding:
    commit, rows = commits[-1], sum(counted.rows for counted in commits)
    hashes = [counted.record.hash if counted.record else None for counted in commits]
    verdict, reason = HOLDS, ""
    if now.rows != rows:
        verdict, reason = DIFFERS, f"it wrote {rows} rows, the table holds {now.rows}"
    elif None in hashes:
        verdict, reason = BY_COUNT, "its record keeps no hash"
    elif xor([digest for digest in hashes if digest is not None]) not in now.hashes:
        verdict, reason = DIFFERS, "the rows are others than it wrote (their hashes differ)"
    return Finding(table.name, commit.txid or 0, commit.slice, verdict, rows, now.rows, reason)


def _unchecked(table: StateTable, commit: CommitRecord, why: str) -> Finding:
    return Finding(table.name, commit.txid or 0, commit.slice, NOT_CHECKED, commit.rows, 0, why)
