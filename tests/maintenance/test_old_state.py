"""Old versions of the windows' state: those of short runs go, and the windows go on from what is left."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines import Lake, Runtime
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.window_state import partition_rows
from pipelines.maintenance.old_files import prune, remove_old_state
from tests.maintenance.test_channels import Trips, undisturbed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _version(partition: Path, number: int, files: tuple[str, ...], form: str = "v1") -> None:
    (partition / "SSTs").mkdir(parents=True, exist_ok=True)
    described = {"sstFiles": [{"localFileName": one, "dfsSstFileName": one} for one in files], "numKeys": 1}
    with zipfile.ZipFile(partition / f"{number}.zip", "w") as packed:
        packed.writestr("metadata", f"{form}\n{json.dumps(described)}")
    (partition / f".{number}.zip.crc").write_text("crc")
    for one in files:
        (partition / "SSTs" / one).write_text(one)


def _files(partition: Path) -> set[str]:
    return {str(path.relative_to(partition)) for path in partition.rglob("*") if path.is_file()}


def test_versions_share_files(tmp_path: Path) -> None:
    for number, files in enumerate([("a",), ("a", "b"), ("b", "c"), ("c",)], 1):
        _version(tmp_path, number, files)
    counted = prune(tmp_path, 2, dry_run=True)
    assert counted == prune(tmp_path, 2)
    assert counted[0] == 2
    assert _files(tmp_path) == {"3.zip", ".3.zip.crc", "4.zip", ".4.zip.crc", "SSTs/b", "SSTs/c"}
    assert prune(tmp_path, 2) == (0, 0)


def test_changes_keep_the_snapshot_that_they_start_from(tmp_path: Path) -> None:
    _version(tmp_path, 1, ("a",))
    _version(tmp_path, 2, ("b",))
    for number in range(3, 7):
        (tmp_path / f"{number}.changelog").write_text("x")
    assert prune(tmp_path, 2)[0] == 1
    assert _files(tmp_path) >= {"2.zip", "SSTs/b", *(f"{number}.changelog" for number in range(3, 7))}
    assert "SSTs/a" not in _files(tmp_path)


@pytest.mark.parametrize("fault", ["another form", "cut off"])
def test_what_is_not_understood_is_left_alone(tmp_path: Path, fault: str) -> None:
    for number in range(1, 5):
        _version(tmp_path, number, ("a",), form="v9" if fault == "another form" else "v1")
    if fault == "cut off":
        (tmp_path / "4.zip").write_bytes(b"PK")
    before = _files(tmp_path)
    assert prune(tmp_path, 2) == (0, 0)
    assert _files(tmp_path) == before


@pytest.mark.slow
@pytest.mark.exhaustive
def test_windows_go_on_from_the_versions_that_stay(spark: SparkSession, tmp_path: Path) -> None:
    trips = Trips(tmp_path / "trips")
    for _ in range(5):
        trips.file()
        Runtime(spark, trips.lake).catch_up(trips.topology)
    state = trips.lake.checkpoint_path("trips", "rides__1") / "spark" / "state" / "0"
    assert len(list(state.glob("[0-9]*/*.zip"))) == 10
    rows = partition_rows(state.parent.parent)
    assert len(rows) == 2
    assert min(rows) > 0
    with Checkpoint("trips", state.parent.parent.parent).running(0):
        busy = remove_old_state(trips.lake, 2)
        assert (busy.removed, busy.note) == (0, "trips/rides__1 runs: Spark sees to it")
    assert remove_old_state(trips.lake, 2).removed == 6
    assert len(list(state.glob("[0-9]*/*.zip"))) == 4

    # A copy elsewhere: there Spark has nothing in its memory or on its local disk, and reads what is left.
    shutil.copytree(trips.lake.root, tmp_path / "elsewhere")
    for lake in (trips.lake, Lake(tmp_path / "elsewhere")):
        trips.lake = lake
        if lake.root.name != "elsewhere":
            trips.file()
        Runtime(spark, lake).catch_up(trips.topology)
        assert trips.counted() == undisturbed(spark, tmp_path / f"calm {lake.root.name}", 6)
