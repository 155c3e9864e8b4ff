"""A table that stays open is at each moment what a table opened at that moment is, whoever has written or cleaned its log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import TrideltaError
from pipelines.state import open_table
from pipelines.state.commits import HOOKS
from pipelines.state.damage import DamagedTableError
from pipelines.state.delta_log import commit_file, commit_files
from pipelines.state.open_table import _UPDATES, OpenTable

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
APPS = ("a", "b")


def create(path: Path) -> None:
    DeltaTable.create(str(path), SCHEMA, configuration={"delta.checkpointInterval": "5"})


def commit(table: DeltaTable, app: str, number: int) -> None:
    schema = pa.schema(table.schema().to_arrow())
    rows = pa.Table.from_pylist([{"k": app, "v": number}], schema=schema)
    said = CommitProperties(app_transactions=[Transaction(app, number)])
    write_deltalake(table, rows, mode="append", commit_properties=said, post_commithook_properties=HOOKS)


def clean(path: Path) -> None:
    """Cut the log behind a checkpoint, as a compaction does."""
    DeltaTable(str(path)).create_checkpoint()
    for file in commit_files(path)[:-1]:
        file.unlink()


def seen(table: DeltaTable) -> tuple[object, ...]:
    versions = tuple(table.transaction_version(app) for app in APPS)
    return table.version(), versions, sorted(table.file_uris()), table.schema().to_json(), table.metadata().id


STEPS = st.lists(
    st.sampled_from(["own", "raced", "other", "others", "clean", "copy", "older", "anew", "column"]), max_size=14
)


@pytest.mark.slow
@settings(max_examples=40)
@given(STEPS)
def test_it_is_what_a_table_opened_now_is(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    path = tmp_path_factory.mktemp("open") / "table"
    create(path)
    kept = OpenTable("t", path)
    for number, step in enumerate([*steps, "other"], 1):
        if step in ("own", "raced"):
            table = kept.now()
            before, _ = table.version(), seen(table)
            if step == "raced":
                commit(DeltaTable(str(path)), "b", number)
            commit(table, "a", number)
            kept.noted(before, {"a": number})
        elif step in ("other", "others"):
            for _ in range(1 if step == "other" else 7):
                commit(DeltaTable(str(path)), "b", number)
        elif step == "clean":
            clean(path)
        elif step == "column":
            DeltaTable(str(path)).alter.add_columns([Field(f"c{number}", "long")])
        elif step == "copy":
            shutil.rmtree(path.with_name("copy"), ignore_errors=True)
            shutil.copytree(path, path.with_name("copy"))
        elif step == "older" and path.with_name("copy").exists():
            shutil.rmtree(path)
            shutil.copytree(path.with_name("copy"), path)
        elif step == "anew":
            shutil.rmtree(path)
            create(path)
        assert seen(kept.now()) == seen(DeltaTable(str(path))), step


def test_it_is_opened_once_for_many_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path / "t")
    opens: list[object] = []
    real = open_table.opened_as
    monkeypatch.setattr(open_table, "opened_as", lambda *args: (opens.append(args), real(*args))[1])
    kept = OpenTable("t", tmp_path / "t")
    for number in range(2 * _UPDATES - 1):
        table = kept.now()
        before = table.version()
        commit(table, "a", number)
        kept.noted(before, {"a": number})
        assert kept.now().transaction_version("a") == number
    assert len(opens) == 2


def test_transaction_ids_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path / "t")
    asked: list[str] = []
    real = DeltaTable.transaction_version
    monkeypatch.setattr(DeltaTable, "transaction_version", lambda table, app: (asked.append(app), real(table, app))[1])
    kept = OpenTable("t", tmp_path / "t")
    for number in range(_UPDATES - 1):
        table = kept.now()
        assert [table.transaction_version(app) for app in ("a", "never")] == [number - 1 if number else None, None]
        commit(table, "a", number)
        kept.noted(number, {"a": number})
    assert asked == ["a", "never"]


def test_damage_behind_it_is_named(tmp_path: Path) -> None:
    create(tmp_path / "t")
    kept = OpenTable("t", tmp_path / "t")
    kept.now()
    commit(DeltaTable(str(tmp_path / "t")), "b", 1)
    torn = commit_file(tmp_path / "t", 1)
    torn.write_bytes(torn.read_bytes()[:-20])
    with pytest.raises(DamagedTableError):
        kept.now()
    torn.write_bytes(b"")
    with pytest.raises(TrideltaError):
        kept.now()


def test_after_a_commit_that_failed_it_is_opened_again(tmp_path: Path) -> None:
    create(tmp_path / "t")
    kept = OpenTable("t", tmp_path / "t")
    first = kept.now()
    assert kept.now() is first
    kept.close()
    assert kept.now() is not first
