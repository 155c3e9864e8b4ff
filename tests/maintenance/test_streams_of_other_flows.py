"""A flow's table that another flow streams: its maintenance leaves what that stream has yet to ask for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import ChangedSourceError
from pipelines.execution.runners.bounded import SourceGoneError
from pipelines.maintenance import compact
from pipelines.sources import DeltaTableSource, JsonFiles
from pipelines.trident import DeltaState, TridentTopology

pytestmark = pytest.mark.slow


def upstream(folder: Path) -> TridentTopology:
    topology = TridentTopology("up")
    source = JsonFiles(folder, "day string, n bigint", max_files_per_batch=1)
    topology.new_stream("files", source, slice_by="day").partition_persist(DeltaState("rows"), ["n"])
    return topology


def downstream(lake: Lake, slice_by: str | None = None) -> TridentTopology:
    topology = TridentTopology("down")
    source = DeltaTableSource(lake.state_path("rows"), "n bigint")
    topology.new_stream("numbers", source, slice_by=slice_by).partition_persist(DeltaState("copy"), ["n"])
    return topology


def arrive(folder: Path, n: int) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / f"{n:03d}.json"
    file.write_text(json.dumps({"day": "d1", "n": n}) + "\n")
    os.utime(file, (1_700_000_000 + n,) * 2)


def copied(lake: Lake) -> list[int]:
    return sorted(row["n"] for row in lake.state("copy").scan().to_pylist())


@pytest.mark.exhaustive
def test_a_stream_outlives_compactions_of_a_table_that_gets_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """It has read everything, the last versions in one batch; a retention of no hours stands for the week that passes."""
    lake, folder = Lake(tmp_path / "lake"), tmp_path / "in"
    runtime = Runtime(spark, lake)
    for numbers in ([0], [1, 2, 3, 4, 5]):
        for n in numbers:
            arrive(folder, n)
        runtime.catch_up(upstream(folder))
        runtime.catch_up(downstream(lake))
    for hours in (168, 0, 0):
        compact(spark, Lake(lake.root), "up", retention_hours=hours)
    for n in (6, 7):
        arrive(folder, n)
        runtime.catch_up(upstream(folder))
        compact(spark, Lake(lake.root), "up", retention_hours=0)
        runtime.catch_up(downstream(lake))
        assert copied(lake) == list(range(n + 1))
    report = compact(spark, Lake(lake.root), "up", retention_hours=0)
    assert sum(table.log_files_removed for table in report.tables) > 0


@pytest.mark.exhaustive
def test_a_slice_that_is_replaced_upstream_says_how_to_go_on(spark: SparkSession, tmp_path: Path) -> None:
    lake, folder = Lake(tmp_path / "lake"), tmp_path / "in"
    runtime, numbers = Runtime(spark, lake), downstream(lake, "IF(n < 0, 'd0', 'd1')")
    arrive(folder, 0)
    runtime.catch_up(upstream(folder))
    runtime.catch_up(numbers)
    arrive(folder, 1)
    version = lake.state("rows").version() + 1
    runtime.backfill(upstream(folder), ["d1"])
    with pytest.raises(ChangedSourceError, match=f'source "numbers".* version {version} of') as caught:
        runtime.catch_up(numbers)
    assert 'on_fresh_checkpoint="reset"' in caught.value.hint
    assert "tridelta backfill" in caught.value.hint
    assert copied(lake) == [0]
    with pytest.raises(SourceGoneError):
        runtime.backfill(numbers, ["d1"])
    lake.checkpoint_path("down", "numbers").rename(tmp_path / "away")
    assert not runtime.backfill(numbers, ["d1"]).failed
    assert copied(lake) == [0, 1]
