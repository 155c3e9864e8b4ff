"""Event flows with windows through processes that are killed: exactly once, windows included (docs/architecture.md#safety)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from tests.crash.flow_case import BATCHES, contents, flow
from tests.crash.lives import Kill, one_life
from tests.lakes import lake_place

pytestmark = pytest.mark.slow

READINGS, WORST = "killed__readings__readings", "killed__readings__worst"


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[object, ...]]]:
    lake = Lake(lake_place(tmp_path_factory.mktemp("undisturbed")))
    Runtime(spark, lake).catch_up(flow())
    found = contents(lake)
    assert len(found["late_killed_readings"]) == BATCHES // 4
    assert all(len(rows) > 5 for rows in found.values())
    return found


def killed(home: Path, kill: Kill) -> None:
    one_life("tests.crash.flow_case", {"home": str(home), "kill": kill})


def finished(spark: SparkSession, home: Path) -> dict[str, list[tuple[object, ...]]]:
    lake = Lake(lake_place(home))
    # Several of the lives may end in one batch; that it would be poison then is tested elsewhere.
    Runtime(spark, lake, max_attempts=40).catch_up(flow())
    return contents(lake)


NAMED_POINTS: tuple[Kill, ...] = (
    {"moment": "committing", "state": READINGS, "txid": 1},
    {"moment": "committed", "state": "sums", "txid": 0, "jvm": True},
    {"moment": "committed", "state": READINGS, "txid": 3, "jvm": True},
    {"moment": "committed", "state": WORST, "txid": 1},
    {"moment": "closed", "txid": 5},
    {"moment": "committed", "state": "late_killed_readings", "txid": 7},
    {"moment": "committed", "state": "worst_three", "txid": 2, "jvm": True},
    {"moment": "committing", "state": "sums", "txid": 3},
)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_killed_at_each_named_point(
    spark: SparkSession, tmp_path: Path, undisturbed: dict[str, list[tuple[object, ...]]]
) -> None:
    for kill in NAMED_POINTS:
        killed(tmp_path, kill)
    assert finished(spark, tmp_path) == undisturbed


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_killed_twenty_times_at_random(
    spark: SparkSession, tmp_path: Path, undisturbed: dict[str, list[tuple[object, ...]]]
) -> None:
    chance = random.Random(8)
    for life in range(20):
        kill = {"after": chance.randint(1, 40), "delay": chance.uniform(0, 0.5), "jvm": bool(life % 2)}
        killed(tmp_path, kill)
    assert finished(spark, tmp_path) == undisturbed
