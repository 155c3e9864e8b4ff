"""The store on a disk of this host."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from pipelines.places.store import Entry, FileStore, Stored, Wanted, every

_LOCK = ".store.lock"
_DRAFT = ".draft"


class DiskStore(FileStore):
    """Keeps files below a folder. Replacing takes a lock of the file's folder, so that what was compared is what is replaced.

    Args:
        root: the folder; made with the first file.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, key: str) -> Stored:
        data = (self._root / key).read_bytes()
        return Stored(data, _tag(data))

    def part(self, key: str, start: int, length: int) -> bytes:
        with (self._root / key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def put(self, key: str, data: bytes) -> str:
        with self._alone(key):
            self._replace(key, data)
        return _tag(data)

    def put_if_absent(self, key: str, data: bytes) -> str | None:
        file = self._root / key
        file.parent.mkdir(parents=True, exist_ok=True)
        with self._alone(key):
            if file.exists():
                return None
            self._replace(key, data)
        return _tag(data)

    def compare_and_swap(self, key: str, data: bytes, tag: str) -> str | None:
        if not (self._root / key).parent.is_dir():
            return None
        with self._alone(key):
            try:
                if self.read(key).tag != tag:
                    return None
            except FileNotFoundError:
                return None
            self._replace(key, data)
        return _tag(data)

    def entry(self, key: str) -> Entry:
        stat = (self._root / key).stat()
        if not (self._root / key).is_file():
            raise FileNotFoundError(str(self._root / key))
        return _entry(key, stat)

    def entries(self, folder: str, wanted: Wanted = every) -> Iterator[Entry]:
        for file in sorted((self._root / folder).rglob("*")):
            # What is deleted meanwhile is not there.
            with contextlib.suppress(FileNotFoundError):
                if not _is_own(file) and file.is_file():
                    entry = _entry(file.relative_to(self._root).as_posix(), file.stat())
                    if wanted(entry):
                        yield entry

    def names(self, folder: str) -> list[str]:
        place = self._root / folder
        return sorted(file.name for file in place.iterdir() if not _is_own(file)) if place.is_dir() else []

    def delete(self, key: str) -> None:
        file = self._root / key
        if file.parent.is_dir():
            with self._alone(key):
                file.unlink(missing_ok=True)

    def clock(self, folder: str) -> float:
        return time.time()

    @contextlib.contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        folder = (self._root / key).parent
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / _LOCK, poll_interval=0.002):
            yield

    def _replace(self, key: str, data: bytes) -> None:
        file = self._root / key
        draft = file.with_name(f".{file.name}.{os.getpid()}.{time.monotonic_ns()}{_DRAFT}")
        with draft.open("xb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(file)


def _entry(key: str, stat: os.stat_result) -> Entry:
    return Entry(key, stat.st_size, stat.st_mtime, f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}")


def _is_own(file: Path) -> bool:
    return file.name == _LOCK or (file.name.startswith(".") and file.name.endswith(_DRAFT))


def _tag(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
