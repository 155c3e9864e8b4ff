"""Rows of a query's state by partition, out of the snapshots' own descriptions."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.execution.checkpoint.window_state import partition_rows
from pipelines.nimbus.telemetry.figures import TaskFigures


def snapshot(checkpoint: Path, operator: int, partition: int, version: int, rows: object) -> Path:
    folder = checkpoint / "state" / str(operator) / str(partition)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{version}.zip"
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("metadata", f"v1\n{json.dumps({'sstFiles': [], 'numKeys': rows})}")
    return file


def test_the_newest_snapshot_of_each_partition_counts(tmp_path: Path) -> None:
    assert partition_rows(tmp_path) == ()
    for partition, rows in enumerate((5, 1, 0)):
        snapshot(tmp_path, 0, partition, 9, 100)
        snapshot(tmp_path, 0, partition, 10, rows)
    (tmp_path / "state" / "0" / "0" / "11.changelog").write_text("later")
    (tmp_path / "state" / "0" / "_metadata").mkdir()
    assert partition_rows(tmp_path) == (5, 1, 0)
    snapshot(tmp_path, 1, 2, 3, 7)
    assert partition_rows(tmp_path) == (5, 1, 7)


@pytest.mark.parametrize("rows", [-1, None, "7"])
def test_what_is_not_told_is_not_guessed(tmp_path: Path, rows: object) -> None:
    snapshot(tmp_path, 0, 0, 1, 4)
    snapshot(tmp_path, 0, 1, 1, rows)
    assert partition_rows(tmp_path) == ()
    snapshot(tmp_path, 0, 1, 2, 4).write_bytes(b"PK")
    assert partition_rows(tmp_path) == ()


def test_a_query_tells_its_skew(tmp_path: Path) -> None:
    operators = [{"numRowsTotal": 30, "numShufflePartitions": 3}]
    said = SimpleNamespace(json=lambda: json.dumps({"sources": [], "stateOperators": operators}))
    streaming: Any = SimpleNamespace(_jsq=SimpleNamespace(lastProgress=lambda: said))
    figures = TaskFigures("words__1", 5.0)
    assert (figures.to_json()["partition_rows"], figures.to_json()["skew"]) == ([], None)
    for partition, rows in enumerate((24, 3, 3)):
        snapshot(tmp_path, 0, partition, 1, rows)
    figures.look(streaming, tmp_path)
    told = figures.to_json()
    assert (told["partition_rows"], told["skew"], told["state_rows"]) == ([24, 3, 3], 2.4, 30)


def test_a_query_whose_windows_run_in_its_batch_tells_their_rows(tmp_path: Path) -> None:
    """No state of Spark's, and no partitions: a rebalance takes it for one without windows, as it deals nothing."""
    said = SimpleNamespace(json=lambda: json.dumps({"sources": [], "stateOperators": []}))
    streaming: Any = SimpleNamespace(_jsq=SimpleNamespace(lastProgress=lambda: said))
    figures = TaskFigures("readings", 5.0)
    assert figures.to_json()["state_rows"] is None
    figures.window_rows = 0
    figures.look(streaming, tmp_path)
    assert figures.to_json()["state_rows"] == 0
    figures.window_rows = 20
    told = figures.to_json()
    assert (told["state_rows"], told["partition_rows"], told["partitions"], told["skew"]) == (20, [], None, None)
