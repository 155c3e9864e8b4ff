"""Errors of the engine as failures of a run: the text that helps, without a stack of frames that does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from assets.events.reporting import Reporter
from pipelines.errors import TrideltaError


@contextmanager
def told_plainly(reporter: Reporter | None = None) -> Iterator[None]:
    """Turn an error of the engine into the run's failure, its text first; a gate's refusal becomes a red check as well.

    Raises:
        Failure: for every TrideltaError of the block.
    """
    try:
        yield
    except TrideltaError as error:
        if reporter is not None:
            reporter.refused(error)
            reporter.log_checks()
        raise dg.Failure(
            description=str(error), metadata={"error": type(error).__name__, "next": error.hint or "see the text"}
        ) from error
