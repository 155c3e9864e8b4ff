"""The names by which collectors of lineage know what a flow reads and writes: OpenLineage's naming of datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pipelines.graph import nodes
from pipelines.places.location import Place

if TYPE_CHECKING:
    from pipelines.state.lake import Lake

Dataset = tuple[str, str]
"""A namespace and a name, which are the same in all tools that read or write the data: `("file", "/lake/states/lines")`."""


def dataset_of(path: str | Place) -> Dataset:
    """Return what lies at a path or an address: `file` and the path, or the store (`s3://bucket`) and the path in it."""
    parts = urlsplit(str(path))
    if parts.scheme in ("", "file"):
        return "file", parts.path if parts.scheme else str(path)
    return f"{parts.scheme.replace('s3a', 's3')}://{parts.netloc}", parts.path.lstrip("/") or "/"


def datasets_of(
    spout: nodes.SpoutNode, read: Mapping[str, tuple[Dataset, ...]], lake: Lake, flow: str
) -> dict[str, tuple[Dataset, ...]]:
    """Return what a spout reads, by the names that column lineage has for it: its stream, or the channels.

    Args:
        read: by stream the datasets of the sources as the batch group reads them (`GroupSources.datasets`).
    """
    if isinstance(spout, nodes.ChannelSpoutNode):
        return {name: (dataset_of(lake.channel_path(name)),) for name in spout.reads}
    return {spout.stream: read.get(spout.stream) or (("tridelta", f"{flow}.{spout.stream}"),)}
