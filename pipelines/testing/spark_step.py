"""The steps that the reference engine leaves to Spark alone: SQL text, callables of Columns without a plain form, gates.

A step's input values, and nothing else, are put into one small frame, the expression is evaluated, and the values are
taken out again. Order, batches, grouping, aggregation and states stay with the plain-Python interpreter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from pipelines.errors import FunctionError, JarsError, JavaError, NeedsSparkError
from pipelines.graph.expressions import spark_sql
from pipelines.graph.plain_values import plain_list
from pipelines.planner.plain import Evaluated, Row, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipelines.state.lake import Lake

_INDEX = "_row"


def session(given: SparkSession | None) -> SparkSession:
    """Return the session given, or the active one, or else the process's own, which is then started and ends with the process.

    Raises:
        JavaError, JarsError: none can be started.
    """
    if given is not None:
        return given
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    from pipelines.spark.session import spark_session

    return spark_session()


def small_frame(spark: SparkSession, table: Table) -> DataFrame:
    """Return the table as a frame with a `_row` column: the number of the row."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    columns = [f"{_INDEX} bigint", *(f"`{field}` {table.type_or_guess(field)}" for field in table.fields)]
    schema = cast(StructType, StructType.fromDDL(", ".join(columns)))
    rows = [{_INDEX: number, **row} for number, row in enumerate(table.dicts())]
    arrow: Any = pa.Table.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
    return spark.createDataFrame(arrow, schema)


class SparkStep:
    """The evaluation of a plain step by Spark; the session is looked for when the first expression needs it."""

    def __init__(self, spark: SparkSession | None) -> None:
        self._spark = spark

    def _session(self, wanted_for: str) -> SparkSession:
        try:
            return session(self._spark)
        except (JavaError, JarsError) as error:
            # On this engine a plain form does without; what the machine lacks is told as well.
            raise NeedsSparkError(wanted_for, str(error).partition("\n")[0]) from error

    def evaluate(
        self, table: Table, expression: str | Callable[..., Any], names: tuple[str, ...], label: str
    ) -> Evaluated:
        """Evaluate SQL text, or a function of Columns over a table's fields.

        Args:
            table: the step's input values, one column an input.
            expression: called with a Column for each field; returns a Column, a tuple of Columns or a generator Column.
            names: the output fields.
            label: the function's name, for errors.
        """
        from pyspark.sql import functions as F

        frame = small_frame(self._session(label), table)
        columns: Any
        if isinstance(expression, str):
            columns = F.expr(spark_sql(label, expression))
        else:
            columns = expression(*(F.col(f"`{field}`") for field in table.fields))
        out = frame.select(F.col(_INDEX), *(columns if isinstance(columns, tuple | list) else (columns,)))
        if len(out.columns) != len(names) + 1:
            raise FunctionError(label, f"returns {len(out.columns) - 1} column(s) for the fields {', '.join(names)}")
        types = tuple(field.dataType.simpleString() for field in out.schema.fields[1:])
        of_row: list[list[Row]] = [[] for _ in table.rows]
        columns_out = out.toArrow()
        for number, *values in zip(*map(plain_list, columns_out.columns), strict=True):
            of_row[number].append(tuple(values))
        return Evaluated(of_row, types)

    def pass_gate(self, gate: Any, table: Table, batch: str) -> Table:
        """Return the rows that a gate lets through."""
        from pipelines.quality import compile_gate

        frame = small_frame(self._session(f"gate {gate.name}"), table)
        compiled = compile_gate(gate, frame.drop(_INDEX).schema)
        annotated = compiled.annotate(frame)
        compiled.judge(annotated, frame.drop(_INDEX)).raise_if_refused(batch)
        kept = compiled.kept(annotated).select(_INDEX).collect()
        return table.take(sorted(row[_INDEX] for row in kept))


@contextmanager
def fresh_lake() -> Iterator[Lake]:
    """Yield a lake in a folder that ends with the block."""
    from pipelines.state.lake import Lake

    with tempfile.TemporaryDirectory(prefix="tridelta-test-") as root:
        yield Lake(root)
