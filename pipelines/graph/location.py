"""Where the user wrote something."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


@dataclass(frozen=True)
class CodeLocation:
    """The user's file and line that defined a node."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @classmethod
    def of_caller(cls) -> CodeLocation:
        """The nearest frame outside the engine."""
        frame = sys._getframe(1)
        while (
            frame.f_back is not None
            and frame.f_code.co_filename.startswith(_PACKAGE)
            and "/catalog/" not in frame.f_code.co_filename
        ):
            frame = frame.f_back
        return cls(frame.f_code.co_filename, frame.f_lineno)
