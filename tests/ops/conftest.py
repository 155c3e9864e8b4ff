from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the command line's own, and a terminal wide enough for its tables."""
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path
