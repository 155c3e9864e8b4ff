"""States of every kind and layout, behind two streams that meet, through processes that are killed (architecture.md#safety)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.verify import verify
from tests.crash.kinds_case import BATCHES, contents, expected, topology
from tests.crash.lives import Kill, one_life
from tests.lakes import lake_place

pytestmark = pytest.mark.slow


def killed(home: Path, kill: Kill) -> None:
    """One life of the process, which ends by SIGKILL."""
    one_life("tests.crash.kinds_case", {"home": str(home), "kill": kill})


def assert_as_undisturbed(spark: SparkSession, home: Path) -> None:
    lake = Lake(lake_place(home))
    # Several of the lives may end in one batch; that it would be poison then is tested elsewhere.
    Runtime(spark, lake, max_attempts=20).catch_up(topology())
    wanted = expected()
    for name, rows in contents(lake).items():
        assert rows == wanted[name], name
    assert lake.state("counts").last_txid() == BATCHES - 1
    assert not verify(spark, lake, topology()).differing


@pytest.mark.exhaustive
def test_undisturbed(spark: SparkSession, tmp_path: Path) -> None:
    assert_as_undisturbed(spark, tmp_path)


NAMED_POINTS: tuple[Kill, ...] = (
    {"moment": "committed", "state": "counts", "txid": 0},
    {"moment": "committed", "state": "reduced", "txid": 1, "jvm": True},
    {"moment": "committed", "state": "reduced_opaque", "txid": 2},
    {"moment": "committed", "state": "largest", "txid": 4},
    {"moment": "committed", "state": "grown", "txid": 5, "jvm": True},
)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_killed_at_each_named_point(spark: SparkSession, tmp_path: Path) -> None:
    for kill in NAMED_POINTS:
        killed(tmp_path, kill)
    assert_as_undisturbed(spark, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_killed_at_random(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(4)
    for life in range(3):
        killed(tmp_path, {"after": chance.randint(3, 30), "delay": chance.uniform(0, 0.4), "jvm": bool(life % 2)})
    assert_as_undisturbed(spark, tmp_path)
