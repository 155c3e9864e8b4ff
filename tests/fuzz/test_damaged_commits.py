"""A commit of a table's log that is another thing: told with the commit's number and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.state.damage import DamagedTableError, check_commit


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
