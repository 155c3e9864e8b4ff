"""The user's graph as the original's: an operation for each thing that a task does (Trident rules 1.2-1.5, 3.1, 3.8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

from pipelines.aggregators.base import CombinerAggregator
from pipelines.errors import MixedSpoutsError
from pipelines.graph import nodes

QUERY_SPOUT, STATIC_STATE = "query spout", "static state"
"""Two kinds of operations that drawings tell from the others."""


@dataclass(frozen=True)
class Repartition:
    """How tuples get their task: a `kind` of `pipelines.graph.nodes`, over the fields `by` or by `function`."""

    kind: str
    by: tuple[str, ...] = ()
    function: Any = None

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(self.by)}".strip()


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One node of the original's graph. `id` is the order of creation, `parents` are operations' ids in order.

    Attributes:
        kind: what it does, one or two words.
        label: a short text for drawings.
        node: id of the user's node that it belongs to.
        name: the stream's name when it was made; bolts are named by it.
        hint, resources: what the user asked for, on the last operation of a node alone.
        repartition: how tuples get their task here; such an operation is in no bolt.
        spout: whether tuples enter here.
        writes: the state that it holds (a persist or a static state).
        reads: the state that it queries.
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

    operations: tuple[Operation, ...]
    output: dict[int, int]


def expand(graph: nodes.Graph) -> Expansion:
    """The operations of a graph, queries completed.

    Raises:
        MixedSpoutsError: if a query stream meets a stream of another spout.
    """
    growing = _Growing()
    for node in graph:
        above = tuple(growing.output[parent] for parent in node.parents)
        growing.output[node.id] = _expand(node, growing, above)
    _complete_queries(graph, growing)
    return Expansion(tuple(growing.operations), growing.output)


class _Growing:
    """The operations so far. An operation's id is its place."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.output: dict[int, int] = {}

    def add(self, node: nodes.Node, kind: str, parents: Iterable[int], label: str = "", **more: Any) -> int:
        """An operation that the user did not write as such. What belongs to a spout has no name, as in the original."""
        spout = isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode)
        made = Operation(
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
        """The operation that stands for the node: it carries the node's label, hint and resources."""
        return self.add(node, kind, parents, node.label, hint=node.hint, resources=node.resources, **more)

    def repartition(self, node: nodes.Node, parent: int, how: Repartition) -> int:
        """A repartition; behind another one there is an operation between them that does nothing (rule 1.5)."""
        if self.operations[parent].repartition is not None:
            parent = self.add(node, "identity", (parent,))
        return self.add(node, "repartition", (parent,), str(how), repartition=how)


@singledispatch
def _expand(node: nodes.Node, growing: _Growing, above: tuple[int, ...]) -> int:
    """Nodes that are one operation: each, filter, map, peek, project, gate, an extreme, an ungrouped merge."""
    return growing.last(node, type(node).__name__.removesuffix("Node").lower(), above)


@_expand.register
def _spout(node: nodes.SpoutNode, growing: _Growing, above: tuple[int, ...]) -> int:
    most = getattr(node.source, "max_parallelism", None)
    return growing.last(node, "spout", above, spout=True, max_parallelism=most)


@_expand.register
def _query_spout(node: nodes.QuerySpoutNode, growing: _Growing, above: tuple[int, ...]) -> int:
    """The entrance gives the arguments and where to send the answer; the stream goes on with the arguments alone."""
    entrance = growing.add(node, QUERY_SPOUT, above, node.label, spout=True)
    return growing.add(node, "arguments", (entrance,), hint=node.hint, resources=node.resources)


@_expand.register
def _partition(node: nodes.PartitionNode, growing: _Growing, above: tuple[int, ...]) -> int:
    """The user's repartition. A hint or resources on it count nowhere: it is in no bolt (rule 3.9)."""
    return growing.repartition(node, above[0], Repartition(node.kind, node.by, node.function))


@_expand.register
def _aggregate(node: nodes.AggregateNode, growing: _Growing, above: tuple[int, ...]) -> int:
    if not node.partitioned:
        return growing.last(node, "aggregate", (_dealt(node, growing, above[0], nodes.BATCH_GLOBAL),))
    return growing.last(node, "aggregate", (_initialised(node, growing, above[0]),))


@_expand.register
def _persist(node: nodes.PersistNode, growing: _Growing, above: tuple[int, ...]) -> int:
    """A persistent aggregate of combiners is an aggregate that is then persisted; of a reducer the state does it all."""
    parent = above[0]
    if node.aggregations and _combining(node):
        # `global_` and not `batch_global`: one task for all batches, as the state of a stream has one place.
        parent = growing.add(node, "aggregate", (_dealt(node, growing, parent, nodes.GLOBAL),), _what(node))
    elif node.aggregations:
        parent = growing.repartition(node, parent, _by(node.group, nodes.GLOBAL))
    wanted = getattr(node.state, "partitions", None)
    return growing.last(node, "persist", (parent,), writes=node.state.name, partitions=wanted)


def _dealt(node: nodes.AggregateNode | nodes.PersistNode, growing: _Growing, parent: int, ungrouped: str) -> int:
    """What an aggregate does before its last part: partial values, if all aggregators can, then a repartition."""
    parent = _initialised(node, growing, parent)
    if _combining(node):
        parent = growing.add(node, "partial", (parent,), f"{_what(node)} a partition")
    return growing.repartition(node, parent, _by(node.group, ungrouped))


def _initialised(node: nodes.AggregateNode | nodes.PersistNode, growing: _Growing, parent: int) -> int:
    """Combiners append their `init` to each tuple before anything is dealt (rule 1.4)."""
    for one in node.aggregations:
        if isinstance(one.aggregator, CombinerAggregator):
            parent = growing.add(node, "init", (parent,), f"init {one.aggregator} -> {', '.join(one.outputs)}")
    return parent


def _combining(node: nodes.AggregateNode | nodes.PersistNode) -> bool:
    return all(isinstance(one.aggregator, CombinerAggregator) for one in node.aggregations)


def _what(node: nodes.AggregateNode | nodes.PersistNode) -> str:
    by = f" by {', '.join(node.group)}" if node.group else ""
    return ", ".join(str(one.aggregator) for one in node.aggregations) + by


def _by(group: tuple[str, ...], ungrouped: str) -> Repartition:
    return Repartition(nodes.FIELDS, group) if group else Repartition(ungrouped)


@_expand.register
def _join(node: nodes.JoinNode, growing: _Growing, above: tuple[int, ...]) -> int:
    return growing.last(node, "join", _sides(node, growing, above, tuple(side.keys for side in node.sides)))


@_expand.register
def _multi_reduce(node: nodes.MultiReduceNode, growing: _Growing, above: tuple[int, ...]) -> int:
    return growing.last(node, "multi_reduce", _sides(node, growing, above, node.groups))


def _sides(
    node: nodes.Node, growing: _Growing, above: tuple[int, ...], keys: tuple[tuple[str, ...], ...]
) -> tuple[int, ...]:
    """Each grouped side dealt by its keys; sides without keys as they are."""
    return tuple(
        growing.repartition(node, parent, Repartition(nodes.FIELDS, fields)) if fields else parent
        for parent, fields in zip(above, keys or ((),) * len(above), strict=True)
    )


@_expand.register
def _state_query(node: nodes.StateQueryNode, growing: _Growing, above: tuple[int, ...]) -> int:
    parent = growing.repartition(node, above[0], Repartition(nodes.FIELDS, node.group)) if node.group else above[0]
    return growing.last(node, "state query", (parent,), reads=node.state)


@_expand.register
def _static_state(node: nodes.StaticStateNode, growing: _Growing, above: tuple[int, ...]) -> int:
    wanted = getattr(node.state, "partitions", None)
    return growing.last(node, STATIC_STATE, above, writes=node.state.name, partitions=wanted)


@_expand.register
def _new_values(node: nodes.NewValuesNode, growing: _Growing, above: tuple[int, ...]) -> int:
    """Not an operation of its own: the stream of what the persist emits. What is asked of it is asked of the persist."""
    persist = growing.operations[above[0]]
    growing.operations[persist.id] = _asked(persist, node)
    return persist.id


def _asked(operation: Operation, node: nodes.Node) -> Operation:
    resources = tuple({**dict(operation.resources), **dict(node.resources)}.items())
    return replace(operation, hint=node.hint or operation.hint, resources=resources)


def _complete_queries(graph: nodes.Graph, growing: _Growing) -> None:
    """Each query's last stream meets the entrance's return address in one task of the batch (rule 3.8)."""
    for members in components(graph):
        spouts = [
            one for one in map(graph.__getitem__, members) if isinstance(one, nodes.SpoutNode | nodes.QuerySpoutNode)
        ]
        queries = [one for one in spouts if isinstance(one, nodes.QuerySpoutNode)]
        if not queries:
            continue
        entrance = queries[0]
        if len(spouts) > 1:
            raise MixedSpoutsError("build", entrance.stream, [one.stream for one in spouts if one is not entrance])
        address = growing.add(entrance, "return info", growing.operations[growing.output[entrance.id]].parents)
        sides = (
            growing.repartition(entrance, address, Repartition(nodes.BATCH_GLOBAL)),
            growing.repartition(entrance, growing.output[members[-1]], Repartition(nodes.BATCH_GLOBAL)),
        )
        growing.add(entrance, "answer", sides)


def components(graph: nodes.Graph) -> list[tuple[int, ...]]:
    """The connected parts of a graph as node ids, in the order of their first node."""
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
