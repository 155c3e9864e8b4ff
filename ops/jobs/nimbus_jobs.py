"""The jobs of deployed flows: deploy, update, roll back, activate, deactivate, kill, rebalance. What is refused says why."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from assets.deployment import (
    RUNS_WITHIN,
    DeploymentConfig,
    deploy,
    deployment_key,
    deployment_metadata,
    registered,
    told_by_a_job,
)
from assets.events import markdown
from assets.events.reporting import plain_failures
from assets.view import FlowView
from ops.jobs.forms import form, one_of, one_step_job
from pipelines import bounds
from resources.engine import NimbusResource

if TYPE_CHECKING:
    from pipelines.nimbus.nimbus import Nimbus
    from pipelines.nimbus.status import FlowStatus

# The longest that these do is to wait for a flow that drains and starts again.
MAX_RUNTIME_SECONDS = 1800

Act = Callable[[dg.OpExecutionContext, "Nimbus", Any], dict[str, Any] | None]

_WAIT_AT_MOST = (
    float,
    bounds.WAIT_SECONDS.field(RUNS_WITHIN, description="Seconds to wait until it is so; 0: not at all."),
)
_DRAIN = (
    float | None,
    bounds.WAIT_SECONDS.field(
        None, description="Seconds that running batches have before they are stopped; 30 by default."
    ),
)


def nimbus_jobs(views: Sequence[FlowView], prefix: str = "") -> list[dg.JobDefinition]:
    """Build the jobs, each with a form that offers the flows of the catalog; `prefix` begins the names of jobs and ops."""
    names = one_of(f"{prefix}DeployedFlow", [view.name for view in views])
    flow = (names, Field(..., description="The flow."))
    some_flow = (names | None, Field(None, description="The flow; none: all that are deployed."))
    catalog = {view.name: view for view in views}
    return [
        *_of_versions(prefix, catalog, flow),
        *_of_standing(prefix, flow),
        _job(
            prefix + "rebalance",
            "Give flows the workers and the parallelism that they need. Without both: look at their figures and decide.",
            _rebalance,
            flow=some_flow,
            workers=(
                int | None,
                bounds.WORKERS.field(None, description="The most worker processes that the flow may have."),
            ),
            parallelism=(dict[str, int], Field({}, description="Tasks by stream or state, e.g. {flights: 4}.")),
            wait_seconds=_DRAIN,
            dry_run=(bool, Field(False, description="Say what would change, and change nothing.")),
            wait_at_most=_WAIT_AT_MOST,
        ),
    ]


def _of_versions(prefix: str, catalog: Mapping[str, FlowView], flow: Any) -> list[dg.JobDefinition]:
    """Deploy, update, roll back."""
    of_deployment = {
        name: (info.annotation, info) for name, info in DeploymentConfig.model_fields.items() if name != "wait_seconds"
    }
    return [
        _job(
            prefix + "deploy",
            "Deploy a flow: it runs around the clock from now on. One that is deployed already gets what is in the catalog now.",
            partial(_deploy, catalog),
            flow=flow,
            **of_deployment,
            wait_at_most=_WAIT_AT_MOST,
        ),
        _job(
            prefix + "update",
            "Give a deployed flow a new version: what is in the catalog now.",
            partial(_update, catalog),
            flow=flow,
            trigger_seconds=(
                float | None,
                bounds.TRIGGER_SECONDS.field(None, description="How often a batch begins, in seconds."),
            ),
            settings=(dict[str, Any], Field({}, description="Settings on top of those that it has.")),
            wait_at_most=_WAIT_AT_MOST,
        ),
        _job(
            prefix + "rollback",
            "Bring an earlier version of a deployed flow back, as a new version.",
            _roll_back,
            flow=flow,
            to=(int | None, bounds.VERSION.field(None, description="The version; none: the one before the current.")),
            wait_at_most=_WAIT_AT_MOST,
        ),
    ]


def _of_standing(prefix: str, flow: Any) -> list[dg.JobDefinition]:
    """Activate, deactivate, kill."""
    return [
        _job(prefix + "activate", "Let a deactivated flow go on.", _activate, flow=flow, wait_at_most=_WAIT_AT_MOST),
        _job(
            prefix + "deactivate",
            "Drain a flow: running batches end, no further one begins. It stays deployed.",
            _deactivate,
            flow=flow,
            wait_at_most=_WAIT_AT_MOST,
        ),
        _job(
            prefix + "kill",
            "Drain a flow and remove it. Its states and checkpoints stay: deployed again, it goes on where it stopped.",
            _kill,
            flow=flow,
            wait_seconds=_DRAIN,
            wait_at_most=_WAIT_AT_MOST,
        ),
    ]


def _job(verb: str, what: str, act: Act, **fields: Any) -> dg.JobDefinition:
    config: Any = form(verb, what, **fields)

    @dg.op(name=f"{verb}_flow", description=what, out=dg.Out(dg.Nothing))
    def step(context: dg.OpExecutionContext, config: config, nimbus: NimbusResource) -> None:
        with plain_failures(), nimbus.nimbus() as opened:
            metadata = act(context, opened, config)
        context.add_output_metadata(metadata or {})

    return one_step_job(verb, what, step, MAX_RUNTIME_SECONDS)


# --- what they do ---------------------------------------------------------------------------------------------------


def _deploy(
    views: Mapping[str, FlowView], context: dg.OpExecutionContext, nimbus: "Nimbus", config: Any
) -> dict[str, Any]:
    seen, done = deploy(context, nimbus, config.flow.value, config, config.wait_at_most)
    return {"done": done, **_renewed(context, seen, views[seen.name].plan.digest())}


def _activate(context: dg.OpExecutionContext, nimbus: "Nimbus", config: Any) -> dict[str, Any]:
    seen = nimbus.activate(config.flow.value)
    context.log.info(f"supervisor {nimbus.ensure_supervisor()} is alive")
    if config.wait_at_most:
        seen = nimbus.wait(seen.name, until="running", seconds=config.wait_at_most) or seen
    return _observed(context, seen)


def _deactivate(context: dg.OpExecutionContext, nimbus: "Nimbus", config: Any) -> dict[str, Any]:
    seen = nimbus.deactivate(config.flow.value)
    if config.wait_at_most:
        seen = nimbus.wait(seen.name, until="stopped", seconds=config.wait_at_most) or seen
    return _observed(context, seen)


def _kill(context: dg.OpExecutionContext, nimbus: "Nimbus", config: Any) -> dict[str, Any]:
    seen = nimbus.kill(config.flow.value, wait_seconds=config.wait_seconds)
    metadata = _observed(context, seen)
    if config.wait_at_most:
        # Somebody has to remove it when its time is over.
        nimbus.ensure_supervisor()
        nimbus.wait(seen.name, until="gone", seconds=config.wait_at_most + (config.wait_seconds or 30.0))
        metadata["status"] = "removed"
    return metadata


def _update(
    views: Mapping[str, FlowView], context: dg.OpExecutionContext, nimbus: "Nimbus", config: Any
) -> dict[str, Any]:
    from pipelines.nimbus.flow_settings import check_form

    name = config.flow.value
    check_form(name, config.settings)
    given = {} if config.trigger_seconds is None else {"trigger_seconds": config.trigger_seconds}
    seen = nimbus.update(name, **{**config.settings, **given})
    return _renewed(context, _again(nimbus, seen, config.wait_at_most), views[name].plan.digest())


def _roll_back(context: dg.OpExecutionContext, nimbus: "Nimbus", config: Any) -> dict[str, Any]:
    before = nimbus.flow(config.flow.value)
    seen = nimbus.roll_back(before.name, config.to)
    # Another plan than the catalog's, so that the deployment shows as out of date for as long as it is.
    return _renewed(context, _again(nimbus, seen, config.wait_at_most), f"before version {before.version}")


def _rebalance(context: dg.OpExecutionContext, nimbus: "Nimbus", config: Any) -> dict[str, Any]:
    request = {"workers": config.workers, "parallelism": config.parallelism or None}
    if any(request.values()):
        if config.flow is None:
            raise dg.Failure("workers and parallelism are those of one flow: name it")
        return _by_request(context, nimbus, config, request)
    return _periodic(context, nimbus, config)


def _periodic(context: dg.OpExecutionContext, nimbus: "Nimbus", config: Any) -> dict[str, Any]:
    """Look, decide, and apply; a flow that cannot be rebalanced now does not hold up the others.

    Raises:
        Failure: if it was refused, or has failed, for a flow.
    """
    from pipelines.errors import TrideltaError
    from pipelines.nimbus.periodic_rebalance import clustering_line, judge, recluster_all

    judged = judge(nimbus, None if config.flow is None else [config.flow.value])
    refused: dict[str, str] = {}
    clustered: list[dict[str, Any]] = []
    for verdict in judged:
        context.log.info(verdict.sentence)
        if config.dry_run:
            continue
        try:
            if verdict.request:
                seen = nimbus.rebalance(verdict.flow, wait_seconds=config.wait_seconds, **verdict.request)
                _observed(context, _again(nimbus, seen, config.wait_at_most))
            if verdict.clustering:
                clustered += [clustering_line(report) for report in recluster_all(nimbus.lake, verdict.clustering)]
        except Exception as error:
            # Whatever it is: sorting a table ends with the errors of Spark and delta-rs, too, and would in each run.
            ours = isinstance(error, TrideltaError)
            refused[verdict.flow] = str(error) if ours else f"{verdict.flow}: {type(error).__name__}: {error}"
            context.log.error(refused[verdict.flow], exc_info=not ours)
    if refused:
        raise dg.Failure("\n".join(refused.values()), metadata={"refused": ", ".join(refused)})
    rows = [row for judgement in judged for row in judgement.rows()]
    columns = [*dict.fromkeys(name for row in rows for name in row if name != "why"), "why"]
    table = markdown.table(columns, rows) if rows else "no flow is deployed"
    applied = 0 if config.dry_run else sum(bool(judgement.request) for judgement in judged) + len(clustered)
    metadata: dict[str, Any] = {"decisions": dg.MetadataValue.md(table), "applied": applied}
    if clustered:
        metadata["clustered"] = dg.MetadataValue.md(markdown.table(list(clustered[0]), clustered))
    return metadata


def _by_request(
    context: dg.OpExecutionContext, nimbus: "Nimbus", config: Any, request: dict[str, Any]
) -> dict[str, Any]:
    before = nimbus.flow(config.flow.value)
    if config.dry_run:
        nimbus.check_rebalance(before.name, **request)
        context.log.info(f"{before.name} has {before.workers} workers and {dict(before.parallelism)}")
        return {"asked": request, **deployment_metadata(before)}
    seen = nimbus.rebalance(before.name, wait_seconds=config.wait_seconds, **request)
    return _observed(context, _again(nimbus, seen, config.wait_at_most))


def _again(nimbus: "Nimbus", seen: "FlowStatus", seconds: float) -> "FlowStatus":
    """Wait until a changed flow runs again, if it is one that runs."""
    if not seconds or not seen.active:
        return seen
    nimbus.ensure_supervisor()
    return nimbus.wait(seen.name, until="running", seconds=seconds) or seen


def _observed(context: dg.OpExecutionContext, seen: "FlowStatus") -> dict[str, Any]:
    """Report the flow as the job leaves it: at its asset, and at the step."""
    metadata = deployment_metadata(seen)
    context.log_event(dg.AssetObservation(deployment_key(seen.name), metadata=metadata))
    return metadata


def _renewed(context: dg.OpExecutionContext, seen: "FlowStatus", code: str) -> dict[str, Any]:
    """Report the flow as the job has made it again: its asset is as up to date as if it had been run itself."""
    metadata = deployment_metadata(seen)
    context.log_event(registered(seen.name, seen))
    context.log_event(
        dg.AssetMaterialization(deployment_key(seen.name), metadata=metadata, tags=told_by_a_job(seen, code))
    )
    return metadata
