"""Keys of windows on Spark: what is one key for the windows is in one bucket. And the types of their results."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
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


FORMER = {"array": "array_sort(array_distinct(k))", "struct": "to_json(k)", "map": "to_json(k)", "double": "k"}
"""What earlier releases hashed, of a type: for maps, where the entries are in order."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("double", ("-0D", "0D")),
        ("array<double>", ("array(0D, -0D)", "array(-0D, 0D)", "array(-0D)", "array(0D)")),
        ("array<float>", ("array(0D, -0D, 1D)", "array(-0D, 1D)", "array(1D, 0D, null)", "array(1D, 0D)")),
        (
            "struct<`x.y`: double, z: float>",
            ("struct(0D, -0D)", "struct(-0D, 0D)", "struct(null, 0D)", "struct(0D, 0D)"),
        ),
        (
            "array<struct<x: array<double>>>",
            ("array(struct(array(-0D)), struct(array(0D)))", "array(struct(array(0D)))"),
        ),
        ("map<string, double>", ("map('a', -0D, 'b', 1D)", "map('b', 1D, 'a', 0D)", "map('a', 0D, 'b', 1D)")),
        ("map<double, array<float>>", ("map(0D, array(-0D))", "map(-0D, array(0D))", "map(0D, array(0D))")),
    ],
)
def test_both_zeros_are_in_one_bucket(spark: SparkSession, kind: str, keys: tuple[str, ...]) -> None:
    rows = " union all ".join(f"select {n} as n, cast({one} as {kind}) as k" for n, one in enumerate((*keys, "null")))
    frame = spark.sql(rows)
    hashed = F.hash(hashable("k", frame.schema["k"].dataType))
    former = F.expr(f"hash({FORMER[kind.split('<')[0]]})")
    found = frame.select(hashed.alias("hash"), former.alias("former"), "n").orderBy("n").collect()
    with_null = {n for n, key in enumerate(keys) if "null" in key}
    assert len({row["hash"] for row in found[:-1] if row["n"] not in with_null}) == 1
    # What has no -0.0 stays in the bucket in which it has been.
    assert all(found[n]["hash"] == found[n]["former"] for n in (*with_null, -2, -1))


X_Y, Y_X = "map('x', 1, 'y', 2)", "map('y', 2, 'x', 1)"
IN_A_STRUCT, IN_A_MAP = "struct<m: map<string, int>>", "map<string, map<string, int>>"
DEEP = "struct<a: array<struct<m: map<string, map<string, double>>>>>"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "keys", "others"),
    [
        (IN_A_STRUCT, (f"struct({X_Y})", f"struct({Y_X})"), ("struct(map('x', 2, 'y', 1))", "struct(null)")),
        (IN_A_MAP, (f"map('a', {X_Y}, 'b', {X_Y})", f"map('b', {X_Y}, 'a', {Y_X})"), (f"map('a', {X_Y})", "map()")),
        (
            DEEP,
            (
                f"struct(array(struct(map('o', {X_Y}, 'p', map('z', 0D)))))",
                f"struct(array(struct(map('p', map('z', -0D), 'o', {Y_X}))))",
            ),
            (f"struct(array(struct(map('o', {X_Y}))))", "struct(array(null))"),
        ),
    ],
)
def test_maps_within_a_key_are_one_bucket(
    spark: SparkSession, kind: str, keys: tuple[str, ...], others: tuple[str, ...]
) -> None:
    all_keys = [*keys, *others, "null"]
    rows = " union all ".join(f"select {n} as n, cast({one} as {kind}) as k" for n, one in enumerate(all_keys))
    frame = spark.sql(rows)
    hashed = F.hash(hashable("k", frame.schema["k"].dataType))
    former = F.expr("hash(to_json(k))")
    found = frame.select(hashed.alias("hash"), former.alias("former"), "n").orderBy("n").collect()
    assert len({row["hash"] for row in found}) == len(all_keys) - 1
    assert found[0]["hash"] == found[1]["hash"] != found[1]["former"]
    # What has been in a bucket so far stays there: maps whose entries are in order.
    assert all(row["hash"] == row["former"] for row in found if row["n"] != 1)


@pytest.mark.slow
def test_several_maps_are_one_bucket_whatever_their_order(spark: SparkSession) -> None:
    keys = (f"array({X_Y}, map('z', 3))", f"array(map('z', 3), {Y_X}, {X_Y})", "array(map('z', 3))")
    frame = spark.sql(" union all ".join(f"select {n} as n, {one} as k" for n, one in enumerate(keys)))
    hashed = F.hash(hashable("k", frame.schema["k"].dataType))
    found = [row["hash"] for row in frame.select(hashed.alias("hash"), "n").orderBy("n").collect()]
    assert found[0] == found[1] != found[2]


@pytest.mark.slow
def test_a_name_that_a_file_has_twice_in_a_map_fails_no_batch(spark: SparkSession, tmp_path: Path) -> None:
    kind = pa.struct([("m", pa.map_(pa.string(), pa.int32()))])
    twice = pa.table({"k": pa.array([{"m": [("x", 1), ("x", 1)]}, {"m": [("x", 1)]}], kind)})
    pq.write_table(twice, tmp_path / "a.parquet")
    frame = spark.read.parquet(str(tmp_path / "a.parquet"))
    found = frame.select(F.hash(hashable("k", frame.schema["k"].dataType)).alias("hash")).collect()
    assert found[0]["hash"] == found[1]["hash"]


def test_results_may_have_nested_names_that_need_quotes(spark: SparkSession) -> None:
    kind = "struct<`@type`: string, `dc:title`: map<string, array<struct<`first-name`: int>>>>"
    topology = TridentTopology("t")
    topology.new_stream("s", FixedBatches(f"v {kind}", [])).tumbling_window(2, "v", Collect(), "all")
    (spout,) = (node for node in topology.graph if isinstance(node, nodes.ChannelSpoutNode))
    assert spout.prelude is not None
    (window,) = (node for node in spout.prelude if isinstance(node, nodes.WindowNode))
    frame = source(spark, f"v {kind}", [])
    assert _result_schema(window, frame)["all"].dataType == ArrayType(frame.schema["v"].dataType)
