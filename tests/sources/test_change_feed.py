"""A table's change feed as a source: each change once, in its commit, the same again on a replay."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import (
    DefinitionError,
    DuplicateFieldError,
    LostRowsError,
    MissingPathError,
    NotSliceableError,
    SourceError,
    SourceSchemaError,
)
from pipelines.sources import DeltaChangeFeed
from pipelines.trident import DeltaState, TridentTopology

pytestmark = pytest.mark.slow

SCHEMA = "id bigint, name string"
ENABLED = "delta.enableChangeDataFeed"


class Customers:
    """A table with a change feed: version 1 inserts three, 2 renames one, 3 deletes one."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.path = spark, folder / "customers"
        self.sql(f"CREATE TABLE {{t}} ({SCHEMA}) USING delta TBLPROPERTIES ({ENABLED} = true)")
        self.sql("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        self.sql("UPDATE {t} SET name = 'B' WHERE id = 2")
        self.sql("DELETE FROM {t} WHERE id = 3")

    def sql(self, text: str) -> None:
        self.spark.sql(text.replace("{t}", f"delta.`{self.path}`")).collect()


def flow(source: DeltaChangeFeed) -> TridentTopology:
    topology = TridentTopology("customers")
    topology.new_stream("changes", source).partition_persist(DeltaState("log"))
    return topology


def held(lake: Lake) -> list[tuple[int, str, int, str]]:
    rows = lake.state("log").scan().to_pylist()
    return sorted((row["commit_version"], row["change_type"], row["id"], row["name"]) for row in rows)


CHANGES = [
    (1, "insert", 1, "a"),
    (1, "insert", 2, "b"),
    (1, "insert", 3, "c"),
    (2, "update_postimage", 2, "B"),
    (2, "update_preimage", 2, "b"),
    (3, "delete", 3, "c"),
]


def test_every_change_once_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    table, lake = Customers(spark, tmp_path), Lake(tmp_path / "lake")
    source = DeltaChangeFeed(table.path, SCHEMA, starting_version=0, max_files_per_batch=1)
    topology = flow(source)
    assert source.fields == ("id", "name", "change_type", "commit_version", "commit_timestamp")
    runtime = Runtime(spark, lake)
    first = runtime.catch_up(topology, max_batches=1).batches
    rest = runtime.catch_up(topology).batches
    assert held(lake) == CHANGES
    table.sql("INSERT INTO {t} VALUES (4, 'd')")
    more = runtime.catch_up(topology).batches
    assert held(lake) == [*CHANGES, (4, "insert", 4, "d")]
    times = {row["commit_version"]: row["commit_timestamp"] for row in lake.state("log").scan().to_pylist()}
    assert [times[version] for version in sorted(times)] == sorted(times.values())
    checkpoint = lake.checkpoint_path("customers", "changes") / "spark"
    last = len(first) + len(rest) + len(more) - 1
    commits = {f"delta:{table.path}@{version}" for version in (1, 2, 3, 4)}
    assert commits <= source.positions(checkpoint, 0, last)
    assert f"delta:{table.path}@4" in source.positions(checkpoint, last, last)
    assert f"delta:{table.path}@1" not in source.positions(checkpoint, last, last)


@pytest.mark.exhaustive
def test_without_a_version_the_table_comes_first(spark: SparkSession, tmp_path: Path) -> None:
    table, lake = Customers(spark, tmp_path), Lake(tmp_path / "lake")
    topology = flow(DeltaChangeFeed(table.path, "name string"))
    Runtime(spark, lake).catch_up(topology)
    rows = lake.state("log").scan().to_pylist()
    assert sorted((row["name"], row["change_type"]) for row in rows) == [("B", "insert"), ("a", "insert")]
    table.sql("DELETE FROM {t} WHERE id = 1")
    Runtime(spark, lake).catch_up(topology)
    assert [row["name"] for row in lake.state("log").scan().to_pylist() if row["change_type"] == "delete"] == ["a"]


class StopError(BaseException):
    pass


@pytest.mark.exhaustive
def test_a_replay_reads_the_same_changes(spark: SparkSession, tmp_path: Path) -> None:
    table, lake = Customers(spark, tmp_path), Lake(tmp_path / "lake")
    topology = flow(DeltaChangeFeed(table.path, SCHEMA, starting_version=0))

    def stop(moment: str, state: str, txid: int) -> None:
        if moment == "committed":
            raise StopError

    with pytest.raises(StopError):
        Runtime(spark, lake, listeners=[stop]).catch_up(topology)
    table.sql("INSERT INTO {t} VALUES (4, 'd')")
    batches = Runtime(spark, lake).catch_up(topology).batches
    assert [(batch.txid, batch.received) for batch in batches] == [(0, 6), (1, 1)]
    assert held(lake) == [*CHANGES, (4, "insert", 4, "d")]


@pytest.mark.exhaustive
def test_it_goes_on_when_the_log_no_longer_has_its_first_version(spark: SparkSession, tmp_path: Path) -> None:
    """By Delta's default a month later."""
    table, lake = Customers(spark, tmp_path), Lake(tmp_path / "lake")
    topology = flow(DeltaChangeFeed(table.path, SCHEMA, starting_version=0))
    for n in (4, 5):
        Runtime(spark, lake).catch_up(topology)
        table.sql(f"INSERT INTO {{t}} VALUES ({n}, 'd')")
    Runtime(spark, lake).catch_up(topology)
    DeltaTable(table.path).create_checkpoint()
    for file in (table.path / "_delta_log").glob("0*.json"):
        if int(file.name[:20]) < 4:
            file.unlink()
    table.sql("INSERT INTO {t} VALUES (6, 'd')")
    Runtime(spark, lake).catch_up(topology)
    assert held(lake) == [*CHANGES, *((n, "insert", n, "d") for n in (4, 5, 6))]
    with pytest.raises(SourceError, match="has no version 0"):
        Runtime(spark, Lake(tmp_path / "other")).catch_up(topology)


@pytest.mark.exhaustive
def test_changes_vacuumed_under_a_stream_stop_it(spark: SparkSession, tmp_path: Path) -> None:
    table, lake = Customers(spark, tmp_path), Lake(tmp_path / "lake")
    topology = flow(DeltaChangeFeed(table.path, SCHEMA, starting_version=0))
    shutil.rmtree(table.path / "_change_data")
    with pytest.raises(LostRowsError, match=r"the data file .*/_change_data/.* is gone"):
        Runtime(spark, lake).catch_up(topology)
    assert held(lake) == []


def test_refused_before_the_start(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(MissingPathError):
        DeltaChangeFeed(tmp_path / "none", SCHEMA).check("s", spark)
    plain = tmp_path / "plain"
    spark.sql(f"CREATE TABLE delta.`{plain}` ({SCHEMA}) USING delta").collect()
    with pytest.raises(SourceError, match="records no changes") as caught:
        DeltaChangeFeed(plain, SCHEMA).check("s", spark)
    spark.sql(caught.value.hint.split(";")[0]).collect()
    DeltaChangeFeed(plain, SCHEMA, starting_version=1).check_first("s")
    with pytest.raises(SourceError, match="recorded no changes yet at version 0"):
        DeltaChangeFeed(plain, SCHEMA, starting_version=0).check_first("s")
    with pytest.raises(SourceError, match="has no version 7"):
        DeltaChangeFeed(plain, SCHEMA, starting_version=7).check_first("s")
    with pytest.raises(DefinitionError, match="starting_version must be a whole number from 0"):
        DeltaChangeFeed(plain, SCHEMA, starting_version=-1)
    with pytest.raises(SourceSchemaError):
        DeltaChangeFeed(plain, "id string").check("s", spark)
    with pytest.raises(DuplicateFieldError):
        DeltaChangeFeed(plain, "change_type string")
    with pytest.raises(NotSliceableError):
        TridentTopology("sliced").new_stream("s", DeltaChangeFeed(plain, SCHEMA), slice_by="name")
