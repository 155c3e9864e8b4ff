"""The store in a bucket of S3, or of what speaks as S3 does. Credentials and endpoint come from the environment (`AWS_*`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from random import randrange
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from pipelines.places.store import Entry, FileStore, Stored, StoreError, Wanted, every

if TYPE_CHECKING:
    from obstore import GetOptions, PutMode

T = TypeVar("T")

_WRITER = "tridelta-writer"
"""Metadata of each conditional put: an answer may be lost and the put tried again, which then meets itself."""
_PROBE = ".tridelta-clock"
_MOST_EMPTY = 100_000
_NO_BUCKET = ("NoSuchBucket", "The specified bucket does not exist")
UNREAD = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f]")
"""Keys that a store takes, and obstore does not read: with a control character, or a part that is empty, `.` or `..`."""
_NAMED = re.compile(r'Path "(.*?)"(?:: Encountered| contained)', re.DOTALL)


class BucketStore(FileStore):
    """Keeps files in a bucket.

    Args:
        bucket: its name; it must be there.
    """

    def __init__(self, bucket: str) -> None:
        self._name = bucket
        patience: Any = {"max_retries": 10, "retry_timeout": timedelta(seconds=60)}
        self._s3 = S3Store(bucket, retry_config=patience)
        self._is_there = False
        self._empty: dict[tuple[str, float], bool] = {}
        """Whether an empty object is a file, by key and time: asked once, for the same folder is listed again and again."""
        self._remembered: list[tuple[str, float]] = []
        """The keys and times of these, in no order."""

    def read(self, key: str) -> Stored:
        answer = self._asked_of_store(key, lambda: obstore.get(self._s3, key))
        return Stored(self._asked_of_store(key, lambda: answer.bytes().to_bytes()), str(answer.meta["e_tag"]))

    def part(self, key: str, start: int, length: int) -> bytes:
        length = min(length, self.entry(key).size - start)
        # A range of nothing cannot be asked for.
        if length <= 0:
            return b""
        return self._asked_of_store(
            key, lambda: obstore.get_range(self._s3, key, start=start, length=length).to_bytes()
        )

    def end(self, key: str, length: int) -> bytes:
        last: GetOptions = {"range": {"suffix": length}}
        try:
            return self._asked_of_store(key, lambda: obstore.get(self._s3, key, options=last).bytes().to_bytes())
        except StoreError:  # there is no such range of an empty file, and not every store knows it of others
            return super().end(key, length)

    def put(self, key: str, data: bytes) -> str:
        return str(self._asked_of_store(key, lambda: obstore.put(self._s3, key, data, use_multipart=False))["e_tag"])

    def put_if_absent(self, key: str, data: bytes) -> str | None:
        return self._put_on(key, data, "create")

    def compare_and_swap(self, key: str, data: bytes, tag: str) -> str | None:
        return self._put_on(key, data, {"e_tag": tag})

    def _put_on(self, key: str, data: bytes, condition: PutMode) -> str | None:
        """Put on a condition. Return the tag; None if the condition does not hold."""
        writer = uuid4().hex
        try:
            done = self._asked_of_store(
                key, lambda: obstore.put(self._s3, key, data, mode=condition, attributes={_WRITER: writer})
            )
        except (AlreadyExistsError, PreconditionError):
            return self._own(key, writer)
        except FileNotFoundError:
            # What was to be replaced is gone.
            return None
        return str(done["e_tag"])

    def _own(self, key: str, writer: str) -> str | None:
        """Return the tag of a file that this very put has written, though its answer was lost."""
        try:
            answer = self._asked_of_store(key, lambda: obstore.get(self._s3, key))
        except FileNotFoundError:
            return None
        return str(answer.meta["e_tag"]) if answer.attributes.get(_WRITER) == writer else None

    def entry(self, key: str) -> Entry:
        try:
            answer = self._asked_of_store(key, lambda: obstore.head(self._s3, key))
        except FileNotFoundError:
            # An answer to HEAD has no text, which would tell a missing bucket from a missing file. Asked once.
            if not self._is_there:
                with suppress(FileNotFoundError):
                    self._asked_of_store(key, lambda: obstore.get(self._s3, key))
                self._is_there = True
            raise
        self._is_there = True
        return _entry(answer)

    def entries(self, folder: str, wanted: Wanted = every) -> Iterator[Entry]:
        # What is wanted first: a folder may hold thousands of `_SUCCESS`, and each would be asked for by itself.
        return (entry for entry in self._not_above_others(folder) if wanted(entry) and self._is_file(entry))

    def _not_above_others(self, folder: str) -> Iterator[Entry]:
        """Yield what is listed, but for the empty object that Hadoop puts for a folder, ahead of what is in it."""
        held: Entry | None = None
        for entry in self._listed(folder):
            if held is not None and (held.size or not entry.key.startswith(f"{held.key}/")):
                yield held
            held = entry
        if held is not None:
            yield held

    def _is_file(self, entry: Entry) -> bool:
        """Return whether what was listed is a file. obstore leaves out the slash that tells a folder's empty object from one."""
        if entry.size:
            return True
        named = entry.key, entry.modified
        known = self._empty.get(named)
        if known is None:
            # A folder's has none of this name, without the slash.
            known = self.size(entry.key) is not None
            self._remember(named, known)
        return known

    def _remember(self, named: tuple[str, float], known: bool) -> None:
        """Keep an answer. Where there are too many, any one goes: of a folder with more, the oldest is what is asked for next."""
        if len(self._remembered) < _MOST_EMPTY:
            self._remembered.append(named)
        else:
            place = randrange(_MOST_EMPTY)
            self._empty.pop(self._remembered[place], None)
            self._remembered[place] = named
        self._empty[named] = known

    def _listed(self, folder: str) -> Iterator[Entry]:
        parts = iter(self._asked_of_store(folder, lambda: obstore.list(self._s3, f"{folder}/" if folder else None)))
        while True:
            part = self._asked_of_store(folder, lambda: next(parts, None))
            if part is None:
                return
            # A probe of the clock is no file of anybody's.
            yield from (_entry(one) for one in part if one["path"] != folder and not one["path"].endswith(_PROBE))

    def names(self, folder: str) -> list[str]:
        answer = self._asked_of_store(
            folder, lambda: obstore.list_with_delimiter(self._s3, f"{folder}/" if folder else None)
        )
        files = [entry["path"] for entry in answer["objects"] if not entry["path"].endswith(_PROBE)]
        below = [prefix.rstrip("/") for prefix in answer["common_prefixes"]]
        return sorted({one.rpartition("/")[2] for one in (*files, *below) if one != folder} - {""})

    def delete(self, key: str) -> None:
        try:
            self._asked_of_store(key, lambda: obstore.delete(self._s3, key))
        except FileNotFoundError:
            return

    def copy(self, source: str, target: str) -> None:
        self._asked_of_store(source, lambda: obstore.copy(self._s3, source, target))

    def clock(self, folder: str) -> float:
        """Return the store's time, of a file that is put to be dated. S3 dates files to the second."""
        probe = f"{folder}/{_PROBE}".lstrip("/")
        self.put(probe, b"")
        return self.entry(probe).modified

    def _asked_of_store(self, key: str, work: Callable[[], T]) -> T:
        """Do something with the store; what it refuses is said in a sentence.

        Raises:
            FileNotFoundError, StoreError
            AlreadyExistsError, PreconditionError: of a put on a condition.
        """
        place = f"s3://{self._name}/{key}"
        try:
            return work()
        except (AlreadyExistsError, PreconditionError):
            raise
        except (NotFoundError, FileNotFoundError) as error:
            if any(said in str(error) for said in _NO_BUCKET):
                raise StoreError(place, "there is no such bucket", hint="make it, or correct its name") from None
            raise FileNotFoundError(place) from None
        except (InvalidPathError, ValueError) as error:
            named = _NAMED.search(str(error))
            problem = f"an object there has a name that is not read: {repr(named[1]) if named else _first(error)}"
            raise StoreError(place, problem, hint="rename or remove it") from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            hint = "look at AWS_ACCESS_KEY_ID or the role of this host, and at the bucket's policy"
            raise StoreError(place, "the store refuses these credentials", hint=hint) from error
        except BaseError as error:
            if any(said in str(error) for said in _NO_BUCKET):
                raise StoreError(place, "there is no such bucket", hint="make it, or correct its name") from None
            hint = "see whether the store is up, and look at AWS_ENDPOINT_URL and AWS_REGION (without TLS: AWS_ALLOW_HTTP=true)"
            raise StoreError(place, f"the store does not answer as it should: {_first(error)}", hint=hint) from error


def _entry(answer: Any) -> Entry:
    return Entry(str(answer["path"]), int(answer["size"]), answer["last_modified"].timestamp(), str(answer["e_tag"]))


def _first(error: BaseException) -> str:
    """Return the first line of what obstore says, without the answer's text."""
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
