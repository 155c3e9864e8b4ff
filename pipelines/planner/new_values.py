"""What a batch has made of a state, as a stream (Trident rules 1.2, newValuesStream)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyspark.sql import functions as F

from pipelines.graph import nodes
from pipelines.planner.joins import same
from pipelines.planner.step import TASK, Step, column, columns
from pipelines.planner.updaters import EMIT, OP, output_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def reads_tuples(node: nodes.NewValuesNode, graph: nodes.Graph) -> bool:
    """Whether the new values are worked out from the tuples that went into the state, and not from an updater's rows."""
    return cast(nodes.PersistNode, graph[node.parents[0]]).updater is None


def new_values(step: Step) -> DataFrame:
    """The keys that the batch touched, with their values as of the batch; of a state of tuples the tuples themselves."""
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
        found = touched.join(state, on=on, how="inner")
    else:
        found = touched.crossJoin(F.broadcast(state))
    names = zip(persist.fields, step.node.fields, strict=True)
    found = found.select(*(column(name).alias(new) for name, new in names), *columns(keys))
    if TASK in step.needed and not persist.group:
        return found.withColumn(TASK, F.lit(0))
    return step.with_task(found, step.node.fields[: len(persist.group)])


def _emitted(step: Step) -> DataFrame:
    ask = getattr(step.context, "emitted", None)
    kept = ask(step.parent()) if ask is not None else None
    rows = (step.frame if kept is None else kept).where(F.col(OP) == EMIT)
    names = [column(output_column(name)).alias(name) for name in step.node.fields]
    return rows.select(*names, *columns(name for name in rows.columns if name in step.batch(partitioned=True)))
