"""The user's graph as the original's: an operation for each thing that a task does (Trident rules 1.2-1.5, 3.1, 3.8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pipelines.aggregators.base import CombinerAggregator
from pipelines.errors import MixedSpoutsError
from pipelines.graph import nodes


@dataclass(frozen=True)
class Repartition:
    """A repartition of tuples to tasks: a `kind` of `pipelines.graph.nodes`, over the fields `by` or by `function`."""

    kind: str
    by: tuple[str, ...] = ()
    function: Any = None

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(self.by)}".strip()


@dataclass(frozen=True, kw_only=True)
class PlannedOperation:
    """One node of the original's graph. `id` is the order of creation, `parents` are operations' ids in order.

    Attributes:
        kind: what it does, one or two words.
        node: id of the user's node that it belongs to.
        name: the stream's name when it was made; bolts are named by it.
        hint, resources: what the user asked for, on the last operation of a node alone.
        repartition: how tuples get their task here; such an operation is in no bolt.
        writes: the state that it holds (a persist or a static state).
        partitions: the number of tasks that its state demands, if it does.
        max_parallelism: the most tasks that its source can use, if it says so.
    """

    id: int
    kind: str
    label: str
    node: int
    parents: tuple[int, ...] = ()
    name: str | None = None
    hint: int | None = None
    resources: tuple[tuple[str, float], ...] = ()
    repartition: Repartition | None = None
    spout: bool = False
    writes: str | None = None
    reads: str | None = None
    partitions: int | None = None
    max_parallelism: int | None = None

    @property
    def state(self) -> str | None:
        """The state that it is bound to: all operations of one state share a bolt (rule 3.2)."""
        return self.writes or self.reads


@dataclass(frozen=True)
class Expansion:
    """All operations in the order of creation, and for each user node the operation whose tuples are its output."""

    operations: tuple[PlannedOperation, ...]
    output: dict[int, int]


def expand(graph: nodes.Graph) -> Expansion:
    """Return the operations of a graph, queries completed."""
    growing = Growing()
    for node in graph:
        above = tuple(growing.output[parent] for parent in node.parents)
        growing.output[node.id] = node.expand(growing, above)
    _complete_queries(graph, growing)
    return Expansion(tuple(growing.operations), growing.output)


class Growing:
    """The operations so far. An operation's id is its place."""

    def __init__(self) -> None:
        self.operations: list[PlannedOperation] = []
        self.output: dict[int, int] = {}

    def add(self, node: nodes.Node, kind: str, parents: Iterable[int], label: str = "", **more: Any) -> int:
        """Add an operation that the user did not write as such. What belongs to a spout has no name, as in the original."""
        spout = isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode)
        made = PlannedOperation(
            id=len(self.operations),
            kind=kind,
            label=label or kind,
            node=node.id,
            parents=tuple(parents),
            name=None if spout else node.name or None,
            **more,
        )
        self.operations.append(made)
        return made.id

    def last(self, node: nodes.Node, kind: str, parents: Iterable[int], **more: Any) -> int:
        """Add the operation that is the node itself: it carries the node's label, hint and resources."""
        return self.add(node, kind, parents, node.label, hint=node.hint, resources=node.resources, **more)

    def repartition(
        self, node: nodes.Node, parent: int, kind: str, by: tuple[str, ...] = (), function: Any = None
    ) -> int:
        """Add a repartition; behind another one there is an operation between them that does nothing (rule 1.5)."""
        if self.operations[parent].repartition is not None:
            parent = self.add(node, "identity", (parent,))
        how = Repartition(kind, by, function)
        return self.add(node, "repartition", (parent,), str(how), repartition=how)

    def sides(self, node: nodes.Node, above: tuple[int, ...], keys: tuple[tuple[str, ...], ...]) -> tuple[int, ...]:
        """Deal each grouped side by its keys and keep sides without keys as they are."""
        return tuple(
            self.repartition(node, parent, nodes.FIELDS, fields) if fields else parent
            for parent, fields in zip(above, keys or ((),) * len(above), strict=True)
        )

    def initialised(self, node: nodes.AggregateNode | nodes.PersistNode, parent: int) -> int:
        """Append the `init` of combiners to each tuple, before anything is dealt (rule 1.4)."""
        for aggregation in node.aggregations:
            if isinstance(aggregation.aggregator, CombinerAggregator):
                parent = self.add(
                    node, "init", (parent,), f"init {aggregation.aggregator} -> {', '.join(aggregation.outputs)}"
                )
        return parent

    def dealt(self, node: nodes.AggregateNode | nodes.PersistNode, parent: int, ungrouped: str) -> int:
        """Return what an aggregate does before its last part: partial values, if all aggregators can, then a repartition."""
        parent = self.initialised(node, parent)
        if _combining(node):
            parent = self.add(node, "partial", (parent,), f"{_what(node)} a partition")
        return self._by_group(node, parent, ungrouped)

    def aggregated(self, node: nodes.PersistNode, parent: int) -> int:
        """Return what leads to a persistent aggregate: of combiners an aggregate, of a reducer a repartition alone."""
        if not _combining(node):
            return self._by_group(node, parent, nodes.GLOBAL)
        # `global_` and not `batch_global`: one task for all batches, as the state of a stream has one place.
        return self.add(node, "aggregate", (self.dealt(node, parent, nodes.GLOBAL),), _what(node))

    def _by_group(self, node: nodes.AggregateNode | nodes.PersistNode, parent: int, ungrouped: str) -> int:
        kind = nodes.FIELDS if node.group else ungrouped
        return self.repartition(node, parent, kind, node.group)

    def asked_of(self, operation: int, node: nodes.Node) -> int:
        """Add what is asked of a node to an operation that there is already."""
        planned = self.operations[operation]
        resources = tuple({**dict(planned.resources), **dict(node.resources)}.items())
        self.operations[operation] = replace(planned, hint=node.hint or planned.hint, resources=resources)
        return operation


def _combining(node: nodes.AggregateNode | nodes.PersistNode) -> bool:
    return all(isinstance(aggregation.aggregator, CombinerAggregator) for aggregation in node.aggregations)


def _what(node: nodes.AggregateNode | nodes.PersistNode) -> str:
    by = f" by {', '.join(node.group)}" if node.group else ""
    return ", ".join(str(aggregation.aggregator) for aggregation in node.aggregations) + by


def _complete_queries(graph: nodes.Graph, growing: Growing) -> None:
    """Let each query's last stream meet its spout's return address in one task of the batch (rule 3.8)."""
    for members in components(graph):
        spouts = [
            node for node in map(graph.__getitem__, members) if isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode)
        ]
        queries = [spout for spout in spouts if isinstance(spout, nodes.QuerySpoutNode)]
        if not queries:
            continue
        query = queries[0]
        if len(spouts) > 1:
            raise MixedSpoutsError("build", query.stream, [spout.stream for spout in spouts if spout is not query])
        address = growing.add(query, "return info", growing.operations[growing.output[query.id]].parents)
        sides = (
            growing.repartition(query, address, nodes.BATCH_GLOBAL),
            growing.repartition(query, growing.output[members[-1]], nodes.BATCH_GLOBAL),
        )
        growing.add(query, "answer", sides)


def components(graph: nodes.Graph) -> list[tuple[int, ...]]:
    """Return the connected parts of a graph as node ids, in the order of their first node."""
    root: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    for node in graph:
        joined = sorted({root[parent] for parent in node.parents})
        first = joined[0] if joined else node.id
        members.setdefault(first, [])
        for other in joined[1:]:
            members[first] += members.pop(other)
            root.update(dict.fromkeys(members[first], first))
        members[first].append(node.id)
        root[node.id] = first
    return [tuple(sorted(members[first])) for first in sorted(members)]
