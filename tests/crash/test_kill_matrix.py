"""A run killed at any moment and started again leaves the tables that an undisturbed run leaves."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.catalog import FlowSettings
from tests.crash.flights_case import (
    STATES,
    Expected,
    Rows,
    arrive,
    assert_equal,
    batch_txids,
    contents,
    flight_files,
    refused,
    refused_rows,
    settings_of,
    topology,
)
from tests.crash.lives import Kill, one_life
from tests.lakes import copied, lake_place
from tests.tiers import several

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FILES_PER_BATCH = 3
DAYS = 18


@dataclass(frozen=True)
class Undisturbed:
    """Some weeks of flights, and what a run over it that nobody disturbs leaves."""

    settings: FlowSettings
    states: dict[str, Rows]
    refused: Rows


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    settings = arrive(tmp_path_factory.mktemp("undisturbed"), DAYS)
    lake = Lake(settings.lake)
    Runtime(spark, lake).catch_up(topology(settings, files_per_batch=FILES_PER_BATCH))
    expected = Expected(flight_files(settings))
    assert_equal(contents(lake), expected.states)
    assert refused(lake) == expected.refused
    return Undisturbed(settings, contents(lake), refused_rows(lake))


@pytest.fixture
def home(undisturbed: Undisturbed, tmp_path: Path) -> Path:
    """A home of the test's own, over the same files."""
    (tmp_path / "data").symlink_to(undisturbed.settings.data)
    return tmp_path


def killed(home: Path, kill: Kill, *, do: str = "catch_up", slices: tuple[str, ...] = ()) -> None:
    """One life of the process, which ends by SIGKILL."""
    plan = {"home": str(home), "do": do, "slices": slices, "kill": kill, "files_per_batch": FILES_PER_BATCH}
    one_life("tests.crash.driver", plan)


def ended(spark: SparkSession, home: Path) -> Lake:
    """The last life: nobody disturbs it."""
    lake = Lake(settings_of(home).lake)
    Runtime(spark, lake).catch_up(topology(settings_of(home), files_per_batch=FILES_PER_BATCH))
    return lake


def assert_undisturbed(lake: Lake, undisturbed: Undisturbed) -> None:
    """The same rows in every state and in quarantine, and one commit a txid and state."""
    assert_equal(contents(lake), undisturbed.states)
    # The files are the same ones under another name.
    assert [row[:4] for row in refused_rows(lake)] == [row[:4] for row in undisturbed.refused]
    for name, txids in batch_txids(lake).items():
        assert txids == list(range(len(txids))), name
    quarantined = [c.txid for c in lake.quarantine("flights").commits.batches()]
    assert quarantined == sorted(set(quarantined))


# One life each, in this order and never three in one batch; batches 0, 1 and 5 have spoiled files.
NAMED_POINTS: tuple[Kill, ...] = (
    {"moment": "opened", "txid": 0},
    {"moment": "committed", "state": "departures", "txid": 0, "jvm": True},
    {"moment": "committed", "state": "carrier_delay", "txid": 1},
    {"moment": "committed", "state": "airport_hour", "txid": 1, "jvm": True},
    {"moment": "committing", "state": "departures", "txid": 2},
    {"moment": "closed", "txid": 3, "jvm": True},
    {"moment": "committed", "state": "quarantine", "txid": 5},
)


@pytest.mark.parametrize("points", several(NAMED_POINTS))
def test_killed_at_each_named_point(
    spark: SparkSession, undisturbed: Undisturbed, home: Path, points: tuple[Kill, ...]
) -> None:
    for kill in points:
        killed(home, kill)
    assert_undisturbed(ended(spark, home), undisturbed)


@pytest.mark.exhaustive
def test_killed_five_times_at_random(spark: SparkSession, undisturbed: Undisturbed, home: Path) -> None:
    chance = random.Random(2013)
    for life in range(5):
        delay = chance.uniform(0, 0.6)
        killed(home, {"after": chance.randint(2, 10), "delay": delay, "jvm": bool(life % 2)})
    assert_undisturbed(ended(spark, home), undisturbed)


@pytest.mark.exhaustive
def test_a_backfill_killed_between_slices(spark: SparkSession, undisturbed: Undisturbed, home: Path) -> None:
    """Three slices are replaced, one in the first state only; the stream has counted two batches before.

    Then the backfill is run again, or the stream goes on with things as they are.
    """
    settings, lake = settings_of(home), Lake(settings_of(home).lake)
    flights = topology(settings, files_per_batch=FILES_PER_BATCH)
    Runtime(spark, lake).catch_up(flights, max_batches=2)
    days = tuple(file.stem for file in flight_files(settings)[3:9])
    killed(home, {"moment": "committed", "state": STATES[0], "times": 4}, do="backfill", slices=days)
    replaced = {name: [c.slice for c in lake.state(name).history() if c.kind == "slice"] for name in STATES}
    assert {name: len(slices) for name, slices in replaced.items()} == dict(zip(STATES, (4, 3, 3, 3), strict=True))

    left = Lake(copied(lake.root, lake_place(home / "left")))
    Runtime(spark, left).catch_up(flights)
    assert_undisturbed(left, undisturbed)
    assert not Runtime(spark, lake).backfill(flights, days).failed
    assert_undisturbed(ended(spark, home), undisturbed)
