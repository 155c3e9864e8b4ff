"""The built-in functions and filters of Trident (rules 1.3), over Spark columns and as plain Python."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from pipelines import spark_functions as F
from pipelines.errors import FunctionError
from pipelines.graph.fields import as_names
from pipelines.trident.functions import ColumnFunction, Resolvable, RowFunction, as_predicate


class Split(ColumnFunction):
    """Splits a string on single spaces into one row a word; empty words are left out (Trident rules 1.3, testing)."""

    def __call__(self, *columns: Any) -> Any:
        # array_remove and not a filter: Spark interprets a lambda, and with it the whole stage around it.
        return F.explode(F.array_remove(F.split(columns[0], " "), ""))

    def rows(self, sentence: str | None) -> Iterator[str]:
        """Yield the same over a plain string."""
        yield from (word for word in (sentence or "").split(" ") if word)


class Equals(ColumnFunction):
    """Keeps the tuples whose input fields are all equal; null equals null."""

    def __call__(self, *columns: Any) -> Any:
        condition = F.lit(True)
        for column, next_one in pairwise(columns):
            condition = condition & column.eqNullSafe(next_one)
        return condition

    def keep(self, *values: Any) -> bool:
        """Return the same over plain values; not a number equals itself, as in Spark."""
        return all(a == b or (a != a and b != b) for a, b in pairwise(values))


class FilterNull(ColumnFunction):
    """Keeps the tuples in whose input fields there is no null."""

    def __call__(self, *columns: Any) -> Any:
        condition = F.lit(True)
        for column in columns:
            condition = condition & column.isNotNull()
        return condition

    def keep(self, *values: Any) -> bool:
        """Return the same over plain values."""
        return all(value is not None for value in values)


class Not(Resolvable):
    """Keeps what another filter does not keep (Trident's Negate): SQL text, a callable of Columns, a RowFunction ...

    Null counts as false, so what is null for the other filter is kept by this one.
    """

    def __init__(self, predicate: Any) -> None:
        self.predicate = predicate

    def resolve(self, operation: str) -> ColumnFunction | RowFunction | str:
        """Return the negated predicate, of the kind of the given one."""
        inner = as_predicate(operation, self.predicate)
        if isinstance(inner, str):
            return f"not coalesce(({inner}), false)"
        if isinstance(inner, RowFunction):
            call = inner.call
            return RowFunction(lambda *values: call(*values) is not True, inner.types)
        return _NotColumns(inner)

    def __str__(self) -> str:
        return f"not {self.predicate}"


class _NotColumns(ColumnFunction):
    """A negated filter over columns, plain as well if the other one is."""

    def __init__(self, inner: ColumnFunction) -> None:
        super().__init__(name=f"not {inner}")
        self._inner = inner
        plain = inner.keep
        if plain is not None:
            self.keep = lambda *values: not plain(*values)

    def __call__(self, *columns: Any) -> Any:
        return ~F.coalesce(self._inner(*columns), F.lit(False))


class Debug:
    """Logs every tuple and passes it on: `stream.peek(Debug("counts"))`, or `stream.each(fields, Debug())`.

    The line goes to the logger `tridelta.debug` of the worker that holds the tuple: with a real Spark, its stderr.

    Args:
        name: stands before the values.
        level: of the log lines. Workers show warnings and above unless they are told otherwise.
    """

    def __init__(self, name: str = "DEBUG", level: int = logging.WARNING) -> None:
        self.name, self.level = name, level
        self._fields: tuple[str, ...] | None = None

    def over(self, fields: Any) -> Debug:
        """Return the same, showing only these fields."""
        twin = Debug(self.name, self.level)
        twin._fields = as_names(fields)
        return twin

    def __call__(self, row: Mapping[str, Any]) -> None:
        if not isinstance(row, Mapping):
            raise FunctionError("Debug", "is a consumer of tuples: use it with peek, or with each(fields, Debug())")
        shown = row if self._fields is None else {name: row[name] for name in self._fields}
        logging.getLogger("tridelta.debug").log(self.level, "%s: %s", self.name, dict(shown))

    def __str__(self) -> str:
        return self.name
