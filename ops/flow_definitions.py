"""Wire flows for Dagster: assets, checks, jobs, schedules, sensors and resources, for a code location or a component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import dagster as dg
from pydantic import Field

from assets.factory import FlowAssets, TakenNames, assets_of, flow_assets, take_names
from assets.flow_order import put_in_order, refuse_circle
from assets.view import FlowView
from ops.jobs.catch_up import catch_up_job
from ops.jobs.compaction import checkpoint_compaction_job
from ops.jobs.nimbus_jobs import nimbus_jobs
from ops.jobs.operator_jobs import operator_jobs
from ops.jobs.relaunch import relaunch_slices_job
from ops.schedules import (
    CATCH_UP_EVERY,
    COMPACTION_AT,
    SLICES_AT,
    catch_up_schedule,
    compaction_schedule,
    flows_sensor,
    rebalance_schedule,
    relaunch_schedule,
    slices_schedule,
)
from pipelines import logs
from pipelines.catalog import FlowSettings, found
from resources import LakeResource, NimbusResource, QualityResource, SparkResource
from resources.dagster_internals import UnresolvedAssetJobDefinition

logger = logs.logger(__name__)

# A year of daily slices takes less than half an hour on two cores; a run of this length hangs.
MAX_RUNTIME_SECONDS = 6 * 3600


def slices_job(flow: FlowAssets) -> UnresolvedAssetJobDefinition:
    """Make a flow's states for the chosen days, their checks, and the answers."""
    return dg.define_asset_job(
        f"{flow.view.name}_slices_job",
        selection=flow.selection,
        description=f"Make days of {flow.view.name} again: each is replaced in a commit of its own.",
        tags={"dagster/max_runtime": str(MAX_RUNTIME_SECONDS)},
    )


class FlowSchedules(dg.Model):
    """The times at which a flow runs by itself, as cron expressions; null: never."""

    catch_up: str | None = Field(default=CATCH_UP_EVERY, description="Check for new files, and run them.")
    slices: str | None = Field(
        default=SLICES_AT, description="Make the slice of the day before; for flows with slices."
    )
    compaction: str | None = Field(default=COMPACTION_AT, description="Fold and join files, drop what no reader needs.")


@dataclass(frozen=True)
class FlowGroup:
    """Flows that share their jobs, schedules and sensor.

    Attributes:
        flows: Their assets.
        name: Begins the names of jobs, schedules and the sensor. Empty: all flows of the code location, for which housekeeping,
            rebalancing and the relaunch of failed slices run on a schedule, too.
        faults: Why others cannot be loaded.
    """

    flows: Sequence[FlowAssets]
    name: str = ""
    schedules: FlowSchedules = field(default_factory=FlowSchedules)
    faults: Sequence[str] = ()

    @property
    def is_whole(self) -> bool:
        """Check whether the group is the whole code location."""
        return not self.name

    @property
    def prefix(self) -> str:
        """Begin the names of what belongs to the group."""
        return f"{self.name}_" if self.name else ""

    @property
    def views(self) -> list[FlowView]:
        return [flow.view for flow in self.flows]

    @property
    def deployable(self) -> list[FlowView]:
        """Return the flows that the registry can deploy."""
        return [flow.view for flow in self.flows if flow.is_deployable]

    @property
    def sliced(self) -> list[FlowAssets]:
        """Return the flows with slices."""
        return [flow for flow in self.flows if flow.view.partitions is not None]


def catalog_group(settings: FlowSettings) -> FlowGroup:
    """Return the flows of the catalog that can be loaded. What is wrong with others is logged, and the sensor of flows shows it.

    Args:
        settings: The folders.
    """
    specs, problems = found()
    flows: list[FlowAssets] = []
    faults = [str(problem) for problem in problems]
    fixed_jobs, _ = _wired(FlowGroup([]))
    names = [name for job in fixed_jobs for name in (job.name, *(node.name for node in job.nodes))]
    taken: TakenNames = {("step", name): ("", f'"{name}" of all flows') for name in names}
    for spec in specs:
        try:
            made = flow_assets(FlowView.of(spec, settings))
            refuse_circle(made.view, [flow.view for flow in flows])
            take_names(made, taken)
            flows.append(made)
        except Exception as error:  # its author's, or Dagster's of a name that it does not take
            faults.append(f'flow "{spec.name}": {type(error).__name__}: {error}')
    for fault in faults:
        logger.error("not loaded", reason=fault)
    return FlowGroup(in_order(flows), faults=faults)


def in_order(flows: Sequence[FlowAssets]) -> list[FlowAssets]:
    """Return the flows, those made anew that Dagster could not put in an order."""
    views = put_in_order([flow.view for flow in flows])
    return [
        flow if view is flow.view else flow_assets(view, is_deployable=flow.is_deployable)
        for flow, view in zip(flows, views, strict=True)
    ]


def flow_definitions(
    groups: Sequence[FlowGroup], lake: str, *, resources: bool = True, one_process: bool = True
) -> dg.Definitions:
    """Return all that Dagster loads of some groups of flows. Starts nothing.

    Args:
        lake: The lake of the resources.
        resources: Whether to bring spark, lake, nimbus and quality.
        one_process: Whether a run keeps to one process: its steps share the Spark session. A process per step would start a
            JVM each.
    """
    flows = [flow for group in groups for flow in group.flows]
    wired = [_wired(group) for group in groups]
    return dg.Definitions(
        assets=assets_of(flows),
        asset_checks=[check for flow in flows for check in flow.checks],
        jobs=[job for jobs, _ in wired for job in jobs],
        schedules=[schedule for _, schedules in wired for schedule in schedules],
        sensors=[
            flows_sensor(
                group.deployable,
                f"{group.prefix}sensor" if group.name else "flows_sensor",
                others=group.is_whole,
                faults=group.faults,
            )
            for group in groups
            if group.is_whole or group.deployable
        ],
        resources=_resources(lake) if resources else {},
        executor=dg.in_process_executor if one_process else None,
    )


def _wired(group: FlowGroup) -> tuple[list[Any], list[Any]]:
    """Return the jobs and the schedules of a group."""
    views, prefix, at = group.views, group.prefix, group.schedules
    catch_up = catch_up_job(views, f"{prefix}catch_up_job")
    compaction = checkpoint_compaction_job(views, f"{prefix}checkpoint_compaction_job", tidies=group.is_whole)
    jobs: list[Any] = [catch_up, compaction, *operator_jobs(views, prefix)]
    schedules: list[Any] = []
    if at.catch_up:
        schedules.append(catch_up_schedule(views, catch_up, name=f"{prefix}catch_up_schedule", cron=at.catch_up))
    if at.compaction:
        name = f"{prefix}checkpoint_compaction_schedule"
        schedules.append(compaction_schedule(compaction, name=name, cron=at.compaction))
    if group.is_whole or group.deployable:
        jobs += nimbus_jobs(group.deployable, prefix)
    if group.is_whole:
        schedules.append(rebalance_schedule(next(job for job in jobs if job.name == "rebalance_job")))
    _wire_slices(group, jobs, schedules)
    return jobs, schedules


def _wire_slices(group: FlowGroup, jobs: list[Any], schedules: list[Any]) -> None:
    # The usual time is the schedule's own to choose: that of a flow behind another one is later.
    cron = None if group.schedules.slices == SLICES_AT else group.schedules.slices
    for flow in group.sliced:
        job = slices_job(flow)
        jobs.append(job)
        if group.schedules.slices:
            schedules.append(slices_schedule(flow.view, job, cron=cron))
    if group.is_whole or group.sliced:
        relaunch = relaunch_slices_job(group.views, f"{group.prefix}relaunch_slices_job")
        jobs.append(relaunch)
        if group.is_whole:
            schedules.append(relaunch_schedule(relaunch))


@cache
def _resources(lake: str) -> dict[str, Any]:
    """Return the same objects to every component: Dagster merges no others of one name."""
    return {
        "spark": fixed(SparkResource()),
        "lake": fixed(LakeResource(root=lake)),
        "nimbus": fixed(NimbusResource(root=lake)),
        "quality": fixed(QualityResource()),
    }


def fixed(resource: dg.ConfigurableResource) -> dg.ResourceDefinition:
    """Return a resource that a launchpad cannot change. Otherwise the config of a run could name another lake or registry."""

    def make(_: dg.InitResourceContext) -> dg.ConfigurableResource:
        return resource

    # A schema without entries: Dagster refuses any config for it before the run.
    return dg.ResourceDefinition(make, config_schema={})
