"""The lake as a Dagster resource."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from resources.spark import SparkResource

if TYPE_CHECKING:
    from pipelines import Lake, Runtime


class LakeResource(dg.ConfigurableResource):
    """The lake that runs read and write."""

    root: str

    def lake(self) -> Lake:
        """The lake; opening it reads nothing."""
        from pipelines import Lake

        return Lake(self.root)

    def runtime(self, spark: SparkResource) -> Runtime:
        """What runs topologies on this lake; starts Spark if it is not up."""
        from pipelines import Runtime

        return Runtime(spark.session(), self.lake())
