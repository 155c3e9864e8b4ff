"""Commits into a state table: a batch's append or merge, the replacement of a slice.

Two writers make the same commit. Small results travel to the driver as Arrow and are committed by delta-rs, in some
10 ms; large ones are written by Spark's Delta writer where they lie, which costs about a second of jobs a commit
(measured on two cores, docs/adr/0002).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError
from deltalake.schema import StructType as DeltaStruct

from pipelines.errors import AccountingError, DefinitionError, StateSchemaError
from pipelines.places.location import Location
from pipelines.state.commits import HOOKS, properties
from pipelines.state.far_times import dates_named
from pipelines.state.judged_writer import Judge, JudgedWriter
from pipelines.state.kinds import LOG, MAP, OPAQUE, TRANSACTIONAL
from pipelines.state.literals import is_wide, literal
from pipelines.state.maintenance_commits import PLAIN_NAMES, check_no_sql, version_of
from pipelines.state.merge import merge_arrow, merge_spark
from pipelines.state.record import FORGOTTEN, RESET, BatchRecord, generation
from pipelines.state.schema import (
    ENGINE_COLUMNS,
    GEN,
    PREVIOUS,
    PROPERTY,
    REMOVED,
    ROLL_UP,
    SLICE_COLUMN,
    TXID,
    UNSLICED,
    StateSchema,
    table_schema,
)
from pipelines.state.sums import TOO_LARGE, Room, StateOverflowError, allowances, checked_bounds, summed
from pipelines.state.texts import check_texts, checked_texts
from pipelines.state.turns import Transactions, last_txid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# Checkpoints of the Delta log: a reader opens at most so many small files on top of one. Our history needs the small
# files, so the log is only cleaned by the compaction job, never as a side effect of a commit.
_CONFIGURATION = {"delta.checkpointInterval": "50", "delta.enableExpiredLogCleanup": "false"}
# delta-rs reads the log from its last checkpoint on whenever it is asked for a transaction id: on a store a request per commit.
_ON_STORES = {"delta.checkpointInterval": "10"}
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_TRIES = 10
_APP_ID, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"


class StateWriter(JudgedWriter):
    """Writes one state table.

    Args:
        declared: the schema that the flow declares for it.

    Raises:
        LocationError: it lies where delta-rs writes none.
    """

    def prepare(self, columns: StructType) -> None:
        """Create the table, or see that the one that is there fits. New value columns are added to it.

        Rows that are there read null in a new column, or in a log state the zero of its aggregator.

        Raises:
            StateSchemaError: if the table that is there does not fit the flow's schema, or its log has SQL in it.
        """
        if self.declared.layout == MAP:
            _check_keys(self.table.name, self.declared, columns)
        wanted = DeltaSchema.from_json(table_schema(columns, self.declared).json())
        if self.table.exists():
            added = self.table.declared.evolution(self.declared)
            if isinstance(added, str):
                raise StateSchemaError(self.table.name, added)
            check_no_sql(self._open.now(), self.table.name)
            if added or (self.declared.slice_by and self.declared.slice_by != self.table.declared.slice_by):
                self._add_columns(wanted)
            self.name_files_plainly(DeltaTable(str(self.table.path)))
            return
        self.table.path.parent.mkdir(parents=True, exist_ok=True)
        chosen = _CONFIGURATION | (_ON_STORES if isinstance(self.table.path, Location) else {})
        try:
            DeltaTable.create(
                str(self.table.path),
                wanted,
                mode="ignore",
                partition_by=None if self.declared.layout == MAP else [SLICE_COLUMN, GEN],
                configuration={PROPERTY: self.declared.dump(), **chosen, **PLAIN_NAMES, **_statistics(wanted)},
                raise_if_key_not_exists=False,
                # Tried again, a table that another process has made meanwhile would be created again by its version 1.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:
            if not self.table.exists():
                raise
            self.prepare(columns)

    def _add_columns(self, wanted: DeltaSchema) -> None:
        """Add what `wanted` has beyond the table's columns, then have the table say what the flow declares.

        Two commits. Killed between them the table has columns that it does not speak of; the next start says so.
        """
        table = DeltaTable(str(self.table.path))
        there = {field.name: field.type for field in table.schema().fields}
        missing = [
            field
            for field in wanted.fields
            if field.name not in there or (field.name == PREVIOUS and _grows(there[field.name], field.type))
        ]
        if missing:
            table.alter.add_columns(missing, post_commithook_properties=HOOKS)
        table.alter.set_table_properties({PROPERTY: self.declared.dump()}, raise_if_not_exists=False)

    def empty(self) -> pa.Table:
        """Return no rows, with the table's columns."""
        return pa.schema(DeltaTable(str(self.table.path)).schema().to_arrow()).empty_table()

    def committed(self, app_id: str) -> int | None:
        """Return the last txid that was committed under a transaction application id, or None."""
        return last_txid(self._open.now(), app_id)

    def version(self) -> int:
        """Return the last version of the table."""
        return self._open.now().version()

    def standing(self, app_id: str) -> tuple[int, int | None]:
        """Return the last version of the table, and the last txid that it holds under a transaction application id, or None."""
        table = self._open.now()
        return table.version(), last_txid(table, app_id)

    # --- a batch ----------------------------------------------------------------------------------------------------

    def skips(self, known: bool) -> bool:
        """Return whether a batch has nothing to do here: the state is transactional, and `known` to hold the txid already."""
        return known and self.declared.kind == TRANSACTIONAL

    def commit_batch(
        self,
        rows: pa.Table | DataFrame,
        record: BatchRecord,
        app_id: str,
        *,
        known: bool,
        seen: int | None = None,
        room: Room | None = None,
    ) -> int:
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
            app_id: the stream's transaction id.
            known: whether the table holds this txid already (`committed`, or for non-transactional states the history).
            seen: the version of the table that the rows were made for; None: that is not looked at.
            room: what `room` has returned for the rows.

        Returns:
            The table version.

        Raises:
            LateWriterError: another process has committed since; nothing is written.
            BehindStateError: an opaque state holds a later txid.
            DuplicateKeyError: a map state gets two rows of one key.
            AccountingError: the files that Spark wrote to a store hold other rows than it was given; nothing is committed.
            NotTextError: a text is not UTF-8.
        """
        if self.skips(known):
            return self.table.version()
        if not isinstance(rows, pa.Table):
            rows = checked_texts(self.table.name, rows)
        replaces = known and self.declared.kind == OPAQUE
        merges = self.declared.layout == MAP
        judge = self._judge(record, app_id, replaces=replaces, seen=seen)
        if isinstance(self.table.path, Location) and not isinstance(rows, pa.Table):
            if not merges and not replaces:
                return self._append_files(self.table.path, rows, record, judge)
            # A MERGE, and what takes the place of rows, is delta-rs' own work: the rows travel to it.
            from pipelines.spark.arrow_frame import to_arrow

            rows = to_arrow(rows)
        if isinstance(rows, pa.Table):
            if merges:
                return self._merge_arrow(rows, record, judge, replaces)
            return self._append_arrow(rows, record, judge, replaces, room)
        return (self._merge_spark if merges else self._append_spark)(rows, record, judge, replaces)

    def append_arrow(self, rows: pa.Table, record: BatchRecord, app_id: str | None, *, seen: int | None = None) -> int:
        """Append a batch's rows (user columns and perhaps `_slice`). Returns the table version."""
        return self._append_arrow(rows, record, self._judge(record, app_id, seen=seen))

    def room(self, rows: pa.Table, txid: int, *, known: bool) -> Room | None:
        """See ahead of all commits of a batch that its totals fit; of a small result, with no look at the log beyond `standing`.

        Args:
            rows: as in `commit_batch`; further columns are ignored.
            known: whether the table holds this txid already.

        Returns:
            What `commit_batch` need not work out again; None for a state without sums.
        """
        if self.declared.layout != LOG or self.skips(known):
            return None
        table = self._open.as_read()
        where = _own_rows(txid) if known and self.declared.kind == OPAQUE else None
        history = self.table.commits.read_up_to(table.version())
        given = self._complete(table, rows, txid, txid)
        bounds = checked_bounds(table, self.table, self.declared, given, where, history)
        return None if bounds is None else Room(table.version(), bounds)

    def _append_arrow(
        self, rows: pa.Table, record: BatchRecord, judge: Judge, replaces: bool = False, room: Room | None = None
    ) -> int:
        where = _own_rows(record.txid) if replaces else None
        return self._write(
            lambda table: self._complete(table, rows, record.txid, record.txid), record, judge, where, room=room
        )

    def _append_spark(self, frame: DataFrame, record: BatchRecord, judge: Judge, replaces: bool) -> int:
        """Append a batch's frame where it lies; `record.rows` is not known before."""
        names = [*self.declared.names, *ENGINE_COLUMNS]

        def save(record: BatchRecord, carried: Transactions, rows: DataFrame) -> None:
            writer = rows.select(*(f"`{name}`" for name in names)).write.format("delta")
            writer = writer.option("userMetadata", record.dump()).mode("overwrite" if replaces else "append")
            if replaces:
                writer = writer.option("replaceWhere", _own_rows(record.txid))
            for name, version in list(carried.items())[:1]:
                writer = writer.option("txnAppId", name).option("txnVersion", version)
            writer.save(str(self.table.path))

        return self._commit_spark(partial(self._save_fitting, save, _whole(frame, record.txid)), record, judge)

    def _append_files(self, table: Location, frame: DataFrame, record: BatchRecord, judge: Judge) -> int:
        """Append a batch's frame where the table is on a store: Spark writes files, delta-rs commits them."""
        from pipelines.state.store_commits import check_age, commit_files, rows_of, written_by_spark

        names, version = [*self.declared.names, SLICE_COLUMN, TXID], -1

        def save(record: BatchRecord, _: Transactions, rows: DataFrame) -> None:
            nonlocal version
            wanted = rows.select(*(f"`{name}`" for name in names))
            files, given = written_by_spark(wanted, table, generation(record.txid))
            if rows_of(files) != given:
                # Here, while nothing is committed: a file that a listing does not have is in no commit.
                raise AccountingError(self.table.name, record.txid, record.attempt, given, rows_of(files))
            said = record.model_copy(update={"rows": rows_of(files)}).with_commit_name()
            check_age(files, table, self.table.name, f"batch {record.txid}")
            version = self._commit(lambda t, carried: commit_files(t, files, properties(said, carried)), said, judge)
            version = version_of(self.table, said, -1) or version

        self._save_fitting(save, _whole(frame, record.txid), record, {})
        return version

    def _save_fitting(
        self,
        save: Callable[[BatchRecord, Transactions, DataFrame], None],
        frame: DataFrame,
        record: BatchRecord,
        carried: Transactions,
    ) -> None:
        """Save a frame whose totals are guarded, first by a small allowance, then by all the room that there is."""
        from pyspark.errors import PySparkException

        refused: PySparkException | None = None
        path = str(self.table.path)
        sums = summed(self.declared, pa.schema(DeltaTable(path).schema().to_arrow()))
        # Kept, the rows are worked out once, though they are read for their slices, too.
        kept = frame.persist() if sums and self.declared.sliced else None
        try:
            slices = 1 if kept is None else max(1, kept.select(SLICE_COLUMN).distinct().count())
            for allowance in allowances(DeltaTable(path), self.table, self.declared, sums, slices):
                try:
                    save(record.model_copy(update={"bounds": allowance.bounds}), carried, allowance.guarded(frame))
                    return
                except PySparkException as error:
                    if TOO_LARGE not in str(error):
                        raise
                    refused = error
            if refused is not None:
                name = str(refused).partition(f"{TOO_LARGE}: ")[2].partition(" ")[0]
                raise StateOverflowError(self.table.name, name, "(of the column)") from refused
            save(record, carried, frame)
        finally:
            if kept is not None:
                kept.unpersist()

    def merge_arrow(self, rows: pa.Table, record: BatchRecord, app_id: str | None, *, seen: int | None = None) -> int:
        """Merge a batch's changes (keys, values, perhaps `_removed`) into a map state. Returns the table version."""
        return self._merge_arrow(rows, record, self._judge(record, app_id, seen=seen))

    def _merge_arrow(self, rows: pa.Table, record: BatchRecord, judge: Judge, replaces: bool = False) -> int:
        check_texts(self.table.name, rows)
        record = record.model_copy(update={"rows": rows.num_rows}).with_commit_name()

        def merge(table: DeltaTable, carried: Transactions) -> None:
            before = table.version()
            said = properties(record, carried)
            with dates_named(self.table.name, rows):
                merge_arrow(table, rows, self.declared, record.txid, said, replayed=replaces)
            if table.version() == before:
                # A MERGE that changes nothing is no commit to delta-rs; the batch is to be known all the same.
                self._note(table, record, carried)

        return self._commit(merge, record, judge)

    def _merge_spark(self, frame: DataFrame, record: BatchRecord, judge: Judge, replaces: bool) -> int:
        """Merge a frame by Spark's MERGE INTO.

        MERGE takes its transaction id and userMetadata from the session, so the frame's own session has them meanwhile:
        no other thread may write Delta tables in it.
        """
        spark = frame.sparkSession

        def merge(record: BatchRecord, carried: Transactions) -> None:
            given = {_METADATA: record.dump()}
            for name, version in list(carried.items())[:1]:
                given |= {_APP_ID: name, _VERSION: str(version)}
            for name, value in given.items():
                spark.conf.set(name, value)
            try:
                merge_spark(spark, str(self.table.path), frame, self.declared, record.txid, replayed=replaces)
            finally:
                for name in given:
                    spark.conf.unset(name)

        return self._commit_spark(merge, record, judge)

    # --- slices -----------------------------------------------------------------------------------------------------

    def replace_slice(
        self,
        rows: pa.Table,
        record: BatchRecord,
        app_id: str | None = None,
        *,
        seen: int | None = None,
        among: str | None = None,
    ) -> int:
        """Put `rows` in the place of all that the table holds of `record.slice`, in one commit.

        A roll-up of all slices stops being true, so it goes in the same commit. The rows are of no batch (`_txid` -1): a
        replay of the last one must not take them for its own.

        Args:
            app_id: the transaction id of the stream that writes the table; the slice is refused if a batch comes between.
            seen: the version of the table that the rows and the claims were made for; -1: there was no table.
            among: quarantine only: the rows of `record.group`; those of other batch groups stay.
        """
        assert record.slice is not None
        names = ", ".join(literal(SLICE_COLUMN, slice_, pa.string()) for slice_ in (record.slice, ROLL_UP))
        where = f"{SLICE_COLUMN} IN ({names})" + (f" AND {among}" if among else "")
        judge = self._judge(record, app_id, seen=seen)
        tries = _TRIES if among else 1

        def whole(table: DeltaTable) -> pa.Table:
            # Rows of quarantine may stay those of the batch that rejected them.
            return self._complete(table, rows, -1, record.txid, own_txids=among is not None)

        return self._write(whole, record, judge, where, tries)

    def append_replay(self, rows: pa.Table, record: BatchRecord, app_id: str, *, seen: int | None) -> int:
        """Append what replayed rows have become, in one commit beside the batches and slices. Returns the table version.

        The rows are of no batch: their `_txid` is below -1 and names the replay. They lie in the generation of the last
        batch, which no roll-up covers.

        Args:
            seen: the version of the table for which it was judged that it does not count the rows.
        """
        assert record.replay is not None
        txid, judge = replay_txid(record.replay), self._judge(record, app_id, seen=seen)

        def whole(table: DeltaTable) -> pa.Table:
            # Asked for behind the judging: a batch that comes later is a conflict.
            return self._complete(table, rows, txid, self.table.last_txid() or 0)

        return self._write(whole, record, judge)

    def replace_rejected(
        self, rows: pa.Table, record: BatchRecord, app_id: str, txids: tuple[int, int], seen: int | None = None
    ) -> int:
        """Put `rows` (all columns of the table) in the place of those of some txids, in one commit. Quarantine only."""
        where = f"{TXID} BETWEEN {txids[0]} AND {txids[1]}"

        def whole(table: DeltaTable) -> pa.Table:
            schema = pa.schema(table.schema().to_arrow())
            return rows.select(schema.names).cast(schema)

        return self._write(whole, record, self._judge(record, app_id, seen=seen), where)

    def replace_map(
        self, rows: pa.Table, record: BatchRecord, app_id: str | None = None, *, seen: int | None = None
    ) -> int:
        """Put `rows` (keys, values, perhaps `_removed`) in the place of all that a map state holds, in one commit.

        As in `replace_slice` the rows are of no batch.
        """

        def whole(table: DeltaTable) -> pa.Table:
            schema = pa.schema(table.schema().to_arrow())
            kept = rows
            if REMOVED in rows.column_names:
                kept = rows.filter(pc.invert(rows[REMOVED])).drop_columns([REMOVED])
            columns = {name: kept[name] for name in kept.column_names}
            columns[TXID] = pa.repeat(pa.scalar(-1, pa.int64()), kept.num_rows)
            if REMOVED in schema.names:
                columns[REMOVED] = pa.repeat(pa.scalar(False), kept.num_rows)
            every = {f.name: columns.get(f.name, pa.nulls(kept.num_rows, f.type)) for f in schema}
            return pa.table(every).cast(schema)

        return self._write(whole, record, self._judge(record, app_id, seen=seen), "true")

    def reset(self, record: BatchRecord, app_id: str | None = None, *, among: str | None = None) -> int:
        """Empty the table; its history so far no longer counts.

        Args:
            app_id: the transaction id of the stream that is to begin.
            among: quarantine only: empty it of these rows, those of `record.group`.
        """
        record = record.model_copy(update={"kind": RESET}).with_commit_name()

        def empty(table: DeltaTable, carried: Transactions) -> None:
            before = table.version()
            table.delete(among, commit_properties=properties(record, carried), post_commithook_properties=HOOKS)
            if table.version() == before:
                self._note(table, record, carried)

        return self._commit(empty, record, self._judge(record, app_id), _TRIES if among else 1)

    def replace_rows(
        self, rows: pa.Table, record: BatchRecord, where: str, *, seen: int | None = None, app_id: str | None = None
    ) -> int:
        """Put a batch's rows in the place of those that a condition names, in one commit. Quarantine only.

        Args:
            app_id: the transaction id of the stream whose batch is committed once more; None: it is no commit of that batch.
        """
        judge = self._judge(record, app_id, replaces=True, seen=seen)
        return self._write(
            lambda table: self._complete(table, rows, record.txid, record.txid), record, judge, where, _TRIES
        )

    def forget_rows(self, txid: int, where: str, group: str, seen: int | None = None) -> None:
        """Remove the rows of a txid that a condition names, if there are any. Quarantine only."""
        if self.table.count(where):
            record = BatchRecord(kind=FORGOTTEN, flow=self.declared.flow, txid=txid, group=group).with_commit_name()

            def forget(table: DeltaTable, carried: Transactions) -> None:
                table.delete(where, commit_properties=properties(record, carried), post_commithook_properties=HOOKS)

            self._commit(forget, record, self._judge(record, None, seen=seen), _TRIES)


def _check_keys(state: str, declared: StateSchema, columns: StructType) -> None:
    """Refuse keys that a MERGE cannot compare."""
    nested = {"array", "map", "struct", "variant"}
    kinds = {field.name: field.dataType for field in columns.fields}
    for name in declared.keys:
        if kinds[name].typeName() in nested:
            kind = kinds[name].simpleString()
            raise DefinitionError(
                f'state "{state}": key "{name}" is of type {kind}, which a state of layout map cannot compare',
                hint="group by its parts, or by its text (to_json); a state of layout log takes such keys",
            )


def _whole(frame: DataFrame, txid: int) -> DataFrame:
    """Return a batch's frame with the engine's columns."""
    from pyspark.sql import functions as F

    if SLICE_COLUMN not in frame.columns:
        frame = frame.withColumn(SLICE_COLUMN, F.lit(UNSLICED))
    frame = frame.withColumn(TXID, F.lit(txid).cast("long"))
    return frame.withColumn(GEN, F.lit(generation(txid)).cast("long"))


def _grows(there: object, wanted: object) -> bool:
    """Return whether a struct (what opaque states keep of the row before) gets further fields."""
    return isinstance(there, DeltaStruct) and isinstance(wanted, DeltaStruct) and len(wanted.fields) > len(there.fields)


def _statistics(wanted: DeltaSchema) -> dict[str, str]:
    """Keep no statistics of long decimals: delta-rs rounds them to doubles, and a reader that skips files by them loses rows."""
    fields = pa.schema(wanted.to_arrow())
    if not any(is_wide(field.type) for field in fields):
        return {}
    kept = [
        field.name for field in fields if field.name not in (SLICE_COLUMN, GEN) and not pa.types.is_nested(field.type)
    ]
    kept = [name for name in kept if not is_wide(fields.field(name).type) and re.fullmatch(r"\w+", name)]
    return {"delta.dataSkippingStatsColumns": ",".join(kept)}


def replay_txid(number: int) -> int:
    """Return the txid that a replay's rows get; -1 belongs to backfills."""
    return -1 - number


def _own_rows(txid: int) -> str:
    """Return the rows that a batch wrote. Compaction leaves the last batch's generation of an opaque state alone."""
    return f"{TXID} = {txid} AND {GEN} = {generation(txid)}"
