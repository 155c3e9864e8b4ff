"""Files of which a deletion vector has taken rows: they keep their names, so only the log says that they are others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.sources import DeltaTableSource

VECTOR = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 36, "cardinality": 1}


def commit(table: Path, version: int, at: int | None, **vectors: Any) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = [] if at is None else [{"commitInfo": {"timestamp": at, "operation": "UPDATE"}}]
    lines += [{"add": {"path": name} | ({"deletionVector": one} if one else {})} for name, one in vectors.items()]
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize(
    ("moment", "version", "found"),
    [
        (25, 3, {"b": 30}),
        (30, 3, {"b": 30}),
        (31, 3, {}),
        (20, 3, {"a": 20, "b": 30}),
        (0, 3, {"a": 20, "b": 30}),
        (0, 2, {"a": 20, "b": 20}),
        (35, 5, {"c": 35}),  # that commit does not say when it was made
    ],
)
def test_files_that_got_a_vector(tmp_path: Path, moment: int, version: int, found: dict[str, int]) -> None:
    table = tmp_path / "a b"
    commit(table, 1, 10, a=None, b=None)  # the first commit is no longer in the log
    commit(table, 2, 20, a=VECTOR, b=VECTOR)
    commit(table, 3, 30, b=VECTOR, g=None)
    commit(table, 4, None, c=VECTOR)
    commit(table, 5, 40)
    assert DeltaTableSource(table, "n bigint").vectors_since(moment, version) == {
        f"{table}/{name}": at for name, at in found.items()
    }
