"""Frames of Arrow tables.

Spark reads a table chunk by chunk, and of what follows an empty one it sees nothing; a column of lists or structs that has no
chunk it refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def arrow_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table as a frame, all of its rows, however it was put together."""
    return spark.createDataFrame(table.combine_chunks() if table.num_rows else table.schema.empty_table())
