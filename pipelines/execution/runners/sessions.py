"""The session of a run: what it must reach where the lake or a source is on an object store, and its shuffle partitions.

What does not run on a store is refused before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.errors import DefinitionError, TrideltaError, nearest
from pipelines.places.location import S3, Location, Place, RemoteLakeError
from pipelines.sources.base import StoredSource, place_of
from pipelines.state.lake import refuse_unwritten

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.graph.nodes import SpoutNode
    from pipelines.state.lake import Lake
    from pipelines.trident.topology import TridentTopology

_FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_WORD = re.compile(r"\w+")


class SessionWithoutS3Error(TrideltaError):
    """The Spark session was started before a place on S3 was named, and so without what reads S3; nothing was written."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(
            f"{place}: this Spark session cannot read S3, for it was started before a place there was named",
            hint='make the lake and the sources first: Lake("s3://...") or JsonFiles("s3a://..."), then spark_session()',
        )


class SessionZoneError(TrideltaError):
    """Slices of a flow depend on the time zone of the session, which is another than UTC; nothing was written."""

    def __init__(self, flow: str, zone: str) -> None:
        self.flow, self.zone = flow, zone
        super().__init__(
            f'flow "{flow}" cuts slices by the time zone of this Spark session, which is {zone}: its days are not those of '
            "UTC, by which the command line and Dagster replace slices",
            hint='set it: spark.conf.set("spark.sql.session.timeZone", "UTC"); SQL of the flow that means the time of a zone '
            f"names it: from_utc_timestamp(ts, '{zone}')",
        )


def check_places(spark: SparkSession, lake: Lake, topology: TridentTopology) -> None:
    """Refuse a flow that does not run where its lake is, and a session that does not reach where lake and sources are.

    A session of another time zone is refused, too, where the flow's slices depend on it.
    """
    refuse_unwritten(lake.root)
    if isinstance(lake.root, Location):
        check_session(spark, lake.root)
    for source in sources_on_stores(topology):
        check_session(spark, source)
    sliced = [spout for spout in topology.spouts if spout.slice_by]
    if sliced and (zone := _other_zone(spark)) is not None and any(_by_zone(spark, spout) for spout in sliced):
        raise SessionZoneError(topology.name, zone)
    if _on_cluster(spark):
        from pipelines.execution.runners.executors import check_executors

        check_executors(spark, lake.root)


def check_session(spark: SparkSession, place: Location) -> None:
    """Refuse a session that does not reach a place."""
    if place.scheme == S3 and not _reads_s3(spark):
        # Here, since Nimbus and the command line import this module, and not Spark.
        from pipelines.spark.jars import set_paths
        from pipelines.spark.s3_jars import S3_JARS

        set_paths(S3_JARS)
        raise SessionWithoutS3Error(str(place))


def refuse_sources_on_stores(topology: TridentTopology, lake: Place, what: str) -> None:
    """Refuse a flow whose sources are on a store and whose lake is on a disk; and sources on S3 where the lake is on HDFS."""
    for place in sources_on_stores(topology):
        if not isinstance(lake, Location) or (place.scheme == S3 and lake.scheme != S3):
            raise RemoteLakeError(str(place), what)


def sources_on_stores(topology: TridentTopology) -> list[Location]:
    """Return what sources read on stores."""
    sources = [spout.source.inner for spout in topology.spouts]
    named = [place_of(source.path) for source in sources if isinstance(source, StoredSource)]
    return [place for place in named if isinstance(place, Location)]


def _other_zone(spark: SparkSession) -> str | None:
    """Return the session's time zone if its times are not those of UTC, which has several names."""
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    if zone == "UTC":
        return None
    jvm: Any = spark._jvm
    known = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId(zone)
    return None if known.normalized().getId() == "Z" else zone


def _by_zone(spark: SparkSession, spout: SpoutNode) -> bool:
    """Return whether a stream's slices depend on the session's time zone, as Spark analyses them; what it refuses does not."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import StringType, StructType

    from pipelines.execution.batch.group_sources import said
    from pipelines.sources.base import FILE
    from pipelines.spark.arrow_frame import empty_frame
    from pipelines.state.schema import struct_of

    fields = StructType(struct_of(spout.source.schema).fields).add(FILE, StringType())
    try:
        cut = empty_frame(spark, fields).select(said(spout.slice_by or ""))
    except AnalysisException:
        return False
    return _asks_zone(spark, cut._jdf.queryExecution().analyzed().expressions().head())


def _asks_zone(spark: SparkSession, part: Any) -> bool:
    """Return whether an expression of Spark's (a JVM object) has a timestamp in it, or something else that asks for the zone."""
    jvm: Any = spark._jvm
    name, kind = part.getClass().getSimpleName(), part.dataType().typeName()
    aware = jvm.py4j.reflection.TypeUtil.isInstanceOf(f"{_EXPRESSIONS}.TimeZoneAwareExpression", part)
    if name == "ParseToDate":
        # `to_date` has a zone at hand, whatever it reads.
        return _asks_zone(spark, part.replacement())
    if name == "Cast":
        # Casts have one, too; that of a struct does not say what its fields need.
        aware = part.needsTimeZone() or "timestamp" in _WORD.findall(part.child().dataType().catalogString())
    if aware or kind == "timestamp" or name == "CurrentTimeZone":
        return True
    children = part.children()
    return any(_asks_zone(spark, children.apply(at)) for at in range(children.size()))


def _on_cluster(spark: SparkSession) -> bool:
    from pipelines.spark.session import is_local

    return not is_local(str(spark.sparkContext.master))


def _reads_s3(spark: SparkSession) -> bool:
    from py4j.protocol import Py4JError

    try:
        # Where a cluster is, jars are not on the class path but in a loader of Spark's own.
        thread = spark._jvm.java.lang.Thread.currentThread()  # type: ignore[union-attr]
        thread.getContextClassLoader().loadClass(_FILE_SYSTEM)
    except Py4JError:
        return False
    return True


Partitions = Mapping[str, int] | int | None
"""Shuffle partitions a batch group by its name, or of all; None: as they are."""

_CONF = "spark.sql.shuffle.partitions"


def asked_for(flow: str, groups: Sequence[str], partitions: Partitions) -> dict[str, int]:
    """Return the numbers that are asked for, by batch group."""
    if partitions is None:
        return {}
    asked = dict.fromkeys(groups, partitions) if isinstance(partitions, int) else dict(partitions)
    for name, number in asked.items():
        if name not in groups:
            known = ", ".join(f'"{group}"' for group in groups)
            raise DefinitionError(
                f'flow "{flow}" has no batch group "{name}" that could have partitions{nearest(name, groups)}',
                hint=f"its batch groups are {known}",
            )
        if number < 1:
            raise DefinitionError(f'flow "{flow}": batch group "{name}" cannot have {number} partitions, at least one')
    return asked


def own_session(spark: SparkSession, partitions: int | None) -> SparkSession:
    """Return a session like this one with a number of shuffle partitions; the same one if it has that number.

    Settings, functions and views of the session are as they are now; later changes do not reach the new one, nor do
    listeners that are added to `spark.streams`.
    """
    if partitions is None or spark.conf.get(_CONF) == str(partitions):
        return spark
    made = type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
    made.conf.set(_CONF, str(partitions))
    return made
