"""A durable lake after a loss of power: what the disk was not asked for is gone, and each row counts once all the same."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import TrideltaError
from pipelines.execution.checkpoint.durable import DurableBatches
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.flowmix import Count as EventCount
from pipelines.flowmix import Flow, Policy
from pipelines.flowmix.compile import as_topology
from pipelines.quality import drop
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, TridentTopology

pytestmark = pytest.mark.slow

SCHEMA = "word string, n bigint, at timestamp"
WORD = "w\u2028\u2029\x85"
"""With ends of lines that are none of JSON."""
ONCE = {"trigger": Policy.count(2), "evict": Policy.count(2)}


def counts(folder: Path) -> TridentTopology:
    topology = TridentTopology("counts")
    rows = topology.new_stream("s", JsonFiles(folder, SCHEMA, max_files_per_batch=1))
    rows = rows.gate(drop("expect_column_values_to_be_between", column="n", min_value=0), name="sane")
    rows.group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "c")
    rows.group_by("word").persistent_aggregate(DeltaState("in_map", layout="map"), Count(), "c")
    rows.partition_persist(DeltaState("all_rows"))
    return topology


def windows(folder: Path) -> TridentTopology:
    stream = (
        Flow("counts").stream("s", JsonFiles(folder, SCHEMA, max_files_per_batch=1), timestamp="at").partition("word")
    )
    return as_topology(stream.aggregate(EventCount("c"), **ONCE).persist("all_rows").build())


def arrive(folder: Path, *numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        file = folder / f"{number}.json"
        lines = [f'{{"word": "{WORD}", "n": {n}, "at": "2020-01-01T00:00:{number:02d}Z"}}' for n in (number, -1)]
        file.write_text("\n".join(lines))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


class Disk:
    """What was asked to be on the disk: by path the time of the file's last change, at the last time of asking."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: dict[str, int] = {}
        real = os.fsync

        def fsync(handle: int) -> None:
            path = str(Path(f"/proc/self/fd/{handle}").readlink())
            self.asked[path] = os.fstat(handle).st_mtime_ns
            if path.endswith(".tmp"):  # the engine's own files are synced and then renamed
                self.asked[str(Path(path).parent / Path(path).name[1:].rsplit(".", 2)[0])] = os.fstat(
                    handle
                ).st_mtime_ns
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)

    def lose_power(self, root: Path) -> list[str]:
        """Files that the disk was not asked for are gone. Returns them."""
        lost = []
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            if self.asked.get(str(file)) != file.stat().st_mtime_ns:
                lost.append(file.relative_to(root).as_posix())
                file.unlink()
        return lost


@pytest.mark.parametrize("flow", [counts, pytest.param(windows, marks=pytest.mark.exhaustive)])
def test_no_batch_is_lost_with_the_power(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: type
) -> None:
    source, lake = tmp_path / "in", Lake(tmp_path / "lake", durable=True)
    topology = flow(source)
    arrive(source, 0, 1, 2)
    disk = Disk(monkeypatch)
    last = {one.group: one.txid for one in Runtime(spark, lake).catch_up(topology).batches}
    lost = disk.lose_power(lake.root)
    assert any(path.endswith("/spark/commits/2") for path in lost), "Spark marks a batch behind us"
    needed = ("_delta_log/0", "/offsets/", "/sources/", "epoch.json", "/metadata", ".changelog", ".zip")
    of_last_mark = ("commits/2", "_delta_log/_commits", ".lock")
    left_out = [
        path for path in lost if any(part in path for part in needed) and not any(o in path for o in of_last_mark)
    ]
    assert left_out == []
    assert not [path for path in lost if path.endswith(".parquet")]
    lake = Lake(lake.root, durable=True)
    again = Runtime(spark, lake).catch_up(topology)
    assert {one.group: one.txid for one in again.batches} == last, "the last batch of each query comes again"
    arrive(source, 3, 4)
    Runtime(spark, lake).catch_up(topology)
    held = sorted(map(repr, lake.state("all_rows").scan().to_pylist()))
    undisturbed = Lake(tmp_path / "other")
    Runtime(spark, undisturbed).catch_up(flow(source))
    assert held == sorted(map(repr, undisturbed.state("all_rows").scan().to_pylist()))
    if flow is counts:
        for state in ("counts", "in_map"):
            assert lake.state(state).get([{"word": WORD}]) == [{"word": WORD, "c": 5}]
        assert lake.quarantine("counts").scan().num_rows == 5


def test_without_it_nothing_wrong_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    """The last batches of a table are gone with the power, or its plan is: refused, never counted wrong."""
    source, lake = tmp_path / "in", Lake(tmp_path / "lake")
    topology = counts(source)
    arrive(source, 0, 1, 2)
    Runtime(spark, lake).catch_up(topology)
    for gone in ("states/counts/_delta_log/00000000000000000003.json", "checkpoints/counts/s/spark/offsets/2"):
        copy = tmp_path / gone.replace("/", "_")
        shutil.copytree(lake.root, copy)
        (copy / gone).unlink()
        with pytest.raises(TrideltaError) as caught:
            Runtime(spark, Lake(copy)).catch_up(topology)
        assert caught.value.hint
    # With the mark gone too, the batch comes again, and so into the table that has lost it.
    (lake.root / "states/counts/_delta_log/00000000000000000003.json").unlink()
    for name in ("2", ".2.crc"):
        (lake.root / "checkpoints/counts/s/spark/commits" / name).unlink()
    lake = Lake(lake.root)
    Runtime(spark, lake).catch_up(topology)
    for state in ("counts", "in_map"):
        assert lake.state(state).get([{"word": WORD}]) == [{"word": WORD, "c": 3}]
    assert lake.state("all_rows").scan().num_rows == 3


def test_the_listings_of_every_batch_are_asked_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two folders one gets nothing for a batch: their listings then have other numbers than the batches."""
    disk, lake = Disk(monkeypatch), Lake(tmp_path / "lake", durable=True)
    topology = TridentTopology("two")
    left, right = (topology.new_stream(name, JsonFiles(tmp_path / name, SCHEMA)) for name in ("left", "right"))
    topology.merge(left, right).partition_persist(DeltaState("all_rows"))
    for number, sides in enumerate((("left", "right"), ("left",), ("left", "right"))):
        for side in sides:
            arrive(tmp_path / side, number)
        Runtime(spark, lake).catch_up(topology)
    listed = [path for path in lake.root.rglob("spark/sources/*/*") if path.name.isdigit()]
    assert sorted(f"{path.parent.name}/{path.name}" for path in listed) == ["0/0", "0/1", "0/2", "1/0", "1/1"]
    assert [path for path in listed if str(path) not in disk.asked] == []


def test_a_batch_of_two_listings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process died behind a listing; the tenth is a compact file."""
    spark = tmp_path / "f/s/spark"
    for folder in ("offsets", "commits", "sources/0", "sources/1"):
        (spark / folder).mkdir(parents=True)
    for batch, listing in ((7, 7), (8, 9)):
        (spark / f"offsets/{batch}").write_text(f'v1\n{{}}\n{{"logOffset":{listing}}}\n{{"topic":{{"0":5}}}}')
    for name in ("0/7", "0/8", "0/9.compact", "1/0"):
        (spark / "sources" / name).write_text("v1")
    disk = Disk(monkeypatch)
    DurableBatches(Checkpoint("f", spark.parent), [], tmp_path).planned(8)
    asked = {Path(path).relative_to(spark).as_posix() for path in disk.asked if Path(path).is_file()}
    assert asked == {"offsets/8", "sources/0/8", "sources/0/9.compact", "sources/1/0"}


def test_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not Lake(tmp_path).durable
    monkeypatch.setenv("TRIDELTA_DURABLE", "1")
    assert Lake(tmp_path).durable
    assert Lake(tmp_path).with_channels(tmp_path / "c").durable
    assert not Lake(tmp_path, durable=False).durable
