"""Compaction of a flow with several batch groups, one far behind the others, or left by a stream that is no more. No Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipelines.execution.checkpoint.belonging import Belonging, CheckpointBehindError
from pipelines.execution.checkpoint.engine_files import MARKER, Checkpoint, Epoch
from pipelines.maintenance import compact, compaction, folding
from pipelines.maintenance.clustering import recluster
from pipelines.maintenance.compaction import KEPT
from pipelines.maintenance.plan import Closed, parts_of
from pipelines.places.location import on_disk
from pipelines.sources import FixedBatches
from pipelines.state import record
from pipelines.state.kinds import ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.trident import DeltaState, TridentTopology
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


def renamed(root: Path) -> tuple[SmallTable, Checkpoint]:
    """A state whose stream was renamed: its new query has begun epoch 2, and the folder of the former one is still there."""
    state = SmallTable(root, ROWS, TRANSACTIONAL)
    lake, old, new = Lake(root), checkpoint_at(Lake(root), "fast", SLOW), checkpoint_at(Lake(root), "slow", SLOW)
    for txid in range(SLOW + 1):
        state.commit(txid, (f"k{txid}", txid))
    Belonging(old, lake).note([state.table])
    new.begin(Epoch(2, SLOW + 1))
    for txid in range(SLOW + 1, 2 * SLOW + 2):
        state.commit(txid, (f"k{txid}", txid), epoch=2)
    Belonging(new, lake).note([state.table])
    return state, old


def flow_with(stream: str) -> TridentTopology:
    topology = TridentTopology(FLOW)
    topology.new_stream(stream, FixedBatches("word string", [])).partition_persist(DeltaState("counts"))
    return topology


@pytest.mark.parametrize("by_name", [True, False])
def test_a_checkpoint_that_a_renamed_stream_has_left_does_not_stop_a_compaction(tmp_path: Path, by_name: bool) -> None:
    state, old = renamed(tmp_path)
    with pytest.raises(CheckpointBehindError):
        Belonging(old, Lake(tmp_path)).check()
    held = state.held()
    flow = FLOW if by_name else flow_with("slow")
    (report,) = compact(None, Lake(tmp_path), flow).tables
    assert report.before.files > report.after.files
    assert state.held() == held


def test_an_older_checkpoint_of_a_stream_that_the_flow_has_still_stops_it(tmp_path: Path) -> None:
    renamed(tmp_path)
    with pytest.raises(CheckpointBehindError):
        compact(None, Lake(tmp_path), flow_with("fast"))


@pytest.mark.parametrize("by_name", [True, False])
def test_beside_a_half_made_checkpoint_of_a_former_stream_nothing_goes(tmp_path: Path, by_name: bool) -> None:
    state, old = renamed(tmp_path)
    (on_disk(old.folder) / MARKER).write_text("{}")
    held = state.held()
    flow = FLOW if by_name else flow_with("slow")
    keep = replace(KEPT, state_hours=0.0)
    (report,) = compact(None, Lake(tmp_path), flow, keep).tables
    assert (report.files_removed, report.before.files > report.after.files) == (0, True)
    assert state.held() == held
