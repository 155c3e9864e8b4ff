"""`get` of some keys of the last version, made cheap: read keys are kept, and new batches are followed, not read again.

A log state beside a running stream is a few large files that compaction left and many small ones, one per batch. To look
into all of them costs far more than the answer. So the rows of the open generations are held in memory, a commit that
only appends is followed by reading the files that it added, and a key that was read once is folded on from where it was.
Any other commit (a compaction, a backfill, a replay, a MERGE) starts all of this afresh.
"""

from __future__ import annotations

import copy
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.places.location import Location, Place
from pipelines.state.damage import whole_actions
from pipelines.state.delta_log import FAR, Mark, commit_file, commit_mark
from pipelines.state.kinds import LOG
from pipelines.state.literals import quoted
from pipelines.state.reading import Key, Reader, Row, finished, matching
from pipelines.state.schema import GEN, ROLL_UP, SLICE_COLUMN

KEYS = 10_000
"""Keys that are kept, those that were asked for last."""
HELD_ROWS, HELD_BYTES = 1_000_000, 32 * 1024 * 1024
"""Rows of small files that are held in memory: some tens of MB, looked through in milliseconds."""
# A file of more rows is better read by DataFusion, which skips what the file's statistics rule out.
SMALL_FILE_ROWS = 200_000
_CHUNKS = 64


class PointReads:
    """Reads of keys at a table's last version. May be shared by threads.

    Args:
        opened: gives the reader of the last version.
    """

    def __init__(self, path: Place, opened: Callable[[], Reader], keys: int = KEYS) -> None:
        self._path, self._opened, self._size = path, opened, keys
        self._lock = threading.RLock()
        self._start_afresh(None)

    def _start_afresh(self, reader: Reader | None) -> None:
        self._reader = reader
        self._version = reader.snapshot.version if reader else -1
        """The version that `_appended` goes up to."""
        self._mark: Mark | None = commit_mark(self._path, self._version) if reader else None
        self._known: OrderedDict[Key, tuple[Row | None, int]] = OrderedDict()
        """By key what it holds (None: nothing) at the reader's version and with so many rows of `_appended`."""
        self._appended: pa.Table | None = None
        self._held: pa.Table | None = None
        """The rows of the open generations at the reader's version; `_below` names the others."""
        self._below = "true"
        self._reads = 0

    def current(self) -> Reader:
        """Return a reader that says what the last version is declared to be. Its rows may be those of an earlier one."""
        with self._lock:
            return self._follow()

    def find(self, keys: Sequence[Mapping[str, Any]]) -> dict[Key, Row]:
        """Return the finished rows of some keys at the last version, those that are there, in the order asked for."""
        with self._lock:
            reader = self._follow()
            asked = dict(zip(reader.normal(keys), keys, strict=True))
            missing = {key: asked_key for key, asked_key in asked.items() if key not in self._known}
            if missing:
                self._read(reader, missing)
            self._fold_on(reader, list(asked))
            rows = {key: row for key in asked if (row := self._known[key][0]) is not None}
            for key in asked:
                self._known.move_to_end(key)
            while len(self._known) > self._size:
                self._known.popitem(last=False)
            # Copied where that matters: what the caller does to a list must not reach what is kept.
            return {key: _own(row) for key, row in finished(rows, reader).items()}

    # --- keys -------------------------------------------------------------------------------------------------------

    def _read(self, reader: Reader, keys: Mapping[Key, Mapping[str, Any]]) -> None:
        """Read keys as of the reader's version: from its files, and from the rows that are held."""
        self._reads += 1
        if self._reads == 2 and reader.declared.layout == LOG:
            # Not at once: a process that reads one time only has no use for what is held.
            self._hold(reader)
        stored = reader.stored(list(keys.values()), also=self._below) if self._below != "false" else []
        if self._held is not None:
            stored += matching(self._held, reader.keys, keys, reader.name)
        rows = reader.partials(stored)
        self._known.update({key: (rows.get(key), 0) for key in keys})

    def _fold_on(self, reader: Reader, keys: Sequence[Key]) -> None:
        """Fold what was appended since into the keys."""
        if self._appended is None:
            return
        end = self._appended.num_rows
        behind: dict[int, list[Key]] = {}
        for key in keys:
            behind.setdefault(self._known[key][1], []).append(key)
        for start, some in behind.items():
            if start < end:
                new_rows = matching(self._appended.slice(start), reader.keys, some, reader.name)
                onto = {key: row for key in some if (row := self._known[key][0]) is not None}
                rows = reader.partials(new_rows, onto)
                self._known.update({key: (rows.get(key), end) for key in some})

    # --- versions ---------------------------------------------------------------------------------------------------

    def _follow(self) -> Reader:
        """Go to the last version: by the rows that were appended, if nothing else happened and they are of a few commits."""
        reader = self._reader
        if reader is None or self._mark is None or commit_mark(self._path, self._version) != self._mark:
            reader = self._opened()
            self._start_afresh(reader)
        followed = 0
        while (mark := commit_mark(self._path, self._version + 1)) is not None:
            # Not before the second commit: a reader that keeps up with the batches asks for nothing more.
            far = followed == FAR or (followed == 1 and commit_file(self._path, self._version + FAR - 1).exists())
            rows = None if far else self._new_rows(reader)
            if rows is None:
                reader = self._opened()
                self._start_afresh(reader)
                continue
            self._append(rows)
            self._version, self._mark, followed = self._version + 1, mark, followed + 1
        return reader

    def _new_rows(self, reader: Reader) -> pa.Table | None:
        """Return the rows of the next version's commit; None if it does more than append a few to a log state, or is not read."""
        if reader.declared.layout != LOG or not self._known:
            return None
        try:
            rows = appended_rows(self._path, self._version + 1, reader, SMALL_FILE_ROWS)
        except (OSError, ValueError, pa.ArrowException):
            # A later commit has replaced the file, and it is vacuumed; or a read of the last version says what is damaged.
            return None
        held = self._appended.num_rows if self._appended is not None else 0
        return rows if rows is not None and held + rows.num_rows <= HELD_ROWS else None

    def _append(self, rows: pa.Table) -> None:
        together = rows if self._appended is None else pa.concat_tables([self._appended, rows])
        chunks = together.column(0).num_chunks
        self._appended = together.combine_chunks() if chunks > _CHUNKS else together

    def _hold(self, reader: Reader) -> None:
        """Take the newest generations into memory, as far down as they are small files."""
        below = _below_small_files(reader)
        if below is None:
            return
        names = ", ".join(quoted(name) for name in reader.declared.names if name in reader.snapshot.types)
        self._held = reader.snapshot.query(f"SELECT {names} FROM state WHERE {reader.where} AND {GEN} > {below}")
        oldest = min(file.gen for file in _files(reader))
        self._below = "false" if below < oldest else f"{GEN} <= {below}"


class _File(NamedTuple):
    gen: int
    rows: int
    bytes: int


def _files(reader: Reader) -> list[_File]:
    """Return the files that count."""
    actions = pa.table(reader.snapshot.table.get_add_actions(flatten=True))
    names = (f"partition.{GEN}", "num_records", "size_bytes", f"partition.{SLICE_COLUMN}")
    rolled_up = reader.snapshot.roll_up
    return [
        _File(int(gen), SMALL_FILE_ROWS + 1 if rows is None else rows, size)
        for gen, rows, size, slice_ in zip(*(actions[name].to_pylist() for name in names), strict=True)
        if rolled_up is None or slice_ == ROLL_UP or int(gen) > rolled_up
    ]


def _below_small_files(reader: Reader) -> int | None:
    """Find the generation above which all files are small and together not too many; None if there is none."""
    by_generation: dict[int, list[_File]] = {}
    for file in _files(reader):
        by_generation.setdefault(file.gen, []).append(file)
    rows, size, lowest = 0, 0, None
    for gen in sorted(by_generation, reverse=True):
        files = by_generation[gen]
        rows, size = rows + sum(file.rows for file in files), size + sum(file.bytes for file in files)
        if rows > HELD_ROWS or size > HELD_BYTES or max(file.rows for file in files) > SMALL_FILE_ROWS:
            break
        lowest = gen
    return None if lowest is None else lowest - 1


def _own(row: Row) -> Row:
    return {name: copy.deepcopy(value) if isinstance(value, list | dict) else value for name, value in row.items()}


# --- commits that only append rows, read without opening the table's new version -------------------------------------


def appended_rows(path: Place, version: int, reader: Reader, most: int) -> pa.Table | None:
    """Return the user's columns of the rows that a commit added to a log state, typed as the state's.

    Args:
        reader: of an earlier version.
        most: how many rows are read.

    Returns:
        None if the commit does anything else (removes files, changes the table), or adds more rows, or rows that the
        state's roll-up stands for.

    Raises:
        DamagedTableError: the commit is not whole. Cut off at the end of a line it looks like one that adds less.
    """
    try:
        adds = list(_adds(reader.name, commit_file(path, version)))
    except _NotAnAppendError:
        return None
    rolled_up = reader.snapshot.roll_up
    for add in adds:
        values = add["partitionValues"]
        if values[SLICE_COLUMN] == ROLL_UP or (rolled_up is not None and int(values[GEN]) <= rolled_up):
            return None
    if sum(_rows(add, most) for add in adds) > most:
        return None
    types = reader.snapshot.types
    schema = pa.schema([(name, types[name]) for name in reader.declared.names if name in types])
    tables = [schema.empty_table()]
    for add in adds:
        file = path / unquote(add["path"])
        source = BytesIO(file.read_bytes()) if isinstance(file, Location) else file
        # Spark writes times as INT96, which Arrow else takes for nanoseconds: these end in 2262.
        opened = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
        tables.append(opened.read(columns=schema.names).select(schema.names).cast(schema))
    return pa.concat_tables(tables)


class _NotAnAppendError(Exception):
    """The commit does more than append."""


def _adds(table: str, commit: Place) -> Iterator[dict[str, Any]]:
    for line in whole_actions(table, commit):
        ((name, action), *_) = line.items()
        if name == "add" and not action.get("deletionVector") and "://" not in action["path"]:
            yield action
        elif name not in ("commitInfo", "txn"):
            raise _NotAnAppendError


def _rows(add: dict[str, Any], unknown: int) -> int:
    """Return the rows of a file by its statistics; too many if it has none."""
    stats = json.loads(add.get("stats") or "{}")
    return int(stats.get("numRecords", unknown + 1))
