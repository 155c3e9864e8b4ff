"""State queries: a join with the state's frame for the built-in functions; the user's own run in the workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from pipelines.aggregators.calls import emitted
from pipelines.errors import StateQueryError
from pipelines.graph import nodes
from pipelines.planner.aggregates import arrow, by_key, in_workers, nullable
from pipelines.planner.joins import same
from pipelines.planner.partitioning import arrival
from pipelines.planner.passes import ValuesByKey
from pipelines.planner.plain.queries import check_columns, fixed_view
from pipelines.planner.step import (
    BUILT_IN_QUERIES,
    ORDER,
    TASK,
    Step,
    column,
    columns,
    hidden,
    is_checked,
    task_by,
    type_of,
)
from pipelines.planner.values import BATCH_ROWS, Row, RowsOut, Where, plain_rows
from pipelines.sources.fixed import arrow_rows
from pipelines.state.kinds import ROWS
from pipelines.state.views import StateView
from pipelines.trident.states import FixedState
from pipelines.trident.user_code import TupleCollectionGet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def queried(step: Step) -> DataFrame:
    """Return the tuples with the outputs appended."""
    node = step.node
    if node.group:
        step = _by_group(step)
    if not isinstance(node.function, BUILT_IN_QUERIES):
        return queried_in_python(step, _view(step))
    state, keys, by_key = _frame(step)
    types = [step.frame.schema[name].dataType.simpleString() for name in node.inputs]
    key_types = {name: state.schema[name].dataType.simpleString() for name in keys}
    others = [name for name in state.columns if name not in keys]
    # A value that the other flow adds while this one runs stops no batch.
    check_columns(node, types, key_types, others, by_key, named=not is_checked(step.context))
    kept = columns(hidden(step.frame))
    if isinstance(node.function, TupleCollectionGet):
        values = node.outputs if set(node.outputs) <= set(state.columns) else (*keys, *others)
        rows = _all_of(step, state, keys, values)
    else:
        # A value that is named as the key is the value.
        values = node.outputs if set(node.outputs) <= set(others) else others
        renamed = _renamed(state, keys, values, node.outputs)
        if keys:
            on = same([(name, f"_key{at}") for at, name in enumerate(node.inputs)])
            rows = step.frame.join(renamed, on=on, how="left")
        else:
            rows = step.frame.join(F.broadcast(renamed), how="left")
    return rows.select(*columns(node.fields), *kept)


def _all_of(step: Step, state: DataFrame, keys: tuple[str, ...], values: tuple[str, ...]) -> DataFrame:
    """Return each tuple with all rows of the state; of copies that a broadcast made, each with the rows of its task."""
    if not step.node.parted or TASK not in step.frame.columns:
        return step.frame.crossJoin(_renamed(state, (), values, step.node.outputs))
    shown = zip(values, step.node.outputs, strict=False)
    parts = state.select(
        task_by(state, keys, step.tasks).alias("_part"),
        *(column(value).alias(output) for value, output in shown),
    )
    return step.frame.join(parts, step.frame[TASK] == parts["_part"])


def _by_group(step: Step) -> Step:
    """Send a grouped stream's tuples to the task of their group first."""
    frame = step.frame.drop(TASK)
    asked = step.needed | ({TASK} if step.tasks > 1 and not isinstance(step.node.function, BUILT_IN_QUERIES) else set())
    dealt = replace(step, frames=(frame,), needed=frozenset(asked))
    return replace(dealt, frames=(dealt.with_task(frame, step.node.group),))


def _frame(step: Step) -> tuple[DataFrame, tuple[str, ...], bool]:
    """Return the state's frame, its key columns, and whether it has values by key."""
    spark = step.frame.sparkSession
    fixed = _fixed(step)
    if fixed is not None:
        rows = arrow_rows(f'state "{fixed.name}"', fixed.schema, [tuple(row) for row in fixed.rows])
        return spark.createDataFrame(rows), tuple(fixed.keys), True
    table, version = step.context.state(step.node.state, step.node.state_node is not None)
    return table.frame(spark, version=version), table.declared.keys, table.declared.layout != ROWS


def _view(step: Step) -> StateView:
    """Return the state as the workers open it."""
    fixed = _fixed(step)
    if fixed is not None:
        return fixed_view(fixed)
    ask = getattr(step.context, "view", None)
    if ask is not None:
        view: StateView = ask(step.node.state)
        return view
    table, version = step.context.state(step.node.state, step.node.state_node is not None)
    return table.view(version)


def _fixed(step: Step) -> FixedState | None:
    holder = step.graph[step.node.state_node] if step.node.state_node is not None else None
    if isinstance(holder, nodes.StaticStateNode) and isinstance(holder.state, FixedState):
        return holder.state
    return None


def _renamed(state: DataFrame, keys: tuple[str, ...], values: object, outputs: tuple[str, ...]) -> DataFrame:
    """Return keys as `_key0 ...`, values as the query's outputs."""
    return state.select(
        *(column(name).alias(f"_key{at}") for at, name in enumerate(keys)),
        *(column(value).alias(output) for value, output in zip(values, outputs, strict=False)),  # type: ignore[call-overload]
    )


def queried_in_python(step: Step, view: StateView) -> DataFrame:
    """Return the tuples with what the function makes of the state's answers."""
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
    rows = by_key(frame.select(*picked), len(keys)).mapInArrow(in_workers(run), schema)
    back = [F.col(f"_f{at}").alias(name) for at, name in enumerate(fields)]
    return rows.select(*back, *columns(node.outputs)).select(*columns(node.fields), *columns(hidden(frame)))


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
        groups, held, count = ValuesByKey(), [], 0
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
            results = list(self.function.batch_retrieve(self.view, arguments))
            if len(results) != len(arguments):
                raise StateQueryError(str(self.function), self.state, len(results), len(arguments))
        except StateQueryError as error:
            raise self.where.error("failed", str(error).splitlines()[0]) from error
        except Exception as error:
            raise self.where.failed_on_all(arguments, error) from error
        for (number, row), result in zip(asked, results, strict=True):
            try:
                rows = emitted(str(self.function), self.function.execute(row, result), self.outputs)
            except Exception as error:
                raise self.where.failed(row, error) from error
            for output in rows:
                yield number, output

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
