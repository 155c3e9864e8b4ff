"""The place where the user wrote something."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
_PROJECT = str(Path(_PACKAGE).parent) + os.sep
# Flows stand in the catalog too, beside what reads them.
_CATALOG = _PACKAGE + "catalog" + os.sep
_CATALOG_ITSELF = tuple(_CATALOG + name for name in ("__init__.py", "flow.py", "own_code.py", "package.py"))
_NOT_THE_USERS = (
    *(_PROJECT + folder + os.sep for folder in ("pipelines", "assets", "ops", "resources")),
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")),
    "<frozen ",
)


@dataclass(frozen=True)
class CodeLocation:
    """The user's file and line that defined a node."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @classmethod
    def of_caller(cls) -> CodeLocation:
        """Return the nearest frame outside the engine."""
        frame = sys._getframe(1)
        while (
            frame.f_back is not None
            and frame.f_code.co_filename.startswith(_PACKAGE)
            and "/catalog/" not in frame.f_code.co_filename
        ):
            frame = frame.f_back
        return cls(frame.f_code.co_filename, frame.f_lineno)

    @classmethod
    def of_error(cls, error: BaseException) -> CodeLocation | None:
        """Return the line of a flow's own code that an error came through last; None if it came through none."""
        location = None
        for frame, line in walk_tb(error.__traceback__):
            file = frame.f_code.co_filename
            of_a_flow = file.startswith(_CATALOG) and file not in _CATALOG_ITSELF
            if of_a_flow or not file.startswith(_NOT_THE_USERS):
                location = cls(file, line)
        return location
