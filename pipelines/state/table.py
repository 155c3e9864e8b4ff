"""StateTable: a state of the lake, read by delta-rs without Spark, or as a Spark frame."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from pipelines.errors import ReadPointError
from pipelines.state.history import History
from pipelines.state.literals import keys_condition, quoted
from pipelines.state.record import CommitRecord
from pipelines.state.schema import ENGINE_COLUMNS, GEN, PROPERTY, ROLL_UP, SLICE_COLUMN, StateSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG_LAYOUT = "log"

# Up to so many stored rows a frame is made from what delta-rs reads, in tens of milliseconds; Spark's Delta reader needs
# hundreds, and seconds the first time in a process.
LOCAL_ROWS = 200_000


class Snapshot:
    """One version of the table, opened: its DataFusion query context and its roll-up, if compaction left one."""

    def __init__(self, table: DeltaTable) -> None:
        self.version = table.version()
        self.table = table
        self._query: QueryBuilder | None = None
        parts = [(part[SLICE_COLUMN], int(part[GEN])) for part in table.partitions() if part[GEN] is not None]
        self.roll_up = max((gen for slice_, gen in parts if slice_ == ROLL_UP), default=None)
        self._newer = (
            any(gen > self.roll_up for slice_, gen in parts if slice_ != ROLL_UP) if self.roll_up is not None else True
        )

    @property
    def live(self) -> str:
        """SQL over the engine's columns: the rows that together make the state, each counted once.

        The roll-up stands for all slices up to its generation; without one the slices speak for themselves.
        """
        if self.roll_up is None:
            return "true"
        if not self._newer:
            # One partition, so that a reader need not look at the files of the slices at all.
            return f"{SLICE_COLUMN} = '{ROLL_UP}'"
        return f"({SLICE_COLUMN} = '{ROLL_UP}' OR {GEN} > {self.roll_up})"

    def query(self, sql: str) -> pa.Table:
        if self._query is None:
            self._query = QueryBuilder().register("state", self.table)
        return _plain(pa.table(self._query.execute(sql).read_all()))

    @cached_property
    def stored_rows(self) -> int | None:
        """Rows that the version's files hold, None where a file does not say."""
        counts = pa.table(self.table.get_add_actions(flatten=True))["num_records"]
        return None if counts.null_count else int(pc.sum(counts).as_py() or 0)


class StateTable:
    """A Delta table that a topology persists into.

    Reads take a read point: `txid` (the state as of that batch), `version` (of the Delta table) or `timestamp`
    (an aware datetime); without one they see the last commit. The handle keeps the table open: a warm read costs no
    listing of the whole log. It may be shared by threads.

    Args:
        name: the state's name.
        path: the table's folder.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self._history = History(name, path)
        self._table: DeltaTable | None = None
        self._snapshots: dict[int, Snapshot] = {}
        self._schema: StateSchema | None = None
        self._lock = threading.Lock()

    # --- what it is -------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return (self.path / "_delta_log").is_dir() and DeltaTable.is_deltatable(str(self.path))

    def is_state(self) -> bool:
        """Whether the engine made it: a lake may hold Delta tables of others."""
        return self.exists() and PROPERTY in self._latest().metadata().configuration

    @property
    def declared(self) -> StateSchema:
        """The state's declared schema."""
        if self._schema is None:
            self._schema = StateSchema.model_validate_json(self._latest().metadata().configuration[PROPERTY])
        return self._schema

    @property
    def schema(self) -> pa.Schema:
        """What a reader gets: the user's columns with their Arrow types."""
        return self.scan(where="false").schema

    def version(self) -> int:
        """The last version of the Delta table."""
        return self._latest().version()

    def last_txid(self) -> int | None:
        """The last committed txid of a stream, or None."""
        last = self._history.last_batch()
        return last.txid if last else None

    def history(self) -> list[CommitRecord]:
        """One record a commit: version, kind, txid, attempt, epoch, slice, rows, time; oldest first."""
        return self._history.records()

    @property
    def commits(self) -> History:
        """The commit ledger, for the engine."""
        return self._history

    # --- reading ----------------------------------------------------------------------------------------------------

    def get(
        self,
        keys: Sequence[Mapping[str, Any]] | None = None,
        txid: int | None = None,
        version: int | None = None,
        timestamp: datetime | None = None,
    ) -> list[dict[str, Any]]:
        """The rows of some keys, in the order asked for; a key that the state does not hold gives no row.

        Args:
            keys: one dict a key, with a value for every key column; None or `[{}]` for a state without keys.

        Raises:
            FieldError, KeyValueError: if a key does not fit the key columns.
            ReadPointError: if there is no such read point.
        """
        declared, snapshot = self.declared, self._at(txid, version, timestamp)
        if declared.layout != LOG_LAYOUT:
            return self._matching(keys or [], snapshot)
        asked = [dict(key) for key in keys or [{}]]
        types = {f.name: f.type for f in _arrow_schema(snapshot.table)}
        condition = keys_condition(asked, declared.keys, types)
        columns = ", ".join(quoted(name) for name in declared.names)
        found = snapshot.query(f"SELECT {columns} FROM state WHERE {condition} AND {snapshot.live}")
        rows = self._folded(found.to_pylist())
        if not declared.keys and not rows:
            return [self._zero()]
        wanted = dict.fromkeys(_normal(key, declared.keys, types) for key in asked)
        return [rows[key] for key in wanted if key in rows]

    def _zero(self) -> dict[str, Any]:
        """What a state without keys holds before any row: its aggregators' zeros (Trident rules 1.3)."""
        made = {value.name: value.make() for value in self.declared.values}
        return {name: aggregator.finish(aggregator.zero()) for name, aggregator in made.items()}

    def _folded(self, stored: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Fold partial values key by key in plain Python: a read of a few keys has few rows."""
        declared = self.declared
        folds = [(value.name, value.make()) for value in declared.values]
        groups: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in stored:
            key = tuple(row[name] for name in declared.keys)
            known = groups.get(key)
            if known is None:
                groups[key] = row
            else:
                for name, aggregator in folds:
                    known[name] = aggregator.combine(known[name], row[name])
        for row in groups.values():
            for name, aggregator in folds:
                row[name] = aggregator.finish(row[name])
        return groups

    def _matching(self, keys: Sequence[Mapping[str, Any]], snapshot: Snapshot) -> list[dict[str, Any]]:
        types = {f.name: f.type for f in _arrow_schema(snapshot.table)}
        columns = ", ".join(quoted(name) for name in self.declared.names)
        conditions = [keys_condition([key], tuple(key), types) for key in keys if _known(key, types)] or ["true"]
        sql = f"SELECT {columns} FROM state WHERE {' OR '.join(conditions)}"
        return snapshot.query(sql).to_pylist()

    def scan(
        self,
        txid: int | None = None,
        version: int | None = None,
        timestamp: datetime | None = None,
        *,
        where: str = "true",
    ) -> pa.Table:
        """The whole state as an Arrow table: keys and values, one row a key (log), or the rows (rows).

        Args:
            where: SQL over the stored columns, for the engine's own use.
        """
        declared, snapshot = self.declared, self._at(txid, version, timestamp)
        if declared.layout != LOG_LAYOUT:
            columns = ", ".join(quoted(name) for name in declared.names)
            return snapshot.query(f"SELECT {columns} FROM state WHERE {where}")
        keys = [quoted(name) for name in declared.keys]
        values = [f"{v.make().result_sql(quoted(v.name))} AS {quoted(v.name)}" for v in declared.values]
        sql = f"SELECT {', '.join(keys + values)} FROM state WHERE {snapshot.live} AND {where}"
        found = snapshot.query(sql + (f" GROUP BY {', '.join(keys)}" if keys else ""))
        typed = self._with_types(found, snapshot)
        return typed if keys else self._with_zeros(typed)

    def _with_zeros(self, found: pa.Table) -> pa.Table:
        """The one row of a state without keys, its zeros where nothing is stored yet."""
        for index, (name, zero) in enumerate(self._zero().items()):
            if zero is not None:
                filled = pc.fill_null(found[name], pa.scalar(zero, type=found[name].type))
                found = found.set_column(index, found.schema.field(name), filled)
        return found

    def count(self, where: str = "true") -> int:
        """Stored rows (partial values in a log state) that meet a condition over the stored columns."""
        found = self._at(None, None, None).query(f"SELECT count(*) AS n FROM state WHERE {where}")
        return int(found["n"][0].as_py())

    def _with_types(self, found: pa.Table, snapshot: Snapshot) -> pa.Table:
        """DataFusion widens sums of decimals; give back the declared types."""
        stored = {f.name: f.type for f in _arrow_schema(snapshot.table)}
        fields = [
            pa.field(f.name, f.type if pa.types.is_struct(stored[f.name]) else stored[f.name]) for f in found.schema
        ]
        return found.cast(pa.schema(fields))

    def frame(
        self,
        spark: SparkSession,
        txid: int | None = None,
        version: int | None = None,
        timestamp: datetime | None = None,
    ) -> DataFrame:
        """The state as a Spark frame: keys and values, one row a key (log), or the rows (rows)."""
        from pyspark.sql import functions as F

        declared, snapshot = self.declared, self._at(txid, version, timestamp)
        if snapshot.stored_rows is not None and snapshot.stored_rows <= LOCAL_ROWS:
            return spark.createDataFrame(self.scan(version=snapshot.version))
        stored = spark.read.format("delta").option("versionAsOf", snapshot.version).load(str(self.path))
        if declared.layout != LOG_LAYOUT:
            return stored.drop(*ENGINE_COLUMNS)
        made = [(value.name, value.make()) for value in declared.values]
        folded = (
            stored.where(snapshot.live)
            .groupBy(*(_column(name) for name in declared.keys))
            .agg(*(aggregator.fold(_column(name)).alias(name) for name, aggregator in made))
        )
        # As text, which is without the `NOT NULL` that fields of a stored struct may carry.
        types = {f.name: f.dataType.simpleString() for f in stored.schema}
        results = [(aggregator.result(F.col(f"`{name}`").cast(types[name]))).alias(name) for name, aggregator in made]
        if not declared.keys:
            zeros = self._zero()
            results = [
                F.coalesce(one, F.lit(zeros[name])).alias(name) for one, (name, _) in zip(results, made, strict=True)
            ]
        return folded.select(*(_column(name) for name in declared.keys), *results)

    # --- read points ------------------------------------------------------------------------------------------------

    def _at(self, txid: int | None, version: int | None, timestamp: datetime | None) -> Snapshot:
        asked = [
            name for name, one in (("txid", txid), ("version", version), ("timestamp", timestamp)) if one is not None
        ]
        if len(asked) > 1:
            raise ReadPointError(self.name, " and ".join(asked), "name one read point only")
        if txid is not None:
            version = self._history.version_of(txid)
        if timestamp is not None:
            version = self._version_at(timestamp)
        if version is None:
            return self._snapshot(self._latest())
        shown = next((f"{name} {one}" for name, one in (("txid", txid), ("time", timestamp)) if one is not None), None)
        self._history.check_kept(version, shown or f"version {version}")
        return self._pinned(version)

    def _version_at(self, timestamp: datetime) -> int:
        shown = timestamp.isoformat()
        if timestamp.tzinfo is None:
            raise ReadPointError(self.name, shown, "the time has no time zone", hint="use datetime(..., tzinfo=UTC)")
        records = self._history.records()
        earlier = [record.version for record in records if record.time <= timestamp]
        if not earlier:
            raise ReadPointError(
                self.name, shown, f"the oldest commit that is kept is of {records[0].time.isoformat()}"
            )
        return earlier[-1]

    def _pinned(self, version: int) -> Snapshot:
        with self._lock:
            if version not in self._snapshots:
                try:
                    table = DeltaTable(str(self.path), version=version)
                except Exception as error:  # delta-rs has one exception class for every kind of missing version
                    raise ReadPointError(self.name, f"version {version}", str(error).splitlines()[0]) from None
                self._keep(Snapshot(table))
            return self._snapshots[version]

    def _snapshot(self, table: DeltaTable) -> Snapshot:
        with self._lock:
            if table.version() not in self._snapshots:
                self._keep(Snapshot(table))
            return self._snapshots[table.version()]

    def _keep(self, snapshot: Snapshot) -> None:
        # Eight: an open version costs its file list; readers look at the last few.
        if len(self._snapshots) >= 8:
            self._snapshots.pop(next(iter(self._snapshots)))
        self._snapshots[snapshot.version] = snapshot

    def _latest(self) -> DeltaTable:
        """The table at its last version. A new one is opened when the log has grown, so that snapshots stay pinned."""
        table = self._table
        if table is None or (self.path / "_delta_log" / f"{table.version() + 1:020d}.json").exists():
            table = DeltaTable(str(self.path))
            self._table = table
        return table


def _column(name: str) -> Any:
    from pyspark.sql import functions as F

    return F.col(f"`{name}`")


def _plain(found: pa.Table) -> pa.Table:
    """DataFusion's view types as the plain ones, which Spark and pandas know."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return found.cast(pa.schema([pa.field(f.name, plain.get(f.type, f.type), f.nullable) for f in found.schema]))


def _arrow_schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _normal(key: Mapping[str, Any], names: Sequence[str], types: Mapping[str, pa.DataType]) -> tuple[Any, ...]:
    return tuple(pa.scalar(key[name], type=types[name]).as_py() for name in names)


def _known(key: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> bool:
    from pipelines.errors import FieldError

    for name in key:
        if name not in types or name in ENGINE_COLUMNS:
            raise FieldError("get", name, [n for n in types if n not in ENGINE_COLUMNS])
    return True
