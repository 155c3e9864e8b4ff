"""Column lineage, read off the graph: from which fields of which streams and states does a field take its values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Protocol

from pipelines.graph import nodes
from pipelines.graph.fields import distinct

Origin = tuple[str, str]
"""A source's stream and field, or a state and its column."""

Lineage = Mapping[str, tuple[Origin, ...]]
"""The origins of each field, in the order of the fields. A field that depends on nothing has an empty tuple."""


class HasGraph(Protocol):
    """A topology, as far as lineage and drawings need it."""

    @property
    def name(self) -> str: ...

    @property
    def graph(self) -> nodes.Graph: ...


def lineage(topology: HasGraph, node_id: int) -> dict[str, tuple[Origin, ...]]:
    """The origins of every output field of a node: `{"count": (("sentences", "sentence"),)}`.

    Only where values come from counts; what decides whether a row is there does not: a filter, a gate and the keys of a
    group leave no trace in the fields beside them. The rules:

    - `each`: the outputs come from all inputs; `map` and `flat_map`: every field from all fields;
    - an aggregate: from its input fields. `Count` looks at no field, so its output has an empty tuple;
    - a state query: from the state's column, as (state, column), and no further: the state has a lineage of its own.
    """
    found: dict[int, Lineage] = {}
    for node in topology.graph.ancestors(node_id):
        merged: dict[str, tuple[Origin, ...]] = {}
        for parent in node.parents:
            for field, origins in found[parent].items():
                merged[field] = distinct((*merged.get(field, ()), *origins))
        found[node.id] = _step(node, merged, topology.graph)
    return dict(found[node_id])


def _from(above: Lineage, fields: tuple[str, ...]) -> tuple[Origin, ...]:
    return distinct(origin for field in fields for origin in above[field])


@singledispatch
def _step(node: nodes.Node, above: Lineage, graph: nodes.Graph) -> Lineage:
    """Filters, gates, peeks and projections: the fields as they were."""
    return {field: above[field] for field in node.fields}


@_step.register(nodes.SpoutNode)
@_step.register(nodes.QuerySpoutNode)
def _spout(node: nodes.SpoutNode | nodes.QuerySpoutNode, above: Lineage, graph: nodes.Graph) -> Lineage:
    return {field: ((node.stream, field),) for field in node.fields}


@_step.register
def _each(node: nodes.EachNode, above: Lineage, graph: nodes.Graph) -> Lineage:
    return {**above, **dict.fromkeys(node.outputs, _from(above, node.inputs))}


@_step.register
def _map(node: nodes.MapNode, above: Lineage, graph: nodes.Graph) -> Lineage:
    return dict.fromkeys(node.fields, _from(above, tuple(above)))


@_step.register(nodes.AggregateNode)
@_step.register(nodes.PersistNode)
def _aggregate(node: nodes.AggregateNode | nodes.PersistNode, above: Lineage, graph: nodes.Graph) -> Lineage:
    outputs = {one.output: _from(above, one.inputs) for one in node.aggregations}
    return {field: outputs[field] if field in outputs else above[field] for field in node.fields}


@_step.register
def _state_query(node: nodes.StateQueryNode, above: Lineage, graph: nodes.Graph) -> Lineage:
    writer = None if node.state_node is None else graph[node.state_node]
    columns = {output: ((node.state, _column(output, writer)),) for output in node.outputs}
    return {**above, **columns}


def _column(output: str, writer: nodes.Node | None) -> str:
    """The state's column that a query's output shows: the one of its name, else the state's only value."""
    if not isinstance(writer, nodes.PersistNode) or output in writer.fields or len(writer.aggregations) != 1:
        return output
    return writer.aggregations[0].output
