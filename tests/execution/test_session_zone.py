"""A flow with slices runs in a session of UTC, as the command line and Dagster do, or is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.runners.sessions import SessionZoneError, check_places
from pipelines.sources import FixedBatches
from pipelines.trident import DeltaState, TridentTopology


def flow(slice_by: str | None) -> TridentTopology:
    topology = TridentTopology("zones")
    stream = topology.new_stream("s", FixedBatches("ts timestamp", []), slice_by=slice_by)
    stream.partition_persist(DeltaState("kept"))
    return topology


def in_zone(spark: SparkSession, zone: str) -> SparkSession:
    made = spark.newSession()
    made.conf.set("spark.sql.session.timeZone", zone)
    return made


@pytest.mark.parametrize("zone", ["Europe/Berlin", "EST"])
def test_a_flow_with_slices_is_refused_in_another_zone(spark: SparkSession, tmp_path: Path, zone: str) -> None:
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
