"""The batch groups of a topology: the spouts whose batches share a txid, and the group's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.graph import bolts, nodes

if TYPE_CHECKING:
    from pipelines.trident.topology import TridentTopology


def spout_groups(topology: TridentTopology) -> list[tuple[nodes.SpoutNode, ...]]:
    """Return the spouts of each batch group, in the order of their definition, the groups in that in which they run."""
    by_name = {spout.stream: spout for spout in topology.spouts}
    return [
        tuple(by_name[name] for name in group.streams)
        for group in bolts.running_order(topology.graph)
        if not group.query and group.streams
    ]


def group_name(spouts: tuple[nodes.SpoutNode, ...]) -> str:
    """Return the name of the group of some spouts, which its checkpoint carries."""
    return bolts.group_name(spout.stream for spout in spouts)


def readers_of(topology: TridentTopology) -> dict[str, set[str]]:
    """Return the batch groups that read each channel, by its name."""
    groups: dict[str, set[str]] = {}
    for spouts in spout_groups(topology):
        for spout in spouts:
            for channel in spout.reads if isinstance(spout, nodes.ChannelSpoutNode) else ():
                groups.setdefault(channel, set()).add(group_name(spouts))
    return groups
