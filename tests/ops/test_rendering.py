"""Tables on the screen: no word is broken; too many columns come one below another; into a file a row is a line."""

from __future__ import annotations

import pytest
from rich.console import Console

from ops.cli import rendering

WORDS = {"flow": ["flow", "orders"], "why": ["why", "a sentence of several words"]}
QUERY = {"query": "departure_weather", "state": "running", "where": "host:6900", "note": "", "rows": 1234}


def test_a_table_that_fits_is_as_wide_as_its_texts() -> None:
    assert rendering.column_widths(WORDS, None) == {"flow": 6, "why": 27}
    assert rendering.column_widths(WORDS, 40) == {"flow": 6, "why": 27}


def test_sentences_are_broken_and_words_are_not() -> None:
    assert rendering.column_widths(WORDS, 30) == {"flow": 6, "why": 17}
    assert rendering.column_widths(WORDS, 21) == {"flow": 6, "why": 8}
    assert rendering.column_widths(WORDS, 20) is None


def test_too_many_columns_come_one_below_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(rendering, "console", Console(highlight=False))
    rendering.rows("Queries", [QUERY, {"query": "[b]rows[/b]"}])
    lines = capsys.readouterr().out.splitlines()
    assert "│ query │ departure_weather │" in lines
    assert "│ rows  │ 1,234             │" in lines
    assert "│ query │ [b]rows[/b]       │" in lines
    assert not any(line.startswith("│ note") for line in lines)


def test_into_a_file_a_row_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(rendering, "console", Console(highlight=False))
    long = "a sentence of several words " * 5
    rendering.rows("Queries", [QUERY | {"note": long}])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "departure_weather" in line]
    assert long in line
