"""A lease: a file in a store that one process holds at a time, on any host.

A store has no locks. The holder's file says who it is, and is put again every few seconds; each put replaces the file that was
there before it (`FileStore.compare_and_swap`), so two never think that they hold it for longer than a lease lasts. No clocks are
compared: who waits watches the file, and takes it over when it has seen it unchanged for a lease's time by its own clock. A
holder on the same kernel that has ended is not waited for.

A lease keeps runs apart that begin; it does not fence. What may not happen twice is refused where it is committed
(`pipelines.state.turns`).
"""

from __future__ import annotations

import json
import platform
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from pipelines.errors import LockedError, TrideltaError
from pipelines.places.location import Location
from pipelines.places.store import Stored, StoreError, now
from pipelines.processes import ProcessIdentity, boot_id

SECONDS = 20.0
"""How long a lease lasts that is not renewed."""
_BEATS = 5
"""So many times per lease it is renewed."""
_POLL_SECONDS = 0.3

_watched: dict[Location, tuple[str, float]] = {}
"""By file that another process holds: what tells its content from the next one, and since when this process has seen that. A
task of a deployed flow waits for a few seconds and tries again later: no try may begin to watch from the start."""


class LeaseLostError(TrideltaError):
    """A run has lost the lease by which it works on its checkpoint; another one may have it."""

    def __init__(self, flow: str, file: str, reason: str) -> None:
        self.flow, self.file, self.reason = flow, file, reason
        super().__init__(
            f'flow "{flow}": the lease {file} is lost: {reason}',
            hint="run the flow again: it goes on with the batch that was begun; nothing is counted twice",
        )


class FileLease:
    """A lease that this process holds, until `release`.

    Args:
        flow: for messages.
        id_: what tells its puts from those of every other lease.
        put: the tag of the file as this process has put it, and when it began to.
    """

    def __init__(self, file: Location, flow: str, id_: str, put: tuple[str, float], seconds: float = SECONDS) -> None:
        self.file, self._flow, self._id, self._seconds = file, flow, id_, seconds
        self._tag, self._since = put
        self._lost = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """See that it is still held."""
        late = now() - self._since
        if not self._lost and late > self._seconds * 0.75:
            self._lost = f"it could not be renewed for {late:.0f} seconds"
        if self._lost:
            raise LeaseLostError(self._flow, str(self.file), self._lost)

    def release(self) -> None:
        """Let another one have it."""
        self._ended.set()
        self._thread.join()
        if not self._lost:
            # If that fails, others wait for its end.
            self._swap(_content(None, self._id))

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / _BEATS) and not self._lost:
            self._swap(_content(ProcessIdentity.of(), self._id))

    def _swap(self, content: bytes) -> None:
        begun = now()
        try:
            tag = self.file.store.compare_and_swap(self.file.key, content, self._tag)
            if tag is None and (own := self._put_before()) is not None:
                tag = self.file.store.compare_and_swap(self.file.key, content, own)
        except StoreError:
            # `check` tells when it was too long.
            return
        if tag is None:
            self._lost = "another process has taken it over"
        else:
            self._tag, self._since = tag, begun

    def _put_before(self) -> str | None:
        """Return the tag of the file if this lease has put it: the answer to an earlier put was lost. Else None."""
        try:
            seen = self.file.store.read(self.file.key)
        except FileNotFoundError:
            return None
        return seen.tag if self._id.encode() in seen.data else None


@contextmanager
def held(file: Location, flow: str, wait_seconds: float, *, seconds: float = SECONDS) -> Iterator[FileLease]:
    """Hold a lease while the block runs.

    Args:
        flow: for messages.
        wait_seconds: how long to wait for another holder.
        seconds: how long it lasts unless it is renewed.
    """
    id_ = uuid4().hex
    lease = FileLease(file, flow, id_, _taken(file, flow, id_, wait_seconds, seconds), seconds)
    try:
        yield lease
    finally:
        lease.release()


def _taken(file: Location, flow: str, id_: str, wait_seconds: float, seconds: float) -> tuple[str, float]:
    """Take a lease. Return the tag of its file, and when the put of it began: others may count from then on."""
    store, started = file.store, time.monotonic()
    while True:
        content, begun = _content(ProcessIdentity.of(), id_), now()
        try:
            seen = store.read(file.key)
        except FileNotFoundError:
            tag = store.put_if_absent(file.key, content)
        else:
            watched, since = _watched.get(file, ("", 0.0))
            if seen.tag != watched:
                # While this host sleeps it watches nobody: here its sleep does not count.
                since = time.monotonic()
                _watched[file] = seen.tag, since
            free = _is_free(seen) or time.monotonic() - since > seconds
            tag = store.compare_and_swap(file.key, content, seen.tag) if free else None
        if tag is not None:
            _watched.pop(file, None)
            return tag, begun
        if time.monotonic() - started >= wait_seconds:
            raise LockedError(flow, str(file), wait_seconds)
        time.sleep(_POLL_SECONDS)


def _content(holder: ProcessIdentity | None, lease: str) -> bytes:
    """Return what the file says; no two are the same, so that a tag is of one put."""
    process = None if holder is None else {**holder.to_json(), "namespace": _namespace()}
    return json.dumps({"host": platform.node(), "process": process, "lease": lease, "put": uuid4().hex}).encode()


def _is_free(seen: Stored) -> bool:
    """Return whether nobody holds it, or a process of this very kernel that has ended."""
    try:
        said: Mapping[str, Any] = json.loads(seen.data)
        process = said["process"]
        if process is None:
            return True
        # Of containers each sees its own processes only.
        here = (boot_id(), _namespace())
        known = here[0] != "" and here == (process["boot"], process["namespace"])
        return known and ProcessIdentity.read(process).process() is None
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError):
        return False


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
