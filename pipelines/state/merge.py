"""Map states: one MERGE a batch, said once for both writers (docs/adr/0007).

A row of a map table is a key with its values and `_txid`, the batch that last wrote it. Opaque states also keep what the
row held before that batch (`_prev`), and keep a removed key as a row that says so, until a compaction: a replay of the
batch starts from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable

from pipelines.errors import DuplicateKeyError
from pipelines.graph.dialects import DATAFUSION, SPARK, Dialect
from pipelines.state.commits import HOOKS
from pipelines.state.kinds import OPAQUE
from pipelines.state.literals import canonical_column
from pipelines.state.schema import PREVIOUS, REMOVED, TXID, StateSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE, ROWS = "t", "s"
"""Aliases: the state's table and the rows that come."""


@dataclass(frozen=True)
class Clauses:
    """The conditions and assignments of a batch's MERGE, as SQL of DataFusion and Spark alike.

    Attributes:
        on: which row of the table a row that comes belongs to; null keys are equal.
        gone: matched rows that are deleted.
        update: matched rows.
        insert: rows of new keys.
        undone: rows of the table that the batch had made and does not make any more. Replays of opaque batches only.
        undo: how the others that it had written become again what they were.
    """

    on: str
    gone: str | None
    update: Mapping[str, str]
    insert: Mapping[str, str]
    undone: str | None = None
    undo: Mapping[str, str] | None = None
    undo_where: str | None = None


def clauses(declared: StateSchema, txid: int, dialect: Dialect, *, replayed: bool) -> Clauses:
    """Return the MERGE of a batch.

    Args:
        dialect: of the engine that runs it.
        replayed: whether the table may hold rows of this txid already.
    """
    keys = [dialect.name(name) for name in declared.keys]
    names = {name: dialect.name(name) for name in declared.value_names}
    values = list(names.values())
    # In brackets: DataFusion takes all that follows FROM, an AND included, for its right side.
    on = " AND ".join(f"({TABLE}.{key} IS NOT DISTINCT FROM {ROWS}.{key})" for key in keys) or "true"
    put = {value: f"{ROWS}.{value}" for value in values} | {TXID: str(txid)}
    insert = {key: f"{ROWS}.{key}" for key in keys} | put
    if declared.kind != OPAQUE:
        return Clauses(on, f"{ROWS}.{REMOVED}", put, insert)
    now = ", ".join(f"{dialect.text(name)}, {TABLE}.{value}" for name, value in names.items())
    before = (
        f"CASE WHEN {TABLE}.{TXID} = {txid} THEN {TABLE}.{PREVIOUS} WHEN {TABLE}.{REMOVED} THEN NULL "
        f"ELSE named_struct('txid', {TABLE}.{TXID}, {now}) END"
    )
    put |= {PREVIOUS: before, REMOVED: f"{ROWS}.{REMOVED}"}
    insert |= {REMOVED: "false"}
    mine = f"{TABLE}.{TXID} = {txid}"
    new = f"{mine} AND {TABLE}.{PREVIOUS} IS NULL"
    if not replayed:
        return Clauses(on, None, put, insert)
    undo = {value: f"{TABLE}.{PREVIOUS}[{dialect.text(name)}]" for name, value in names.items()}
    undo |= {TXID: f"{TABLE}.{PREVIOUS}['txid']", PREVIOUS: "NULL", REMOVED: "false"}
    return Clauses(on, f"{ROWS}.{REMOVED} AND {new}", put, insert, new, undo, mine)


def merge_arrow(
    table: DeltaTable, rows: pa.Table, declared: StateSchema, txid: int, properties: CommitProperties, *, replayed: bool
) -> None:
    """Commit changes by delta-rs.

    Args:
        rows: keys, values and perhaps `_removed`.
    """
    rows = _typed(rows, table, declared)
    _check_unique(rows, declared)
    said = clauses(declared, txid, DATAFUSION, replayed=replayed)
    merger = table.merge(
        rows,
        said.on,
        source_alias=ROWS,
        target_alias=TABLE,
        commit_properties=properties,
        post_commithook_properties=HOOKS,
    )
    if said.gone:
        merger = merger.when_matched_delete(said.gone)
    merger = merger.when_matched_update(dict(said.update))
    merger = merger.when_not_matched_insert(dict(said.insert), predicate=f"NOT {ROWS}.{REMOVED}")
    if said.undone and said.undo:
        merger = merger.when_not_matched_by_source_delete(said.undone)
        merger = merger.when_not_matched_by_source_update(dict(said.undo), predicate=said.undo_where)
    merger.execute()


def merge_spark(
    spark: SparkSession, path: str, frame: DataFrame, declared: StateSchema, txid: int, *, replayed: bool
) -> None:
    """Commit changes by Spark's MERGE INTO. Transaction id and userMetadata are settings of the session."""
    from delta.tables import DeltaTable as SparkTable
    from pyspark.sql import functions as F

    if REMOVED not in frame.columns:
        frame = frame.withColumn(REMOVED, F.lit(False))
    names = [*declared.names, REMOVED]
    # MERGE reads its rows twice. Kept, they are worked out once, and what is observed in the plan is seen by this job.
    kept = frame.select(*(F.col(SPARK.name(name)) for name in names)).persist()
    try:
        keys = [F.col(SPARK.name(name)) for name in declared.keys]
        for row in kept.groupBy(*keys).agg(F.count(F.lit(1)).alias("_n")).where("_n > 1").limit(1).collect():
            raise DuplicateKeyError([row[name] for name in declared.keys])
        said = clauses(declared, txid, SPARK, replayed=replayed)
        merger = SparkTable.forPath(spark, path).alias(TABLE).merge(kept.alias(ROWS), said.on)
        if said.gone:
            merger = merger.whenMatchedDelete(said.gone)
        merger = merger.whenMatchedUpdate(set=dict(said.update))
        merger = merger.whenNotMatchedInsert(f"NOT {ROWS}.{REMOVED}", values=dict(said.insert))
        if said.undone and said.undo:
            merger = merger.whenNotMatchedBySourceDelete(said.undone)
            merger = merger.whenNotMatchedBySourceUpdate(said.undo_where, set=dict(said.undo))
        merger.execute()
    finally:
        kept.unpersist()


def _typed(rows: pa.Table, table: DeltaTable, declared: StateSchema) -> pa.Table:
    stored = pa.schema(table.schema().to_arrow())
    fields = [stored.field(name) for name in declared.names]
    columns = {name: canonical_column(rows[name]) if name in declared.keys else rows[name] for name in declared.names}
    removed = rows[REMOVED] if REMOVED in rows.column_names else pa.repeat(pa.scalar(False), rows.num_rows)
    return pa.table({**columns, REMOVED: removed}).cast(pa.schema([*fields, pa.field(REMOVED, pa.bool_())]))


def _check_unique(rows: pa.Table, declared: StateSchema) -> None:
    """MERGE with two rows of one key gives an arbitrary one of them, or both."""
    if not declared.keys:
        if rows.num_rows > 1:
            raise DuplicateKeyError([])
        return
    counts = rows.select(list(declared.keys)).append_column("#", pa.repeat(1, rows.num_rows))
    by_key = counts.group_by(list(declared.keys)).aggregate([("#", "sum")])
    if by_key.num_rows < rows.num_rows:
        first = by_key.filter(pc.greater(by_key["#_sum"], 1)).slice(0, 1).to_pylist()[0]
        raise DuplicateKeyError([first[name] for name in declared.keys])
