"""flows_sensor: report deployed flows to Dagster. One sensor for all flows: one per flow would be one tick per flow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from assets.events.liveness import alert
from assets.events.progress import Progress
from assets.view import FlowView
from resources import LakeResource, NimbusResource

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


def flows_sensor(views: Sequence[FlowView], name: str = "flows_sensor") -> dg.SensorDefinition:
    """Make the sensor that turns progress into materializations, observations and verdicts, and trouble into an alert."""
    schemas: dict[Path, dg.TableSchema] = {}

    @dg.sensor(
        name=name,
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Report what deployed flows have written, how far and how late they are, and which are in trouble.",
    )
    def sensor(
        context: dg.SensorEvaluationContext, nimbus: NimbusResource, lake: LakeResource
    ) -> dg.SensorResult | dg.SkipReason:
        limit_pools(context.instance, views)
        deployed = nimbus.deployed()
        if not deployed and not context.cursor:
            return dg.SkipReason("no flow is deployed")
        progress = Progress(views, lake.lake(), context.cursor, schemas)
        events = progress.look(deployed, time.time())
        for flow, wrong in progress.changed:
            context.log.warning(f"{flow}: {'; '.join(wrong)}") if wrong else context.log.info(f"{flow}: well again")
            alert(flow, wrong)
        return dg.SensorResult(asset_events=events, cursor=progress.cursor)

    return sensor
