"""Frames of Arrow tables, Arrow tables of frames, and frames without rows.

Spark reads a table chunk by chunk, and of what follows an empty one it sees nothing; a column of lists or structs that has no
chunk it refuses. On the way back PySpark fails at a null struct whose fields cannot be null (`struct(1 AS a)` is one such).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines import spark_functions as F
from pipelines.graph.dialects import SPARK
from pipelines.graph.plain_values import plain_list

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType


def arrow_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table as a frame, all of its rows, however it was put together."""
    return spark.createDataFrame(table.combine_chunks() if table.num_rows else table.schema.empty_table())


def to_arrow(frame: DataFrame) -> pa.Table:
    """Return a frame's rows as an Arrow table."""
    if not any(field.dataType != all_nullable(field.dataType) for field in frame.schema):
        return frame.toArrow()
    return frame.select(*(nullable_within(field) for field in frame.schema)).toArrow()


def nullable_within(field: StructField) -> Column:
    """Return a column of a frame whose values may be null at any depth."""
    column = F.col(SPARK.name(field.name))
    loose = all_nullable(field.dataType)
    return column if loose == field.dataType else column.cast(loose).alias(field.name)


def all_nullable(kind: DataType) -> DataType:
    """Return a type whose fields, elements and values may be null."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType(
            [StructField(field.name, all_nullable(field.dataType), metadata=field.metadata) for field in kind]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(all_nullable(kind.elementType))
    return MapType(all_nullable(kind.keyType), all_nullable(kind.valueType)) if isinstance(kind, MapType) else kind


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a frame without rows. PySpark's own way makes an RDD of pickled rows first, which takes three times as long."""
    from pyspark.sql import DataFrame

    session = spark._jsparkSession
    rows = spark._jvm.java.util.ArrayList()  # type: ignore[union-attr]
    return DataFrame(session.createDataFrame(rows, session.parseDataType(schema.json())), spark)


def plain_dicts(rows: pa.Table) -> list[dict[str, Any]]:
    """Return a table's rows, from `to_arrow`, as dicts of plain values."""
    columns = map(_plain_list, rows.columns)
    return [dict(zip(rows.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _plain_list(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's plain values; a variant is Spark's, as `collect` gives it."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import is_variant
    from pyspark.sql.types import VariantVal

    values = plain_list(column)
    if not pa.types.is_struct(column.type) or not is_variant(column.type):
        return values
    return [value and VariantVal(**value) for value in values]
