"""A folder that has moved: Spark knows files by their paths, so a stream that goes on would count all of them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import MovedSourceError
from pipelines.sources import FixedBatches, JsonFiles, Source
from pipelines.trident import DeltaState, TridentTopology

NONE: Any = None


def listed(log: Path, name: str, *files: str) -> None:
    log.mkdir(parents=True, exist_ok=True)
    entries = [json.dumps({"path": file, "timestamp": 1, "batchId": 0}) for file in files]
    (log / name).write_text("\n".join(["v1", *entries]))


@pytest.mark.parametrize(
    ("path", "files", "moved"),
    [
        ("/new/a b", ["file:///old/x.json", "file:///new/a%20b/x.json"], None),  # changed before this was looked at
        ("/new/a b", ["file:///new/a%20b/x.json", "file:///new/a%20b/day=1/y.json"], None),
        ("/new", ["file:///new/x.json", "file:///old/a%20b/y.json"], "/old/a b/y.json"),
        ("/new", ["file:///newer/x.json"], "/newer/x.json"),
        ("s3://bucket/in", ["s3a://bucket/in/x.json"], None),
        ("s3://bucket/in", ["s3a://other/in/x.json"], "s3a://other/in/x.json"),
    ],
)
def test_where_the_last_file_was(tmp_path: Path, path: str, files: list[str], moved: str | None) -> None:
    log = tmp_path / "sources" / "1"
    listed(log, "8", "file:///elsewhere/x.json")
    listed(log, "9.compact", *files)
    source = JsonFiles(path, "n bigint")
    if moved is None:
        source.check_same("s", NONE, tmp_path, 1)
        return
    with pytest.raises(MovedSourceError) as caught:
        source.check_same("s", NONE, tmp_path, 1)
    assert (caught.value.source, caught.value.file, caught.value.path) == ("s", moved, source.path)


def test_a_folder_within_the_former_one(tmp_path: Path) -> None:
    """Its files keep their paths, unless they were moved into it."""
    listed(tmp_path / "checkpoint" / "sources" / "0", "0", (tmp_path / "in" / "x.json").as_uri())
    (tmp_path / "in" / "day=1").mkdir(parents=True)
    JsonFiles(tmp_path / "in" / "day=1", "n bigint").check_same("s", NONE, tmp_path / "checkpoint", 0)
    (tmp_path / "in" / "day=1" / "x.json").touch()
    with pytest.raises(MovedSourceError):
        JsonFiles(tmp_path / "in" / "day=1", "n bigint").check_same("s", NONE, tmp_path / "checkpoint", 0)


def test_nothing_was_listed(tmp_path: Path) -> None:
    source = JsonFiles("/new", "n bigint")
    source.check_same("s", NONE, tmp_path, 0)
    listed(tmp_path / "sources" / "0", "0")
    (tmp_path / "sources" / "0" / "1").write_text('v1\n{"path": "file:///ol')  # torn: Spark says so
    source.check_same("s", NONE, tmp_path, 0)


def kept(source: Source) -> TridentTopology:
    topology = TridentTopology("kept")
    topology.new_stream("rows", source).partition_persist(DeltaState("held"))
    return topology


def held(lake: Lake) -> list[int]:
    return sorted(row["n"] for row in lake.state("held").scan().to_pylist())


@pytest.mark.slow
def test_a_folder_that_was_moved(spark: SparkSession, tmp_path: Path) -> None:
    """A link at its former path takes it back."""
    old, new, lake = tmp_path / "old", tmp_path / "new", Lake(tmp_path / "lake")
    old.mkdir()
    (old / "a.json").write_text('{"n":1}')
    Runtime(spark, lake).catch_up(kept(JsonFiles(old, "n bigint")))
    old.rename(new)
    (new / "b.json").write_text('{"n":2}')
    with pytest.raises(MovedSourceError):
        Runtime(spark, lake).catch_up(kept(JsonFiles(new, "n bigint")))
    assert held(lake) == [1]
    old.symlink_to(new)
    Runtime(spark, lake).catch_up(kept(JsonFiles(old, "n bigint")))
    assert held(lake) == [1, 2]


@pytest.mark.slow
def test_fixed_batches_of_a_lake_that_was_moved(spark: SparkSession, tmp_path: Path) -> None:
    Runtime(spark, Lake(tmp_path / "a")).catch_up(kept(FixedBatches("n bigint", [[(1,)]])))
    (tmp_path / "a").rename(tmp_path / "b")
    more, lake = kept(FixedBatches("n bigint", [[(1,)], [(2,)]])), Lake(tmp_path / "b")
    with pytest.raises(MovedSourceError):
        Runtime(spark, lake).catch_up(more)
    assert held(lake) == [1]
    (tmp_path / "a").symlink_to(tmp_path / "b")
    Runtime(spark, Lake(tmp_path / "b" / ".." / "a")).catch_up(more)
    assert held(Lake(tmp_path / "a")) == [1, 2]
