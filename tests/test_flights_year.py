"""The whole year of flights, against the same numbers computed from the same files without Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.catalog import FlowSettings
from pipelines.execution.report import RunReport
from pipelines.trident import TridentTopology
from tests.crash.flights_case import (
    STATES,
    Expected,
    arrive,
    assert_equal,
    batch_txids,
    contents,
    flight_files,
    refused,
    refused_rows,
    topology,
)
from tests.tiers import EXHAUSTIVE

pytestmark = pytest.mark.slow

FLIGHTS_OF_2013 = 336_776
# In `make test` a hundred days of it.
FIRST, FLIGHTS_OF_THE_FIRST = 100, 90_326
# Larger batches than a deployment's: as many rows, in fewer commits.
FILES_PER_BATCH = 30


class Year:
    """A year that a catch-up has run over."""

    def __init__(self, spark: SparkSession, home: Path, days: int | None, *, spoiled: bool) -> None:
        self.settings: FlowSettings = arrive(home, days, spoiled=spoiled)
        self.files = flight_files(self.settings)
        self.lake = Lake(self.settings.lake)
        self.runtime = Runtime(spark, self.lake)
        self.topology: TridentTopology = topology(self.settings, files_per_batch=FILES_PER_BATCH)
        self.report: RunReport = self.runtime.catch_up(self.topology)
        self.expected = Expected(self.files)


@pytest.fixture(
    scope="module",
    params=[pytest.param(FIRST, id="spring", marks=EXHAUSTIVE), pytest.param(None, id="year", marks=EXHAUSTIVE)],
)
def year(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Year:
    return Year(spark, tmp_path_factory.mktemp("year"), request.param, spoiled=True)


def test_every_row_is_accounted_for(year: Year) -> None:
    report, spoiled = year.report, len(year.files[5::11]) + 1
    whole = len(year.files) == 365
    assert year.expected.received == 5 * spoiled + (FLIGHTS_OF_2013 if whole else FLIGHTS_OF_THE_FIRST)
    assert report.received == year.expected.received
    departures = sum(
        commit.rows for batch in report.batches for commit in batch.commits if commit.state == "departures"
    )
    assert departures + report.quarantined == report.received
    assert year.lake.state("departures").count() == departures
    assert all(batch.received == b.rows + batch.quarantined for batch in report.batches for b in batch.commits[:1])
    assert (
        refused(year.lake)
        == year.expected.refused
        == Counter(
            {
                "malformed": 2 * spoiled,
                "no_slice": spoiled,
                "carrier_is_there": spoiled,
                "delay_is_possible": spoiled,
                "distance_is_a_flight": int(whole),  # on the 27th of July
            }
        )
    )
    rows = year.lake.quarantine("flights").scan().to_pylist()
    assert all(one["reason"] and one["row"] for one in rows)


def test_states_equal_a_computation_of_the_same_files(year: Year) -> None:
    assert_equal(contents(year.lake), year.expected.states)
    flights = {row["carrier"]: row["flights"] for row in year.lake.state("carrier_delay").scan().to_pylist()}
    assert sum(flights.values()) == len(year.expected.states["departures"])


@pytest.mark.parametrize("txid", [0, 6, -1])
def test_a_state_as_of_a_batch_is_the_first_batches(year: Year, txid: int) -> None:
    batches = len(year.report.batches)
    txid %= batches
    assert all(txids == list(range(batches)) for txids in batch_txids(year.lake).values())
    first = Expected(year.files[: (txid + 1) * FILES_PER_BATCH])
    assert_equal(contents(year.lake, txid=txid), first.states)


@pytest.mark.parametrize("year", [pytest.param(None, marks=EXHAUSTIVE)], indirect=True)
def test_a_year_of_daily_backfills_changes_nothing(year: Year) -> None:
    days = [file.stem for file in year.files]
    assert len(days) == 365
    before = refused_rows(year.lake)
    report = year.runtime.backfill(year.topology, days)
    assert [one.slice for one in report.slices] == days
    assert not report.failed
    malformed = year.expected.refused["malformed"] + year.expected.refused["no_slice"]
    assert sum(one.received for one in report.slices) == year.expected.received - malformed
    assert_equal(contents(year.lake), year.expected.states)
    assert refused_rows(year.lake) == before
    for name in STATES:
        replaced = [record.slice for record in year.lake.state(name).history() if record.kind == "slice"]
        assert replaced == days, f"one commit a slice in {name}"
    assert not year.runtime.catch_up(year.topology).batches


@pytest.mark.exhaustive
def test_the_year_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing spoiled: all flights but the one over 17 miles."""
    clean = Year(spark, tmp_path, None, spoiled=False)
    assert clean.report.received == FLIGHTS_OF_2013
    assert_equal(contents(clean.lake), clean.expected.states)
    assert refused(clean.lake) == clean.expected.refused == Counter({"distance_is_a_flight": 1})
