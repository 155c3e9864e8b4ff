"""The schedules, on by default except the one that makes failed slices again; and the sensor of deployed flows."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

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
# Two ticks and some seconds: what a look has said holds until the next but one.
ANSWER_SECONDS = 25 * 60.0
# Without an answer for longer, a run is to tell: within the hour's tick, whose seconds vary.
UNSEEN_EVERY_SECONDS = 55 * 60.0
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


@dataclass(frozen=True)
class _Look:
    """A look at a flow's sources, and what its catch-ups had come to when it began."""

    begun: float
    marks: Mapping[str, str]
    said: Future[str | None]


class _Looks:
    """Looks at the sources of flows, at most one of each at a time: it may go on from one tick to the next.

    A folder that grows takes longer to list than a tick waits one day. Its look is then answered in the next tick. A mount that
    hangs holds one thread, which no end of this process waits for.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, _Look] = {}
        # When the last look began that has found nothing new: what came since, only another one can tell.
        self._seen: dict[str, float] = {}
        # Flows for which the last tick that looked at them has asked for a run: no look at them is under way since.
        self._asked_for: set[str] = set()
        self._lock = threading.Lock()

    def arrived(
        self, instance: dg.DagsterInstance, views: Sequence[FlowView]
    ) -> tuple[dict[str, str], list[str], list[str]]:
        """Return what has arrived by flow, of which flows nobody can say, and which nobody has looked at for too long.

        A store that refuses holds up its own flows alone.
        """
        marks = _marks(instance, views)
        answers, unknown = self._ended(views, marks)
        rest = [view for view in views if not answers.get(view.name)]
        with self._lock:
            looks = [self._under_way.get(view.name) or self._begin(view, marks) for view in rest]
        # A look that has ended may have a TimeoutError of its own, from a mount or a store that gave up.
        wait([look.said for look in looks], LOOK_SECONDS)
        now_answers, now_unknown = self._ended(rest, marks)
        # However long ago a look has begun that was answered in this tick, the next one is answered by the next tick.
        silent = [view.name for view in rest if view.name in self._under_way and view.name not in answers]
        late = [name for name in silent if name not in self._asked_for and self._is_old(name)]
        arrived = {name: what for name, what in (answers | now_answers).items() if what}
        self._asked_for = self._asked_for.difference(view.name for view in views) | arrived.keys()
        return arrived, [f"{name}: {why}" for name, why in (unknown | now_unknown).items()], late

    def _begin(self, view: FlowView, marks: Mapping[str, str]) -> _Look:
        said: Future[str | None] = Future()

        def look() -> None:
            try:
                said.set_result(_news(view, marks))
            except BaseException as error:
                said.set_exception(error)

        self._under_way[view.name] = begun = _Look(time.monotonic(), _own(view, marks), said)
        threading.Thread(target=look, name=f"news of {view.name}", daemon=True).start()
        return begun

    def _ended(
        self, views: Sequence[FlowView], marks: Mapping[str, str]
    ) -> tuple[dict[str, str | None], dict[str, str]]:
        """Take the answers of looks that have ended; not of one beside which a catch-up has come to its end.

        Returns:
            By flow what has arrived, None for nothing; and why nobody can say of others.
        """
        answers: dict[str, str | None] = {}
        unknown: dict[str, str] = {}
        for view in views:
            with self._lock:
                look = self._under_way.get(view.name)
                if look is None or not look.said.done():
                    continue
                del self._under_way[view.name]
            if look.marks != _own(view, marks):
                continue
            # Whatever it is, a user's source may raise it: the answers of others are taken, and not asked for again.
            if (error := look.said.exception()) is not None:
                unknown[view.name] = _why(error)
                continue
            answers[view.name] = look.said.result()
            self._seen[view.name] = look.begun
        return answers, unknown

    def _is_old(self, name: str) -> bool:
        return time.monotonic() - self._seen.get(name, -math.inf) > ANSWER_SECONDS


def _why(error: BaseException) -> str:
    if isinstance(error, TrideltaError | OSError):
        return str(error) or "its source does not answer"
    return f"{type(error).__name__}: {error}"


def _own(view: FlowView, marks: Mapping[str, str]) -> dict[str, str]:
    keys = {caught_up(view, spout) for spout in view.arriving}
    return {key: mark for key, mark in marks.items() if key in keys}


def _not_run_of_late(instance: dg.DagsterInstance, job: dg.JobDefinition, tag: str, why: str) -> bool:
    """Return whether no run has begun within an hour because nobody could look: each costs as much as one that finds files."""
    since = datetime.now(UTC) - timedelta(seconds=UNSEEN_EVERY_SECONDS)
    asked = dg.RunsFilter(job_name=job.name, tags={tag: why}, created_after=since)
    return not instance.get_runs(asked, limit=1)


def catch_up_schedule(
    views: Sequence[FlowView], job: dg.JobDefinition, *, name: str = "catch_up_schedule", cron: str = CATCH_UP_EVERY
) -> dg.ScheduleDefinition:
    """Make the schedule that catches up when files have arrived since the last run."""
    looks = _Looks()

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
        # A flow that a run is to catch up with is not asked for again, nor looked at.
        asked = _asked_of(context.instance, job)
        open_ones = [view for view in idle if f"news/{view.name}" not in asked]
        arrived, unknown, late = looks.arrived(context.instance, open_ones)
        news = {f"news/{name}": what[:63] for name, what in arrived.items()}
        unseen = f"not looked at within {LOOK_SECONDS:g} s; only a run can tell"
        tags = [f"news/{name}" for name in late]
        news |= {tag: unseen for tag in tags if _not_run_of_late(context.instance, job, tag, unseen)}
        if not news:
            unknown += [f"{name}: {unseen}, one an hour" for name in late]
            unknown += [
                f"{view.name}: run {run[:8]} is to catch up" for view in idle if (run := asked.get(f"news/{view.name}"))
            ]
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
