"""Windows of a stream's own source within its batch: the results of channels, whatever the batches and whatever fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.flowmix import Count, Flow, Policy, Sum
from pipelines.sources import FixedBatches

SCHEMA = "k string, v bigint, timestamp bigint, id string"
Row = tuple[str, int, int, str]


def events(first: int, end: int) -> list[Row]:
    """Return events of three keys, half a second apart."""
    return [(f"k{n % 3}", n % 17, 100_000 + n * 500, f"e{n}") for n in range(first, end)]


def flow(batches: list[list[Row]], windows: str = "batch", name: str = "small") -> Flow:
    return (
        Flow(name, windows=windows)
        .stream("readings", FixedBatches(SCHEMA, batches), delay=2)
        .filter("v != 5")
        .partition("k")
        .aggregate(Sum("v", "sum"), Count(output="n"), trigger=Policy.count(4), evict=Policy.count(6))
        .persist("sums")
        .filter("n > 3")
        .to("worst")
        .output()
        .stream("worst")
        .partition()
        .sort("sum desc", top_n=3, trigger=Policy.count(5))
        .persist("worst_three")
        .build()
    )


TABLES = ("sums", "small_readings", "worst_three", "late_small_readings")


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: sorted((tuple(row.values()) for row in lake.state(name).scan().to_pylist()), key=repr) for name in TABLES
    }


LATE: list[Row] = [("k1", 99, 100_000, "late")]
BATCHES = [events(0, 20), events(20, 33), [*events(33, 60), *LATE], events(60, 90)]


@pytest.fixture(scope="module")
def on_channels(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Any, ...]]]:
    lake = Lake(tmp_path_factory.mktemp("channels"))
    Runtime(spark, lake).catch_up(flow(BATCHES, "channels"))
    return contents(lake)


def test_the_results_are_those_of_channels(
    spark: SparkSession, tmp_path: Path, on_channels: dict[str, list[tuple[Any, ...]]]
) -> None:
    lake = Lake(tmp_path)
    report = Runtime(spark, lake).catch_up(flow(BATCHES))
    assert {batch.group for batch in report.batches} == {"readings", "worst"}
    assert contents(lake) == on_channels
    assert all(len(rows) for rows in on_channels.values())
    names = [commit.record.windows["file"] for commit in lake.state("sums").commits.batches()]
    folder = lake.checkpoint_path("small", "readings") / "windows"
    assert sorted(file.name for file in folder.iterdir())[:-1] == sorted(names[-3:])


def test_a_bounded_run_gives_the_same(spark: SparkSession, tmp_path: Path) -> None:
    found = []
    for windows in ("channels", "batch"):
        lake = Lake(tmp_path / windows)
        Runtime(spark, lake).run_bounded(flow(BATCHES, windows))
        found.append({name: sorted(map(repr, lake.state(name).scan().to_pylist())) for name in TABLES[:3]})
    assert found[0] == found[1]
