"""Aggregates of a batch, of its groups and partitions (Trident rules 1.3 and 1.4)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipelines.aggregators import Average, Collect, Count, DistinctCount, Max, Min, Sum
from pipelines.aggregators.folds import Running
from pipelines.aggregators.ordering import freeze
from pipelines.graph import nodes
from pipelines.graph.nodes import Aggregation
from pipelines.planner.plain.context import PlainContext
from pipelines.planner.plain.partitions import by_hash, in_batch_task
from pipelines.planner.plain.table import Row, Table

Groups = Iterable[tuple[Row, list[Running]]]


def aggregated(node: nodes.AggregateNode, table: Table, context: PlainContext) -> Table:
    """Return a batch, or each partition of it, aggregated: the group's fields, then the cross product of the chain's rows."""
    types = aggregate_types(table, node.group, node.aggregations)
    tasks = context.tasks_of(node.id)
    if node.partitioned:
        parts = [_rows(node, part, context) for part in table.by_task(tasks)]
        numbers = [task for task, rows in enumerate(parts) for _ in rows]
        made = Table(node.fields, types, tuple(row for rows in parts for row in rows))
        return made.dealt(numbers if tasks > 1 else None)
    made = Table(node.fields, types, tuple(_rows(node, table, context)))
    return by_hash(made, node.group, tasks) if node.group else in_batch_task(made, tasks, context)


def _rows(node: nodes.AggregateNode, table: Table, context: PlainContext) -> list[Row]:
    rows: list[Row] = []
    for key, chain in running(table, node.group, node.aggregations, context.batch):
        for product in itertools.product(*(aggregator.complete() for aggregator in chain)):
            rows.append((*key, *itertools.chain.from_iterable(product)))
    return rows


def running(
    table: Table,
    group: Sequence[str],
    aggregations: Sequence[Aggregation],
    batch: Any,
    stored: Mapping[Any, Sequence[Any]] | None = None,
) -> Groups:
    """Return the aggregators of each group, in the order of its first tuple, having taken in the group's tuples.

    Without a group there is one, of an empty table too; with one, an empty table gives nothing (Trident rules 1.3).

    Args:
        stored: the values that a state holds already, by frozen key, to go on from: a combiner's is merged with the
            partial value of the tuples, a reducer reduces on.
    """
    keys = table.select(group).rows
    inputs = [table.select(a.inputs).rows for a in aggregations]

    def start(frozen: Any) -> list[Running]:
        chain = [Running(a.aggregator, len(a.inputs), len(a.outputs), batch) for a in aggregations]
        for member, value in zip(chain, (stored or {}).get(frozen, ()), strict=False):
            member.go_on_from(value)
        return chain

    groups: dict[Any, tuple[Row, list[Running]]] = {}
    if not group:
        groups[()] = (), start(())
    for number, key in enumerate(keys):
        frozen = freeze(key)
        if frozen not in groups:
            groups[frozen] = key, start(frozen)
        for aggregator, values in zip(groups[frozen][1], inputs, strict=True):
            aggregator.add(values[number])
    return groups.values()


def aggregate_types(table: Table, group: Sequence[str], aggregations: Sequence[Aggregation]) -> tuple[str | None, ...]:
    """Return the types of an aggregate's fields, as far as they are known without Spark."""
    types = [table.type_of(field) for field in group]
    for a in aggregations:
        inputs = [table.type_of(field) for field in a.inputs]
        types += a.types or ([_result_type(a.aggregator, inputs)] if len(a.outputs) == 1 else inputs)
    return tuple(types)


def _result_type(aggregator: Any, inputs: Sequence[str | None]) -> str | None:
    if isinstance(aggregator, Count | DistinctCount):
        return "bigint"
    if isinstance(aggregator, Average):
        return "double"
    if isinstance(aggregator, Collect):
        return f"array<{inputs[0]}>" if inputs[0] else None
    if isinstance(aggregator, Sum) and inputs[0] in ("tinyint", "smallint", "int", "bigint"):
        return "bigint"
    if isinstance(aggregator, Sum):
        return "double" if inputs[0] in ("float", "double") else None
    return inputs[0] if isinstance(aggregator, Min | Max) or len(inputs) == 1 else None
