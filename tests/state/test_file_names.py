"""Names of a table's files: no slice in those of Spark, and what becomes of a table from before that. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipelines.errors import StateSchemaError
from pipelines.state import writer
from pipelines.state.kinds import LOG, TRANSACTIONAL
from tests.state.small_kinds import SmallTable

PROPERTY = "delta.randomizeFilePrefixes"


def made_before(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table as earlier versions made it, with a row."""
    with monkeypatch.context() as patched:
        patched.setattr(writer, "PLAIN_NAMES", {})
        patched.setattr(writer.StateWriter, "name_files_plainly", lambda *_: None)
        state = SmallTable(root, LOG, TRANSACTIONAL)
        state.commit(0, ("a", 1))
    assert PROPERTY not in DeltaTable(str(state.table.path)).metadata().configuration
    return state.table.path


def test_a_table_is_made_with_names_without_slices(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    assert DeltaTable(str(state.table.path)).metadata().configuration[PROPERTY] == "true"
    version = state.table.version()
    assert SmallTable(tmp_path, LOG, TRANSACTIONAL).table.version() == version


def test_a_table_from_before_takes_them_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made_before(tmp_path, monkeypatch)
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    assert DeltaTable(str(path)).metadata().configuration[PROPERTY] == "true"
    state.commit(1, ("a", 2))
    assert state.held() == [("a", 3)]


def test_files_that_could_not_be_removed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made_before(tmp_path, monkeypatch)
    (commit,) = [one for one in (path / "_delta_log").glob("*.json") if '"add"' in one.read_text()]
    text = commit.read_text()
    assert "_slice=" in text
    # As Spark writes it; delta-rs writes the same with percent signs.
    commit.write_text(text.replace("_slice=", "é_slice="))
    with pytest.raises(StateSchemaError, match="names that are not ASCII"):
        SmallTable(tmp_path, LOG, TRANSACTIONAL)
