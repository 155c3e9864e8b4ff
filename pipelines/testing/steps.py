"""The operations that look at one batch, in plain Python: a table in, a table out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines.aggregators import Average, Count, Max, Min, Sum
from pipelines.errors import FunctionError
from pipelines.graph import nodes
from pipelines.graph.nodes import Aggregation
from pipelines.testing.spark_step import evaluate, keeps, pass_gate, session
from pipelines.testing.table import Row, Table, freeze
from pipelines.trident.functions import ArrowFunction, Function, RowFunction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ARROW: dict[str | None, pa.DataType] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
"""The array types of an Arrow function's inputs; other types are inferred from the values."""


@singledispatch
def step(node: nodes.Node, table: Table, spark: SparkSession | None, batch: str) -> Table:
    """What a node makes of one batch.

    Args:
        node: the operation; those that touch states are the interpreter's.
        table: the batch, as the node before gave it.
        spark: for the expressions that only Spark can evaluate; None: the active session.
        batch: the batch's name in errors.
    """
    raise NotImplementedError(f"the reference engine does not know {type(node).__name__}")


@step.register(nodes.EachNode)
def _each(node: nodes.EachNode, table: Table, spark: SparkSession | None, batch: str) -> Table:
    made, types = call(node.function, table.select(node.inputs), node.outputs, spark)
    rows = [row + new for row, found in zip(table.rows, made, strict=True) for new in found]
    return Table(node.fields, table.types + types, tuple(rows))


@step.register(nodes.MapNode)
def _map(node: nodes.MapNode, table: Table, spark: SparkSession | None, batch: str) -> Table:
    made, types = call(node.function, table, node.fields, spark)
    return Table(node.fields, types, tuple(new for found in made for new in found))


@step.register(nodes.FilterNode)
def _filter(node: nodes.FilterNode, table: Table, spark: SparkSession | None, batch: str) -> Table:
    inputs = table.select(node.inputs)
    if isinstance(node.predicate, RowFunction):
        kept = [node.predicate.call(*row) is True for row in inputs.rows]
    elif not table.rows:
        kept = []
    else:
        kept = keeps(session(spark, node.label), inputs, node.predicate)
    return table.with_rows(row for row, keep in zip(table.rows, kept, strict=True) if keep)


@step.register(nodes.PeekNode)
def _peek(node: nodes.PeekNode, table: Table, spark: SparkSession | None, batch: str) -> Table:
    for row in table.dicts():
        node.consumer(row)
    return table


@step.register(nodes.ProjectNode)
def _project(node: nodes.ProjectNode, table: Table, spark: SparkSession | None, batch: str) -> Table:
    return table.select(node.fields)


@step.register(nodes.GateNode)
def _gate(node: nodes.GateNode, table: Table, spark: SparkSession | None, batch: str) -> Table:
    return pass_gate(session(spark, node.label), table, node.gate, batch)


@step.register(nodes.AggregateNode)
def _aggregate(node: nodes.AggregateNode, table: Table, spark: SparkSession | None, batch: str) -> Table:
    rows = []
    for key, values in partial_values(table, node.group, node.aggregations):
        finished = (a.aggregator.finish(value) for a, value in zip(node.aggregations, values, strict=True))
        rows.append((*key, *finished))
    return Table(node.fields, aggregate_types(table, node.group, node.aggregations), tuple(rows))


def partial_values(
    table: Table, group: Sequence[str], aggregations: Sequence[Aggregation]
) -> Iterable[tuple[Row, list[Any]]]:
    """The values of each aggregator, unfinished, for each group in the order of its first tuple.

    Without a group there is one row, of zeros if the table is empty; with one, an empty table gives nothing (Trident
    rules 1.3).
    """
    keys = table.select(group).rows
    inputs = [table.select(a.inputs).rows for a in aggregations]
    found: dict[Any, tuple[Row, list[Any]]] = {}
    if not group:
        found[()] = (), [a.aggregator.zero() for a in aggregations]
    for number, key in enumerate(keys):
        _, values = found.setdefault(freeze(key), (key, [a.aggregator.zero() for a in aggregations]))
        for i, a in enumerate(aggregations):
            values[i] = a.aggregator.combine(values[i], a.aggregator.init(*inputs[i][number]))
    return found.values()


def aggregate_types(table: Table, group: Sequence[str], aggregations: Sequence[Aggregation]) -> tuple[str | None, ...]:
    """The types of an aggregate's fields, as far as they are known without Spark."""
    return tuple(table.type_of(field) for field in group) + tuple(
        _result_type(a.aggregator, [table.type_of(field) for field in a.inputs]) for a in aggregations
    )


def _result_type(aggregator: Any, inputs: Sequence[str | None]) -> str | None:
    if isinstance(aggregator, Count):
        return "bigint"
    if isinstance(aggregator, Average):
        return "double"
    if isinstance(aggregator, Min | Max):
        return inputs[0]
    if isinstance(aggregator, Sum) and inputs[0] in ("tinyint", "smallint", "int", "bigint"):
        return "bigint"
    return "double" if isinstance(aggregator, Sum) and inputs[0] in ("float", "double") else None


def call(
    function: Function, inputs: Table, names: tuple[str, ...], spark: SparkSession | None
) -> tuple[list[list[Row]], tuple[str | None, ...]]:
    """For each row of the inputs the rows that a function gives, and the types of the outputs."""
    unknown: tuple[str | None, ...] = (None,) * len(names)
    if isinstance(function, RowFunction):
        return [_rows(function.call, row, names) for row in inputs.rows], function.types or unknown
    if isinstance(function, ArrowFunction):
        return _over_arrays(function, inputs, names), function.types or unknown
    if function.rows is not None:
        return [_rows(function.rows, row, names) for row in inputs.rows], unknown
    if not inputs.rows:
        return [], unknown
    found = evaluate(session(spark, str(function)), inputs, function, names, str(function))
    return found.rows, found.types


def _rows(function: Callable[..., Any], values: Row, names: tuple[str, ...]) -> list[Row]:
    """A Python function's rows: what a generator yields, the items of a list, or the one value that it returns."""
    given = function(*values)
    items: Iterable[Any] = given if inspect.isgenerator(given) or isinstance(given, list) else [given]
    rows = [tuple(item) if isinstance(item, tuple) or len(names) > 1 else (item,) for item in items]
    for row in rows:
        if len(row) != len(names):
            raise FunctionError(str(function), f"gives {len(row)} value(s) for the fields {', '.join(names)}")
    return rows


def _over_arrays(function: ArrowFunction, inputs: Table, names: tuple[str, ...]) -> list[list[Row]]:
    """An Arrow function over the whole batch, as arrays of the inputs' types."""
    arrays = [
        pa.array(inputs.column(field), type=_ARROW.get(kind))
        for field, kind in zip(inputs.fields, inputs.types, strict=True)
    ]
    given = function.call(*arrays)
    columns = [array.to_pylist() for array in (given if isinstance(given, tuple | list) else (given,))]
    if len(columns) != len(names) or any(len(column) != len(inputs.rows) for column in columns):
        raise FunctionError(str(function), f"must return {len(names)} array(s) of the length of its inputs")
    return [[row] for row in zip(*columns, strict=True)]
