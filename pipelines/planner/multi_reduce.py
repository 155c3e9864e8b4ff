"""multi_reduce: the tuples of several streams reduced together, in the workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from pipelines.aggregators.calls import taking
from pipelines.aggregators.folds import General
from pipelines.planner.failures import Where
from pipelines.planner.partitioning import arrival
from pipelines.planner.passes import Groups
from pipelines.planner.python_aggregation import SEED, arrow, by_key, in_workers, seeded, with_keys
from pipelines.planner.step import ORDER, Step, column, columns, hidden, type_of
from pipelines.planner.values import Row, RowsOut, plain_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    group = [f"_g{at}" for at in range(len(node.groups[0]))]
    made = [StructField(name, type_of(text)) for name, text in zip(node.outputs, node.types, strict=True)]
    typed = frame.select(*(F.col(f"_k{at}").alias(name) for at, name in enumerate([*keys, *group])))
    schema = with_keys(typed, [*keys, *group], made)
    width = tuple(len(inputs) for inputs in node.inputs)
    run = ReducePass(Where.of(node), arrow(schema), len(keys), len(group), node.reducer, width, len(node.outputs))
    rows = by_key(frame, len(keys) + len(group)).mapInArrow(in_workers(run), schema)
    leading = node.fields[: len(node.fields) - len(node.outputs)]
    own = [column(name).alias(field) for name, field in zip(group, leading, strict=False)]
    task = step.with_task(rows, group) if grouped else rows
    return task.select(*own, *columns(node.outputs), *columns(name for name in hidden(task)))


def _side(step: Step, number: int, keys: list[str]) -> DataFrame:
    """One parent's tuples: keys as `_k0 ...`, `_side`, `_s<side>` a struct of the inputs of each side, and the order."""
    frame, node = step.frames[number], step.node
    picked = [column(name).alias(f"_k{at}") for at, name in enumerate([*keys, *node.groups[number]])]
    picked.append(F.lit(number).alias("_side"))
    for at, names in enumerate(node.inputs):
        kind = _kind(step.frames[at], names)
        own = F.struct(*(column(name).alias(f"_{i}") for i, name in enumerate(names))) if names else F.lit(None)
        picked.append((own if at == number else F.lit(None)).cast(kind).alias(f"_s{at}"))
    picked.append(F.struct(F.lit(number), arrival(frame), F.monotonically_increasing_id()).alias(ORDER))
    return frame.select(*picked)


def _kind(frame: DataFrame, names: tuple[str, ...]) -> str:
    if not names:
        return "boolean"
    inside = ", ".join(f"_{i}: {frame.schema[name].dataType.simpleString()}" for i, name in enumerate(names))
    return f"struct<{inside}>"


@dataclass(frozen=True)
class ReducePass:
    """Runs the reducer. A row is the keys, the group, `_side`, one struct a side, and perhaps `_seed`."""

    where: Where
    schema: pa.Schema
    keys: int
    group: int
    reducer: Any
    inputs: tuple[int, ...]
    outputs: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        general, groups = General(str(self.reducer), self.outputs), Groups()
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
