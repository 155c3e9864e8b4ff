"""catch_up_job: run what the sources hold now, check the tables, renew the answers."""

from collections.abc import Sequence

import dagster as dg

from assets.events.reporting import Reporter, log_evaluation, plain_failures
from assets.queries import answer_metadata, ask
from assets.sources import Arrived, caught_up, look_at, observation
from assets.suites import check_table, evaluations
from assets.view import FlowView
from ops.jobs.forms import flow_step
from pipelines.graph.nodes import SpoutNode
from resources import LakeResource, NimbusResource, QualityResource, SparkResource

# A catch-up ends; one that is still there after six hours hangs, and holds the flow's pool.
MAX_RUNTIME_SECONDS = 6 * 3600


class CatchUpConfig(dg.Config):
    """The settings of a catch-up."""

    on_fresh_checkpoint: str = "refuse"
    """If the checkpoint is missing but the states are there: `refuse`, `continue` or `reset`."""
    changed_windows: str = "refuse"
    """If windows are of another operation than their state: `refuse`, or `begin`: these begin empty, the others go on."""
    max_batches: int = 0
    """Stop after this number of batches; 0: when the sources are read."""


def catch_up_op(view: FlowView, priority: int = 0) -> dg.OpDefinition:
    """Make the op that runs a flow's batches and reports each as materializations of the slices that it touched.

    Where one process runs the steps, those of higher priority come first.
    """

    @flow_step(view, "catch_up", f"Run what the sources of {view.name} hold now.", alone=True, priority=priority)
    def catch_up(
        context: dg.OpExecutionContext,
        config: CatchUpConfig,
        spark: SparkResource,
        lake: LakeResource,
        nimbus: NimbusResource,
    ) -> None:
        # What is there before the run reads: what comes meanwhile is news to the next one.
        with plain_failures():
            arrived = [(spout, seen) for spout in view.arriving if (seen := look_at(spout)) is not None]
        if (runs_otherwise := _runs_otherwise(context, view, nimbus)) is not None:
            # Shown, but not marked as read: who reads it may end before it has.
            _observe(context, arrived)
            context.add_output_metadata({"batches": 0, **runs_otherwise})
            return
        with Reporter(context, view, lake.lake()) as reporter, plain_failures(reporter):
            report = lake.runtime(spark, context.log).catch_up(
                view.topology,
                on_fresh_checkpoint=config.on_fresh_checkpoint,
                changed_windows=config.changed_windows,
                max_batches=config.max_batches or None,
                progress=reporter.batch,
            )
        reporter.log_checks()
        if not config.max_batches or len(report.batches) < config.max_batches:
            # Not of a run that failed, or stopped early: the schedule is to ask for what it left.
            _mark(context, view, arrived)
        context.add_output_metadata(
            {
                "batches": len(report.batches),
                "rows": report.received,
                "quarantined": report.quarantined,
                "seconds": round(report.seconds, 1),
            }
        )

    return catch_up


def _observe(context: dg.OpExecutionContext, arrived: Sequence[tuple[SpoutNode, Arrived]]) -> None:
    for spout, seen in arrived:
        context.log_event(observation(spout, seen))


def _mark(context: dg.OpExecutionContext, view: FlowView, arrived: Sequence[tuple[SpoutNode, Arrived]]) -> None:
    """Note that all of it is read."""
    _observe(context, arrived)
    for spout, seen in arrived:
        # One by one: Dagster's SQLite adds no value to a set of which it has one.
        context.instance.daemon_cursor_storage.set_cursor_values({caught_up(view, spout): seen.fingerprint})


def _runs_otherwise(context: dg.OpExecutionContext, view: FlowView, nimbus: NimbusResource) -> dict[str, str] | None:
    """Return what runs the flow in place of a catch-up, as metadata; None if nothing does."""
    if view.by_slices:
        context.log.info(f"{view.name} is made slice by slice, behind {', '.join(map(str, view.upstream))}")
        return {"made by": f"{view.name}_slices_job"}
    with plain_failures():
        worker = nimbus.deployed().get(view.name)
    if worker is not None:
        # A deactivated one, too: whoever stopped it expects nobody to write.
        context.log.info(f"{view.name} is deployed ({worker.status}): its worker alone reads what arrives")
        return {"read by": "the deployed flow"}
    return None


def _are_made(context: dg.OpExecutionContext, view: FlowView, lake: LakeResource, *states: str) -> bool:
    """Return whether these tables are there; the first batch makes them."""
    missing = [state for state in states if not view.table(lake.lake(), state).exists()]
    for state in missing:
        context.log.info(f"{view.name}: {state} is not made yet")
    return not missing


def check_op(view: FlowView) -> dg.OpDefinition:
    """Make the op that runs the suites on a flow's tables."""

    @flow_step(view, "check", f"Run the suites on the tables of {view.name}.", after="caught_up")
    def check(
        context: dg.OpExecutionContext, spark: SparkResource, lake: LakeResource, quality: QualityResource
    ) -> None:
        broken: list[str] = []
        for state in view.suites:
            if not _are_made(context, view, lake, state):
                continue
            with plain_failures():
                results = check_table(view, state, lake, spark, quality)
            for evaluation in evaluations(view, state, results, context.run_id):
                log_evaluation(context, evaluation)
            broken += [f"{state}: {evaluation}" for evaluation in results.refused]
        if broken:
            raise dg.Failure(
                f'flow "{view.name}": its tables do not pass their suites\n  ' + "\n  ".join(broken) + "\n"
                "  Next: look at the failed checks of these assets; the answers were not renewed"
            )

    return check


def answer_op(view: FlowView) -> dg.OpDefinition:
    """Make the op that renews the answers of a flow."""

    @flow_step(view, "answer", f"Renew the answers of {view.name}.", after="checked")
    def answer(context: dg.OpExecutionContext, spark: SparkResource, lake: LakeResource) -> None:
        for question in view.spec.queries:
            if not _are_made(context, view, lake, *question.reads):
                continue
            with plain_failures():
                answered = ask(view, question, lake, spark)
            context.log_event(
                dg.AssetMaterialization(question.name, metadata=answer_metadata(view, question, answered))
            )

    return answer


def catch_up_job(views: Sequence[FlowView], name: str = "catch_up_job") -> dg.JobDefinition:
    """Make one job for all flows: each catches up, is checked and answers; a flow that fails does not hold up the others.

    The flows run in the order given, where one process runs them all.
    """

    @dg.job(
        name=name,
        description="Run what the sources hold now, check the tables, renew the answers.",
        tags={"dagster/max_runtime": str(MAX_RUNTIME_SECONDS)},
    )
    def job() -> None:
        for place, view in enumerate(views):
            answer_op(view)(check_op(view)(catch_up_op(view, -place)()))

    return job
