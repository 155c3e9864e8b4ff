"""Small tables for Dagster's metadata."""

from __future__ import annotations

import html
import random
import re
from typing import Any

import pytest
from markdown_it import MarkdownIt

from assets.events import markdown
from pipelines.printable import plain


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (True, "yes"),
        (1234567, "1,234,567"),
        (1.005, "1.00"),
        ("a|b\nc", "a&#124;b c"),
        ("carrier_delay", "carrier_delay"),
        ([1], "&#91;1&#93;"),
    ],
)
def test_cells(value: Any, shown: str) -> None:
    assert markdown.cell(value) == shown


def test_numbers_are_set_to_the_right() -> None:
    rows = [{"carrier": "AA", "flights": 5}, {"carrier": "UA", "flights": None}]
    assert markdown.table(["carrier", "flights"], rows).splitlines() == [
        "| carrier | flights |",
        "| --- | ---: |",
        "| AA | 5 |",
        "| UA |  |",
    ]


def test_no_rows_are_a_header() -> None:
    assert markdown.table(["a"], []) == "| a |\n| --- |"


HOSTILE = (
    "![x](http://evil.example/a.png)",
    "[click](javascript:alert(1))",
    "[x]: http://evil.example",
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "<http://evil.example>",
    "http://evil.example/?q=1",
    "www.evil.example",
    "someone@evil.example",
    "mailto:someone@evil.example",
    "a | b \\| c \\\\| d",
    "`` ` ``` code ~~gone~~ **bold** __bold__ _x_",
    "&lt;b&gt; &#91;x&#93;(http://evil.example)",
    "first\n\n# heading\r\n\u2028second\x85third",
    "\x1b[31mred\x1b]8;;http://evil.example\x07link",
    "\u202edecreed\u2066",
)


def shown_by_a_page(text: str) -> list[str]:
    """The cells of a rendered table, if there is nothing in it but a table."""
    page = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page, re.DOTALL)
    rest = re.sub(r"</?(table|thead|tbody|tr|th|td)( style=\"text-align:right\")?>", "", page)
    assert "<" not in rest, page
    # What a page would make a link of by itself.
    assert not re.search(r"(?i)https?://|www\.|\w@", html.unescape(rest)), page
    return [html.unescape(cell).replace("\u2060", "") for cell in cells]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_stays_a_text(value: str) -> None:
    for columns, row in ((["a", "b"], {"a": value, "b": "end"}), ([value, "b"], {value: value, "b": "end"})):
        found = shown_by_a_page(markdown.table(columns, [row]))
        assert found == [plain(value), "end"]


def test_drawn_values_stay_texts() -> None:
    drawn = random.Random(14)
    parts = [*HOSTILE, *"!()[]<>|\\`*_~&#:/@. \n\t", "http", "://", "javascript:", "a", "1", "é", "\ud800"]
    for _ in range(1000):
        value = "".join(drawn.choices(parts, k=drawn.randint(1, 12))).strip() or "x"
        found = shown_by_a_page(markdown.table(["a", "b"], [{"a": value, "b": "end"}]))
        assert found[1:] == ["end"], value
        assert found[0].split() == plain(value).split(), value
