"""Aggregates of a batch. Built-in aggregators are Spark's own aggregates; Python-written ones run in the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from pipelines.aggregators import ColumnAggregator
from pipelines.planner.python_aggregation import aggregated_in_python
from pipelines.planner.step import TASK, Step, column, columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.graph.nodes import Aggregation


def aggregated(step: Step) -> DataFrame:
    """Return a batch's aggregate: group fields, then outputs; without a group also a row of zeros where there are no tuples."""
    node = step.node
    keys = step.batch(partitioned=node.partitioned)
    frame = (_in_spark if over_columns(node.aggregations) else aggregated_in_python)(step, keys)
    frame = frame.select(*columns(node.fields), *columns(keys))
    return frame if node.partitioned else step.with_task(frame, node.group)


def over_columns(aggregations: tuple[Aggregation, ...]) -> bool:
    """Check whether Spark computes them all by itself."""
    return all(isinstance(a.aggregator, ColumnAggregator) for a in aggregations)


def partials(aggregations: tuple[Aggregation, ...]) -> list[Any]:
    """Return the partial values of built-in aggregators, named as their outputs."""
    return [a.aggregator.partial(*columns(a.inputs)).alias(a.output) for a in aggregations]


def _in_spark(step: Step, keys: list[str]) -> DataFrame:
    node = step.node
    made = [a.aggregator.result(a.aggregator.partial(*columns(a.inputs))).alias(a.output) for a in node.aggregations]
    grouped = step.frame.groupBy(*columns(node.group), *columns(keys)).agg(*made)
    return grouped if node.group or not keys else _with_zeros(step, grouped, keys)


def _with_zeros(step: Step, grouped: DataFrame, keys: list[str]) -> DataFrame:
    """A row of zeros for each slice and task without rows: an aggregate of no tuples (Trident rules 1.3)."""
    wanted = step.wanted(keys)
    schema = grouped.schema
    if wanted is not None:
        types = ", ".join(f"{name} {schema[name].dataType.simpleString()}" for name in keys)
        asked = grouped.sparkSession.createDataFrame(wanted, types)
    elif TASK in keys:
        asked = _all_tasks(step, grouped, keys)
    else:
        return grouped
    joined = asked.join(grouped.withColumn("_there", F.lit(True)), keys, "left")
    outputs = []
    for a in step.node.aggregations:
        zero = F.lit(a.aggregator.finish(a.aggregator.zero())).cast(schema[a.output].dataType)
        outputs.append(F.when(F.col("_there"), column(a.output)).otherwise(zero).alias(a.output))
    return joined.select(*outputs, *keys)


def _all_tasks(step: Step, grouped: DataFrame, keys: list[str]) -> DataFrame:
    """List each slice that has tuples, in each task, for a stream's batch with slices."""
    others = [name for name in keys if name != TASK]
    tasks = F.explode(F.sequence(F.lit(0), F.lit(step.tasks - 1))).alias(TASK)
    return grouped.select(*columns(others)).distinct().select(*columns(others), tasks)
