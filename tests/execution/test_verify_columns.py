"""`verify` where a flow's columns came in another order, or were added: the rows are those that the batches wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StringType, StructField, StructType

from pipelines import Lake, Runtime
from pipelines.execution.batch.accounts import row_hash
from pipelines.execution.verify import DIFFERS, HOLDS, verify
from pipelines.sources import FixedBatches
from pipelines.trident import Count, DeltaState, Sum, TridentTopology

BATCHES = [
    [("x", 1, 3, {"p": 1}), ("y", 2, 4, None)],
    [("z", 5, 6, None), ("x", 7, 8, {"q": 2})],
    [("y", 9, 0, None)],
]


def topology(columns: list[str], batches: int, *, turned: bool = False) -> TridentTopology:
    flow = TridentTopology("columns")
    stream = flow.new_stream("s", FixedBatches("a string, b bigint, c bigint, m map<string,int>", BATCHES[:batches]))
    stream.partition_persist(DeltaState("rows"), columns)
    made = [Count("n"), Sum("c", "total")]
    stream.group_by("a").persistent_aggregate(DeltaState("totals"), made[::-1] if turned else made)
    return flow


def test_the_hash_of_a_row_does_not_depend_on_the_order_of_its_columns() -> None:
    fields = [StructField("b", StringType()), StructField("a", MapType(StringType(), StringType()))]
    assert row_hash(StructType(fields)) == row_hash(StructType(fields[::-1]))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_columns_may_be_moved_and_added(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(topology(["b", "a"], 1))
    Runtime(spark, lake).catch_up(topology(["a", "c", "b"], 2, turned=True))
    last = topology(["m", "c", "b", "a"], 3, turned=True)
    Runtime(spark, lake).catch_up(last)

    assert [(one.state, one.txid, one.verdict) for one in verify(spark, lake, last).findings] == [
        (state, txid, HOLDS) for state in ("rows", "totals") for txid in range(3)
    ]
    DeltaTable(str(lake.state_path("rows"))).update(updates={"c": "7"}, predicate="a = 'z'")
    assert [(one.state, one.txid) for one in verify(spark, lake, last).differing] == [("rows", 1)]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_earlier_releases_wrote_holds(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(topology(["b", "m", "a"], 1))
    # By the order of the frame, and of a map that is null there was a text.
    former = "xxhash64(b, to_json(struct(m)), a)"
    as_earlier_releases_hashed(spark, lake, former)
    last = topology(["m", "c", "b", "a"], 2)
    Runtime(spark, lake).catch_up(last)
    assert {one.verdict for one in verify(spark, lake, last).findings} == {HOLDS}
    as_earlier_releases_hashed(spark, lake, "xxhash64(to_json(struct(m)), c, b, a)")
    assert {one.verdict for one in verify(spark, lake, last).findings} == {HOLDS}
    as_earlier_releases_hashed(spark, lake, "xxhash64(a, a)")
    assert [one.verdict for one in verify(spark, lake, last).findings if one.state == "rows"] == [HOLDS, DIFFERS]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_earlier_releases_wrote_holds_behind_a_map_that_was_added(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(topology(["b", "a"], 1))
    as_earlier_releases_hashed(spark, lake, "xxhash64(b, a)")
    last = topology(["b", "m", "a"], 2)
    Runtime(spark, lake).catch_up(last)
    assert {one.verdict for one in verify(spark, lake, last).findings} == {HOLDS}


def as_earlier_releases_hashed(spark: SparkSession, lake: Lake, expression: str) -> None:
    """Put another hash into the record of the last commit of `rows`."""
    table = lake.state("rows")
    last = table.commits.batches()[-1]
    rows = spark.read.format("delta").load(str(table.path)).where(F.col("_txid") == last.txid)
    digest = rows.agg(F.expr(f"bit_xor({expression})")).collect()[0][0]
    log = table.path / "_delta_log" / f"{last.version:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for info in (action["commitInfo"] for action in actions if "commitInfo" in action):
        info["userMetadata"] = json.dumps(json.loads(info["userMetadata"]) | {"hash": digest})
    log.write_text("\n".join(map(json.dumps, actions)))
