"""What a window reads of a channel is cut at commits, in their order, from the start and after any rewriting."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.batch import stream_batch
from pipelines.execution.verify import BY_COUNT, HOLDS, verify
from pipelines.sources import FixedBatches, channels
from pipelines.sources.channels import options
from pipelines.sources.offsets import offset_in_table
from pipelines.trident import DeltaState, Sum, TridentTopology, TumblingCountWindow

# By batch a row of each of many slices, whose names hold an end of a line that is none of JSON.
BATCHES = [[(f"d{n}\u2028", 2**number) for n in range(4)] for number in range(5)]
LIMITS = {"maxFilesPerTrigger": "1"}
NO_LIMIT = {"maxFilesPerTrigger": "2147483639"}


def summed() -> TridentTopology:
    topology = TridentTopology("summed")
    stream = topology.new_stream("s", FixedBatches("day string, v bigint", BATCHES), slice_by="day")
    stream.window(TumblingCountWindow.of(4), "v", Sum(), "sum").partition_persist(DeltaState("sums"))
    return topology


def sums(lake: Lake) -> list[int]:
    return sorted(row["sum"] for row in lake.state("sums").scan().to_pylist())


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("by_spark", [False, True], ids=["by the driver", "by Spark"])
def test_windows_over_slices_take_whole_commits_in_order(
    spark: SparkSession, tmp_path: Path, by_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a reader that begins anew when files were put together, whose times say nothing of their rows."""
    monkeypatch.setattr(channels, "FILES_A_BATCH", 1)
    if by_spark:
        monkeypatch.setattr(stream_batch, "DRIVER_BYTES", -1)
        monkeypatch.setattr(stream_batch, "DRIVER_ROWS", -1)
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(summed())
    assert sums(lake) == [4, 8, 16, 32, 64]
    report = verify(spark, lake, summed())
    assert {one.verdict for one in report.findings} <= {HOLDS, BY_COUNT}
    (channel,) = lake.channels()
    assert [one.rows for one in report.findings if one.state == channel] == [5] * 5
    shutil.rmtree(lake.checkpoint_path("summed", channel))
    shutil.rmtree(lake.state_path("sums"))
    table = DeltaTable(str(lake.channel_path(channel)))
    table.optimize.compact()
    Runtime(spark, lake).catch_up(summed())
    assert sums(lake) == [4, 8, 16, 32, 64]


def write(path: Path, txid: int, slices: int = 1) -> None:
    names = [f"s{n}\u2028" for n in range(slices)]
    write_deltalake(path, pa.table({"_slice": names, "_txid": [txid] * slices}), mode="append", partition_by=["_slice"])


def offset(version: int, index: int = -1, starting: bool = False) -> dict[str, object]:
    return {"reservoirId": "id", "reservoirVersion": version, "index": index, "isStartingVersion": starting}


def test_a_new_reader_takes_commits_from_the_first_on(tmp_path: Path) -> None:
    for txid in range(3):
        write(tmp_path, txid)
    assert options(tmp_path, None, LIMITS) == {"startingVersion": "0", **LIMITS}


def test_of_commits_with_several_files_a_batch_takes_all_that_are_there(tmp_path: Path) -> None:
    write(tmp_path, 0, slices=2)
    assert options(tmp_path, None, LIMITS) == {"startingVersion": "0", **NO_LIMIT}
    assert options(tmp_path, offset(0), LIMITS) == NO_LIMIT
    assert options(tmp_path, offset(1), LIMITS) == LIMITS
    write(tmp_path, 1)
    assert options(tmp_path, offset(1), LIMITS) == LIMITS


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_batch_takes_more_files_than_delta_does_of_itself(spark: SparkSession, tmp_path: Path, kept: bool) -> None:
    table, many = tmp_path / "channel", 1001
    write_deltalake(table, pa.table({"v": [1]}))
    commit = table / "_delta_log" / f"{0:020d}.json"
    *others, add = sorted(commit.read_text().splitlines(), key=lambda line: line.startswith('{"add"'))
    (file,) = table.glob("*.parquet")
    for number in range(many):
        (table / f"{number}.parquet").hardlink_to(file)
    adds = [add.replace(file.name, f"{number}.parquet") for number in range(many)]
    commit.write_text("\n".join([*others, *adds]) + "\n")
    if not kept:
        moved = (
            '{"remove":{"path":"0.parquet","dataChange":false}}',
            add.replace('"dataChange":true', '"dataChange":false'),
        )
        commit.with_name(f"{1:020d}.json").write_text("\n".join(moved) + "\n")
    frame = spark.readStream.format("delta").options(**options(table, None, LIMITS)).load(str(table))
    writer = frame.writeStream.foreachBatch(lambda *_: None).option("checkpointLocation", str(tmp_path / "c"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert [path.name for path in (tmp_path / "c/offsets").iterdir() if path.name.isdigit()] == ["0"]


@pytest.mark.parametrize("rewrite", ["optimize", "delete", "log"])
def test_a_new_reader_of_a_rewritten_table_takes_it_as_a_whole(tmp_path: Path, rewrite: str) -> None:
    for txid in range(2):
        write(tmp_path, txid)
    table = DeltaTable(tmp_path)
    if rewrite == "optimize":
        table.optimize.compact()
    elif rewrite == "delete":
        table.delete("_txid = 0")
    else:
        (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()
    assert options(tmp_path, None, LIMITS) == NO_LIMIT


@pytest.mark.parametrize(("index", "starting"), [(0, False), (-1, True), (3, True)])
def test_a_checkpoint_within_a_commit_takes_the_rest_of_it_with_what_follows(
    tmp_path: Path, index: int, starting: bool
) -> None:
    write(tmp_path, 0)
    assert options(tmp_path, offset(0, index, starting), LIMITS) == NO_LIMIT


def test_where_the_last_planned_batch_ends(tmp_path: Path) -> None:
    assert offset_in_table(tmp_path, "id") is None
    folder = tmp_path / "offsets"
    folder.mkdir()
    for batch in (9, 10):
        lines = ["v1", "{}", json.dumps({"reservoirId": "other"}), "-", json.dumps(offset(batch))]
        (folder / str(batch)).write_text("\n".join(lines))
    assert offset_in_table(tmp_path, "id") == offset(10)
    assert offset_in_table(tmp_path, "none") is None
