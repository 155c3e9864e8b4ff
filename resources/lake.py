"""The lake as a Dagster resource."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import dagster as dg

from resources.spark import SparkResource

if TYPE_CHECKING:
    from pipelines import Lake, Runtime
    from pipelines.nimbus.handover.warm import WarmRuntime


class LakeResource(dg.ConfigurableResource):
    """The lake that runs read and write."""

    root: str

    def lake(self) -> Lake:
        """Open the lake; opening it reads nothing."""
        from pipelines import Lake
        from pipelines.nimbus.handover.other_hosts import watch_registry

        watch_registry()
        return Lake(self.root)

    warm: bool = True
    """Whether runs are handed to a worker of this host that is up, in place of starting a Spark of their own."""

    def runtime(self, spark: SparkResource, log: logging.Logger | None = None) -> Runtime | WarmRuntime:
        """Return what runs topologies on this lake: a worker that is up, else this process, where Spark then starts.

        Args:
            spark: The session, if it comes to that.
            log: Where the worker's lines go.
        """

        def own() -> Runtime:
            # The engine takes a third of a second to import: a run that is handed over does without.
            from pipelines import Runtime

            return Runtime(spark.session(), self.lake())

        def passed_on(line: str, level: str) -> None:
            if log is not None:
                log.log(logging.getLevelName(level), line)

        if not self.warm or spark.is_up:
            return own()
        from pipelines.nimbus.handover.warm import find_warm

        return find_warm(self.lake().root, otherwise=own, log=passed_on) or own()
