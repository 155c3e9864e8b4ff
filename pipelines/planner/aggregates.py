"""Aggregates of a batch. Built-in aggregators are Spark's own aggregates; Python-written ones run in the workers: partial values
where the tuples are, one shuffle by key, one pass.

There run, too, `multi_reduce` (the tuples of several streams reduced together), and min_by, max_by, min and max (of each
partition of a batch one tuple, the last of equals; Trident rules 1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DataType, LongType, StructField, StructType

from pipelines.aggregators import ColumnAggregator, CombinerAggregator
from pipelines.aggregators.calls import taking
from pipelines.aggregators.folds import General
from pipelines.graph.nodes import Aggregation
from pipelines.planner.partitioning import arrival
from pipelines.planner.passes import Chain, PartialPass, ValuesByKey, WholePass
from pipelines.planner.step import ORDER, TASK, Step, column, columns, hidden, type_of
from pipelines.planner.values import Row, RowsOut, Where, plain_columns, plain_rows
from pipelines.spark.arrow_frame import all_nullable
from pipelines.state.schema import SLICE_COLUMN
from pipelines.trident.counters import counted

if TYPE_CHECKING:
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
        all_tasks = _to_fill(step, keys)
    schema = with_keys(step.frame, group, output_fields(step.frame, node.aggregations))
    chain = chain_of(step, group, node.aggregations, seeded=SEED in frame.columns, all_tasks=all_tasks)
    run = WholePass(chain, arrow(schema), partial=early)
    return by_key(frame, len(group) - bool(all_tasks)).mapInArrow(in_workers(run), schema)


def _to_fill(step: Step, keys: list[str]) -> tuple[int, int] | None:
    """Return which key is the task, and how many there are, where slices are not known and all tasks of those found must show.

    It is the last key, and does not spread the rows: all tasks of a slice must be together.
    """
    return (keys.index(TASK), step.tasks) if TASK in keys and step.wanted(keys) is None else None


def combine_early(aggregations: Sequence[Aggregation]) -> bool:
    """Check whether partial values can be made before the shuffle: all are combiners whose partial values have a known type."""
    return all(
        isinstance(a.aggregator, ColumnAggregator)
        or (isinstance(a.aggregator, CombinerAggregator) and a.aggregator.shown_as_stored)
        for a in aggregations
    )


def partial_values(step: Step, group: Sequence[str], aggregations: Sequence[Aggregation]) -> DataFrame:
    """Return for each key of each of Spark's partitions its partial values, as `_k0 ...`, then the outputs' names."""
    schema = _renamed(step.frame, group, partial_fields(step.frame, aggregations, in_parts=True))
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
        numbered=step.numbered,
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


def partial_fields(
    frame: DataFrame, aggregations: Sequence[Aggregation], *, in_parts: bool = False
) -> list[StructField]:
    """Return the partial values with their types, named as the outputs.

    Args:
        in_parts: of a batch's parts, which are not rounded yet.
    """
    return [
        StructField(
            a.output,
            _type_in(frame, (a.aggregator.unrounded if in_parts else a.aggregator.partial)(*columns(a.inputs)))
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
    """Add a row of zeros for each slice and task without rows: an aggregate of no tuples (Trident rules 1.3)."""
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


def multi_reduced(step: Step) -> DataFrame:
    """Return the reducer's rows per partition of a batch, or per group of it.

    The tuples of the first parent come first, then those of the second, and so on.
    """
    node = step.node
    grouped = any(node.groups)
    keys = step.batch(partitioned=not grouped)
    frame = reduce(
        lambda side, other: side.unionByName(other), (_side(step, at, keys) for at in range(len(step.frames)))
    )
    if not grouped:
        frame = seeded(step, frame, keys)
    all_tasks = _to_fill(step, keys)
    group = [f"_g{at}" for at in range(len(node.groups[0]))]
    made = [StructField(name, type_of(text)) for name, text in zip(node.outputs, node.types, strict=True)]
    typed = frame.select(*(F.col(f"_k{at}").alias(name) for at, name in enumerate([*keys, *group])))
    schema = with_keys(typed, [*keys, *group], made)
    width = tuple(len(inputs) for inputs in node.inputs)
    sizes = len(keys), len(group)
    run = ReducePass(Where.of(node), arrow(schema), *sizes, node.reducer, width, len(node.outputs), all_tasks)
    rows = by_key(frame, sum(sizes) - bool(all_tasks)).mapInArrow(in_workers(run), schema)
    leading = node.fields[: len(node.fields) - len(node.outputs)]
    own = [column(name).alias(field) for name, field in zip(group, leading, strict=False)]
    task = step.with_task(rows, group) if grouped else rows
    return task.select(*own, *columns(node.outputs), *columns(name for name in hidden(task)))


def _side(step: Step, number: int, keys: list[str]) -> DataFrame:
    """Return one parent's tuples: keys as `_k0 ...`, `_side`, `_s<side>` a struct of the inputs of each side, and the order."""
    frame, node = step.frames[number], step.node
    picked = [column(name).alias(f"_k{at}") for at, name in enumerate([*keys, *node.groups[number]])]
    picked.append(F.lit(number).alias("_side"))
    for at, names in enumerate(node.inputs):
        kind = _kind(step.frames[at], names)
        own = F.struct(*(column(name).alias(f"_{i}") for i, name in enumerate(names))) if names else F.lit(None)
        picked.append((own if at == number else F.lit(None)).cast(kind).alias(f"_s{at}"))
    picked.append(F.struct(F.lit(number), arrival(frame), F.monotonically_increasing_id()).alias(ORDER))
    return frame.select(*picked)


def _kind(frame: DataFrame, names: tuple[str, ...]) -> DataType:
    inside = [StructField(f"_{i}", frame.schema[name].dataType) for i, name in enumerate(names)]
    return all_nullable(StructType(inside)) if names else BooleanType()


@dataclass(frozen=True)
class ReducePass:
    """Runs the reducer. A row is the keys, the group, `_side`, one struct a side, perhaps `_seed`; `all_tasks`: see `Chain`."""

    where: Where
    schema: pa.Schema
    keys: int
    group: int
    reducer: Any
    inputs: tuple[int, ...]
    outputs: int
    all_tasks: tuple[int, int] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        general, groups = General(str(self.reducer), self.outputs), ValuesByKey()
        out = RowsOut(self.schema, self.where, self.keys)
        leading = 3 if self.group else 2
        execute = [taking(self.reducer.execute, leading, width) for width in self.inputs]
        at = self.keys + self.group
        for batch in batches:
            sides, *structs = plain_columns(batch, range(at, at + 1 + len(self.inputs)))
            seeded = batch.schema.field(batch.num_columns - 1).name == SEED
            seeds = batch.column(batch.num_columns - 1).to_pylist() if seeded else [False] * batch.num_rows
            for number, (look, key) in enumerate(groups.keyed(batch, at)):
                value = groups.value(look, key, self._start)
                if seeds[number]:
                    continue
                side = sides[number]
                held = structs[side][number]
                row = tuple(held.values()) if held else ()
                group = (key[self.keys :],) if self.group else ()
                try:
                    general.take(value, execute[side](value[0], side, *group, *row))
                except Exception as error:
                    raise self.where.failed(row, error) from error
                for made in general.early(value):
                    out.add((*key, *made))
            yield from out.full()
        for key in groups.in_all_tasks(self.all_tasks):
            groups.value(key, key, self._start)
        for key, value in groups.found.values():
            for made in self._last(general, key, value):
                out.add((*key, *made))
            yield from out.full()
        yield from out.rest()

    def _start(self, key: Row) -> list[Any]:
        try:
            return [self.reducer.init(*key[self.keys :]), []]
        except Exception as error:
            raise self.where.error("failed in init()", error) from error

    def _last(self, general: General, key: Row, value: list[Any]) -> list[Row]:
        group = (key[self.keys :],) if self.group else ()
        try:
            return general.last(value, self.reducer.complete(value[0], *group))
        except Exception as error:
            of = f"the group {group[0]!r}" if group else "the batch"
            raise self.where.error(f"failed at the end of {of}", error) from error


def extreme(step: Step) -> DataFrame:
    """Return one tuple of each partition that has tuples; the hidden columns stay."""
    keys = step.batch(partitioned=True)
    if step.node.comparator is not None:
        return _by_comparator(step, keys)
    # The order is made before the rows are filtered and spread; an aggregate takes no expression that makes it.
    node, frame = step.node, step.frame.withColumn(ORDER, arrival(step.frame))
    order = column(ORDER)
    best, place = (F.max_by, order) if node.largest else (F.min_by, -order)
    tuple_ = F.struct(*columns(node.fields))
    chosen = best(tuple_, F.struct(column(node.field), place)).alias("_tuple")
    there = frame.where(column(node.field).isNotNull())
    rows = there.groupBy(*columns(keys)).agg(chosen).where(F.col("_tuple").isNotNull())
    return rows.select(*(F.col("_tuple")[name].alias(name) for name in node.fields), *columns(keys))


def _by_comparator(step: Step, keys: list[str]) -> DataFrame:
    node = step.node
    frame = step.frame.select(*columns(keys), *columns(node.fields), arrival(step.frame).alias(ORDER))
    schema = nullable(StructType([*frame.schema.fields[:-1], StructField(ORDER, LongType())]))
    run = in_workers(
        BestPass(
            Where.of(node),
            arrow(schema),
            len(keys),
            node.fields,
            node.fields.index(node.field) if node.field is not None else None,
            node.largest,
            node.comparator,
        )
    )
    best = frame.mapInArrow(run, schema)
    spread = best.repartition(*columns(keys)) if keys else best.repartition(1)
    return spread.mapInArrow(run, schema).select(*columns(node.fields), *columns(keys))


@dataclass(frozen=True)
class BestPass:
    """Keep the best tuple of each key so far, by a comparator; it runs before the shuffle and after it.

    A row is the keys, the tuple's fields, and its place in the order of arrival.
    """

    where: Where
    schema: pa.Schema
    keys: int
    fields: tuple[str, ...]
    compared: int | None
    largest: bool
    comparator: Callable[[Any, Any], int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        best: dict[Row, tuple[Any, Row]] = {}
        for batch in batches:
            for row in plain_rows(batch, range(len(self.schema))):
                value = self._value(row)
                if value is None:
                    continue
                key = row[: self.keys]
                known = best.get(key)
                if known is None or self._better(value, row, *known):
                    best[key] = (value, row)
        out = RowsOut(self.schema, self.where, self.keys)
        for _, row in best.values():
            out.add(row)
        yield from out.rest()

    def _value(self, row: Row) -> Any:
        values = row[self.keys : -1]
        if self.compared is not None:
            return values[self.compared]
        return dict(zip(self.fields, values, strict=True))

    def _better(self, value: Any, row: Row, known: Any, other: Row) -> bool:
        try:
            # Small before large: (a, b) in the order of arrival.
            sign = self.comparator(value, known)
        except Exception as error:
            raise self.where.failed((known, value), error) from error
        if sign == 0:
            # Tuples that one tuple was split into have one place, and come in their order.
            return bool(row[-1] >= other[-1])
        return sign > 0 if self.largest else sign < 0
