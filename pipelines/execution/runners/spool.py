"""Folders of bounded runs: each has channels of its own for as long as it lives, and a lock that says that it does."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipelines.private import FOLDER_MODE

_PREFIX, _LOCK = "bounded-", ".lock"
# Without a lock it is of an earlier release, or its run died before it had one: longer than any run takes.
_OLD_SECONDS = 86_400.0


@contextmanager
def bounded_folder(lake_root: Path, flow: str) -> Iterator[Path]:
    """A folder for one bounded run, gone when the block ends."""
    parent = lake_root / "spool" / flow
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"{_PREFIX}{uuid.uuid4().hex}"
    # The lock first: a folder without one looks like what a killed run has left.
    with FileLock(_lock_of(folder)):
        folder.mkdir(mode=FOLDER_MODE)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            _lock_of(folder).unlink(missing_ok=True)


def left_behind(lake_root: Path, now: float | None = None) -> list[Path]:
    """The folders whose runs are dead."""
    return [folder for folder in sorted((lake_root / "spool").glob(f"*/{_PREFIX}*")) if _is_left(folder, now)]


def remove(folder: Path) -> bool:
    """Remove a folder that was left behind. False: a run has it."""
    if not _is_left(folder, None):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    _lock_of(folder).unlink(missing_ok=True)
    return not folder.exists()


def _is_left(folder: Path, now: float | None) -> bool:
    if not folder.is_dir():
        return False
    lock = _lock_of(folder)
    if not lock.exists():
        return (time.time() if now is None else now) - folder.stat().st_mtime > _OLD_SECONDS
    try:
        with FileLock(lock, timeout=0):
            return True
    except Timeout:
        return False


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _LOCK)
