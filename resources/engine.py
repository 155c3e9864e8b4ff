"""Spark, the lake, deployed flows and checks on whole tables as Dagster resources."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import dagster as dg

from pipelines.quality import Check, GateResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipelines import Lake, Runtime
    from pipelines.nimbus.handover.warm import WarmRuntime
    from pipelines.nimbus.nimbus import Nimbus
    from pipelines.nimbus.status import FlowStatus


class SparkResource(dg.ConfigurableResource):
    """The Spark session of the process that a run lives in; it starts at the first `session()` and not before."""

    app: str = "tridelta"
    master: str = ""
    """Where Spark runs; empty: TRIDELTA_SPARK_MASTER, else all cores of this machine."""

    def session(self) -> SparkSession:
        """Return the session. A later run of the same process gets the same one.

        Raises:
            JavaError, JarsError: Spark cannot start; the text says what is missing.
        """
        from pipelines.spark.session import spark_session

        return spark_session(self.app, master=self.master or None)

    @property
    def is_up(self) -> bool:
        """Check whether this process has a session already."""
        import sys

        loaded = sys.modules.get("pyspark")
        context = getattr(loaded, "SparkContext", None)
        return context is not None and context._active_spark_context is not None


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


class QualityResource(dg.ConfigurableResource):
    """Runs suites of checks: as one Spark aggregation where possible, by great-expectations for the rest."""

    sample: int = 10
    """How many violating rows a failed check shows."""

    def validate_table(self, frame: DataFrame, checks: Iterable[Check], name: str) -> GateResult:
        """Check all rows of a table.

        Raises:
            FieldError: a check names a column that the table lacks.
        """
        from pipelines.quality import validate_frame

        return validate_frame(frame, checks, sample=self.sample, name=name)


class NimbusResource(dg.ConfigurableResource):
    """The deployed flows of one registry. Nothing is opened before it is used."""

    store_url: str = ""
    """The registry's database; empty: TRIDELTA_REGISTRY, else a SQLite file. Give a URL with a password as `dg.EnvVar`."""
    root: str = ""
    """The lake; empty: that of TRIDELTA_HOME."""

    def nimbus(self, *, migrate: bool = True) -> Nimbus:
        """Open Nimbus; to be closed, best by `with`.

        Args:
            migrate: As of `Nimbus`.

        Raises:
            RegistryError: The registry cannot be opened.
        """
        from pipelines import Lake
        from pipelines.catalog import FlowSettings
        from pipelines.nimbus.nimbus import Nimbus
        from pipelines.nimbus.settings import registry_url

        root = self.root or str(FlowSettings.from_environment().lake)
        return Nimbus(self.store_url or registry_url(), Lake(root), migrate=migrate)

    def deployed(self, *, expected: bool = False) -> dict[str, FlowStatus]:
        """Return the deployed flows by name; without a registry there are none, and no registry is made.

        Args:
            expected: Whether there was one: then it is missed, not taken for one that holds no flow.

        Raises:
            RegistryError: The registry does not answer, or one that is expected is missing or has no tables.
        """
        from pipelines.nimbus.errors import NoTablesError, RegistryError
        from pipelines.nimbus.settings import registry_exists, registry_url

        url = self.store_url or registry_url()
        if not registry_exists(url):
            if expected:
                raise RegistryError(url, "is missing", hint="restore its file, or submit the flows again")
            return {}
        try:
            with self.nimbus(migrate=False) as nimbus:
                return {flow.name: flow for flow in nimbus.cluster().flows}
        except NoTablesError:
            if expected:
                raise
            return {}
