"""The built-in functions of Trident, all over Spark columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.trident.functions import ColumnFunction


class Split(ColumnFunction):
    """Splits a string on single spaces into one row a word; empty words are left out (Trident rules 1.3, testing)."""

    def __call__(self, *columns: Any) -> Any:
        from pyspark.sql import functions as F

        # array_remove and not a filter: Spark interprets a lambda, and with it the whole stage around it.
        return F.explode(F.array_remove(F.split(columns[0], " "), ""))

    def rows(self, sentence: str | None) -> Iterator[str]:
        """The same over a plain string."""
        yield from (word for word in (sentence or "").split(" ") if word)


class QueryFunction:
    """Reads a state in `state_query`: one row an input tuple, its outputs null where the state holds nothing."""

    def __str__(self) -> str:
        return type(self).__name__


class MapGet(QueryFunction):
    """The value at a key: the input fields are matched, in order, with the state's key fields (Trident's MapGet)."""


class SnapshotGet(QueryFunction):
    """The one value of a state without keys (Trident's SnapshotGet)."""
