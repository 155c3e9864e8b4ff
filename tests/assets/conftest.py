"""A small flow with everything that the factories look at: a gate, a table of rows, a keyed state, queries, suites."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from datetime import date
from pathlib import Path

import dagster as dg
import pytest

from assets.factory import assets_of, flow_assets
from assets.view import FlowView
from ops.flow_definitions import slices_job
from ops.jobs.catch_up import catch_up_job
from pipelines.catalog import DailySlices, FlowSettings, FlowSpec, QueryAsset, Ranking
from pipelines.quality import drop, fail, warn
from pipelines.sources import JsonFiles
from pipelines.trident import Average, Count, DeltaState, MapGet, Split, Sum, TridentTopology
from resources import LakeResource, NimbusResource, QualityResource, SparkResource


def build(settings: FlowSettings) -> TridentTopology:
    """Trips by line: `n` passengers."""
    topology = TridentTopology("trips")
    trips = topology.new_stream(
        "trips",
        JsonFiles(settings.data / "trips", "day string, line string, n int", max_files_per_batch=1),
        slice_by="day",
    ).gate(
        fail("column_values_to_be_between", column="n", max_value=1000, name="fits"),
        drop("column_values_to_not_be_null", column="line", name="line_is_there"),
        warn("column_values_to_be_between", column="n", min_value=1, name="not_empty"),
        name="plausible",
    )
    trips.partition_persist(DeltaState("rides"))
    lines = trips.group_by("line").persistent_aggregate(
        DeltaState("lines"), [Count("trips"), Sum("n", "n_sum"), Average("n", "n_avg")]
    )
    (
        topology.new_query_stream("of_lines", "names string")
        .each("names", Split(), "line")
        .state_query(lines, "line", MapGet(), ["trips", "n_sum"])
    )
    return topology


TRIPS = FlowSpec(
    name="trips",
    description="Trips by line.",
    build=build,
    slices=DailySlices(date(2024, 1, 1), date(2024, 1, 31)),
    queries=(
        QueryAsset(
            "line_answers", "", reads=("lines",), query="of_lines", args=(("a b zz",),), ranking=Ranking("n_sum")
        ),
        QueryAsset("top_line", "", reads=("lines",), ranking=Ranking("trips", rows=1)),
    ),
    suites={
        "rides": (fail("column_values_to_not_be_null", column="line"),),
        "lines": (
            fail("column_values_to_be_unique", column="line"),
            warn("column_values_to_be_between", column="trips", max_value=2),
        ),
    },
    owners=("team:trips",),
)

Lay = Callable[[str, list[tuple[str | None, int]]], None]


@pytest.fixture
def settings(tmp_path: Path) -> FlowSettings:
    return FlowSettings(tmp_path)


@pytest.fixture
def lay(settings: FlowSettings) -> Lay:
    """Writes the file of a day: (line, n) a trip."""

    # Spark takes files by their time, which is the same for two that are written at once.
    times = itertools.count(1_700_000_000)

    def write(day: str, trips: list[tuple[str | None, int]]) -> None:
        file, at = settings.data / "trips" / f"{day}.json", next(times)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps({"day": day, "line": line, "n": n}) + "\n" for line, n in trips))
        os.utime(file, (at, at))

    return write


@pytest.fixture
def view(settings: FlowSettings) -> FlowView:
    return FlowView.of(TRIPS, settings)


@pytest.fixture
def defs(view: FlowView, settings: FlowSettings) -> dg.Definitions:
    """The definitions of the small flow alone."""
    made = flow_assets(view)
    return dg.Definitions(
        assets=assets_of([made]),
        asset_checks=made.suites,
        jobs=[catch_up_job([view]), slices_job(made)],
        resources={
            "spark": SparkResource(),
            "lake": LakeResource(root=str(settings.lake)),
            "nimbus": NimbusResource(store_url=f"sqlite:///{settings.home}/registry.db"),
            "quality": QualityResource(),
        },
        executor=dg.in_process_executor,
    )
