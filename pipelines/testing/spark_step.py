"""The only thing that the reference engine leaves to Spark: SQL text and callables of Columns without a plain form.

A step's input values, and nothing else, are put into one small frame, the expression is evaluated, and the values are
taken out again. Order, batches, grouping, aggregation and states stay with the plain-Python interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pipelines.errors import FunctionError, TrideltaError
from pipelines.testing.table import Row, Table, sql_type_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_INDEX = "_row"


@dataclass(frozen=True)
class Evaluated:
    """For each row of the inputs the rows that came of it, and the types of the outputs."""

    rows: list[list[Row]]
    types: tuple[str, ...]


def session(given: SparkSession | None, wanted_for: str) -> SparkSession:
    """The session given, or the active one.

    Raises:
        TrideltaError: if there is none.
    """
    if given is not None:
        return given
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        raise TrideltaError(
            f"the reference engine needs Spark to evaluate {wanted_for}, and there is no session",
            hint='pass spark=, or give the function a plain form ("rows") or write it as a Python generator',
        )
    return active


def small_frame(spark: SparkSession, table: Table) -> DataFrame:
    """The table as a frame with a `_row` column: the number of the row."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    types = [kind or sql_type_of(table.column(field)) for field, kind in zip(table.fields, table.types, strict=True)]
    columns = [f"{_INDEX} bigint", *(f"`{field}` {kind}" for field, kind in zip(table.fields, types, strict=True))]
    schema = cast(StructType, StructType.fromDDL(", ".join(columns)))
    rows = [{_INDEX: number, **row} for number, row in enumerate(table.dicts())]
    arrow: Any = pa.Table.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
    return spark.createDataFrame(arrow, schema)


def evaluate(
    spark: SparkSession, table: Table, expression: Callable[..., Any], names: tuple[str, ...], label: str
) -> Evaluated:
    """Call a function of Columns over a table's fields.

    Args:
        spark: the session.
        table: the step's input values, one column an input.
        expression: called with a Column for each field; returns a Column, a tuple of Columns or a generator Column.
        names: the output fields.
        label: the function's name, for errors.

    Raises:
        FunctionError: if it returns another number of columns than there are outputs.
    """
    from pyspark.sql import functions as F

    frame = small_frame(spark, table)
    columns = expression(*(F.col(f"`{field}`") for field in table.fields))
    out = frame.select(F.col(_INDEX), *(columns if isinstance(columns, tuple | list) else (columns,)))
    if len(out.columns) != len(names) + 1:
        raise FunctionError(label, f"returns {len(out.columns) - 1} column(s) for the fields {', '.join(names)}")
    types = tuple(field.dataType.simpleString() for field in out.schema.fields[1:])
    of_row: list[list[Row]] = [[] for _ in table.rows]
    columns_out = out.toArrow()
    for number, *values in zip(*(column.to_pylist() for column in columns_out.columns), strict=True):
        of_row[number].append(tuple(values))
    return Evaluated(of_row, types)


def keeps(spark: SparkSession, table: Table, predicate: str | Callable[..., Column]) -> list[bool]:
    """For each row whether a predicate is true; null counts as false."""
    from pyspark.sql import functions as F

    call = (lambda *_: F.expr(predicate)) if isinstance(predicate, str) else predicate
    return [rows[0][0] is True for rows in evaluate(spark, table, call, ("keep",), "filter").rows]


def pass_gate(spark: SparkSession, table: Table, gate: Any, batch: str) -> Table:
    """The rows that a gate lets through.

    Raises:
        GateError: if a check whose action is `fail` does not hold.
    """
    from pipelines.quality import compile_gate

    frame = small_frame(spark, table)
    compiled = compile_gate(gate, frame.drop(_INDEX).schema)
    annotated = compiled.annotate(frame)
    metrics = annotated.agg(*compiled.metrics()).collect()[0].asDict()
    compiled.verdict(metrics, compiled.run_batch_checks(frame.drop(_INDEX))).raise_if_refused(batch)
    kept = compiled.kept(annotated).select(_INDEX).collect()
    return table.with_rows(table.rows[number] for number in sorted(row[_INDEX] for row in kept))
