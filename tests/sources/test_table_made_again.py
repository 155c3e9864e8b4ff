"""A Delta table that is deleted and created again at its path: its versions count from 0, and offsets mean other rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import LostRowsError
from pipelines.sources import DeltaChangeFeed, DeltaTableSource
from pipelines.trident import Count, DeltaState, TridentTopology

NONE: Any = None
SCHEMA = "day string, n bigint"
KINDS = [DeltaTableSource, DeltaChangeFeed]


def add(table: Path, *numbers: int) -> None:
    rows = pa.table({"day": ["d1"] * len(numbers), "n": pa.array(numbers, pa.int64())})
    write_deltalake(table, rows, mode="append")


def planned(checkpoint: Path, table: Path, index: int = 0) -> None:
    """Write the offset of a first batch that took all of a table."""
    opened = DeltaTable(table)
    offset = {"sourceVersion": 1, "reservoirId": str(opened.metadata().id), "reservoirVersion": opened.version() + 1}
    own = json.dumps(offset | {"index": -1, "isStartingVersion": False})
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / "0").write_text("\n".join(["v1", "{}", *["-"] * index, own]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_was_made_again_before_the_start(tmp_path: Path, kind: Any) -> None:
    table, checkpoint = tmp_path / "t", tmp_path / "checkpoint"
    add(table, 1)
    planned(checkpoint, table, 1)
    source = kind(table, SCHEMA)
    source.check_same("s", NONE, checkpoint, 1)
    shutil.rmtree(table)
    add(table, 7)
    add(table, 8)
    with pytest.raises(LostRowsError, match="was deleted and created again"):
        source.prepare("s", tmp_path).check_same("s", NONE, checkpoint, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_is_made_again_under_a_stream(tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, checkpoint = tmp_path / "t", tmp_path / "checkpoint"
    add(table, 1)
    add(table, 2)
    source = kind(table, SCHEMA)
    source.check_same("s", NONE, checkpoint, 0)  # nothing is planned yet
    planned(checkpoint, table)
    source.check_same("s", NONE, checkpoint, 0)
    asked: list[str] = []
    check = DeltaTableSource.check_table

    def counted(source: DeltaTableSource, name: str, checkpoint: Path, index: int) -> bool:
        asked.append(name)
        return check(source, name, checkpoint, index)

    monkeypatch.setattr(DeltaTableSource, "check_table", counted)
    add(table, 3)
    source.check_same("s", NONE, checkpoint, 0)
    assert not asked, "a batch does not open the table for this"
    DeltaTable(table).create_checkpoint()
    for version in (0, 1):  # as a clean-up of the log does
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    source.check_same("s", NONE, checkpoint, 0)
    assert asked == ["s"]
    shutil.rmtree(table)
    for n in (7, 8, 9, 10):
        add(table, n)
    with pytest.raises(LostRowsError):
        source.check_same("s", NONE, checkpoint, 0)


def test_a_table_that_is_gone_is_reported_by_the_read(tmp_path: Path) -> None:
    table, checkpoint = tmp_path / "t", tmp_path / "checkpoint"
    add(table, 1)
    planned(checkpoint, table)
    shutil.rmtree(table)
    DeltaTableSource(table, SCHEMA).check_same("s", NONE, checkpoint, 0)


@pytest.mark.slow
def test_no_slice_is_made_of_a_table_that_was_made_again(spark: SparkSession, tmp_path: Path) -> None:
    table, lake, topology = tmp_path / "t", Lake(tmp_path / "lake"), TridentTopology("totals")
    rows = topology.new_stream("rows", DeltaTableSource(table, SCHEMA), slice_by="day")
    rows.group_by("day").persistent_aggregate(DeltaState("by_day"), Count(), "rows")
    add(table, 1)
    add(table, 2)
    Runtime(spark, lake).catch_up(topology)
    shutil.rmtree(table)
    for n in (7, 8, 9):
        add(table, n)
    with pytest.raises(LostRowsError):
        Runtime(spark, lake).backfill(topology, ["d1"])
    with pytest.raises(LostRowsError):
        Runtime(spark, lake).catch_up(topology)
    assert [row["rows"] for row in lake.state("by_day").scan().to_pylist()] == [2]
