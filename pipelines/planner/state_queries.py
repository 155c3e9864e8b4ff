"""State queries: a join with the state's frame for the built-in functions; the user's own run in the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pipelines.errors import FunctionError
from pipelines.graph import nodes
from pipelines.planner.joins import same
from pipelines.planner.plain.queries import fixed_view
from pipelines.planner.python_queries import queried_in_python
from pipelines.planner.step import BUILT_IN_QUERIES, TASK, Step, column, columns, hidden, task_by
from pipelines.sources.fixed import arrow_rows
from pipelines.state.views import StateView
from pipelines.trident.query_functions import TupleCollectionGet
from pipelines.trident.states import FixedState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def queried(step: Step) -> DataFrame:
    """The tuples with the outputs appended."""
    node = step.node
    if node.group:
        step = _by_group(step)
    if not isinstance(node.function, BUILT_IN_QUERIES):
        return queried_in_python(step, _view(step))
    state, keys = _frame(step)
    _check(step, tuple(state.columns), keys)
    kept = columns(hidden(step.frame))
    if isinstance(node.function, TupleCollectionGet):
        values = node.outputs if set(node.outputs) <= set(state.columns) else state.columns
        found = _all_of(step, state, keys, tuple(values))
    else:
        others = [name for name in state.columns if name not in keys]
        values = node.outputs if set(node.outputs) <= set(state.columns) else others
        renamed = _renamed(state, keys, values, node.outputs)
        if keys:
            on = same([(name, f"_key{at}") for at, name in enumerate(node.inputs)])
            found = step.frame.join(renamed, on=on, how="left")
        else:
            found = step.frame.join(F.broadcast(renamed), how="left")
    return found.select(*columns(node.fields), *kept)


def _all_of(step: Step, state: DataFrame, keys: tuple[str, ...], values: tuple[str, ...]) -> DataFrame:
    """Each tuple with all rows of the state; of copies that a broadcast made, each with the rows of its task."""
    if not step.node.parted or TASK not in step.frame.columns:
        return step.frame.crossJoin(_renamed(state, (), values, step.node.outputs))
    shown = zip(values, step.node.outputs, strict=False)
    parts = state.select(
        task_by(state, keys, step.tasks).alias("_part"),
        *(column(value).alias(output) for value, output in shown),
    )
    return step.frame.join(parts, step.frame[TASK] == parts["_part"])


def _check(step: Step, fields: tuple[str, ...], keys: tuple[str, ...]) -> None:
    """What could not be checked when the line was written: a state of another flow shows its columns only now.

    Raises:
        FunctionError: if the inputs are not as many as the keys, or the outputs more than the values.
    """
    node = step.node
    values = fields if isinstance(node.function, TupleCollectionGet) else [name for name in fields if name not in keys]
    if not isinstance(node.function, TupleCollectionGet) and len(node.inputs) != len(keys):
        raise FunctionError(
            "state_query",
            f'at {node.at}: state "{node.state}" has the keys {list(keys)}; got the fields {list(node.inputs)}',
            hint="use MapGet() with one field a key, or SnapshotGet() for a state without keys",
        )
    if not set(node.outputs) <= set(fields) and len(node.outputs) > len(values):
        raise FunctionError(
            "state_query",
            f'at {node.at}: state "{node.state}" has the values {list(values)}; got the outputs {list(node.outputs)}',
        )


def _by_group(step: Step) -> Step:
    """A grouped stream's tuples go to the task of their group first."""
    frame = step.frame.drop(TASK)
    asked = step.needed | ({TASK} if step.tasks > 1 and not isinstance(step.node.function, BUILT_IN_QUERIES) else set())
    step = Step(step.node, (frame,), step.graph, step.context, step.tasks, frozenset(asked))
    return Step(step.node, (step.with_task(frame, step.node.group),), step.graph, step.context, step.tasks, step.needed)


def _frame(step: Step) -> tuple[DataFrame, tuple[str, ...]]:
    """The state's frame and its key columns."""
    spark = step.frame.sparkSession
    fixed = _fixed(step)
    if fixed is not None:
        rows = arrow_rows(f'state "{fixed.name}"', fixed.schema, [tuple(row) for row in fixed.rows])
        return spark.createDataFrame(rows), tuple(fixed.keys)
    table, version = step.context.state(step.node.state, step.node.state_node is not None)
    return table.frame(spark, version=version), table.declared.keys


def _view(step: Step) -> StateView:
    """The state as the workers open it."""
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
    """Keys as `_key0 ...`, values as the query's outputs."""
    return state.select(
        *(column(name).alias(f"_key{at}") for at, name in enumerate(keys)),
        *(column(value).alias(output) for value, output in zip(values, outputs, strict=False)),  # type: ignore[call-overload]
    )
