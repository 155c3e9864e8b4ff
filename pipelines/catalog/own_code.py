"""Report what fails in the code of a flow's author with its line, not with the traceback that led there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from pipelines.errors import DefinitionError, TrideltaError
from pipelines.graph.location import CodeLocation

FUNCTIONS = ()


class FlowCodeError(DefinitionError):
    """Code of a flow's author raised an error of Python's while the flow was loaded; `at` is the line, where one is known."""

    def __init__(self, what: str, raised: str, at: object = None) -> None:
        self.what, self.raised, self.at = what, raised, at
        place = f" at {at}" if at else ""
        super().__init__(
            f"{what} raised {raised}{place}", hint="correct that line; tridelta plan FLOW shows whether it is right"
        )


@contextmanager
def own_code(what: str) -> Iterator[None]:
    """Turn errors of a flow's author's code into one of the engine's.

    Args:
        what: Whose it is and what it was doing, for the error: `flow "orders": its build function`.

    Raises:
        FlowCodeError: in place of whatever is no error of the engine's.
    """
    try:
        yield
    except TrideltaError:
        raise
    except SyntaxError as error:
        place = CodeLocation(error.filename or "?", error.lineno or 0)
        raise FlowCodeError(what, f"{type(error).__name__}: {error.msg}", place) from error
    except (Exception, SystemExit) as error:
        # A module that exits would end the command, or Dagster's code location, without a word.
        raise FlowCodeError(what, f"{type(error).__name__}: {error}", CodeLocation.of_error(error)) from error


def imported(module: str, named: str) -> ModuleType:
    """Return the module of a flow's author.

    Args:
        named: Who names it, for the error: `TRIDELTA_FLOWS`.
    """
    if module not in sys.modules:
        # A file that has come since somebody looked for it is to be found.
        importlib.invalidate_caches()
    with own_code(f"{named} names {module}, which"):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            hint = "the module must be importable: install its package, or put its folder on PYTHONPATH"
            raise DefinitionError(f"{named} names {module}, which cannot be imported: {error}", hint=hint) from error
