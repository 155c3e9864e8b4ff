"""The reason in an error of a batch, and the wait after it."""

from __future__ import annotations

import re

import tenacity

from pipelines.errors import DiskFullError

# Attempts wait 0.5, 1, 2 ... seconds, at most 30: long enough for a passing fault, short beside a batch's trigger.
_BACK_OFF = tenacity.wait_exponential(multiplier=0.5, max=30)


def back_off(tries: int) -> float:
    """Return seconds to wait behind so many tries."""
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.attempt_number = tries
    return _BACK_OFF(state)


def reason_of(error: BaseException) -> str:
    """Return one line of an error: for Python errors in a worker the user's own, for Spark's the first line."""
    text = str(error) or repr(error)
    for line in text.splitlines():
        if line.startswith("RuntimeError: "):
            return line.removeprefix("RuntimeError: ").strip()
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", text.strip().splitlines()[0])


def disk_full(error: BaseException, path: str, doing: str) -> DiskFullError | None:
    """Return a DiskFullError if that is what the error comes from."""
    seen: BaseException | None = error
    while seen is not None:
        if getattr(seen, "errno", None) == 28 or "No space left on device" in str(seen) or "os error 28" in str(seen):
            return DiskFullError(path, doing)
        seen = seen.__cause__ or seen.__context__
    return None
