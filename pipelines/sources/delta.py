"""A Delta table as a source: its appends, in order."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Self

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pipelines.causes import Cause, causes
from pipelines.errors import ChangedSourceError, LostRowsError, MissingPathError, SourceError, SourceSchemaError
from pipelines.places.location import Location, LocationError, Place, put_whole
from pipelines.sources.base import StoredSource, file_key, place_of
from pipelines.sources.offsets import KEPT_START, last_number, offset_behind, offset_files, offset_of, read_offset
from pipelines.state.delta_log import Mark, actions, adds, checkpoints, commit_file, commit_mark
from pipelines.state.kinds import LOG
from pipelines.state.schema import REMOVED, struct_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CLEANED = ("[DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE]", "[DELTA_MISSING_FILES_UNEXPECTED_VERSION]")
"""Spark's words for a log that begins behind the next version; the second where no commit of the stream is left."""
_CHANGED = ("[DELTA_SOURCE_TABLE_IGNORE_CHANGES]", "[DELTA_SOURCE_IGNORE_DELETE]")
# What Spark says around the file system's own exception, with the file's address; encoded, so no `. File` is in it.
_UNREAD = re.compile(
    r"\[FAILED_READ_FILE\.FILE_NOT_EXIST\] Encountered error while reading file (.+?)\.(?:\s+(?:File does|SQLSTATE:)|\s*$)"
)
# Of Hadoop's local files, of S3, and of Java's own.
_NO_FILE = re.compile(
    r"File (.+) does not exist|No such file or directory: (.+)|open (s3a://.+?)(?: at \d+ on |: )"
    r"|(.+) \(No such file or directory\)|((?:[\w.-]+:)?/\S+)$"
)
_DELTAS = "org.apache.spark.sql.delta."


class DeltaTableSource(StoredSource):
    """An append-only Delta table; a batch is the next of its data files.

    Positions are the table's data files. A table whose files were rewritten (OPTIMIZE) after a stream read them can
    still be streamed, but not backfilled: the backfill is refused. One whose files were rewritten after a backfill is
    refused to a stream that begins, until the slices are backfilled again.

    Args:
        path: the table's folder.
        schema: DDL of the columns to read, a subset of the table's.
        max_files_per_batch: at most so many data files per batch; None: 1,000, unless bytes are limited.
        max_bytes_per_batch: about so many bytes per batch.
    """

    sliceable: bool = True

    def __init__(
        self,
        path: str | Place,
        schema: str,
        *,
        max_files_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
    ) -> None:
        super().__init__(path, schema, max_files_per_batch=max_files_per_batch, max_bytes_per_batch=max_bytes_per_batch)
        self._known_in: dict[tuple[Place, int], tuple[int, Mark | None]] = {}
        """The checkpoints that were asked: a commit of the table, which another has if the table is made again."""

    def prepare(self, name: str, spool: Place) -> Self:
        own = super().prepare(name, spool)
        own._known_in = {}
        return own

    def check(self, name: str, spark: SparkSession) -> None:
        """Check that the table exists and has the declared columns with their types.

        Raises:
            MissingPathError, SourceSchemaError
            SourceError: if it is the log of a state, which means nothing until it is folded.
            LocationError: if delta-rs would look elsewhere.
        """
        from pyspark.sql.types import StructType

        from pipelines.state.table import StateTable

        self.check_place(name)
        odd = (
            None if isinstance(self._place, Location) else re.search(r"%[0-9A-Fa-f]{2}|\\", os.path.realpath(self.path))
        )
        if odd:
            raise LocationError(
                self.path, f"delta-rs reads {odd[0]} as another character", hint="name a folder without it"
            )
        if not DeltaTable.is_deltatable(self.path):
            raise MissingPathError(name, self.path)
        kept = StateTable(name, self._place)
        if kept.is_state() and kept.declared.layout == LOG:
            raise SourceError(
                f'source "{name}": {self.path} is the log of a state: its rows are partial values of the keys',
                hint="read a state of layout rows, or ask this one with state_query",
            )
        there = StructType.fromJson(json.loads(DeltaTable(self.path).schema().to_json()))
        seen = {f.name: f.dataType.simpleString() for f in there.fields}
        shown = tuple(f"{column} {kind}" for column, kind in seen.items())
        for field in struct_of(self.schema).fields:
            kind = field.dataType.simpleString()
            if seen.get(field.name) != kind:
                problem = f'column "{field.name}" is {seen.get(field.name, "missing")}, declared {kind}'
                raise SourceSchemaError(name, self.path, problem, (self.schema,), shown)

    def check_same(self, name: str, spark: SparkSession, checkpoint: Place, index: int) -> None:
        """Refuse to go on where the table is another one at the same path, whose versions count from 0 again.

        A stream that runs would pass over its first commits. While a commit stays as it is, the table is not asked again.

        Raises:
            LostRowsError
        """
        known = self._known_in.get((checkpoint, index))
        if known is not None and known[1] is not None and commit_mark(self._place, known[0]) == known[1]:
            return
        try:
            version = DeltaTable(self.path).version()
            # Before the table says its id: what is made again behind this has another mark.
            mark = commit_mark(self._place, version)
            if self.check_table(name, checkpoint, index):
                self._known_in[checkpoint, index] = version, mark
        except DeltaError:
            return  # the read that follows reports it

    def check_table(self, name: str, checkpoint: Place, index: int) -> bool:
        """Compare the table with that of the last planned offset; False: there is none yet.

        Raises:
            LostRowsError: it was deleted and created again.
        """
        offset = offset_behind(checkpoint, last_number(checkpoint / "offsets"), index)
        if not isinstance(offset, dict) or "reservoirId" not in offset:
            return False
        if offset["reservoirId"] != str(DeltaTable(self.path).metadata().id):
            raise LostRowsError(name, f"the table {self.path} was deleted and created again")
        return True

    def stream(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions as F

        reader = spark.readStream.format("delta").options(**self._limits)
        # Delta's stream has no `_metadata` column.
        return self._with_position(self.without_removed(reader.load(self.path)), F.input_file_name())

    def bounded(self, spark: SparkSession) -> tuple[DataFrame, frozenset[str]]:
        from pyspark.sql import functions as F

        table = DeltaTable(self.path)
        frame = spark.read.format("delta").option("versionAsOf", table.version()).load(self.path)
        files = frozenset(self._address(file) for file in _in_order_of_snapshot(self.path, table.version()))
        return self._with_position(self.without_removed(frame), F.col("_metadata.file_path")), files

    def without_removed(self, frame: DataFrame) -> DataFrame:
        """Leave out the keys that an opaque map state has removed: until a compaction it keeps a row of each."""
        from pipelines.state.table import StateTable

        if REMOVED not in frame.columns or not StateTable(self.path, self._place).is_state():
            return frame
        return frame.where(f"NOT coalesce({REMOVED}, false)")

    def positions(self, checkpoint: Place, first: int, last: int, index: int = 0) -> frozenset[str]:
        """Return the data files that the batches read, from the commits between their offsets alone: older ones may be gone.

        An offset is a version and the index of the last file taken: of the starting snapshot's files if
        `isStartingVersion`, else of that commit's (-1: none, so everything up to the version before is taken).
        """
        start = self._start(checkpoint, index)
        end = offset_behind(checkpoint, last, index) if first <= last else None
        if start is None or end is None:
            return frozenset()
        before = offset_behind(checkpoint, first - 1, index) if first > 0 else None
        if before is None:
            return self._keys(self._up_to(_snapshot_of(start), end))
        if not before["isStartingVersion"]:
            return self._keys(self._since(before["reservoirVersion"], end)[before["index"] + 1 :])
        rest = self._snapshot(before["reservoirVersion"])[before["index"] + 1 :]
        if end["isStartingVersion"]:
            return self._keys(rest[: end["index"] - before["index"]])
        return self._keys(rest + self._since(before["reservoirVersion"] + 1, end))

    def present(self, version: int | None = None) -> frozenset[str]:
        """Return the table's data files (as `file_key`) at a version; None: the last one."""
        last = DeltaTable(self.path).version() if version is None else version
        return self._keys(_in_order_of_snapshot(self.path, last))

    def read_from(self, version: int) -> frozenset[str]:
        """Return the data files (as `file_key`) that a stream reads which begins with a version: those of it, and later ones."""
        later = (_adds(self.path, later) for later in range(version + 1, DeltaTable(self.path).version() + 1))
        return self.present(version) | self._keys([file for files in later for file in files])

    def takes_vectors(self, version: int | None = None) -> bool:
        """Return whether the table may have deletion vectors at a version; None: the last one.

        Where the feature was dropped later, the files with vectors were rewritten before.
        """
        return "deletionVectors" in (DeltaTable(self.path, version=version).protocol().reader_features or ())

    def vectors_since(self, moment: int, version: int | None = None) -> dict[str, int]:
        """Return the files (as `file_key`) that got a deletion vector at a moment or later, with the latest time of one (ms).

        Each commit is looked at: the times are those of the clocks of whoever made it.

        Args:
            version: that of the last commit to look at; None: the table's last one.
        """
        found: dict[str, int] = {}
        for number in range(DeltaTable(self.path).version() if version is None else version, -1, -1):
            try:
                done = list(actions(self._place, number, "commitInfo", "add"))
            except FileNotFoundError:
                break
            at = next(
                (int(info["timestamp"]) for name, info in done if name == "commitInfo" and "timestamp" in info), None
            )
            if at is not None and at < moment:
                continue
            for name, add in done:
                if name == "add" and add.get("deletionVector"):
                    file, then = file_key(self._address(add["path"])), moment if at is None else at
                    found[file] = max(then, found.get(file, then))
        return found

    def first_version(self, checkpoint: Place, index: int) -> int | None:
        """Return the version at which a stream began; None if its offsets do not say."""
        start = self._start(checkpoint, index)
        return None if start is None else max(0, _snapshot_of(start))

    def rewritten_since(self, checkpoint: Place, batch: int, index: int) -> frozenset[str]:
        """List the files (as `file_key`) into which commits after a batch moved rows of other files."""
        offset = offset_of(checkpoint, batch, index)
        if offset is None:
            return frozenset()
        first, last = offset["reservoirVersion"] + bool(offset["isStartingVersion"]), DeltaTable(self.path).version()
        moved = (_adds(self.path, version, new=False) for version in range(first, last + 1))
        return self._keys([file for files in moved for file in files])

    @property
    def _place(self) -> Place:
        return place_of(self.path)

    def fault(self, name: str, error: BaseException) -> LostRowsError | ChangedSourceError | None:
        """Name data files (VACUUM) or versions of the log (its retention) that are gone before the stream has read them; or a
        commit that is no append.
        """
        for cause in causes(error):
            if cause.type.startswith(_DELTAS) and cause.text.startswith(_CLEANED):
                if not commit_file(self._place, 0).exists():
                    return LostRowsError(
                        name, "the table's log no longer has the versions that the stream has yet to read"
                    )
            elif cause.type.startswith(_DELTAS) and cause.text.startswith(_CHANGED):
                version = re.search(r"\bversion (\d+)", cause.text)
                return ChangedSourceError(name, self.path, int(version[1]) if version else None)
            elif (gone := _gone(cause)) and gone.startswith(f"{file_key(self.folder)}/"):
                return LostRowsError(name, f"the data file {gone} is gone")
        return None

    def _up_to(self, snapshot: int, end: dict[str, Any]) -> list[str]:
        """Return the files of the starting snapshot (-1: none), then of the later commits up to an offset.

        Where the log no longer goes back so far: the oldest snapshot's that is there. The stream passes over nothing but
        appends and moved rows, so that holds what was read up to there.
        """
        if end["isStartingVersion"]:
            return self._snapshot(end["reservoirVersion"])[: end["index"] + 1]
        try:
            return self._snapshot(snapshot) + self._since(snapshot + 1, end)
        except (DeltaError, FileNotFoundError):
            oldest = min(checkpoints(self._place), default=None)
            if oldest is None or not snapshot < oldest <= end["reservoirVersion"]:
                raise
        files = self._snapshot(oldest)
        if oldest < end["reservoirVersion"]:
            return files + self._since(oldest + 1, end)
        own = self._appended(oldest)
        return [file for file in files if file not in own] + own[: end["index"] + 1]

    def _since(self, version: int, end: dict[str, Any]) -> list[str]:
        """Return the new files of the commits from a version on, up to an offset.

        Raises:
            FileNotFoundError: one of the commits is no longer in the log.
        """
        files = [file for each in range(version, end["reservoirVersion"]) for file in self._appended(each)]
        return files + (self._appended(end["reservoirVersion"])[: end["index"] + 1] if end["index"] >= 0 else [])

    def _appended(self, version: int) -> list[str]:
        found = actions(self._place, version, "add")
        return [add["path"] for _, add in found if add.get("dataChange")]

    def _snapshot(self, version: int) -> list[str]:
        return _in_order_of_snapshot(self.path, version) if version >= 0 else []

    def _start(self, checkpoint: Place, index: int) -> dict[str, Any] | None:
        """Return the first offset, kept aside: Spark clears old offsets away (after 100 batches).

        Beside other sources it may be of a later batch than 0: this one had nothing before.
        """
        kept = checkpoint / f"{KEPT_START}{index or ''}"
        if not kept.exists():
            planned = offset_files(checkpoint).values()
            first = next((file for file in planned if read_offset(file, index) is not None), None)
            if first is None:
                return None
            put_whole(kept, first.read_bytes())
        return read_offset(kept, index)

    def _address(self, file: str) -> str:
        """Return a file of the log, whose names are URL-encoded, as an address."""
        return file if file.startswith("file:") or "://" in file else f"{self.folder}/{file}"

    def _keys(self, files: list[str]) -> frozenset[str]:
        return frozenset(file_key(self._address(file)) for file in files)


def _gone(cause: Cause) -> str | None:
    """Return the file (as `file_key`) that an exception says is not there; None if it says of none."""
    if cause.type.startswith("org.apache.spark."):
        match = _UNREAD.match(cause.text)
    else:
        match = _NO_FILE.match(cause.text) if cause.type.endswith("FileNotFoundException") else None
    return file_key(next(filter(None, match.groups()))) if match else None


def _snapshot_of(start: dict[str, Any]) -> int:
    """Return the version that a stream began with, by its first offset; -1: none, so that it reads all commits.

    A first batch that took the whole snapshot ends behind it; append-only, the snapshot is all up to there.
    """
    return int(start["reservoirVersion"]) - (0 if start["isStartingVersion"] else 1)


def _in_order_of_snapshot(path: str, version: int) -> list[str]:
    """Return the files of a snapshot in the order in which a Delta stream reads them: modification time, then path."""
    import pyarrow as pa

    actions = pa.table(DeltaTable(path, version=version).get_add_actions(flatten=True))
    rows = zip(actions["modification_time"].to_pylist(), actions["path"].to_pylist(), strict=True)
    return [file for _, file in sorted(rows)]


def _adds(path: str, version: int, *, new: bool = True) -> list[str]:
    """Return the files that a commit added as new data (or else put rows of other files into), in the commit's order."""
    return [add["path"] for add in adds(place_of(path), version) if bool(add.get("dataChange")) == new]
