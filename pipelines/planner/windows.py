"""Windows on Spark: in a stream a transformWithState processor, over bounded input a pass over each bucket's rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DoubleType, FloatType, MapType, StructType

from pipelines.errors import DefinitionError
from pipelines.graph import events, nodes
from pipelines.graph.dialects import SPARK
from pipelines.planner.step import ORDER, TASK, Context, Step, column, struct, text_of
from pipelines.sources.events import milliseconds
from pipelines.windows import BUCKETS
from pipelines.windows.array_kinds import fits, wanted_columns
from pipelines.windows.bucket import BucketMaker
from pipelines.windows.operations import SpanWindow
from pipelines.windows.processor import BUCKET, PACKED, Pack, bounded, processor, unpack
from pipelines.windows.signature import signature
from pipelines.windows.tuples import output_types

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from pipelines.state.table import StateTable


def windowed(step: Step) -> DataFrame:
    """Return a stateful operation's results, and its watermark rows, as rows of the node's fields."""
    return _windowed(step.node, step.frame, step.context)


def windowed_in_batch(step: Step) -> DataFrame:
    """Return the results of windows over all that is there at once; a stream gives the frame (`DriverWindows`)."""
    last = getattr(step.context, "last_clock", None)
    frame = step.frame if step.node.behind else numbered(step.frame, 0)
    results = _windowed(step.node, with_clock_row(frame, last() if last else None), step.context)
    return results.where(column(events.ID).isNotNull())


def numbered(frame: DataFrame, txid: int) -> DataFrame:
    """Return the events of a source's batch with its txid in their order, as events of a channel have it."""
    order = column(events.ORDER)
    batch = F.lit(f"{max(txid, 0):08X}")
    return frame.withColumn(events.ORDER, F.concat(order.substr(1, 4), batch, order.substr(F.lit(5), F.length(order))))


def with_clock_row(frame: DataFrame, clock: int | None) -> DataFrame:
    """Return events with a watermark row, if the clock is known."""
    if clock is None:
        return frame
    word = frame.sparkSession.createDataFrame([(clock, "")], f"{events.CLOCK} bigint, {events.FROM} string")
    return frame.unionByName(word, allowMissingColumns=True)


def _windowed(node: nodes.WindowNode, frame: DataFrame, context: Context) -> DataFrame:
    schema = _result_schema(node, frame)
    results, taken = (to_arrow_schema(fields, timezone="UTC") for fields in (schema, frame.schema))
    in_arrays = fits(node.operation, node.context, taken)
    where = f"{node.label} (defined at {node.at})"
    make = BucketMaker(node.operation, node.context, node.origins, results, in_arrays=in_arrays, where=where)
    packed = (
        _bucketed(node, frame, left_out=_not_wanted(node) if in_arrays else set())
        .mapInArrow(Pack(BUCKETS), PACKED)
        .groupBy(BUCKET)
    )
    if frame.isStreaming:
        if takes := getattr(context, "takes", None):
            takes(node, {field.name: field.dataType.simpleString() for field in frame.schema.fields})
        fired = packed.transformWithStateInPandas(processor(make), PACKED, "append", "none")
    else:
        fired = packed.applyInArrow(bounded(make), PACKED)
    return fired.mapInArrow(unpack, schema)


def entering(step: Step) -> DataFrame:
    """Return a batch's tuples as events of their task: in the order of their arrival, at their timestamp or else its time."""
    node, frame = step.node, step.frame
    if node.timestamp is None:
        at = F.lit(int(time.time() * 1000)).cast("bigint")
    else:  # Taken for now, a tuple without a time would make all that follows late: it is late itself.
        at = F.coalesce(milliseconds(frame, node.timestamp), F.lit(events.EARLIEST - 1))
    order = column(ORDER) if ORDER in frame.columns else F.monotonically_increasing_id()
    task = column(TASK) if TASK in frame.columns else F.lit(0)
    # Slices of one pass come one after the other, as batches do.
    slices = step.kept_slice if step.context.slices is not None else []
    own = {
        events.TASK: task.cast("int"),
        events.ID: F.lit(""),
        events.TIME: at,
        events.CLOCK: at,
        events.FROM: F.lit(""),
        # The batch's txid goes in when the channel is read.
        events.ORDER: F.concat(F.lit("000."), *slices, F.lpad(F.hex(order), 16, "0")),
    }
    return frame.select(
        *(column(name) for name in node.inputs), *(made.alias(name) for name, made in own.items()), *step.kept_slice
    )


def on_time(step: Step) -> DataFrame:
    """Return the events that the channel's watermark has not passed, or those that it has."""
    asked = getattr(step.context, "watermark", None)
    mark: int | None = asked(step.node.channel) if asked else None
    clock = column(events.CLOCK)
    # A time that no event can have is late at once: it would move the watermark beyond all others, or fail in a window.
    late = (clock < _varying(events.EARLIEST if mark is None else max(mark, events.EARLIEST))) | (
        clock >= F.lit(events.BEYOND)
    )
    return step.frame.where(late if step.node.late else ~late)


def _varying(number: int) -> Column:
    """Return a number that is another one in each batch, so that it is no constant of the code that Spark compiles for the plan.

    A new constant would be a new class in each batch, compiled from text, and cold. An array of constants is passed by reference,
    and that an order has no length less than 0 the optimizer does not know.
    """
    return F.expr(f"element_at(array({number}L), 1 - cast(length({SPARK.name(events.ORDER)}) < 0 as int))")


def _result_schema(node: nodes.WindowNode, frame: DataFrame) -> StructType:
    """Return the results' types: as the node says them, else from those of the frame."""
    types = dict(zip(node.fields, node.types, strict=True))
    if not all(types.values()):
        known = {field.name: text_of(field.dataType) for field in frame.schema.fields}
        operation = node.operation
        made: dict[str, str | None] = {name: known.get(name) for name in node.key}
        if isinstance(operation, SpanWindow):
            made |= (output for aggregator in operation.aggregators for output in aggregator.result_types(known))
        else:
            made |= output_types(operation.aggregations, known)
        types = {name: kind or made[name] or "" for name, kind in types.items()}
    return struct(", ".join(f"`{name}` {kind}" for name, kind in types.items()))


def _not_wanted(node: nodes.WindowNode) -> set[str]:
    """Return what would travel for nothing: windows in arrays need few of the ids, times and origins of their events."""
    return {events.ID, events.TIME, events.FROM} - set(wanted_columns(node.operation, node.context))


def _bucketed(node: nodes.WindowNode, frame: DataFrame, left_out: set[str]) -> DataFrame:
    """Return the rows with their bucket, by a hash of the key; null in clock rows, which all buckets hear."""
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    hashed = [hashable(name, kinds[name]) for name in node.key]
    bucket = F.pmod(F.hash(*hashed), F.lit(BUCKETS)) if hashed else F.lit(0)
    is_event = column(events.ID).isNotNull()
    shown = [column(name) for name in frame.columns if name not in left_out]
    if events.FROM in left_out:
        shown.append(F.when(~is_event, column(events.FROM)).alias(events.FROM))
    return frame.select(*shown, F.when(is_event, bucket).cast("int").alias(BUCKET))


def hashable(name: str, kind: Any) -> Column:
    """Return a key field as it is hashed: of several values, and of a map's entries, at any depth, the set counts, not the order.

    As for `key_of`, -0.0 is 0.0: Spark's hash and `array_distinct` take them for one, a JSON text does not.
    """
    if not isinstance(kind, ArrayType | MapType | StructType):
        return column(name)
    if isinstance(kind, ArrayType) and not _has(kind, MapType):
        return F.array_sort(F.array_distinct(column(name)))
    value = _alike(column(name), kind)
    if isinstance(kind, ArrayType):
        # Spark compares no maps. It would give `to_json` itself the place for options.
        return F.array_sort(F.array_distinct(F.transform(value, lambda one: F.to_json(one))))  # noqa: PLW0108
    return F.to_json(value)


def _alike(value: Column, kind: Any) -> Column:
    """Return a value whose floats are 0.0 where they are -0.0, and whose maps have their entries in order."""
    if isinstance(kind, FloatType | DoubleType):
        return value + F.lit(0.0).cast(kind)
    if not _has(kind, FloatType, DoubleType, MapType):
        return value
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda one: _alike(one, kind.elementType))
    if isinstance(kind, MapType):
        # The names need no more: Spark makes no map with -0.0 for a name. A file may hold one twice, which makes no map.
        names = F.array_sort(F.array_distinct(F.map_keys(value)))
        return F.map_from_arrays(names, F.transform(names, lambda one: _alike(value[one], kind.valueType)))
    parts = [_alike(value.getField(own.name), own.dataType).alias(own.name) for own in kind.fields]
    return F.when(value.isNotNull(), F.struct(*parts))


def _has(kind: Any, *kinds: type) -> bool:
    """Return whether a type is one of some kinds, or has one within it; the names of maps do not count."""
    if isinstance(kind, kinds):
        return True
    if isinstance(kind, ArrayType):
        return _has(kind.elementType, *kinds)
    if isinstance(kind, MapType):
        return _has(kind.valueType, *kinds)
    return isinstance(kind, StructType) and any(_has(own.dataType, *kinds) for own in kind.fields)


class StreamContext:
    """Refuses what needs a batch; who builds the graph puts a channel before it."""

    slices: tuple[str, ...] | None = None

    def __init__(self) -> None:
        self.taken: dict[str, dict[str, str]] = {}

    def takes(self, node: nodes.WindowNode, types: Mapping[str, str]) -> None:
        """Keep what a window takes in: fields and types, by its signature and the stream that it belongs to."""
        of = signature(node.operation, node.context.partition, node.context.prefix).hex()
        self.taken[of] = {name: kind for name, kind in types.items() if name not in events.COLUMNS}

    def gate(self, node: nodes.GateNode, frame: DataFrame) -> DataFrame:
        raise DefinitionError(f"{node.label} at {node.at} cannot stand before windows of the same query")

    def shared(self, node: nodes.Node, frame: DataFrame) -> DataFrame:
        return frame

    def state(self, name: str, behind: bool = True) -> tuple[StateTable, int | None]:
        raise DefinitionError(f'state "{name}" cannot be queried before windows of the same query')
