"""The commits that a batch of a change feed took, by the offsets alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.sources import DeltaChangeFeed

LONG = 200_000


def offset(version: int, index: int = -1, *, starting: bool = False) -> dict[str, Any]:
    return {"reservoirId": "id", "reservoirVersion": version, "index": index, "isStartingVersion": starting}


def taken(checkpoint: Path, offsets: dict[int, Any], first: int, last: int, **options: Any) -> list[int]:
    (checkpoint / "offsets").mkdir()
    for batch, own in offsets.items():
        lines = ["v1", "{}", "-" if own is None else json.dumps(own)]
        (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))
    found = DeltaChangeFeed("/t", "n bigint", **options).positions(checkpoint, first, last)
    return sorted(int(position.removeprefix("delta:/t@")) for position in found)


@pytest.mark.parametrize(
    ("offsets", "batches", "options", "versions"),
    [
        ({0: offset(LONG, 9, starting=True)}, (0, 0), {}, [LONG]),  # a part of the table as it was
        ({0: offset(LONG + 1)}, (0, 0), {}, [LONG]),  # all of it
        ({0: offset(LONG + 1, 3)}, (0, 0), {}, [LONG, LONG + 1]),  # and a part of the next commit
        ({0: offset(0, 9, starting=True)}, (0, 0), {}, [0]),
        ({0: None, 1: offset(LONG + 1)}, (0, 1), {}, [LONG]),
        ({0: offset(LONG, 9, starting=True), 1: offset(LONG + 2)}, (1, 1), {}, [LONG, LONG + 1]),
        ({0: offset(LONG, 9, starting=True), 1: offset(LONG + 2)}, (0, 1), {}, [LONG, LONG + 1]),
        ({4: offset(LONG), 9: offset(LONG + 1)}, (9, 9), {}, [LONG]),  # a repartition left out what is between
        ({0: offset(3)}, (0, 0), {"starting_version": 1}, [1, 2]),
        ({0: offset(3)}, (0, -1), {}, []),
    ],
)
def test_commits_of_batches(
    tmp_path: Path, offsets: dict[int, Any], batches: tuple[int, int], options: Any, versions: list[int]
) -> None:
    assert taken(tmp_path, offsets, *batches, **options) == versions
