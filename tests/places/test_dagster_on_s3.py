"""Runs of Dagster whose lake is in a bucket: assets, slices, checks and rejected rows as from a lake on a disk."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from ops.cli.app import app
from ops.jobs.relaunch import AGAIN, STALE, SliceRecords, find_slices
from pipelines import Lake
from pipelines.catalog import FlowSettings
from pipelines.places.location import Location
from tests.assets import two_flows
from tests.assets.conftest import Lay
from tests.assets.conftest import defs as defs
from tests.assets.conftest import lay as lay
from tests.assets.conftest import view as view
from tests.assets.test_catch_up import run, shown_by

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning")]


@pytest.fixture
def settings(reaching: SparkSession, place: Location, tmp_path: Path) -> FlowSettings:
    return FlowSettings(tmp_path, str(place).replace("s3a:", "s3:") + "/lake")


@pytest.mark.exhaustive
def test_a_catch_up_and_a_backfill(
    defs: dg.Definitions, lay: Lay, settings: FlowSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay("2024-01-01", [("a", 0), (None, 7)])
    lay("2024-01-02", [("a", 2), ("b", 4)])
    lines, lake = dg.AssetKey("lines"), Lake(settings.lake)
    with dg.instance_for_test() as instance:
        assert run(defs, instance).success
        assert instance.get_materialized_partitions(lines) == {"2024-01-01", "2024-01-02"}
        event = instance.get_latest_materialization_event(dg.AssetKey("rides"))
        assert event is not None
        assert event.asset_materialization is not None
        metadata = event.asset_materialization.metadata
        assert metadata["dagster/row_count"].value == 2
        assert metadata["path"].value == f"{lake.root}/states/rides"
        assert {"rows per batch", "table size", "files"} <= set(metadata)
        key = dg.AssetCheckKey(dg.AssetKey("rides"), "plausible__line_is_there")
        (verdict,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=5)
        assert verdict.status.value == "FAILED"
        (row,) = shown_by(verdict)["failed_rows"].records
        assert row.data["row"] == '{"day":"2024-01-01","line":null,"n":7}'
        counted = lake.state("lines").scan().sort_by("line")
        slices = defs.resolve_job_def("trips_slices_job")
        made = slices.execute_in_process(instance=instance, partition_key="2024-01-02")
        assert made.success
        assert lake.state("lines").scan().sort_by("line") == counted
    monkeypatch.setenv("TRIDELTA_HOME", str(settings.home))
    monkeypatch.setenv("TRIDELTA_LAKE", settings.lake_root)
    asked = CliRunner().invoke(app, ["state", "lines", "--key", "line=b", "--json"])
    assert asked.exit_code == 0, asked.output
    assert json.loads(asked.stdout) == [{"line": "b", "trips": 1, "n_sum": 4, "n_avg": 4.0}]
    tidied = CliRunner().invoke(app, ["housekeeping", "--json"])
    assert tidied.exit_code == 0, tidied.output
    assert {thing["what"]: thing["note"] for thing in json.loads(tidied.stdout)["things"]}["tables of trips"] == ""
    assert not (settings.home / "lake").exists()
    assert not Path("s3a:").exists()


@pytest.mark.exhaustive
def test_a_flow_behind_another_flow(settings: FlowSettings, tmp_path: Path) -> None:
    first, second = "2024-01-01", "2024-01-02"
    trips = settings.data / "trips"
    trips.mkdir(parents=True)
    defs = two_flows.definitions(tmp_path, lake=settings.lake_root)
    views = two_flows.views(tmp_path, lake=settings.lake_root)
    with dg.instance_for_test() as instance:

        def make(flow: str, day: str, n: int = 0) -> dg.ExecuteInProcessResult:
            if n:
                (trips / f"{day}.json").write_text(json.dumps({"day": day, "line": "a", "n": n}))
            job = defs.resolve_job_def(f"{flow}_slices_job")
            return job.execute_in_process(instance=instance, partition_key=day, raise_on_error=False)

        assert make("rides", first, n=3).success
        assert make("days", first).success
        refused = make("days", second)
        assert not refused.success
        failure = refused.failure_data_for_node("days_states")
        assert failure is not None
        assert failure.user_failure_data is not None
        assert 'it reads "kept_rides" of the flow "rides", and that slice is not there' in str(
            failure.user_failure_data.description
        )
        assert make("rides", first, n=4).success
        records = SliceRecords(instance, defs.resolve_asset_graph(), Lake(settings.lake))
        (found,) = find_slices(records, views, {"rides": [first], "days": [first]}, 5)
        assert (found.flow, found.slice, found.was, found.now) == ("days", first, STALE, AGAIN)
        assert "passengers: kept_rides has got other rows at " in found.why
        assert make("days", first).success
        assert Lake(settings.lake).state("passengers").scan().column("passengers").to_pylist() == [4]
        assert find_slices(records, views, {"rides": [first], "days": [first]}, 5) == []
