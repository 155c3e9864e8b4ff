"""One roll-up, and what it stands for lies in its generation or before: reads count each row once. No Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipelines.maintenance import compact
from pipelines.maintenance.clustering import recluster
from pipelines.maintenance.plan import Closed, Part, plan_fold
from pipelines.state.commits import properties
from pipelines.state.lake import Lake
from pipelines.state.record import COMPACTION, BatchRecord
from pipelines.state.schema import GEN, ROLL_UP, SLICE_COLUMN
from tests.maintenance.small_state import FLOW, STATE, SmallState


@pytest.fixture
def state(tmp_path: Path) -> SmallState:
    """Three slices in generations 0 and 2, and a roll-up of all of them in generation 1."""
    state = SmallState(tmp_path)
    state.batch([("d1", "a", 0, 1)])
    state.batch([("d2", "a", 0, 1)])
    state.batch([("d3", "a", 0, 1)], gap=128)
    compact(None, state.lake, FLOW)
    assert roll_ups(state) == [1]
    return state


def roll_ups(state: SmallState) -> list[int]:
    parts = DeltaTable(str(state.table.path)).partitions()
    return sorted(int(part[GEN]) for part in parts if part[SLICE_COLUMN] == ROLL_UP)


@pytest.mark.parametrize("open_generations", [1, 2, 3])
def test_a_compaction_of_fewer_generations_leaves_the_roll_up(state: SmallState, open_generations: int) -> None:
    compact(None, state.lake, FLOW, open_generations=open_generations)
    assert roll_ups(state) == [1]
    assert state.scanned() == state.got() == state.expected()
    state.batch([("d3", "a", 0, 1)], gap=64)
    compact(None, state.lake, FLOW)
    assert state.scanned() == state.got() == state.expected()


@pytest.mark.parametrize("open_generations", [1, 2])
def test_another_order_of_fewer_generations_leaves_the_roll_up(state: SmallState, open_generations: int) -> None:
    recluster(None, state.lake, STATE, ["part"], open_generations=open_generations)
    assert roll_ups(state) == [1]
    assert state.scanned() == state.got() == state.expected()


def test_of_several_roll_ups_the_highest_counts(state: SmallState) -> None:
    """Compactions of earlier releases may have left a lower one; the next roll-up removes it."""
    opened = DeltaTable(str(state.table.path))
    lower = state.table.stored(f"{SLICE_COLUMN} = '{ROLL_UP}'")
    lower = lower.set_column(lower.schema.names.index(GEN), GEN, pa.array([0] * lower.num_rows, pa.int64()))
    record = BatchRecord(kind=COMPACTION, flow=FLOW, epoch=1, txid=state.txid)
    write_deltalake(opened, lower, mode="append", commit_properties=properties(record))
    assert roll_ups(state) == [0, 1]
    assert state.scanned() == state.got() == state.expected()
    state.batch([("d3", "a", 0, 1)], gap=64)
    assert state.scanned() == state.got() == state.expected()
    compact(None, state.lake, FLOW)
    assert roll_ups(state) == [2]
    fresh = Lake(state.lake.root).state(STATE)
    assert fresh.scan().to_pylist() == state.scanned() == state.expected()


def test_no_second_roll_up_is_planned_below_the_first() -> None:
    parts = [Part("a", 0, 1, 10, 2), Part("b", 0, 1, 10, 1), Part(ROLL_UP, 1, 1, 10, 2)]
    plan = plan_fold(parts, Closed(1, 0))
    assert (plan.slices, plan.rolls_up) == ((), False)
    plan = plan_fold([*parts, Part("a", -1, 1, 10, 1)], Closed(1, 0), rewrite_all=True)
    assert (plan.slices, plan.rolls_up) == (("a", "b"), False)


@pytest.mark.parametrize("open_generations", [1, 0])
def test_a_loose_slice_that_the_roll_up_covers_is_not_folded_above_it(tmp_path: Path, open_generations: int) -> None:
    state = SmallState(tmp_path)
    state.batch([("d1", key, 0, 1) for key in "abcdef"])
    state.batch([("d2", "a", 0, 1)])
    state.batch([], gap=64)
    compact(None, state.lake, FLOW, open_generations=1)
    assert roll_ups(state) == [0]
    state.in_many_files("d1", 0)
    assert state.scanned() == state.expected()
    # Generations without rows of this state.
    state.batch([], gap=64)
    state.batch([], gap=64)
    for _ in range(2):
        compact(None, state.lake, FLOW, open_generations=open_generations)
        assert state.scanned() == state.got() == state.expected()
    assert len(DeltaTable(str(state.table.path)).file_uris()) == 3


def test_covered_slices_are_planned_into_the_roll_ups_generation() -> None:
    parts = [Part("a", 0, 5, 10, 5), Part("b", 0, 1, 10, 1), Part(ROLL_UP, 0, 1, 10, 2)]
    plan = plan_fold(parts, Closed(3, 2))
    assert (plan.slices, plan.rolls_up, plan.closed) == (("a",), False, Closed(3, 0))
    plan = plan_fold([*parts, Part("b", 1, 1, 10, 1)], Closed(3, 2))
    assert (plan.slices, plan.rolls_up, plan.closed) == (("a", "b"), True, Closed(3, 2))
