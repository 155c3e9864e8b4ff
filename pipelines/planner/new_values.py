"""The new values of a state after a batch, as a stream (Trident rules 1.2, newValuesStream)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyspark.sql import functions as F

from pipelines.graph import nodes
from pipelines.planner.joins import same
from pipelines.planner.step import TASK, Context, Step, column, columns, hidden
from pipelines.planner.updaters import EMIT, OP, output_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read_by(node: nodes.NewValuesNode, graph: nodes.Graph, context: Context) -> tuple[int, ...]:
    """Return the nodes whose frames new values are worked out from.

    That is what leads to the persist: the tuples say which keys were touched, and the state has their values. What an
    updater emitted is the persist's own frame, or was kept since the state was committed.
    """
    persist = cast(nodes.PersistNode, graph[node.parents[0]])
    if persist.updater is None:
        return persist.parents
    return (persist.id,) if _kept(persist, context) is None else ()


def new_values(step: Step) -> DataFrame:
    """Return the keys that the batch touched, with their values as of the batch; of a state of tuples the tuples themselves."""
    persist = cast(nodes.PersistNode, step.parent())
    if persist.updater is not None:
        return _emitted(step)
    if not persist.aggregations:
        names = zip(persist.inputs, step.node.fields, strict=True)
        return step.frame.select(*(column(name).alias(new) for name, new in names), *step.kept)
    return _of_keys(step, persist)


def _of_keys(step: Step, persist: nodes.PersistNode) -> DataFrame:
    keys = step.batch()
    touched = step.frame.select(
        *(column(name).alias(f"_t{at}") for at, name in enumerate(persist.group)),
        *(columns(keys) or [F.lit(0).alias("_all")]),
    ).distinct()
    table, version = step.context.state(persist.state.name)
    state = table.frame(step.frame.sparkSession, version=version).select(*columns(persist.fields))
    if persist.group:
        on = same([(f"_t{at}", name) for at, name in enumerate(persist.group)])
        rows = touched.join(state, on=on, how="inner")
    else:
        rows = touched.crossJoin(F.broadcast(state))
    names = zip(persist.fields, step.node.fields, strict=True)
    rows = rows.select(*(column(name).alias(new) for name, new in names), *columns(keys))
    if TASK in step.needed and not persist.group:
        return rows.withColumn(TASK, F.lit(0))
    return step.with_task(rows, step.node.fields[: len(persist.group)])


def _emitted(step: Step) -> DataFrame:
    rows = _kept(cast(nodes.PersistNode, step.parent()), step.context) if not step.frames else step.frame
    assert rows is not None
    names = [column(output_column(name)).alias(name) for name in step.node.fields]
    return rows.where(F.col(OP) == EMIT).select(*names, *columns(hidden(rows)))


def _kept(persist: nodes.PersistNode, context: Context) -> DataFrame | None:
    ask = getattr(context, "emitted", None)
    return None if ask is None else ask(persist)
