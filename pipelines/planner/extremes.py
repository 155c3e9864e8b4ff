"""min_by, max_by, min and max: of each partition of a batch one tuple, the last of equals (Trident rules 1.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from pipelines.planner.failures import Where
from pipelines.planner.partitioning import arrival
from pipelines.planner.python_aggregation import arrow, in_workers, nullable
from pipelines.planner.step import ORDER, Step, column, columns
from pipelines.planner.values import Row, RowsOut, plain_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def extreme(step: Step) -> DataFrame:
    """One tuple of each partition that has tuples; the hidden columns stay."""
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
            return bool(row[-1] > other[-1])
        return sign > 0 if self.largest else sign < 0
