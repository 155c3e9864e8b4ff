"""Grouping of operations into bolts and of bolts into batch groups (Trident rules 3.1-3.7)."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.graph import nodes
from pipelines.graph.fields import distinct


@dataclass(frozen=True)
class Bolt:
    """Operations that run without a shuffle between them: a stage of the plan.

    `name` is `b-<n>[-<names of its operations>]`, `nodes` the node ids in topological order.
    """

    name: str
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class BatchGroup:
    """Spouts whose tuples can meet, so that their batches share a txid (rule 3.6).

    `streams` are the names of the spouts, `nodes` all node ids. `query` is true for the group of a query stream: each
    query is a batch of its own, and nothing is committed.
    """

    name: str
    streams: tuple[str, ...]
    nodes: tuple[int, ...]
    query: bool


def is_spout(node: nodes.Node) -> bool:
    """Whether tuples enter at this node."""
    return isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode)


def shuffles(node: nodes.Node) -> bool:
    """Whether tuples change their partition on the way into this node.

    They do before every aggregate, grouped or global (the partial values of a combiner are made before it, in the bolt
    above), before a persistent aggregate, and before a state query on a grouped stream.
    """
    if isinstance(node, nodes.PersistNode):
        return bool(node.aggregations)
    if isinstance(node, nodes.StateQueryNode):
        return bool(node.group)
    return isinstance(node, nodes.AggregateNode)


def bolts(graph: nodes.Graph) -> tuple[Bolt, ...]:
    """The bolts of a graph, in the order of their first node.

    A node joins the bolt of its parents unless it shuffles, its parent is a spout, or its parents are in different
    bolts. Unlike the original, a query stream's state query is not put into the bolt that writes the state: it reads a
    committed version of the table, wherever it runs.
    """
    bolt_of: dict[int, int] = {}
    members: list[list[nodes.Node]] = []
    for node in graph:
        if is_spout(node):
            continue
        above = {bolt_of.get(parent) for parent in node.parents}
        home = above.pop() if len(above) == 1 else None
        if home is None or shuffles(node):
            home = len(members)
            members.append([])
        bolt_of[node.id] = home
        members[home].append(node)
    return tuple(Bolt(_bolt_name(n, group), tuple(x.id for x in group)) for n, group in enumerate(members))


def _bolt_name(number: int, members: list[nodes.Node]) -> str:
    names = [node.name for node in members if node.name]
    unrepeated = [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]
    return "-".join(["b", str(number), *unrepeated])


def batch_groups(graph: nodes.Graph) -> tuple[BatchGroup, ...]:
    """The connected components of a graph, `bg0`, `bg1` ... in the order of their first node.

    A state connects nothing: who queries a state does not take part in the batches that write it (rule 3.6).
    """
    root: dict[int, int] = {}
    for node in graph:
        joined = {root[parent] for parent in node.parents}
        first = min(joined, default=node.id)
        root = {other: first if found in joined else found for other, found in root.items()}
        root[node.id] = first
    return tuple(
        _batch_group(f"bg{n}", [node for node in graph if root[node.id] == first])
        for n, first in enumerate(sorted(set(root.values())))
    )


def _batch_group(name: str, members: list[nodes.Node]) -> BatchGroup:
    entrances = [node for node in members if isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode)]
    return BatchGroup(
        name,
        distinct(node.stream for node in entrances),
        tuple(node.id for node in members),
        any(isinstance(node, nodes.QuerySpoutNode) for node in entrances),
    )


def node_tasks(graph: nodes.Graph) -> dict[int, int]:
    """How many tasks (partitions) each node runs in, by node id; of a PartitionNode: how many it deals the tuples to."""
    return {node.id: 1 for node in graph}
