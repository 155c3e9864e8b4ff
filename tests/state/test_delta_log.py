"""The log of a Delta table, read by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipelines.places.disk import DiskStore
from pipelines.places.location import Location
from pipelines.places.store import Entry
from pipelines.state.damage import DamagedTableError, check_log
from pipelines.state.delta_log import adds, commit_file, replayed, sizes


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\r"])
def test_a_value_with_an_end_of_a_line_that_is_none_of_json(character: str, tmp_path: Path) -> None:
    """Delta writes most of them as they are, in the slice and in a file's least and greatest values."""
    value = f"a{character}b"
    write_deltalake(tmp_path, pa.table({"day": [value], "k": [value]}), partition_by=["day"])
    (added,) = adds(tmp_path, 0)
    assert (added["partitionValues"]["day"], json.loads(added["stats"])["minValues"]["k"]) == (value, value)


@pytest.mark.parametrize("on_store", [False, True])
def test_a_log_is_checked_without_asking_for_each_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_store: bool
) -> None:
    """A week of commits are a hundred thousand: a request for each would take a store an hour."""
    asked: list[str] = []
    original = DiskStore.entry

    def counted(store: DiskStore, key: str) -> Entry:
        asked.append(key)
        return original(store, key)

    monkeypatch.setattr(DiskStore, "entry", counted)
    for number in range(12):
        write_deltalake(tmp_path, pa.table({"k": [number]}), mode="append")
    DeltaTable(tmp_path).create_checkpoint()
    for number in range(3):
        write_deltalake(tmp_path, pa.table({"k": [number]}), mode="append")
    table = Location.of(tmp_path) if on_store else tmp_path
    (tmp_path / "_delta_log" / "below").mkdir()
    for name in ("below/00000000000000000001.json", "_last_checkpoint", "00000000000000000001.json.tmp"):
        (tmp_path / "_delta_log" / name).touch()
    check_log("t", table)
    assert asked == []
    checkpoint = f"{11:020d}.checkpoint.parquet"
    assert sorted(sizes(table)) == sorted([checkpoint, *(f"{version:020d}.json" for version in range(15))])
    assert replayed(table, names=sizes(table)) == replayed(table) == [commit_file(table, at) for at in (12, 13, 14)]
    assert replayed(table, 11) == [commit_file(table, 11)]
    assert replayed(table, 1) == [commit_file(table, at) for at in (0, 1)]
    commit_file(tmp_path, 5).write_bytes(b"")
    with pytest.raises(DamagedTableError, match="commit 5 of the log: it is empty"):
        check_log("t", table)
