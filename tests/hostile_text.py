"""Texts that try to become SQL: what is known to work somewhere, and seeded mixtures of its pieces."""

from __future__ import annotations

import random

from pipelines.state.schema import slice_problem

KNOWN = (
    r"\')) OR reflect('java.lang.System','exit','1') IS NULL --",
    r"\\')) OR true --",
    r"a\'",
    "a\\",
    "\\",
    "\\\\",
    "'",
    "''",
    "' OR '1'='1",
    "'); DROP TABLE state; --",
    '" OR ""="',
    "` OR `_slice` = `_slice",
    "${env:HOME}",
    "${env:PATH:-x}",
    "${spark.app.name}",
    "${system:java.version}",
    "$\\{env:HOME}",
    "$$",
    "{x}",
    "/* comment */ -- ' ",
    "/*+ hint */",
    "%",
    "_",
    "a%27b",
    r"\u0027",
    r"\047 OR 1=1",
    r"\n",
    "\n",
    "\t\r\n",
    "R'a'",
    "X'27'",
    ":name",
    "?",
    ";",
    " ",
    "é'ü\\ß",
    "\u2028'\u2029",
    "\ufeff'",
    "\U0001f600\\'",
    "__HIVE__",
    "null",
    "NaN",
)
_PIECES = (
    "'",
    "''",
    "\\",
    "\\\\",
    '"',
    "`",
    "$",
    "{",
    "}",
    "${env:HOME}",
    "--",
    "/*",
    "*/",
    ";",
    ")",
    "(",
    " OR ",
    "1=1",
    "a",
)
_MORE = (
    "reflect('x','y')",
    "%",
    "_",
    "\n",
    "\t",
    "é",
    "\U0001f600",
    "\\u0027",
    "\\047",
    "R'",
    "X'",
    " IS NULL ",
    ",",
    "=",
    "0",
)


def hostile_texts(count: int, seed: int = 7) -> list[str]:
    """So many different texts, each of which can be a slice."""
    drawn = random.Random(seed)
    found = dict.fromkeys(KNOWN)
    while len(found) < count:
        one = "".join(drawn.choice(_PIECES + _MORE) for _ in range(drawn.randint(1, 9)))
        if slice_problem(one) is None:
            found[one] = None
    return list(found)[:count]
