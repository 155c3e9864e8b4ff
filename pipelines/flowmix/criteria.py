"""Criteria: which events pass a filter or take a path. Data, with one defined answer for every event (Flowmix rules 6).

Four kinds: the typed set (`eq`, `gt`, ..., Python and Spark alike), SQL text, a callable of Columns, and a Python predicate
over the event (`python`). Pyspark is imported only where a Column is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import inf
from typing import TYPE_CHECKING, Any

from pipelines import spark_functions as F
from pipelines.ddl import MOST_DIGITS
from pipelines.errors import FunctionError
from pipelines.flowmix.values import as_double, compared, of_type
from pipelines.graph.expressions import spark_sql
from pipelines.graph.plain_values import in_utc

if TYPE_CHECKING:
    from pyspark.sql import Column

    from pipelines.windows.event import Event

Types = Mapping[str, str | None]


class Criteria(ABC):
    """A condition over one event; what cannot be answered counts as false."""

    plain: bool = True
    """Whether `matches` can answer: without Spark."""
    columnar: bool = True
    """Whether `column` can answer: without Python."""

    @property
    @abstractmethod
    def fields(self) -> tuple[str, ...]:
        """Return the fields that it reads, as far as it says them."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the SQL texts that it holds."""
        return ()

    @abstractmethod
    def matches(self, event: Event) -> bool:
        """Return whether the event passes."""

    @abstractmethod
    def column(self, types: Types) -> Column:
        """Return the same as a Spark Column, never null.

        Args:
            types: the Spark SQL types of the frame's fields; a field that is not there is absent, one whose type is None is
                taken to suit.
        """


@dataclass(frozen=True)
class Leaf(Criteria):
    """A condition on one field: `op` is the name of what makes it (`eq`, `has`, `range_`), `values` what it compares with.

    If the field has several values, one that fits is enough. An absent field fits `has_not` alone. Numbers compare as numbers,
    whatever their types; values of different kinds are neither equal nor before or after one another.
    """

    op: str
    field: str
    values: tuple[Any, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.field,)

    def matches(self, event: Event) -> bool:
        values = event.values_of(self.field)
        if self.op in ("has", "has_not"):
            return bool(values) == (self.op == "has")
        return any(self._holds(value) for value in values if value is not None)

    def _holds(self, value: Any) -> bool:
        results = [compared(value, wanted) for wanted in self.values]
        if self.op == "in_":
            return 0 in results
        if self.op == "range_":
            return results[0] in (0, 1) and results[1] in (-1, 0)
        if self.op == "not_eq":
            return results[0] != 0
        return results[0] in _TRUE_FOR[self.op]

    def column(self, types: Types) -> Column:
        there = F.col(f"`{self.field}`") if self.field in types else None
        kind = types.get(self.field)
        item = kind[6:-1] if kind and kind.startswith("array<") else None
        if self.op in ("has", "has_not"):
            some = F.lit(False) if there is None else (F.size(there) > 0 if item else there.isNotNull())
            return F.coalesce(some, F.lit(False)) == F.lit(self.op == "has")
        if there is None:
            return F.lit(False)
        held = F.exists(there, lambda element: self._test(element, item)) if item else self._test(there, kind)
        return F.coalesce(held, F.lit(False))

    def _test(self, value: Column, kind: str | None) -> Column:
        from functools import reduce

        suited = [F.lit(_as_literal(wanted, kind)) for wanted in self.values if of_type(wanted, kind)]
        present = value.isNotNull()
        if self.op == "in_":
            return reduce(lambda column, other: column | other, (value == wanted for wanted in suited), F.lit(False))
        if len(suited) < len(self.values):
            return present if self.op == "not_eq" else F.lit(False)
        # To Spark all integers are below a decimal that is beyond their type, also those that are null.
        if self.op == "range_":
            return present & (value >= suited[0]) & (value <= suited[1])
        return present & _SPARK[self.op](value, suited[0])

    def __str__(self) -> str:
        shown = ", ".join(repr(value) for value in self.values)
        return f"{self.op}({self.field}{', ' if shown else ''}{shown})"


def _as_literal(wanted: Any, kind: str | None) -> Any:
    """Return a value as Spark's literal compares with a column as `compared` does.

    A time without zone is UTC, not of the host's own time zone. Beside a column of floats an int would be cut to 32 bits, and
    beyond a bigint it would be no literal at all: then it is a decimal, or past all decimals infinite.
    """
    if (kind or "").lower() in ("float", "double") and isinstance(wanted, int | Decimal):
        return as_double(wanted)
    if isinstance(wanted, int) and not -(2**63) <= wanted < 2**63:
        if abs(wanted) < 10**MOST_DIGITS:
            return Decimal(wanted)
        return inf if wanted > 0 else -inf
    return in_utc(wanted)


_TRUE_FOR = {"eq": (0,), "gt": (1,), "gte": (0, 1), "lt": (-1,), "lte": (-1, 0)}
_SPARK: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda value, wanted: value == wanted,
    "not_eq": lambda value, wanted: value != wanted,
    "gt": lambda value, wanted: value > wanted,
    "gte": lambda value, wanted: value >= wanted,
    "lt": lambda value, wanted: value < wanted,
    "lte": lambda value, wanted: value <= wanted,
}


@dataclass(frozen=True)
class Combined(Criteria):
    """`and_`, `or_` or `not_` of other criteria. `and_` of none is true, `or_` of none false."""

    op: str
    parts: tuple[Criteria, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.parts for name in part.fields))

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(text for part in self.parts for text in part.texts)

    @property
    def plain(self) -> bool:  # type: ignore[override]
        return all(part.plain for part in self.parts)

    @property
    def columnar(self) -> bool:  # type: ignore[override]
        return all(part.columnar for part in self.parts)

    def matches(self, event: Event) -> bool:
        return self.combine([part.matches(event) for part in self.parts])

    def combine(self, answers: list[bool]) -> bool:
        """Compute the answer from those of its parts."""
        if self.op == "not_":
            return not answers[0]
        return all(answers) if self.op == "and_" else any(answers)

    def column(self, types: Types) -> Column:
        return self.joined([part.column(types) for part in self.parts])

    def joined(self, columns: list[Column]) -> Column:
        """Build the answer from the columns of its parts."""
        from functools import reduce

        if self.op == "not_":
            return ~columns[0]
        if self.op == "and_":
            return reduce(lambda column, other: column & other, columns, F.lit(True))
        return reduce(lambda column, other: column | other, columns, F.lit(False))

    def __str__(self) -> str:
        return f"{self.op}({', '.join(str(part) for part in self.parts)})"


@dataclass(frozen=True)
class OfSpark(Criteria):
    """A condition that only Spark evaluates; null counts as false. `given` is SQL text or a callable of Columns, one for each
    of `named`.
    """

    given: str | Callable[..., Any]
    named: tuple[str, ...]
    plain = False

    @property
    def fields(self) -> tuple[str, ...]:
        return self.named

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.given,) if isinstance(self.given, str) else ()

    def matches(self, event: Event) -> bool:
        raise FunctionError(f"criteria {self}", "it is evaluated by Spark: use column(types)")

    def column(self, types: Types) -> Column:
        if isinstance(self.given, str):
            held = F.expr(spark_sql("criteria", self.given))
        else:
            held = self.given(*(F.col(f"`{field}`") for field in self.named))
        return F.coalesce(held, F.lit(False))

    def __str__(self) -> str:
        return self.given if isinstance(self.given, str) else _name(self.given, "function")


@dataclass(frozen=True)
class Python(Criteria):
    """A Python predicate over the event."""

    call: Callable[[Event], object]
    columnar = False

    @property
    def fields(self) -> tuple[str, ...]:
        return ()

    def matches(self, event: Event) -> bool:
        return bool(self.call(event))

    def column(self, types: Types) -> Column:
        raise FunctionError(f"criteria {self}", "a Python predicate has no Column: use matches(event)")

    def __call__(self, event: Event) -> bool:
        return self.matches(event)

    def __str__(self) -> str:
        return _name(self.call, "python")


def _name(call: Callable[..., Any], of_lambda: str) -> str:
    name = str(getattr(call, "__name__", type(call).__name__))
    return of_lambda if name == "<lambda>" else name
