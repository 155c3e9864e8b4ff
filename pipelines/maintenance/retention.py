"""The removal of old versions: checkpoints of the Delta log, vacuum of data files, cleanup of log files.

A version is kept readable for `retention_hours` after a later one took its place. Both the files that it alone holds
and the log up to it are needed for that, so vacuum and log cleanup share one bound: `Bound.version`, the version that
was the last one at that time. It moves further back for a batch that is not finished (its replay reads its states as
they were before it), for a replay of quarantine that was cut off, and for a stream that has the table as its source.
Before the vacuum deletes anything its own commit says which version is the oldest that can be read.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from deltalake import DeltaTable

from pipelines import logs
from pipelines.places.location import Location, by_name
from pipelines.state.delta_log import log_folder
from pipelines.state.maintenance_commits import REMEMBERED
from pipelines.state.record import BATCH, COMPACTION, RESET, SLICE, BatchRecord, CommitRecord
from pipelines.state.schema import GEN
from pipelines.state.slices import mentions
from pipelines.state.table import StateTable
from pipelines.state.writer import StateWriter

logger = logs.logger(__name__)

# Files that no commit names are left-overs of a killed writer, or about to be committed by a living one. A day is
# longer than any batch, and a shorter retention does not look for them at all.
_LEFT_OVER_HOURS = 24
# Delta's checkpoints remember removed files for a week unless the table says otherwise.
_REMEMBERED_HOURS = 168

# The clock goes on between the look at the log and the start of the vacuum.
_SPARE = timedelta(seconds=5)

# A vacuum deletes left-overs by this host's clock, and the store has dated them by its own.
_MOST_AHEAD_SECONDS = 3600.0

# Files under their working names, of delta-rs (`x#1`, `_commit_x.json.tmp`) and of Spark (`.x.tmp`).
_CUT_OFF = re.compile(r"(#\d+|\.tmp)$")
_WORKING = re.compile(r"^/commit-\w+/(_temporary/|_SUCCESS$)")
_GENERATION = re.compile(rf"^{GEN}=(-?\d+)$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\.parquet$")
_OF_VERSION = re.compile(r"^\.?(\d{20})\.(json|crc|checkpoint\b.*|json\.crc|crc\.crc)$")


@dataclass(frozen=True)
class Bound:
    """The oldest version to keep readable, and how many hours of removed files that takes."""

    version: int
    hours: int


def bound(
    table: StateTable,
    retention_hours: float,
    *,
    unfinished: bool,
    needed: int | None = None,
    now: datetime | None = None,
) -> Bound:
    """Return how far back the table stays readable.

    Args:
        unfinished: whether a batch of the flow is running or was cut off: then the version before the table's last
            batch is kept too, because the replay reads it.
        needed: the oldest version that a reader of a channel, a stream, or a replay that was cut off may ask for.
    """
    hours = math.ceil(retention_hours)
    now = now or datetime.now(UTC)
    records = table.history()
    oldest = now - timedelta(hours=hours)
    version = max((r.version for r in records if r.time <= oldest), default=records[0].version)
    first = _first_of_last_batch(records)
    if unfinished and first is not None:
        before = [r for r in records if r.version < first]
        if before and before[-1].version < version:
            version = before[-1].version
            hours = max(hours, math.ceil((now - before[-1].time) / timedelta(hours=1)))
    if needed is not None and needed < version:
        kept = next((r for r in reversed(records) if r.version <= needed), records[0])
        version = kept.version
        hours = max(hours, math.ceil((now - kept.time) / timedelta(hours=1)))
    return Bound(version, hours)


def _first_of_last_batch(records: Sequence[CommitRecord]) -> int | None:
    """Return the version of the last batch's first commit: of an opaque or non-transactional state each attempt commits."""
    batches = [r for r in records if r.kind == BATCH]
    same = [(r.group, r.epoch, r.txid) for r in batches]
    return batches[same.index(same[-1])].version if batches else None


def vacuum(writer: StateWriter, limit: Bound, record: BatchRecord) -> int:
    """Delete the data files that only versions before the bound need. Return how many."""
    table = DeltaTable(str(writer.table.path))
    # A removed file that the log has forgotten can't be distinguished from a left-over.
    left_overs = _LEFT_OVER_HOURS <= limit.hours <= remembered_hours(table)
    doomed = writer.vacuum(table, None, limit.hours, left_overs)
    if not doomed:
        return 0
    if left_overs and isinstance(writer.table.path, Location) and _is_ahead(writer.table.path):
        left_overs = False
    record = record.model_copy(update={"readable_from": limit.version})
    return len(writer.vacuum(table, record, limit.hours, left_overs, keep=_still_readable(writer.table, limit)))


def _is_ahead(table: Location) -> bool:
    """Return whether this host's clock would call files of the store old that are not."""
    ahead = time.time() - table.store.clock(table.key)
    if ahead > _MOST_AHEAD_SECONDS:
        logger.warning(
            "left-overs stay: this host's clock is ahead of the store's", table=str(table), seconds=round(ahead)
        )
    return ahead > _MOST_AHEAD_SECONDS


def _still_readable(table: StateTable, limit: Bound) -> list[int]:
    """Return the versions from the bound on whose files the vacuum would delete: it goes by the time at which it starts.

    Its clock has gone on since the bound was set, and beside a stream later commits have removed files.
    """
    records, reached = table.history(), datetime.now(UTC) + _SPARE - timedelta(hours=limit.hours)
    kept = [r.version for r in records if r.version >= limit.version and r.time <= reached]
    # Behind a cleanup that was killed the first versions of the log can be opened no more.
    opens = 0 if records[0].version == 0 else min(_checkpoints(table), default=math.inf)
    return [version for version in kept if version >= opens]


def remembered_hours(table: DeltaTable) -> int:
    """Return for how long the table's log remembers removed files."""
    interval = re.fullmatch(r"interval (\d+) hours", table.metadata().configuration.get(REMEMBERED, ""))
    return int(interval[1]) if interval else _REMEMBERED_HOURS


def checkpoint(table: StateTable) -> None:
    """Write a checkpoint of the log's last version, unless there is one."""
    opened = DeltaTable(str(table.path))
    if not (log_folder(table.path) / f"{opened.version():020d}.checkpoint.parquet").exists():
        opened.create_checkpoint()


def clean_log(table: StateTable, limit: Bound) -> int:
    """Delete log files that no version from the bound on needs. Return how many commits went.

    Versions stay readable only from a checkpoint on, so the cleanup stops at the last checkpoint that is not past the
    bound. What the engine knows from commits alone stays, however old.
    """
    keep = min({limit.version} | _remembered(table, limit.version))
    covering = max((version for version in _checkpoints(table) if version <= keep), default=None)
    if covering is None:
        return 0
    gone, files = 0, by_name(log_folder(table.path).iterdir())
    # From the oldest on: cut off in the middle, the log is a shorter log.
    for file in sorted(files, key=lambda f: f.name.lstrip(".")):
        named = _OF_VERSION.match(file.name)
        if named and int(named[1]) < covering:
            file.unlink(missing_ok=True)
            gone += file.suffix == ".json"
    return gone


def _checkpoints(table: StateTable) -> list[int]:
    """Return the versions of which the log has a checkpoint."""
    return [int(m[1]) for file in log_folder(table.path).iterdir() if (m := _CHECKPOINT.match(file.name))]


def remove_left_overs(table: StateTable, closed_before: int, now: float | None = None) -> int:
    """Delete what killed writers have left half-written, and folders of closed generations that are empty. Return how many.

    Neither is in Delta's sight: a vacuum leaves both, and a folder a slice and generation would be thousands in a year. All
    of them are at least a day old, so no writer is at work on them; nor is one to come in a closed generation.
    """
    if isinstance(table.path, Location):
        return _remove_working_files(table.path, now)
    oldest = (time.time() if now is None else now) - _LEFT_OVER_HOURS * 3600
    removed = 0
    for path in table.path.rglob("*"):
        generation = _GENERATION.match(path.name)
        if not _CUT_OFF.search(path.name) and not (generation and int(generation[1]) < closed_before):
            continue
        with contextlib.suppress(OSError):  # not empty, or gone by now
            if path.lstat().st_mtime <= oldest:
                path.rmdir() if generation else path.unlink()
                removed += 1
    return removed


def _remove_working_files(table: Location, now: float | None) -> int:
    """Delete what Spark's tasks have left beside the Parquet files of a large commit on a store, by the store's clock."""
    entries = [*table.store.entries(table.key, lambda e: _WORKING.search(e.key.removeprefix(table.key)) is not None)]
    if not entries:
        return 0
    oldest = (table.store.clock(table.key) if now is None else now) - _LEFT_OVER_HOURS * 3600
    old = [entry for entry in entries if entry.modified <= oldest]
    for entry in old:
        table.store.delete(entry.key)
    return len(old)


def _remembered(table: StateTable, readable: int) -> set[int]:
    """Return commits that are asked for whatever their age: the last batch, or replay, the highest epoch, what is said of slices.

    Those of the last version, of the oldest one that can be read, and of what a RESTORE since has gone back to: another
    RESTORE may make any of them the last one.
    """
    records = table.history()
    restores = [r.version for r in records if r.restored is not None and r.version > readable]
    found = {
        version
        for moment in (readable, *restores, records[-1].version)
        for version in _counted(table.commits.counting(moment))
    }
    # Of any life, also one that a RESTORE has undone: Delta keeps its transaction ids.
    epoch = max(r.epoch or 0 for r in records)
    found |= set([r.version for r in records if r.record and r.epoch == epoch][-1:])
    if not table.commits.batches():
        # Undone or emptied all of them: that there were some is known from the log alone.
        found |= set([r.version for r in records if r.kind == BATCH][-1:])
        # Without a batch replays alone say that it holds rows of a source.
        found |= set([r.version for r in table.commits.of_source()][-1:])
    return found


def _counted(records: Sequence[CommitRecord]) -> set[int]:
    """Return of commits that count the last batch, and those that say the claims of each slice, and when it was made."""
    last: dict[str, int] = {}
    for commit in records:
        if commit.record is None:
            continue
        if commit.kind == BATCH:
            last["batch"] = commit.version
        if commit.kind == RESET:
            last = {name: version for name, version in last.items() if not _emptied(name, commit)}
        if commit.kind == SLICE and commit.record.claims is not None:
            what = f"claims of {commit.group}/{commit.slice}"
            last.pop(what, None)
            if commit.record.claims:
                last[what] = commit.version
        if commit.kind == COMPACTION and isinstance(commit.record.claims, dict):
            last.update({f"claims of None/{slice_}": commit.version for slice_ in commit.record.claims})
        for group, claims in (commit.record.claims_of or {}).items():
            last.update({f"claims of {group}/{slice_}": commit.version for slice_ in claims})
    return {*last.values(), *mentions(records).values()}


def _emptied(what: str, reset: CommitRecord) -> bool:
    """Return whether a claim has ended with a reset: of its batch group, or of the whole table."""
    return what.startswith(f"claims of {reset.group}/" if reset.group else "claims of ")
