"""What each node makes of one batch: tables in, a table out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

from pipelines.errors import NeedsSparkError
from pipelines.graph import nodes
from pipelines.graph.fields import parse_ddl
from pipelines.planner.plain.aggregation import aggregated
from pipelines.planner.plain.calls import call, keeps
from pipelines.planner.plain.context import Context
from pipelines.planner.plain.joins import joined, merged, multi_reduced
from pipelines.planner.plain.partitions import entered, extreme, repartitioned
from pipelines.planner.plain.queries import queried
from pipelines.planner.plain.table import Table

Tables = Sequence[Table]


def read(schema: str, batch: Sequence[Sequence[Any] | Mapping[str, Any]], tasks: int = 1) -> Table:
    """A batch as a table; whole numbers become floats where the schema says so, as in a real source.

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


@singledispatch
def step(node: nodes.Node, tables: Tables, context: Context) -> Table:
    """What a node makes of one batch.

    Args:
        node: the operation. Spouts are read by `read`; persists are the caller's, whose table is what it has made of the
            batch (the new values of the keys that were touched), for a NewValuesNode behind it.
        tables: what the parents made, in order.
        context: the batch.

    Raises:
        NeedsSparkError: if only Spark can evaluate it, and the context has none.
        StateQueryError: if a query function gives a wrong number of results.
    """
    raise NotImplementedError(f"the plain interpreter does not know {type(node).__name__}")


@step.register
def _each(node: nodes.EachNode, tables: Tables, context: Context) -> Table:
    table = tables[0]
    made, types = call(node.function, table.select(node.inputs), node.outputs, context)
    of_row = [[row + new for new in found] for row, found in zip(table.rows, made, strict=True)]
    return table.replaced(node.fields, table.types + types, of_row)


@step.register
def _map(node: nodes.MapNode, tables: Tables, context: Context) -> Table:
    made, types = call(node.function, tables[0], node.fields, context)
    return tables[0].replaced(node.fields, types, made)


@step.register
def _filter(node: nodes.FilterNode, tables: Tables, context: Context) -> Table:
    kept = keeps(node, tables[0].select(node.inputs), context)
    return tables[0].take([number for number, keep in enumerate(kept) if keep])


@step.register
def _peek(node: nodes.PeekNode, tables: Tables, context: Context) -> Table:
    for row in tables[0].dicts():
        node.consumer(row)
    return tables[0]


@step.register
def _project(node: nodes.ProjectNode, tables: Tables, context: Context) -> Table:
    return tables[0].select(node.fields)


@step.register
def _gate(node: nodes.GateNode, tables: Tables, context: Context) -> Table:
    if context.gate is None:
        raise NeedsSparkError(node.label)
    return context.gate(node.gate, tables[0], context.label)


@step.register
def _partition(node: nodes.PartitionNode, tables: Tables, context: Context) -> Table:
    return repartitioned(node, tables[0], context)


@step.register
def _extreme(node: nodes.ExtremeNode, tables: Tables, context: Context) -> Table:
    return extreme(node, tables[0], context)


@step.register
def _aggregate(node: nodes.AggregateNode, tables: Tables, context: Context) -> Table:
    return aggregated(node, tables[0], context)


@step.register
def _merge(node: nodes.MergeNode, tables: Tables, context: Context) -> Table:
    return merged(node, tables, context)


@step.register
def _join(node: nodes.JoinNode, tables: Tables, context: Context) -> Table:
    return joined(node, tables, context)


@step.register
def _multi_reduce(node: nodes.MultiReduceNode, tables: Tables, context: Context) -> Table:
    return multi_reduced(node, tables, context)


@step.register
def _state_query(node: nodes.StateQueryNode, tables: Tables, context: Context) -> Table:
    return queried(node, tables[0], context)


@step.register
def _new_values(node: nodes.NewValuesNode, tables: Tables, context: Context) -> Table:
    return tables[0]
