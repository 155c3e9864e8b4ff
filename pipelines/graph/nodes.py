"""The nodes of a graph: what the user said, as frozen data. No Spark here; the planner compiles them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


@dataclass(frozen=True)
class CodeLocation:
    """The user's file and line that defined a node."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @classmethod
    def of_caller(cls) -> CodeLocation:
        """The nearest frame outside the engine."""
        frame = sys._getframe(1)
        while (
            frame.f_back is not None
            and frame.f_code.co_filename.startswith(_PACKAGE)
            and "/catalog/" not in frame.f_code.co_filename
        ):
            frame = frame.f_back
        return cls(frame.f_code.co_filename, frame.f_lineno)


@dataclass(frozen=True)
class Aggregation:
    """One aggregator of an aggregate or persistent aggregate: its input fields and the field it makes."""

    aggregator: Any
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True, kw_only=True)
class Node:
    """An operation. `parents` are node ids in order; `fields` are the output fields; ids grow in topological order."""

    id: int
    parents: tuple[int, ...]
    fields: tuple[str, ...]
    name: str | None = None
    at: CodeLocation = field(compare=False)

    @property
    def label(self) -> str:
        """A short text for drawings and messages."""
        return type(self).__name__.removesuffix("Node").lower()


@dataclass(frozen=True, kw_only=True)
class SpoutNode(Node):
    """A source. `slice_by` is SQL text over the source's fields that gives a row's slice, or None."""

    stream: str
    source: Any
    slice_by: str | None = None

    @property
    def label(self) -> str:
        return self.stream


@dataclass(frozen=True, kw_only=True)
class QuerySpoutNode(Node):
    """The entrance of a query stream: the arguments of a query, `schema` as DDL."""

    stream: str
    schema: str

    @property
    def label(self) -> str:
        return f"query {self.stream}"


@dataclass(frozen=True, kw_only=True)
class EachNode(Node):
    """Appends `outputs` = function(inputs): no row drops the tuple, n rows repeat it (Trident rules 1.2, each)."""

    inputs: tuple[str, ...]
    function: Any
    outputs: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"each {self.function} -> {', '.join(self.outputs)}"


@dataclass(frozen=True, kw_only=True)
class FilterNode(Node):
    """Keeps the tuples for which predicate(inputs) is true."""

    inputs: tuple[str, ...]
    predicate: Any

    @property
    def label(self) -> str:
        return f"filter {self.predicate}"


@dataclass(frozen=True, kw_only=True)
class MapNode(Node):
    """Replaces each tuple by function(all fields): one row, or with `flat` any number."""

    function: Any
    flat: bool = False

    @property
    def label(self) -> str:
        return f"{'flat_map' if self.flat else 'map'} {self.function}"


@dataclass(frozen=True, kw_only=True)
class PeekNode(Node):
    """Shows each tuple to a consumer and passes it on unchanged."""

    consumer: Any


@dataclass(frozen=True, kw_only=True)
class ProjectNode(Node):
    """Keeps exactly `fields`, in their order."""

    @property
    def label(self) -> str:
        return f"project {', '.join(self.fields)}"


@dataclass(frozen=True, kw_only=True)
class AggregateNode(Node):
    """Aggregates a batch: `group` fields then one field an aggregation. Nothing crosses batches."""

    group: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]

    @property
    def label(self) -> str:
        by = f" by {', '.join(self.group)}" if self.group else ""
        return f"{', '.join(str(a.aggregator) for a in self.aggregations)}{by}"


@dataclass(frozen=True, kw_only=True)
class GateNode(Node):
    """Data checks on the rows that pass."""

    gate: Any

    @property
    def label(self) -> str:
        return f"gate {self.gate.name}"


@dataclass(frozen=True, kw_only=True)
class PersistNode(Node):
    """Commits into a state, one Delta transaction a batch.

    With `aggregations` it is a persistent aggregate (keys = `group`), without it the tuples themselves are kept
    (partition persist of `inputs`). `fields` are the fields that a reader of the state sees.
    """

    state: Any
    group: tuple[str, ...] = ()
    aggregations: tuple[Aggregation, ...] = ()
    inputs: tuple[str, ...] = ()
    updater: Any = None

    @property
    def label(self) -> str:
        return f"persist {self.state.name}"


@dataclass(frozen=True, kw_only=True)
class StateQueryNode(Node):
    """Appends `outputs` = function(state, inputs). `group`: the fields of a grouped stream's partitions."""

    state: str
    state_node: int | None
    inputs: tuple[str, ...]
    function: Any
    outputs: tuple[str, ...]
    group: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"query state {self.state} -> {', '.join(self.outputs)}"


class Graph:
    """The nodes of one topology, in the order of their definition (which is a topological order)."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}

    def next_id(self) -> int:
        return len(self._nodes) + 1

    def add(self, node: Node) -> Node:
        self._nodes[node.id] = node
        return node

    def __getitem__(self, node_id: int) -> Node:
        return self._nodes[node_id]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def children(self, node_id: int) -> tuple[Node, ...]:
        return tuple(node for node in self if node_id in node.parents)

    def ancestors(self, node_id: int) -> tuple[Node, ...]:
        """The nodes that lead to `node_id`, itself included, in topological order."""
        found = {node_id}
        for node in reversed(tuple(self)):
            if node.id in found:
                found.update(node.parents)
        return tuple(node for node in self if node.id in found)

    def descendants(self, node_id: int) -> tuple[Node, ...]:
        """The nodes that `node_id` leads to, itself included, in topological order."""
        found = {node_id}
        for node in self:
            if found.intersection(node.parents):
                found.add(node.id)
        return tuple(node for node in self if node.id in found)
