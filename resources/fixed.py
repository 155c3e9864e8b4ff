"""Resources that a launchpad cannot change: where Spark, the lake and the registry are is the deployment's to say."""

from __future__ import annotations

import dagster as dg


def fixed(resource: dg.ConfigurableResource) -> dg.ResourceDefinition:
    """The resource as it is. As it stands, the config of a run could name another lake, registry or Spark master."""

    def made(_: dg.InitResourceContext) -> dg.ConfigurableResource:
        return resource

    # A schema without entries: what is given for it is refused before the run.
    return dg.ResourceDefinition(made, config_schema={})
