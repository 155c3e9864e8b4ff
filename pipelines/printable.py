"""Text from data as a terminal may show it: what would steer the terminal, or turn the order of a line, is written out."""

from __future__ import annotations

import re
from typing import Any

# C0 and C1 without tab and line break, what sets the direction of text, other line breaks, halves of surrogate pairs,
# and two codes that are no characters, which XML may not have.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def printable(text: str) -> str:
    r"""Escape the characters that cannot be printed: an escape becomes `\x1b`. Line breaks and tabs stay."""
    return _STEERING.sub(_written, text)


def plain(value: Any) -> str:
    """Return a value as a line of text: short numbers, and nothing that breaks a table or steers a terminal.

    Of small numbers three digits that count: two behind the point would show nothing of them.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}" if not 0 < abs(value) < 0.1 or round(value, 2) == value else f"{value:.3g}"
    return printable(re.sub(r"[\t\r\n]", " ", str(value)))


def _written(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
