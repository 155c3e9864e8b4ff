"""The pictures of the page of operators are what the reference engine draws now, and the page shows each of them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.draw_windows import FOLDER, PICTURES

PAGE = FOLDER.parent / "flow-operators.md"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_a_run_draws_now(name: str) -> None:
    drawn = PICTURES[name]()
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawn, "run: python -m docs.draw_windows"
    ElementTree.fromstring(drawn)


def test_the_folder_holds_these_pictures_and_the_pages_show_them() -> None:
    there = {path.stem for path in FOLDER.glob("*.svg")}
    assert there == set(PICTURES)
    texts = [page.read_text(encoding="utf-8") for page in Path(FOLDER.parent).glob("*.md")]
    assert {name for text in texts for name in re.findall(r"\(pictures/([\w-]+)\.svg\)", text)} == there
    assert "pictures/" in PAGE.read_text(encoding="utf-8")
