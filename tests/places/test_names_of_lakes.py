"""Lakes whose paths have letters that delta-rs encodes, or at which it panics. No Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pipelines.execution.runners.sessions import check_places
from pipelines.places.location import Location, LocationError, Place
from pipelines.sources import JsonFiles
from pipelines.state.damage import DamagedTableError
from pipelines.state.kinds import LOG, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.table import StateTable
from pipelines.trident import DeltaState, TridentTopology
from tests.state.small_kinds import SmallTable

ENCODED = ["lüke", "日本", "é", 'a"b', "a<b>", "a`b", "a'b=c,d;e&f$g!(h)@~+"]


def counted(root: Place) -> StateTable:
    """Two batches in a lake; only the second one's files are needed for its last version."""
    small: Any = SmallTable(root, LOG, TRANSACTIONAL)  # type: ignore[arg-type]
    for txid in range(2):
        small.commit(txid, ("a", 1))
    return Lake(root).state("counts")


@pytest.mark.parametrize("name", ENCODED)
def test_a_lost_file_is_named_there(bucket: str, name: str) -> None:
    place = Location.of(f"s3://{bucket}/{name}/lake")
    table = counted(place)
    assert table.scan().num_rows == 1
    for file in place.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(DamagedTableError, match="it is missing"):
        Lake(place).state("counts").scan()


@pytest.mark.parametrize("name", [*ENCODED, "a#b", "a?b", "a%b", "a b", "a{b}*:"])
def test_a_lost_file_is_named_on_a_disk(tmp_path: Path, name: str) -> None:
    counted(tmp_path / name)
    for file in (tmp_path / name).rglob("*.parquet"):
        file.unlink()
    with pytest.raises(DamagedTableError, match="it is missing"):
        Lake(tmp_path / name).state("counts").scan()


def not_written(place: str | Path) -> None:
    topology = TridentTopology("rows")
    topology.new_stream("in", JsonFiles("/in", "k string")).partition_persist(DeltaState("kept"))
    lake = Lake(place)
    with pytest.raises(LocationError, match="delta-rs writes no table in a folder"):
        check_places(None, lake, topology)  # type: ignore[arg-type]
    with pytest.raises(LocationError, match="delta-rs writes no table in a folder"):
        SmallTable(lake.root, LOG, TRANSACTIONAL)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["s3://bucket/a^b", "s3://bucket/x/a|b/y", "hdfs://name:9000/a^b"])
def test_no_table_is_written_where_delta_rs_panics(place: str) -> None:
    not_written(place)


@pytest.mark.parametrize("name", ["a^b", "a|b", "a[b", "a]b", "a\\b", "a\tb"])
def test_no_table_is_written_in_such_a_folder_of_a_disk(tmp_path: Path, name: str) -> None:
    not_written(tmp_path / name)
    (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / name)
    not_written(tmp_path / "link")
    assert not os.listdir(tmp_path / name)  # noqa: PTH208


def test_a_lake_that_was_moved_there_is_read(tmp_path: Path) -> None:
    counted(tmp_path / "lake")
    (tmp_path / "lake").rename(tmp_path / "lake [old]")
    assert Lake(tmp_path / "lake [old]").state("counts").scan().num_rows == 1


def test_files_there_are_read(bucket: str) -> None:
    source = JsonFiles(f"s3://{bucket}/a^b|c", "k string")
    (Location.of(str(source.path)) / "x.json").write_bytes(b'{"k": "a"}\n')
    source.check("s", None)  # type: ignore[arg-type]
    source.check_first("s")
