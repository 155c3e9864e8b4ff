"""Small tables and texts for Dagster's metadata, which shows markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipelines.printable import plain, printable

# What begins a link, an image, HTML, code or emphasis, or ends a cell. A `_` within a word is none of these.
_MARKUP = re.compile(r"[\\`*~<&|$\[\]{}]|(?<![^\W_])_|_(?![^\W_])")
# Pages make links of bare addresses, even where these were written as entities. A character of no width keeps them apart.
_ADDRESS = re.compile(r"(?i)(?<=:)(?=//)|(?<=www)(?=\.)|(?<=mailto)(?=:)|(?<=xmpp)(?=:)|(?=@)")
_NO_WIDTH = "\u2060"


def escaped(text: str) -> str:
    """Return text that a page shows as it is: nothing of it becomes markup, an image, a link, or a cell of its own."""
    return _ADDRESS.sub(_NO_WIDTH, _MARKUP.sub(lambda match: f"&#{ord(match[0])};", printable(text)))


def cell(value: Any) -> str:
    """Return a value as the text of a cell of a markdown table."""
    return escaped(plain(value))


def table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as a markdown table; numbers to the right."""
    listed = list(rows)
    numeric = [
        bool(listed) and all(isinstance(row.get(name), int | float | None) for row in listed) for name in columns
    ]
    lines = [
        f"| {' | '.join(map(cell, columns))} |",
        f"| {' | '.join('---:' if right else '---' for right in numeric)} |",
    ]
    lines += [f"| {' | '.join(cell(row.get(name)) for name in columns)} |" for row in listed]
    return "\n".join(lines)
