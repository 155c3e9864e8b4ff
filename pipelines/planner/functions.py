"""The three kinds of functions as Spark columns.

Spark hands the values of row functions over by pickle, as Rows and local times; the user sees plain values in UTC.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipelines.aggregators.calls import taking
from pipelines.errors import FunctionError, TrideltaError
from pipelines.graph import nodes
from pipelines.graph.expressions import spark_sql
from pipelines.graph.plain_values import as_key
from pipelines.graph.row_values import Convert, as_rows, as_text, moment, of_all, one, to_plain, whole
from pipelines.planner.step import column, text_of, type_of
from pipelines.planner.values import Where
from pipelines.trident.counters import counted
from pipelines.trident.functions import ArrowFunction, RowFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

# Spark 4.1+ has it; its stubs do not say so.
_arrow_udf = F.arrow_udf  # type: ignore[attr-defined]


def _udf(call: Callable[..., Any], returns: str) -> Any:
    """Return a Python function of a row. Not Arrow-optimised: over columnar input it would wait for ever (SPARK-58241)."""
    return F.udf(counted(call), returns, useArrow=False)


def outputs(
    where: nodes.Node, function: Any, frame: DataFrame, fields: Sequence[str], names: Sequence[str], *, many: bool
) -> list[Column]:
    """Return the function's output columns, named. At most one of them is a generator (any number of rows).

    Args:
        fields: the input fields in the frame.
        many: whether the function may give other than one row per tuple.
    """
    inputs = [column(name) for name in fields]
    if isinstance(function, RowFunction):
        return [_row_call(where, function, _types(frame, fields), inputs, names)]
    if isinstance(function, ArrowFunction):
        return _arrow_call(where, function, inputs, names)
    given = _called(where, function, inputs)
    given = list(given) if isinstance(given, list | tuple) else [given]
    if not all(isinstance(item, Column) for item in given):
        raise FunctionError(where.label, f"at {where.at}: it returned {given!r}, not Columns")
    if len(given) == len(names):
        return [output.alias(name) for output, name in zip(given, names, strict=True)]
    if len(given) == 1 and many:
        return [given[0].alias(*names)]
    raise FunctionError(where.label, f"at {where.at}: it gave {len(given)} columns for the fields {', '.join(names)}")


def appended(node: nodes.EachNode, frame: DataFrame) -> DataFrame:
    """Run `each`: the frame with the function's outputs."""
    return frame.select("*", *outputs(node, node.function, frame, node.inputs, node.outputs, many=True))


def replaced(node: nodes.MapNode, frame: DataFrame, fields: Sequence[str], kept: Sequence[Column]) -> DataFrame:
    """Run `map` and `flat_map`: the function's outputs in place of the fields."""
    return frame.select(*outputs(node, node.function, frame, fields, node.fields, many=node.flat), *kept)


def task_of(node: nodes.PartitionNode, frame: DataFrame, fields: Sequence[str]) -> Column:
    """Return the number that a function of the user's gives a tuple, for `partition`."""
    return _single("partition", node, node.function, frame, fields, "bigint")


def kept(node: nodes.FilterNode, frame: DataFrame) -> DataFrame:
    """Run `filter`: the tuples for which the predicate is true.

    Spark takes it in front of steps that drop tuples, and it may fail on those (ADR 93); what may answer otherwise each time it
    leaves in its place.
    """
    predicate = _condition(node, frame)
    rows = None if isinstance(node.predicate, RowFunction) else frame.where(predicate)
    if rows is None or _moves(rows):
        return frame.where(F.when(F.expr("spark_partition_id() >= 0"), predicate))
    return rows


def _moves(rows: DataFrame) -> bool:
    """Check whether Spark may ask a filter's condition of other tuples: behind generators and joins, or with Python in it."""
    plan: Any = rows._jdf.queryExecution().analyzed()
    jvm: Any = rows.sparkSession._jvm
    known = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    drops = plan.containsPattern(known.GENERATE()) or plan.containsPattern(known.JOIN())
    return bool(drops or plan.condition().containsPattern(known.PYTHON_UDF()))


def _condition(node: nodes.FilterNode, frame: DataFrame) -> Column:
    """Return a filter's predicate as a boolean column; null counts as false."""
    if isinstance(node.predicate, str):
        return F.expr(spark_sql("filter", node.predicate))
    return _single("filter", node, node.predicate, frame, node.inputs, "boolean")


def _single(
    operation: str, node: nodes.Node, function: Any, frame: DataFrame, fields: Sequence[str], returns: str
) -> Column:
    """Return the one column that a function of columns or of rows gives."""
    inputs = [column(name) for name in fields]
    if isinstance(function, RowFunction):
        # A filter may give any value that Python takes for true or false.
        fit = bool if returns == "boolean" else partial(one, whole(returns))
        call = taking(function.call, 0, len(inputs))
        return _udf(_reporting(node, call, _types(frame, fields), fit), returns)(*inputs)
    result = _called(node, function, inputs)
    if not isinstance(result, Column):
        raise FunctionError(operation, f"at {node.at}: it returned {result!r}, not a Column")
    return result


def _called(where: nodes.Node, function: Any, inputs: Sequence[Column]) -> Any:
    """Return what a function of columns gives; its errors name the step and the user's line."""
    try:
        return function(*inputs)
    except (AnalysisException, TrideltaError):
        raise
    except Exception as error:
        reason = " ".join(repr(error).split())
        raise FunctionError(
            where.label,
            f"at {where.at}: it failed on {len(inputs)} column(s): {reason}",
            hint="correct its input fields",
        ) from error


def consumed(node: nodes.PeekNode, frame: DataFrame) -> DataFrame:
    """Run `peek`: every row is a dict for the consumer; a non-deterministic filter, which Spark neither drops nor repeats."""
    names, consumer = node.fields, node.consumer
    shown = _reporting(node, lambda *values: consumer(dict(zip(names, values, strict=True))), _types(frame, names))

    def seen(*values: Any) -> bool:
        shown(*values)
        return True

    return frame.where(_udf(seen, "boolean").asNondeterministic()(*(column(name) for name in names)))


def _row_call(
    where: nodes.Node, function: RowFunction, given: Sequence[DataType], inputs: Sequence[Column], names: Sequence[str]
) -> Column:
    """Return a Python generator as `inline(udf(inputs))`: only the inputs travel to Python, the other fields stay in the JVM."""
    if len(function.types) != len(names):
        raise FunctionError(where.label, f"at {where.at}: {function} does not say the types of {', '.join(names)}")
    kind = ", ".join(f"`{name}`: {type_}" for name, type_ in zip(names, function.types, strict=True))
    rows = _reporting(
        where, taking(function.call, 0, len(inputs)), given, partial(as_rows, len(names), to_spark(function.types))
    )
    return F.inline(_udf(rows, f"array<struct<{kind}>>")(*inputs)).alias(*names)


def _arrow_call(
    where: nodes.Node, function: ArrowFunction, inputs: Sequence[Column], names: Sequence[str]
) -> list[Column]:
    if len(function.types) != len(names):
        raise FunctionError(where.label, f"at {where.at}: {function} does not say the types of {', '.join(names)}")
    call, fields = counted(_reporting_arrays(where, function.call, len(names))), list(names)

    # Spark reads what kind of function this is from these annotations, so the user's own may be anything.
    def alone(*arrays: pa.Array) -> pa.Array:
        return call(*arrays)[0]

    def together(*arrays: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays(list(call(*arrays)), names=fields)

    if len(names) == 1:
        return [_arrow_udf(alone, function.types[0])(*inputs).alias(names[0])]
    kind = ", ".join(f"`{name}`: {type_}" for name, type_ in zip(names, function.types, strict=True))
    made = _arrow_udf(together, f"struct<{kind}>")(*inputs)
    return [made[name].alias(name) for name in names]


def _types(frame: DataFrame, fields: Sequence[str]) -> list[DataType]:
    by_name = {field.name: field.dataType for field in frame.schema.fields}
    return [by_name[name] for name in fields]


def _reporting(
    node: nodes.Node,
    call: Callable[..., Any],
    types: Sequence[DataType],
    finish: Callable[[Any], Any] | None = None,
) -> Callable[..., Any]:
    """Return the call with plain values, its errors naming the step, the user's line and the offending row."""
    where, convert = Where.of(node), from_spark(types)

    def reported(*values: Any) -> Any:
        given = convert(values) if convert else values
        try:
            result = call(*given)
            return finish(result) if finish else result
        except Exception as error:
            raise where.failed(given, error) from error

    return reported


def _reporting_arrays(node: nodes.Node, call: Callable[..., Any], width: int) -> Callable[..., Sequence[Any]]:
    """Return an Arrow function, its errors naming the step, the user's line and the first row that fails by itself."""
    where = Where.of(node)

    def checked(*arrays: Any) -> Sequence[Any]:
        result = call(*arrays)
        made = list(result) if isinstance(result, tuple | list) else [result]
        if len(made) != width or any(len(array) != len(arrays[0]) for array in made if arrays):
            raise ValueError(f"it must return {width} array(s) of the length of its inputs")
        return made

    def reported(*arrays: Any) -> Sequence[Any]:
        try:
            return checked(*arrays)
        except Exception as error:
            row, cause = _culprit(checked, arrays)
            if cause is None:
                raise where.error(f"failed on a batch of {len(arrays[0]) if arrays else 0} rows", error) from error
            raise where.failed(row, cause) from error

    return reported


def _culprit(call: Callable[..., Any], arrays: Sequence[Any]) -> tuple[Any, Exception | None]:
    """Return the first row on which a function over arrays fails by itself, with its error; no error if there is none."""
    count = len(arrays[0]) if arrays else 0
    for number in range(count):
        row = [array.slice(number, 1) for array in arrays]
        try:
            call(*row)
        except Exception as cause:
            return tuple(array[0].as_py() for array in row), cause
    return None, None


def from_spark(types: Sequence[T.DataType]) -> Convert | None:
    """Convert the values that a function is called with to plain ones; None if they are plain by themselves."""
    return of_all([_incoming(kind) for kind in types])


def to_spark(types: Sequence[str]) -> Convert | None:
    """Convert a row that a function gave to what Spark takes for these types; None if it is that.

    Without it Spark makes null, or the name of a Java object, of a value of another class than the type's own, without a word.
    """
    return to_plain(tuple(text_of(type_of(text)) for text in types), as_text, _zoned)


def _incoming(kind: T.DataType) -> Convert | None:
    if isinstance(kind, T.TimestampType):
        return _utc
    if isinstance(kind, T.ArrayType):
        return _array(_incoming(kind.elementType))
    if isinstance(kind, T.MapType):
        return _map(_incoming(kind.keyType), _incoming(kind.valueType))
    if isinstance(kind, T.StructType):
        return _struct(kind.names, [_incoming(field.dataType) for field in kind.fields])
    return None


def _array(each: Convert | None) -> Convert | None:
    return each and (lambda values: [one(each, value) for value in values])


def _map(key: Convert | None, item: Convert | None) -> Convert | None:
    if key is None and item is None:
        return None
    return lambda mapping: {as_key(one(key, name)): one(item, value) for name, value in mapping.items()}


def _struct(names: Sequence[str], fields: Sequence[Convert | None]) -> Convert:
    return lambda row: {name: one(each, value) for name, each, value in zip(names, fields, row, strict=True)}


def _utc(value: datetime.datetime) -> datetime.datetime:
    """Return a time in UTC without zone: Spark gives one of the worker's own time zone."""
    return value.astimezone(datetime.UTC).replace(tzinfo=None)


def _zoned(value: Any) -> Any:
    """Take a time without zone for UTC; Spark would take it for one of the worker's own time zone."""
    value = moment(value)
    return value.replace(tzinfo=datetime.UTC) if isinstance(value, datetime.datetime) else value
