"""A place, on this host or on an object store, and how each library spells it.

Spark (Hadoop) says `s3a://bucket/key`, obstore `s3://bucket/key`, delta-rs takes either, and all of them take the path of a local
folder. HDFS is `hdfs://namenode:port/key` to all. A name must mean the same to each, so characters that one of them reads as
something else (an encoded one, a pattern) are refused in the name of a folder there.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from pipelines.errors import TrideltaError
from pipelines.private import masked

if TYPE_CHECKING:
    from pipelines.places.store import Entry, FileStore

S3, HDFS, FILE = "s3", "hdfs", "file"
_SPELLED = {"s3": S3, "s3a": S3, "hdfs": HDFS}
_IN_SPARK = {S3: "s3a", HDFS: "hdfs"}
# A path of Python's has one slash where the URL had two.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_NEITHER = re.compile(r"(?i)(?:s3a?|hdfs|file|gs|abfss?):(?!/)")
# All behind the host is the name: `#` and `?` are characters of it.
_HERE = re.compile(r"(?is)file:(?://(?:localhost)?(?=/)|(?!//))(/.*)")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NAME_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(:\d{1,5})?")
_asked: set[str] = set()
_READ_OTHERWISE = re.compile(r"[\s%?#*\[\]{}\\:]")


class LocationError(TrideltaError):
    """A URL that names no place on an object store, or a name that libraries read differently."""

    def __init__(
        self,
        location: str,
        problem: str,
        hint: str = "name it as s3://bucket/folder, as hdfs://namenode:port/folder, or by its path",
    ) -> None:
        self.location, self.problem = masked(location), problem
        super().__init__(f"{self.location}: {problem}", hint=hint)


class RemoteLakeError(TrideltaError):
    """A lake or a source is on an object store, and what was asked for does not work there yet; nothing was written."""

    def __init__(self, place: str, what: str) -> None:
        self.place, self.what = place, what
        super().__init__(
            f"{place}: {what} does not work on an object store yet; nothing was written",
            hint="put the lake on the same store (TRIDELTA_LAKE=s3://...), or run the flow with tridelta run or in Dagster; "
            "docs/object-stores.md says what works on a store",
        )


class Stat(NamedTuple):
    """The metadata of an object, by the names that Python has for files."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True, order=True)
class Location:
    """A place: a folder, or a file in one.

    Joins and asks as a `Path` does, so that what takes a folder takes either. It is none on purpose: what opens files by itself
    fails with a `TypeError`, and never makes a folder `s3a:` in the working directory.

    Attributes:
        scheme: `s3`, `hdfs` or `file`.
        bucket: the store's; of HDFS its NameNode; empty on this host.
        key: the path in the bucket, or below `/`; without a slash at either end.
    """

    scheme: str
    bucket: str
    key: str

    @classmethod
    def of(cls, place: str | Path | Location) -> Location:
        """Return the place that a URL or a path names.

        Raises:
            LocationError: it is on a store that is not known, or has no name that all libraries read alike.
        """
        if isinstance(place, Location):
            return place
        text = str(place)
        spelled = scheme_of(text)
        if spelled is None or spelled == FILE:
            path = path_of_url(text) if spelled else Path(text).absolute()
            return cls(FILE, "", str(path).strip("/"))
        scheme = _SPELLED.get(spelled)
        if scheme is None:
            raise LocationError(text, f"a store of the kind {spelled}: is not known")
        bucket, _, key = text[len(spelled) + 1 :].strip("/").partition("/")
        named = _bucket(text, bucket) if scheme == S3 else _name_node(text, bucket)
        _asked.add(scheme)
        return cls(scheme, named, _key(text, key))

    @property
    def is_local(self) -> bool:
        """Return whether it is on this host."""
        return self.scheme == FILE

    # --- spellings --------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """Return the path on this host."""
        if not self.is_local:
            raise LocationError(str(self), "it is no folder of this host")
        return Path("/", self.key)

    @property
    def spark(self) -> str:
        """Return what Spark and Hadoop call it; delta-rs takes that, too."""
        return f"/{self.key}" if self.is_local else f"{_IN_SPARK[self.scheme]}://{self.bucket}/{self.key}".rstrip("/")

    def __str__(self) -> str:
        return self.spark

    @property
    def store(self) -> FileStore:
        """Return the store that it lies on; its keys are those of the store."""
        from pipelines.places.stores import store_at

        return store_at(self)

    # --- names ------------------------------------------------------------------------------------------------------

    def __truediv__(self, name: str) -> Location:
        return Location(self.scheme, self.bucket, f"{self.key}/{name}".strip("/"))

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names that lead to it."""
        return tuple(self.key.split("/")) if self.key else ()

    @property
    def name(self) -> str:
        return self.parts[-1] if self.key else ""

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def stem(self) -> str:
        return Path(self.name).stem

    @property
    def parent(self) -> Location:
        return Location(self.scheme, self.bucket, "/".join(self.parts[:-1]))

    @property
    def parents(self) -> tuple[Location, ...]:
        """Return the folders that it lies in, the innermost first."""
        return tuple(Location(self.scheme, self.bucket, "/".join(self.parts[:n])) for n in range(len(self.parts))[::-1])

    def with_name(self, name: str) -> Location:
        return self.parent / name

    def is_relative_to(self, other: Path | Location) -> bool:
        """Return whether it is that place, or lies in it."""
        return (
            isinstance(other, Location)
            and (self.scheme, self.bucket) == (other.scheme, other.bucket)
            and self.parts[: len(other.parts)] == other.parts
        )

    def relative_to(self, other: Location) -> Path:
        """Return the path that leads from another place to it."""
        if not self.is_relative_to(other):
            raise ValueError(f"{self} is not in {other}")
        return Path(*self.parts[len(other.parts) :])

    # --- files ------------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return whether there is a file of this name. A folder of an object store is there by its files (`is_dir`)."""
        return self.is_file()

    def is_file(self) -> bool:
        return self.store.size(self.key) is not None

    def is_dir(self) -> bool:
        """Return whether there is a file in it."""
        return self.store.has_files(self.key)

    def stat(self) -> Stat:
        """Return size and time of a file."""
        entry = self.store.entry(self.key)
        return Stat(entry.size, entry.modified)

    @property
    def version(self) -> str:
        """Return what tells a file from another one of its name."""
        return self.store.entry(self.key).version

    def iterdir(self) -> Iterator[Location]:
        """Yield files and folders that lie directly in it."""
        for name in self.store.names(self.key):
            yield self / name

    def glob(self, pattern: str) -> Iterator[Location]:
        """Yield what lies directly in it and fits a pattern of one name."""
        return (place for place in self.iterdir() if fnmatchcase(place.name, pattern))

    def rglob(self, pattern: str) -> Iterator[Location]:
        """Yield the files in it, at any depth, whose names fit a pattern."""
        return self.files(lambda place: fnmatchcase(place.name, pattern))

    def files(self, wanted: Callable[[Location], bool]) -> Iterator[Location]:
        """Yield the files in it, at any depth, that are wanted."""
        for entry in self.store.entries(self.key, lambda entry: wanted(self._at(entry))):
            yield self._at(entry)

    def _at(self, entry: Entry) -> Location:
        return Location(self.scheme, self.bucket, entry.key)

    def read_bytes(self) -> bytes:
        """Return a file's content."""
        return self.store.read(self.key).data

    def beginning(self, most: int) -> bytes:
        """Return the first bytes of a file."""
        return self.store.part(self.key, 0, most)

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> int:
        """Put a file, whole, in the place of the one that is there."""
        self.store.put(self.key, data)
        return len(data)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove a file."""
        if not missing_ok and not self.is_file():
            raise FileNotFoundError(str(self))
        self.store.delete(self.key)

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing on an object store, where a folder is there by its files."""
        if self.is_local:
            self.path.mkdir(parents=parents, exist_ok=exist_ok)


Place = Path | Location
"""A folder or file of this host or of a store."""


def on_disk(place: Place) -> Path:
    """Return the path of a place on this host, for what works there alone."""
    if isinstance(place, Location) and not place.is_local:
        raise RemoteLakeError(str(place), "what was asked for")
    return place.path if isinstance(place, Location) else place


def put_whole(place: Place, data: bytes, *, mode: int = 0o666) -> None:
    """Put a small file in the place of the one that is there, so that a crash leaves the old or the new one, whole.

    Args:
        mode: what the file allows on a disk, less the umask.
    """
    if isinstance(place, Location):
        place.write_bytes(data)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    # Another thread or process may put the same file.
    draft = place.with_name(f".{place.name}.{threading.get_native_id()}.tmp")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(place)


def path_below(place: Place, root: Place) -> Path | None:
    """Return the path that leads from a folder to a place in it; None if it is elsewhere."""
    if isinstance(place, Location):
        return place.relative_to(root) if isinstance(root, Location) and place.is_relative_to(root) else None
    return place.relative_to(root) if isinstance(root, Path) and place.is_relative_to(root) else None


def by_name(places: Iterable[Place]) -> list[Place]:
    """Return places of one folder in the order of their names."""
    return sorted(places, key=lambda place: place.name)


def scheme_of(text: str) -> str | None:
    """Return the scheme of a URL, None of a path.

    Raises:
        LocationError: it is neither: as a path, `s3:bucket` would be a folder in the working directory.
    """
    if _NEITHER.match(text):
        raise LocationError(
            text, "a URL has a slash behind its scheme, and a path with such a name begins with ./ or /"
        )
    spelled = _SCHEME.match(text)
    return spelled[1].lower() if spelled else None


def path_of_url(url: str) -> Path:
    """Return the path that a `file:` URL names."""
    here = _HERE.match(url)
    if here is None:
        raise LocationError(url, "it is on another host")
    return Path(unquote(here[1]))


def asked_for(scheme: str) -> bool:
    """Return whether this process has named a place of a scheme: then its Spark session is to know it."""
    return scheme in _asked


def _bucket(text: str, bucket: str) -> str:
    if not _BUCKET.fullmatch(bucket):
        # Behind a colon there may be a password.
        raise LocationError(text, f"{bucket.partition(':')[0]!r} is no name of a bucket")
    return bucket


def _name_node(text: str, name: str) -> str:
    # `hdfs:/x` and `hdfs:///x` mean another NameNode on each host.
    if not _NAME_NODE.fullmatch(name) or "://" not in text or ":///" in text:
        raise LocationError(text, "it names no NameNode")
    return name


def _key(text: str, key: str) -> str:
    bad = _READ_OTHERWISE.search(key)
    if bad:
        raise LocationError(text, f"its name has the character {bad[0]!r}, which not every library reads alike")
    if any(part in ("", ".", "..") for part in key.split("/")) and key:
        raise LocationError(text, "a part of its name is empty, . or ..")
    return key
