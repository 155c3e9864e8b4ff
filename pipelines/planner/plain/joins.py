"""Several streams of one batch together: merge, join, multi_reduce (Trident rules 1.1 and 8)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from pipelines.aggregators.calls import taking
from pipelines.aggregators.folds import General
from pipelines.aggregators.ordering import freeze
from pipelines.graph import nodes
from pipelines.planner.plain.context import PlainContext
from pipelines.planner.plain.partitions import by_hash
from pipelines.planner.plain.table import Row, Table


def merged(node: nodes.MergeNode, tables: Sequence[Table], context: PlainContext) -> Table:
    """Return all parents' tuples, by position, the first parent's first; each stays in its task."""
    types = tuple(
        next((kind for kind in kinds if kind), None) for kinds in zip(*(t.types for t in tables), strict=True)
    )
    tasks: list[int] | None = None
    if context.tasks_of(node.id) > 1:
        tasks = [table.task_of(i) for table in tables for i in range(len(table.rows))]
    return Table(node.fields, types, tuple(row for table in tables for row in table.rows)).dealt(tasks)


def joined(node: nodes.JoinNode, tables: Sequence[Table], context: PlainContext) -> Table:
    """Join the tuples of one batch on equal keys; null equals null. A side that is absent is one row of nulls if it is outer."""
    by_key: dict[Any, tuple[Row, list[list[Row]]]] = {}
    for side, table in enumerate(tables):
        keys = table.select(node.sides[side].keys).rows
        shown = table.rows if node.mode == nodes.PRESERVE else table.select(node.sides[side].values).rows
        for key, row in zip(keys, shown, strict=True):
            _, rows = by_key.setdefault(freeze(key), (key, [[] for _ in tables]))
            rows[side].append(row)
    made: list[Row] = []
    for key, rows in by_key.values():
        made += _crossed(node, tables, key, rows)
    types = _types(node, tables)
    # Dealt by their keys, which the outputs need not hold: with PRESERVE a side's are null where it is absent.
    tasks = context.tasks_of(node.id)
    numbers = [key_row for key, rows in by_key.values() for key_row in [key] * len(_crossed(node, tables, key, rows))]
    key_table = Table(node.sides[0].keys, _key_types(node, tables), tuple(numbers))
    return Table(node.fields, types, tuple(made), by_hash(key_table, key_table.fields, tasks).tasks)


def _crossed(node: nodes.JoinNode, tables: Sequence[Table], key: Row, rows: list[list[Row]]) -> list[Row]:
    """The cross product of one key's tuples, the last side fastest; none if a side that must be there is absent."""
    sides = []
    for side, table, matches in zip(node.sides, tables, rows, strict=True):
        if not matches and not side.outer:
            return []
        width = len(table.fields) if node.mode == nodes.PRESERVE else len(side.values)
        sides.append(matches or [(None,) * width])
    first = () if node.mode == nodes.PRESERVE else key
    return [(*first, *itertools.chain.from_iterable(product)) for product in itertools.product(*sides)]


def _types(node: nodes.JoinNode, tables: Sequence[Table]) -> tuple[str | None, ...]:
    if node.mode == nodes.PRESERVE:
        return tuple(kind for table in tables for kind in table.types)
    values = (table.type_of(name) for side, table in zip(node.sides, tables, strict=True) for name in side.values)
    return (*_key_types(node, tables), *values)


def _key_types(node: nodes.JoinNode, tables: Sequence[Table]) -> tuple[str | None, ...]:
    return tuple(tables[0].type_of(name) for name in node.sides[0].keys)


def multi_reduced(node: nodes.MultiReduceNode, tables: Sequence[Table], context: PlainContext) -> Table:
    """Return the tuples of several streams through one reducer, per partition or per group."""
    tasks = context.tasks_of(node.id)
    if any(node.groups):
        return _grouped(node, tables, tasks)
    parts = zip(*(table.by_task(tasks) for table in tables), strict=True)
    made = [_reduced(node, part) for part in parts]
    numbers = [task for task, rows in enumerate(made) for _ in rows]
    result = Table(node.fields, node.types, tuple(row for rows in made for row in rows))
    return result.dealt(numbers if tasks > 1 else None)


def _reduced(node: nodes.MultiReduceNode, tables: Sequence[Table]) -> list[Row]:
    reduction = _Reduction(node, ())
    for stream, table in enumerate(tables):
        for values in table.select(node.inputs[stream]).rows:
            reduction.execute(stream, (), values)
    return reduction.complete(())


def _grouped(node: nodes.MultiReduceNode, tables: Sequence[Table], tasks: int) -> Table:
    reductions: dict[Any, tuple[Row, _Reduction]] = {}
    for stream, table in enumerate(tables):
        groups = table.select(node.groups[stream]).rows
        for group, values in zip(groups, table.select(node.inputs[stream]).rows, strict=True):
            frozen = freeze(group)
            if frozen not in reductions:
                reductions[frozen] = group, _Reduction(node, group)
            reductions[frozen][1].execute(stream, (group,), values)
    rows, keys = list[Row](), list[Row]()
    for group, reduction in reductions.values():
        made = reduction.complete((group,))
        rows += made
        keys += [group] * len(made)
    types = tuple(tables[0].type_of(name) for name in node.groups[0])
    dealt = by_hash(Table(node.groups[0], types, tuple(keys)), node.groups[0], tasks)
    return Table(node.fields, node.types, tuple(rows), dealt.tasks)


class _Reduction:
    """One reducer at work on a partition or group."""

    def __init__(self, node: nodes.MultiReduceNode, group: Row) -> None:
        self._reducer, self._general = node.reducer, General(node.label, len(node.outputs))
        self._value = [node.reducer.init(*group), []]
        leading = 3 if any(node.groups) else 2
        self._execute = [taking(node.reducer.execute, leading, len(inputs)) for inputs in node.inputs]

    def execute(self, stream: int, group: tuple[Row, ...], values: Row) -> None:
        self._general.take(self._value, self._execute[stream](self._value[0], stream, *group, *values))

    def complete(self, group: tuple[Row, ...]) -> list[Row]:
        return self._general.last(self._value, self._reducer.complete(self._value[0], *group))
