"""Commits into a state table: a batch's append or merge, the replacement of a slice.

Two writers make the same commit. Small results travel to the driver as Arrow and are committed by delta-rs, in some
10 ms; large ones are written by Spark's Delta writer where they lie, which costs about a second of jobs a commit
(measured on two cores, docs/adr/0002).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake import Schema as DeltaSchema

from pipelines.errors import BehindStateError, StateSchemaError
from pipelines.state.commits import HOOKS, properties
from pipelines.state.evolution import add_columns
from pipelines.state.keeping import TableKeeper
from pipelines.state.literals import literal
from pipelines.state.merge import merge_arrow, merge_spark
from pipelines.state.record import RESET, BatchRecord, generation
from pipelines.state.schema import (
    ENGINE_COLUMNS,
    GEN,
    MAP,
    NON_TRANSACTIONAL,
    OPAQUE,
    PROPERTY,
    REMOVED,
    ROLL_UP,
    SLICE_COLUMN,
    TRANSACTIONAL,
    TXID,
    UNSLICED,
    table_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# Checkpoints of the Delta log: a reader opens at most so many small files on top of one. Our history needs the small
# files, so the log is only cleaned by the compaction job, never as a side effect of a commit.
_CONFIGURATION = {"delta.checkpointInterval": "50", "delta.enableExpiredLogCleanup": "false"}
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_APP_ID, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"


class StateWriter(TableKeeper):
    """Writes one state table.

    Args:
        table: the state.
        declared: the schema that the flow declares for it.
    """

    def prepare(self, columns: StructType) -> None:
        """Create the table, or see that the one that is there fits. New value columns are added to it.

        Rows that are there read null in a new column, or in a log state the zero of its aggregator.

        Args:
            columns: the user's columns as Spark types.

        Raises:
            StateSchemaError: if the table that is there does not fit the flow's schema.
        """
        wanted = DeltaSchema.from_json(table_schema(columns, self.declared).json())
        if self.table.exists():
            added = self.table.declared.evolution(self.declared)
            if isinstance(added, str):
                raise StateSchemaError(self.table.name, added)
            if added:
                add_columns(DeltaTable(str(self.table.path)), wanted, self.declared)
            return
        self.table.path.parent.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            str(self.table.path),
            wanted,
            mode="ignore",
            partition_by=None if self.declared.layout == MAP else [SLICE_COLUMN, GEN],
            configuration={PROPERTY: self.declared.dump(), **_CONFIGURATION},
            raise_if_key_not_exists=False,
        )

    def empty(self) -> pa.Table:
        """No rows, with the table's columns."""
        return pa.schema(DeltaTable(str(self.table.path)).schema().to_arrow()).empty_table()

    def committed(self, app_id: str) -> int | None:
        """The last txid that was committed under a transaction application id, or None."""
        return DeltaTable(str(self.table.path)).transaction_version(app_id)

    # --- a batch ----------------------------------------------------------------------------------------------------

    def skips(self, known: bool) -> bool:
        """Whether a batch has nothing to do here: the state is transactional, and `known` to hold the txid already."""
        return known and self.declared.kind == TRANSACTIONAL

    def commit_batch(self, rows: pa.Table | DataFrame, record: BatchRecord, app_id: str, *, known: bool) -> int:
        """Commit a batch as the state's kind and layout ask for, in one Delta commit.

        | kind | a txid that the table holds |
        |---|---|
        | transactional | nothing is done |
        | opaque | the rows replace what the txid wrote before |
        | non_transactional | the rows are applied again |

        Args:
            rows: user columns and perhaps `_slice` (log, rows) or `_removed` (map): Arrow, committed by delta-rs, or a
                frame, which Spark writes where it lies.
            record: `record.rows` is filled in where the rows are Arrow.
            app_id: the transaction id; left out for non-transactional states.
            known: whether the table holds this txid already (`committed`, or for non-transactional states the history).

        Returns:
            The table version.

        Raises:
            BehindStateError: an opaque state holds a later txid.
            DuplicateKeyError: a map state gets two rows of one key.
        """
        if self.skips(known):
            return self.table.version()
        kind = self.declared.kind
        self._check_in_turn(record)
        named = None if kind == NON_TRANSACTIONAL else app_id
        replaces = known and kind == OPAQUE
        merges = self.declared.layout == MAP
        if isinstance(rows, pa.Table):
            arrow = self.merge_arrow if merges else self.append_arrow
            return arrow(rows, record, named, replaces=replaces)
        spark = self.merge_spark if merges else self.append_spark
        return spark(rows, record, named, replaces=replaces)

    def _check_in_turn(self, record: BatchRecord) -> None:
        last = self.table.last_txid() if self.declared.kind == OPAQUE else None
        if last is not None and last > record.txid:
            raise BehindStateError(record.txid, last, self.table.name)

    def append_arrow(self, rows: pa.Table, record: BatchRecord, app_id: str | None, *, replaces: bool = False) -> int:
        """Append a batch's rows (user columns and perhaps `_slice`). Returns the table version.

        Args:
            replaces: what this txid wrote before goes in the same commit.
        """
        where = _own_rows(record.txid) if replaces else None
        return self._write(self._complete(rows, record.txid, record.txid), record, app_id, where)

    def append_spark(self, frame: DataFrame, record: BatchRecord, app_id: str | None, *, replaces: bool = False) -> int:
        """Append a batch's frame where it lies. Returns the table version; `record.rows` is not known before."""
        from pyspark.sql import functions as F

        if SLICE_COLUMN not in frame.columns:
            frame = frame.withColumn(SLICE_COLUMN, F.lit(UNSLICED))
        frame = frame.withColumn(TXID, F.lit(record.txid).cast("long"))
        frame = frame.withColumn(GEN, F.lit(generation(record.txid)).cast("long"))
        names = [*self.declared.names, *ENGINE_COLUMNS]
        writer = frame.select(*(f"`{name}`" for name in names)).write.format("delta")
        writer = writer.option("userMetadata", record.dump()).mode("overwrite" if replaces else "append")
        if replaces:
            # Without the transaction id, which the table has: Delta drops what comes under a known one.
            writer = writer.option("replaceWhere", _own_rows(record.txid))
        elif app_id:
            writer = writer.option("txnAppId", app_id).option("txnVersion", record.txid)
        writer.save(str(self.table.path))
        return self.table.version()

    def merge_arrow(self, rows: pa.Table, record: BatchRecord, app_id: str | None, *, replaces: bool = False) -> int:
        """Merge a batch's changes (keys, values, perhaps `_removed`) into a map state. Returns the table version.

        Args:
            replaces: what this txid changed before is undone in the same commit.
        """
        table = DeltaTable(str(self.table.path))
        before, record = table.version(), record.model_copy(update={"rows": rows.num_rows})
        merge_arrow(table, rows, self.declared, record.txid, properties(record, app_id), replayed=replaces)
        # A MERGE that changes nothing is no commit to delta-rs; the batch is to be known all the same.
        return table.version() if table.version() > before else self._note(table, record, app_id)

    def merge_spark(self, frame: DataFrame, record: BatchRecord, app_id: str | None, *, replaces: bool = False) -> int:
        """The same for a frame, by Spark's MERGE INTO. Returns the table version.

        MERGE takes its transaction id and userMetadata from the session, so the frame's own session has them meanwhile:
        no other thread may write Delta tables in it.
        """
        spark = frame.sparkSession
        given = {_METADATA: record.dump()}
        if app_id and not replaces:
            given |= {_APP_ID: app_id, _VERSION: str(record.txid)}
        for name, value in given.items():
            spark.conf.set(name, value)
        try:
            merge_spark(spark, str(self.table.path), frame, self.declared, record.txid, replayed=replaces)
        finally:
            for name in given:
                spark.conf.unset(name)
        return self.table.version()

    # --- slices -----------------------------------------------------------------------------------------------------

    def replace_slice(self, rows: pa.Table, record: BatchRecord) -> int:
        """Put `rows` in the place of all that the table holds of `record.slice`, in one commit.

        A roll-up of all slices stops being true, so it goes in the same commit. The rows are of no batch (`_txid` -1): a
        replay of the last one must not take them for its own.
        """
        assert record.slice is not None
        names = ", ".join(literal(SLICE_COLUMN, one, pa.string()) for one in (record.slice, ROLL_UP))
        where = f"{SLICE_COLUMN} IN ({names})"
        return self._write(self._complete(rows, -1, record.txid), record, None, where)

    def append_replay(self, rows: pa.Table, record: BatchRecord, app_id: str) -> int:
        """Append what replayed rows have become, in one commit beside the batches and slices. Returns the table version.

        The rows are of no batch: their `_txid` is below -1 and names the replay. They lie in the generation of the last
        batch, which no roll-up covers.
        """
        assert record.replay is not None
        return self._write(self._complete(rows, replay_txid(record.replay), max(record.txid, 0)), record, app_id)

    def replace_refused(self, rows: pa.Table, record: BatchRecord, app_id: str, txids: tuple[int, int]) -> int:
        """Quarantine only: put `rows` (all columns of the table) in the place of those of some txids, in one commit."""
        schema = pa.schema(DeltaTable(str(self.table.path)).schema().to_arrow())
        where = f"{TXID} BETWEEN {txids[0]} AND {txids[1]}"
        return self._write(rows.select(schema.names).cast(schema), record, app_id, where)

    def replace_map(self, rows: pa.Table, record: BatchRecord) -> int:
        """Put `rows` (keys, values, perhaps `_removed`) in the place of all that a map state holds, in one commit.

        As in `replace_slice` the rows are of no batch.
        """
        schema = pa.schema(DeltaTable(str(self.table.path)).schema().to_arrow())
        if REMOVED in rows.column_names:
            rows = rows.filter(pc.invert(rows[REMOVED])).drop_columns([REMOVED])
        columns = {name: rows[name] for name in rows.column_names}
        columns[TXID] = pa.repeat(pa.scalar(-1, pa.int64()), rows.num_rows)
        if REMOVED in schema.names:
            columns[REMOVED] = pa.repeat(pa.scalar(False), rows.num_rows)
        whole = {f.name: columns.get(f.name, pa.nulls(rows.num_rows, f.type)) for f in schema}
        return self._write(pa.table(whole).cast(schema), record, None, "true")

    def reset(self, record: BatchRecord) -> int:
        """Empty the table; its history so far no longer counts."""
        table = DeltaTable(str(self.table.path))
        table.delete(commit_properties=properties(record.model_copy(update={"kind": RESET}), None))
        return self.table.version()

    def forget_rows(self, txid: int, *, stage: str) -> None:
        """Quarantine only: remove the rows of one stage of a txid, if there are any."""
        string, long = pa.string(), pa.int64()
        where = f"{TXID} = {literal(TXID, txid, long)} AND stage = {literal('stage', stage, string)}"
        if self.table.count(where):
            record = BatchRecord(kind=RESET + "_batch", flow=self.declared.flow, txid=txid)
            DeltaTable(str(self.table.path)).delete(where, commit_properties=properties(record, None))

    def _complete(self, rows: pa.Table, txid: int, since: int) -> pa.Table:
        """All columns of the table: rows of `txid`, in the generation of `since`."""
        schema = pa.schema(DeltaTable(str(self.table.path)).schema().to_arrow())
        count = rows.num_rows
        columns = {name: rows[name] for name in rows.column_names}
        columns.setdefault(SLICE_COLUMN, pa.repeat(pa.scalar(UNSLICED), count))
        columns[TXID] = pa.repeat(pa.scalar(txid, pa.int64()), count)
        columns[GEN] = pa.repeat(pa.scalar(generation(since), pa.int64()), count)
        return pa.table({f.name: columns[f.name] for f in schema}).cast(schema)

    def _note(self, table: DeltaTable, record: BatchRecord, app_id: str | None) -> int:
        """A commit of no rows, for its record and transaction id."""
        carried = properties(record, app_id, unchanged=True)
        write_deltalake(table, self.empty(), mode="append", commit_properties=carried, post_commithook_properties=HOOKS)
        return table.version()

    def _write(self, rows: pa.Table, record: BatchRecord, app_id: str | None, where: str | None = None) -> int:
        table = DeltaTable(str(self.table.path))
        write_deltalake(  # type: ignore[call-overload]  # its overloads want the mode as a literal
            table,
            rows,
            mode="overwrite" if where else "append",
            predicate=where,
            commit_properties=properties(record.model_copy(update={"rows": rows.num_rows}), app_id),
            post_commithook_properties=HOOKS,
        )
        return table.version()


def replay_txid(number: int) -> int:
    """What the rows of a replay have for a txid; -1 is of backfills."""
    return -1 - number


def _own_rows(txid: int) -> str:
    """The rows that a batch wrote. Compaction leaves the last batch's generation of an opaque state alone."""
    return f"{TXID} = {txid} AND {GEN} = {generation(txid)}"
