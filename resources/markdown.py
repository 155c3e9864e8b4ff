"""Small tables and texts for Dagster's metadata, which shows markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def cell(value: Any) -> str:
    """A value as the text of a table cell: numbers are cut to what a reader wants, and nothing breaks the table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as a markdown table; numbers are set to the right."""
    listed = list(rows)
    numeric = [
        bool(listed) and all(isinstance(row.get(name), int | float | None) for row in listed) for name in columns
    ]
    lines = [
        f"| {' | '.join(columns)} |",
        f"| {' | '.join('---:' if right else '---' for right in numeric)} |",
    ]
    lines += [f"| {' | '.join(cell(row.get(name)) for name in columns)} |" for row in listed]
    return "\n".join(lines)


def code(text: str, language: str) -> str:
    """A fenced block of code."""
    return f"```{language}\n{text.rstrip()}\n```"
