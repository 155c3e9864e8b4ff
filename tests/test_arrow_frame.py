"""Frames of Arrow tables have all of their rows."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession

from pipelines.spark.arrow_frame import arrow_frame, plain_dicts


def test_rows_behind_an_empty_chunk_are_there(spark: SparkSession) -> None:
    whole = pa.table({"n": [1, 2, 3]})
    table = pa.concat_tables([whole.slice(0, 1), whole.slice(0, 0), whole.slice(1)])
    assert [batch.num_rows for batch in table.to_batches()] == [1, 0, 2]
    assert arrow_frame(spark, table).toArrow().equals(whole)


def test_a_variant_is_given_as_spark_gives_it() -> None:
    parts = [pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={b"variant": b"true"})]
    raw = {"value": b"\x0c\x01", "metadata": b"\x01\0\0"}
    rows = pa.table(
        {
            "v": pa.array([raw, None], pa.struct(parts)),
            "s": pa.array([raw, None], pa.struct([part.remove_metadata() for part in parts])),
        }
    )
    one, none = plain_dicts(rows)
    assert (str(one["v"]), one["s"]) == ("1", raw)
    assert none == {"v": None, "s": None}
