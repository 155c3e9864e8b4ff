"""All that Dagster loads: assets, checks, jobs, schedules and resources, made from the catalog."""

from ops.flow_definitions import catalog_group, flow_definitions
from pipelines.catalog import FlowSettings

settings = FlowSettings.from_environment()
defs = flow_definitions([catalog_group(settings)], str(settings.lake))
