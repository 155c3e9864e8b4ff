"""The forms of criteria: the typed set, `python(...)`, and what else a filter or a path takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pipelines.ddl import SURROGATE
from pipelines.errors import FunctionError
from pipelines.flowmix.criteria import Combined, Criteria, Leaf, OfSpark, Python
from pipelines.flowmix.values import kind_of
from pipelines.graph.expressions import fields_of_sql
from pipelines.trident.functions import ColumnFunction, Resolvable, as_predicate
from pipelines.windows.event import Event


def eq(field: str, value: Any) -> Criteria:
    """Return a value of the field equals it (Flowmix rules 6)."""
    return _leaf("eq", field, value)


def not_eq(field: str, value: Any) -> Criteria:
    """Match if a value of the field differs from `value`; false where the field is absent (Flowmix rules 6)."""
    return _leaf("not_eq", field, value)


def has(field: str) -> Criteria:
    """Match if the field is present."""
    return _leaf("has", field)


def has_not(field: str) -> Criteria:
    """Match if the field is absent."""
    return _leaf("has_not", field)


def gt(field: str, value: Any) -> Criteria:
    """Match if a value of the field is greater."""
    return _leaf("gt", field, value)


def gte(field: str, value: Any) -> Criteria:
    """Match if a value of the field is greater or equal."""
    return _leaf("gte", field, value)


def lt(field: str, value: Any) -> Criteria:
    """Match if a value of the field is less."""
    return _leaf("lt", field, value)


def lte(field: str, value: Any) -> Criteria:
    """Match if a value of the field is less or equal."""
    return _leaf("lte", field, value)


def in_(field: str, *values: Any) -> Criteria:
    """Match if a value of the field is one of these: `in_("k", "a", "b")` or `in_("k", ["a", "b"])`."""
    given = values[0] if len(values) == 1 and isinstance(values[0], list | tuple | set | frozenset) else values
    return _leaf("in_", field, *given)


def range_(field: str, low: Any, high: Any) -> Criteria:
    """Return a value of the field lies from `low` to `high`, both included (the original could not say it, Flowmix rules 6)."""
    return _leaf("range_", field, low, high)


def and_(*criteria: Any) -> Criteria:
    """Return a condition that holds where all of them hold."""
    return _combined("and_", criteria)


def or_(*criteria: Any) -> Criteria:
    """Return a condition that holds where one of them holds."""
    return _combined("or_", criteria)


def not_(criteria: Any) -> Criteria:
    """Return a condition that holds where this one does not; what is null for SQL text does not hold."""
    return _combined("not_", (criteria,))


def python(function: Callable[[Event], object]) -> Python:
    """Return a Python predicate over the event, also as a decorator: `.filter(python(lambda event: event["v"] > 3))`.

    Raises:
        FunctionError: if it is not callable.
    """
    if not callable(function):
        raise FunctionError("python", f"{function!r} is not a function")
    return Python(function)


def as_criteria(operation: str, given: Any, fields: Sequence[str] | None) -> Criteria:
    """Turn what a user gave as criteria into criteria of its kind.

    A callable gets Columns: the fields that its parameters name, if all of them are fields of the stream; else all fields in
    order, as in Trident.

    Args:
        operation: for messages.
        given: criteria, SQL text, or a callable of Columns.
        fields: the stream's fields; None: not known here, so a callable's parameters must name them.

    Raises:
        FunctionError: if it is none of them, if the SQL can't be parsed or calls a forbidden function, or if Python and
            Spark are mixed in one.
    """
    if isinstance(given, Resolvable):
        given = given.resolve(operation)
    if isinstance(given, Criteria):
        if not given.plain and not given.columnar:
            raise FunctionError(
                operation, f"{given} mixes Python and SQL", hint="put them into two filters, one after the other"
            )
        return given
    if isinstance(given, str):
        return OfSpark(given, fields_of_sql(operation, given))
    if not callable(given) or inspect.isgeneratorfunction(given):
        raise FunctionError(
            operation,
            f"{given!r} is not criteria",
            hint="give SQL text, eq(...) and the like, a callable of Columns, or python(lambda event: ...)",
        )
    return OfSpark(given, _columns_for(operation, as_predicate(operation, given), fields))


def _columns_for(operation: str, call: Any, fields: Sequence[str] | None) -> tuple[str, ...]:
    """Return the fields whose Columns a callable gets."""
    code = call._call if isinstance(call, ColumnFunction) and call._call is not None else call
    parameters = list(inspect.signature(code).parameters.values())
    names = tuple(p.name for p in parameters if p.default is p.empty)
    positional = all(p.kind is not p.VAR_POSITIONAL for p in parameters)
    if positional and names and (fields is None or all(name in fields for name in names)):
        return names
    if names in (("event",), ("e",)) or fields is None:
        hint = "name its parameters like the fields, or write python(lambda event: ...) for a function of the event"
        seen = "it is not known here which fields the stream has" if fields is None else "it takes an event"
        raise FunctionError(operation, f"the callable gets Columns, and {seen}", hint=hint)
    if positional and len(names) != len(fields):
        raise FunctionError(
            operation,
            f"the callable takes {len(names)} Column(s), and the stream has {len(fields)} field(s): {', '.join(fields)}",
            hint="name its parameters like the fields that it needs",
        )
    return tuple(fields)


def _leaf(op: str, field: str, *values: Any) -> Criteria:
    if not isinstance(field, str) or not field:
        raise FunctionError(op, f"takes a field's name first, not {field!r}")
    if any(value is None for value in values):
        raise FunctionError(op, f"compares {field} with nothing", hint=f'use has("{field}") or has_not("{field}")')
    for text in (field, *values):
        if isinstance(text, str) and SURROGATE.search(text):
            raise FunctionError(op, f"{text[:60]!r} holds half a character, a surrogate")
    if odd := [value for value in values if kind_of(value).startswith("other")]:
        problem = f"compares {field} with {odd[0]!r}, which is no number, text, time, date, boolean or binary"
        raise FunctionError(op, problem, hint="compare it in SQL text, or in python(lambda event: ...)")
    return Leaf(op, field, tuple(values))


def _combined(op: str, given: Sequence[Any]) -> Criteria:
    parts = tuple(OfSpark(value, fields_of_sql(op, value)) if isinstance(value, str) else value for value in given)
    for part in parts:
        if not isinstance(part, Criteria):
            raise FunctionError(
                op, f"{part!r} is not criteria", hint="use SQL text, eq(...) and the like, or python(...)"
            )
    return Combined(op, parts)
