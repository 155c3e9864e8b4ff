"""Errors of a user's Python code in Spark's workers: they name the step, the line that defined it and the row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pipelines.graph import nodes

# A row may hold whole documents; the message is one line that a person reads.
_SHOWN = 500
_MODULE = re.compile(r"[\w.]+")


class LackingModuleError(RuntimeError):
    """User code could not import a module where it ran: by its class it is told apart from what a record says."""

    def __init__(self, module: str, failure: str) -> None:
        self.module = module
        super().__init__(f"{module}: {failure}")


@dataclass(frozen=True)
class Where:
    """A step as messages name it. It travels to the workers."""

    label: str
    at: str

    @classmethod
    def of(cls, node: nodes.Node) -> Where:
        return cls(node.label, str(node.at))

    def failed(self, row: Any, error: BaseException) -> RuntimeError:
        """Return the error of user code that was given `row`.

        `reason_of` shows the line of a worker's trace that starts with `RuntimeError: `, so it is one line.
        """
        return self.error(f"failed on {shown(row)}", error)

    def failed_on_all(self, tuples: list[Any], error: BaseException) -> RuntimeError:
        """Return the error of user code that was given a batch's tuples at once."""
        if len(tuples) == 1:
            return self.failed(tuples[0], error)
        return self.error(f"failed on {len(tuples)} tuples, the first {shown(tuples[0])}", error)

    def unfit(self, row: Any, error: BaseException) -> RuntimeError:
        """Return what user code gave does not fit the output fields' types."""
        return self.error(f"gave {shown(row)}, which does not fit its output fields", error)

    def error(self, what: str, error: BaseException | str) -> RuntimeError:
        known = isinstance(error, RuntimeError) and str(error).startswith(f"{self.label} (defined at")
        if isinstance(error, RuntimeError) and (known or isinstance(error, LackingModuleError)):
            return error
        reason = error if isinstance(error, str) else repr(error)
        failure = f"{self.label} (defined at {self.at}) {what}: {' '.join(reason.split())}"
        # Python's import names the module; an error that user code makes up from a text does not.
        if isinstance(error, ModuleNotFoundError) and _MODULE.fullmatch(error.name or ""):
            return LackingModuleError(str(error.name), failure)
        return RuntimeError(failure)


def shown(row: Any) -> str:
    """Return a row in a message: one line, cut where it is very long."""
    text = " ".join(repr(row).splitlines())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
