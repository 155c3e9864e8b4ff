"""A commit of a table's log that is another thing: told with the commit's number and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.state.damage import DamagedTableError, check_commit
from pipelines.state.delta_log import commit_file
from pipelines.state.kinds import LOG, TRANSACTIONAL
from pipelines.state.lake import Lake
from tests.state.small_kinds import SmallTable


@pytest.mark.parametrize(
    "text", ["5", "[]", '{"commitInfo": 5}', '{"add": [1]}', "[" * 100_000, "null", '"x"', "\0", "{"]
)
def test_a_commit_that_holds_something_else(text: str, tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000003.json"
    file.write_text(text)
    with pytest.raises(DamagedTableError, match="commit 3 of the log"):
        check_commit("counts", file)


def test_a_commit_that_is_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000003.json"
    file.mkdir()
    with pytest.raises(DamagedTableError, match="cannot be read: Is a directory"):
        check_commit("counts", file)


@pytest.mark.parametrize("txid", [1, 3, None])
def test_an_earlier_commit_that_ends_with_a_line(txid: int | None, tmp_path: Path) -> None:
    """It is whole JSON, and its rows are missing."""
    table = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    for number in range(4):
        table.commit(number, ("a", 1))
    commit = commit_file(table.table.path, 1)
    commit.write_bytes(commit.read_bytes().splitlines()[0])
    with pytest.raises(DamagedTableError, match="commit 1 of the log: it is cut off"):
        Lake(tmp_path).state(table.table.name).scan(txid=txid)
