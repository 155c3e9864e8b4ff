"""The page of results: whole in one file, and safe whatever the rows hold."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from assets.events import results_page
from assets.events.failed_rows import of_result, reason, table
from assets.events.results_page import Checked, html, write
from pipelines.quality import CheckResult, fail, warn

EVIL = "<script>alert('x')</script><img src=http://elsewhere/x.png>"
CHECKS = [
    Checked("fits", "expect_x", "fail", False, 3, 1, failed_rows=[{"reason": "n is 5000", "line": EVIL, "n": 5000}]),
    Checked("there", "expect_y", "drop", True, 3, 0),
]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes.update(name for name, _ in attrs)


def test_it_loads_nothing_and_runs_nothing() -> None:
    page = html(f"Suite of {EVIL}", {"run": EVIL}, CHECKS)
    tags = Tags()
    tags.feed(page)
    assert tags.seen.isdisjoint({"script", "link", "img", "iframe", "object", "form", "a"})
    assert tags.attributes.isdisjoint({"src", "href", "onload", "onclick", "style"})
    assert not re.search(r"url\(|@import", page)
    assert "default-src 'none'" in page
    assert page.count("&lt;script&gt;") == 4


def test_it_says_what_holds_and_shows_rows_of_what_does_not() -> None:
    page = html("Suite of lines", {"run": "r1"}, CHECKS)
    assert "1 of 2 checks hold" in page
    assert '<span class="bad">does not hold</span>' in page
    assert page.count("some of the rows") == 1
    assert "<th>reason</th><th>line</th><th>n</th>" in page
    assert "<td>5,000</td>" in page


def test_the_newest_pages_stay(tmp_path: Path) -> None:
    folder = tmp_path / "checks" / "lines"
    folder.mkdir(parents=True)
    for day in range(results_page.KEPT):
        (folder / f"202401{day + 1:02d}T000000-0000.html").write_text("")
    written = write(folder, "0123456789ab", "t", {}, CHECKS)
    assert written.name.endswith("-01234567.html")
    left = sorted(file.name for file in folder.iterdir())
    assert len(left) == results_page.KEPT
    assert left[0].startswith("20240102")
    assert left[-1] == written.name


def test_reasons_say_what_is_and_what_was_asked() -> None:
    between = fail("column_values_to_be_between", column="n", min_value=1, max_value=2)
    assert reason(between, {"n": 7, "line": "a"}) == "n is 7; expected values to be between (min_value=1, max_value=2)"
    null = warn("column_values_to_not_be_null", column="line")
    assert reason(null, {"n": 7, "line": None}) == "line is null; expected values to not be null"
    known = warn("column_values_to_be_in_set", column="sku", value_set=[f"sku {n}" for n in range(20_000)])
    assert reason(known, {"sku": "x"}).startswith("sku is \"x\"; expected values to be in set (value_set=['sku 0', ")
    assert len(reason(known, {"sku": "x"})) < 200
    pair = fail("compound_columns_to_be_unique", column_list=["a", "b"])
    assert reason(pair, {"a": 1, "b": "x"}) == 'a is 1 and b is "x"; expected compound columns to be unique'


def test_of_some_expectations_only_the_values_are_known() -> None:
    check = fail("column_values_to_be_between", column="n", max_value=2)
    detail = {"partial_unexpected_list": list(range(3, 30))}
    rows = of_result(check, CheckResult(check.name, check.expectation, "fail", False, detail=detail))
    assert len(rows) == 10
    assert rows[0] == {"reason": "n is 3; expected values to be between (max_value=2)", "n": 3}
    shown = table([{"reason": "r", "list": [1, 2]}, {"reason": "s", "n": 1}])
    assert [record.data for record in shown.records] == [
        {"reason": "r", "list": "[1, 2]", "n": None},
        {"reason": "s", "list": None, "n": 1},
    ]
