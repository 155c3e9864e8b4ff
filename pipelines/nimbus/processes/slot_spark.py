"""The Spark of a slot: what its flows ask of it, its start, and the JVM that it runs in."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.bounds import own_master
from pipelines.catalog.flow import FlowSettings
from pipelines.nimbus import deployed
from pipelines.nimbus.registry.records import DeployedFlow
from pipelines.nimbus.settings import NimbusSettings
from pipelines.surroundings import any_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_of(
    settings: NimbusSettings, name: str, flows: Iterable[DeployedFlow] = (), lakes: Iterable[str] = ()
) -> SparkSession:
    """Start the Spark application of some flows.

    Args:
        flows: Those that run in it.
        lakes: Those that others may have.
    """
    from pipelines.private import spark_values
    from pipelines.spark.session import cores, is_local, spark_session

    # If a flow's settings cannot be read, none of its tasks begins; those of other flows still do.
    here = deployed.readable(flows)
    # A session that starts before a place on S3 was named cannot read it.
    own = FlowSettings.from_environment().lake_root
    for root in {own, *lakes, *(flow.version.content.definition["lake"] for flow in here)} - {""}:
        any_folder(root, "the lake")
    asked = spark_needs_of(here)
    master = asked.master
    most = most_partitions(here)
    if is_local(master) and most > cores(master):
        master = f"local[{most}]"
    conf: dict[str, str] = {
        "spark.driver.memory": f"{settings.worker_memory_mb}m",
        # Queries side by side: none waits until all tasks of another's job are through.
        "spark.scheduler.mode": "FAIR",
        # Spark's own threads may die of it and leave a query waiting for ever; the supervisor starts a dead worker again.
        "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError",
    }
    if asked.cores:
        conf["spark.cores.max"] = str(asked.cores)
    return spark_session(f"tridelta {name}", master=master, conf=conf | spark_values(asked.conf))


@dataclass(frozen=True)
class SparkNeeds:
    """The wishes of a slot's flows for Spark.

    Attributes:
        conf: Its settings.
        cores: Of a cluster, unless its settings say so; else 0.
    """

    master: str
    conf: Mapping[str, object]
    cores: int

    def needs_other_than(self, up: SparkNeeds) -> bool:
        """Return whether the Spark for what others asked does not do: one with more cores does."""
        return (self.master, self.conf) != (up.master, up.conf) or self.cores > up.cores


def spark_needs_of(flows: Iterable[DeployedFlow]) -> SparkNeeds:
    """Return what the flows of a slot ask of Spark."""
    from pipelines.spark.session import is_local

    here = own = deployed.readable(flows)
    if len(deployed.applications_of(here)) > 1:
        # A flow that has just got Spark settings of its own is still here: it leaves for a slot of its own.
        own = [flow for flow in here if not (flow.settings.get("master") or flow.settings.get("spark"))]
    # One that names another than a flow beside it is told so by the leader, and placed again only when they agree.
    standing = sorted(own, key=lambda flow: (flow.scratch, flow.serial))
    master = next((flow.settings["master"] for flow in standing if flow.settings.get("master")), own_master())
    conf: dict[str, object] = {}
    for flow in own:
        conf |= flow.settings.get("spark", {})
    return SparkNeeds(master, conf, 0 if is_local(master) or "spark.cores.max" in conf else most_partitions(here))


def most_partitions(flows: Iterable[DeployedFlow]) -> int:
    """Return the most partitions that a query of some flows has; 0 where none says."""
    return max((query.partitions or 0 for flow in flows for query in deployed.queries_of(flow)), default=0)


def lives(spark: SparkSession) -> bool:
    """Return whether Spark, and the JVM that it runs in, are there."""
    from py4j.protocol import Py4JError

    try:
        return not spark._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def jvm() -> subprocess.Popen[bytes]:
    """Return the process of this process' JVM."""
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] = SparkContext._gateway.proc  # type: ignore[union-attr]
    return process


def kill_jvm() -> None:
    """Kill this process' JVM, so that nothing that it has begun goes on."""
    from pyspark import SparkContext

    if getattr(SparkContext._gateway, "proc", None) is not None:
        jvm().kill()
