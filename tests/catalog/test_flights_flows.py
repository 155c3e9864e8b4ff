"""The event flows over the departures: what they are, and that pandas finds the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.catalog import FlowSettings, FlowSpec, flow
from pipelines.catalog.flights_data import lay_out
from pipelines.catalog.flights_expected import EXPECTED, Comparison, compared
from pipelines.catalog.flights_flows import FLIGHTS_FLOWS
from pipelines.execution.verify import verify
from pipelines.graph.nodes import ChannelNode, LatePersistNode

TABLES = {
    "late_departures": "delay_alerts",
    "departure_weather": "departures_with_weather",
    "worst_routes": "worst_routes_of_the_day",
    "delay_notices": "long_delay_notices",
}


def ran(spark: SparkSession, settings: FlowSettings, specs: Sequence[FlowSpec] = FLIGHTS_FLOWS) -> Lake:
    lake = Lake(settings.lake)
    runtime = Runtime(spark, lake)
    for spec in specs:
        runtime.catch_up(spec.build(settings))
    return lake


def agree(found: list[Comparison]) -> bool:
    assert {one.table: (one.missing, one.more) for one in found} == dict.fromkeys(EXPECTED, (0, 0))
    return all(one.rows > 0 for one in found)


@pytest.mark.parametrize("spec", FLIGHTS_FLOWS, ids=lambda spec: spec.name)
def test_each_flow_ends_in_one_table(spec: FlowSpec, tmp_path: Path) -> None:
    persists = spec.topology(FlowSettings(tmp_path)).persists
    told = [node.state.name for node in persists if not isinstance(node, ChannelNode | LatePersistNode)]
    assert told == [TABLES[spec.name]]
    assert set(TABLES.values()) == set(EXPECTED)


def test_columns_are_traced_back_to_the_files(tmp_path: Path) -> None:
    lineage = flow("departure_weather").topology(FlowSettings(tmp_path)).build().lineage
    weather, flights = "departure_weather__weather__under_weather", "departure_weather__flights__under_weather"
    joined = lineage["departures_with_weather"]
    assert joined["visib"] == ((weather, "visib"),)
    assert joined["dep_delay"] == ((flights, "dep_delay"),)
    assert joined["origin"] == ((weather, "origin"), (flights, "origin"))
    assert lineage[weather]["visib"] == (("weather", "visib"),)
    assert lineage[weather]["_event_time"] == tuple(("weather", name) for name in ("year", "month", "day", "hour"))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "days"), [(2, 4), (16, 31)])
@pytest.mark.exhaustive
def test_days_in_two_runs_are_what_pandas_computes(spark: SparkSession, tmp_path: Path, first: int, days: int) -> None:
    """The second run's windows go on where those of the first were."""
    settings = FlowSettings(tmp_path)
    lay_out(settings.data, days=first)
    agree(compared(ran(spark, settings), first))
    lay_out(settings.data, days=days)
    lake = ran(spark, settings)
    # No airport is late for long enough in every week.
    assert agree(compared(lake, days)) or days < 31
    for spec in FLIGHTS_FLOWS:
        report = verify(spark, lake, spec.topology(settings))
        assert report.findings
        assert not report.differing


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_year_is_what_pandas_computes(spark: SparkSession, tmp_path: Path) -> None:
    settings = FlowSettings(tmp_path)
    lay_out(settings.data)
    assert agree(compared(ran(spark, settings)))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_flight_without_a_time_is_late_and_holds_up_nothing(spark: SparkSession, tmp_path: Path) -> None:
    settings, notices_alone = FlowSettings(tmp_path), [flow("delay_notices")]
    lay_out(settings.data, days=3)
    lake = ran(spark, settings, notices_alone)
    odd = settings.data / "flights" / "2013-01-04.json"
    odd.write_text('{"date":"2013-01-04","origin":"EWR","dest":"BOS","carrier":"UA","flight":1,"dep_delay":90}\n')
    ran(spark, settings, notices_alone)
    late = lake.state("late_delay_notices_flights").scan().to_pylist()
    assert [(row["date"], row["flight"], row["event_time"].year) for row in late] == [("2013-01-04", 1, 1970)]
    odd.unlink()
    lay_out(settings.data, days=6)
    ran(spark, settings, notices_alone)
    notices = lake.state("long_delay_notices").scan()["date"].to_pylist()
    assert max(notices) == "2013-01-06"
