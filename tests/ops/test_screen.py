"""Text from data does not steer the terminal."""

from __future__ import annotations

import io
import logging

import pytest

from ops.cli import deployed_logs, rendering
from ops.cli.rendering import PlainLines, Screen
from pipelines.printable import plain, printable

HOSTILE = "a\x1b]52;c;ZXZpbA==\x07b\x9b2Jc\u202ed\rE\x08\ud800"
WRITTEN = "a\\x1b]52;c;ZXZpbA==\\x07b\\x9b2Jc\\u202ed\\x0dE\\x08\\ud800"


def test_what_steers_is_written_out() -> None:
    assert printable(HOSTILE) == WRITTEN
    assert printable("zwei\tWörter\nin 日本") == "zwei\tWörter\nin 日本"


@pytest.mark.parametrize("coloured", [True, False])
def test_only_rich_writes_control_characters(coloured: bool) -> None:
    out = io.StringIO()
    console = Screen(file=out, force_terminal=coloured, width=300, color_system="standard" if coloured else None)
    console.print(HOSTILE, markup=False, soft_wrap=True, style="red")
    for steering in ("\x1b]", "\x07", "\x9b", "\u202e", "\ud800"):
        assert steering not in out.getvalue()
    assert ("\x1b[31m" in out.getvalue()) == coloured


def test_rows_of_data(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(rendering, "console", Screen(file=out, width=200))
    rendering.rows(HOSTILE, [{HOSTILE: HOSTILE, "[red]b[/red]": "[red]c[/red]"}])
    assert "[red]b[/red]" in out.getvalue()
    assert "[red]c[/red]" in out.getvalue()
    assert out.getvalue() == printable(out.getvalue())


@pytest.mark.parametrize("last", ["[/x], 3 rows", "[link=http://evil.example]2013-01-01[/link], 3 rows"])
def test_what_a_bar_says_last_is_no_markup(monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    out = io.StringIO()
    monkeypatch.setattr(rendering, "Screen", lambda **_: Screen(file=out, force_terminal=True, width=200))
    with rendering.bar("f: slices", 1) as advance:
        advance(last)
    assert last in out.getvalue()
    assert "\x1b]8;" not in out.getvalue()


def test_lines_of_logs() -> None:
    line = {"timestamp": "2026-11-21T23:02:20", "event": HOSTILE, "exception": f"first\n{HOSTILE}", "x": HOSTILE}
    assert deployed_logs.text(line) == printable(deployed_logs.text(line))
    record = logging.LogRecord("x", logging.INFO, "x", 1, HOSTILE, (), None)
    assert PlainLines("%(message)s").format(record) == WRITTEN


def test_small_numbers_keep_their_digits() -> None:
    shown = {0.004: "0.004", 0.001: "0.001", -0.00042: "-0.00042", 0.05: "0.05", 0.0: "0.00", 1e-9: "1e-09"}
    shown |= {0.5: "0.50", 12.345: "12.35", 1234.5: "1,234.50", float("nan"): "nan", float("inf"): "inf"}
    assert {value: plain(value) for value in shown} == shown
