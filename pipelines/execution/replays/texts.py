"""Quarantined texts, read as rows again: by the current schema, or by the source's own reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StringType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from pipelines.execution.replays.selection import NUMBER, Lot, ReplayError, instead
from pipelines.graph import nodes
from pipelines.planner.step import REPLAYED
from pipelines.sources.base import CORRUPT, FILE, ROW_JSON, unmarked
from pipelines.spark.arrow_frame import arrow_frame
from pipelines.state.quarantine import MALFORMED, POISON
from pipelines.state.schema import SLICE_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from pipelines.trident.topology import TridentTopology

UNREADABLE = "_unreadable"
"""boolean: whether the stored text no longer matches the current schema."""
_VALUE, _RECORD = "_value", "_record"


def check_readable(topology: TridentTopology, lot: Lot, schema: StructType) -> None:
    """Refuse fields that are written as text and not read from it."""
    for field in schema.fields:
        if not _readable(field.dataType):
            problem = f'field "{field.name}" is of type {field.dataType.simpleString()}, which is not read from JSON'
            raise ReplayError(topology.name, lot.what, problem, instead(topology))


def rows_of_gate(spark: SparkSession, lot: Lot, schema: StructType, *, sliced: bool) -> DataFrame:
    """Return the tuples that a gate rejected: its fields, `_slice` if the flow has slices, `_replayed` and `_unreadable`."""
    frame = _texts(spark, lot).withColumn(_VALUE, _value(schema))
    kept = [SLICE_COLUMN, REPLAYED] if sliced else [REPLAYED]
    unlike = F.coalesce(_written(schema) != F.col("row"), F.lit(True)).alias(UNREADABLE)
    return frame.select(*_fields(_VALUE, schema), *kept, unlike)


def rows_of_source(spark: SparkSession, lot: Lot, spout: nodes.SpoutNode, schema: StructType) -> DataFrame:
    """Return the rows that a source rejected, or that were in a poison batch.

    A malformed record goes to the source's own reader. All others were written as their fields and are read as such; in a
    poison batch there may be malformed ones among them.

    Returns:
        A source's frame (fields, `_corrupt`, `_file`) with `_replayed` and `_unreadable`.
    """
    frame = _texts(spark, lot).withColumn(_VALUE, _value(schema))
    written = F.coalesce((_written(schema) == F.col("row")) & (F.col("rule") != MALFORMED), F.lit(False))
    kept = [F.col("file").alias(FILE), F.col(REPLAYED)]
    record = spout.source.parsed(F.col("row"))
    if record is None:
        nothing = F.lit(None).cast("string").alias(CORRUPT)
        return frame.select(*_fields(_VALUE, schema), nothing, *kept, (~written).alias(UNREADABLE))
    frame = frame.withColumn("_written", written).withColumn(_RECORD, F.when(~F.col("_written"), record))
    bad = F.when(F.col(_RECORD).isNull(), F.col("row")).otherwise(F.col(f"{_RECORD}.{CORRUPT}"))
    frame = frame.withColumn(CORRUPT, F.when(~F.col("_written"), unmarked(bad)))
    fields = [
        F.when(F.col("_written"), value).otherwise(parsed).alias(name)
        for name, value, parsed in zip(
            schema.fieldNames(), _fields(_VALUE, schema), _fields(_RECORD, schema), strict=True
        )
    ]
    good = F.col(CORRUPT).isNull()
    unlike = F.when(F.col("rule") == MALFORMED, F.lit(False)).when(F.col("rule") == POISON, good).otherwise(F.lit(True))
    return frame.select(*fields, CORRUPT, *kept, (~F.col("_written") & unlike).alias(UNREADABLE))


def _texts(spark: SparkSession, lot: Lot) -> DataFrame:
    rows = lot.rows.select([NUMBER, "rule", "row", "file", SLICE_COLUMN])
    return arrow_frame(spark, rows.rename_columns([REPLAYED, "rule", "row", "file", SLICE_COLUMN]))


def _value(schema: StructType) -> Column:
    return F.from_json(F.col("row"), schema, {**ROW_JSON, "mode": "PERMISSIVE"})


def _written(schema: StructType) -> Column:
    """Return what the value would be written as."""
    return F.to_json(F.struct(*_fields(_VALUE, schema)), ROW_JSON)


def _fields(struct: str, schema: StructType) -> list[Column]:
    return [F.col(f"{struct}.`{name}`").alias(name) for name in schema.fieldNames()]


def _readable(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _readable(kind.elementType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and _readable(kind.valueType)
    if isinstance(kind, StructType):
        return all(_readable(field.dataType) for field in kind.fields)
    return not isinstance(kind, VariantType | DayTimeIntervalType | YearMonthIntervalType)
