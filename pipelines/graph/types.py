"""Spark SQL types of fields, as far as the definition says them: without Spark, which alone knows the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch

from pipelines.graph import nodes
from pipelines.graph.fields import parse_ddl

Types = Mapping[str, str | None]
"""The type of each field, `None` where only Spark can tell."""


def known_types(graph: nodes.Graph, node_id: int) -> dict[str, str | None]:
    """The types of a node's fields that follow from schemas and declared types: `{"word": "string", "n": None}`.

    What a function over columns or a built-in aggregator makes is not known here; its partial value least of all.
    """
    found: dict[int, Types] = {}
    for node in graph.ancestors(node_id):
        found[node.id] = _types(node, tuple(found[parent] for parent in node.parents))
    return dict(found[node_id])


def same_type(one: str | None, other: str | None) -> bool:
    """Whether two types may be the same: one is not known, or they differ in spaces and capitals alone."""
    if one is None or other is None:
        return True
    return "".join(one.lower().split()) == "".join(other.lower().split())


def _of_ddl(ddl: str) -> Types:
    return dict(parse_ddl(ddl)) if ddl.strip() else {}


def _named(fields: Iterable[str], types: Sequence[str]) -> dict[str, str | None]:
    names = tuple(fields)
    return dict(zip(names, types, strict=True)) if len(types) == len(names) else dict.fromkeys(names)


@singledispatch
def _types(node: nodes.Node, above: tuple[Types, ...]) -> Types:
    return {field: above[0].get(field) for field in node.fields} if above else dict.fromkeys(node.fields)


@_types.register
def _spout(node: nodes.SpoutNode, above: tuple[Types, ...]) -> Types:
    known = _of_ddl(node.schema if isinstance(node, nodes.ChannelSpoutNode) else getattr(node.source, "schema", ""))
    return {field: known.get(field) for field in node.fields}


@_types.register
def _window(node: nodes.WindowNode, above: tuple[Types, ...]) -> Types:
    return _named(node.fields, node.types)


@_types.register
def _query_spout(node: nodes.QuerySpoutNode, above: tuple[Types, ...]) -> Types:
    return _of_ddl(node.schema)


@_types.register
def _static_state(node: nodes.StaticStateNode, above: tuple[Types, ...]) -> Types:
    known = _of_ddl(getattr(node.state, "schema", ""))
    return {field: known.get(field) for field in node.fields}


@_types.register
def _each(node: nodes.EachNode, above: tuple[Types, ...]) -> Types:
    return {**above[0], **_named(node.outputs, getattr(node.function, "types", ()))}


@_types.register
def _map(node: nodes.MapNode, above: tuple[Types, ...]) -> Types:
    return _named(node.fields, getattr(node.function, "types", ()))


@_types.register
def _aggregate(node: nodes.AggregateNode, above: tuple[Types, ...]) -> Types:
    return {**{field: above[0].get(field) for field in node.group}, **_aggregations(node.aggregations)}


@_types.register
def _persist(node: nodes.PersistNode, above: tuple[Types, ...]) -> Types:
    if node.updater is not None:
        columns = dict((*node.updater.key_columns, *node.updater.value_columns))
        return {**_named(node.outputs, node.types), **columns}
    made = _aggregations(node.aggregations)
    return {field: made[field] if field in made else above[0].get(field) for field in node.fields}


def _aggregations(chain: Iterable[nodes.Aggregation]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for one in chain:
        found |= _named(one.outputs, one.types)
    return found


@_types.register
def _merge(node: nodes.MergeNode, above: tuple[Types, ...]) -> Types:
    """By position; where the sides differ Spark finds a common type."""
    columns = zip(*(parent.values() for parent in above), strict=True)
    return {field: _common(types) for field, types in zip(node.fields, columns, strict=True)}


def _common(types: Iterable[str | None]) -> str | None:
    found = set(types)
    return found.pop() if len(found) == 1 else None


@_types.register
def _join(node: nodes.JoinNode, above: tuple[Types, ...]) -> Types:
    if node.mode == nodes.PRESERVE:
        columns = [kind for parent in above for kind in parent.values()]
    else:
        sides = list(zip(above, node.sides, strict=True))
        keys = zip(*([parent[key] for key in side.keys] for parent, side in sides), strict=True)
        columns = [_common(types) for types in keys]
        columns += [parent[value] for parent, side in sides for value in side.values]
    return dict(zip(node.fields, columns, strict=True))


@_types.register
def _multi_reduce(node: nodes.MultiReduceNode, above: tuple[Types, ...]) -> Types:
    return {**dict.fromkeys(node.fields), **_named(node.outputs, node.types)}


@_types.register
def _state_query(node: nodes.StateQueryNode, above: tuple[Types, ...]) -> Types:
    return {**above[0], **_named(node.outputs, node.types)}
