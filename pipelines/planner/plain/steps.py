"""The steps of each node over one batch: tables in, a table out (Trident rules 1.1 to 1.4 and 8)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.aggregators import Average, ColumnAggregator, Sum
from pipelines.aggregators.calls import taking
from pipelines.aggregators.exact import TotalError
from pipelines.aggregators.folds import General, Running
from pipelines.aggregators.ordering import freeze
from pipelines.errors import FunctionError, NeedsSparkError
from pipelines.graph import nodes
from pipelines.graph.fields import parse_ddl
from pipelines.graph.nodes import Aggregation
from pipelines.graph.types import check_said
from pipelines.planner.plain.context import PlainContext, call, fitted, keeps
from pipelines.planner.plain.meeting import brought, common_of
from pipelines.planner.plain.partitions import by_hash, entered, extreme, in_batch_task, repartitioned
from pipelines.planner.plain.queries import queried
from pipelines.planner.plain.table import Row, Table
from pipelines.trident.functions import ColumnFunction
from pipelines.windows.tuples import column_types

Groups = Iterable[tuple[Row, list[Running]]]


def aggregated(node: nodes.AggregateNode, table: Table, context: PlainContext) -> Table:
    """Return a batch, or each partition of it, aggregated: the group's fields, then the cross product of the chain's rows."""
    types = aggregate_types(table, node.group, node.aggregations)
    tasks = context.tasks_of(node.id)
    if node.partitioned:
        parts = [_rows(node, part, types, context) for part in table.by_task(tasks)]
        numbers = [task for task, rows in enumerate(parts) for _ in rows]
        made = Table(node.fields, types, tuple(row for rows in parts for row in rows))
        return made.dealt(numbers if tasks > 1 else None)
    made = Table(node.fields, types, tuple(_rows(node, table, types, context)))
    return by_hash(made, node.group, tasks) if node.group else in_batch_task(made, tasks, context)


def _rows(node: nodes.AggregateNode, table: Table, types: Sequence[str | None], context: PlainContext) -> list[Row]:
    rows: list[Row] = []
    of_fields = dict(zip(node.fields, types, strict=True))
    kinds = [kinds_of(a, of_fields) for a in node.aggregations]
    for key, chain in running(table, node.group, node.aggregations, context.batch):
        made = (fitted(node.label, own, link.complete()) for own, link in zip(kinds, chain, strict=True))
        for product in itertools.product(*made):
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
            partial value of the tuples, a reducer reduces on; from null both begin as if it held none.
    """
    keys = table.select(group).rows
    inputs = [table.select(a.inputs).rows for a in aggregations]

    def start(frozen: Any) -> list[Running]:
        chain = [_running(a, batch) for a in aggregations]
        for member, value in zip(chain, (stored or {}).get(frozen, ()), strict=False):
            if value is not None:
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


def _running(aggregation: Aggregation, batch: Any) -> Running:
    kind = _AddedUp if isinstance(aggregation.aggregator, Sum | Average) else Running
    return kind(aggregation.aggregator, len(aggregation.inputs), len(aggregation.outputs), batch)


class _AddedUp(Running):
    """A sum, or the sum within a mean: that of the batch is rounded as Spark's, then added to what the state holds."""

    _before: Any = None

    def go_on_from(self, value: Any) -> None:
        self._before = value

    @property
    def state(self) -> Any:
        aggregator: Any = self._fold.aggregator
        try:
            return aggregator.merge(self._before, aggregator.in_column(super().state))
        except TotalError as error:
            raise FunctionError(str(aggregator), str(error)) from error

    def complete(self) -> list[Row]:
        return [(self._fold.aggregator.finish(self.state),)]


def aggregate_types(table: Table, group: Sequence[str], aggregations: Sequence[Aggregation]) -> tuple[str | None, ...]:
    """Return the types of an aggregate's fields, as far as they are known without Spark."""
    known = dict(zip(table.fields, table.types, strict=True))
    return (*map(known.get, group), *column_types(aggregations, known).values())


def kinds_of(aggregation: Aggregation, types: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the types that the values of an aggregator must fit: those of a user's own, and of sums, which may grow past theirs.

    Args:
        types: of the aggregate's fields.
    """
    if not isinstance(aggregation.aggregator, ColumnAggregator):
        return aggregation.types
    return (types[aggregation.output] or "",) if isinstance(aggregation.aggregator, Sum) else ()


def merged(node: nodes.MergeNode, tables: Sequence[Table], context: PlainContext) -> Table:
    """Return all parents' tuples, by position, the first parent's first; each stays in its task (Trident rules 1.1)."""
    types = tuple(map(common_of, zip(*(t.types for t in tables), strict=True)))
    tasks: list[int] | None = None
    if context.tasks_of(node.id) > 1:
        tasks = [table.task_of(i) for table in tables for i in range(len(table.rows))]
    return Table(node.fields, types, tuple(row for table in tables for row in brought(table, types).rows)).dealt(tasks)


def joined(node: nodes.JoinNode, tables: Sequence[Table], context: PlainContext) -> Table:
    """Join the tuples of one batch on equal keys; null equals null. A side that is absent is one row of nulls if it is outer."""
    by_key: dict[Any, tuple[Row, list[list[Row]]]] = {}
    deciding, own = _deciding(node), dict[Any, Row]()
    of_sides = [table.select(side.keys) for side, table in zip(node.sides, tables, strict=True)]
    common = [common_of(kinds) for kinds in zip(*(keys.types for keys in of_sides), strict=True)]
    for side, (table, keys) in enumerate(zip(tables, of_sides, strict=True)):
        shown = table.rows if node.mode == nodes.PRESERVE else table.select(node.sides[side].values).rows
        for key, met, row in zip(keys.rows, brought(keys, common).rows, shown, strict=True):
            _, rows = by_key.setdefault(freeze(met), (met, [[] for _ in tables]))
            rows[side].append(row)
            if side == deciding:
                own.setdefault(freeze(met), key)
    made, made_of = list[Row](), list[Row]()
    for frozen, (met, rows) in by_key.items():
        key = own.get(frozen, met)
        crossed = _crossed(node, tables, key, rows)
        made += crossed
        made_of += [key] * len(crossed)
    # Dealt by their keys, which the outputs need not hold: with PRESERVE a side's are null where it is absent.
    tasks = context.tasks_of(node.id)
    key_table = Table(node.sides[0].keys, _key_types(node, tables), tuple(made_of))
    return Table(node.fields, _types(node, tables), tuple(made), by_hash(key_table, key_table.fields, tasks).tasks)


def _deciding(node: nodes.JoinNode) -> int | None:
    """Return the first side that must be there, whose keys decide; None where all may be absent."""
    return next((number for number, side in enumerate(node.sides) if not side.outer), None)


def _crossed(node: nodes.JoinNode, tables: Sequence[Table], key: Row, rows: list[list[Row]]) -> list[Row]:
    """Return the cross product of one key's tuples, the last side fastest; none if a side that must be there is absent."""
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
    """Return the types of the deciding side's keys; where there is none, those of all of them."""
    deciding, sides = _deciding(node), list(zip(tables, node.sides, strict=True))
    deciding_sides = sides if deciding is None else [sides[deciding]]
    keys = zip(*([table.type_of(name) for name in side.keys] for table, side in deciding_sides), strict=True)
    return tuple(map(common_of, keys))


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
    groups = [table.select(names) for table, names in zip(tables, node.groups, strict=True)]
    types = tuple(map(common_of, zip(*(group.types for group in groups), strict=True)))
    for stream, table in enumerate(tables):
        own = brought(groups[stream], types).rows
        for group, values in zip(own, table.select(node.inputs[stream]).rows, strict=True):
            frozen = freeze(group)
            if frozen not in reductions:
                reductions[frozen] = group, _Reduction(node, group)
            reductions[frozen][1].execute(stream, (group,), values)
    rows, keys = list[Row](), list[Row]()
    for group, reduction in reductions.values():
        made = reduction.complete((group,))
        rows += made
        keys += [group] * len(made)
    dealt = by_hash(Table(node.groups[0], types, tuple(keys)), node.groups[0], tasks)
    return Table(node.fields, node.types, tuple(rows), dealt.tasks)


class _Reduction:
    """One reducer at work on a partition or group."""

    def __init__(self, node: nodes.MultiReduceNode, group: Row) -> None:
        self._node, self._reducer, self._general = node, node.reducer, General(node.label, len(node.outputs))
        self._value = [node.reducer.init(*group), []]
        leading = 3 if any(node.groups) else 2
        self._execute = [taking(node.reducer.execute, leading, len(inputs)) for inputs in node.inputs]

    def execute(self, stream: int, group: tuple[Row, ...], values: Row) -> None:
        self._general.take(self._value, self._execute[stream](self._value[0], stream, *group, *values))

    def complete(self, group: tuple[Row, ...]) -> list[Row]:
        rows = self._general.last(self._value, self._reducer.complete(self._value[0], *group))
        return fitted(self._node.label, self._node.types, rows)


Tables = Sequence[Table]


def read(
    schema: str, batch: Sequence[Sequence[Any] | Mapping[str, Any]], tasks: int = 1, name: str = "fixed batches"
) -> Table:
    """Return a batch as a table, with the values that a real source gives: of the schema's types, times in UTC, without zone.

    Args:
        schema: DDL of the fields.
        batch: tuples in the order of the fields, or dicts.
        tasks: in how many tasks the tuples start.
        name: what is read, for errors.
    """
    from pipelines.sources import FixedBatches
    from pipelines.sources.fixed import checked_rows

    source = FixedBatches(schema, [batch])
    rows = checked_rows(name, schema, source.batches[0])
    return entered(Table(source.fields, tuple(kind for _, kind in parse_ddl(schema)), tuple(rows)), tasks)


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

    Raises:
        NotImplementedError: if the node is the caller's.
    """
    plain = _STEPS.get(type(node))
    if plain is None:
        raise NotImplementedError(f"the plain interpreter does not know {type(node).__name__}")
    made = plain.step(node, tables, context)
    if node.said and all(kind for table in tables for kind in table.types):
        check_said(f"at {node.at}: {node.label}", node.said, dict(zip(made.fields, made.types, strict=True)))
    return made


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
