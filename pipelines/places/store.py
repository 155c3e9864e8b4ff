"""The small files that the engine keeps at a place: each is replaced whole, and two writers of one are told apart.

There are no renames and no locks here, for an object store has none. What must be agreed on is a file that one writer alone can
create (`put_if_absent`), or replace as long as it is the one that was read (`compare_and_swap`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipelines.errors import TrideltaError
from pipelines.private import masked

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


_kept: set[tuple[str, str]] = set()
"""Folders that stay when they become empty, by the name of their store."""


def keep(store: str, folder: str) -> None:
    """Let a folder of a store stay though it becomes empty: its owner and modes are those that somebody chose."""
    _kept.add((store, folder))


def kept_above(store: str, key: str) -> str | None:
    """Return the innermost folder that a file lies in and that stays when it becomes empty; None: this process knows of none."""
    parts = key.split("/")[:-1]
    above = ("/".join(parts[:n]) for n in range(len(parts), -1, -1))
    return next((folder for folder in above if (store, folder) in _kept), None)


def now() -> float:
    """Return seconds by a clock that counts while the host sleeps, where there is such a one."""
    return time.clock_gettime(_CLOCK)


class StoreError(TrideltaError):
    """An object store does not answer, or refuses what has to be done."""

    def __init__(self, location: str, problem: str, *, hint: str) -> None:
        self.location, self.problem = masked(location), masked(problem)
        super().__init__(f"{self.location}: {self.problem}", hint=hint)


@dataclass(frozen=True)
class Stored:
    """A file as it was read.

    Attributes:
        tag: what tells this content from another one under the same key.
    """

    data: bytes
    tag: str


@dataclass(frozen=True)
class Entry:
    """A file in a listing.

    Attributes:
        key: its name in the store.
        size: in bytes.
        modified: when it was put, in seconds since 1970 by the clock of the store.
        version: what tells it from another file under its key.
    """

    key: str
    size: int
    modified: float
    version: str


Wanted = Callable[[Entry], bool]
"""Whether somebody looks for a file, by what a listing says of it."""


def every(entry: Entry) -> bool:
    """Return that it is: whatever is there."""
    return True


class FileStore(ABC):
    """Keeps files by key; a key is a path without a slash at its ends. Reading what is not there is a FileNotFoundError."""

    @abstractmethod
    def read(self, key: str) -> Stored:
        """Return a file."""

    def tag(self, key: str) -> str | None:
        """Return the tag of a file, None if there is none."""
        try:
            return self.read(key).tag
        except FileNotFoundError:
            return None

    @abstractmethod
    def part(self, key: str, start: int, length: int) -> bytes:
        """Return some bytes of a file, fewer where it ends before."""

    def end(self, key: str, length: int) -> bytes:
        """Return the last bytes of a file, fewer where it has no more."""
        return self.part(key, max(0, self.entry(key).size - length), length)

    @abstractmethod
    def put(self, key: str, data: bytes) -> str:
        """Put a file, whatever is there. Return its tag."""

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> str | None:
        """Put a file where there is none. Return its tag; None: there is one, which stays. One of several writers succeeds."""

    @abstractmethod
    def compare_and_swap(self, key: str, data: bytes, tag: str) -> str | None:
        """Replace the file that has a tag. Return the new one's; None: another file is there, which stays, or none is."""

    @abstractmethod
    def entry(self, key: str) -> Entry:
        """Return size and time of a file."""

    def size(self, key: str) -> int | None:
        """Return the bytes of a file, None if there is none."""
        try:
            return self.entry(key).size
        except FileNotFoundError:
            return None

    @abstractmethod
    def entries(self, folder: str, wanted: Wanted = every) -> Iterator[Entry]:
        """Yield the files in a folder, at any depth, by key.

        Args:
            wanted: which of them. It is asked first: to tell a file from what is none may cost a request.
        """

    def has_files(self, folder: str) -> bool:
        """Return whether there is a file in a folder, at any depth."""
        return next(iter(self.entries(folder)), None) is not None

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the names of files and folders directly in a folder, in order."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove a file, if it is there."""

    def copy(self, source: str, target: str) -> None:
        """Put a copy of a file, whatever is there."""
        self.put(target, self.read(source).data)

    @abstractmethod
    def clock(self, folder: str) -> float:
        """Return the time by the clock that dates the store's files, in seconds since 1970."""
