"""Limits that a text keeps before any parser reads it: parsers take a nesting for a depth of calls of their own."""

from __future__ import annotations

import logging
import re

# What it warns of (a text that it takes for a command) is refused, and told by the error.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

MOST_TEXT = 20_000
"""Characters of one SQL expression, type or schema."""
DEEPEST_BRACKETS = 50

MOST_DIGITS = 38
"""Of a decimal of Spark's."""

_DECIMAL = re.compile(r"\bdec(?:imal)?\s*\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?\)", re.IGNORECASE)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.DOTALL)


def nested_too_deeply(text: str, opens: str = "([{", closes: str = ")]}") -> bool:
    """Whether the brackets of a text, those in quotes aside, are nested more deeply than is read."""
    depth = 0
    for one in _QUOTED.sub("", text):
        if one in opens:
            depth += 1
            if depth > DEEPEST_BRACKETS:
                return True
        elif one in closes:
            depth = max(0, depth - 1)
    return False


def decimal_problem(text: str) -> str | None:
    """What is wrong with the first decimal type in a text that Spark does not have; None: nothing."""
    for found in _DECIMAL.finditer(_QUOTED.sub("", text)):
        digits, scale = int(found[1]), int(found[2] or 0)
        if not 1 <= digits <= MOST_DIGITS or not 0 <= scale <= digits:
            return f"there is no {found[0]}: a decimal has 1 to {MOST_DIGITS} digits, and no more behind the point than it has"
    return None


def type_problem(text: str) -> str | None:
    """Why the text of a type or a schema is not read at all; None: it can be given to the parser."""
    if len(text) > MOST_TEXT:
        return f"it has {len(text):,} characters; {MOST_TEXT:,} are the most"
    if nested_too_deeply(text, "(<[", ")>]"):
        return f"its types are nested more than {DEEPEST_BRACKETS} deep"
    if "${" in text:
        return "it has ${ in it, which Spark would replace"
    return decimal_problem(text)
