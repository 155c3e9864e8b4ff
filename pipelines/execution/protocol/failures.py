"""The reason in an error of a batch, and the wait after it."""

from __future__ import annotations

import re

import tenacity

from pipelines.errors import DiskFullError, TrideltaError

_NO_MODULE = re.compile(r"""ModuleNotFoundError(?:: |\(")No module named '([^']+)'""")

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


class MissingModuleError(TrideltaError):
    """A Python worker lacks a module that a function needs: no row is at fault, and none goes to quarantine.

    Attributes:
        flow: the flow.
        module: its name.
    """

    def __init__(self, flow: str, module: str) -> None:
        self.flow, self.module = flow, module
        super().__init__(
            f'flow "{flow}": a Python worker of Spark has no module {module}; the batch was not committed',
            hint="install it where Spark's executors run; a module of flows is sent to them if TRIDELTA_FLOWS names it. "
            "Then run the flow again",
        )


def missing_module(error: BaseException, flow: str) -> MissingModuleError | None:
    """Return a MissingModuleError if that is what the error comes from."""
    found = _NO_MODULE.search(str(error))
    return MissingModuleError(flow, found[1]) if found else None


def disk_full(error: BaseException, path: str, doing: str) -> DiskFullError | None:
    """Return a DiskFullError if that is what the error comes from."""
    seen: BaseException | None = error
    while seen is not None:
        if getattr(seen, "errno", None) == 28 or "No space left on device" in str(seen) or "os error 28" in str(seen):
            return DiskFullError(path, doing)
        seen = seen.__cause__ or seen.__context__
    return None
