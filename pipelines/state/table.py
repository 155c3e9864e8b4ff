"""StateTable: a state of the lake, read by delta-rs without Spark, or as a Spark frame."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

from pipelines.errors import FieldError, ReadPointError, StateSchemaError
from pipelines.places.location import Place
from pipelines.spark.arrow_frame import arrow_frame
from pipelines.state.damage import DamagedError, DamagedTableError, check_log, check_version, opened
from pipelines.state.delta_log import Mark, commit_mark, has_log
from pipelines.state.far_times import shown_rows
from pipelines.state.history import History
from pipelines.state.key_cache import PointReads
from pipelines.state.kinds import ROWS
from pipelines.state.literals import check_mappings, keys_condition
from pipelines.state.reading import Reader, read_by_spark
from pipelines.state.record import CommitRecord
from pipelines.state.schema import HIDDEN, PROPERTY, StateSchema
from pipelines.state.snapshot import Snapshot
from pipelines.state.views import TableView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Up to so many stored rows a frame is made from what delta-rs reads, in tens of milliseconds; Spark's Delta reader needs
# hundreds, and seconds the first time in a process.
LOCAL_ROWS = 200_000


class StateTable:
    """A Delta table that a topology persists into.

    Reads take a read point: `txid` (the state as of that batch), `version` (of the Delta table) or `timestamp`
    (an aware datetime); without one they see the last commit. The handle keeps the table open: a warm read costs no
    listing of the whole log. It may be shared by threads.

    Args:
        name: the state's name.
        path: the table's folder.
    """

    def __init__(self, name: str, path: Place) -> None:
        self.name, self.path = name, path
        self._history = History(name, path)
        self._open: tuple[DeltaTable, Mark | None] | None = None
        self._snapshots: dict[int, Snapshot] = {}
        self._schema: tuple[DeltaTable, str, StateSchema] | None = None
        self._lock = threading.Lock()
        self._points = PointReads(path, self._reader)

    def __repr__(self) -> str:
        return f"StateTable({self.name!r}, {str(self.path)!r})"

    # --- what it is -------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return has_log(self.path) and DeltaTable.is_deltatable(str(self.path))

    def is_state(self) -> bool:
        """Return whether the engine made it: a lake may hold Delta tables of others."""
        return self.exists() and PROPERTY in self._latest().metadata().configuration

    @property
    def flow(self) -> str | None:
        """Return the flow that writes it; None for a table of others, for none, and for one that is damaged."""
        with suppress(DamagedError):
            return self.declared.flow if self.is_state() else None
        return None

    @property
    def declared(self) -> StateSchema:
        """Return the state's declared schema, as of the last version: a flow may have added columns.

        Raises:
            StateSchemaError: a Delta table of others lies where the state would be.
        """
        return self._declared_by(self._latest())

    def _declared_by(self, table: DeltaTable) -> StateSchema:
        """Return the schema that a version of the table says."""
        known = self._schema
        if known is None or known[0] is not table:
            text = table.metadata().configuration.get(PROPERTY)
            if text is None:
                raise StateSchemaError(self.name, "the engine did not make it")
            # Parsed once for all versions that say the same.
            same = known is not None and known[1] == text
            schema = known[2] if same and known else StateSchema.model_validate_json(text)
            self._schema = known = (table, text, schema)
        return known[2]

    @property
    def schema(self) -> pa.Schema:
        """Return the user's columns with their Arrow types, as a reader gets them."""
        return self.scan(where="false").schema

    def version(self) -> int:
        """Return the last version of the Delta table."""
        return self._latest().version()

    def version_of(self, txid: int | None) -> int:
        """Return the version that a read as of a txid sees; None: the last one.

        Raises:
            ReadPointError: there is no such read point.
        """
        last = self.version()
        point = self._point(txid, None, None, last)
        return last if point is None else point

    @property
    def id(self) -> str:
        """Delta's id of the table: one that is created again at the same place has another."""
        return str(self._latest().metadata().id)

    @property
    def last(self) -> tuple[int, str]:
        """The last version and the id, both of one look: another process may make the table again between two."""
        latest = self._latest()
        return latest.version(), str(latest.metadata().id)

    def opened(self) -> DeltaTable:
        """Open the Delta table at its last version, for the engine's own use.

        Never kept: a compaction may delete parts of the log, such as transaction ids, that a kept handle reads later.
        """
        return opened(self.name, self.path)

    def last_txid(self) -> int | None:
        """Return the last committed txid of a stream, or None."""
        last = self._history.last_batch()
        return last.txid if last else None

    def history(self) -> list[CommitRecord]:
        """Return one record per commit: version, kind, txid, attempt, epoch, slice, rows, time; oldest first."""
        return self._history.records()

    @property
    def commits(self) -> History:
        """Return the commit ledger, for the engine."""
        return self._history

    # --- reading ----------------------------------------------------------------------------------------------------

    def get(
        self,
        keys: Sequence[Mapping[str, Any]] | None = None,
        txid: int | None = None,
        version: int | None = None,
        timestamp: datetime | None = None,
    ) -> list[dict[str, Any]]:
        """Return the rows of some keys, in the order asked for; a key that the state does not hold gives no row.

        Args:
            keys: one dict a key, with a value for every key column; None or `[{}]` for a state without keys. Of a state of rows:
                values of any columns, None for all rows. An empty list gives no row.

        Raises:
            FieldError, KeyFieldsError, KeyValueError: if a key does not fit the key columns.
            ReadPointError: if there is no such read point.
        """
        check_mappings(keys)
        present = txid is None and version is None and timestamp is None
        reader = self._points.current() if present else self._reader(txid, version, timestamp)
        if keys is not None and not keys:
            return []
        if reader.declared.layout == ROWS:
            return self._matching(keys or [], reader)
        asked = [dict(key) for key in keys or [{}]]
        if present:
            rows = self._points.find(asked)
        else:
            held = reader.find(asked)
            rows = {key: held[key] for key in reader.normal(asked) if key in held}
        if not reader.keys and not rows and reader.declared.values:
            return [reader.zero()]
        return list(rows.values())

    def _matching(self, keys: Sequence[Mapping[str, Any]], reader: Reader) -> list[dict[str, Any]]:
        types = reader.snapshot.types
        conditions = [keys_condition([key], tuple(key), types) for key in keys if _known(key, types)] or ["true"]
        return shown_rows(reader.scan(" OR ".join(conditions)))

    def _reader(
        self,
        txid: int | None = None,
        version: int | None = None,
        timestamp: datetime | None = None,
        before: int | None = None,
    ) -> Reader:
        snapshot = self._at(txid, version, timestamp)
        # Of one look where that can be: a flow that adds a column between two makes commits that the rows may be behind, and the
        # schema not. An earlier version is read by the columns of now, which are asked for behind it for the same reason.
        present = txid is None and version is None and timestamp is None
        return Reader(snapshot, self._declared_by(snapshot.table) if present else self.declared, before)

    def scan(
        self,
        txid: int | None = None,
        version: int | None = None,
        timestamp: datetime | None = None,
        *,
        where: str = "true",
    ) -> pa.Table:
        """Return the whole state as an Arrow table: keys and values, one row per key (log, map), or the rows (rows).

        Args:
            where: SQL over the stored columns, for the engine's own use.
        """
        return self._reader(txid, version, timestamp).scan(where)

    def count(self, where: str = "true") -> int:
        """Count the stored rows (partial values in a log state) that meet a condition over the stored columns."""
        counted = self._at(None, None, None).query(f"SELECT count(*) AS n FROM state WHERE {where}")
        return int(counted["n"][0].as_py())

    def stored(self, where: str = "true", columns: str = "*") -> pa.Table:
        """Return the stored rows of the last version with the engine's columns, for the engine's own use.

        Args:
            where: SQL over the stored columns.
            columns: SQL of what to select.
        """
        return self._at(None, None, None).query(f"SELECT {columns} FROM state WHERE {where}")

    def frame(
        self,
        spark: SparkSession,
        txid: int | None = None,
        version: int | None = None,
        timestamp: datetime | None = None,
    ) -> DataFrame:
        """Return the state as a Spark frame: keys and values, one row per key (log), or the rows (rows)."""
        return self._frame(spark, self._reader(txid, version, timestamp))

    def base_frame(self, spark: SparkSession, txid: int, version: int | None = None) -> DataFrame:
        """Return what the state held before a batch, as `frame` gives it; a replay of the batch starts from it.

        An opaque state that has committed `txid` is returned without that batch's rows, any other state as it is.
        """
        return self._frame(spark, self._reader(version=version, before=txid))

    def view(self, version: int | None = None, *, txid: int | None = None, before: int | None = None) -> TableView:
        """Return the state as a map, for functions; it travels to Spark's workers.

        Raises:
            ReadPointError: there is no such read point.
        """
        table, mark = self._now()
        version = self._point(txid, version, None, table.version())
        if version is not None and version > table.version():
            # Here: a view is opened where it is read, which may be a worker of Spark's.
            raise ReadPointError(self.name, f"version {version}", f"the last version is {table.version()}")
        if version is not None and version != table.version():
            # As every read here: by the columns that the state has now.
            later = table.metadata().configuration.get(PROPERTY) if version < table.version() else None
            return TableView(str(self.path), version, before, self._history.made(version), later)
        return TableView(str(self.path), table.version(), before, str(mark))

    def _frame(self, spark: SparkSession, reader: Reader) -> DataFrame:
        rows = reader.snapshot.stored_rows
        if rows is not None and rows <= LOCAL_ROWS:
            return arrow_frame(spark, reader.scan())
        return read_by_spark(spark, self.path, reader)

    # --- read points ------------------------------------------------------------------------------------------------

    def _at(self, txid: int | None, version: int | None, timestamp: datetime | None) -> Snapshot:
        latest = self._latest()
        version = self._point(txid, version, timestamp, latest.version())
        return self._snapshot(latest) if version in (None, latest.version()) else self._pinned(version)

    def _point(self, txid: int | None, version: int | None, timestamp: datetime | None, last: int) -> int | None:
        """Return the version of a read point, None for the last one.

        Args:
            last: the version that was the last one just now. Its files are there, so the history is not read for it.

        Raises:
            ReadPointError: it is none, or its files may be gone.
        """
        asked = [
            name
            for name, point in (("txid", txid), ("version", version), ("timestamp", timestamp))
            if point is not None
        ]
        if len(asked) > 1:
            raise ReadPointError(self.name, " and ".join(asked), "name one read point only")
        if txid is not None:
            version = self._history.version_of(txid)
        if timestamp is not None:
            version = self._version_at(timestamp)
        if version is None or version == last:
            return version
        shown = next(
            (f"{name} {point}" for name, point in (("txid", txid), ("time", timestamp)) if point is not None), None
        )
        self._history.check_kept(version, shown or f"version {version}")
        return version

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
                    check_version(self.name, self.path, version)
                    table = opened(self.name, self.path, version)
                except DamagedTableError:
                    raise
                except Exception as error:  # delta-rs has one exception class for every kind of missing version
                    raise ReadPointError(self.name, f"version {version}", str(error).splitlines()[0]) from error
                self._keep(Snapshot(table, self.name))
            return self._snapshots[version]

    def _snapshot(self, table: DeltaTable) -> Snapshot:
        with self._lock:
            if table.version() not in self._snapshots:
                self._keep(Snapshot(table, self.name))
            return self._snapshots[table.version()]

    def _keep(self, snapshot: Snapshot) -> None:
        # Eight: an open version costs its file list; readers look at the last few.
        if len(self._snapshots) >= 8:
            self._snapshots.pop(next(iter(self._snapshots)))
        self._snapshots[snapshot.version] = snapshot

    def _latest(self) -> DeltaTable:
        return self._now()[0]

    def _now(self) -> tuple[DeltaTable, Mark | None]:
        """Return the table at its last version, and the mark of that commit.

        A new one is opened when the log has grown, so that snapshots stay pinned. Or when its own commit is gone or another one:
        then the log was cleaned while nobody read, and the next commit may be gone too, or the table was created again.
        """
        known, since = self._open, 0
        following: Mark | None = None
        if known is not None:
            since = known[0].version() + 1
            following = commit_mark(self.path, since)
            mark = commit_mark(self.path, since - 1) if following is None else None
            if mark is not None and mark == known[1]:
                return known
        check_log(self.name, self.path, since if following else 0)
        table = opened(self.name, self.path)
        version = table.version()
        if known is not None and (version < since or table.metadata().id != known[0].metadata().id):
            with self._lock:
                self._snapshots.clear()
        self._open = table, following if following and version == since else commit_mark(self.path, version)
        return self._open


def _known(key: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> bool:
    for name in key:
        if name not in types or name in HIDDEN:
            raise FieldError("get", name, [n for n in types if n not in HIDDEN], where="this state has")
    return True
