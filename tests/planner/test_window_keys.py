"""Keys of windows on Spark: what is one key for the windows is in one bucket."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipelines.planner.windows import hashable


def test_a_map_is_one_key_whatever_the_order_of_its_entries(spark: SparkSession) -> None:
    maps = ("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)", "map('a', 2, 'b', 1)", "map('a', 1)", "map()", "null")
    rows = " union all ".join(f"select {n} as n, cast({one} as map<string, int>) as k" for n, one in enumerate(maps))
    frame = spark.sql(rows)
    made = frame.select(hashable("k", frame.schema["k"].dataType).alias("k"), F.to_json("k").alias("plain"), "n")
    found = [(row["k"], row["plain"]) for row in made.orderBy("n").collect()]
    assert found[1] == ('{"a":1,"b":2}', '{"b":2,"a":1}')
    # What has been in a bucket so far stays there.
    assert all(key == plain for n, (key, plain) in enumerate(found) if n != 1)
