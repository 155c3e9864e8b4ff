"""A deployed flow as an asset: materializing it submits or updates the flow, and waits until it runs.

Beside it stands the registry's version of the flow, as an external asset: by it a deployment shows as out of date.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from assets.events import markdown
from assets.events.reporting import plain_failures
from assets.view import FlowView
from pipelines import bounds
from pipelines.private import masked_settings
from resources.dagster_internals import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    INPUT_DATA_VERSION_TAG_PREFIX,
    INPUT_EVENT_POINTER_TAG_PREFIX,
    NULL_EVENT_POINTER,
)
from resources.engine import NimbusResource

if TYPE_CHECKING:
    from pipelines.nimbus.nimbus import Nimbus
    from pipelines.nimbus.status import FlowStatus

NOTHING = "none"
"""The version of a flow that is not deployed."""


def registry_key(flow: str) -> dg.AssetKey:
    """Return the asset of what the registry holds of a flow."""
    return dg.AssetKey(["registry", flow])


def registry_spec(view: FlowView) -> dg.AssetSpec:
    """Return the spec of that asset: nothing makes it, the sensor reports its versions.

    Dagster compares the version of `registry/FLOW` with the one that the last materialization of `deployments/FLOW` says it has
    made. A flow that was updated, rolled back or removed from the command line has another one: the deployment is "unsynced"
    until somebody materializes it again. What arrives at the flow's sources changes nothing about that.
    """
    return dg.AssetSpec(
        registry_key(view.name),
        deps=list(dict.fromkeys(map(view.key_of, view.spouts))),
        description=f"The version of the flow {view.name} in the registry, whoever put it there.",
        **view.labels,
        kinds={"nimbus"},
    )


def version_of(seen: "FlowStatus | None") -> str:
    """Return the version of a deployed flow: submission and number."""
    return NOTHING if seen is None else f"{seen.id}/{seen.version}"


def registered(flow: str, seen: "FlowStatus | None") -> dg.AssetMaterialization:
    """Report what the registry holds now. Dagster takes the versions of an asset of specs off materializations."""
    metadata: dict[str, Any] = {"deployed": False} if seen is None else {"version": seen.version, "status": seen.status}
    return dg.AssetMaterialization(registry_key(flow), metadata=metadata, tags={DATA_VERSION_TAG: version_of(seen)})


def made_from(seen: "FlowStatus") -> Mapping[str, str]:
    """Return tags for a materialization of a deployment: the registry's version is the one that it has made itself.

    Dagster by itself would say the version that was there before.
    """
    key = registry_key(seen.name).to_user_string()
    return {
        f"{INPUT_DATA_VERSION_TAG_PREFIX}/{key}": version_of(seen),
        f"{INPUT_EVENT_POINTER_TAG_PREFIX}/{key}": NULL_EVENT_POINTER,
    }


def told_by_a_job(seen: "FlowStatus", code: str) -> Mapping[str, str]:
    """Return tags of a materialization that a job logs: with what Dagster adds where the asset itself is run."""
    return {DATA_VERSION_TAG: version_of(seen), CODE_VERSION_TAG: code, **made_from(seen)}


RUNS_WITHIN = 180.0


class DeploymentConfig(dg.Config):
    """The settings of a deployment. What is not said stays as it is in a flow that is deployed already."""

    trigger_seconds: float | None = bounds.TRIGGER_SECONDS.field(
        None, description="How often a batch begins, in seconds; 5 if new."
    )
    workers: int | None = bounds.WORKERS.field(None, description="The most worker processes that the flow may have.")
    parallelism: dict[str, int] = Field({}, description="Tasks by stream or state, e.g. {flights: 4}.")
    settings: dict[str, Any] = Field(
        {},
        description="More settings of the flow, e.g. {isolated: true, max_attempts: 5}; docs/deploy.md has them all.",
    )
    inactive: bool = Field(False, description="Deploy a new flow, but start no batch.")
    wait_seconds: float = bounds.WAIT_SECONDS.field(
        RUNS_WITHIN, description="Seconds to wait until it runs; 0: not at all."
    )


def deployment_key(flow: str) -> dg.AssetKey:
    """Return the asset key of a flow's deployment."""
    return dg.AssetKey(["deployments", flow])


def deployment_asset(view: FlowView) -> dg.AssetsDefinition:
    """Build the asset of a flow's deployment. It reads the flow's sources; runs write states too, so those keep their lineage."""

    @dg.asset(
        key=deployment_key(view.name),
        deps=[registry_key(view.name)],
        # A deployment of another plan is out of date, too.
        code_version=view.plan.digest(),
        description=f"The flow {view.name}, deployed: it runs around the clock and writes {', '.join(view.states)}.\n\n"
        f"{view.description}".rstrip(),
        **view.labels,
        kinds={"spark", "nimbus"},
        metadata={"plan": view.drawn_plan},
    )
    def deployment(
        context: dg.AssetExecutionContext, config: DeploymentConfig, nimbus: NimbusResource
    ) -> dg.MaterializeResult:
        with plain_failures(), nimbus.nimbus() as opened:
            seen, done = deploy(context, opened, view.name, config, config.wait_seconds)
        context.log_event(registered(view.name, seen))
        return dg.MaterializeResult(
            metadata={"done": done, **deployment_metadata(seen)},
            data_version=dg.DataVersion(version_of(seen)),
            tags=made_from(seen),
        )

    return deployment


def deploy(
    context: dg.AssetExecutionContext | dg.OpExecutionContext,
    nimbus: "Nimbus",
    flow: str,
    config: Any,
    wait_at_most: float,
) -> tuple["FlowStatus", str]:
    """Submit a flow, or update it if its code or its settings are others.

    Args:
        config: A `DeploymentConfig`, or a job's form with the same fields.
        wait_at_most: Seconds to wait until it runs; 0: not at all.

    Returns:
        Where it stands, and what was done: "submitted", "updated" or "unchanged".
    """
    from pipelines.nimbus.flow_settings import check_form

    check_form(flow, config.settings)
    fields: dict[str, Any] = {
        "trigger_seconds": config.trigger_seconds,
        "workers": config.workers,
        "parallelism": config.parallelism or None,
    }
    # A field of the form goes before a setting of its name.
    asked = {name: value for given in (config.settings, fields) for name, value in given.items() if value is not None}
    seen, done = nimbus.deploy(flow, inactive=config.inactive, **asked)
    context.log.info(f"{flow} is {done}: version {seen.version}, {seen.status}")
    context.log.info(f"supervisor {nimbus.ensure_supervisor()} is alive")
    if seen.status != "ACTIVE" or not wait_at_most:
        return seen, done
    context.log.info(f"waiting until all {len(seen.tasks)} queries run, at most {wait_at_most:g} s")
    return nimbus.wait(flow, until="running", seconds=wait_at_most) or seen, done


def deployment_metadata(seen: "FlowStatus") -> dict[str, Any]:
    """Return a deployed flow's status as Dagster shows it."""
    queries = [
        {
            "query": task.group,
            "state": task.state,
            "where": f"{task.supervisor}:{task.port}" if task.supervisor else "",
            "batch": task.txid,
            "rows per second": task.rows_per_second,
            "lag in s": task.lag_seconds,
            "last error": task.last_error,
        }
        for task in seen.tasks
    ]
    places = sorted({f"{task.supervisor}:{task.port}" for task in seen.tasks if task.supervisor})
    shown: dict[str, Any] = {
        "status": seen.status,
        "version": seen.version,
        "workers": seen.workers,
        "places": ", ".join(places) or "none",
        "parallelism": dict(seen.parallelism),
        "settings": masked_settings(seen.settings),
        "queries": dg.MetadataValue.md(markdown.table(list(queries[0]), queries) if queries else "none"),
        "rows_per_second": float(seen.rows_per_second),
        "submitted_at": dg.MetadataValue.timestamp(seen.submitted_at),
    }
    known = {"txid": seen.txid, "lag_seconds": seen.lag_seconds, "problem": seen.problem, "last_error": seen.last_error}
    return shown | {name: value for name, value in known.items() if value is not None}
