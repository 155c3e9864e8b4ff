"""The page of guarantees names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_tests_that_the_page_names_are_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", (ROOT / "docs" / "guarantees.md").read_text("utf-8"))
    assert len(named) > 30
    for path, test in named:
        assert (ROOT / path).exists(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text("utf-8"), (path, test)
