"""A RESTORE to a time: Spark writes it down without the zone that it was meant in. No Spark here."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipelines.state.delta_log import commit_file, versions_alike
from pipelines.state.lake import Lake
from pipelines.state.table import StateTable
from tests.maintenance.small_state import STATE, SmallState

HOUR = timedelta(hours=1)
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def rewritten(state: SmallState, version: int, **changed: object) -> None:
    """A commit that says something else of itself."""
    file = commit_file(state.table.path, version)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"] |= changed
    # As delta-rs ends it.
    file.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))


def restored(root: Path, hours: int, back_to: int, text: datetime) -> StateTable:
    """Batches 0 to 3, an hour after the other from noon on; then a RESTORE by Spark, `hours` after noon."""
    state = SmallState(root)
    for txid in range(4):
        state.batch([("d1", "a", 1, txid)])
    DeltaTable(str(state.table.path)).restore(back_to)
    for version in range(5):
        rewritten(state, version, timestamp=int((NOON + (version - 1) * HOUR).timestamp() * 1000))
    said = {"version": None, "timestamp": text.replace(tzinfo=None).isoformat(" ")}
    when = int((NOON + hours * HOUR).timestamp() * 1000)
    rewritten(state, 5, timestamp=when, operationParameters=said, engineInfo="Apache-Spark")
    return Lake(root).state(STATE)


@pytest.mark.parametrize("zone", [-8, 0, 1, 2, 9])
@pytest.mark.parametrize("back_to", [1, 2, 3])
def test_it_went_back_to_the_version_whose_files_the_table_has(tmp_path: Path, zone: int, back_to: int) -> None:
    meant = NOON + (back_to - 1) * HOUR + timedelta(minutes=20)
    table = restored(tmp_path, 6, back_to, meant.astimezone(timezone(zone * HOUR)))
    assert [commit.txid for commit in table.commits.batches()] == list(range(back_to))
    assert table.commits.undone(1) == set(range(back_to, 4))
    assert [row["count"] for row in table.scan(txid=back_to - 1).to_pylist()] == [back_to]


def test_where_nothing_is_like_it_no_batch_is_known_to_count(tmp_path: Path) -> None:
    table = restored(tmp_path, 6, 2, NOON + HOUR)
    for version in (0, 1, 2):
        commit_file(table.path, version).unlink()
    assert Lake(tmp_path).state(STATE).commits.batches() == []


def test_versions_alike(tmp_path: Path) -> None:
    state = SmallState(tmp_path)
    for txid in range(3):
        state.batch([("d1", "a", 1, txid)])
    path = state.table.path
    assert list(versions_alike(path, 3)) == []
    DeltaTable(str(path)).restore(2)
    assert list(versions_alike(path, 4)) == [2]
    DeltaTable(str(path)).restore(1)
    state.replace("d1", [])
    DeltaTable(str(path)).restore(2)
    assert list(versions_alike(path, DeltaTable(str(path)).version())) == [4, 2]
