"""The three kinds of functions that a topology takes: over Spark columns, over rows, over Arrow arrays."""

from __future__ import annotations

import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.errors import FunctionError
from pipelines.graph.fields import parse_ddl

_TYPES = {int: "bigint", float: "double", str: "string", bool: "boolean", bytes: "binary"}

Declared = Mapping[str, Sequence[str]]
"""A function's own word on its lineage: the inputs that each output comes from; of outputs left out: from all."""


class ColumnFunction:
    """A function over Spark columns: called once a batch with one Column per input field, returns Columns.

    Returns one Column for one output field, a tuple of Columns for several, or a generator Column (`F.explode(...)`,
    `F.inline(...)`) for any number of rows. Subclasses may also give `rows(*values)`, the same function over plain
    values, yielding one value or tuple a row, or as a filter `keep(*values)`, the same predicate over plain values: the
    reference engine and queries that need no Spark then use these.
    """

    lineage: Declared | None = None
    """Which inputs each output comes from, where not from all of them."""

    def __init__(
        self, call: Callable[..., Any] | None = None, name: str | None = None, *, lineage: Declared | None = None
    ) -> None:
        self._call = call
        self._name = name or str(getattr(call, "__name__", type(self).__name__))
        if declared := lineage or getattr(call, "lineage", None):
            self.lineage = declared

    def __call__(self, *columns: Any) -> Any:
        if self._call is None:
            raise NotImplementedError(f"{type(self).__name__} gives neither a callable nor __call__")
        return self._call(*columns)

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
    """Decorator: a Python generator as a row function, e.g. `@row_function("bigint")`."""
    return lambda call: RowFunction(call, (types,) if isinstance(types, str) else tuple(types), lineage)


def arrow_function(
    types: str | Sequence[str], *, lineage: Declared | None = None
) -> Callable[[Callable[..., Any]], ArrowFunction]:
    """Decorator: a function over `pyarrow.Array`s as an Arrow function, e.g. `@arrow_function("double")`."""
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
        return replace(given, types=kinds), names
    if isinstance(given, ColumnFunction):
        return given, names
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
    return ColumnFunction(given), names


class Resolvable(ABC):
    """A filter that stands for another predicate, which depends on what it is made of."""

    @abstractmethod
    def resolve(self, operation: str) -> ColumnFunction | RowFunction | str:
        """Return the predicate that it stands for; `operation` is for messages."""


def as_predicate(operation: str, given: Any) -> ColumnFunction | RowFunction | str:
    """Return a filter's predicate: SQL text, a callable of Columns, or a `RowFunction` over plain values."""
    if isinstance(given, Resolvable):
        return given.resolve(operation)
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
    """Types from `-> Iterator[int]` or `-> Iterator[tuple[int, str]]`."""
    try:
        inner = typing.get_args(typing.get_type_hints(call).get("return"))
    except NameError:
        return ()
    if not inner:
        return ()
    parts = typing.get_args(inner[0]) if typing.get_origin(inner[0]) is tuple else inner[:1]
    types = tuple(_TYPES.get(part, "") for part in parts)
    return types if all(types) else ()
