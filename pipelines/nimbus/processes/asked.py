"""A worker's wishes of a query that one of its threads runs: to run, to drain, to stop in mid-batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Asked:
    """The wishes of a worker of one of its queries, and since when it has not followed the last one.

    Attributes:
        wanted, unwanted: whether it is to run, or to drain; one of them is set at a time, once a worker has asked.
    """

    def __init__(self) -> None:
        self.wanted, self.unwanted = threading.Event(), threading.Event()
        self._begun, self.forced_at = False, 0.0
        """Whether the query is about to start, or runs; and since when that is to stop in mid-batch (0: it is not)."""
        self._allowed = 0.0
        """So many seconds more it may take to stop there."""
        self._to_drain = False
        """Whether the query that has begun was asked to drain, be it wanted again meanwhile."""

    def want(self, wanted: bool) -> None:
        """Ask it to run, or to drain."""
        (self.unwanted.clear if wanted else self.unwanted.set)()
        (self.wanted.set if wanted else self.wanted.clear)()
        if not wanted:
            # Behind the events: `runs_on` takes it back before it reads them.
            self._to_drain = True

    def force(self) -> None:
        """Ask it to stop in mid-batch, if it is about to start, or runs."""
        if self._begun and not self.forced_at:
            self.forced_at = time.monotonic()

    @property
    def goes_on(self) -> bool:
        """Return whether the query is to start, or to run on."""
        return self.wanted.is_set() and not self.forced_at

    def runs_on(self) -> bool:
        """Return whether a query that is up is to run on. One that comes here, and is, has nothing to drain for any more."""
        self._to_drain = False
        return self.goes_on

    @property
    def drains(self) -> bool:
        """Return whether it was asked to drain, and has neither ended since nor come to see that it is wanted again."""
        return self._begun and self._to_drain

    @property
    def stopping_seconds(self) -> float:
        """Return for how long it has been asked to stop in mid-batch, or in its start; 0: it was not, or it has ended."""
        # In the order against that in which its own thread writes them.
        allowed, since = self._allowed, self.forced_at
        return max(0.0, time.monotonic() - since - allowed) if self._begun and since else 0.0

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Have the query start, run and end in the body. A stop that was meant for one before is none of this one."""
        self.forced_at = 0.0
        self._to_drain = not self.wanted.is_set()
        self._begun = True
        try:
            yield
        finally:
            # Who reads it beside a start that comes later would take that for one that does not stop.
            self._begun = False
            self.forced_at = 0.0

    @contextmanager
    def longer(self, seconds: float) -> Iterator[None]:
        """Have so much longer to stop than a start has. What comes behind it begins to count there."""
        self._allowed = seconds
        try:
            yield
        finally:
            if self.forced_at:
                self.forced_at = time.monotonic()
            self._allowed = 0.0
