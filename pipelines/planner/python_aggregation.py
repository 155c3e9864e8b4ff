"""Aggregators written in Python over Spark: partial values where the tuples are, one shuffle by key, one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DataType, StructField, StructType

from pipelines.aggregators import ColumnAggregator, CombinerAggregator
from pipelines.graph.nodes import Aggregation
from pipelines.planner.failures import Where
from pipelines.planner.partitioning import arrival
from pipelines.planner.passes import Chain, PartialPass, WholePass
from pipelines.planner.step import ORDER, TASK, Step, column, columns, type_of
from pipelines.state.schema import SLICE_COLUMN
from pipelines.trident.counters import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

SEED = "_seed"


def aggregated_in_python(step: Step, keys: list[str]) -> DataFrame:
    """Return the rows of an aggregate, any of whose aggregators is written in Python.

    Args:
        keys: the hidden columns that tell batches, and partitions where those count, apart.
    """
    node = step.node
    group = [*keys, *node.group]
    early = combine_early(node.aggregations)
    frame = (partial_values if early else tuples)(step, group, node.aggregations)
    all_tasks = None
    if not node.group:
        frame = seeded(step, frame, keys)
        if step.wanted(keys) is None and TASK in keys:
            all_tasks = (keys.index(TASK), step.tasks)
    schema = with_keys(step.frame, group, output_fields(step.frame, node.aggregations))
    chain = chain_of(step, group, node.aggregations, seeded=SEED in frame.columns, all_tasks=all_tasks)
    # The task is the last key: to fill in what is missing of a slice all its tasks must be together.
    spread = len(group) - 1 if all_tasks else len(group)
    return by_key(frame, spread).mapInArrow(in_workers(WholePass(chain, arrow(schema), partial=early)), schema)


def combine_early(aggregations: Sequence[Aggregation]) -> bool:
    """Check whether partial values can be made before the shuffle: all are combiners whose partial values have a known type."""
    return all(
        isinstance(a.aggregator, ColumnAggregator)
        or (isinstance(a.aggregator, CombinerAggregator) and type(a.aggregator).finish is CombinerAggregator.finish)
        for a in aggregations
    )


def partial_values(step: Step, group: Sequence[str], aggregations: Sequence[Aggregation]) -> DataFrame:
    """For each key of each of Spark's partitions its partial values, as `_k0 ...`, then the outputs' names."""
    schema = _renamed(step.frame, group, partial_fields(step.frame, aggregations))
    run = PartialPass(chain_of(step, group, aggregations), arrow(schema))
    return tuples(step, group, aggregations).mapInArrow(in_workers(run), schema)


def tuples(step: Step, group: Sequence[str], aggregations: Sequence[Aggregation]) -> DataFrame:
    """Return the input of a pass: keys as `_k0 ...`, inputs as `_v0 ...`, and the order where the plan carries it."""
    inputs = inputs_of(aggregations)
    picked = [column(name).alias(f"_k{at}") for at, name in enumerate(group)]
    picked += [column(name).alias(f"_v{at}") for at, name in enumerate(inputs)]
    if not picked:
        picked = [F.lit(True).alias("_v0")]  # Arrow batches without columns do not know how many rows they have
    if not combine_early(aggregations):
        # Tuples that one tuple was split into carry the same number: of those the place counts.
        picked.append(F.struct(arrival(step.frame), F.monotonically_increasing_id()).alias(ORDER))
    return step.frame.select(*picked)


def inputs_of(aggregations: Sequence[Aggregation]) -> list[str]:
    return list(dict.fromkeys(name for a in aggregations for name in a.inputs))


def seeded(step: Step, frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the frame with a row for each batch and task that must give something even without tuples.

    Spark drops what is empty from a plan, and the function would never run.
    """
    wanted = step.wanted(keys)
    if wanted is None:
        return frame
    import pyarrow as pa

    schema = nullable(StructType([*frame.schema.fields, StructField(SEED, BooleanType())]))
    rows = [{**{f"_k{at}": value for at, value in enumerate(key)}, SEED: True} for key in wanted]
    table: Any = pa.Table.from_pylist(rows, schema=arrow(schema))
    seeds = frame.sparkSession.createDataFrame(table, schema)
    return frame.withColumn(SEED, F.lit(False)).unionByName(seeds)


def by_key(frame: DataFrame, keys: int) -> DataFrame:
    """Return all rows of a key in one partition of Spark's, in the order of their arrival."""
    spread = frame.repartition(*(F.col(f"_k{at}") for at in range(keys))) if keys else frame.repartition(1)
    return spread.sortWithinPartitions(ORDER).drop(ORDER) if ORDER in frame.columns else spread


def chain_of(
    step: Step,
    group: Sequence[str],
    aggregations: Sequence[Aggregation],
    *,
    seeded: bool = False,
    all_tasks: tuple[int, int] | None = None,
) -> Chain:
    """Return the aggregators as they travel to the workers; see `Chain`."""
    inputs = inputs_of(aggregations)
    bounded = step.context.slices is not None and SLICE_COLUMN in group
    return Chain(
        where=Where.of(step.node),
        keys=len(group),
        aggregators=tuple(
            (a.aggregator, tuple(inputs.index(name) for name in a.inputs), len(a.outputs)) for a in aggregations
        ),
        batch=step.txid if step.context.slices is None else next(iter(step.context.slices), None),
        batch_at=list(group).index(SLICE_COLUMN) if bounded else None,
        seeded=seeded,
        all_tasks=all_tasks,
    )


def output_fields(frame: DataFrame, aggregations: Sequence[Aggregation]) -> list[StructField]:
    """Return the outputs with their types: as the user said, as Spark finds (built-in), or those of the inputs."""
    fields = []
    for a in aggregations:
        if isinstance(a.aggregator, ColumnAggregator):
            types = [_type_in(frame, a.aggregator.result(a.aggregator.partial(*columns(a.inputs))))]
        elif a.types:
            types = [type_of(text) for text in a.types]
        else:
            types = [frame.schema[name].dataType for name in a.inputs]
        fields += [StructField(name, kind) for name, kind in zip(a.outputs, types, strict=True)]
    return fields


def partial_fields(frame: DataFrame, aggregations: Sequence[Aggregation]) -> list[StructField]:
    """Return the partial values with their types, named as the outputs."""
    return [
        StructField(
            a.output,
            _type_in(frame, a.aggregator.partial(*columns(a.inputs)))
            if isinstance(a.aggregator, ColumnAggregator)
            else type_of(a.types[0]),
        )
        for a in aggregations
    ]


def _type_in(frame: DataFrame, aggregate: Any) -> DataType:
    return frame.agg(aggregate.alias("_")).schema[0].dataType


def arrow(schema: StructType) -> pa.Schema:
    """Return the schema that the workers must give back."""
    return to_arrow_schema(schema, timezone="UTC")


def in_workers(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a pass as Spark takes it: a plain function."""

    def passing(batches: Any) -> Any:
        yield from run(batches)

    return counted(passing)


def with_keys(frame: DataFrame, group: Sequence[str], made: Sequence[StructField]) -> StructType:
    return nullable(StructType([*(frame.schema[name] for name in group), *made]))


def _renamed(frame: DataFrame, group: Sequence[str], made: Sequence[StructField]) -> StructType:
    keys = [StructField(f"_k{at}", frame.schema[name].dataType) for at, name in enumerate(group)]
    return nullable(StructType([*keys, *made]))


def nullable(schema: StructType) -> StructType:
    return StructType([StructField(field.name, field.dataType, True) for field in schema.fields])
