"""The deployment of a flow as an asset: materialized, it submits or updates, and waits until the flow runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.deployment import RUNS_WITHIN, deployment_asset, deployment_key, registry_key, registry_spec
from assets.view import FlowView
from pipelines.nimbus.status import FlowStatus
from resources import NimbusResource
from tests.fake_nimbus import FakeNimbus
from tests.nimbus.looks import RUNNING, flow

pytestmark = pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning")


class Ready(FakeNimbus):
    """Its flows run as soon as a supervisor is there."""

    def ensure_supervisor(self) -> str:
        for name, one in self.flows.items():
            if not one.tasks and not self.stuck:
                self.flows[name] = replace(one, tasks=(RUNNING,))
        return super().ensure_supervisor()


@pytest.fixture
def nimbus(monkeypatch: pytest.MonkeyPatch) -> FakeNimbus:
    fake = Ready()
    monkeypatch.setattr(NimbusResource, "nimbus", lambda _: fake)
    return fake


def materialized(view: FlowView, config: dict[str, Any] | None = None) -> tuple[bool, dict[str, Any], str]:
    """Whether it succeeded, the metadata's plain values, and the reason if it failed."""
    asset = deployment_asset(view)
    done = dg.materialize(
        [asset],
        resources={"nimbus": NimbusResource()},
        run_config={"ops": {asset.op.name: {"config": config or {}}}},
        raise_on_error=False,
    )
    if not done.success:
        failed = done.failure_data_for_node(asset.op.name)
        assert failed is not None
        assert failed.user_failure_data is not None
        return False, {}, str(failed.user_failure_data.description)
    told, event = done.asset_materializations_for_node(asset.op.name)
    assert (told.asset_key, told.tags) == (
        registry_key(view.name),
        {"dagster/data_version": event.tags["dagster/data_version"]},
    )
    assert event.tags["dagster/data_version"].startswith(f"{view.name}-1-")
    return True, {name: value.value for name, value in event.metadata.items()}, ""


def test_its_place_among_the_assets(view: FlowView) -> None:
    asset = deployment_asset(view)
    (spec,) = asset.specs
    assert spec.key == deployment_key("trips") == dg.AssetKey(["deployments", "trips"])
    assert (spec.group_name, spec.kinds) == ("trips", {"spark", "nimbus"})
    assert [dep.asset_key for dep in spec.deps] == [registry_key("trips")] == [dg.AssetKey(["registry", "trips"])]
    assert [dep.asset_key for dep in registry_spec(view).deps] == [dg.AssetKey(["sources", "trips"])]
    assert spec.owners == ["team:trips"]
    assert (spec.description or "").endswith("writes rides, lines.\n\nTrips by line.\n\nTrips by line: `n` passengers.")


def test_the_first_time_submits(view: FlowView, nimbus: FakeNimbus) -> None:
    config = {"trigger_seconds": 2.0, "parallelism": {"trips": 2}, "settings": {"max_attempts": 5}}
    succeeded, metadata, _ = materialized(view, config)
    assert succeeded
    options = {"inactive": False, "trigger_seconds": 2.0, "parallelism": {"trips": 2}, "max_attempts": 5}
    assert nimbus.asked == [
        ("submit", "trips", options),
        ("ensure_supervisor",),
        ("wait", "trips", "running", RUNS_WITHIN),
    ]
    assert (metadata["done"], metadata["status"], metadata["version"]) == ("submitted", "ACTIVE", 1)
    assert (metadata["places"], metadata["txid"], metadata["workers"]) == ("s1:6900", 41, 1)
    assert "| flights | running | s1:6900 |" in metadata["queries"]
    plan = str(deployment_asset(view).specs_by_key[deployment_key("trips")].metadata["plan"].value)
    assert plan.startswith("![plan](data:image/svg+xml;base64,")
    assert nimbus.closed == 1


def test_then_it_updates_and_waits_for_the_new_process(view: FlowView, nimbus: FakeNimbus) -> None:
    nimbus.flows["trips"] = flow("trips", RUNNING)
    succeeded, metadata, _ = materialized(view)
    assert succeeded
    waited = ("wait", "trips", "running", RUNS_WITHIN)
    assert nimbus.asked == [("update", "trips", {"inactive": False}), ("ensure_supervisor",), waited]
    assert (metadata["done"], metadata["version"]) == ("updated", 3)


def test_an_inactive_flow_is_not_waited_for(view: FlowView, nimbus: FakeNimbus) -> None:
    nimbus.stuck = True
    succeeded, metadata, _ = materialized(view, {"inactive": True})
    assert succeeded
    assert (metadata["status"], metadata["places"], metadata["queries"]) == ("INACTIVE", "none", "none")


def test_what_is_refused_is_the_failure_in_its_own_words(view: FlowView, nimbus: FakeNimbus) -> None:
    nimbus.stuck = True
    succeeded, _, reason = materialized(view, {"wait_seconds": 0.1})
    assert not succeeded
    assert reason.startswith('flow "trips" is not running after 0.1 s: no slot is free')
    assert "tridelta logs trips" in reason
    assert RUNS_WITHIN > 60


def test_the_resource_opens_nothing_where_nothing_was_deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path))
    monkeypatch.delenv("TRIDELTA_REGISTRY", raising=False)
    assert NimbusResource().deployed() == {}
    assert list(tmp_path.iterdir()) == []
    with NimbusResource(root=str(tmp_path / "lake")).nimbus() as opened:
        assert opened.cluster().flows == ()
        assert str(opened.lake.root) == str(tmp_path / "lake")
    assert (tmp_path / "nimbus" / "registry.db").exists()
    assert NimbusResource().deployed() == {}


def test_the_resource_tells_what_is_deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path))
    resource = NimbusResource(store_url=f"sqlite:///{tmp_path}/other.db")
    with resource.nimbus() as opened:
        opened.submit("flights", inactive=True)
    found: dict[str, FlowStatus] = resource.deployed()
    assert {name: one.status for name, one in found.items()} == {"flights": "INACTIVE"}
