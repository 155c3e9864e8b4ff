"""Which versions of states an answer names, where a flow commits while it is asked. No Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assets.queries import StoredAnswer, ask
from pipelines.catalog import QueryAsset
from pipelines.state.kinds import LOG, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.table import StateTable
from tests.state.small_kinds import SmallTable


@pytest.fixture
def state(tmp_path: Path) -> SmallTable:
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    state.commit(0, ("a", 1))
    return state


def asked(root: Path, question: QueryAsset, query: Any = None) -> StoredAnswer:
    lake: Any = SimpleNamespace(lake=lambda: Lake(root), runtime=lambda _: SimpleNamespace(query=query))
    view: Any = SimpleNamespace(topology=None)
    return ask(view, question, lake, None)  # type: ignore[arg-type]


def test_a_state_is_read_at_the_version_that_is_named(
    tmp_path: Path, state: SmallTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan, before = StateTable.scan, state.table.version()

    def later(self: StateTable, *at: Any, **named: Any) -> Any:
        state.commit(1, ("a", 1))
        return scan(self, *at, **named)

    monkeypatch.setattr(StateTable, "scan", later)
    answer = asked(tmp_path, QueryAsset("top", "", reads=("counts",)))
    assert answer == StoredAnswer([{"word": "a", "n": 1}], {"counts": before})


@pytest.mark.parametrize("commits", [False, True])
def test_a_query_says_whether_its_versions_are_exact(tmp_path: Path, state: SmallTable, commits: bool) -> None:
    before = state.table.version()

    def query(*_: Any) -> list[dict[str, Any]]:
        if commits:
            state.commit(1, ("a", 1))
        return []

    answer = asked(tmp_path, QueryAsset("top", "", reads=("counts",), query="q"), query)
    assert answer == StoredAnswer([], {"counts": before}, exact=not commits)
