"""A table's commits, read from its log once and then as it grows: the only ledger there is."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from io import StringIO
from typing import Any, NamedTuple, NoReturn

from pipelines.errors import ReadPointError
from pipelines.places.location import Location, Place
from pipelines.state.damage import check_commit
from pipelines.state.delta_log import Mark, commit_file, commit_mark, versions, versions_alike
from pipelines.state.record import (
    BATCH,
    COMPACTION,
    FORGOTTEN,
    POISON,
    REPLAY,
    RESET,
    SLICE,
    CommitRecord,
    parse_commit,
)

_HARMLESS = ("OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "ADD COLUMN", "ADD COLUMNS")
"""Delta's operations that change no row."""
_TRIES = 3


class History:
    """The commit records of one table, by version, kept up to date by reading the new log files only.

    Args:
        name: the state's name, for messages.
        path: the table's folder.
    """

    def __init__(self, name: str, path: Place) -> None:
        self._name, self._path = name, path
        self._records: list[CommitRecord] = []
        self._mark: Mark | None = None
        """The mark of the last commit that was read."""
        self._counting: list[CommitRecord] = []
        self._batches: list[CommitRecord] = []
        self._claims: dict[str | None, dict[str, frozenset[str]]] = {}
        """By batch group (quarantine; else None) and slice."""
        self._versions: dict[int, int] = {}
        self._head: int | None = None
        """The txid whose state the last version holds, with nothing later in it."""
        self._points: dict[int, int] = {}
        """By a RESTORE to a time the version that it went back to."""
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Read what is new, and keep other threads from doing so."""
        with self._lock:
            self._refresh()
            yield

    def records(self) -> list[CommitRecord]:
        """Read all commits whose log files still exist, oldest first."""
        with self._current():
            return list(self._records)

    def read_up_to(self, version: int) -> list[CommitRecord]:
        """Return the commits up to a version at least. Newer ones than were read last are looked for if that one is."""
        with self._lock:
            if not self._records or self._records[-1].version < version:
                self._refresh()
            return list(self._records)

    def batches(self) -> list[CommitRecord]:
        """Return the commits of streams since the last reset, oldest first."""
        with self._current():
            return list(self._batches)

    def of_source(self) -> list[CommitRecord]:
        """Return the commits by which rows of a source came since the last reset: of streams, and replays that put some in."""
        with self._current():
            return [c for c in self._counting if c.kind == BATCH or (c.kind == REPLAY and c.rows)]

    def counting(self, version: int | None = None) -> list[CommitRecord]:
        """Return the commits that made what the table holds: since the last reset, without those that a RESTORE has undone.

        Args:
            version: of the table, whose log is still there; None: its last one.
        """
        with self._current():
            return list(self._counting) if version is None else self._counting_at(version)

    def _counting_at(self, version: int) -> list[CommitRecord]:
        earlier = History(self._name, self._path)
        earlier._points = self._points
        earlier._records = [commit for commit in self._records if commit.version <= version]
        for commit in earlier._records:
            earlier._count(commit)
        return earlier._counting

    def made(self, version: int) -> str:
        """Return when a version was made, of what was read last: a table that was created again has made it at another time."""
        with self._lock:
            return next((str(commit.time) for commit in self._records if commit.version == version), "")

    def undone(self, epoch: int) -> set[int]:
        """Return the txids of an epoch that were committed once, undone by a RESTORE, and are not there again."""
        with self._current():
            if all(commit.restored is None for commit in self._records):
                return set()
            held = {commit.txid for commit in self._batches if commit.epoch == epoch}
            ever = {commit.txid for commit in self._records if commit.kind == BATCH and commit.epoch == epoch}
            return {txid for txid in ever - held if txid is not None}

    def undone_besides(self, since: int) -> list[str]:
        """Return the replays, and in quarantine the poison batches, that a RESTORE has undone and that are not there again.

        Args:
            since: a version that is known to be right; asked for is what counted there, and what has come behind it.
        """
        with self._current():
            later = [commit for commit in self._records if commit.version > since]
            if all(commit.restored is None for commit in later):
                return []
            undone = _besides([*self._counting_at(since), *later]) - _besides(self._counting)
        return sorted({one.what for one in undone})

    def poison(self, group: str, epoch: int, txid: int) -> CommitRecord | None:
        """Return the commit by which quarantine got the rows of a poison batch; None: it has given them back to its stream."""
        with self._current():
            # Earlier releases do not name the group.
            wanted = {_Besides(f"poison batch {txid}", one, epoch) for one in (group, None)} & _besides(self._counting)
            own = [c for c in self._counting if c.kind == POISON and (c.epoch, c.txid) == (epoch, txid)]
            return next((c for c in reversed(own) if c.group in {one.group for one in wanted}), None)

    def is_replayed_behind(self, epoch: int, txid: int) -> bool:
        """Return whether a replay of quarantine has committed behind a batch, which was whole then: no replay goes before."""
        with self._current():
            own = [c.version for c in self._batches if (c.epoch, c.txid) == (epoch, txid)]
            return bool(own) and any(c.kind == REPLAY and c.version > own[-1] for c in self._counting)

    def last_batch(self) -> CommitRecord | None:
        """Return the last commit of a stream since the last reset."""
        with self._current():
            return self._batches[-1] if self._batches else None

    def claims(self, group: str | None = None) -> dict[str, frozenset[str]]:
        """Return for each backfilled slice the source files whose rows of that slice the table counts through its backfill.

        Args:
            group: in quarantine the batch group whose backfill it was; what earlier releases claimed is everybody's.
        """
        with self._current():
            return {**self._claims.get(None, {}), **(self._claims.get(group, {}) if group else {})}

    def groups_claims(self) -> dict[str, dict[str, frozenset[str]]]:
        """Return the claims of each batch group in quarantine."""
        with self._current():
            return {group: dict(claims) for group, claims in self._claims.items() if group is not None}

    def _refresh(self) -> None:
        """Read what is new; where the log is cleaned between the listing and the reading, all that is there then."""
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):
                self._read_new()
                return
            self._forget()
        self._read_new()

    def _read_new(self) -> None:
        """Read what is new. A batch looks at the ledger several times, so that must not cost a look at all of it."""
        if self._records:
            mark = commit_mark(self._path, self._records[-1].version)
            if mark is None or mark != self._mark:
                # The log was cleaned beyond what was read, or the table was created again. Nothing says what came next, so all
                # that is there is read again.
                self._forget()
        if not self._records:
            found = versions(self._path)
            # Before it is read: a table that is created again meanwhile has another one.
            self._mark = commit_mark(self._path, found[-1]) if found else None
            for version in found:
                self._add(version)
        while self._records and (mark := commit_mark(self._path, self._records[-1].version + 1)) is not None:
            self._add(self._records[-1].version + 1)
            self._mark = mark

    def _forget(self) -> None:
        self._records, self._points = [], {}
        self._begin_again()

    def _begin_again(self) -> None:
        self._counting, self._batches, self._claims, self._versions, self._head = [], [], {}, {}, None

    def _file(self, version: int) -> Place:
        return commit_file(self._path, version)

    def _add(self, version: int) -> None:
        commit = parse_commit(version, self._info(version))
        self._records.append(commit)
        self._count(commit)

    def _info(self, version: int) -> dict[str, Any]:
        """Return the `commitInfo` of a version, which is nearly always its first line."""
        file = self._file(version)
        with StringIO(file.read_text("utf-8")) if isinstance(file, Location) else file.open(encoding="utf-8") as lines:
            for line in lines:
                if line.startswith('{"commitInfo"'):
                    with contextlib.suppress(ValueError):
                        return dict(json.loads(line)["commitInfo"])
                    break
        return dict(check_commit(self._name, file))

    def _count(self, commit: CommitRecord) -> None:
        """Take a commit into what the table holds."""
        if commit.restored is not None:
            # What came after that version no longer counts, a reset or another RESTORE included.
            self._begin_again()
            for earlier in self._until(commit):
                self._count(earlier)
        elif commit.kind == RESET:
            self._reset(commit.group)
        elif commit.kind == BATCH:
            self._batches.append(commit)
            self._head = commit.txid
        elif not _keeps_rows(commit):
            self._head = None
        self._counting.append(commit)
        if self._head is not None:
            self._versions[self._head] = commit.version
        self._take_claims(commit)

    def _reset(self, group: str | None) -> None:
        """Drop what came before; in quarantine only what a group put there, if the reset is a group's."""
        others = [commit for commit in self._counting if group and commit.group != group]
        claims = {of: slices for of, slices in self._claims.items() if group and of != group}
        batches = [commit for commit in self._batches if group and commit.group != group]
        self._begin_again()
        self._counting, self._batches, self._claims = others, batches, claims

    def _until(self, restore: CommitRecord) -> list[CommitRecord]:
        """Return the commits up to the point that a RESTORE went back to."""
        point = restore.restored
        if isinstance(point, datetime):
            if restore.version not in self._points:
                self._points[restore.version] = self._point(restore.version, point)
            point = self._points[restore.version]
        return [commit for commit in self._records if point is not None and commit.version <= point]

    def _point(self, restore: int, time: datetime) -> int:
        """Return the version that a RESTORE to a time went back to; -1: it cannot be said, so nothing before is known to count.

        Spark writes the time without the zone in which it was meant. Then the data files decide, UTC where they allow it.
        """
        moment = time if time.tzinfo else time.replace(tzinfo=UTC)
        earlier = [commit.version for commit in self._records if commit.version < restore and commit.time <= moment]
        if time.tzinfo:
            return max(earlier, default=-1)
        alike = list(versions_alike(self._path, restore))
        return max(earlier) if earlier and max(earlier) in alike else max(alike, default=-1)

    def _take_claims(self, commit: CommitRecord) -> None:
        record = commit.record
        if record is None:
            return
        for group, claims in (record.claims_of or {}).items():
            for slice_, files in claims.items():
                self._claims.setdefault(group, {}).setdefault(slice_, frozenset(files))
        if record.claims is None:
            return
        own = self._claims.setdefault(record.group, {})
        if commit.kind == SLICE and record.slice is not None:
            own[record.slice] = frozenset(record.claims)
        elif commit.kind == COMPACTION and isinstance(record.claims, dict):
            # Where the log before it is gone, a compaction carries the claims that are still alive.
            for slice_, files in record.claims.items():
                own.setdefault(slice_, frozenset(files))

    def version_of(self, txid: int) -> int:
        """Return the last version that holds the batches up to `txid` and nothing later.

        A compaction right after a batch is such a version, and a faster one; the versions before it may be vacuumed.

        Raises:
            ReadPointError: if the txid is not committed yet, or its log is gone.
        """
        asked = f"txid {txid}"
        with self._current():
            versions = self._versions
            if txid in versions:
                return versions[txid]
            if not versions:
                raise ReadPointError(self._name, asked, "no batch is committed yet")
            if txid > max(versions):
                raise ReadPointError(
                    self._name,
                    asked,
                    f"the last committed batch is {max(versions)}",
                    hint=f"name an earlier one: tridelta history {self._name} lists them",
                )
            earlier = [known for known in versions if known < txid]
            if not earlier:
                self._before_the_first(txid, asked)
            return versions[max(earlier)]

    def _before_the_first(self, txid: int, asked: str) -> NoReturn:
        """Refuse a txid below all that are known: it is too old, or, where the whole log is there, it never was."""
        if self._records[0].version > 0:
            self._too_old(asked, self._records[0])
        before = [commit for commit in self._records if commit.kind == BATCH and (commit.txid or 0) <= txid]
        emptied = any(
            commit.kind == RESET and before and commit.version > before[0].version for commit in self._records
        )
        first = f"the first batch in it is {min(self._versions)}"
        raise ReadPointError(
            self._name,
            asked,
            f"it was emptied behind that batch; {first}" if emptied else first,
            hint=f"name a later one: tridelta history {self._name} lists them",
        )

    def check_kept(self, version: int, asked: str) -> None:
        """Refuse a version whose data files a vacuum may have deleted.

        Args:
            asked: the read point in the caller's words.

        Raises:
            ReadPointError: if it is older than what the last vacuum kept.
        """
        with self._current():
            kept = max((r.record.readable_from or 0 for r in self._records if r.record), default=0)
            if version < kept:
                self._too_old(asked, next(r for r in self._records if r.version >= kept))

    def _too_old(self, asked: str, oldest: CommitRecord) -> NoReturn:
        readable = [txid for txid, version in self._versions.items() if version >= oldest.version]
        batch = f", txid {min(readable)}" if readable else ""
        raise ReadPointError(
            self._name,
            asked,
            f"it is too old: versions from {oldest.version} on are kept ({oldest.time:%Y-%m-%d %H:%M} UTC{batch})",
            hint="read a later one; keep more with a longer retention of checkpoint_compaction_job (retention_hours)",
        )


class _Besides(NamedTuple):
    """A replay, or a poison batch; these count their txids per batch group and epoch."""

    what: str
    group: str | None = None
    epoch: int | None = None


def _besides(commits: Iterable[CommitRecord]) -> set[_Besides]:
    """Return the replays and the poison batches whose rows commits have put in, and have not taken out again."""
    found: set[_Besides] = set()
    for commit in commits:
        poison = f"poison batch {commit.txid}"
        if commit.kind == REPLAY and commit.record is not None:
            found.add(_Besides(f"replay {commit.record.replay}"))
        elif commit.kind == POISON:
            found.add(_Besides(poison, commit.group, commit.epoch))
        elif commit.kind == RESET:
            found = {one for one in found if commit.group and one.group != commit.group}
        elif commit.kind == FORGOTTEN:
            # It has come through; below 0 all have, for the stream begins again.
            gone = {one for one in found if one.what == poison or (commit.txid == -1 and one.epoch is not None)}
            found -= {one for one in gone if one.group == commit.group}
    return found


def _keeps_rows(commit: CommitRecord) -> bool:
    """Return whether readers find after this commit what they found before it."""
    if commit.kind != COMPACTION or commit.record is None:
        return commit.operation in _HARMLESS
    # Of earlier releases that of a channel is known: no other DELETE names a txid.
    return not commit.record.let_go and (commit.operation != "DELETE" or commit.record.folded_before is None)
