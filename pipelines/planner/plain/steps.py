"""The steps of each node over one batch: tables in, a table out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.errors import NeedsSparkError
from pipelines.graph import nodes
from pipelines.graph.fields import parse_ddl
from pipelines.planner.plain.aggregation import aggregated
from pipelines.planner.plain.calls import call, keeps
from pipelines.planner.plain.context import PlainContext
from pipelines.planner.plain.joins import joined, merged, multi_reduced
from pipelines.planner.plain.partitions import entered, extreme, repartitioned
from pipelines.planner.plain.queries import queried
from pipelines.planner.plain.table import Table
from pipelines.trident.functions import ColumnFunction

Tables = Sequence[Table]


def read(schema: str, batch: Sequence[Sequence[Any] | Mapping[str, Any]], tasks: int = 1) -> Table:
    """Return a batch as a table; whole numbers become floats where the schema says so, as in a real source.

    Args:
        schema: DDL of the fields.
        batch: tuples in the order of the fields, or dicts.
        tasks: in how many tasks the tuples start.

    Raises:
        SourceSchemaError: if a row does not fit the schema.
    """
    from pipelines.sources import FixedBatches

    source = FixedBatches(schema, [batch])
    types = tuple(kind for _, kind in parse_ddl(schema))
    rows = tuple(
        tuple(
            float(value) if kind in ("double", "float") and isinstance(value, int) else value
            for value, kind in zip(row, types, strict=True)
        )
        for row in source.batches[0]
    )
    return entered(Table(source.fields, types, rows), tasks)


@dataclass(frozen=True)
class _Plain:
    """The plain form of a class of nodes.

    Attributes:
        step: what a node makes of its parents' tables.
        needs_spark: whether the step asks Spark for something.
    """

    step: Callable[[Any, Tables, PlainContext], Table]
    needs_spark: Callable[[Any], bool]


def step(node: nodes.Node, tables: Tables, context: PlainContext) -> Table:
    """Return what a node makes of one batch.

    Args:
        node: the operation. Spouts are read by `read`; persists are the caller's, whose table is what it has made of the
            batch (the new values of the keys that were touched), for a NewValuesNode behind it.
        tables: what the parents made, in order.
        context: the batch.

    Raises:
        NeedsSparkError: if only Spark can evaluate it, and the context has none.
        StateQueryError: if a query function gives a wrong number of results.
        NotImplementedError: if the node is the caller's.
    """
    plain = _STEPS.get(type(node))
    if plain is None:
        raise NotImplementedError(f"the plain interpreter does not know {type(node).__name__}")
    return plain.step(node, tables, context)


def needs_spark(candidates: Iterable[nodes.Node]) -> bool:
    """Check whether `step` needs Spark's help with one of the nodes. The caller's own need none."""
    steps = ((node, _STEPS.get(type(node))) for node in candidates)
    return any(plain is not None and plain.needs_spark(node) for node, plain in steps)


def _each(node: nodes.EachNode, tables: Tables, context: PlainContext) -> Table:
    table = tables[0]
    made, types = call(node.function, table.select(node.inputs), node.outputs, context)
    of_row = [[row + new for new in outputs] for row, outputs in zip(table.rows, made, strict=True)]
    return table.replaced(node.fields, table.types + types, of_row)


def _map(node: nodes.MapNode, tables: Tables, context: PlainContext) -> Table:
    made, types = call(node.function, tables[0], node.fields, context)
    return tables[0].replaced(node.fields, types, made)


def _filter(node: nodes.FilterNode, tables: Tables, context: PlainContext) -> Table:
    kept = keeps(node, tables[0].select(node.inputs), context)
    return tables[0].take([number for number, keep in enumerate(kept) if keep])


def _peek(node: nodes.PeekNode, tables: Tables, context: PlainContext) -> Table:
    for row in tables[0].dicts():
        node.consumer(row)
    return tables[0]


def _gate(node: nodes.GateNode, tables: Tables, context: PlainContext) -> Table:
    if context.gate is None:
        raise NeedsSparkError(node.label)
    return context.gate(node.gate, tables[0], context.label)


def _never(node: nodes.Node) -> bool:
    return False


def _without_rows(node: nodes.EachNode | nodes.MapNode | nodes.PartitionNode) -> bool:
    return isinstance(node.function, ColumnFunction) and node.function.rows is None


def _without_keep(node: nodes.FilterNode) -> bool:
    return isinstance(node.predicate, str) or (
        isinstance(node.predicate, ColumnFunction) and node.predicate.keep is None
    )


_STEPS: dict[type[nodes.Node], _Plain] = {
    nodes.EachNode: _Plain(_each, _without_rows),
    nodes.MapNode: _Plain(_map, _without_rows),
    nodes.FilterNode: _Plain(_filter, _without_keep),
    nodes.PeekNode: _Plain(_peek, _never),
    nodes.ProjectNode: _Plain(lambda node, tables, _: tables[0].select(node.fields), _never),
    nodes.GateNode: _Plain(_gate, lambda node: True),
    nodes.PartitionNode: _Plain(lambda node, tables, context: repartitioned(node, tables[0], context), _without_rows),
    nodes.ExtremeNode: _Plain(lambda node, tables, context: extreme(node, tables[0], context), _never),
    nodes.AggregateNode: _Plain(lambda node, tables, context: aggregated(node, tables[0], context), _never),
    nodes.MergeNode: _Plain(merged, _never),
    nodes.JoinNode: _Plain(joined, _never),
    nodes.MultiReduceNode: _Plain(multi_reduced, _never),
    nodes.StateQueryNode: _Plain(lambda node, tables, context: queried(node, tables[0], context), _never),
    nodes.NewValuesNode: _Plain(lambda node, tables, _: tables[0], _never),
}

_OF_CALLER = (
    nodes.SpoutNode,
    nodes.QuerySpoutNode,
    nodes.ChannelSpoutNode,
    nodes.StaticStateNode,
    nodes.PersistNode,
    nodes.ChannelNode,
    nodes.LatePersistNode,
    nodes.OnTimeNode,
    nodes.EnterWindowNode,
    nodes.WindowNode,
    nodes.BatchWindowNode,
)
"""Nodes that the caller reads, commits or runs windows for."""

nodes.check_all_known("the plain interpreter", _STEPS, _OF_CALLER)
