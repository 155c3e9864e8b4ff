"""Frames of Arrow tables, and frames without rows.

Spark reads a table chunk by chunk, and of what follows an empty one it sees nothing; a column of lists or structs that has no
chunk it refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def arrow_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table as a frame, all of its rows, however it was put together."""
    return spark.createDataFrame(table.combine_chunks() if table.num_rows else table.schema.empty_table())


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a frame without rows. PySpark's own way makes an RDD of pickled rows first, which takes three times as long."""
    from pyspark.sql import DataFrame

    session = spark._jsparkSession
    rows = spark._jvm.java.util.ArrayList()  # type: ignore[union-attr]
    return DataFrame(session.createDataFrame(rows, session.parseDataType(schema.json())), spark)
