"""Reads of versions whose data files a VACUUM from outside has deleted. No Spark here."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipelines.errors import ReadPointError
from pipelines.state.damage import DamagedTableError
from pipelines.state.lake import Lake
from pipelines.state.table import StateTable
from tests.maintenance.small_state import STATE, SmallState


@pytest.fixture
def table(tmp_path: Path) -> StateTable:
    """Three batches, whose files were put together."""
    state = SmallState(tmp_path)
    for txid in range(3):
        state.batch([("d1", "a", 1, txid)])
    DeltaTable(str(state.table.path)).optimize.compact()
    return Lake(tmp_path).state(STATE)


def vacuum(table: StateTable) -> None:
    DeltaTable(str(table.path)).vacuum(0, dry_run=False, enforce_retention_duration=False)


def test_a_version_without_its_files_is_too_old(table: StateTable) -> None:
    vacuum(table)
    for read in (
        lambda: table.scan(txid=0),
        lambda: table.get([{"key": "a", "part": 1}], txid=1),
        lambda: table.scan(version=1),
        lambda: table.view(1).multi_get([("a", 1)]),
    ):
        with pytest.raises(ReadPointError, match="it is too old: a VACUUM has deleted data files of it since"):
            read()
    assert table.scan(txid=2).num_rows == 1


def test_a_file_that_is_gone_otherwise_is_damage(table: StateTable) -> None:
    files = [Path(file) for file in DeltaTable(str(table.path), version=1).file_uris()]
    files[0].unlink()
    with pytest.raises(DamagedTableError, match="it is missing"):
        table.scan(txid=0)
    vacuum(table)
    (last,) = DeltaTable(str(table.path)).file_uris()
    Path(last).unlink()
    with pytest.raises(DamagedTableError, match="it is missing"):
        table.scan()
