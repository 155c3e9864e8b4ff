"""Two small flows: `rides` keeps trips behind a gate, `days` counts them, slice by slice, from that flow's table."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import dagster as dg

from assets.factory import assets_of, flow_assets
from assets.view import FlowView
from ops.flow_definitions import slices_job
from ops.jobs.relaunch import relaunch_slices_job
from pipelines.catalog import DailySlices, FlowSettings, FlowSpec
from pipelines.quality import fail
from pipelines.sources import DeltaTableSource, JsonFiles
from pipelines.trident import Count, DeltaState, Sum, TridentTopology
from resources import LakeResource, NimbusResource, QualityResource, SparkResource

SCHEMA = "day string, line string, n int"


def _rides(settings: FlowSettings) -> TridentTopology:
    topology = TridentTopology("rides")
    trips = topology.new_stream("trips", JsonFiles(settings.data / "trips", SCHEMA), slice_by="day").gate(
        fail("column_values_to_be_between", column="n", max_value=1000, name="fits"), name="plausible"
    )
    trips.partition_persist(DeltaState("kept_rides"))
    trips.group_by("line").persistent_aggregate(DeltaState("ride_lines"), Count(), "trips")
    return topology


def _days(settings: FlowSettings) -> TridentTopology:
    topology = TridentTopology("days")
    kept = DeltaTableSource(settings.lake / "states" / "kept_rides", SCHEMA)
    (
        topology.new_stream("of_rides", kept, slice_by="day")
        .group_by("day")
        .persistent_aggregate(DeltaState("passengers"), "n", Sum(), "passengers")
    )
    return topology


def specs(days_a_run: int | None = None) -> tuple[FlowSpec, FlowSpec]:
    slices = DailySlices(date(2024, 1, 1), date(2024, 1, 31), days_a_run)
    suite = {"kept_rides": (fail("column_values_to_not_be_null", column="line"),)}
    return (
        FlowSpec("rides", "Trips that are plausible.", _rides, slices, suites=suite),
        FlowSpec("days", "Passengers of a day.", _days, slices),
    )


def views(home: Path, days_a_run: int | None = None, lake: str = "") -> list[FlowView]:
    return [FlowView.of(spec, FlowSettings(home, lake)) for spec in specs(days_a_run)]


def definitions(home: Path, days_a_run: int | None = None, lake: str = "") -> dg.Definitions:
    sets = [flow_assets(view) for view in views(home, days_a_run, lake)]
    return dg.Definitions(
        assets=[asset for asset in assets_of(sets) if asset not in [one.deployment for one in sets]],
        asset_checks=[check for one in sets for check in one.suites],
        jobs=[*(slices_job(one) for one in sets), relaunch_slices_job([one.view for one in reversed(sets)])],
        resources={
            "spark": SparkResource(),
            "lake": LakeResource(root=lake or str(home / "lake"), warm=False),
            "nimbus": NimbusResource(store_url=f"sqlite:///{home}/registry.db"),
            "quality": QualityResource(),
        },
        executor=dg.in_process_executor,
    )
