"""`verify`: a table holds what its batches committed, or the report names the batch (architecture.md#batch-protocol)."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.verify import (
    BY_COUNT,
    DIFFERS,
    HOLDS,
    NOT_CHECKED,
    VerifyReport,
    _Commits,
    _Held,
    _since_reset,
    verify,
)
from pipelines.maintenance import compact
from pipelines.sources import FixedBatches
from pipelines.trident import Count, DeltaState, TridentTopology
from tests.maintenance.small_state import FLOW, SmallState

DAYS = "day string, v bigint"
BATCHES = [[("d1", 1), ("d1", 2), ("d2", 3)], [("d2", 4)], [("d3", 5), ("d3", 5)]]


def topology() -> TridentTopology:
    found = TridentTopology("verified")
    stream = found.new_stream("s", FixedBatches(DAYS, BATCHES), slice_by="day")
    stream.partition_persist(DeltaState("all_rows"))
    stream.group_by("day").persistent_aggregate(DeltaState("days"), Count(), "n")
    return found


def verdicts(report: VerifyReport) -> list[tuple[str, int, str | None, str]]:
    found = [(one.state, one.txid, one.slice, one.verdict) for one in report.findings]
    return sorted(found, key=lambda one: (one[0], one[1], one[2] or ""))


@pytest.mark.slow
def test_untouched_tables_hold(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(topology())
    report = verify(spark, lake, topology())
    assert verdicts(report) == [(state, txid, None, HOLDS) for state in ("all_rows", "days") for txid in range(3)]
    assert [one.rows for one in report.findings if one.state == "all_rows"] == [3, 1, 2]


@pytest.mark.slow
def test_changed_and_lost_rows_are_found(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(topology())
    table = DeltaTable(str(lake.state_path("all_rows")))
    table.update(updates={"v": "7"}, predicate="v = 4")
    table.delete("v = 3")
    report = verify(spark, lake, topology())
    assert [(one.state, one.txid) for one in report.differing] == [("all_rows", 0), ("all_rows", 1)]
    assert "it wrote 3 rows, the table holds 2" in report.differing[0].reason
    assert "their hashes differ" in report.differing[1].reason


@pytest.mark.exhaustive
@pytest.mark.slow
def test_after_a_backfill_the_slice_is_verified_and_a_batch_that_lost_rows_to_it_is_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake)
    runtime.catch_up(topology())
    runtime.backfill(topology(), ["d2"])
    report = verify(spark, lake, topology())
    of_rows = [one for one in verdicts(report) if one[0] == "all_rows"]
    assert of_rows == [
        ("all_rows", 0, None, NOT_CHECKED),
        ("all_rows", 1, None, NOT_CHECKED),
        ("all_rows", 2, None, HOLDS),
        ("all_rows", 2, "d2", HOLDS),
    ]
    assert not report.differing
    DeltaTable(str(lake.state_path("all_rows"))).delete("v = 4")
    assert [one.slice for one in verify(spark, lake, topology()).differing] == ["d2"]


@pytest.mark.slow
def test_what_compaction_has_folded_is_said(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(topology())
    compact(spark, lake, topology(), open_generations=0)
    report = verify(spark, lake, topology())
    assert {one.verdict for one in report.findings if one.state == "days"} == {NOT_CHECKED}
    assert {one.verdict for one in report.findings if one.state == "all_rows"} == {HOLDS}
    assert report.differing[:1] == ()
    assert DIFFERS not in {one.verdict for one in report.findings}


@pytest.mark.slow
def test_a_backfill_before_the_first_batch_is_verified(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).backfill(topology(), ["d2"])
    assert verdicts(verify(spark, lake, topology())) == [(state, -1, "d2", HOLDS) for state in ("all_rows", "days")]
    DeltaTable(str(lake.state_path("all_rows"))).delete("v = 4")
    assert [(one.state, one.slice) for one in verify(spark, lake, topology()).differing] == [("all_rows", "d2")]


def of_slices(state: SmallState, held: dict[tuple[int, str], _Held]) -> list[tuple[str | None, str]]:
    found = _Commits(state.table, _since_reset(state.table.commits.counting()), held).findings()
    return [(one.slice, one.verdict) for one in found if one.slice is not None]


def test_a_slice_is_folded_by_a_later_compaction_alone(tmp_path: Path) -> None:
    state = SmallState(tmp_path)
    state.replace("d1", [("d1", "a", 0, 1)], claims=("file:/1",))
    held = {(-1, "d1"): _Held(1)}
    assert of_slices(state, held) == [("d1", BY_COUNT)]
    assert of_slices(state, {}) == [("d1", DIFFERS)]
    # A compaction that folds nothing.
    compact(None, state.lake, FLOW)
    assert of_slices(state, {}) == [("d1", DIFFERS)]
    state.batch([("d1", "a", 0, 1)])
    state.batch([("d2", "a", 0, 1)], gap=64)
    assert of_slices(state, held) == [("d1", BY_COUNT)]
    compact(None, state.lake, FLOW)
    assert of_slices(state, held) == [("d1", NOT_CHECKED)]
    # Behind the same batch as the compaction.
    state.replace("d1", [("d1", "a", 0, 1)], claims=("file:/1",))
    assert of_slices(state, held) == [("d1", BY_COUNT)]
    assert of_slices(state, {}) == [("d1", DIFFERS)]


def test_a_slice_before_the_first_batch_is_folded_while_that_batch_is_open(tmp_path: Path) -> None:
    state = SmallState(tmp_path)
    state.replace("d1", [("d1", "a", 0, 1)], claims=("file:/1",))
    state.replace("d2", [("d2", "a", 0, 1)], claims=("file:/2",))
    state.batch([("d1", "a", 0, 1)])
    # A roll-up of both slices.
    compact(None, state.lake, FLOW, open_generations=1)
    assert of_slices(state, {(-1, "d1"): _Held(1)}) == [("d1", NOT_CHECKED), ("d2", NOT_CHECKED)]
