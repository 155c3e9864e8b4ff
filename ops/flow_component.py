"""FlowComponent: a flow in a project of `dg`, by a few lines of YAML.

```yaml
type: ops.flow_component.FlowComponent
attributes:
  flow: orders                 # of the catalog; or flows.orders:FLOW; or orders.yaml, beside this file
  schedules: {catch_up: "*/5 * * * *", compaction: null}
```
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from assets.factory import FlowAssets, assets_of, flow_assets
from assets.view import FlowView
from ops.jobs.catch_up import catch_up_job
from ops.jobs.compaction import checkpoint_compaction_job
from ops.jobs.nimbus_jobs import nimbus_jobs
from ops.jobs.operator_jobs import operator_jobs
from ops.jobs.relaunch import relaunch_slices_job
from ops.jobs.slices import slices_job
from ops.progress_sensor import flows_sensor
from ops.schedules import (
    CATCH_UP_EVERY,
    COMPACTION_AT,
    SLICES_AT,
    catch_up_schedule,
    compaction_schedule,
    slices_schedule,
)
from pipelines import catalog
from pipelines.catalog import FlowSettings, FlowSpec
from pipelines.catalog.own_code import imported
from pipelines.errors import DefinitionError
from resources import LakeResource, NimbusResource, QualityResource, SparkResource
from resources.fixed import fixed


class FlowSchedules(dg.Model):
    """When a flow runs by itself, as cron says it; null: never."""

    catch_up: str | None = Field(default=CATCH_UP_EVERY, description="Look for what has arrived, and run it.")
    slices: str | None = Field(
        default=SLICES_AT, description="Make the slice of the day before; for flows with slices."
    )
    compaction: str | None = Field(default=COMPACTION_AT, description="Fold and join files, drop what no reader needs.")


class FlowComponent(dg.Component, dg.Model, dg.Resolvable):
    """The assets, checks, jobs and schedules of a flow, as the catalog gives them.

    Jobs are `<flow>_catch_up_job`, `<flow>_checkpoint_compaction_job`, `<flow>_slices_job` where the flow has slices. A flow of
    the catalog (TRIDELTA_FLOWS counts) can be deployed too: then there are its deployment asset, `<flow>_sensor`, and
    `<flow>_activate_job`, `..._deactivate_job`, `..._kill_job`, `..._update_job`, `..._rollback_job`, `..._rebalance_job`.
    Flows that read one stream stand in one component, for each source is one asset.
    """

    flow: str | list[str] = Field(
        ...,
        description="A flow of the catalog by its name; or module:attribute, a FlowSpec; or a flow as YAML, a path beside "
        "this file. Several as a list.",
        examples=["flights", "flows.orders:FLOW", "orders.yaml"],
    )
    schedules: Annotated[FlowSchedules, dg.Resolver.default(description="When the flow runs by itself.")] = (
        FlowSchedules()
    )
    resources: Annotated[
        bool,
        dg.Resolver.default(
            description="Bring spark, lake, nimbus and quality; false where the project has these resources itself."
        ),
    ] = True
    one_process: Annotated[
        bool,
        dg.Resolver.default(
            description="Runs of this project keep to one process, in which steps share a Spark session; false leaves the "
            "project's executor, and a Spark for each step where that starts a process each."
        ),
    ] = True

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """What `dg` shows of it."""
        return dg.ComponentTypeSpec(description="A flow of Tridelta: assets, checks, jobs, schedules.", tags=["spark"])

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The flow's definitions. Starts nothing.

        Raises:
            DefinitionError: the flow cannot be found, or it is wrong.
        """
        settings = FlowSettings.from_environment()
        known = {spec.name for spec in catalog.flows()}
        named = [self.flow] if isinstance(self.flow, str) else self.flow
        views = [FlowView.of(_spec(name, context.path), settings) for name in named]
        sets = [flow_assets(view) for view in views]
        parts = [_jobs(one, self.schedules, deployable=one.view.name in known) for one in sets]
        not_deployable = [
            part for one in sets if one.view.name not in known for part in (one.deployment, one.registry, one.liveness)
        ]
        deployable = [view for view in views if view.name in known]
        return dg.Definitions(
            assets=[asset for asset in assets_of(sets) if asset not in not_deployable],
            asset_checks=[check for one in sets for check in one.checks if check not in not_deployable],
            jobs=[job for jobs, _ in parts for job in jobs],
            schedules=[schedule for _, schedules in parts for schedule in schedules],
            sensors=[flows_sensor([view], f"{view.name}_sensor") for view in deployable],
            resources=_resources(str(settings.lake)) if self.resources else {},
            executor=dg.in_process_executor if self.one_process else None,
        )


@cache
def _resources(lake: str) -> dict[str, Any]:
    """The same objects for every component: Dagster merges no others of one name."""
    return {
        "spark": fixed(SparkResource()),
        "lake": fixed(LakeResource(root=lake)),
        "nimbus": fixed(NimbusResource(root=lake)),
        "quality": fixed(QualityResource()),
    }


def _jobs(one: FlowAssets, schedules: FlowSchedules, *, deployable: bool) -> tuple[list[Any], list[Any]]:
    """The jobs and schedules of a flow."""
    view, name = one.view, one.view.name
    catch_up = catch_up_job([view], f"{name}_catch_up_job")
    compaction = checkpoint_compaction_job([view], f"{name}_checkpoint_compaction_job", tidies=False)
    jobs: list[Any] = [catch_up, compaction, *operator_jobs([view], f"{name}_")]
    jobs += nimbus_jobs([view], f"{name}_") if deployable else []
    made: list[Any] = []
    if schedules.catch_up:
        made.append(catch_up_schedule([view], catch_up, name=f"{name}_catch_up_schedule", cron=schedules.catch_up))
    if schedules.compaction:
        called = f"{name}_checkpoint_compaction_schedule"
        made.append(compaction_schedule(compaction, name=called, cron=schedules.compaction))
    if view.partitions is not None:
        slices = slices_job(one)
        jobs += [slices, relaunch_slices_job([view], f"{name}_relaunch_slices_job")]
        if schedules.slices:
            # The usual time is the schedule's own to choose: one of a flow behind another is later.
            cron = None if schedules.slices == SLICES_AT else schedules.slices
            made.append(slices_schedule(view, slices, cron=cron))
    return jobs, made


# --- which flow -----------------------------------------------------------------------------------------------------


def _spec(named: str, beside: Path) -> FlowSpec:
    """The flow that a component names."""
    if named.endswith((".yaml", ".yml")):
        return _of_file((beside if beside.is_dir() else beside.parent) / named)
    module, colon, attribute = named.partition(":")
    return _of_module(named, module, attribute) if colon else catalog.flow(named)


def _of_file(path: Path) -> FlowSpec:
    from pipelines.flowmix import load_flow

    flow = load_flow(path)
    return FlowSpec(flow.name, flow.description, build=partial(_load, path))


def _load(path: Path, settings: FlowSettings) -> Any:
    from pipelines.flowmix import load_flow

    return load_flow(path)


def _of_module(named: str, module: str, attribute: str) -> FlowSpec:
    found = getattr(imported(module, f"flow {named}"), attribute, None)
    if found is None:
        raise DefinitionError(f"flow {named}: {module} has no {attribute}")
    if not isinstance(found, FlowSpec):
        raise DefinitionError(
            f"flow {named} is a {type(found).__name__}, not a FlowSpec", hint="see pipelines/catalog/flow.py"
        )
    return found
