"""A poison batch of a query with windows: what fails in a window goes through attempts, and can be left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import PoisonBatchError
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.protocol.coordinator import BatchState
from pipelines.flowmix import Flow, Policy, Sum
from pipelines.places.location import on_disk
from pipelines.sources import FixedBatches
from tests.execution.corrected_code import Faulty

pytestmark = pytest.mark.slow

SCHEMA = "k string, v bigint, timestamp bigint"
BATCHES: list[Any] = [[("a", 1, 0)], [("a", 12, 1000), ("a", 13, 1000)], [("a", 2, 2000)]]
QUERY = "events__1"


def in_the_window(mended: Path) -> Callable[[int], Any]:
    """Fails in the window at the second batch."""
    return lambda count: (
        Flow("inside", windows="channels")
        .stream("events", FixedBatches(SCHEMA, BATCHES[:count]))
        .partition("k")
        .aggregate(Faulty(str(mended)), trigger=Policy.count(1), evict=Policy.count(99))
        .persist("sums")
        .build()
    )


def unlucky(event: Any) -> Any:
    if event["sum"] == 26:
        raise ValueError("twenty-six is not a sum for me")
    return event


def behind_the_window(count: int) -> Any:
    """Fails behind the window at the second batch."""
    return (
        Flow("behind", windows="channels")
        .stream("events", FixedBatches(SCHEMA, BATCHES[:count]))
        .partition("k")
        .aggregate(Sum("v", "sum"), trigger=Policy.count(1), evict=Policy.count(99))
        .each(unlucky)
        .persist("sums")
        .build()
    )


def sums(lake: Lake) -> list[int]:
    return sorted(row["sum"] for row in lake.state("sums").scan().to_pylist())


def quarantined(lake: Lake, flow: str) -> list[tuple[int, Any]]:
    rows = DeltaTable(str(lake.quarantine_path(flow))).to_pyarrow_table().to_pylist()
    return sorted((row["_txid"], json.loads(row["row"]).get("v", json.loads(row["row"]).get("sum"))) for row in rows)


def poisoned(runtime: Runtime, flow: Callable[[int], Any]) -> PoisonBatchError:
    """The error at the second batch, which is tried anew with each start."""
    runtime.catch_up(flow(1))
    with pytest.raises(PoisonBatchError) as caught:
        runtime.catch_up(flow(2))
    return caught.value


def crashed_before_sparks_commit(lake: Lake, flow: str, batch: int) -> None:
    """Leave Spark's checkpoint as if the process had died when the batch was done."""
    commits = lake.checkpoint_path(flow, QUERY) / "spark" / "commits"
    (commits / str(batch)).unlink()
    (commits / f".{batch}.crc").unlink(missing_ok=True)


@pytest.mark.exhaustive
def test_what_fails_in_a_window_is_a_poison_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Attempts are counted and stored, its rows are in quarantine as they came, and it can be left out, crashes included."""
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake, max_attempts=2)
    flow = in_the_window(tmp_path / "never")
    error = poisoned(runtime, flow)
    assert (error.txid, error.attempts) == (1, 2)
    assert "thirteen is not a number for me" in error.reason
    assert "test_skip_behind_windows.py:" in error.reason
    assert "Traceback" not in str(error)
    assert quarantined(lake, "inside") == [(1, 12), (1, 13)]
    checkpoint = Checkpoint("inside", lake.checkpoint_path("inside", QUERY))
    record = checkpoint.attempts().get(f"{QUERY}/1")[1]
    assert (record.state, record.attempt) == (BatchState.POISON, 1)

    runtime.skip(flow(2), 1)
    report = runtime.catch_up(flow(2))
    assert [(batch.txid, batch.skipped) for batch in report.batches if batch.group == QUERY] == [(1, True)]
    crashed_before_sparks_commit(lake, "inside", 1)
    report = runtime.catch_up(flow(3))
    assert [(batch.txid, batch.skipped) for batch in report.batches if batch.group == QUERY] == [(1, True), (2, False)]
    # Neither 12 nor 13 has reached the window: what is in quarantine is what is left out.
    assert sums(lake) == [1, 3]
    assert quarantined(lake, "inside") == [(1, 12), (1, 13)]


@pytest.mark.exhaustive
def test_a_mended_window_takes_the_poison_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Its rows leave quarantine, and each is in the windows once, whatever the failed attempts had worked out."""
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake, max_attempts=1)
    flow = in_the_window(tmp_path / "mended")
    poisoned(runtime, flow)
    (tmp_path / "mended").touch()
    runtime.catch_up(flow(3))
    assert sums(lake) == [1, 13, 26, 28]
    assert quarantined(lake, "inside") == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("drained", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_batch_that_is_planned_again_comes_into_the_windows(
    spark: SparkSession, tmp_path: Path, drained: bool
) -> None:
    """It had been skipped, and its plan is lost with the power, and with Spark's mark: it takes the next rows, too."""
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake, max_attempts=1)
    flow = in_the_window(tmp_path / "mended")
    poisoned(runtime, flow)
    runtime.skip(flow(2), 1)
    if drained:
        runtime.catch_up(flow(2))
        crashed_before_sparks_commit(lake, "inside", 1)
    for name in ("1", ".1.crc"):
        (on_disk(lake.checkpoint_path("inside", QUERY)) / "spark/offsets" / name).unlink()
    (tmp_path / "mended").touch()
    runtime.catch_up(flow(3))
    assert sums(lake) == [1, 13, 26, 28]
    assert quarantined(lake, "inside") == []


@pytest.mark.exhaustive
def test_a_batch_that_fails_behind_a_window_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    """The windows have its rows all the same; what they made of it is left out."""
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake, max_attempts=1)
    assert "twenty-six" in poisoned(runtime, behind_the_window).reason
    assert quarantined(lake, "behind") == [(1, 13), (1, 26)]
    runtime.skip(behind_the_window(2), 1)
    report = runtime.catch_up(behind_the_window(2))
    assert [(batch.txid, batch.skipped) for batch in report.batches if batch.group == QUERY] == [(1, True)]
    crashed_before_sparks_commit(lake, "behind", 1)
    runtime.catch_up(behind_the_window(3))
    assert sums(lake) == [1, 28]
    assert quarantined(lake, "behind") == [(1, 13), (1, 26)]
