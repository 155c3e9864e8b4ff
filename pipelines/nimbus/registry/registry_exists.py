"""Whether anything was ever deployed here: a look that opens no database and makes none."""

from __future__ import annotations

from pathlib import Path

SQLITE = "sqlite:///"


def unmade(url: str) -> bool:
    """Whether the registry is a SQLite file that is not there yet.

    Args:
        url: The registry's database.
    """
    return url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE).partition("?")[0]).exists()
