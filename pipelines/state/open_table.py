"""A Delta table that stays open between the commits of one writer."""

from __future__ import annotations

from collections.abc import Mapping

from deltalake import DeltaTable

from pipelines.places.location import Place, by_name
from pipelines.state.damage import check_log, opened_as
from pipelines.state.delta_log import Mark, commit_file, commit_mark, log_folder, replayed

_UPDATES = 25
"""A commit takes longer with each that the handle has taken in, so it is opened again after so many."""


class KnownTable(DeltaTable):
    """Remembers what the version that it stands at says of transaction ids.

    delta-rs reads the log's files for each answer, all of them for an id that is in none: 1 to 10 ms, and as many requests on a
    store, several times per batch.
    """

    _known_at: int = -1
    _transactions: dict[str, int | None]

    def transaction_version(self, app_id: str) -> int | None:
        """Return the version that a transaction id has in the table; None if it has none."""
        if self._known_at != self.version():
            self._known_at, self._transactions = self.version(), {}
        if app_id not in self._transactions:
            self._transactions[app_id] = super().transaction_version(app_id)
        return self._transactions[app_id]

    def moved_on(self, before: int, carried: Mapping[str, int]) -> None:
        """Take note of a commit that was made through it, as `OpenTable.noted`."""
        # Behind another's commit delta-rs has put this one after that, whose ids are not known.
        if self._known_at == before and self.version() == before + 1:
            self._known_at, self._transactions = before + 1, {**self._transactions, **carried}


class OpenTable:
    """Gives the table at its newest version; only the commits behind the last look are read.

    To open a table reads its log from the newest checkpoint on (14 ms at 50 commits), for each state several times per batch; to
    look for newer commits takes one. The table is opened all the same where the log is no longer the one that was read: the last
    known commit is another file, or a compaction has cleaned away what the table was opened from (transaction ids are read from
    there when they are asked for).

    Used by one thread at a time.

    Args:
        name: the state's name, for messages.
    """

    def __init__(self, name: str, path: Place) -> None:
        self._name, self._path = name, path
        self._table: KnownTable | None = None
        self._known: Mark | None = None
        self._opened_from: list[Place] = []
        self._updates = 0

    def now(self) -> KnownTable:
        """Return the table at its newest version. A commit through it moves it on to the version of that commit."""
        table = self._table
        if table is None or self._updates >= _UPDATES or not self._brought_up_to_date(table):
            self._opened_from = _oldest(self._path)
            table = opened_as(KnownTable, self._name, self._path)
            self._table, self._updates = table, 0
            self._known = commit_mark(self._path, table.version())
        return table

    def as_read(self) -> KnownTable:
        """Return the table as it was given last: newer commits are not looked for."""
        return self._table or self.now()

    def noted(self, before: int, carried: Mapping[str, int]) -> None:
        """Take note of a commit that was made through the table.

        Args:
            before: the version that the table stood at.
            carried: the commit's transaction ids.
        """
        if self._table is not None:
            self._table.moved_on(before, carried)
            self._known = commit_mark(self._path, self._table.version())
            self._updates += 1

    def close(self) -> None:
        """Let go of the table: after a commit that failed nobody knows what it holds."""
        self._table = None

    def _brought_up_to_date(self, table: KnownTable) -> bool:
        """Read newer commits. Return whether the table is what the log says: the log goes on from the commit that was known."""
        before = table.version()
        if (
            self._known is None
            or commit_mark(self._path, before) != self._known
            or not all(file.exists() for file in self._opened_from)
        ):
            return False
        if not commit_file(self._path, before + 1).exists():
            return True
        check_log(self._name, self._path, before + 1)
        try:
            table.update_incremental()
        except Exception:  # delta-rs has one class for all that can be wrong; opened again, the damage is named
            return False
        # A compaction cleans the oldest commits first: the known one is there still, so all behind it were.
        unbroken = commit_mark(self._path, before) == self._known
        self._updates += 1
        self._known = commit_mark(self._path, table.version())
        return unbroken


def _oldest(path: Place) -> list[Place]:
    """Return the oldest files that a table which is opened now is made from: those that a cleanup of the log deletes first."""
    try:
        checkpoints = by_name(log_folder(path).glob("*.checkpoint*.parquet"))[-1:]
        return [*checkpoints, *replayed(path)[:1]]
    except FileNotFoundError:
        return []
