"""Compaction of a flow with several batch groups, one far behind the others, or left by a stream that is no more. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.maintenance import compact, compaction, folding
from pipelines.maintenance.clustering import recluster
from pipelines.maintenance.plan import Closed, parts_of
from pipelines.places.location import on_disk
from pipelines.state import record
from pipelines.state.kinds import ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from tests.maintenance.test_quarantine_retention import Refused
from tests.state.small_kinds import FLOW, SmallTable

FAST, SLOW = 59, 2


@pytest.fixture(autouse=True)
def small_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "GENERATION", 4)
    monkeypatch.setattr(compaction, "GENERATION", 4)


def checkpoint_at(lake: Lake, group: str, batch: int | None) -> Checkpoint:
    """The checkpoint of a query that has finished a batch, or that has only made its folder."""
    checkpoint = Checkpoint(FLOW, lake.checkpoint_path(FLOW, group))
    on_disk(checkpoint.folder).mkdir(parents=True)
    if batch is None:
        return checkpoint
    for file, text in (("metadata", "{}"), (f"offsets/{batch}", "v1\n{}\n{}"), (f"commits/{batch}", "v1\n{}")):
        (on_disk(checkpoint.spark) / file).parent.mkdir(parents=True, exist_ok=True)
        (on_disk(checkpoint.spark) / file).write_text(text)
    checkpoint.begin(Epoch(1, 0))
    return checkpoint


def rows_behind(root: Path) -> SmallTable:
    state = SmallTable(root, ROWS, TRANSACTIONAL)
    for txid in range(FAST + 1):
        state.commit(txid, (f"k{txid}", txid))
    checkpoint_at(Lake(root), "fast", FAST)
    checkpoint_at(Lake(root), "slow", SLOW)
    return state


def generations(table: Path) -> dict[int, int]:
    """The files of each generation."""
    return {part.gen: part.files for part in parts_of(DeltaTable(str(table)))}


def test_rows_are_merged_however_far_behind_another_group_is(tmp_path: Path) -> None:
    state = rows_behind(tmp_path)
    held = state.held()
    (report,) = compact(None, Lake(tmp_path), FLOW).tables
    assert (report.before.files, report.after.files) == (60, 15)
    assert state.held() == held


def test_rows_are_sorted_however_far_behind_another_group_is(tmp_path: Path) -> None:
    state = rows_behind(tmp_path)
    held = state.held()
    report = recluster(None, Lake(tmp_path), "counts", ["n"])
    assert (report.table.before.files, report.table.after.files) == (60, 15)
    assert state.held() == held


@pytest.mark.parametrize(
    ("slow", "kept", "below"),
    [
        pytest.param(SLOW, {0: 4, 14: 4}, 0, id="in the first generation"),
        pytest.param(9, {2: 4, 14: 4}, 2, id="in a later one"),
        pytest.param(None, {0: 4, 14: 4}, 0, id="has no batch yet"),
    ],
)
def test_of_quarantine_what_any_group_may_come_to_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int | None, kept: dict[int, int], below: int
) -> None:
    refused = Refused(tmp_path)
    for txid in range(FAST + 1):
        refused.batch(txid, 0)
    checkpoint_at(refused.lake, "fast", FAST)
    checkpoint_at(refused.lake, "slow", slow)
    held, asked = refused.held(), list[Closed]()

    def merge(*args: object, sealed: Closed) -> int:
        asked.append(sealed)
        return folding.merge(*args, sealed=sealed)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction, "merge", merge)
    compact(None, refused.lake, FLOW, open_generations=1)
    assert generations(on_disk(refused.table.path)) == {gen: kept.get(gen, 1) for gen in range(15)}
    assert refused.held() == held
    assert [sealed.settled for sealed in asked] == [below], "Spark replaces nothing that a batch may come to meanwhile"
    compact(None, refused.lake, FLOW)
    assert set(generations(on_disk(refused.table.path)).values()) == {1}, "nobody commits: the locks are held"
    assert refused.held() == held
