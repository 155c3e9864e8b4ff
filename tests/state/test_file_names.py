"""Names of a table's files: no slice in those of Spark, and what becomes of a table from before that. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipelines.errors import LockedError, StateSchemaError
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.maintenance import Retention, compact
from pipelines.maintenance.compaction import _Compaction
from pipelines.state import writer
from pipelines.state.kinds import LOG, ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from tests.state.small_kinds import FLOW, SmallTable

PROPERTY = "delta.randomizeFilePrefixes"


def made_before(root: Path, monkeypatch: pytest.MonkeyPatch, layout: str = LOG) -> Path:
    """A table as earlier versions made it, with a row."""
    with monkeypatch.context() as patched:
        patched.setattr(writer, "PLAIN_NAMES", {})
        patched.setattr(writer.StateWriter, "name_files_plainly", lambda *_: None)
        state = SmallTable(root, layout, TRANSACTIONAL)
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
    before = DeltaTable(str(path)).version()
    for _ in ("the next start", "a compaction ahead of it"):
        with pytest.raises(StateSchemaError, match="names that are not ASCII"):
            SmallTable(tmp_path, LOG, TRANSACTIONAL)
        with pytest.raises(StateSchemaError, match="names that are not ASCII"):
            compact(None, Lake(tmp_path), FLOW)
    assert DeltaTable(str(path)).version() == before


@pytest.mark.parametrize("layout", [LOG, ROWS])
def test_a_compaction_ahead_of_the_next_start_has_spark_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """Spark would write its files under names of slices, and then no start would take the table."""
    path, seen = made_before(tmp_path, monkeypatch, layout), list[str | None]()
    rewrite = _Compaction._rewrite

    def rewritten(self: _Compaction, *given: Any) -> Any:
        seen.append(DeltaTable(str(path)).metadata().configuration.get(PROPERTY))
        return rewrite(self, *given)

    monkeypatch.setattr(_Compaction, "_rewrite", rewritten)
    group = Checkpoint(FLOW, Lake(tmp_path).checkpoint_path(FLOW, "s"))
    with group.committing(0), pytest.raises(LockedError):  # a change of properties and a batch refuse each other
        compact(None, Lake(tmp_path), FLOW, Retention(wait_seconds=0.0), open_generations=1)
    assert seen == []
    for _ in range(2):
        compact(None, Lake(tmp_path), FLOW)
    assert seen == ["true", "true"]
    operations = [commit.operation for commit in Lake(tmp_path).state("counts").history()]
    assert operations.count("SET TBLPROPERTIES") == 1
    state = SmallTable(tmp_path, layout, TRANSACTIONAL)
    state.commit(1, ("a", 2))
    assert sum(n for _, n in state.held()) == 3
