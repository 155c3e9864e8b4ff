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
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {"word_count", "gate_and_backfill"}


@pytest.mark.usefixtures("spark")
def test_word_count(tmp_path: Path) -> None:
    assert load("word_count").main(str(tmp_path)) == [{"sum": 4}]


@pytest.mark.usefixtures("spark")
def test_gate_and_backfill(tmp_path: Path) -> None:
    assert load("gate_and_backfill").main(str(tmp_path)) == [{"shop": "a", "sales": 2, "sum_n": 8}]
