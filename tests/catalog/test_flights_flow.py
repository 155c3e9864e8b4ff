"""The catalog and its flow "flights", as definitions: no Spark here."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from pipelines.catalog import DailySlices, FlowSettings, FlowSpec, QueryAsset, flow, flows
from pipelines.catalog.flow import Ranking
from pipelines.errors import BadNameError, DefinitionError, FieldError, UnknownFlowError
from pipelines.quality import fail
from pipelines.surroundings import RemoteLocationError
from pipelines.trident import TridentTopology


def test_the_catalog_imports_neither_spark_nor_great_expectations() -> None:
    """Every Dagster process and every command line loads it: a JVM or seven seconds of imports have no place there."""
    code = (
        "import sys, pipelines.catalog as c; [f.topology().build() for f in c.flows()];"
        "print([m for m in ('pyspark', 'great_expectations', 'dagster', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_flow_names_the_nearest() -> None:
    with pytest.raises(UnknownFlowError, match='did you mean "flights"') as caught:
        flow("fligths")
    assert caught.value.known == tuple(spec.name for spec in flows())


@pytest.mark.parametrize("spec", flows(), ids=lambda spec: spec.name)
def test_every_flow_builds_and_has_what_its_queries_and_suites_name(spec: FlowSpec) -> None:
    topology = spec.topology()
    fields = {node.state.name: node.fields for node in topology.persists}
    for one in spec.queries:
        assert one.query is None or one.query in topology.queries
    for state, checks in spec.suites.items():
        for check in checks:
            assert set(check.fields) <= set(fields[state])


def test_flights_states(tmp_path: Path) -> None:
    topology = flow("flights").topology(FlowSettings(tmp_path))
    states = {node.state.name: node.fields for node in topology.persists}
    assert set(states) == {"departures", "carrier_delay", "route_traffic", "airport_hour"}
    assert states["carrier_delay"] == ("carrier", "flights", "dep_delay_sum", "avg_dep_delay", "max_dep_delay")
    assert states["airport_hour"] == ("origin", "hour", "flights", "dep_delay_sum", "avg_dep_delay")
    (spout,) = topology.spouts
    assert spout.slice_by == "date"
    assert str(spout.source.path) == str(tmp_path / "data" / "flights")


def test_home_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path))
    settings = FlowSettings.from_environment()
    assert (settings.lake, settings.data, settings.dagster) == (
        tmp_path / "lake",
        tmp_path / "data",
        tmp_path / "dagster",
    )
    monkeypatch.delenv("TRIDELTA_HOME")
    assert FlowSettings.from_environment().home.name == ".tridelta"


def test_the_lake_may_be_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRIDELTA_LAKE", "s3://bucket/lake")
    settings = FlowSettings.from_environment()
    assert str(settings.lake) == "s3a://bucket/lake"
    assert settings.data == tmp_path / "home" / "data"
    monkeypatch.setenv("TRIDELTA_LAKE", str(tmp_path / "elsewhere"))
    assert FlowSettings.from_environment().lake == tmp_path / "elsewhere"
    monkeypatch.setenv("TRIDELTA_LAKE", "gs://bucket/lake")
    with pytest.raises(
        RemoteLocationError, match=r"the lake \(TRIDELTA_LAKE\) must be a folder of this host, of S3 or of HDFS;"
    ):
        FlowSettings.from_environment()


def test_days_between() -> None:
    slices = DailySlices(date(2013, 1, 1), date(2013, 12, 31))
    assert slices.between("2013-02-27", "2013-03-01") == ["2013-02-27", "2013-02-28", "2013-03-01"]


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        ("2013-03-02", "2013-03-01", "the first is after the last"),
        ("2012-12-31", "2013-01-01", "not a slice of this flow"),
        ("2013-12-31", "2014-01-01", "not a slice of this flow"),
        ("first of May", "2013-01-01", "not a day"),
    ],
)
def test_days_that_are_not_there(first: str, last: str, text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        DailySlices(date(2013, 1, 1), date(2013, 12, 31)).between(first, last)


def test_no_day_of_the_future_where_days_keep_coming() -> None:
    slices, today = DailySlices(date(2024, 1, 1)), datetime.now(UTC).date()
    assert slices.between(today.isoformat(), today.isoformat()) == [today.isoformat()]
    with pytest.raises(DefinitionError, match="go from 2024-01-01 to today"):
        slices.between("2024-01-01", (today + timedelta(days=2)).isoformat())


def test_a_query_asset_about_a_state_that_is_not_there(tmp_path: Path) -> None:
    asset = QueryAsset("best", "", reads=("carriers",))
    spec = FlowSpec("flights", "", build=flow("flights").build, queries=(asset,))
    with pytest.raises(DefinitionError, match='query asset "best" is about state "carriers"'):
        spec.topology(FlowSettings(tmp_path))


def test_columns_that_a_suite_or_a_ranking_names_must_be_there(tmp_path: Path) -> None:
    build = flow("flights").build
    suite = {"carrier_delay": (fail("column_values_to_be_between", column="flihgts", min_value=1),)}
    with pytest.raises(FieldError, match=r'"carrier_delay".*"flihgts".*did you mean "flights"'):
        FlowSpec("flights", "", build=build, suites=suite).topology(FlowSettings(tmp_path))
    asset = QueryAsset("best", "", reads=("carrier_delay",), ranking=Ranking("delay"))
    with pytest.raises(FieldError, match=r'the ranking of "best".*"delay".*the state has: carrier, flights'):
        FlowSpec("flights", "", build=build, queries=(asset,)).topology(FlowSettings(tmp_path))


def test_flow_and_topology_have_one_name(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="returns nothing; return the topology or the flow"):
        FlowSpec("nothing", "Nothing.", lambda settings: None).topology()  # type: ignore[arg-type,return-value]
    with pytest.raises(DefinitionError, match="give both one name"):
        FlowSpec("departures", "", build=lambda _: TridentTopology("flights")).topology(FlowSettings(tmp_path))


def test_names_are_checked() -> None:
    with pytest.raises(BadNameError):
        FlowSpec("Flights!", "", build=flow("flights").build)
    with pytest.raises(DefinitionError, match="reads one state"):
        QueryAsset("best", "", reads=("a", "b"))
