"""Files of which a deletion vector has taken rows: they keep their names, so only the log says that they are others."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipelines.execution.runners import claims
from pipelines.sources import DeltaTableSource, delta
from pipelines.state import delta_log

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


def test_an_older_time_behind_a_vector(tmp_path: Path) -> None:
    """Times are of the clocks of whoever commits."""
    table = tmp_path / "t"
    commit(table, 0, 100, f=None)
    commit(table, 1, 300, f=VECTOR, h=VECTOR)
    commit(table, 2, 150, g=None, h=VECTOR)
    source = DeltaTableSource(table, "n bigint")
    assert source.vectors_since(200, 2) == {f"{table}/f": 300, f"{table}/h": 300}
    assert source.vectors_since(120, 2) == {f"{table}/f": 300, f"{table}/h": 300}


FEATURES = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}


def test_a_table_without_the_feature_is_not_read_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, read = tmp_path / "t", list[int]()
    for n in range(3):
        write_deltalake(table, pa.table({"n": [n]}), mode="append")
    actions = delta_log.actions

    def counted(place: Any, version: int, *kinds: str) -> Any:
        read.append(version)
        return actions(place, version, *kinds)

    monkeypatch.setattr(delta, "actions", counted)
    monkeypatch.setattr(claims, "slice_times", lambda _: {"d1": datetime.fromtimestamp(0, UTC)})
    group: Any = SimpleNamespace(sinks=[SimpleNamespace(table=None)])
    source, claimed = DeltaTableSource(table, "n bigint"), {"d1": frozenset({f"{table}/f"})}
    assert claims._changed_within(group, source, claimed, None) == {}
    assert read == []
    vectors = [
        {"protocol": {**FEATURES, "writerFeatures": ["deletionVectors"]}},
        {"commitInfo": {"timestamp": 1, "operation": "UPDATE"}},
        {
            "add": {"path": "f", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
            | {"deletionVector": VECTOR}
        },
    ]
    (table / "_delta_log" / f"{3:020d}.json").write_text("\n".join(map(json.dumps, vectors)))
    assert claims._changed_within(group, source, claimed, None) == {"d1": [f"{table}/f"]}
    assert read == [3, 2, 1, 0]
    # The stream had begun before.
    assert claims._changed_within(group, source, claimed, 2) == {}
    assert read == [3, 2, 1, 0]
