"""Tasks: where tuples enter, repartitions, and what works on each partition (Trident rules 1.2 and 1.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

from pipelines.errors import FunctionError
from pipelines.graph import nodes
from pipelines.graph.bolts import copies_taken
from pipelines.graph.types import check_whole
from pipelines.planner.plain.context import PlainContext, call
from pipelines.planner.plain.murmur import hashable, task_of
from pipelines.planner.plain.table import Row, Table, order


def entered(table: Table, tasks: int) -> Table:
    """Return a spout's tuples in their tasks."""
    return by_hash(table, table.fields, tasks)


def by_hash(table: Table, by: Sequence[str], tasks: int) -> Table:
    """Return each tuple in the task of its fields' hash."""
    if tasks == 1:
        return table.dealt(None)
    hashed = [field for field in by if hashable(table.type_or_guess(field))]
    types = [table.type_or_guess(field) for field in hashed]
    return table.dealt(task_of(row, types, tasks) if hashed else 0 for row in table.select(hashed).rows)


def entering(node: nodes.Node, graph: nodes.Graph, tables: Mapping[int, Table], context: PlainContext) -> list[Table]:
    """Return the tables of a node's parents, their tuples in the tasks that the node has.

    A repartition in front of bolts of different parallelism deals to the most of them; of a broadcast's copies each task
    takes its own. What the node itself deals stays where it is.
    """
    tasks, found = context.tasks_of(node.id), list[Table]()
    for above in (graph[parent] for parent in node.parents):
        table = tables[above.id]
        if isinstance(above, nodes.PartitionNode) and above.kind == nodes.BROADCAST:
            copies = copies_taken(graph).get((node.id, above.id), tasks)
            table = table.take([number for number in range(len(table.rows)) if table.task_of(number) < copies])
        found.append(table if isinstance(node, nodes.PartitionNode) else table.within(tasks))
    return found


def repartitioned(node: nodes.PartitionNode, table: Table, context: PlainContext) -> Table:
    """Run `shuffle`, `partition_by` and the others."""
    tasks = context.tasks_of(node.id)
    if tasks == 1:
        return table.dealt(None)
    if node.kind == nodes.IDENTITY:
        return table
    if node.kind == nodes.LOCAL_OR_SHUFFLE and context.tasks_of(node.parents[0]) == tasks:
        return table
    if node.kind == nodes.BROADCAST:
        rows = [[row] * tasks for row in table.rows]
        copies = table.dealt(None).replaced(table.fields, table.types, rows)
        return copies.dealt(task for _ in rows for task in range(tasks))
    if node.kind == nodes.GLOBAL:
        return table.dealt([0] * len(table.rows))
    if node.kind == nodes.BATCH_GLOBAL:
        return in_batch_task(table, tasks, context)
    if node.kind in (nodes.CUSTOM, nodes.DIRECT):
        return table.dealt(0 if number is None else int(number) % tasks for number in _chosen(node, table, context))
    return by_hash(table, node.by or node.fields, tasks)


def in_batch_task(table: Table, tasks: int, context: PlainContext) -> Table:
    """Put all tuples in the one task that takes the batch."""
    return table.dealt(None if tasks == 1 else [context.batch % tasks] * len(table.rows))


def _chosen(node: nodes.PartitionNode, table: Table, context: PlainContext) -> list[Any]:
    if node.kind == nodes.DIRECT:
        return _whole(node, table)
    results, _ = call(node.function, table, ("task",), context)
    if any(len(rows) != 1 for rows in results):
        raise FunctionError(node.label, f"{node.function} must give one task per tuple")
    return [rows[0][0] for rows in results]


def _whole(node: nodes.PartitionNode, table: Table) -> list[int | Decimal | None]:
    """Return the tasks that a field names, where Spark takes them, too: its type may be known here alone."""
    field = node.by[0]
    check_whole(node.label, field, table.type_of(field))
    named = table.column(field)
    for value in named:
        if isinstance(value, Decimal):
            fits = value.is_finite() and value == int(value) and int(value) in _BIGINT
        else:
            fits = value is None or (isinstance(value, int) and not isinstance(value, bool) and value in _BIGINT)
        if not fits:
            raise FunctionError(node.label, f'"{field}" names no task: {value!r}', hint="cast it to bigint before it")
    return named


_BIGINT = range(-(2**63), 2**63)


def extreme(node: nodes.ExtremeNode, table: Table, context: PlainContext) -> Table:
    """Keep the tuple of each partition with the least or the largest value; the last of equals."""
    parts = table.by_task(context.tasks_of(node.id))
    pairs = [(task, row) for task, part in enumerate(parts) for row in _extreme_of(node, part)]
    tasks = None if len(parts) == 1 else tuple(task for task, _ in pairs)
    return Table(table.fields, table.types, tuple(row for _, row in pairs), tasks)


def _extreme_of(node: nodes.ExtremeNode, part: Table) -> list[Row]:
    compared = part.dicts() if node.field is None else part.column(node.field)
    there = [number for number, value in enumerate(compared) if value is not None]
    if not there:
        return []
    key: Any = cmp_to_key(node.comparator) if node.comparator else order
    best = there[0]
    for number in there[1:]:
        new, known = key(compared[number]), key(compared[best])
        if (known <= new) if node.largest else (new <= known):
            best = number
    return [part.rows[best]]
