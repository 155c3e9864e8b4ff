"""Small tables for Dagster's metadata."""

from __future__ import annotations

from typing import Any

import pytest

from resources import markdown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (True, "yes"), (1234567, "1,234,567"), (1.005, "1.00"), ("a|b\nc", "a\\|b c"), ([1], "[1]")],
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
