"""Query functions written in Python: in the workers, once a batch and task (Trident rules 4.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from pipelines.aggregators.calls import emitted
from pipelines.errors import StateQueryError
from pipelines.planner.failures import Where
from pipelines.planner.partitioning import arrival
from pipelines.planner.passes import Groups
from pipelines.planner.python_aggregation import arrow, by_key, in_workers, nullable
from pipelines.planner.step import ORDER, Step, column, columns, hidden, type_of
from pipelines.planner.values import BATCH_ROWS, Row, RowsOut, plain_rows
from pipelines.state.views import StateView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def queried_in_python(step: Step, view: StateView) -> DataFrame:
    """The tuples with what the function makes of the state's answers."""
    node, frame = step.node, step.frame
    keys, fields = step.batch(partitioned=True), [*step.parent().fields, *hidden(frame)]
    picked = [column(name).alias(f"_k{at}") for at, name in enumerate(keys)]
    picked += [column(name).alias(f"_f{at}") for at, name in enumerate(fields)]
    picked.append(F.struct(arrival(frame), F.monotonically_increasing_id()).alias(ORDER))
    made = [StructField(name, type_of(kind)) for name, kind in zip(node.outputs, node.types, strict=True)]
    passed = [StructField(f"_f{at}", frame.schema[name].dataType) for at, name in enumerate(fields)]
    schema = nullable(StructType([*passed, *made]))
    inputs = tuple(len(keys) + fields.index(name) for name in node.inputs)
    run = QueryPass(Where.of(node), arrow(schema), len(keys), inputs, node.function, node.state, view, len(made))
    found = by_key(frame.select(*picked), len(keys)).mapInArrow(in_workers(run), schema)
    back = [F.col(f"_f{at}").alias(name) for at, name in enumerate(fields)]
    return found.select(*back, *columns(node.outputs)).select(*columns(node.fields), *columns(hidden(frame)))


@dataclass(frozen=True)
class QueryPass:
    """Asks the state for all tuples of a batch and task at once. A row is the keys, then the tuple as it goes on."""

    where: Where
    schema: pa.Schema
    keys: int
    inputs: tuple[int, ...]
    function: Any
    state: str
    view: StateView
    outputs: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups, held, count = Groups(), [], 0
        for batch in batches:
            arguments = plain_rows(batch, self.inputs)
            for number, ((look, key), row) in enumerate(zip(groups.keyed(batch, self.keys), arguments, strict=True)):
                groups.value(look, key, lambda _: []).append((count + number, row))
            held.append(batch)
            count += batch.num_rows
        if not held:
            return
        whole = pa.Table.from_batches(held)
        passed = whole.select(range(self.keys, whole.num_columns))
        for _, asked in groups.found.values():
            yield from self._out(passed, list(self._rows(asked)))

    def _rows(self, asked: list[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
        arguments = [row for _, row in asked]
        try:
            found = list(self.function.batch_retrieve(self.view, arguments))
            if len(found) != len(arguments):
                raise StateQueryError(str(self.function), self.state, len(found), len(arguments))
        except StateQueryError as error:
            raise self.where.error("failed", str(error).splitlines()[0]) from error
        except Exception as error:
            raise self.where.failed_on_all(arguments, error) from error
        for (number, row), result in zip(asked, found, strict=True):
            try:
                rows = emitted(str(self.function), self.function.execute(row, result), self.outputs)
            except Exception as error:
                raise self.where.failed(row, error) from error
            for one in rows:
                yield number, one

    def _out(self, passed: pa.Table, rows: list[tuple[int, Row]]) -> Iterator[pa.RecordBatch]:
        width = passed.num_columns
        made = pa.schema([self.schema.field(at) for at in range(width, len(self.schema))])
        for start in range(0, len(rows), BATCH_ROWS):
            part = rows[start : start + BATCH_ROWS]
            taken = passed.take(pa.array([number for number, _ in part], pa.int64())).combine_chunks()
            out = RowsOut(made, self.where)
            for _, row in part:
                out.add(row)
            new = pa.Table.from_batches(out.rest(), made)
            arrays = [column.combine_chunks() for column in (*taken.columns, *new.columns)]
            yield pa.RecordBatch.from_arrays([_one(array) for array in arrays], schema=self.schema)


def _one(array: Any) -> Any:
    return array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
