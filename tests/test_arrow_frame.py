"""Frames of Arrow tables have all of their rows."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession

from pipelines.spark.arrow_frame import arrow_frame


def test_rows_behind_an_empty_chunk_are_there(spark: SparkSession) -> None:
    whole = pa.table({"n": [1, 2, 3]})
    table = pa.concat_tables([whole.slice(0, 1), whole.slice(0, 0), whole.slice(1)])
    assert [batch.num_rows for batch in table.to_batches()] == [1, 0, 2]
    assert arrow_frame(spark, table).toArrow().equals(whole)
