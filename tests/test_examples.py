"""The examples run, and their answers are right."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_example_is_tested() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {
        "gate_and_backfill",
        "join_streams",
        "reach",
        "state_updater",
        "word_count",
    }


@pytest.mark.usefixtures("spark")
def test_word_count(tmp_path: Path) -> None:
    assert load("word_count").main(str(tmp_path)) == [{"sum": 4}]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_gate_and_backfill(tmp_path: Path) -> None:
    assert load("gate_and_backfill").main(str(tmp_path)) == [{"shop": "a", "sales": 2, "sum_n": 8}]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_join_streams(tmp_path: Path) -> None:
    assert load("join_streams").main(str(tmp_path)) == [
        {"method": None, "orders": 1, "total": 9},
        {"method": "card", "orders": 1, "total": 3},
        {"method": "cash", "orders": 1, "total": 4},
    ]


@pytest.mark.usefixtures("spark")
def test_reach(tmp_path: Path) -> None:
    answer = load("reach").main(str(tmp_path))
    assert answer == {"foo.com/blog/1": 16, "engineering.twitter.com/blog/5": 14, "nobody.com": 0}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_state_updater(tmp_path: Path) -> None:
    assert load("state_updater").main(str(tmp_path)) == [
        {"share": "acme", "before": 104.0, "now": 120.0},
        {"share": "globex", "before": 50.0, "now": 30.0},
    ]
