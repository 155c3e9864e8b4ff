"""Slices of days are cut in UTC, as the command line and Dagster do, or are refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.runners.sessions import SessionZoneError, check_places
from pipelines.sources import FixedBatches
from pipelines.testing import run_topology
from pipelines.trident import DeltaState, TridentTopology


def flow(slice_by: str | None) -> TridentTopology:
    topology = TridentTopology("zones")
    fields = "ts timestamp, wall timestamp_ntz, d date, day string, n bigint, s struct<ts: timestamp, day: string>, v variant"
    stream = topology.new_stream("s", FixedBatches(fields, []), slice_by=slice_by)
    stream.partition_persist(DeltaState("kept"))
    return topology


def in_zone(spark: SparkSession, zone: str) -> SparkSession:
    made = spark.newSession()
    made.conf.set("spark.sql.session.timeZone", zone)
    return made


@pytest.mark.parametrize("zone", ["Europe/Berlin", "EST"])
def test_a_flow_with_slices_of_days_is_refused_in_another_zone(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    sliced, lake = flow("cast(to_date(ts) as string)"), Lake(tmp_path / "lake")
    runtime = Runtime(in_zone(spark, zone), lake)
    for run in (lambda: runtime.catch_up(sliced), lambda: runtime.backfill(sliced, ["2024-01-02"])):
        with pytest.raises(SessionZoneError, match=f'flow "zones" .* {zone}'):
            run()
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(("zone", "slice_by"), [("EST", None), ("Etc/UTC", "ts"), ("+00:00", "ts"), ("GMT+0", "ts")])
def test_other_flows_and_other_names_of_utc_are_taken(
    spark: SparkSession, tmp_path: Path, zone: str, slice_by: str | None
) -> None:
    check_places(in_zone(spark, zone), Lake(tmp_path), flow(slice_by))


@pytest.mark.parametrize(
    "slice_by",
    [
        "ts",
        "s.ts",
        "cast(s as string)",
        "hour(ts)",
        "if(ts is null, 'a', 'b')",
        "to_date(timestamp(day))",
        "to_date(from_utc_timestamp(ts, 'Europe/Berlin'))",
        "from_unixtime(n)",
        "variant_get(v, '$.day', 'string')",
    ],
)
def test_slices_that_depend_on_the_zone(spark: SparkSession, tmp_path: Path, slice_by: str) -> None:
    with pytest.raises(SessionZoneError):
        check_places(in_zone(spark, "EST"), Lake(tmp_path), flow(slice_by))


@pytest.mark.parametrize(
    "slice_by",
    [
        "day",
        "d",
        "n",
        "s.day",
        "to_date(day)",
        "trunc(d, 'month')",
        "to_date(wall)",
        "regexp_extract(day, '[0-9]+', 0)",
    ],
)
def test_slices_that_do_not_depend_on_the_zone(spark: SparkSession, tmp_path: Path, slice_by: str) -> None:
    check_places(in_zone(spark, "EST"), Lake(tmp_path), flow(slice_by))


@pytest.mark.slow
def test_tests_of_the_bounded_engine_run_in_any_zone(spark: SparkSession) -> None:
    rows = [("2024-01-02",)]
    topology = TridentTopology("zones")
    topology.new_stream("s", FixedBatches("day string", [])).partition_persist(DeltaState("kept"))
    assert run_topology(topology, {"s": [rows]}, "bounded", in_zone(spark, "EST")) == {"kept": [{"day": "2024-01-02"}]}
