"""Bolts, batch groups and tasks of a graph (Trident rules 3.1-3.9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from pipelines.graph import nodes
from pipelines.graph.expansion import PlannedOperation, components, expand
from pipelines.graph.fields import distinct
from pipelines.graph.grouping import Grouping, group, tasks


@dataclass(frozen=True)
class Bolt:
    """Operations that run without a repartition between them: a stage of the plan.

    Attributes:
        name: `b-<n>[-<names of its operations>]` (rule 3.7).
        nodes: the ids of the user's nodes whose last operation is here, in topological order. A bolt may have none: it
            makes partial values for an aggregate that ends in the next bolt, or it answers a query.
        operations: all its operations in the order of their creation.
        tasks: in how many tasks it runs.
    """

    name: str
    nodes: tuple[int, ...]
    operations: tuple[PlannedOperation, ...] = ()
    tasks: int = 1


@dataclass(frozen=True)
class Spout:
    """Where tuples enter: `spout-<stream>`, of a query `spout-<query><n>` (rule 3.7). `node` is the user's node."""

    name: str
    node: int
    operation: PlannedOperation
    tasks: int


def group_name(streams: Iterable[str]) -> str:
    """Return the name of a batch group in messages and folders: its streams, joined by two underscores."""
    return "__".join(streams)


@dataclass(frozen=True)
class SpoutGroup:
    """Spouts whose tuples can meet, so that their batches share a txid (rule 3.6).

    `streams` are the names of the spouts, `nodes` all node ids. `query` is true for the group of a query stream: each
    query is a batch of its own, and nothing is committed.
    """

    name: str
    streams: tuple[str, ...]
    nodes: tuple[int, ...]
    query: bool

    @property
    def folder(self) -> str:
        """The name of its checkpoint's folder: its streams, joined by two underscores."""
        return group_name(self.streams)


@dataclass(frozen=True)
class Layout:
    """A graph cut in spouts and bolts. `operations` are all, repartitions too, by id; `output` finds a node's own."""

    operations: dict[int, PlannedOperation]
    output: dict[int, int]
    spouts: tuple[Spout, ...]
    bolts: tuple[Bolt, ...]

    def component_of(self) -> dict[int, str]:
        """Return the name of the bolt or spout of each operation; repartitions are in none."""
        names = {operation.id: bolt.name for bolt in self.bolts for operation in bolt.operations}
        return names | {spout.operation.id: spout.name for spout in self.spouts}


def is_spout(node: nodes.Node) -> bool:
    """Check whether tuples enter at this node."""
    return isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode)


# A stream asks at every batch and a warm query each time, and laying out takes milliseconds. Nodes are frozen, so a graph
# of the same nodes is the same graph.
_KNOWN: WeakKeyDictionary[nodes.Graph, tuple[tuple[nodes.Node, ...], Layout]] = WeakKeyDictionary()


def layout(graph: nodes.Graph) -> Layout:
    """Return the spouts and bolts of a graph, with their tasks.

    A state query is put into the bolt that writes the state, as in the original. On Spark that is a way to read the plan
    and a rule for parallelism: wherever it runs, a query reads a committed version of the state's table.

    Raises:
        MixedSpoutsError: if a query stream meets a stream of another spout.
        ParallelismError: if the bolts of a class cannot have the same number of tasks.
    """
    members = tuple(graph)
    known = _KNOWN.get(graph)
    if (
        known is None
        or len(known[0]) != len(members)
        or any(a is not b for a, b in zip(known[0], members, strict=True))
    ):
        known = (members, _laid_out(graph))
        _KNOWN[graph] = known
    return known[1]


def _laid_out(graph: nodes.Graph) -> Layout:
    expansion = expand(graph)
    grouping = group(expansion)
    number = tasks(grouping)
    grouped = [[grouping.operations[member] for member in sorted(members)] for members in grouping.groups]
    made = tuple(
        Bolt(_bolt_name(i, planned), _users(graph, expansion.output, planned), tuple(planned), number[planned[0].id])
        for i, planned in enumerate(grouped)
    )
    return Layout(grouping.operations, expansion.output, _spouts(graph, grouping, number), made)


def _users(graph: nodes.Graph, output: dict[int, int], operations: Iterable[PlannedOperation]) -> tuple[int, ...]:
    here = {operation.id for operation in operations}
    return tuple(node.id for node in graph if not is_spout(node) and output[node.id] in here)


def _spouts(graph: nodes.Graph, grouping: Grouping, number: dict[int, int]) -> tuple[Spout, ...]:
    names: set[str] = {f"spout-{node.stream}" for node in graph if isinstance(node, nodes.SpoutNode)}
    spouts: list[Spout] = []
    counter = 0
    for operation in grouping.operations.values():
        if not operation.spout:
            continue
        node = graph[operation.node]
        name = f"spout-{getattr(node, 'stream', node.name)}"
        if isinstance(node, nodes.QuerySpoutNode):
            # The original lets a query and a source share an id, and one of them is lost.
            while (free := f"{name}{counter}") in names:
                counter += 1
            name, counter = free, counter + 1
            names.add(name)
        spouts.append(Spout(name, node.id, operation, number[operation.id]))
    return tuple(spouts)


def bolts(graph: nodes.Graph) -> tuple[Bolt, ...]:
    """Return the bolts of a graph in the original's order, which numbers them."""
    return layout(graph).bolts


def _bolt_name(number: int, operations: list[PlannedOperation]) -> str:
    names = [operation.name for operation in operations if operation.name]
    unrepeated = [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]
    return "-".join(["b", str(number), *unrepeated])


def batch_groups(graph: nodes.Graph) -> tuple[SpoutGroup, ...]:
    """Return the connected components of a graph, `bg0`, `bg1` ... in the order of their first node.

    A state connects nothing: who queries a state does not take part in the batches that write it (rule 3.6). A static
    state is a component without a batch: it takes a number, as in the original, and is left out.
    """
    groups = (_batch_group(f"bg{n}", [graph[node] for node in members]) for n, members in enumerate(components(graph)))
    return tuple(batch_group for batch_group in groups if batch_group.streams)


def _batch_group(name: str, members: list[nodes.Node]) -> SpoutGroup:
    entrances = [node for node in members if isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode)]
    return SpoutGroup(
        name,
        distinct(node.stream for node in entrances),
        tuple(node.id for node in members),
        any(isinstance(node, nodes.QuerySpoutNode) for node in entrances),
    )


def node_tasks(graph: nodes.Graph) -> dict[int, int]:
    """Return how many tasks (partitions) each node runs in, by node id; of a PartitionNode: how many it deals the tuples to.

    An aggregate counts as the part after its repartition. Where bolts of different parallelism stand behind one
    PartitionNode, it deals to the most of them; where none does, to one task.
    """
    plan = layout(graph)
    number = {operation.id: bolt.tasks for bolt in plan.bolts for operation in bolt.operations}
    number |= {spout.operation.id: spout.tasks for spout in plan.spouts}
    below: dict[int, list[int]] = {}
    for child in plan.operations.values():
        for parent in child.parents:
            below.setdefault(parent, []).append(number.get(child.id, 1))
    return {node.id: number.get(plan.output[node.id]) or max(below.get(plan.output[node.id], [1])) for node in graph}
