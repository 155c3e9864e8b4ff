"""Admission of batches: few of an application at a time, in the order in which their queries have asked.

A hundred queries whose batches run side by side on two cores all end late: each has a fiftieth of a core, and what comes
meanwhile waits for one more round. So a query asks for its next turn when a batch has ended, before Spark looks for new rows:
what has come while it waited is in the batch, which then runs quickly. Without a crowd every turn comes at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_STARTING_SECONDS = 0.15
"""So long a turn is kept for a query that has not begun its batch: Spark needs a tenth of a second, or has nothing to read."""
_LONG_SECONDS = 1.0
"""A batch that takes longer no longer keeps others from beginning theirs: Spark shares the cores among their tasks."""
_FRESH_SECONDS = 5.0
"""A query that has had its turn no longer ago begins without another: its rows are chosen already."""
# How often one that waits looks whether a turn has run out, which nobody tells.
_LOOK_SECONDS = 0.25


class Admission:
    """The batches of one application.

    Args:
        batches: how many begin at a time.
        clock: seconds that only grow.
    """

    def __init__(self, batches: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._batches, self._clock, self._lock = batches, clock, threading.Lock()
        self._waiting = deque[_Turn]()
        self._counted: set[_Turn] = set()

    def query(self, gives_up: Callable[[], bool]) -> QueryTurns:
        """Return the turns of a query.

        Args:
            gives_up: whether it is not to wait: it drains.
        """
        return QueryTurns(self, gives_up)

    def take(self, gives_up: Callable[[], bool]) -> _Turn:
        """Wait for a turn; it has not come if the query has given up."""
        turn = _Turn()
        with self._lock:
            self._waiting.append(turn)
            self._give()
        while not turn.came.wait(_LOOK_SECONDS) and not gives_up():
            with self._lock:
                self._give()
        with self._lock:
            if not turn.came.is_set():
                self._waiting.remove(turn)
        return turn

    def begin(self, turn: _Turn) -> bool:
        """Begin a batch. False: the turn is too old, or has not come."""
        with self._lock:
            now = self._clock()
            if not turn.came.is_set() or now - turn.given_at > _FRESH_SECONDS:
                return False
            turn.counts_until = now + _LONG_SECONDS
            self._counted.add(turn)
            return True

    def end(self, turn: _Turn) -> None:
        """Let others have the turn."""
        with self._lock:
            turn.came.clear()
            self._counted.discard(turn)
            self._give()

    def _give(self) -> None:
        now = self._clock()
        self._counted = {turn for turn in self._counted if turn.counts_until > now}
        while self._waiting and len(self._counted) < self._batches:
            turn = self._waiting.popleft()
            turn.given_at, turn.counts_until = now, now + _STARTING_SECONDS
            self._counted.add(turn)
            turn.came.set()


class _Turn:
    """One query's place in the row, and then its batch."""

    def __init__(self) -> None:
        self.came, self.given_at, self.counts_until = threading.Event(), float("-inf"), float("-inf")


class QueryTurns:
    """The turns of one query; each of its batches is between `begin` and `end`."""

    def __init__(self, admission: Admission, gives_up: Callable[[], bool]) -> None:
        self._admission, self._gives_up, self._turn = admission, gives_up, _Turn()

    def begin(self) -> None:
        """Begin a batch, in the turn that the query was given when its last one ended, else in the next."""
        while not self._admission.begin(self._turn) and not self._gives_up():
            self._turn = self._admission.take(self._gives_up)

    def end(self, *, another: bool) -> None:
        """End the batch; then wait for the turn of `another`."""
        self._admission.end(self._turn)
        if another and not self._gives_up():
            self._turn = self._admission.take(self._gives_up)
