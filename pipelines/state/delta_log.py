"""The log of a Delta table, commit by commit.

It is read by hand where delta-rs has no answer: the actions of one commit without opening the table at that version, and
files as they are where delta-rs reads past damage (see `pipelines.state.damage`). A log or a commit that is not there is a
FileNotFoundError, unless a function says otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from pipelines.places.location import Location, Place, by_name

Mark = tuple[int, ...] | str

FAR = 100
"""Commits that a handle follows one by one. From there on it reads less where it opens the table anew: a listing, a checkpoint
and the commits behind it, at most 50 (`delta.checkpointInterval`)."""

_COMMIT = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"\d{20}[^/]*\.checkpoint[^/]*\.parquet")


def log_folder(table: Place) -> Place:
    """Return the folder of a table's log."""
    return table / "_delta_log"


def has_log(table: Place) -> bool:
    """Return whether a folder has a log, and so is a Delta table, damaged or not."""
    return log_folder(table).is_dir()


def commit_file(table: Place, version: int) -> Place:
    """Return where the commit of a version is, or would be."""
    return log_folder(table) / f"{version:020d}.json"


def commit_mark(table: Place, version: int) -> Mark | None:
    """Return what distinguishes the commit of a version from another at its place: a table that is created again counts from 0.

    Returns:
        None if the commit is not in the log.
    """
    with contextlib.suppress(FileNotFoundError):
        file = commit_file(table, version)
        if isinstance(file, Location):
            return file.version
        stat = file.stat()
        return stat.st_ino, stat.st_mtime_ns, stat.st_size
    return None


def commit_files(table: Place) -> list[Place]:
    """Return the commits that are in the log, oldest first."""
    return by_name(file for file in log_folder(table).iterdir() if _COMMIT.fullmatch(file.name))


def checkpoints(table: Place) -> set[int]:
    """Return the versions of which the log has a checkpoint."""
    return _of_checkpoints(file.name for file in log_folder(table).glob("*.checkpoint*.parquet"))


def _of_checkpoints(names: Iterable[str]) -> set[int]:
    return {int(name[:20]) for name in names if _CHECKPOINT.fullmatch(name)}


def sizes(table: Place) -> dict[str, int]:
    """Return the bytes of the commits and checkpoints in the log, by name: of one listing, on a store too."""
    log = log_folder(table)
    if isinstance(log, Location):
        begins = len(log.key) + 1
        return {
            entry.key[begins:]: entry.size
            for entry in log.store.entries(log.key, lambda entry: _is_replayed(entry.key[begins:]))
        }
    found: dict[str, int] = {}
    with os.scandir(log) as files:
        for file in files:
            if _is_replayed(file.name):
                with contextlib.suppress(FileNotFoundError):  # the log is cleaned meanwhile
                    found[file.name] = file.stat().st_size
    return found


def _is_replayed(name: str) -> bool:
    return bool(_COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name))


def replayed(table: Place, version: int | None = None, names: Iterable[str] | None = None) -> list[Place]:
    """Return the commits that a reader replays to come to a version: those behind the newest checkpoint, else the last one.

    Args:
        version: None means the last one.
        names: what is in the log, where the caller has listed it.
    """
    there = list(names) if names is not None else [file.name for file in log_folder(table).iterdir()]
    found = sorted(int(name[:20]) for name in there if _COMMIT.fullmatch(name))
    commits = [commit for commit in found if version is None or commit <= version]
    last = commits[-1] if commits else -1
    start = max((checkpoint for checkpoint in _of_checkpoints(there) if checkpoint <= last), default=-1)
    return [commit_file(table, commit) for commit in commits if commit > start or commit == last]


def versions(table: Place) -> list[int]:
    """Return the versions whose commits are in the log, oldest first; none without a log."""
    return [int(file.stem) for file in commit_files(table)] if has_log(table) else []


def actions(table: Place, version: int, *wanted: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the actions of a commit with their names, in its order.

    Args:
        wanted: names of actions (`add`, `remove`, `commitInfo`, ...); without a name all of them.
    """
    # `str.splitlines` would cut a line at U+2028 and its like, too, which stand in values as they are.
    for line in commit_file(table, version).read_bytes().split(b"\n"):
        # Most lines need not be parsed.
        if line and (not wanted or any(b'"%b"' % name.encode() in line for name in wanted)):
            ((name, action), *_) = json.loads(line).items()
            if not wanted or name in wanted:
                yield name, action


def adds(table: Place, version: int) -> list[dict[str, Any]]:
    """Return the data files that a commit added, as it lists them; none if the commit is not in the log."""
    try:
        return [action for _, action in actions(table, version, "add")]
    except FileNotFoundError:
        return []


def versions_alike(table: Place, version: int) -> Iterator[int]:
    """Yield the earlier versions that have the very data files of one, newest first, as far as the log goes back."""
    # Against the version itself.
    more, fewer = set[str](), set[str]()
    while version > 0:
        try:
            done = [(name, action["path"]) for name, action in actions(table, version, "add", "remove")]
        except FileNotFoundError:
            return
        added, removed = ({path for name, path in done if name == what} for what in ("add", "remove"))
        # Undone: what a commit added is not there before it, and what it removed is.
        gone, back = added - removed, removed - added
        more, fewer = (more - gone) | (back - fewer), (fewer - back) | (gone - more)
        version -= 1
        if not more and not fewer:
            yield version


def data_file(table: Place, name: str) -> Place:
    """Return a data file of a table by its name in the log, where names may be URL-encoded."""
    return next((file for file in (table / name, table / unquote(name)) if file.exists()), table / name)
