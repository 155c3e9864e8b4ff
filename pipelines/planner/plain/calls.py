"""The three kinds of functions over a table's rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

import pyarrow as pa

from pipelines.aggregators.calls import taking
from pipelines.errors import FunctionError
from pipelines.graph import nodes
from pipelines.graph.arrow_types import ARROW_TYPES
from pipelines.planner.plain.context import PlainContext
from pipelines.planner.plain.table import Row, Table
from pipelines.trident.functions import ArrowFunction, ColumnFunction, Function, RowFunction


def call(
    function: Function, inputs: Table, names: tuple[str, ...], context: PlainContext
) -> tuple[list[list[Row]], tuple[str | None, ...]]:
    """For each row of the inputs the rows that a function gives, and the types of the outputs.

    Raises:
        NeedsSparkError: if only Spark can evaluate it, and the context has none.
    """
    unknown: tuple[str | None, ...] = (None,) * len(names)
    if isinstance(function, RowFunction):
        given = taking(function.call, 0, len(inputs.fields))
        return [_rows(str(function), given, row, names) for row in inputs.rows], function.types or unknown
    if isinstance(function, ArrowFunction):
        return _over_arrays(function, inputs, names), function.types or unknown
    if function.rows is not None:
        return [_rows(str(function), function.rows, row, names) for row in inputs.rows], unknown
    if not inputs.rows:
        return [], unknown
    result = context.evaluated(inputs, function, names, str(function))
    return result.rows, result.types


def keeps(node: nodes.FilterNode, inputs: Table, context: PlainContext) -> list[bool]:
    """For each row whether the predicate is true; null counts as false."""
    predicate = node.predicate
    plain: Callable[..., object] | None = None
    if isinstance(predicate, RowFunction):
        plain = taking(predicate.call, 0, len(inputs.fields))
    elif isinstance(predicate, ColumnFunction):
        plain = predicate.keep
    if plain is not None:
        return [plain(*row) is True for row in inputs.rows]
    if not inputs.rows:
        return []
    return [rows[0][0] is True for rows in context.evaluated(inputs, predicate, ("keep",), node.label).rows]


def _rows(label: str, function: Callable[..., object], values: Row, names: tuple[str, ...]) -> list[Row]:
    """A Python function's rows: what a generator yields, the items of a list, or the one value that it returns."""
    given = function(*values)
    items: Iterable[object] = given if inspect.isgenerator(given) or isinstance(given, list) else [given]
    rows = [tuple(item) if isinstance(item, tuple) or len(names) > 1 else (item,) for item in items]  # type: ignore[arg-type]
    for row in rows:
        if len(row) != len(names):
            raise FunctionError(label, f"gives {len(row)} value(s) for the fields {', '.join(names)}")
    return rows


def _over_arrays(function: ArrowFunction, inputs: Table, names: tuple[str, ...]) -> list[list[Row]]:
    """An Arrow function over the whole batch, as arrays of the inputs' types."""
    arrays = [
        pa.array(inputs.column(field), type=ARROW_TYPES.get(kind))
        for field, kind in zip(inputs.fields, inputs.types, strict=True)
    ]
    given = function.call(*arrays)
    columns = [array.to_pylist() for array in (given if isinstance(given, tuple | list) else (given,))]
    if len(columns) != len(names) or any(len(column) != len(inputs.rows) for column in columns):
        raise FunctionError(str(function), f"must return {len(names)} array(s) of the length of its inputs")
    return [[row] for row in zip(*columns, strict=True)]
