"""States of every kind and layout, behind two streams that meet, through processes that are killed (design, section 14)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.verify import verify
from tests.crash.kinds_case import BATCHES, contents, expected, topology

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
Kill = Mapping[str, Any]


def killed(home: Path, kill: Kill) -> None:
    """One life of the process, which ends by SIGKILL."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.crash.kinds_case", json.dumps({"home": str(home), "kill": kill})],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, f"not killed at {kill}:\n{process.stdout}\n{process.stderr[-3000:]}"


def assert_as_undisturbed(spark: SparkSession, home: Path) -> None:
    lake = Lake(home)
    # Several of the lives may end in one batch; that it would be poison then is tested elsewhere.
    Runtime(spark, lake, max_attempts=20).catch_up(topology())
    wanted = expected()
    for name, rows in contents(lake).items():
        assert rows == wanted[name], name
    assert lake.state("counts").last_txid() == BATCHES - 1
    assert not verify(spark, lake, topology()).differing


def test_undisturbed(spark: SparkSession, tmp_path: Path) -> None:
    assert_as_undisturbed(spark, tmp_path)


NAMED_POINTS: tuple[Kill, ...] = (
    {"moment": "committed", "state": "counts", "txid": 0},
    {"moment": "committed", "state": "reduced", "txid": 1, "jvm": True},
    {"moment": "committed", "state": "reduced_opaque", "txid": 2},
    {"moment": "committed", "state": "largest", "txid": 4},
    {"moment": "committed", "state": "grown", "txid": 5, "jvm": True},
)


@pytest.mark.timeout(900)
def test_killed_at_each_named_point(spark: SparkSession, tmp_path: Path) -> None:
    for kill in NAMED_POINTS:
        killed(tmp_path, kill)
    assert_as_undisturbed(spark, tmp_path)


@pytest.mark.timeout(900)
def test_killed_at_random(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(4)
    for life in range(3):
        killed(tmp_path, {"after": chance.randint(3, 30), "delay": chance.uniform(0, 0.4), "jvm": bool(life % 2)})
    assert_as_undisturbed(spark, tmp_path)
