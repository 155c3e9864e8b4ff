"""All that Dagster loads: assets, checks, jobs, schedules and resources, made from the catalog."""

from assets.factory import flow_assets
from assets.view import FlowView
from ops.flow_definitions import FlowGroup, flow_definitions
from pipelines.catalog import FlowSettings, flows

settings = FlowSettings.from_environment()
defs = flow_definitions([FlowGroup([flow_assets(FlowView.of(spec, settings)) for spec in flows()])], str(settings.lake))
