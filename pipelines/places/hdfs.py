"""The store in HDFS: the NameNode agrees on a new name or refuses it, and that is all that this stands on.

HDFS has no conditional put. It has a rename that fails where the name is taken. So a file is put under a name of a draft and
renamed, and what replaces it is a version of its own: `folder/.name.versions/BORN.000000000001`. Its number is the last one's
plus one, so of two writers who have read the same version one gets the name. `BORN` (time and size) is of the file that began, so
versions of a file that was deleted are not those of the next one of its name. Where there are such versions alone, the file was
put there by somebody else, or copied without its time: it is refused, for what it holds is older than what was written last.
Old versions go once a later one has been there for a while.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from pipelines.places.store import Entry, FileStore, Stored, StoreError, Wanted, every, kept_above, now

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

T = TypeVar("T")

_DRAFT, _VERSIONS = ".draft", ".versions"
_VERSION = re.compile(r"^(?P<folder>.*/)\.(?P<name>[^/]+)\.versions/(?P<born>\d+-\d+)\.(?P<number>\d{12})$")
_OWN = re.compile(r"(^|/)\.[^/]+\.(draft|versions)(/|$)")
# A version goes so many seconds after the next one came. Who takes longer between reading a version and replacing it may meet a
# name that was taken once and is free again, so half of this is as long as a swap may take.
_KEPT_SECONDS = 120.0
# How often a file is read that is replaced while it is read.
_TRIES = 100
# A draft that is older was left by a writer that was killed. One that only stood still writes another.
_DRAFT_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class _Version:
    """The content of a file now.

    Attributes:
        born: of the file that began, by its time and size.
        number: 0 for that file.
        file: where the content is.
    """

    born: str
    number: int
    file: FileStatus

    @property
    def tag(self) -> str:
        return f"{self.born}/{self.number}"


class HdfsStore(FileStore):
    """Keeps files in HDFS. Settings and users of Hadoop are found as Hadoop finds them (HADOOP_CONF_DIR, HADOOP_USER_NAME).

    Args:
        name: of the NameNode, `host:port`, or of a name service.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._client = _connected(name)

    def read(self, key: str) -> Stored:
        def whole(version: _Version) -> Stored:
            return Stored(
                self._asked_of_store(key, lambda: bytes(self._client.read(version.file.path).read())), version.tag
            )

        return self._of_one_version(key, whole)

    def tag(self, key: str) -> str | None:
        try:
            return self._current(key).tag
        except FileNotFoundError:
            return None

    def part(self, key: str, start: int, length: int) -> bytes:
        def piece(version: _Version) -> bytes:
            size = min(length, version.file.length - start)
            if size <= 0:
                return b""
            return self._asked_of_store(
                key, lambda: bytes(self._client.read(version.file.path).read_range(start, size))
            )

        return self._of_one_version(key, piece)

    def put(self, key: str, data: bytes) -> str:
        while True:
            known = self.tag(key)
            tag = self.put_if_absent(key, data) if known is None else self.compare_and_swap(key, data, known)
            if tag is not None:
                return tag

    def put_if_absent(self, key: str, data: bytes) -> str | None:
        there = self._status(f"/{key}")
        if there is not None and there.isdir:
            raise StoreError(f"hdfs://{self._name}/{key}", "it is a folder", hint="move it away: a file is to be there")
        # Seen before the file was found missing, so none of them is of a file that somebody begins now.
        left = [version.file for version in self._versions(key)] if there is None else []
        if there is not None or self._status(f"/{key}") is not None:
            return None
        self._remove(left)
        draft = self._draft(f"/{key}", data)
        return f"{_born(draft)}/0" if self._renamed(draft, f"/{key}") else None

    def compare_and_swap(self, key: str, data: bytes, tag: str) -> str | None:
        began = now()
        try:
            known = self._current(key)
        except FileNotFoundError:
            return None
        if known.tag != tag:
            return None
        new = f"{_folder_of_versions(key)}/{known.born}.{known.number + 1:012d}"
        draft = self._draft(new, data)
        if not self._renamed(draft, new):
            return None
        if not self._counts(key, known, began):
            self._asked_of_store(key, lambda: self._client.delete(new, False))
            self._prune(key)
            return None
        self._forget_old(key, known.born, draft.modification_time)
        return f"{known.born}/{known.number + 1}"

    def _counts(self, key: str, known: _Version, began: float) -> bool:
        """Return whether the version that came behind a known one is of this file, and the first to have its number."""
        file = self._status(f"/{key}")
        if file is None or _born(file) != known.born:
            return False
        later = any(version.number > known.number + 1 for version in self._versions(key) if version.born == known.born)
        return not later or now() - began <= _KEPT_SECONDS / 2

    def entry(self, key: str) -> Entry:
        return _entry(key, self._current(key))

    def entries(self, folder: str, wanted: Wanted = every) -> Iterator[Entry]:
        files: dict[str, FileStatus] = {}
        latest: dict[tuple[str, str], _Version] = {}
        for status in self._files(folder):
            if own := _VERSION.match(status.path):
                version = _Version(own["born"], int(own["number"]), status)
                name = f"{own['folder']}{own['name']}".lstrip("/"), version.born
                latest[name] = max(version, latest.get(name, version), key=lambda one: one.number)
            elif not _OWN.search(status.path):
                files[status.path.lstrip("/")] = status
        for key, file in sorted(files.items()):
            entry = _entry(key, latest.get((key, _born(file)), _Version(_born(file), 0, file)))
            if wanted(entry):
                yield entry

    def has_files(self, folder: str) -> bool:
        return any(not _OWN.search(status.path) for status in self._files(folder))

    def names(self, folder: str) -> list[str]:
        found = self._listed(folder)
        return sorted(status.path.rpartition("/")[2] for status in found if not _OWN.search(status.path))

    def delete(self, key: str) -> None:
        known = self._status(f"/{key}")
        if known is None or known.isdir:
            return
        # The file first: its versions are nobody's without it.
        self._asked_of_store(key, lambda: self._client.delete(f"/{key}", False))
        self._remove([version.file for version in self._versions(key) if version.born == _born(known)])
        self._prune(key)

    def clock(self, folder: str) -> float:
        """Return the NameNode's time, of a file that is put to be dated."""
        draft = self._draft(f"/{folder}/clock".replace("//", "/"), b"")
        self._asked_of_store(folder, lambda: self._client.delete(draft.path, False))
        return draft.modification_time / 1000

    # --- versions ---------------------------------------------------------------------------------------------------

    def _current(self, key: str) -> _Version:
        """Return what a file holds now.

        Raises:
            StoreError: versions of another file of its name are beside it.
        """
        file = self._status(f"/{key}")
        if file is None or file.isdir:
            raise FileNotFoundError(f"hdfs://{self._name}/{key}")
        versions = self._versions(key)
        own = [version for version in versions if version.born == _born(file)]
        if versions and not own:
            problem = f"versions of another file of its name are beside it ({_folder_of_versions(key)})"
            hint = (
                "put back the file that was there, or copy the folder with its times (hdfs dfs -cp -p); "
                "remove the versions only if this file is the right one"
            )
            raise StoreError(f"hdfs://{self._name}/{key}", problem, hint=hint)
        return max(own, key=lambda version: version.number, default=_Version(_born(file), 0, file))

    def _versions(self, key: str) -> list[_Version]:
        listed = self._listed(_folder_of_versions(key))
        matched = ((_VERSION.match(status.path), status) for status in listed)
        return [_Version(own["born"], int(own["number"]), status) for own, status in matched if own]

    def _of_one_version(self, key: str, work: Callable[[_Version], T]) -> T:
        """Do something with what a file holds, again if it was replaced or deleted meanwhile."""
        for _ in range(_TRIES):
            version = self._current(key)
            try:
                found = work(version)
            except FileNotFoundError:
                continue
            # A version has its name for good. The name of the file itself may be another's after a deletion.
            again = self._status(f"/{key}")
            if again is not None and _born(again) == version.born:
                return found
        raise StoreError(f"hdfs://{self._name}/{key}", "it changes faster than it can be read", hint="try again")

    def _forget_old(self, key: str, born: str, now: int) -> None:
        """Delete versions whose successor came long ago. A draft is written after its predecessor came, so it dates that."""
        held = {version.number: version.file for version in self._versions(key) if version.born == born}
        long_ago = now - _KEPT_SECONDS * 1000
        self._remove([f for n, f in held.items() if n + 1 in held and held[n + 1].modification_time < long_ago])

    def _remove(self, files: list[FileStatus]) -> None:
        for file in files:
            self._asked_of_store(file.path, lambda path=file.path: self._client.delete(path, False))  # type: ignore[misc]

    # --- files ------------------------------------------------------------------------------------------------------

    def _draft(self, path: str, data: bytes) -> FileStatus:
        """Write a file beside the one that it is to become."""
        folder, _, name = path.rpartition("/")
        draft = f"{folder}/.{name}.{uuid4().hex}{_DRAFT}"

        def write() -> FileStatus:
            with self._client.create(draft) as out:
                out.write(data)
            return self._client.get_file_info(draft)

        return self._asked_of_store(path, write)

    def _renamed(self, draft: FileStatus, path: str) -> bool:
        """Give a draft its name. Return whether it has it; false: the name is taken, or the draft is gone."""
        try:
            self._asked_of_store(path, lambda: self._client.rename(draft.path, path, False))
        except (FileExistsError, FileNotFoundError):
            # An answer may have been lost, and the client have asked again.
            own = self._status(path)
            if own is not None and _born(own) == _born(draft) and self._status(draft.path) is None:
                return True
            self._asked_of_store(path, lambda: self._client.delete(draft.path, False))
            return False
        return True

    def _status(self, path: str) -> FileStatus | None:
        try:
            return self._asked_of_store(path, lambda: self._client.get_file_info(path))
        except FileNotFoundError:
            return None

    def _listed(self, folder: str) -> list[FileStatus]:
        path = f"/{folder.lstrip('/')}"
        try:
            found = self._asked_of_store(folder, lambda: list(self._client.list_status(path, False)))
        except FileNotFoundError:
            return []
        return [status for status in found if status.path != path]

    def _files(self, folder: str) -> Iterator[FileStatus]:
        """Yield the files in a folder, at any depth, those of this store included.

        Folder by folder: one that goes while it is walked takes only what was in it. In a listing of all depths by the client
        it is an error, as if the whole were not there.
        """
        folders = [folder]
        while folders:
            for status in self._listed(folders.pop()):
                if status.isdir:
                    folders.append(status.path)
                else:
                    yield status

    def _prune(self, key: str) -> None:
        """Remove folders that have become empty, for a folder of a store is there by its files, and drafts of killed writers.

        No folder but of versions goes that is not below the root of a lake: others were made by somebody else.
        """
        kept = kept_above(self._name, key)
        folder = versions = _folder_of_versions(key)
        while folder:
            listed = self._listed(folder)
            newest = max((status.modification_time for status in listed), default=0)
            old = newest - _DRAFT_SECONDS * 1000
            left = [s for s in listed if s.path.endswith(_DRAFT) and not s.isdir and s.modification_time < old]
            self._remove(left)
            own = folder == versions or (kept is not None and len(folder) > len(f"/{kept}"))
            try:
                # The NameNode refuses where somebody has put a file meanwhile.
                if not own or len(left) < len(listed):
                    break
                self._client.delete(folder, False)
            except (OSError, RuntimeError):
                break
            folder = folder.rpartition("/")[0]

    def _asked_of_store(self, key: str, work: Callable[[], T]) -> T:
        """Do something with the store; what it refuses is said in a sentence."""
        place = f"hdfs://{self._name}/{key.lstrip('/')}"
        try:
            return work()
        except FileExistsError:
            raise
        except FileNotFoundError:
            raise FileNotFoundError(place) from None
        except (OSError, RuntimeError, ValueError) as error:
            said = next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
            if isinstance(error, PermissionError) or "ermission denied" in said:
                hint = "look at HADOOP_USER_NAME or the Kerberos ticket of this host, and at the owner of the folder"
                raise StoreError(place, f"HDFS refuses this user: {said}", hint=hint) from error
            hint = "see whether the NameNode and the DataNodes are up, and look at HADOOP_CONF_DIR"
            raise StoreError(place, f"HDFS does not answer as it should: {said}", hint=hint) from error


def _connected(name: str) -> Client:
    try:
        from hdfs_native import Client
    except ImportError:
        place = f"hdfs://{name}"
        raise StoreError(place, "the package hdfs-native is missing", hint="pip install hdfs-native") from None
    with contextlib.suppress(ValueError, RuntimeError):
        return Client(f"hdfs://{name}")
    hint = "name the NameNode as hdfs://host:port/folder, or a name service that HADOOP_CONF_DIR knows"
    raise StoreError(f"hdfs://{name}", "there is no such name service", hint=hint)


def _born(file: FileStatus) -> str:
    return f"{file.modification_time}-{file.length}"


def _folder_of_versions(key: str) -> str:
    folder, _, name = f"/{key}".rpartition("/")
    return f"{folder}/.{name}{_VERSIONS}"


def _entry(key: str, version: _Version) -> Entry:
    return Entry(key, version.file.length, version.file.modification_time / 1000, version.tag)
