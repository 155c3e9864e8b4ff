"""FlowComponent: the same definitions as the catalog gives, from a few lines of YAML."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from ops.flow_component import FlowComponent, FlowSchedules, _of_file
from pipelines import catalog
from pipelines.catalog import flow as flow_of
from pipelines.catalog.flow import PROJECT
from pipelines.errors import DefinitionError, FlowFileError, UnknownFlowError

# Dagster reads its own deprecated property when it resolves definitions; components are in preview in places.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
]
TYPE = "ops.flow_component.FlowComponent"


@pytest.fixture(autouse=True)
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRIDELTA_FLOWS", raising=False)


def loaded(*components: dict[str, Any], files: dict[str, str] | None = None) -> dg.Definitions:
    """The definitions of a project whose folder holds a component for each of the attributes."""
    with create_defs_folder_sandbox() as sandbox:
        for attributes in components:
            path = sandbox.scaffold_component(
                component_cls=FlowComponent, defs_yaml_contents={"type": TYPE, "attributes": attributes}
            )
            for name, text in (files or {}).items():
                (path / name).write_text(text)
        with sandbox.build_all_defs() as defs:
            # Resolved while the sandbox's module can be imported.
            defs.get_repository_def()
            return defs


def assets_and_checks(defs: dg.Definitions, group: str) -> tuple[set[str], set[str]]:
    graph = defs.resolve_asset_graph()
    keys = {key for key in graph.get_all_asset_keys() if graph.get(key).group_name == group}
    checks = {str(key) for key in graph.asset_check_keys if key.asset_key in keys}
    return {key.to_user_string() for key in keys}, checks


def jobs_and_schedules(defs: dg.Definitions) -> tuple[set[str], dict[str, str]]:
    repository = defs.get_repository_def()
    jobs = {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")}
    return jobs, {one.name: str(one.cron_schedule) for one in repository.schedule_defs}


@pytest.mark.slow
def test_a_flow_of_the_catalog_is_as_the_catalog_gives_it() -> None:
    import definitions

    defs = loaded({"flow": "flights"})
    assert assets_and_checks(defs, "flights") == assets_and_checks(definitions.defs, "flights")
    jobs, schedules = jobs_and_schedules(defs)
    verbs = ("activate", "deactivate", "kill", "update", "rollback", "rebalance")
    assert {"flights_catch_up_job", "flights_slices_job", "flights_checkpoint_compaction_job"} <= jobs
    assert {f"flights_{verb}_job" for verb in verbs} <= jobs
    assert {f"flights_{verb}_job" for verb in ("replay_quarantine", "skip_batch", "query", "relaunch_slices")} <= jobs
    assert schedules == {
        "flights_catch_up_schedule": "*/10 * * * *",
        "flights_slices_schedule": "0 1 * * *",
        "flights_checkpoint_compaction_schedule": "0 3 * * *",
    }
    assert set(defs.resources or {}) == {"spark", "lake", "nimbus", "quality"}
    dg.Definitions.validate_loadable(defs)


def test_schedules_are_chosen() -> None:
    chosen = {"catch_up": "*/5 * * * *", "slices": None, "compaction": None}
    defs = loaded({"flow": "flights", "schedules": chosen})
    assert jobs_and_schedules(defs)[1] == {"flights_catch_up_schedule": "*/5 * * * *"}


def test_a_project_may_bring_its_own_resources_and_executor() -> None:
    from dagster.components.core.component_tree import ComponentTree

    component = FlowComponent(flow="flights", resources=False, one_process=False)
    defs = component.build_defs(ComponentTree.for_test().load_context)
    assert not defs.resources
    assert defs.executor is None


def test_two_components_stand_beside_each_other() -> None:
    defs = loaded({"flow": "departure_weather"}, {"flow": "orders.yaml"}, files={"orders.yaml": ORDERS})
    dg.Definitions.validate_loadable(defs)
    jobs, _ = jobs_and_schedules(defs)
    assert {"departure_weather_catch_up_job", "orders_catch_up_job"} <= jobs


def test_flows_that_read_one_stream_stand_in_one_component() -> None:
    defs = loaded({"flow": ["flights", "late_departures"]})
    jobs, _ = jobs_and_schedules(defs)
    assert {"flights_catch_up_job", "late_departures_catch_up_job"} <= jobs
    assert "delay_alerts" in assets_and_checks(defs, "late_departures")[0]


ORDERS = """
flow: orders
description: What was ordered.
streams:
  - name: orders_in
    source: {json_files: {path: in, schema: "shop string, cents bigint"}}
    operations:
      - gate: {name: sane, checks: [{drop: {expectation: column_values_to_not_be_null, column: shop}}]}
      - persist: orders_kept
"""


def test_a_flow_as_yaml_lies_beside_the_component() -> None:
    defs = loaded({"flow": "orders.yaml"}, files={"orders.yaml": ORDERS})
    assets, _ = assets_and_checks(defs, "orders")
    assert {"orders_kept", "sources/orders_in"} <= assets
    # The registry knows flows by the catalog: this one runs, and cannot be deployed.
    assert "deployments/orders" not in assets
    verbs = ("catch_up", "checkpoint_compaction", "replay_quarantine", "skip_batch", "query")
    assert jobs_and_schedules(defs)[0] == {f"orders_{verb}_job" for verb in verbs}


def test_a_flow_of_a_module() -> None:
    defs = loaded({"flow": "pipelines.catalog.flights:FLIGHTS"})
    assert "carrier_delay" in assets_and_checks(defs, "flights")[0]


@pytest.mark.parametrize(
    ("named", "error", "said"),
    [
        ("nothing", UnknownFlowError, 'no flow "nothing"'),
        ("no.such.module:FLOW", DefinitionError, "cannot be imported"),
        ("pipelines.catalog.flights:NOTHING", DefinitionError, "has no NOTHING"),
        ("pipelines.catalog.flights:KEPT", DefinitionError, "is a list, not a FlowSpec"),
        ("nothing.yaml", (FlowFileError, OSError), "nothing.yaml"),
    ],
)
def test_what_is_no_flow_is_refused(named: str, error: Any, said: str) -> None:
    from dagster.components.core.component_tree import ComponentTree

    context = ComponentTree.for_test().load_context
    with pytest.raises(error) as refused:
        FlowComponent(flow=named).build_defs(context)
    assert said in str(refused.value)


def test_what_is_said_of_it() -> None:
    schema = FlowComponent.get_model_cls().model_json_schema()
    assert set(schema["properties"]) == {"flow", "schedules", "resources", "one_process"}
    assert all("description" in one for one in schema["properties"].values())
    assert FlowSchedules().slices == "0 1 * * *"
    assert flow_of("flights").slices is not None


@pytest.mark.slow
def test_dg_finds_it() -> None:
    dg_command = str(Path(sys.executable).with_name("dg"))
    done = subprocess.run(
        [dg_command, "list", "components", "--json"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    listed = json.loads(done.stdout[done.stdout.index('{"items"') :])
    assert TYPE in {one["key"] for one in listed["items"]}


def test_the_catalogs_flow_may_be_named_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orders.yaml").write_text(ORDERS)
    own = _of_file(tmp_path / "orders.yaml")
    assert own is not _of_file(tmp_path / "orders.yaml")
    monkeypatch.setattr(catalog, "found", lambda: ([own], []))
    defs = FlowComponent(flow="orders.yaml").build_defs(cast("Any", SimpleNamespace(path=tmp_path)))
    assert dg.AssetKey(["deployments", "orders"]) in defs.resolve_asset_graph().get_all_asset_keys()


def test_another_flow_of_a_catalog_name_is_refused(tmp_path: Path) -> None:
    """It would offer the deployment of the catalog's flow as its own."""
    (tmp_path / "mine.yaml").write_text(ORDERS.replace("flow: orders", "flow: flights"))
    component = FlowComponent(flow="mine.yaml")
    with pytest.raises(DefinitionError, match='the catalog has another flow "flights"'):
        component.build_defs(cast("Any", SimpleNamespace(path=tmp_path)))
