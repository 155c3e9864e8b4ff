"""FlowComponent: a flow in a project of `dg`, from a few lines of YAML.

```yaml
type: ops.flow_component.FlowComponent
attributes:
  flow: orders                 # of the catalog; or flows.orders:FLOW; or orders.yaml, beside this file
  schedules: {catch_up: "*/5 * * * *", compaction: null}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from assets.factory import FlowAssets, flow_assets
from assets.flow_order import refuse_circle
from assets.view import FlowView
from ops.flow_definitions import FlowGroup, FlowSchedules, flow_definitions, in_order
from pipelines import catalog
from pipelines.catalog import FlowSettings, FlowSpec
from pipelines.catalog.own_code import imported
from pipelines.errors import DefinitionError

__all__ = ["FlowComponent", "FlowSchedules"]


class FlowComponent(dg.Component, dg.Model, dg.Resolvable):
    """The assets, checks, jobs and schedules of a flow, as the catalog gives them.

    Jobs are `<flow>_catch_up_job`, `..._checkpoint_compaction_job`, `..._query_job`, `..._replay_quarantine_job` and
    `..._skip_batch_job`; where the flow has slices `..._slices_job` and `..._relaunch_slices_job`. A flow of the catalog
    (TRIDELTA_FLOWS counts) can be deployed too: then there are its deployment asset, `<flow>_sensor`, and `<flow>_deploy_job`,
    `..._activate_job`, `..._deactivate_job`, `..._kill_job`, `..._update_job`, `..._rollback_job`, `..._rebalance_job`.
    Flows that read the same stream belong in one component, since each source is one asset.

    None of the jobs is of all flows: a project without another code location of Tridelta runs `tridelta housekeeping` itself.
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
        """Return what `dg` shows of it."""
        return dg.ComponentTypeSpec(description="A flow of Tridelta: assets, checks, jobs, schedules.", tags=["spark"])

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the flow's definitions. Starts nothing.

        Raises:
            DefinitionError: the flow cannot be found, or it is wrong.
        """
        settings = FlowSettings.from_environment()
        known = {spec.name: spec for spec in catalog.found()[0]}
        named = [self.flow] if isinstance(self.flow, str) else self.flow
        flows: list[FlowAssets] = []
        for name in named:
            spec = _same_of_catalog(name, _spec(name, context.path), known)
            view = FlowView.of(spec, settings)
            refuse_circle(view, [flow.view for flow in flows])
            flows.append(flow_assets(view, is_deployable=spec.name in known))
        groups = [FlowGroup([flow], flow.view.name, self.schedules) for flow in in_order(flows)]
        return flow_definitions(groups, str(settings.lake), resources=self.resources, one_process=self.one_process)


# --- which flow -----------------------------------------------------------------------------------------------------


def _same_of_catalog(named: str, spec: FlowSpec, known: Mapping[str, FlowSpec]) -> FlowSpec:
    """Return the catalog's flow of this name if the plan is the same, or the flow itself if the catalog has none of its name.

    Raises:
        DefinitionError: the catalog has another one, whose deployment would be offered.
    """
    from pipelines.nimbus.deployed import plan_digest

    found = known.get(spec.name, spec)
    if found is not spec and plan_digest(found.topology()) != plan_digest(spec.topology()):
        raise DefinitionError(
            f'flow {named}: the catalog has another flow "{spec.name}"',
            hint=f'give it another name, or name the catalog\'s: "flow: {spec.name}"',
        )
    return found


def _spec(named: str, beside: Path) -> FlowSpec:
    """Return the flow that a component names."""
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
    spec = getattr(imported(module, f"flow {named}"), attribute, None)
    if spec is None:
        raise DefinitionError(f"flow {named}: {module} has no {attribute}")
    if not isinstance(spec, FlowSpec):
        raise DefinitionError(
            f"flow {named} is a {type(spec).__name__}, not a FlowSpec", hint="see pipelines/catalog/flow.py"
        )
    return spec
