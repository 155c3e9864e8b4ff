"""Queries whose number of partitions changes between two runs: windows are unaffected (docs/architecture.md#maintenance)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import DefinitionError, LockedError, TrideltaError
from pipelines.execution import runtime
from pipelines.execution.batch.stream_batch import StreamBatch
from pipelines.execution.checkpoint.copy import MARKER
from pipelines.execution.verify import verify
from pipelines.flowmix.compile import as_topology
from pipelines.maintenance import compact
from pipelines.maintenance.rebalance import window_spread
from pipelines.maintenance.repartition import RepartitionRefusedError, UnfinishedBatchError, partitions_of, repartition
from pipelines.windows import BUCKETS
from tests.maintenance.repartition_case import (
    COUNTED,
    SOURCE,
    TIMED,
    changed,
    checkpoint,
    contents,
    flow,
    run,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
GROUPS = (SOURCE, COUNTED, TIMED)


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[object, ...]]]:
    lake = Lake(tmp_path_factory.mktemp("undisturbed"))
    Runtime(spark, lake).catch_up(flow())
    found = contents(lake)
    assert all(len(rows) > 50 for rows in found.values())
    return found


@pytest.fixture
def begun(spark: SparkSession, tmp_path: Path) -> Lake:
    """A lake whose flow has run four of its twelve batches."""
    lake = Lake(tmp_path)
    run(spark, lake, max_batches=4)
    return lake


@pytest.mark.exhaustive
def test_two_to_five_to_three_and_back(
    spark: SparkSession, tmp_path: Path, undisturbed: dict[str, list[tuple[object, ...]]]
) -> None:
    lake = Lake(tmp_path)
    run(spark, lake, max_batches=2, partitions=2)
    for partitions in (5, 3, 5, 1):
        for group in GROUPS:
            report = changed(spark, lake, group, partitions)
            assert (report.after, report.rolled_back) == (partitions, False), report.reason
            assert report.before != partitions
            assert report.stateful == (group != SOURCE)
            if report.stateful:
                assert report.rows["0/default/windows"] > 0
                assert report.rows["0/default/clocks"] == 32
                assert report.largest["0/default/clocks"] >= 32 / partitions
        run(spark, lake, max_batches=2)
        assert [partitions_of(checkpoint(lake, group)) for group in GROUPS] == [partitions] * 3
    run(spark, lake)
    assert contents(lake) == undisturbed


@pytest.mark.exhaustive
def test_txids_have_a_gap_and_all_else_goes_on(
    spark: SparkSession, begun: Lake, undisturbed: dict[str, list[tuple[object, ...]]]
) -> None:
    before = begun.state("sums").last_txid()
    assert before is not None
    report = changed(spark, begun, COUNTED, 5)
    assert report.batch == before + 1
    run(spark, begun)
    txids = [one.txid for one in begun.state("sums").commits.batches() if one.txid is not None]
    assert before + 1 not in txids
    assert txids == sorted(set(txids))
    assert begun.state("sums").scan(txid=before + 1) == begun.state("sums").scan(txid=before)
    assert not verify(spark, begun, as_topology(flow())).differing
    compact(spark, begun, "scaled", retention_hours=0)
    assert contents(begun) == undisturbed
    run(spark, begun)
    assert contents(begun) == undisturbed


@pytest.mark.exhaustive
def test_a_planned_batch_that_was_not_begun_is_left_out_and_its_rows_come_later(
    spark: SparkSession,
    begun: Lake,
    undisturbed: dict[str, list[tuple[object, ...]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with checkpoint(begun, COUNTED).running(5), pytest.raises(LockedError):
        Runtime(spark, begun, lock_wait_seconds=0).catch_up(flow(), max_batches=2)  # the source alone
    assert checkpoint(begun, SOURCE).finished_batches() > 4
    # Each query stops at the first batch that Spark has planned, as one that is drained in that moment.
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "required", lambda what, limit, given: given)
        run(spark, begun, max_batches=0)
    own = checkpoint(begun, COUNTED)
    assert own.last_batch() == own.finished_batches()
    report = changed(spark, begun, COUNTED, 5)
    assert report.after == 5
    run(spark, begun)
    assert contents(begun) == undisturbed


@pytest.mark.exhaustive
def test_a_batch_that_was_begun_must_be_finished_first(
    spark: SparkSession,
    begun: Lake,
    undisturbed: dict[str, list[tuple[object, ...]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut_off(self: StreamBatch, batch: object, sources: object, position: object) -> None:
        if self._group.name == COUNTED:
            raise KeyboardInterrupt
        return whole(self, batch, sources, position)  # type: ignore[arg-type, return-value]

    whole = StreamBatch.run
    with monkeypatch.context() as patched:
        patched.setattr(StreamBatch, "run", cut_off)
        with pytest.raises(KeyboardInterrupt):
            run(spark, begun, max_batches=2)
    own = checkpoint(begun, COUNTED)
    files = sorted(own.spark.rglob("*"))
    with pytest.raises(UnfinishedBatchError) as refused:
        changed(spark, begun, COUNTED, 5)
    assert refused.value.batch == own.last_batch() == own.finished_batches()
    assert sorted(own.spark.rglob("*")) == files
    run(spark, begun, max_batches=1)
    assert changed(spark, begun, COUNTED, 5).after == 5
    run(spark, begun)
    assert contents(begun) == undisturbed


@pytest.mark.exhaustive
def test_what_cannot_be_is_refused_and_changes_nothing(spark: SparkSession, begun: Lake) -> None:
    own = checkpoint(begun, COUNTED)
    before = sorted(begun.root.rglob("*"))
    with pytest.raises(RepartitionRefusedError, match="32 buckets"):
        changed(spark, begun, COUNTED, 33)
    with pytest.raises(RepartitionRefusedError, match="at least one"):
        changed(spark, begun, COUNTED, 0)
    with pytest.raises(TrideltaError, match="nobody holds"):
        repartition(spark, own, 5, copies=begun.root / "copies")
    with pytest.raises(DefinitionError, match="did you mean"):
        run(spark, begun, partitions={"readings__3": 5})
    assert sorted(begun.root.rglob("*")) == before


@pytest.mark.exhaustive
def test_without_state_the_number_counts_from_the_next_run_on(spark: SparkSession, begun: Lake) -> None:
    own = checkpoint(begun, SOURCE)
    assert partitions_of(own) == 2
    seen = _shuffles_of(spark, begun, SOURCE)
    assert seen == {"2"}
    report = changed(spark, begun, SOURCE, 40)
    assert (report.before, report.after, report.stateful, report.copy) == (2, 40, False, None)
    assert partitions_of(own) == 40
    assert _shuffles_of(spark, begun, SOURCE) == {"40"}
    assert partitions_of(own) == 40
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    with_number = Runtime(spark, begun).stream(flow(), trigger_seconds=0.1, partitions={SOURCE: 3})
    with_number.stop()
    assert [partitions_of(checkpoint(begun, group)) for group in GROUPS] == [3, 2, 2]
    assert _shuffles_of(spark, begun, SOURCE) == {"3"}
    report = changed(spark, begun, COUNTED, 2)
    assert (report.before, report.after, report.batch, report.copy) == (2, 2, None, None)


def test_spark_deals_the_buckets_as_a_rebalance_expects(spark: SparkSession) -> None:
    for partitions in (2, 5, 8, 29):
        dealt = (
            spark.range(BUCKETS).selectExpr(f"pmod(hash(cast(id as int)), {partitions}) as at").groupBy("at").count()
        )
        assert BUCKETS / max(row["count"] for row in dealt.collect()) == window_spread(partitions)


@pytest.mark.exhaustive
def test_a_damaged_state_is_found_and_the_copy_comes_back(
    spark: SparkSession, begun: Lake, undisturbed: dict[str, list[tuple[object, ...]]]
) -> None:
    own = checkpoint(begun, COUNTED)
    files = _files(own.spark)

    def damage(phase: str) -> None:
        if phase == "repartitioned":
            shutil.rmtree(own.spark / "state" / "0" / "2")
            shutil.copytree(own.spark / "state" / "0" / "3", own.spark / "state" / "0" / "2")

    report = changed(spark, begun, COUNTED, 5, damage)
    assert report.rolled_back
    assert re.search(r"0/default/clocks: 32 rows before, \d+ after", report.reason or "")
    assert (report.before, report.after) == (2, 2)
    assert set(report.seconds) == {"copying", "copied", "repartitioned", "rolling_back"}
    assert _files(own.spark) == files
    assert not (own.folder / MARKER).exists()
    run(spark, begun, max_batches=1)
    assert changed(spark, begun, COUNTED, 5).after == 5
    run(spark, begun)
    assert contents(begun) == undisturbed


@pytest.mark.exhaustive
def test_an_error_on_the_way_brings_the_copy_back(spark: SparkSession, begun: Lake) -> None:
    own = checkpoint(begun, TIMED)
    files = _files(own.spark)
    for phase in ("copied", "repartitioned", "verified"):
        report = changed(spark, begun, TIMED, 3, _failing(phase))
        assert (report.rolled_back, report.reason) == (True, f"no luck when {phase}")
        assert (_files(own.spark), partitions_of(own)) == (files, 2)
    with pytest.raises(OSError, match="no luck"):
        changed(spark, begun, TIMED, 3, _failing("copying"))
    assert _files(own.spark) == files
    assert not (own.folder / MARKER).exists()


def _failing(at: str) -> Callable[[str], None]:
    def progress(phase: str) -> None:
        if phase == at:
            raise OSError(f"no luck when {phase}")

    return progress


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _shuffles_of(spark: SparkSession, lake: Lake, group: str) -> set[str]:
    """The number of shuffle partitions that the next batch of a query sees."""
    seen: set[str] = set()
    real = StreamBatch.run

    def run_and_look(self: StreamBatch, batch: object, sources: object, position: object) -> object:
        if self._group.name == group:
            frame = next(iter(sources.values()))  # type: ignore[attr-defined]
            seen.add(str(frame.sparkSession.conf.get("spark.sql.shuffle.partitions")))
        return real(self, batch, sources, position)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StreamBatch, "run", run_and_look)
        run(spark, lake, max_batches=1)
    return seen
