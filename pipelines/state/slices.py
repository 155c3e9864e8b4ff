"""The slices that a table holds, and when each was last made: read off its partitions and its ledger, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from pipelines.state.delta_log import actions, adds
from pipelines.state.kinds import MAP
from pipelines.state.record import BATCH, REPLAY, RESET, SLICE, BatchRecord, CommitRecord
from pipelines.state.schema import RESERVED, SLICE_COLUMN

if TYPE_CHECKING:
    from pipelines.state.table import StateTable


def made_slices(table: StateTable) -> frozenset[str] | None:
    """Return the slices that a table holds: those with rows, and those that a backfill made of no rows.

    Returns:
        None for a table that has no slices: one of another program, or of a flow that names no slice column.
    """
    if not table.is_state():
        return frozenset() if not table.exists() else None
    if not table.declared.sliced:
        return None
    slices = set(slice_times(table)) | set(table.commits.claims())
    slices |= {slice_ for claims in table.commits.groups_claims().values() for slice_ in claims}
    if table.declared.layout != MAP:
        slices |= {part[SLICE_COLUMN] for part in DeltaTable(str(table.path)).partitions()}
    return frozenset(slice_ for slice_ in slices if slice_ is not None and slice_ not in RESERVED)


def slice_times(table: StateTable) -> Mapping[str, datetime]:
    """Find when a backfill last committed each slice."""
    return {slice_: commit.time for slice_, commit in _slice_commits(table).items()}


def outdated(table: StateTable, source: StateTable, slices: Iterable[str]) -> Mapping[str, CommitRecord]:
    """Find slices that a backfill made from another table whose rows of that slice changed since.

    Args:
        table: the table that holds the slices.
        source: the table that they were made from.

    Returns:
        By slice the last commit of `source` that wrote it: a backfill's, a stream's, or a replay's. A compaction
        writes the same rows. A slice that was made before versions were recorded, or of a table that was made again since,
        counts by the times of the commits. Batches and replays are known as far back as the log of `source` goes.
    """
    made = {slice_: commit for slice_, commit in _slice_commits(table).items() if slice_ in set(slices)}
    if not made or not source.exists():
        return {}
    last, found = source.last
    read = {slice_: _version_read(commit, source.name, last, found) for slice_, commit in made.items()}
    written = _written(source, min(read.values()))

    def is_older(slice_: str, commit: CommitRecord) -> bool:
        then = written[slice_]
        return then.version > read[slice_] if read[slice_] >= 0 else then.time > commit.time

    return {
        slice_: written[slice_] for slice_, commit in made.items() if slice_ in written and is_older(slice_, commit)
    }


def _version_read(commit: CommitRecord, source: str, last: int, found: str) -> int:
    """Return the version of a table that a slice was made of; -1: none was recorded, or the table was made again since.

    Args:
        last: The table's last version.
        found: Delta's id of the table. One that was made again soon has as many versions as the one before.
    """
    record = commit.record
    version = ((record.read if record else None) or {}).get(source, -1)
    of = ((record.read_ids if record else None) or {}).get(source, found)
    return version if version <= last and of == found else -1


def mentions(commits: Iterable[CommitRecord]) -> dict[str, int]:
    """Return by slice the version of the last commit that says when it was made: a backfill's, or a compaction's behind it."""
    said: dict[str, int] = {}
    for commit in commits:
        if commit.kind == SLICE and commit.slice is not None:
            said[commit.slice] = commit.version
        said |= dict.fromkeys((commit.record.made or ()) if commit.record else (), commit.version)
    return said


def to_say_again(table: StateTable, readable: int) -> dict[str, Any]:
    """Return what a commit has to say of slices (`BatchRecord.made`, `made_ids`), so that the log up to a version may go.

    Nothing where that would give nothing back: where all that is said stands behind that version, or no rows have come since.
    So a table of thousands of slices says it about once in the time for which its versions stay.
    """
    counting = table.commits.counting()
    oldest = min(mentions(counting).values(), default=readable)
    if not any(oldest < commit.version <= readable and commit.kind in _WRITES for commit in table.history()):
        return {}
    said: dict[str, tuple[int, int, dict[str, int] | None]] = {}
    ids: dict[str, dict[str, str]] = {}
    for slice_, commit in _last_of(counting).items():
        said[slice_] = (
            commit.version,
            int(commit.time.timestamp() * 1000),
            commit.record.read if commit.record else None,
        )
        if commit.record and commit.record.read_ids:
            ids[slice_] = commit.record.read_ids
    return {"made": said, "made_ids": ids or None} if said else {}


_WRITES = (BATCH, SLICE, REPLAY, RESET)


def _slice_commits(table: StateTable) -> dict[str, CommitRecord]:
    """Return the last backfill of each slice; where its log is gone, as a compaction says."""
    return _last_of(table.commits.counting()) if table.exists() else {}


def _last_of(counting: Iterable[CommitRecord]) -> dict[str, CommitRecord]:
    commits: dict[str, CommitRecord] = {}
    for commit in counting:
        if commit.kind == SLICE and commit.slice is not None:
            commits[commit.slice] = commit
        for slice_, made in _said(commit):
            # Nobody makes one beside a compaction: what stands there is this one, or the log of it is gone.
            commits.setdefault(slice_, made)
    return commits


def _said(commit: CommitRecord) -> Iterator[tuple[str, CommitRecord]]:
    """Yield the slices of which a compaction says when they were made, as the commits that they were."""
    record = commit.record
    for slice_, (version, time, read) in ((record.made or {}) if record else {}).items():
        ids = ((record.made_ids if record else None) or {}).get(slice_)
        made = BatchRecord(kind=SLICE, flow=record.flow if record else "", slice=slice_, read=read, read_ids=ids)
        yield slice_, CommitRecord(version, datetime.fromtimestamp(time / 1000, UTC), "", made)


def _written(table: StateTable, since: int) -> dict[str, CommitRecord]:
    """Return the last commit behind a version that changed each slice."""
    commits: dict[str, CommitRecord] = {}
    for commit in table.history():
        for slice_, made in _said(commit):
            if made.version > max(since, commits[slice_].version if slice_ in commits else -1):
                commits[slice_] = made
        if commit.version <= since:
            continue
        if commit.kind == SLICE and commit.slice is not None:
            commits[commit.slice] = commit
        elif commit.kind in (BATCH, REPLAY):
            # The slices of the files that it added.
            commits |= dict.fromkeys(map(_slice_of, adds(table.path, commit.version)), commit)
        elif commit.restored is not None:
            changed = actions(table.path, commit.version, "add", "remove")
            commits |= dict.fromkeys((_slice_of(action) for _, action in changed), commit)
    return commits


def _slice_of(file: Mapping[str, Any]) -> str:
    return str((file.get("partitionValues") or {}).get(SLICE_COLUMN))
