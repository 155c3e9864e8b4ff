"""Windows in the batch of their source through processes that are killed: exactly once (docs/adr/0054)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from tests.crash.lives import Kill, one_life
from tests.crash.windows_case import BATCHES, contents, flow
from tests.lakes import lake_place

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

Contents = dict[str, list[tuple[object, ...]]]


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    lake = Lake(lake_place(tmp_path_factory.mktemp("undisturbed")))
    Runtime(spark, lake).catch_up(flow("channels"))
    found = contents(lake)
    assert len(found["late_windowed_readings"]) == BATCHES // 4
    assert all(len(rows) > 2 for rows in found.values())
    return found


def killed(home: Path, kill: Kill) -> None:
    one_life("tests.crash.windows_case", {"home": str(home), "kill": kill})


def finished(spark: SparkSession, home: Path) -> Contents:
    lake = Lake(lake_place(home))
    # Several of the lives may end in one batch; that it would be poison then is tested elsewhere.
    Runtime(spark, lake, max_attempts=40).catch_up(flow())
    return contents(lake)


# Before the file is whole, between two outputs.
FEW: tuple[Kill, ...] = (
    {"moment": "writing", "txid": 2},
    {"moment": "committed", "state": "sums", "txid": 6, "jvm": True},
)
# Before an output commits, behind the last, while old files go, and before any file.
MORE: tuple[Kill, ...] = (
    {"moment": "writing", "txid": 0},
    {"moment": "committing", "state": "sums", "txid": 1, "jvm": True},
    {"moment": "committed", "state": "sums", "txid": 2},
    {"moment": "written", "txid": 4, "jvm": True},
    {"moment": "removing", "txid": 4},
    {"moment": "committing", "state": "windowed_readings", "txid": 5},
    {"moment": "committed", "state": "windowed_readings", "txid": 7, "jvm": True},
    {"moment": "committed", "state": "late_windowed_readings", "txid": 8},
    {"moment": "closed", "txid": 9, "jvm": True},
    {"moment": "removing", "txid": 9},
    {"moment": "removed", "txid": 11, "jvm": True},
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [FEW, MORE], ids=["few", "more"])
def test_killed_at_each_named_point(
    spark: SparkSession, tmp_path: Path, undisturbed: Contents, kills: tuple[Kill, ...]
) -> None:
    for kill in kills:
        killed(tmp_path, kill)
    assert finished(spark, tmp_path) == undisturbed


@pytest.mark.timeout(1800)
def test_killed_at_random(spark: SparkSession, tmp_path: Path, undisturbed: Contents) -> None:
    chance = random.Random(16)
    for life in range(12):
        kill = {"after": chance.randint(1, 14), "delay": chance.uniform(0, 0.3), "jvm": bool(life % 2)}
        killed(tmp_path, kill)
    assert finished(spark, tmp_path) == undisturbed
