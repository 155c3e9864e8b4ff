"""Slices of a flow that reads another flow's table, without Dagster: made where that table holds them, refused where not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.catalog import FlowSettings
from pipelines.errors import SourceError
from pipelines.execution.report import SliceReport
from pipelines.sources import DeltaTableSource
from pipelines.state.slices import made_slices
from tests.assets import two_flows

pytestmark = pytest.mark.slow

DAYS = ["2024-01-01", "2024-01-02", "2024-01-03"]


def test_a_slice_that_is_not_there_is_refused_alone(spark: SparkSession, tmp_path: Path) -> None:
    settings, lake = FlowSettings(tmp_path), Lake(tmp_path / "lake")
    rides, days = (spec.topology(settings) for spec in two_flows.specs())
    folder = settings.data / "trips"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(json.dumps({"day": DAYS[0], "line": "a", "n": 5}) + "\n")
    runtime = Runtime(spark, lake)
    # The second day is made of no rows; nobody has made the third.
    runtime.backfill(rides, DAYS[:2])
    assert made_slices(lake.state("kept_rides")) == made_slices(lake.state("ride_lines")) == set(DAYS[:2])

    heard: list[SliceReport] = []
    report = runtime.backfill(days, DAYS, progress=heard.append)
    assert [one.slice for one in report.slices] == DAYS
    assert sorted(one.slice for one in heard) == DAYS
    (failed,) = report.failed
    assert failed.error == (
        'flow "days": slice 2024-01-03 was not computed: it reads "kept_rides" of the flow "rides", and that slice is not '
        "there (it holds 2 others, 2024-01-01 to 2024-01-02)\n  Next: make it there first: tridelta backfill rides --from "
        "2024-01-03 --to 2024-01-03; then this one again"
    )
    assert lake.state("passengers").scan().to_pylist() == [{"day": DAYS[0], "passengers": 5}]
    assert made_slices(lake.state("passengers")) == set(DAYS[:2])

    # The log of a state is no table to read rows from.
    with pytest.raises(SourceError, match="partial values of the keys"):
        DeltaTableSource(lake.state_path("ride_lines"), "line string").check("lines", spark)
    assert made_slices(lake.table(tmp_path / "nothing", "nothing")) == frozenset()
