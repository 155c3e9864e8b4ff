"""The end of a query that is asked for: between two batches, or in the middle of one, which its next start does once more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pipelines.errors import LockedError, PoisonBatchError
from pipelines.places.lease import LeaseLostError
from pipelines.state.turns import LateWriterError

if TYPE_CHECKING:
    from pipelines.execution.checkpoint.engine_files import Checkpoint

# How often a batch that waits for the commit lock looks whether its query is to end.
_LOOK_SECONDS = 0.5


class Drained(Exception):  # noqa: N818 - not an error: the query is asked to end
    pass


_TOLD_BY_ALL = (Drained, PoisonBatchError, LateWriterError, LeaseLostError)
"""What ends a query by its own name also where it was stopped in mid-batch: verdicts, and that another process has it."""


class Stopping:
    """The end that a query is asked for.

    Attributes:
        draining: with the batch that runs.
        forced: at once. What of a batch is not committed comes again.
    """

    def __init__(self) -> None:
        self.draining, self.forced = threading.Event(), threading.Event()

    def leave_if_forced(self, error: Exception | None = None) -> None:
        """Leave the batch to the next start, where the query is stopped in the middle of it.

        Args:
            error: what has failed, perhaps because of that.

        Raises:
            Drained: it is.
        """
        if self.forced.is_set():
            raise Drained from error

    def is_cut_off(self, error: Exception) -> bool:
        """Return whether a batch failed for the query was stopped: a call whose job that has cut off fails by many names."""
        return self.forced.is_set() and not isinstance(error, _TOLD_BY_ALL)

    @contextmanager
    def committing(self, checkpoint: Checkpoint, wait_seconds: float) -> Iterator[None]:
        """Hold the commit lock; a query that is to end does not wait for whoever has it."""
        until = time.monotonic() + wait_seconds
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(checkpoint.committing(min(_LOOK_SECONDS, wait_seconds)))
                    break
                except LockedError as error:
                    if self.draining.is_set() or self.forced.is_set():
                        raise Drained from None
                    if time.monotonic() >= until:
                        raise LockedError(error.flow, error.path, wait_seconds) from None
            yield
