"""All that Dagster loads: assets, checks, jobs, schedules and resources, made from the catalog."""

import dagster as dg

from assets import FlowView, assets_of, flow_assets
from ops.jobs.catch_up import catch_up_job
from ops.jobs.compaction import checkpoint_compaction_job
from ops.jobs.nimbus_jobs import nimbus_jobs
from ops.jobs.operator_jobs import operator_jobs
from ops.jobs.relaunch import relaunch_slices_job
from ops.jobs.slices import slices_job
from ops.progress_sensor import flows_sensor
from ops.schedules import (
    catch_up_schedule,
    compaction_schedule,
    rebalance_schedule,
    relaunch_schedule,
    slices_schedule,
)
from pipelines.catalog import FlowSettings, flows
from resources import LakeResource, NimbusResource, QualityResource, SparkResource
from resources.fixed import fixed

settings = FlowSettings.from_environment()
views = [FlowView.of(spec, settings) for spec in flows()]
flow_sets = [flow_assets(view) for view in views]
catch_up = catch_up_job(views)
compaction = checkpoint_compaction_job(views)
relaunch = relaunch_slices_job(views)
deployed = {job.name: job for job in nimbus_jobs(views)}
slices = [(one.view, slices_job(one)) for one in flow_sets if one.view.partitions is not None]

defs = dg.Definitions(
    assets=assets_of(flow_sets),
    asset_checks=[check for one in flow_sets for check in one.checks],
    jobs=[catch_up, compaction, relaunch, *deployed.values(), *operator_jobs(views), *(job for _, job in slices)],
    schedules=[
        catch_up_schedule(views, catch_up),
        compaction_schedule(compaction),
        rebalance_schedule(deployed["rebalance_job"]),
        relaunch_schedule(relaunch),
        *(slices_schedule(view, job) for view, job in slices),
    ],
    sensors=[flows_sensor(views)],
    resources={
        "spark": fixed(SparkResource()),
        "lake": fixed(LakeResource(root=str(settings.lake))),
        "nimbus": fixed(NimbusResource(root=str(settings.lake))),
        "quality": fixed(QualityResource()),
    },
    # One process a run: steps share the Spark session. A process a step would start a JVM each.
    executor=dg.in_process_executor,
)
