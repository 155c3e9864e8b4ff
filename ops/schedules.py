"""The schedules, on by default except the one that makes failed slices again; and the sensor of deployed flows."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta

import dagster as dg

from assets.events.liveness import alert_all
from assets.events.progress import KnownTables, Progress, follows
from assets.sources import caught_up, look_at
from assets.upstream import Upstream
from assets.view import FlowView
from pipelines.errors import TrideltaError
from resources import LakeResource, NimbusResource
from resources.dagster_internals import NOT_FINISHED_STATUSES, UnresolvedAssetJobDefinition

# A run that starts its own Spark costs half a minute: not more often than that pays, and less often is felt.
CATCH_UP_EVERY = "*/10 * * * *"
SLICES_AT = "0 1 * * *"
# Dagster ends a tick after a minute, and a store that is silent is asked again for as long.
LOOK_SECONDS = 20.0
# Slices that are made of another flow's: looked at every ten minutes from when that one's should be there, until morning.
SLICES_BEHIND_AT = "20-59/10 1-5 * * *"
# After the slices of yesterday, before people come.
COMPACTION_AT = "0 3 * * *"
# When the night's slices are made and checked: what failed among them is tried once more before people come.
RELAUNCH_AT = "0 6 * * *"
# Longer than a rebalance takes, with the batches by which the next look judges it.
REBALANCE_EVERY = "*/15 * * * *"


def _when(cron: str, usual: str, words: str) -> str:
    return words if cron == usual else f"At {cron}"


def _marks(instance: dg.DagsterInstance, views: Sequence[FlowView]) -> Mapping[str, str]:
    return instance.daemon_cursor_storage.get_cursor_values(
        {caught_up(view, spout) for view in views for spout in view.arriving}
    )


def _news(view: FlowView, marks: Mapping[str, str]) -> str | None:
    """Say what has arrived for a flow that no catch-up of its own has run to the end; None if nothing has.

    Raises:
        StoreError, OSError: a source cannot be looked at.
    """
    for spout in () if view.by_slices else view.arriving:
        seen = look_at(spout)
        if seen is None:
            return f"{spout.stream} is not a folder; only a run can tell"
        if seen.files and marks.get(caught_up(view, spout)) != seen.fingerprint:
            return f"{spout.stream}: {seen.files} files, the newest {seen.newest}"
    return None


def _arrived(instance: dg.DagsterInstance, views: Sequence[FlowView]) -> tuple[dict[str, str], list[str]]:
    """Return what has arrived by flow, and of which flows nobody can say: a store that refuses holds up its own flows alone.

    A look that does not end in time is a reason to run. A folder that grows takes too long to list one day, and then in every
    tick, with nothing red. Where it is a store that is silent, the run fails and says so: at most one at a time, since a flow
    that a run is to catch up with is not asked for again.
    """
    marks = _marks(instance, views)
    arrived: dict[str, str] = {}
    unknown: list[str] = []
    pool = ThreadPoolExecutor(len(views) or 1, thread_name_prefix="news")
    looks = {view.name: pool.submit(_news, view, marks) for view in views}
    # A look that has ended may have a TimeoutError of its own, from a mount or a store that gave up.
    ended, _ = wait(looks.values(), LOOK_SECONDS)
    for name, look in looks.items():
        if look not in ended:
            arrived[name] = f"not looked at within {LOOK_SECONDS:g} s; only a run can tell"
            continue
        try:
            if what := look.result():
                arrived[name] = what
        except (TrideltaError, OSError) as error:
            unknown.append(f"{name}: {error or 'its source does not answer'}")
    pool.shutdown(wait=False, cancel_futures=True)
    return arrived, unknown


def catch_up_schedule(
    views: Sequence[FlowView], job: dg.JobDefinition, *, name: str = "catch_up_schedule", cron: str = CATCH_UP_EVERY
) -> dg.ScheduleDefinition:
    """Make the schedule that catches up when files have arrived since the last run."""

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"{_when(cron, CATCH_UP_EVERY, 'Every ten minutes')}, if files have arrived.",
    )
    def schedule(context: dg.ScheduleEvaluationContext, nimbus: NimbusResource) -> dg.RunRequest | dg.SkipReason:
        try:
            deployed = nimbus.deployed()
        except TrideltaError as error:
            return dg.SkipReason(str(error))
        # A deployed flow reads by itself what arrives, and a deactivated one is to be left alone.
        idle = [view for view in views if view.name not in deployed]
        arrived, unknown = _arrived(context.instance, idle)
        asked = _asked_of(context.instance, job)
        news = {tag: what[:63] for name, what in arrived.items() if (tag := f"news/{name}") not in asked}
        if not news:
            unknown += [f"{name}: run {asked[f'news/{name}'][:8]} is to catch up" for name in arrived]
            return dg.SkipReason("\n".join(unknown) or "nothing has arrived since the last catch-up")
        return dg.RunRequest(tags=news)

    return schedule


def _asked_of(instance: dg.DagsterInstance, job: dg.JobDefinition) -> dict[str, str]:
    """Return the runs of a job that are under way or queued, by tag. One that was never launched may stay so for ever."""
    statuses = [status for status in NOT_FINISHED_STATUSES if status is not dg.DagsterRunStatus.NOT_STARTED]
    runs = instance.get_runs(dg.RunsFilter(job_name=job.name, statuses=statuses))
    return {tag: run.run_id for run in runs for tag in run.tags}


def slices_schedule(
    view: FlowView, job: UnresolvedAssetJobDefinition, *, cron: str | None = None
) -> dg.ScheduleDefinition:
    """Make the schedule of yesterday's slice: when all its files are there, and once its own sources were made."""
    usual = SLICES_BEHIND_AT if view.by_slices else SLICES_AT
    behind = ", as soon as its source slices exist" if view.by_slices else ""
    cron = cron or usual

    @dg.schedule(
        name=f"{view.name}_slices_schedule",
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"{_when(cron, usual, 'Every night')}: the slice of the day before{behind}.",
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        day = (context.scheduled_execution_time - timedelta(days=1)).date().isoformat()
        if view.partitions is None or not view.partitions.has_partition_key(day):
            last = view.partitions.get_last_partition_key() if view.partitions else None
            return dg.SkipReason(f"{day} is not a slice of {view.name}; the last one is {last}")
        if view.by_slices and (why := asked_for(context.instance, view, day) or waits(context, view, day)):
            return dg.SkipReason(why)
        return dg.RunRequest(partition_key=day, run_key=day)

    return schedule


def asked_for(instance: dg.DagsterInstance, view: FlowView, day: str) -> str | None:
    """Say that a slice was asked for; Dagster itself compares run keys within one tick alone."""
    tags = {"dagster/schedule_name": f"{view.name}_slices_schedule", "dagster/run_key": day}
    if instance.get_runs(dg.RunsFilter(tags=tags), limit=1):
        return f"{day} was asked for already; relaunch_slices_job makes it again"
    return None


def waits(context: dg.ScheduleEvaluationContext, view: FlowView, day: str) -> str | None:
    """Say why a slice cannot be made yet: its sources are missing, are being made, or have failed."""
    from pipelines import Lake

    assert context.repository_def is not None
    upstream = Upstream(view, context.repository_def.asset_graph, context.instance, Lake(view.settings.lake))
    ahead = upstream.ahead([day], statuses=tuple(NOT_FINISHED_STATUSES))
    return f"run {ahead[day][:8]} makes what it reads" if ahead else upstream.refused([day]).get(day)


def compaction_schedule(
    job: dg.JobDefinition, *, name: str = "checkpoint_compaction_schedule", cron: str = COMPACTION_AT
) -> dg.ScheduleDefinition:
    """Make the schedule that compacts every night."""
    return dg.ScheduleDefinition(
        name=name,
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"{_when(cron, COMPACTION_AT, 'Every night')}: fold, optimize, vacuum.",
    )


def relaunch_schedule(job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Make the schedule for failed and missing slices. Off by default: what a gate refuses needs a person first."""
    return dg.ScheduleDefinition(
        name="relaunch_slices_schedule",
        job=job,
        cron_schedule=RELAUNCH_AT,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Every morning, if switched on: slices that failed or are missing.",
    )


def rebalance_schedule(job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Make the schedule that checks the figures of the deployed flows, if there are any."""

    @dg.schedule(
        name="rebalance_schedule",
        job=job,
        cron_schedule=REBALANCE_EVERY,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every fifteen minutes, if a flow is deployed.",
    )
    def schedule(context: dg.ScheduleEvaluationContext, nimbus: NimbusResource) -> dg.RunRequest | dg.SkipReason:
        try:
            deployed = nimbus.deployed()
        except TrideltaError as error:
            return dg.SkipReason(str(error))
        active = sorted(name for name, flow in deployed.items() if flow.status == "ACTIVE")
        if not active:
            return dg.SkipReason("no flow is deployed and active")
        return dg.RunRequest(run_config={}, tags={"flows": ", ".join(active)[:63]})

    return schedule


# Soon enough for somebody who watches; a tick over a hundred flows takes under a second.
EVERY_SECONDS = 10


def limit_pools(instance: dg.DagsterInstance, views: Sequence[FlowView]) -> None:
    """See that the pool of every flow has its limit before a run asks for it.

    Dagster gives a pool the default limit when it meets it first, but lets all runs through that wait at that moment: the first
    backfill of a new instance with a run per day had several runs of one flow at once, each waiting for the same checkpoint.
    """
    storage = instance.event_log_storage
    if storage.supports_global_concurrency_limits and instance.global_op_concurrency_default_limit:
        for pool in {view.pool for view in views} - {limit.name for limit in storage.get_pool_limits()}:
            storage.initialize_concurrency_limit_to_default(pool)


def flows_sensor(
    views: Sequence[FlowView], name: str = "flows_sensor", *, others: bool = False, faults: Sequence[str] = ()
) -> dg.SensorDefinition:
    """Make the sensor that turns progress into materializations, observations and verdicts, and trouble into an alert.

    One sensor for all flows: one per flow would be one tick per flow.

    Args:
        others: Whether there are alerts of all deployed flows, such as those of YAML files, and not of these alone.
        faults: Why flows cannot be loaded: its description says it.
    """
    known = KnownTables()

    @dg.sensor(
        name=name,
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="\n\n".join(
            [
                "Report what deployed flows have written, how far and how late they are, and which are in trouble.",
                *(f"**Not loaded:** {fault}" for fault in faults),
            ]
        ),
    )
    def sensor(
        context: dg.SensorEvaluationContext, nimbus: NimbusResource, lake: LakeResource
    ) -> dg.SensorResult | dg.SkipReason:
        limit_pools(context.instance, views)
        try:
            # While the registry is restored no flow was removed, and nothing is to be reported again.
            deployed = nimbus.deployed(expected=follows(context.cursor))
        except TrideltaError as error:
            return dg.SkipReason(str(error))
        if not deployed and not context.cursor:
            return dg.SkipReason("no flow is deployed")
        progress = Progress(views, lake.lake(), context.cursor, known, others=others)
        try:
            events = progress.look(deployed, time.time())
        finally:
            for flow, wrong in progress.changed:
                context.log.warning(f"{flow}: {'; '.join(wrong)}") if wrong else context.log.info(f"{flow}: well again")
            alert_all(progress.changed)
        return dg.SensorResult(asset_events=events, cursor=progress.cursor)

    return sensor
