"""Windows on Spark: in a stream a transformWithState processor, over bounded input a pass over each bucket's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StructType

from pipelines.graph import events, nodes
from pipelines.planner.step import Step, column, struct
from pipelines.windows.bucket import BucketMaker
from pipelines.windows.processor import BUCKET, PACKED, Pack, bounded, processor, unpack

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKETS = 32
"""Buckets of an operation's keys. A checkpoint keeps the number that it began with: it is part of every state's key.

So many that two to sixteen cores share them evenly; each costs a batch about 2 ms for its state's way to and from RocksDB."""


def windowed(step: Step) -> DataFrame:
    """A stateful operation's results, and its words about the clock, as rows of the node's fields."""
    node, frame = step.node, step.frame
    schema = struct(", ".join(f"`{n}` {kind}" for n, kind in zip(node.fields, node.types, strict=True)))
    make = BucketMaker(node.operation, node.context, node.edges, to_arrow_schema(schema, timezone="UTC"))
    packed = _bucketed(node, frame).mapInArrow(Pack(BUCKETS), PACKED).groupBy(BUCKET)
    if frame.isStreaming:
        found = packed.transformWithStateInPandas(processor(make), PACKED, "append", "none")
    else:
        found = packed.applyInArrow(bounded(make), PACKED)
    return found.mapInArrow(unpack, schema)


def on_time(step: Step) -> DataFrame:
    """The events that the channel's watermark has not passed, or those that it has."""
    asked = getattr(step.context, "watermark", None)
    mark: int | None = asked(step.node.channel) if asked else None
    if mark is None:
        return step.frame.where(F.lit(not step.node.late))
    late = column(events.CLOCK) < F.lit(mark)
    return step.frame.where(late if step.node.late else ~late)


def _bucketed(node: nodes.WindowNode, frame: DataFrame) -> DataFrame:
    """The rows with their bucket, by a hash of the key; null in clock rows, which all buckets hear."""
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    hashed = [_hashable(name, kinds[name]) for name in node.key]
    bucket = F.pmod(F.hash(*hashed), F.lit(BUCKETS)) if hashed else F.lit(0)
    return frame.select("*", F.when(column(events.ID).isNotNull(), bucket).cast("int").alias(BUCKET))


def _hashable(name: str, kind: Any) -> Column:
    """A key field as it is hashed: of several values the set counts, whatever their order."""
    if isinstance(kind, ArrayType):
        return F.array_sort(F.array_distinct(column(name)))
    if isinstance(kind, MapType | StructType):
        return F.to_json(column(name))
    return column(name)
