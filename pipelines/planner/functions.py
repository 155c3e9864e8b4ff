"""The three kinds of functions as Spark columns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, Row
from pyspark.sql import functions as F

from pipelines.errors import FunctionError
from pipelines.graph import nodes
from pipelines.trident.functions import ArrowFunction, RowFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Spark 4.1+ has it; its stubs do not say so.
_arrow_udf = F.arrow_udf  # type: ignore[attr-defined]


def _udf(call: Callable[..., Any], returns: str) -> Any:
    """A Python function a row. Not Arrow-optimised: over columnar input such a function waits for ever (SPARK-58241)."""
    return F.udf(call, returns, useArrow=False)


def _column(name: str) -> Column:
    return F.col(f"`{name}`")


def outputs(
    where: nodes.Node, function: Any, inputs: Sequence[Column], names: Sequence[str], *, many: bool
) -> list[Column]:
    """The function's output columns, named. At most one of them is a generator (any number of rows).

    Args:
        many: whether the function may give other than one row a tuple.
    """
    if isinstance(function, RowFunction):
        return [_row_call(where, function, inputs, names)]
    if isinstance(function, ArrowFunction):
        return _arrow_call(where, function, inputs, names)
    given = function(*inputs)
    given = list(given) if isinstance(given, list | tuple) else [given]
    if not all(isinstance(one, Column) for one in given):
        raise FunctionError(where.label, f"at {where.at}: it returned {given!r}, not Columns")
    if len(given) == len(names):
        return [one.alias(name) for one, name in zip(given, names, strict=True)]
    if len(given) == 1 and many:
        return [given[0].alias(*names)]
    raise FunctionError(where.label, f"at {where.at}: it gave {len(given)} columns for the fields {', '.join(names)}")


def appended(node: nodes.EachNode, frame: DataFrame) -> DataFrame:
    """`each`: the frame with the function's outputs."""
    inputs = [_column(name) for name in node.inputs]
    return frame.select("*", *outputs(node, node.function, inputs, node.outputs, many=True))


def replaced(node: nodes.MapNode, frame: DataFrame, kept: Sequence[Column]) -> DataFrame:
    """`map` and `flat_map`: the function's outputs in place of the fields."""
    inputs = [_column(name) for name in frame.columns if not name.startswith("_")]
    return frame.select(*outputs(node, node.function, inputs, node.fields, many=node.flat), *kept)


def condition(node: nodes.FilterNode) -> Column:
    """A filter's predicate as a boolean column; null counts as false."""
    inputs = [_column(name) for name in node.inputs]
    if isinstance(node.predicate, str):
        return F.expr(node.predicate)
    if isinstance(node.predicate, RowFunction):
        return _udf(_reporting(node, node.predicate.call), "boolean")(*inputs)
    found = node.predicate(*inputs)
    if not isinstance(found, Column):
        raise FunctionError("filter", f"at {node.at}: it returned {found!r}, not a Column")
    return found


def consumed(node: nodes.PeekNode, frame: DataFrame, kept: Sequence[Column]) -> DataFrame:
    """`peek`: the consumer sees every row as a dict; a non-deterministic filter, so that Spark neither drops nor repeats it."""
    consumer = _reporting(node, lambda row: node.consumer(row.asDict()))

    def seen(row: Row) -> bool:
        consumer(row)
        return True

    fields = F.struct(*(_column(name) for name in node.fields))
    return frame.where(_udf(seen, "boolean").asNondeterministic()(fields))


def _row_call(where: nodes.Node, function: RowFunction, inputs: Sequence[Column], names: Sequence[str]) -> Column:
    """A Python generator as `inline(udf(inputs))`: only the inputs travel to Python, the other fields stay in the JVM."""
    if len(function.types) != len(names):
        raise FunctionError(where.label, f"at {where.at}: {function} does not say the types of {', '.join(names)}")
    single = len(names) == 1
    call = _reporting(where, function.call)

    def rows(*values: Any) -> list[tuple[Any, ...]]:
        found = call(*values)
        return [(row,) if single and not isinstance(row, tuple) else tuple(row) for row in found]

    kind = ", ".join(f"`{name}`: {type_}" for name, type_ in zip(names, function.types, strict=True))
    return F.inline(_udf(rows, f"array<struct<{kind}>>")(*inputs)).alias(*names)


def _arrow_call(
    where: nodes.Node, function: ArrowFunction, inputs: Sequence[Column], names: Sequence[str]
) -> list[Column]:
    if len(function.types) != len(names):
        raise FunctionError(where.label, f"at {where.at}: {function} does not say the types of {', '.join(names)}")
    call, fields = _reporting_arrays(where, function.call), list(names)

    # Spark reads what kind of function this is from these annotations, so the user's own may be anything.
    def one(*arrays: pa.Array) -> pa.Array:
        return call(*arrays)

    def together(*arrays: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays(list(call(*arrays)), names=fields)

    if len(names) == 1:
        return [_arrow_udf(one, function.types[0])(*inputs).alias(names[0])]
    kind = ", ".join(f"`{name}`: {type_}" for name, type_ in zip(names, function.types, strict=True))
    made = _arrow_udf(together, f"struct<{kind}>")(*inputs)
    return [made[name].alias(name) for name in names]


def _reporting(where: nodes.Node, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, its errors naming the step, the user's line and the offending row."""
    label, at = where.label, str(where.at)

    def reported(*values: Any) -> Any:
        try:
            found = call(*values)
            if inspect.isgenerator(found):
                return list(found)
            return [found] if where_is_map and not isinstance(found, list) else found
        except Exception as error:
            raise RuntimeError(f"{label} (defined at {at}) failed on {values!r}: {error!r}") from error

    where_is_map = isinstance(where, nodes.MapNode | nodes.EachNode)
    return reported


def _reporting_arrays(where: nodes.Node, call: Callable[..., Any]) -> Callable[..., Any]:
    """An Arrow function, its errors naming the step and the user's line."""
    label, at = where.label, str(where.at)

    def reported(*arrays: Any) -> Any:
        try:
            return call(*arrays)
        except Exception as error:
            raise RuntimeError(f"{label} (defined at {at}) failed on a batch: {error!r}") from error

    return reported
