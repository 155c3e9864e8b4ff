"""Changed windows that read a channel: on purpose alone, and what waits for the clock is in the new ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import TrideltaError
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.flowmix import Count, Flow, Policy, Sum
from pipelines.sources import FixedBatches

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

# The clock is five seconds behind: the 10 waits for it.
BATCHES = [
    [("a", 1, 0), ("a", 2, 1000), ("a", 3, 2000)],
    [("a", 10, 10_000)],
    [("a", 4, 11_000), ("a", 5, 12_000)],
    [("a", 100, 30_000)],
]


def flow(seen: int, *, kept: int = 1000, counted: int = 1000, key: str = "k", delay: int = 5) -> Flow:
    """Return running sums of the first batches, of so many events, and how many of them there were."""
    source = FixedBatches("k string, v bigint, timestamp bigint", BATCHES[:seen])
    return (
        Flow("changed", windows="channels")
        .stream("s", source, delay=delay)
        .partition(*[key] if key else [])
        .aggregate(Sum("v", "v"), Count("c", field="k"), trigger=Policy.count(1), evict=Policy.count(kept))
        .aggregate(Sum("v", "sum"), Count(output="n"), trigger=Policy.count(1), evict=Policy.count(counted))
        .persist("sums")
        .build()
    )


def rows(lake: Lake) -> list[tuple[int, int]]:
    found = sorted(lake.state("sums").scan().to_pylist(), key=lambda row: row["event_time"])
    return [(row["sum"], row["n"]) for row in found]


FIRST = [(1, 1), (4, 2), (10, 3)]
ANEW = [*FIRST, (10, 1), (24, 2), (43, 3)]


@pytest.mark.parametrize(
    ("before", "behind"), [({}, {"kept": 999}), ({"key": ""}, {"key": "k"})], ids=["policy", "key"]
)
def test_what_waits_goes_into_the_changed_windows(
    before: Any, behind: Any, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow(2, **before))
    # Its checkpoint is not fresh, so that nothing is reset.
    Runtime(spark, lake).catch_up(flow(4, **behind), changed_windows="begin", on_fresh_checkpoint="reset")
    # All windows of the query begin empty.
    assert rows(lake) == ANEW


def test_cut_off_behind_the_switch_it_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow(2))

    def cut(*_: Any) -> None:
        raise TrideltaError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "begin", cut)
        with pytest.raises(TrideltaError, match="cut off"):
            Runtime(spark, lake).catch_up(flow(4, kept=999), changed_windows="begin")
    Runtime(spark, lake).catch_up(flow(4, kept=999))
    assert rows(lake) == ANEW


def test_where_nothing_waits_the_others_go_on(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow(2, delay=0))
    Runtime(spark, lake).catch_up(flow(4, delay=0, kept=999), changed_windows="begin")
    assert rows(lake) == [*FIRST, (26, 4), (30, 5), (39, 6), (148, 7)]


def test_changed_windows_behind_others_leave_those_alone(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow(2))
    Runtime(spark, lake).catch_up(flow(4, counted=999), changed_windows="begin")
    assert rows(lake) == [*FIRST, (16, 1), (36, 2), (61, 3)]
