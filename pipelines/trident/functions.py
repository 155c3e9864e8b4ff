"""The three kinds of functions that a topology takes: over Spark columns, over rows, over Arrow arrays;
and the built-in ones (rules 1.3)."""

from __future__ import annotations

import copy
import datetime
import inspect
import logging
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import wraps
from itertools import pairwise
from typing import Any

from pipelines import spark_functions as F
from pipelines.errors import FunctionError
from pipelines.graph.fields import as_names, parse_ddl
from pipelines.graph.types import check_said

_TYPES = {int: "bigint", float: "double", str: "string", bool: "boolean", bytes: "binary"}

Declared = Mapping[str, Sequence[str]]
"""A function's own word on its lineage: the inputs that each output comes from; of outputs left out: from all."""


class ColumnFunction:
    """A function over Spark columns: called once per batch with one Column per input field, returns Columns.

    Returns one Column for one output field, a tuple of Columns for several, or a generator Column (`F.explode(...)`,
    `F.inline(...)`) for any number of rows. Subclasses may also give `rows(*values)`, the same function over plain
    values, yielding one value or tuple a row, or as a filter `keep(*values)`, the same predicate over plain values: the
    reference engine and queries that need no Spark then use these.

    Raises:
        FunctionError: if there is neither a callable nor a subclass's `__call__`.
    """

    lineage: Declared | None = None
    """Which inputs each output comes from, where not from all of them."""
    types: tuple[str, ...] = ()
    """The Spark SQL types of the outputs, where they are known."""
    said: tuple[str, ...] = ()
    """The types of the outputs as the user said them. They must be those that Spark finds."""
    compares = False
    """Whether a filter compares its fields with one another, so that they must hold values of one sort."""

    def __init__(
        self, call: Callable[..., Any] | None = None, name: str | None = None, *, lineage: Declared | None = None
    ) -> None:
        if call is None and type(self).__call__ is ColumnFunction.__call__ and not (self.rows or self.keep):
            raise self._without_call()
        self._call = call
        self._name = name or str(getattr(call, "__name__", type(self).__name__))
        if declared := lineage or getattr(call, "lineage", None):
            self.lineage = declared

    def __call__(self, *columns: Any) -> Any:
        if self._call is None:
            raise self._without_call()
        return self._call(*columns)

    def _without_call(self) -> FunctionError:
        kind = type(self).__name__
        return FunctionError(kind, "has no __call__", hint=f"define it in the class, or give a callable: {kind}(call)")

    rows: Callable[..., Any] | None = None
    keep: Callable[..., bool] | None = None

    def __str__(self) -> str:
        return self._name if self._name != "<lambda>" else "function"

    def __repr__(self) -> str:
        return f"{self}()"


@dataclass(frozen=True)
class _Typed:
    """A Python function with the types and the lineage of its outputs."""

    call: Callable[..., Any]
    types: tuple[str, ...] = ()
    lineage: Declared | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return getattr(self.call, "__name__", "function")


class RowFunction(_Typed):
    """A Python generator, called a row with the input values; what it yields becomes rows (a value, or a tuple).

    Runs in Spark's Python workers: use it where columns cannot say it.

    Args:
        call: the generator function; for `filter` a predicate.
        types: the Spark SQL types of the output fields in order, e.g. `("bigint",)`.
        lineage: which inputs each output comes from, where not from all of them: `{"total": ["price", "tax"]}`.
    """


class ArrowFunction(_Typed):
    """A function over Arrow arrays: called a batch with one `pyarrow.Array` an input field.

    Returns one array (or a tuple of arrays, one an output field) of the same length.

    Args:
        call: the function.
        types: the Spark SQL types of the output fields in order.
        lineage: as of a `RowFunction`.
    """


def row_function(
    types: str | Sequence[str], *, lineage: Declared | None = None
) -> Callable[[Callable[..., Any]], RowFunction]:
    """Make a Python generator a row function: a decorator, e.g. `@row_function("bigint")`."""
    return lambda call: RowFunction(call, (types,) if isinstance(types, str) else tuple(types), lineage)


def arrow_function(
    types: str | Sequence[str], *, lineage: Declared | None = None
) -> Callable[[Callable[..., Any]], ArrowFunction]:
    """Make a function over `pyarrow.Array`s an Arrow function: a decorator, e.g. `@arrow_function("double")`."""
    return lambda call: ArrowFunction(call, (types,) if isinstance(types, str) else tuple(types), lineage)


Function = ColumnFunction | RowFunction | ArrowFunction


def as_function(operation: str, given: Any, outputs: str | Sequence[str] | None) -> tuple[Function, tuple[str, ...]]:
    """Sort a user's function into its kind and split the output fields from their types.

    A plain callable is a column function; a generator function is a row function, whose types come from the outputs
    written as a schema (`"d bigint"`) or from its annotation (`-> Iterator[int]`).

    Returns:
        The function and the names of the output fields.

    Raises:
        FunctionError: if it is not callable, or a Python function has no types.
    """
    names, types = output_schema(outputs)
    if isinstance(given, RowFunction | ArrowFunction):
        kinds = given.types or types
        if len(kinds) != len(names) and names:
            raise FunctionError(operation, f"{given} needs one type an output field; got {kinds} for {names}")
        check_said(f"{operation} {given}", dict(zip(names, types, strict=False)), dict(zip(names, kinds, strict=False)))
        return replace(given, types=kinds), names
    if isinstance(given, ColumnFunction):
        return _said(operation, given, names, types), names
    if not callable(given):
        raise FunctionError(
            operation, f"{given!r} is not a function", hint="give a callable of Columns, or a Python generator"
        )
    if inspect.isgeneratorfunction(given):
        types = types or _annotated(given)
        if not types or (names and len(types) != len(names)):
            raise FunctionError(
                operation,
                f"the Python generator {given.__name__} does not say the types of {', '.join(names) or 'its rows'}",
                hint=f'write the outputs as a schema ("{(names or ("x",))[0]} bigint") or use @row_function("bigint")',
            )
        return RowFunction(given, types, getattr(given, "lineage", None)), names
    return _said(operation, ColumnFunction(given), names, types), names


def _said(operation: str, function: ColumnFunction, names: tuple[str, ...], types: tuple[str, ...]) -> ColumnFunction:
    """Return a function of columns that knows what was said of its outputs."""
    check_said(
        f"{operation} {function}", dict(zip(names, types, strict=False)), dict(zip(names, function.types, strict=False))
    )
    if not types:
        return function
    twin = copy.copy(function)
    twin.said = types
    return twin


class Resolvable(ABC):
    """A filter that stands for another predicate, which depends on what it is made of."""

    @abstractmethod
    def resolve(self, operation: str) -> ColumnFunction | RowFunction | str:
        """Return the predicate that it stands for; `operation` is for messages."""


def as_predicate(operation: str, given: Any) -> ColumnFunction | RowFunction | str:
    """Return a filter's predicate: SQL text, a callable of Columns, or a `RowFunction` over plain values."""
    if isinstance(given, Resolvable):
        return given.resolve(operation)
    if isinstance(given, RowFunction) and inspect.isgeneratorfunction(given.call):
        raise FunctionError(
            operation,
            f"{given} is a generator, and no filter",
            hint="return the value that says whether to keep the tuple",
        )
    if isinstance(given, str | ColumnFunction | RowFunction):
        return given
    if callable(given) and not inspect.isgeneratorfunction(given):
        return ColumnFunction(given)
    raise FunctionError(
        operation, f"{given!r} is not a filter", hint="give SQL text, a callable of Columns or a RowFunction"
    )


def output_schema(outputs: str | Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names and the types of outputs: `"d"`, `["d", "e"]` have no types, `"d bigint, e string"` has."""
    if outputs is None:
        return (), ()
    items = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    if any(" " in item.strip() for item in items):
        columns = [column for item in items for column in parse_ddl(item)]
        return tuple(name for name, _ in columns), tuple(kind for _, kind in columns)
    return items, ()


def _annotated(call: Callable[..., Any]) -> tuple[str, ...]:
    """Return types from `-> Iterator[int]` or `-> Iterator[tuple[int, str]]`."""
    try:
        inner = typing.get_args(typing.get_type_hints(call).get("return"))
    except NameError:
        return ()
    if not inner:
        return ()
    parts = typing.get_args(inner[0]) if typing.get_origin(inner[0]) is tuple else inner[:1]
    types = tuple(_TYPES.get(part, "") for part in parts)
    return types if all(types) else ()


class Split(ColumnFunction):
    """Splits a string on single spaces into one row a word; empty words are left out (Trident rules 1.3, testing)."""

    types = ("string",)

    def __call__(self, *columns: Any) -> Any:
        # array_remove and not a filter: Spark interprets a lambda, and with it the whole stage around it.
        return F.explode(F.array_remove(F.split(columns[0], " "), ""))

    def rows(self, sentence: Any) -> Iterator[str]:
        """Yield the same over a plain string, or what Spark makes one of.

        Raises:
            FunctionError: for a value whose text only Spark knows.
        """
        yield from (word for word in _text(sentence).split(" ") if word)


def _text(value: Any) -> str:
    """Return a value as Spark casts it to a string; null as an empty one."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime.datetime):
        return str(value).rstrip("0") if value.microsecond else str(value)
    if isinstance(value, int | datetime.date):
        return str(value)
    raise FunctionError("Split", f"takes texts; got {value!r}", hint="cast it to a string before it")


class Equals(ColumnFunction):
    """Keeps the tuples whose input fields are all equal; null equals null."""

    compares = True

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

            # With the signature of the other one, which says whether it wants the empty tuple.
            @wraps(call)
            def negated(*values: Any) -> bool:
                return not call(*values)

            return RowFunction(negated, inner.types)
        return _NotColumns(inner)

    def __str__(self) -> str:
        return f"not {self.predicate}"


class _NotColumns(ColumnFunction):
    """A negated filter over columns, plain as well if the other one is."""

    def __init__(self, inner: ColumnFunction) -> None:
        super().__init__(name=f"not {inner}")
        self._inner, self.compares = inner, inner.compares
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
        level: of the log lines. Workers show warnings and above unless they are configured otherwise.
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
