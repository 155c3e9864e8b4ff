"""`verify`: a table holds what its batches committed, or the report names the batch (architecture.md#batch-protocol)."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.verify import DIFFERS, HOLDS, NOT_CHECKED, VerifyReport, verify
from pipelines.maintenance import compact
from pipelines.sources import FixedBatches
from pipelines.trident import Count, DeltaState, TridentTopology

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
