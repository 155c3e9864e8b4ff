"""A deployment that somebody has changed outside Dagster is out of date, by Dagster's own reckoning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from assets.deployment import deployment_asset, deployment_key, registry_spec
from assets.events.progress import Progress
from assets.sources import source_asset
from assets.view import FlowView
from ops.jobs.nimbus_jobs import nimbus_jobs
from pipelines import Lake
from pipelines.nimbus.status import FlowStatus
from resources import NimbusResource
from tests.fake_nimbus import FakeNimbus
from tests.nimbus.looks import RUNNING, flow

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning")]

KEY = deployment_key("trips")
NOW = 1_800_000_000.0


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as one:
        yield one


class World:
    """Dagster, a registry, and the sensor between them."""

    def __init__(self, view: FlowView, instance: dg.DagsterInstance, nimbus: FakeNimbus) -> None:
        self.view, self.instance, self.nimbus = view, instance, nimbus
        self.cursor: str | None = None
        self.defs = self.of(view)

    def of(self, view: FlowView) -> dg.Definitions:
        sources = [source_asset(view, spout) for spout in view.spouts]
        return dg.Definitions(
            assets=[*sources, registry_spec(view), deployment_asset(view)], resources={"nimbus": NimbusResource()}
        )

    def deploy(self) -> None:
        """Materialize the asset, as one does in the UI."""
        job = self.defs.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=self.instance, asset_selection=[KEY]).success

    def outside(self, version: int) -> None:
        """`tridelta update`, as the registry has it afterwards."""
        self.nimbus.flows["trips"] = replace(
            self.nimbus.flows["trips"], version=version, tasks=(replace(RUNNING, pid=version),)
        )

    def look(self) -> None:
        """A tick of the sensor."""
        progress = Progress([self.view], Lake(self.view.settings.lake), self.cursor)
        deployed: dict[str, FlowStatus] = dict(self.nimbus.flows)
        for event in progress.look(deployed, NOW):
            self.instance.report_runless_asset_event(event)
        self.cursor = progress.cursor

    def stale(self) -> tuple[StaleStatus, list[str]]:
        """What the UI asks for: the status, and the causes in words."""
        graph = self.defs.resolve_asset_graph()
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        causes = resolver.get_stale_causes(KEY)
        said = [
            f"{one.dependency_asset_key and one.dependency_asset_key.to_user_string()}: {one.reason}" for one in causes
        ]
        return resolver.get_status(KEY), said


@pytest.fixture
def world(view: FlowView, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> World:
    nimbus = FakeNimbus()
    monkeypatch.setattr(NimbusResource, "nimbus", lambda _: nimbus)
    nimbus.flows["trips"] = flow("trips", RUNNING)
    return World(view, instance, nimbus)


CODE = "None: has a new code version"
UPDATED = (StaleStatus.STALE, ["registry/trips: has a new dependency data version"])


def test_a_flow_that_is_updated_outside_is_out_of_date_until_it_is_deployed_again(world: World) -> None:
    world.look()
    assert world.stale() == (StaleStatus.MISSING, [])
    world.deploy()
    # Before the sensor has looked, and after.
    assert world.stale() == (StaleStatus.FRESH, [])
    world.look()
    assert world.stale() == (StaleStatus.FRESH, [])
    world.outside(version=9)
    world.look()
    assert world.stale() == UPDATED
    world.deploy()
    world.look()
    assert world.stale() == (StaleStatus.FRESH, [])


def test_a_flow_that_is_removed_outside_is_out_of_date(world: World) -> None:
    world.deploy()
    world.look()
    assert world.stale() == (StaleStatus.FRESH, [])
    del world.nimbus.flows["trips"]
    world.look()
    assert world.stale() == UPDATED


@pytest.mark.parametrize(
    ("job", "then"),
    [
        ("deploy_job", (StaleStatus.FRESH, [])),
        ("update_job", (StaleStatus.FRESH, [])),
        ("rollback_job", (StaleStatus.STALE, [CODE])),
    ],
)
def test_the_jobs_keep_it_up_to_date_with_what_they_made(
    world: World, job: str, then: tuple[StaleStatus, list[str]]
) -> None:
    world.deploy()
    # Names of its own: Dagster keeps one list of flows to choose from a name.
    (made,) = [one for one in nimbus_jobs([world.view], "trips_") if one.name == f"trips_{job}"]
    config = {"ops": {f"trips_{job.replace('job', 'flow')}": {"config": {"flow": "trips", "wait_at_most": 0.0}}}}
    done = made.execute_in_process(instance=world.instance, run_config=config, resources={"nimbus": NimbusResource()})
    assert done.success
    assert world.stale() == then
    world.look()
    assert world.stale() == then


def test_what_arrives_does_not_make_it_out_of_date(world: World) -> None:
    world.deploy()
    world.look()
    seen = dg.AssetObservation(["sources", "trips"], tags={"dagster/data_version": "more files"})
    world.instance.report_runless_asset_event(seen)
    assert world.stale() == (StaleStatus.FRESH, [])


def test_another_plan_in_the_catalog_makes_it_out_of_date(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.deploy()
    world.look()
    monkeypatch.setattr("pipelines.planner.plan.TopologyPlan.digest", lambda _: "another")
    world.defs = world.of(world.view)
    status, causes = world.stale()
    assert (status, causes) == (StaleStatus.STALE, [CODE])
