"""Proof after the fact that a table still holds what its batches committed (docs/architecture.md#batch-protocol).

Each commit's record keeps how many rows it wrote and the XOR of their hashes. Every stored row names the batch that wrote it, so
one pass over the table finds both again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from pipelines.errors import TrideltaError
from pipelines.execution.batch.accounts import xor, xor_of_rows
from pipelines.execution.checkpoint.belonging import Belonging, NotTogetherError
from pipelines.execution.checkpoint.copy import Marker
from pipelines.execution.checkpoint.damage import spark_damages
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.protocol.groups import group_name, spout_groups
from pipelines.state.damage import DamagedError, DamagedTableError, table_damages
from pipelines.state.delta_log import has_log
from pipelines.state.kinds import MAP
from pipelines.state.record import BATCH, COMPACTION, REPLAY, RESET, SLICE, CommitRecord
from pipelines.state.schema import GEN, ROLL_UP, SLICE_COLUMN, TXID
from pipelines.state.table import LOG_LAYOUT, StateTable
from pipelines.state.writer import replay_txid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.state.lake import Lake
    from pipelines.trident.topology import TridentTopology

NO_BATCH = -1
"""The txid of rows that a backfill wrote."""
HOLDS, DIFFERS, BY_COUNT, NOT_CHECKED = "holds", "differs", "holds by count", "not checked"


@dataclass(frozen=True)
class Finding:
    """What became of one commit.

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
    """What `verify` found, a finding a commit, oldest first."""

    flow: str
    findings: tuple[Finding, ...]
    faults: tuple[TrideltaError, ...] = ()
    """Damaged files of tables and checkpoints, and checkpoints and tables that do not belong together."""

    @property
    def differing(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.verdict == DIFFERS)

    def to_json(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "findings": [asdict(one) for one in self.findings],
            "faults": [{"fault": type(one).__name__, "text": str(one)} for one in self.faults],
        }


def verify(spark: SparkSession, lake: Lake, topology: TridentTopology) -> VerifyReport:
    """Compare every state of a flow with its commits' records: one Spark job per state.

    Checked are tables of rows, and the generations of log states that compaction has left alone. Not checked are batches
    that a later backfill has replaced in part, and states in map layout, whose rows are overwritten. Channels are compared
    by count, clock rows included, as far as their rows have not been deleted.
    """
    findings: list[Finding] = []
    faults = list(damages(lake, topology))
    damaged = {one.table for one in faults if isinstance(one, DamagedTableError)}
    for node in topology.persists:
        table = lake.written_by(node)
        if table.name not in damaged and table.exists():
            findings += _findings(spark, table)
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
        found = list(checkpoint_damages(checkpoint, [belonging.known, partial(Marker.of, checkpoint)]))
        yield from found
        if not found and not broken:
            try:
                belonging.check()
            except NotTogetherError as error:
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
    rows: int
    hash: int


_Held_by = dict[tuple[int, str], _Held]
"""By txid and slice what the table holds."""


def _findings(spark: SparkSession, table: StateTable) -> Iterable[Finding]:
    commits = _since_reset(table.commits.counting())
    if table.declared.layout == MAP:
        return [_unchecked(table, one, "rows of a map are overwritten") for one in commits if one.kind == BATCH]
    stored = spark.read.format("delta").option("versionAsOf", table.version()).load(str(table.path))
    # A channel's words about the clock have no slice.
    counted = stored.where(~F.col(SLICE_COLUMN).eqNullSafe(ROLL_UP)).groupBy(TXID, SLICE_COLUMN, GEN)
    found = counted.agg(F.count(F.lit(1)).alias("rows"), F.expr(f"{xor_of_rows(stored.schema)} AS hash")).collect()
    held = {(row[TXID], row[SLICE_COLUMN]): _Held(row["rows"], row["hash"]) for row in found}
    folded = _folded_before(table, commits)
    replaced = {one.slice: one for one in commits if one.kind == SLICE}
    return [
        *_of_slices(table, replaced, held, folded),
        *_of_batches(table, commits, replaced, held, folded),
        *_of_replays(table, commits, replaced, held, folded),
    ]


def _since_reset(commits: list[CommitRecord]) -> list[CommitRecord]:
    last = max((number for number, one in enumerate(commits) if one.kind == RESET), default=-1)
    return [one for one in commits[last + 1 :] if one.record is not None]


def _folded_before(table: StateTable, commits: list[CommitRecord]) -> int:
    """Return the first txid whose rows no compaction has folded, or let go."""
    return max((one.record.folded_before or 0 for one in commits if one.kind == COMPACTION and one.record), default=0)


def _of_slices(
    table: StateTable, replaced: dict[str | None, CommitRecord], held: _Held_by, folded: int
) -> Iterable[Finding]:
    for slice_, commit in replaced.items():
        if (commit.txid or 0) < folded:
            yield _unchecked(table, commit, "compaction has folded it")
        else:
            yield _judged(table, [commit], held.get((NO_BATCH, slice_ or ""), _Held(0, 0)))


def _held_of(held: _Held_by, txid: int) -> _Held:
    """Return what the table holds of a txid, all slices together."""
    own = [rows for (at, _), rows in held.items() if at == txid]
    return _Held(sum(one.rows for one in own), xor([one.hash for one in own]))


def _of_batches(
    table: StateTable,
    commits: list[CommitRecord],
    replaced: dict[str | None, CommitRecord],
    held: _Held_by,
    folded: int,
) -> Iterable[Finding]:
    by_txid: dict[int, list[CommitRecord]] = defaultdict(list)
    for one in commits:
        if one.kind == BATCH and one.txid is not None:
            by_txid[one.txid].append(one)
    last_replacement = max((one.version for one in replaced.values()), default=-1)
    for txid, records in by_txid.items():
        now = _held_of(held, txid)
        # The last commit of an opaque batch stands for all of it; each commit of a non-transactional one has added rows.
        counted = records if getattr(table.declared, "kind", "") == "non_transactional" else records[-1:]
        if txid < folded:
            done = "folded it" if table.declared.layout == LOG_LAYOUT else "let its rows go: all readers had them"
            yield _unchecked(table, records[-1], f"compaction has {done}")
        elif records[-1].version < last_replacement and now.rows != sum(one.rows for one in counted):
            yield _unchecked(table, records[-1], "a later backfill has replaced some of its rows")
        else:
            yield _judged(table, counted, now)


def _of_replays(
    table: StateTable,
    commits: list[CommitRecord],
    replaced: dict[str | None, CommitRecord],
    held: _Held_by,
    folded: int,
) -> Iterable[Finding]:
    last_replacement = max((one.version for one in replaced.values()), default=-1)
    for one in commits:
        if one.kind != REPLAY or one.record is None or one.record.replay is None:
            continue
        now = _held_of(held, replay_txid(one.record.replay))
        if (one.txid or 0) < folded:
            yield _unchecked(table, one, "compaction has folded it")
        elif one.version < last_replacement and now.rows != one.rows:
            yield _unchecked(table, one, "a later backfill has replaced some of its rows")
        else:
            yield _judged(table, [one], now)


def _judged(table: StateTable, commits: list[CommitRecord], now: _Held) -> Finding:
    commit, rows = commits[-1], sum(one.rows for one in commits)
    hashes = [one.record.hash if one.record else None for one in commits]
    verdict, reason = HOLDS, ""
    if now.rows != rows:
        verdict, reason = DIFFERS, f"it wrote {rows} rows, the table holds {now.rows}"
    elif None in hashes:
        verdict, reason = BY_COUNT, "its record keeps no hash"
    elif now.hash != xor([one for one in hashes if one is not None]):
        verdict, reason = DIFFERS, "the rows are others than it wrote (their hashes differ)"
    return Finding(table.name, commit.txid or 0, commit.slice, verdict, rows, now.rows, reason)


def _unchecked(table: StateTable, commit: CommitRecord, why: str) -> Finding:
    return Finding(table.name, commit.txid or 0, commit.slice, NOT_CHECKED, commit.rows, 0, why)
