"""Refusals of the file system, in a sentence: a read-only lake, a file where a folder belongs, a folder of somebody else's."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.errors import TrideltaError
from pipelines.places.location import FILE, Location, Place, path_of_url, scheme_of
from pipelines.private import masked

PROJECT = Path(__file__).resolve().parent.parent

_OF_SYSTEM = re.compile(r"/(?:proc|sys|dev(?!/shm/))/")
_HINTS = {
    errno.EROFS: "mount it for writing, or name another folder in TRIDELTA_HOME; nothing was committed, and reading still works",
    errno.EACCES: "give the user that runs this the right to it (chown, chmod), or name another folder in TRIDELTA_HOME",
    errno.EPERM: "give the user that runs this the right to it (chown, chmod), or name another folder in TRIDELTA_HOME",
    errno.ENOTDIR: "a file stands where a folder belongs: move it away, or correct the path",
    errno.EISDIR: "a folder stands where a file belongs: move it away, or correct the path",
    errno.ENOSPC: "make room; nothing of what is committed is lost",
    errno.EDQUOT: "make room in this user's quota; nothing of what is committed is lost",
    errno.EMFILE: "allow this user more open files (ulimit -n)",
    errno.ENFILE: "allow this host more open files",
    errno.ENAMETOOLONG: "take a shorter path",
    errno.ELOOP: "a link there leads back to itself: correct it",
    errno.EIO: "the disk does not answer as it should: look at the system's log, and restore what is damaged",
    errno.ESTALE: "the network file system has lost the folder: mount it again",
    errno.ENOENT: "make it, or correct the path",
    errno.EEXIST: "a file stands where a folder belongs: move it away, or correct the path",
}
_BY_NUMBER = re.compile(r"os error (\d+)")
_BY_TEXT = {"Read-only file system": errno.EROFS, "Permission denied": errno.EACCES, "Not a directory": errno.ENOTDIR}
_PATH = re.compile(r"(?:file:)?(/[^\s:'\"()]+)")


class FileAccessError(TrideltaError):
    """The file system refuses what has to be done; `code` is its errno."""

    def __init__(self, path: str, problem: str, code: int) -> None:
        self.path, self.problem, self.code = path, problem, code
        super().__init__(f"{path or 'the file system'}: {problem}", hint=_HINTS.get(code, "correct the path"))


class NotAFolderError(FileAccessError):
    """Something that is no folder stands where the home, the lake or a table belongs."""

    def __init__(self, path: str, what: str) -> None:
        self.what = what
        super().__init__(path, f"is no folder, and {what} belongs there", errno.ENOTDIR)


class RemoteLocationError(TrideltaError):
    """A place on another system was named where a folder of this host belongs."""

    def __init__(self, location: str, what: str, also: str = "") -> None:
        self.location, self.what = masked(location), what
        super().__init__(
            f"{self.location}: {what} must be a folder of this host{also}; other stores are not supported",
            hint="name a local folder, or one where the store is mounted",
        )


def local_folder(location: str | Path, what: str, *, also: str = "") -> Path:
    """Return the path of a folder of this host, which may be given as a `file:` URL.

    Args:
        what: is there.
        also: where else it might be.

    Raises:
        RemoteLocationError: It is a URL of another scheme. As a path it would be a folder `s3a:` in the working directory.
    """
    text = str(location)
    scheme = scheme_of(text)
    if scheme is None:
        return Path(text)
    if scheme != FILE:
        raise RemoteLocationError(text, what, also)
    return path_of_url(text)


def any_folder(location: str | Path | Location, what: str) -> Place:
    """Return the path of a folder of this host, or the place of one on a store."""
    if isinstance(location, Location):
        return location.path if location.is_local else location
    if scheme_of(str(location)) in ("s3", "s3a", "hdfs"):
        return Location.of(location)
    return local_folder(location, what, also=", of S3 or of HDFS")


def home_folder() -> Path:
    """Return the home that TRIDELTA_HOME names, else `.tridelta` in the project."""
    chosen = os.environ.get("TRIDELTA_HOME")
    if not chosen:
        return PROJECT / ".tridelta"
    return expanded(local_folder(chosen, "the home (TRIDELTA_HOME)"), "TRIDELTA_HOME")


def expanded(path: Path, setting: str) -> Path:
    """Return the absolute path of what may begin with `~`."""
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        # `~name` of nobody, or `~` where HOME is not set.
        raise FileAccessError(str(path), f"{setting}: {error}", errno.ENOENT) from None


def private_among(paths: Iterable[str]) -> list[str]:
    """Return the paths that lead to the system's own files, or to what a deployment keeps in its home beside lake and data."""
    within = _own_folders()
    real = {path: os.path.realpath(path) + "/" for path in paths}
    return [path for path, there in real.items() if _OF_SYSTEM.match(there) or there.startswith(within)]


def may_hold_private(folder: str) -> bool:
    """Return whether what lies below a folder, links aside, may be of those: it is one of them, within one or above one."""
    there = os.path.realpath(folder).rstrip("/") + "/"
    if there == "/" or _OF_SYSTEM.match(there):
        return True
    return any(one.startswith(there) or there.startswith(one) for one in _own_folders())


def _own_folders() -> tuple[str, ...]:
    """Return the real paths, with `/`, of what a deployment keeps in its home beside lake and data."""
    home = home_folder()
    own = [home / "nimbus", home / "dagster", home / "reports"]
    # The registry stays in `nimbus`; and this may be the home itself, with lake and data in it.
    if elsewhere := os.environ.get("TRIDELTA_NIMBUS_HOME"):
        own += [Path(elsewhere, name) for name in ("supervisors", "logs", "flows", "rebalance")]
    return tuple(os.path.realpath(folder) + "/" for folder in own)


def refuse_unless_folder(path: Place, what: str) -> None:
    """Refuse a path that is there and is no folder, or lies beneath something that is none. A store has no such thing.

    Raises:
        FileAccessError: It cannot be looked at.
    """
    if isinstance(path, Location):
        return
    try:
        if path.is_dir():
            return
        for place in (path, *path.parents):
            if place.exists() or place.is_symlink():
                if not place.is_dir():
                    raise NotAFolderError(str(place), what)
                return
    except (OSError, ValueError) as error:
        raise refusal_of(error, str(path)) from error


def refusal_of(error: OSError | ValueError, path: str) -> FileAccessError:
    """Build the error for what the file system reported, or for a path that cannot exist (a zero byte)."""
    if isinstance(error, ValueError):
        return FileAccessError(repr(path), f"is no path: {error}", errno.EINVAL)
    return FileAccessError(str(error.filename or path), str(error.strerror or error), error.errno or 0)


@contextmanager
def accessing(path: str) -> Iterator[None]:
    """Turn errors of a file or folder into the engine's; a full disk is reported by the caller, who knows what is lost by it."""
    try:
        yield
    except OSError as error:
        if error.errno not in _HINTS or error.errno == errno.ENOSPC:
            raise
        raise refusal_of(error, path) from error


def refused(error: BaseException) -> FileAccessError | None:
    """Find the file system's refusal behind an error from Python, Rust or Java; None if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        refusal = _refused(seen)
        if refusal is not None:
            return refusal
        seen = seen.__cause__ or seen.__context__
    return None


def _here_is_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _refused(error: BaseException) -> FileAccessError | None:
    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOENT and not error.filename and _here_is_gone():
        return FileAccessError("", "the folder that this was started in is gone; go to one that is there", errno.ENOENT)
    if isinstance(error, OSError) and error.errno in _HINTS:
        return refusal_of(error, "")
    by_number = _BY_NUMBER.search(text)
    code = int(by_number[1]) if by_number else next((code for said, code in _BY_TEXT.items() if said in text), None)
    if code is None or code not in _HINTS:
        return None
    path = _PATH.search(text)
    problem = next((said for said, number in _BY_TEXT.items() if number == code), errno.errorcode.get(code, ""))
    return FileAccessError(path[1] if path else "", problem, code)
