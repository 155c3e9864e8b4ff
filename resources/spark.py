"""Spark as a Dagster resource."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
