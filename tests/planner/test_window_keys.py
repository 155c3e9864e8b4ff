"""Keys of windows on Spark: what is one key for the windows is in one bucket. And the types of their results."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from pipelines.graph import nodes
from pipelines.planner.windows import _result_schema, hashable
from pipelines.sources import FixedBatches
from pipelines.trident import Collect, TridentTopology
from tests.planner.plans import source


def test_a_map_is_one_key_whatever_the_order_of_its_entries(spark: SparkSession) -> None:
    maps = ("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)", "map('a', 2, 'b', 1)", "map('a', 1)", "map()", "null")
    rows = " union all ".join(f"select {n} as n, cast({one} as map<string, int>) as k" for n, one in enumerate(maps))
    frame = spark.sql(rows)
    made = frame.select(hashable("k", frame.schema["k"].dataType).alias("k"), F.to_json("k").alias("plain"), "n")
    found = [(row["k"], row["plain"]) for row in made.orderBy("n").collect()]
    assert found[1] == ('{"a":1,"b":2}', '{"b":2,"a":1}')
    # What has been in a bucket so far stays there.
    assert all(key == plain for n, (key, plain) in enumerate(found) if n != 1)


def test_results_may_have_nested_names_that_need_quotes(spark: SparkSession) -> None:
    kind = "struct<`@type`: string, `dc:title`: map<string, array<struct<`first-name`: int>>>>"
    topology = TridentTopology("t")
    topology.new_stream("s", FixedBatches(f"v {kind}", [])).tumbling_window(2, "v", Collect(), "all")
    (spout,) = (node for node in topology.graph if isinstance(node, nodes.ChannelSpoutNode))
    assert spout.prelude is not None
    (window,) = (node for node in spout.prelude if isinstance(node, nodes.WindowNode))
    frame = source(spark, f"v {kind}", [])
    assert _result_schema(window, frame)["all"].dataType == ArrayType(frame.schema["v"].dataType)
