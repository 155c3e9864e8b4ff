"""Names and texts in each engine's SQL: the only place where something from outside becomes SQL text.

Spark and DataFusion (the engine of delta-rs) read the same quoted text differently: to Spark a backslash escapes what
follows, and `${...}` anywhere in a statement is replaced by a setting, a variable of the environment or a property of
the JVM before the statement is parsed. A condition therefore names the engine that it is for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """The SQL of an engine.

    Attributes:
        name: a column's name.
        text: a text as a literal.
    """

    name: Callable[[str], str]
    text: Callable[[str], str]

    def texts(self, some: Iterable[str]) -> str:
        """Return texts as the items of an `IN (...)`."""
        return ", ".join(self.text(text) for text in some)


# A run of backslashes, one dollar sign, or what needs no care but for its quotes.
_PIECES = re.compile(r"\\+|\$|[^\\$]+")


def _spark_text(text: str) -> str:
    """Return a text as a literal of Spark's.

    Spark joins literals that stand side by side, so that backslashes stand in a raw literal, which knows no escapes whatever
    the session is set to, and `$` stands alone, so that nothing is `${...}`. A quote is doubled.
    """
    pieces = _PIECES.findall(text) or [""]
    return " ".join(f"R'{part}'" if part.startswith("\\") else "'" + part.replace("'", "''") + "'" for part in pieces)


def _doubled(quote: str) -> Callable[[str], str]:
    return lambda text: quote + text.replace(quote, quote * 2) + quote


DATAFUSION = Dialect(name=_doubled('"'), text=_doubled("'"))
SPARK = Dialect(name=_doubled("`"), text=_spark_text)
