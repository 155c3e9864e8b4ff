"""The Python that this process has imported, and whether it has changed since: what was imported stays as it was."""

from __future__ import annotations

import sys
from pathlib import Path

FileStamp = tuple[int, int] | None
"""A file's time of change and its size; None: it is not there."""


class ImportedCode:
    """The files of the modules that this process has imported, each as it was when it was first seen here."""

    def __init__(self) -> None:
        self._seen: dict[str, FileStamp] = {}

    def look(self) -> None:
        """See what has been imported since the last look."""
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file not in self._seen:
                self._seen[file] = _state(file)

    def has_changed(self) -> bool:
        """Return whether another process would import other code."""
        self.look()
        return any(_state(file) != state for file, state in self._seen.items())


def _state(file: str) -> FileStamp:
    try:
        found = Path(file).stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size
