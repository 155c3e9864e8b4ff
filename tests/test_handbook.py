"""The operator's handbook has an entry for every error that a user can meet, and for none that there is not."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from pipelines.errors import TrideltaError

PAGE = Path(__file__).parent.parent / "docs" / "handbook.md"
MODULES = ("pipelines.errors", "pipelines.nimbus.errors", "pipelines.maintenance.errors")


def entries() -> dict[str, str]:
    """The text of each entry by its heading."""
    parts = re.split(r"^###? (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {heading: text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def errors() -> list[str]:
    found = []
    for name in MODULES:
        module = importlib.import_module(name)
        found += [
            name
            for name, one in vars(module).items()
            if inspect.isclass(one) and issubclass(one, TrideltaError) and one.__module__ == module.__name__
        ]
    return [name for name in found if not name.startswith("_")]


@pytest.mark.parametrize("error", errors())
def test_each_error_has_an_entry(error: str) -> None:
    assert error in entries(), f"docs/handbook.md has no entry `### {error}`: what it means, what to do"
    assert len(entries()[error].split()) >= 8


def test_each_entry_is_of_an_error_that_there_is() -> None:
    named = {heading for heading in entries() if re.fullmatch(r"\w+Error", heading)}
    assert named == set(errors())


def test_alerts_have_entries() -> None:
    # The sentences of assets.liveness, by what they begin with.
    source = (PAGE.parent.parent / "assets" / "liveness.py").read_text(encoding="utf-8")
    for sentence in ("its worker has not beaten", "it has something to read and no batch"):
        assert sentence in source
        assert sentence in entries()
