"""All that Dagster loads: by module, by workspace.yaml and by [tool.dg], the same; and as it was last time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

import pipelines.catalog
from ops.flow_definitions import catalog_group, flow_definitions
from pipelines.catalog import DailySlices, FlowSettings, FlowSpec, QueryAsset
from pipelines.quality import warn
from pipelines.sources import DeltaTableSource, FixedBatches
from pipelines.trident import Count, DeltaState, MapGet, TridentTopology

PROJECT = Path(__file__).resolve().parent.parent
SNAPSHOT = PROJECT / "tests" / "definitions_snapshot.json"

# Dagster reads its own deprecated property when it resolves definitions.
pytestmark = pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning")


def describe(defs: dg.Definitions) -> dict[str, Any]:
    """Everything that a person sees of the definitions, in an order of its own."""
    graph = defs.resolve_asset_graph()
    repository = defs.get_repository_def()
    nodes = [graph.get(key) for key in sorted(graph.get_all_asset_keys())]
    return {
        "assets": {
            node.key.to_user_string(): {
                "group": node.group_name,
                "parents": sorted(key.to_user_string() for key in node.parent_keys),
                "kinds": sorted(node.kinds),
                "owners": sorted(node.owners),
                "tags": {name: value for name, value in sorted(node.tags.items()) if not name.startswith("dagster/")},
                "partitions": len(node.partitions_def.get_partition_keys()) if node.partitions_def else None,
                "pools": sorted(node.pools or ()),
                "metadata": sorted(node.metadata),
                "checks": sorted(key.name for key in graph.asset_check_keys if key.asset_key == node.key),
            }
            for node in nodes
        },
        "jobs": {
            job.name: {"steps": sorted(node.name for node in job.nodes), "tags": dict(sorted(job.run_tags.items()))}
            for job in sorted(repository.get_all_jobs(), key=lambda job: job.name)
            if not job.name.startswith("__")
        },
        "schedules": {
            one.name: {"cron": one.cron_schedule, "job": one.job_name, "status": one.default_status.value}
            for one in sorted(repository.schedule_defs, key=lambda one: one.name)
        },
        "sensors": {
            one.name: {"seconds": one.minimum_interval_seconds, "status": one.default_status.value}
            for one in sorted(repository.sensor_defs, key=lambda one: one.name)
        },
        "resources": sorted(repository.get_top_level_resources()),
    }


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    from definitions import defs

    return defs


def test_they_load(defs: dg.Definitions) -> None:
    dg.Definitions.validate_loadable(defs)
    assert {job.name for job in defs.jobs or ()} >= {"checkpoint_compaction_job"}


def test_they_are_as_in_the_snapshot(defs: dg.Definitions) -> None:
    """On purpose otherwise? TRIDELTA_UPDATE_SNAPSHOT=1 pytest tests/test_definitions.py, and read the difference."""
    seen = json.loads(json.dumps(describe(defs)))
    if os.environ.get("TRIDELTA_UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text(json.dumps(seen, indent=2) + "\n")
    assert seen == json.loads(SNAPSHOT.read_text())


def test_schedules_are_on(defs: dg.Definitions) -> None:
    off = {
        one.name
        for one in defs.get_repository_def().schedule_defs
        if one.default_status != dg.DefaultScheduleStatus.RUNNING
    }
    # What a gate refuses fails again until a person has looked.
    assert off == {"relaunch_slices_schedule"}


@pytest.mark.slow
def test_loading_starts_no_jvm_and_imports_no_spark() -> None:
    code = (
        "import sys, definitions;"
        "print([m for m in ('pyspark', 'py4j', 'great_expectations', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_module_is_short() -> None:
    assert len((PROJECT / "definitions.py").read_text().splitlines()) < 80


def test_workspace_and_dg_name_the_same_module() -> None:
    module = yaml.safe_load((PROJECT / "workspace.yaml").read_text())["load_from"][0]["python_module"]
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["dg"]["project"]
    assert module["module_name"] == project["code_location_target_module"] == "definitions"


@pytest.mark.slow
def test_workspace_yaml_loads_the_same(defs: dg.Definitions, monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster._core.test_utils import instance_for_test
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget

    monkeypatch.chdir(PROJECT)
    target = WorkspaceFileTarget([str(PROJECT / "workspace.yaml")])
    with instance_for_test() as instance, WorkspaceProcessContext(instance, target) as process:
        location = process.create_request_context().get_code_location("tridelta")
        (repository,) = location.get_repositories().values()
        expected = describe(defs)
        assert {node.asset_key.to_user_string() for node in repository.get_asset_node_snaps()} == set(
            expected["assets"]
        )
        jobs = {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")}
        assert jobs == set(expected["jobs"])
        assert {one.name for one in repository.get_schedules()} == set(expected["schedules"])


@pytest.mark.slow
def test_dg_loads_the_same(defs: dg.Definitions, tmp_path: Path) -> None:
    dg_command = str(Path(sys.executable).with_name("dg"))
    shutil.copy(PROJECT / "dagster.yaml", tmp_path)
    environment = os.environ | {"DAGSTER_HOME": str(tmp_path)}
    checked = subprocess.run(
        [dg_command, "check", "defs"], cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    listed = subprocess.run(
        [dg_command, "list", "defs", "--json"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stdout + listed.stderr
    seen = json.loads(listed.stdout[listed.stdout.index("{" if "{" in listed.stdout.splitlines()[0] else "[") :])
    expected = describe(defs)
    names = _names(seen)
    assert set(expected["assets"]) <= names
    assert set(expected["jobs"]) <= names
    assert set(expected["schedules"]) <= names


def _names(listed: Any) -> set[str]:
    """The keys and names of everything that `dg list defs` lists, whatever its nesting."""
    if isinstance(listed, dict):
        own = {str(listed[field]) for field in ("asset_key", "key", "name") if isinstance(listed.get(field), str)}
        return own.union(*(_names(value) for value in listed.values()))
    if isinstance(listed, list):
        return set().union(*(_names(one) for one in listed))
    return set()


def test_a_flow_or_a_module_that_cannot_be_loaded_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What others read of it is there no more: a table that somebody else writes."""
    (tmp_path / "unsound_flow.py").write_text(
        "from pipelines.catalog import FlowSpec\n\ndef build(settings):\n    raise RuntimeError('unsound')\n\n"
        "FLOWS = [FlowSpec('unsound', 'Fails.', build)]\n"
    )
    (tmp_path / "unsound_module.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TRIDELTA_FLOWS", "unsound_flow,unsound_module")
    flights = replace(pipelines.catalog.FLIGHTS, build=lambda _: None)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr("pipelines.catalog.FLOWS", (flights, *pipelines.catalog.FLOWS[1:]))
    group = catalog_group(FlowSettings(tmp_path))
    assert [view.name for view in group.views] == [spec.name for spec in pipelines.catalog.FLOWS[1:]]
    defs = flow_definitions([group], str(tmp_path / "lake"))
    dg.Definitions.validate_loadable(defs)
    (sensor,) = defs.sensors or ()
    for said in ("RuntimeError: unsound", "no_such_package", "its build function returns nothing"):
        assert said in caplog.text
        assert said in str(sensor.description)


def shop(name: str, *, state: str, queries: tuple[str, ...] = ()) -> FlowSpec:
    """A flow with a step of every kind."""

    def build(_: FlowSettings) -> TridentTopology:
        made = TridentTopology(name)
        made.new_stream(f"{name}_in", FixedBatches("day string, n bigint", []), slice_by="day").partition_persist(
            DeltaState(state)
        )
        return made

    return FlowSpec(
        name,
        "A shop.",
        build,
        slices=DailySlices(date(2026, 1, 1)),
        suites={state: (warn("column_values_to_not_be_null", column="n"),)},
        queries=tuple(QueryAsset(query, "Asks.", (state,)) for query in queries),
    )


def test_an_answer_may_have_the_name_of_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> set[str]:
        defs = flow_definitions([catalog_group(FlowSettings(tmp_path))], str(tmp_path / "lake"))
        dg.Definitions.validate_loadable(defs)
        jobs = defs.get_repository_def().get_all_jobs()
        graphs = {job.graph.name for job in jobs if not job.name.startswith("__")}
        return graphs | {node.name for job in jobs for node in job.nodes}

    monkeypatch.setattr("pipelines.catalog.FLOWS", (shop("orders", state="kept"),))
    names = steps()
    assert {"check_orders", "orders_states", "kept_suite", "query_op", "housekeeping", "sources__orders_in"} <= names
    monkeypatch.setattr("pipelines.catalog.FLOWS", (shop("orders", state="kept", queries=(*sorted(names),)),))
    assert len(steps()) == 2 * len(names)


@pytest.mark.parametrize("name", ["job", "slices_job"])
def test_a_flow_whose_steps_have_the_names_of_jobs_is_left_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster has one space of names for steps and for the graphs of jobs."""
    flows = (shop("check", state="kept"), shop(name, state="others"))
    monkeypatch.setattr("pipelines.catalog.FLOWS", flows)
    group = catalog_group(FlowSettings(tmp_path))
    dg.Definitions.validate_loadable(flow_definitions([group], str(tmp_path / "lake")))
    assert [view.name for view in group.views] == ["check"]
    (fault,) = group.faults
    assert f"a step of the jobs of flow {name} has the name of " in fault


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (shop("a", state="kept"), shop("b", state="kept"), 'the state "kept" of flow b has the name of the state'),
        (shop("check_a", state="x"), shop("a_states", state="y"), "a step of the jobs of flow a_states has the name"),
        (
            shop("a", state="x", queries=("c",)),
            shop("b", state="c"),
            'the state "c" of flow b has the name of the query',
        ),
    ],
)
def test_a_flow_whose_names_are_taken_is_left_out(
    first: FlowSpec, second: FlowSpec, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shop("other", state="others")
    monkeypatch.setattr("pipelines.catalog.FLOWS", (first, second, other))
    group = catalog_group(FlowSettings(tmp_path))
    assert [view.name for view in group.views] == [first.name, other.name]
    dg.Definitions.validate_loadable(flow_definitions([group], str(tmp_path / "lake")))
    (fault,) = group.faults
    assert said in fault


def asking(name: str, state: str, *, reads: str = "", queries: str = "", answers: str = "") -> FlowSpec:
    """A flow that writes `state`, and `answers` from a query of another state."""

    def build(settings: FlowSettings) -> TridentTopology:
        made = TridentTopology(name)
        place = settings.lake / "states" / reads
        source = DeltaTableSource(place, "k string, n bigint") if reads else FixedBatches("k string, n bigint", [])
        stream = made.new_stream(f"{name}_in", source)
        if queries and not answers:
            stream = stream.state_query(queries, "k", MapGet(), "seen bigint")
        stream.group_by("k").persistent_aggregate(DeltaState(state), Count(), "seen")
        if answers:
            stream.state_query(queries, "k", MapGet(), "seen bigint").partition_persist(DeltaState(answers))
        return made

    return FlowSpec(name, "Asks.", build)


ORDERS = asking("orders", "orders", queries="totals", answers="told")
TOTALS = asking("totals", "totals", reads="orders")


@pytest.mark.parametrize(
    ("flows", "parents"),
    [
        ((ORDERS, TOTALS), {"told": {"sources/orders_in"}, "totals": {"orders"}}),
        ((TOTALS, ORDERS), {"told": {"sources/orders_in"}, "totals": {"orders"}}),
        # Two that query each other: the first one comes behind.
        (
            (asking("a", "x", queries="y"), asking("b", "y", queries="x")),
            {"x": {"sources/a_in", "y"}, "y": {"sources/b_in"}},
        ),
        # Through a third one.
        (
            (asking("a", "x", queries="z"), asking("b", "y", reads="x"), asking("c", "z", reads="y")),
            {"x": {"sources/a_in"}, "y": {"x"}, "z": {"y"}},
        ),
        # A flow that queries what it writes itself, before it writes it.
        ((asking("a", "x", queries="x"),), {"x": {"sources/a_in"}}),
        ((asking("a", "x", queries="x", answers="y"),), {"x": {"sources/a_in"}, "y": {"sources/a_in", "x"}}),
    ],
)
def test_flows_that_query_what_is_made_of_them_load(
    flows: tuple[FlowSpec, ...], parents: dict[str, set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.catalog.FLOWS", flows)
    group = catalog_group(FlowSettings(tmp_path))
    assert group.faults == []
    defs = flow_definitions([group], str(tmp_path / "lake"))
    dg.Definitions.validate_loadable(defs)
    seen = describe(defs)["assets"]
    assert {name: set(seen[name]["parents"]) for name in parents} == parents


def test_a_flow_that_closes_a_circle_of_tables_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = asking("a", "x", reads="z"), asking("b", "y", reads="x")
    third, other = asking("c", "z", reads="y"), asking("other", "others", queries="z")
    monkeypatch.setattr("pipelines.catalog.FLOWS", (first, second, third, other))
    group = catalog_group(FlowSettings(tmp_path))
    dg.Definitions.validate_loadable(flow_definitions([group], str(tmp_path / "lake")))
    assert [view.name for view in group.views] == ["a", "b", "other"]
    (fault,) = group.faults
    assert 'flow "c" reads the table "y" of the flow "b"' in fault


def test_a_flow_that_reads_its_table_to_make_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.catalog.FLOWS", (asking("a", "x", reads="x"), asking("other", "others")))
    group = catalog_group(FlowSettings(tmp_path))
    dg.Definitions.validate_loadable(flow_definitions([group], str(tmp_path / "lake")))
    assert [view.name for view in group.views] == ["other"]
    assert "is read to make itself" in group.faults[0]
