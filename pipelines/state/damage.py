"""Damaged files of a table: what is read past by others is found here, and said in a sentence. No Spark here.

delta-rs takes a commit of no bytes, or one that was cut off behind a whole line, for a commit that did nothing; the others it
reports in words of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count, islice, pairwise, takewhile
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import DeltaTable

from pipelines.errors import TrideltaError
from pipelines.places.location import Location, Place, by_name
from pipelines.state.delta_log import (
    FAR,
    actions,
    commit_file,
    commit_files,
    data_file,
    log_folder,
    replayed,
    sizes,
    versions,
)

_Table = TypeVar("_Table", bound=DeltaTable)
_ADDED = ("num_added_files", "numFiles", "num_target_files_added", "numTargetFilesAdded")
"""By writer and operation what a commit says of how many files it adds."""
_MAGIC = b"PAR1"


class DamagedError(TrideltaError):
    """A file of the lake is not what was written: it is empty, cut off, missing, or holds something else.

    Attributes:
        path: the file. problem: what was seen. intact: what the damage does not touch.
    """

    def __init__(self, path: str | Place, problem: str, intact: str, *, hint: str) -> None:
        self.path, self.problem, self.intact = str(path), problem, intact
        super().__init__(f"{path} is damaged: {problem}; intact: {intact}", hint=hint)


class DamagedTableError(DamagedError):
    """A table's log or one of its data files is damaged; `table` is its name."""

    def __init__(self, table: str, path: str | Place, problem: str, intact: str, *, hint: str) -> None:
        self.table = table
        super().__init__(path, problem, intact, hint=hint)
        self.args = (f'table "{table}": {self.args[0]}',)


def check_commit(table: str, file: Place) -> Mapping[str, Any]:
    """Return the `commitInfo` of a commit that is whole.

    Raises:
        DamagedTableError: as of `whole_actions`.
    """
    return next((action["commitInfo"] for action in whole_actions(table, file) if "commitInfo" in action), {})


def whole_actions(table: str, file: Place) -> list[dict[str, dict[str, Any]]]:
    """Return the actions of a commit that is whole, in its order, each with its name.

    Raises:
        DamagedTableError: it is empty, cut off, or says that it adds more files than it does.
    """
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        # A folder in its place, a disk that does not answer.
        raise _commit(table, file, f"cannot be read: {error.strerror}") from error
    if not data.strip():
        raise _commit(table, file, "it is empty" if not data else "it holds no text")
    try:
        actions = [json.loads(line) for line in data.splitlines()]
    except (ValueError, RecursionError):
        raise _commit(table, file, "it is cut off or overwritten: a line of it is no JSON") from None
    if not all(
        isinstance(action, dict) and all(isinstance(part, dict) for part in action.values()) for action in actions
    ):
        raise _commit(table, file, "it is overwritten: a line of it is no action of Delta's")
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    # delta-rs ends a commit without the end of a line; Spark's end with one.
    if str(info.get("engineInfo", "")).startswith("delta-rs") and data.endswith(b"\n"):
        raise _commit(table, file, "it is cut off: actions are missing at its end")
    metrics = info.get("operationMetrics") or {}
    said = next((int(metrics[name]) for name in _ADDED if name in metrics), 0)
    adds = sum("add" in action for action in actions)
    if info.get("operation") in ("WRITE", "MERGE") and adds < said:
        raise _commit(table, file, f"it is cut off: it says that it adds {said} file(s), and adds {adds}")
    return actions


def _commit(table: str, file: Place, problem: str) -> DamagedTableError:
    version = int(file.stem)
    return DamagedTableError(
        table,
        file,
        f"commit {version} of the log: {problem}",
        f"versions up to {version - 1}, and all data files",
        hint=f"bring the file back from a backup; or, if it is the last commit, remove it: the table is then at version "
        f"{version - 1}, and the next start of the flow says whether that goes with its checkpoint (the batch comes again if "
        "it was not finished)",
    )


def check_log(table: str, path: Place, since: int = 0) -> None:
    """Refuse a log in which a commit is empty, or one that a reader replays is damaged.

    A commit that is cut off at the end of a line is read without a word, and without its rows. It is looked for when a table
    is opened: at sizes, and at the commits behind the last checkpoint, which are small and at most as many as its interval.

    Args:
        since: commits before it are not looked at, unless so many have come since that this is dearer.
    """
    # The log has grown behind what is known: mostly by one commit.
    later = takewhile(lambda file: file.exists(), (commit_file(path, version) for version in count(since)))
    files = list(islice(later, FAR)) if since > 0 else []
    if not 0 < len(files) < FAR:
        # A listing says it of all commits, and a week of them is many.
        there = sizes(path)
        for name in sorted(there):
            if there[name] == 0 and name.endswith(".json"):
                raise _commit(table, log_folder(path) / name, "it is empty")
        files = replayed(path, names=there)
    _check_commits(table, files)


def check_version(table: str, path: Place, version: int) -> None:
    """Refuse damage in what a reader replays to come to a version."""
    _check_commits(table, replayed(path, version))


def _check_commits(table: str, files: Iterable[Place]) -> None:
    for file in files:
        # A compaction may clean the log meanwhile; a commit that is missing is for delta-rs to tell.
        with suppress(FileNotFoundError):
            check_commit(table, file)


def opened(table: str, path: Place, version: int | None = None) -> DeltaTable:
    """Return a table opened by delta-rs."""
    return opened_as(DeltaTable, table, path, version)


def opened_as(kind: type[_Table], table: str, path: Place, version: int | None = None) -> _Table:
    """Return a table opened by delta-rs, as a class of its own."""
    try:
        return kind(str(path), version=version)
    except Exception as error:
        damage = next(log_damages(table, path), None)
        if damage is not None:
            raise damage from error
        raise


def read_damage(table: str, delta: DeltaTable, path: Place) -> DamagedTableError | None:
    """Find the damaged data file that keeps a version from being read; None if no file is damaged."""
    return next(data_damages(table, delta, path), None)


def is_vacuumed(delta: DeltaTable, path: Place) -> bool:
    """Return whether data files of an older version are gone by a VACUUM: one has come since, and the last version names none."""
    gone = {name for name in _files(delta) if not data_file(path, name).exists()}
    if not gone or gone & _files(DeltaTable(str(path))):
        return False
    return any(
        str(info.get("operation")).startswith("VACUUM")
        for version in versions(path)
        if version > delta.version()
        for _, info in actions(path, version, "commitInfo")
    )


def _files(delta: DeltaTable) -> set[str]:
    return set(pa.table(delta.get_add_actions(flatten=True))["path"].to_pylist())


# --- all that can be found ------------------------------------------------------------------------------------------


def table_damages(table: str, path: Place) -> Iterator[DamagedTableError]:
    """Return every damaged file of a table: of its log, and of the data that its last version is made of."""
    log = list(log_damages(table, path))
    yield from log
    if not log:
        yield from data_damages(table, DeltaTable(str(path)), path)


def log_damages(table: str, path: Place) -> Iterator[DamagedTableError]:
    """List the damaged files of a table's log."""
    commits = commit_files(path)
    for file in commits:
        try:
            check_commit(table, file)
        except DamagedTableError as error:
            yield error
    versions = [int(file.stem) for file in commits]
    for before, after in pairwise(versions):
        if after != before + 1:
            yield _commit(table, commit_file(path, before + 1), "it is missing")
    yield from _checkpoint_damages(table, log_folder(path), versions)


def _checkpoint_damages(table: str, log: Place, versions: list[int]) -> Iterator[DamagedTableError]:
    whole = versions[:1] == [0]
    rest = "all commits and data files" if whole else "the commits that are kept, and all data files"
    again = (
        "remove it and `_last_checkpoint`: the commits alone say the same" if whole else "bring it back from a backup"
    )
    checkpoints = by_name(log.glob("*.checkpoint*.parquet"))
    for file in checkpoints:
        problem = _parquet_problem(file)
        if problem:
            yield DamagedTableError(table, file, f"a checkpoint of the log {problem}", rest, hint=again)
    pointer = log / "_last_checkpoint"
    if pointer.exists():
        try:
            version = int(json.loads(pointer.read_bytes())["version"])
        except (ValueError, KeyError, TypeError):
            version = None
        if version is None or not any(checkpoint.name.startswith(f"{version:020d}.") for checkpoint in checkpoints):
            problem = "it does not parse" if version is None else f"it names a checkpoint {version} that is not there"
            hint = "remove it: readers then look for the last checkpoint themselves"
            yield DamagedTableError(table, pointer, problem, "commits, checkpoints and data files", hint=hint)


def data_damages(table: str, delta: DeltaTable, path: Place) -> Iterator[DamagedTableError]:
    """List the data files of a version that are missing, of another size, or no Parquet."""
    actions = pa.table(delta.get_add_actions(flatten=True))
    listed = zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
    for name, size in listed:
        file = data_file(path, name)
        problem = "it is missing"
        if file.exists():
            seen = file.stat().st_size
            problem = f"it has {seen} bytes, and {size} were written" if seen != size else _parquet_problem(file)
        if problem:
            yield DamagedTableError(
                table,
                file,
                f"a data file of version {delta.version()}: {problem}",
                "the log and the other data files: all rows that are not in this one",
                hint="bring the file back from a backup. Without one: backfill the slices that it holds (sliced flows), "
                f"or move the table {path} and the flow's checkpoint away and run the flow with "
                'on_fresh_checkpoint="reset"',
            )


def _parquet_problem(file: Place) -> str:
    """Say what is wrong with the ends of a Parquet file; an empty text if they are whole."""
    if isinstance(file, Location):
        last = file.store.part(file.key, max(0, file.stat().st_size - 4), 4)
        return "" if file.beginning(4) == last == _MAGIC else "is no whole Parquet file"
    try:
        with file.open("rb") as data:
            first = data.read(4)
            data.seek(-4, os.SEEK_END)
            ends = first == _MAGIC and data.read(4) == _MAGIC
    except OSError:
        ends = False
    return "" if ends else "is no whole Parquet file"
