"""Slices made from another flow's table, whose rows are others by now."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.catalog import FlowSettings
from pipelines.state.slices import outdated
from tests.assets import two_flows

pytestmark = pytest.mark.slow
DAYS = ["2024-01-01", "2024-01-02"]


@pytest.mark.exhaustive
def test_what_a_restore_has_changed_is_outdated(spark: SparkSession, tmp_path: Path) -> None:
    rides, days = two_flows.views(tmp_path)
    folder = FlowSettings(tmp_path).data / "trips"
    folder.mkdir(parents=True)
    for day in DAYS:
        (folder / f"{day}.json").write_text(f'{{"day": "{day}", "line": "a", "n": 1}}\n')
    lake = Lake(rides.settings.lake)
    runtime = Runtime(spark, lake)
    runtime.backfill(rides.topology, DAYS)
    source = lake.state("kept_rides")
    before = source.version()
    (folder / "later.json").write_text(f'{{"day": "{DAYS[0]}", "line": "b", "n": 2}}\n')
    runtime.backfill(rides.topology, DAYS[:1])
    runtime.backfill(days.topology, DAYS)
    made = lake.state("passengers")
    assert outdated(made, source, DAYS) == {}
    DeltaTable(str(source.path)).restore(before)
    (slice_,) = outdated(made, source, DAYS)
    assert slice_ == DAYS[0]
    runtime.backfill(days.topology, DAYS[:1])
    assert outdated(made, source, DAYS) == {}
