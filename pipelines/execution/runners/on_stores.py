"""What runs where the lake or a source is on an object store: all else is refused before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from pipelines.errors import TrideltaError
from pipelines.graph import nodes
from pipelines.places.location import Location, RemoteLakeError
from pipelines.sources.base import place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.state.lake import Lake
    from pipelines.trident.topology import TridentTopology

_FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"


class SessionWithoutS3Error(TrideltaError):
    """The Spark session was started before a place on S3 was named, and so without what reads S3; nothing was written."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(
            f"{place}: this Spark session cannot read S3, for it was started before a place there was named",
            hint='make the lake and the sources first: Lake("s3://...") or JsonFiles("s3a://..."), then spark_session()',
        )


def check_places(spark: SparkSession, lake: Lake, topology: TridentTopology) -> None:
    """Refuse a flow that does not run where its lake, or a session that does not reach where its sources are.

    Raises:
        RemoteLakeError, SessionWithoutS3Error
    """
    places = [lake.root, *(place_of(spout.source.path) for spout in topology.spouts if spout.source.path)]
    remote = next((str(place) for place in places if isinstance(place, Location)), None)
    if remote is None:
        return
    if not _reads_s3(spark):
        raise SessionWithoutS3Error(remote)
    if isinstance(lake.root, Location):
        _check_flow(str(lake.root), topology)


def _check_flow(lake: str, topology: TridentTopology) -> None:
    """Refuse what a flow has that works on folders of this host alone."""
    for node in topology.graph:
        if isinstance(node, nodes.ChannelNode | nodes.ChannelSpoutNode | nodes.WindowNode):
            raise RemoteLakeError(lake, f'a flow with windows or channels ("{topology.name}")')
    for spout in topology.spouts:
        if not spout.source.on_stores:
            kind = type(spout.source.inner).__name__
            raise RemoteLakeError(lake, f'a flow with a source of the kind {kind} ("{spout.stream}")')


def _reads_s3(spark: SparkSession) -> bool:
    try:
        spark._jvm.java.lang.Class.forName(_FILE_SYSTEM)  # type: ignore[union-attr]
    except Py4JError:
        return False
    return True
