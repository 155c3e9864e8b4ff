"""A Delta table that stays open between the commits of one writer."""

from __future__ import annotations

import contextlib
from pathlib import Path

from deltalake import DeltaTable

from pipelines.state.damage import check_log, opened
from pipelines.state.delta_log import commit_file, log_folder, replayed

_UPDATES = 25
"""A commit takes longer with each that the handle has taken in, so it is opened again after so many."""


class OpenTable:
    """Gives the table at its newest version; only the commits behind the last look are read.

    To open a table reads its log from the newest checkpoint on (14 ms at 50 commits), for each state several times per batch; to
    look for newer commits takes one. The table is opened all the same where the log is no longer the one that was read: the last
    known commit is another file, or a compaction has cleaned away what the table was opened from (transaction ids are read from
    there when they are asked for).

    Used by one thread at a time.

    Args:
        name: the state's name, for messages.
        path: the table's folder.
    """

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._table: DeltaTable | None = None
        self._known: tuple[int, ...] | None = None
        self._opened_from: list[Path] = []
        self._updates = 0

    def now(self) -> DeltaTable:
        """Return the table at its newest version. A commit through it moves it on to the version of that commit.

        Raises:
            DamagedTableError: the log is damaged.
        """
        table = self._table
        if table is None or self._updates >= _UPDATES or not self._brought_up_to_date(table):
            self._opened_from = _oldest(self._path)
            table = opened(self._name, self._path)
            self._table, self._updates = table, 0
            self._known = self._file_of(table.version())
        return table

    def noted(self) -> None:
        """Take note of a commit that was made through the table."""
        if self._table is not None:
            self._known = self._file_of(self._table.version())
            self._updates += 1

    def close(self) -> None:
        """Let go of the table: after a commit that failed nobody knows what it holds."""
        self._table = None

    def _brought_up_to_date(self, table: DeltaTable) -> bool:
        """Read newer commits. Return whether the table is what the log says: the log goes on from the commit that was known."""
        before = table.version()
        if self._known is None or self._file_of(before) != self._known or not all(map(Path.exists, self._opened_from)):
            return False
        if not commit_file(self._path, before + 1).exists():
            return True
        check_log(self._name, self._path, before + 1)
        try:
            table.update_incremental()
        except Exception:  # delta-rs has one class for all that can be wrong; opened again, the damage is named
            return False
        # A compaction cleans the oldest commits first: the known one is there still, so all behind it were.
        unbroken = self._file_of(before) == self._known
        self._updates += 1
        self._known = self._file_of(table.version())
        return unbroken

    def _file_of(self, version: int) -> tuple[int, ...] | None:
        """What tells the file of a commit from another at its place."""
        with contextlib.suppress(FileNotFoundError):
            stat = commit_file(self._path, version).stat()
            return stat.st_ino, stat.st_mtime_ns, stat.st_size
        return None


def _oldest(path: Path) -> list[Path]:
    """Return the oldest files that a table which is opened now is made from: those that a cleanup of the log deletes first."""
    try:
        checkpoints = sorted(log_folder(path).glob("*.checkpoint*.parquet"))[-1:]
        return [*checkpoints, *replayed(path)[:1]]
    except FileNotFoundError:
        return []
