"""Field names and schemas of streams: parsing and validation, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from pipelines.errors import BadNameError, DefinitionError, DuplicateFieldError, FieldError
from pipelines.graph import events
from pipelines.graph.limits import type_problem

T = TypeVar("T")

_NAME = re.compile(r"[a-z][a-z0-9_]*")

FieldNames = str | Sequence[str]
"""Field arguments take one name or a list of names."""


def is_name(text: str) -> bool:
    """Whether a text is a legal name of a flow, state, stream or gate."""
    return _NAME.fullmatch(text) is not None


def checked_name(kind: str, name: object) -> str:
    """Return `name` if it is a legal name of a flow, state, stream or gate.

    Such names become folders and identifiers, so nothing but `[a-z][a-z0-9_]*` is let through (docs/architecture.md#safety).

    Raises:
        BadNameError: for anything else.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadNameError(kind, name)
    return name


def as_names(names: FieldNames | None) -> tuple[str, ...]:
    """One name, a list of names or None as a tuple of names."""
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def require(operation: str, names: FieldNames | None, available: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple, all of them fields of the stream.

    Raises:
        FieldError: at the first name that the stream does not have (Trident rules, section 2, field projection).
    """
    wanted = as_names(names)
    for name in wanted:
        if name not in available:
            raise FieldError(operation, str(name), available)
    return wanted


def added(operation: str, names: FieldNames, available: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple, none of them a field of the stream, none twice, each usable as a column.

    Raises:
        DuplicateFieldError: if a name is taken (compared without case, as Spark and Delta do).
        BadNameError: if a name is empty, starts with an underscore (reserved for the engine) or holds a backtick.
    """
    new = as_names(names)
    taken = {field.lower() for field in available}
    for name in new:
        if not isinstance(name, str) or not name or name.startswith("_") or "`" in name:
            raise BadNameError("field", name, "is empty, starts with _ or holds a backtick")
        if name.lower() in taken:
            raise DuplicateFieldError(operation, name, available)
        taken.add(name.lower())
    return new


def storable(names: Sequence[str]) -> None:
    """Check that the names can be columns of a Delta table.

    Raises:
        BadNameError: at the first one that cannot.
    """
    for name in names:
        if set(name) & set(" ,;{}()\n\t="):
            raise BadNameError("field", name, "cannot be a column of a Delta table: it holds a space or one of ,;{}()=")


def _shown(ddl: str) -> str:
    return repr(ddl) if len(ddl) <= 200 else f"{ddl[:200]!r}..."


def _fault(ddl: str, said: str) -> str:
    """The column of a schema that the parser stumbles over, in plain words; else what it said."""
    import sqlglot

    # Commas within `decimal(10,2)` or `struct<a int, b int>` part no columns.
    for column in re.split(r",(?![^(<]*[)>])", ddl):
        try:
            sqlglot.parse_one(f"CREATE TABLE t ({column})", read="spark")
        except sqlglot.errors.SqlglotError:
            return f'"{column.strip()}" is not a column as "name type", with a type of Spark SQL'
    return said


@lru_cache(maxsize=1024)
def parse_ddl(ddl: str) -> tuple[tuple[str, str], ...]:
    """Names and Spark SQL types of a schema in DDL form: `"word string, n bigint"` -> `(("word", "string"), ...)`.

    The parser is sqlglot's, so that a topology can be defined and checked before there is a Spark session.

    Raises:
        DefinitionError: if the text is not a list of columns.
        DuplicateFieldError: if a column is named twice.
    """
    import sqlglot
    from sqlglot import exp

    if problem := type_problem(ddl):
        raise DefinitionError(f"not a schema: {_shown(ddl)}; {problem}")
    try:
        tree = sqlglot.parse_one(f"CREATE TABLE t ({ddl})", read="spark")
    except sqlglot.errors.SqlglotError as error:
        raise DefinitionError(f"not a schema: {ddl!r}; {_fault(ddl, str(error).splitlines()[0])}") from None
    schema = tree.this if isinstance(tree, exp.Create) else None
    found = schema.expressions if isinstance(schema, exp.Schema) else []
    if not found or not all(isinstance(column, exp.ColumnDef) and column.args.get("kind") for column in found):
        raise DefinitionError(f'not a schema: {ddl!r}; write it as "name type, name type"')
    columns = [(column.name, _lower(column.args["kind"].sql("spark"))) for column in found]
    added("schema", [name for name, _ in columns if name not in (*events.COLUMNS, events.TASK)], ())
    return tuple(columns)


def _lower(sql_type: str) -> str:
    """A type in small letters, but for the names of the fields in a struct."""
    return re.sub(r"(`[^`]*`|\w+\s*:)|\w+", lambda found: found[1] or found[0].lower(), sql_type)


def distinct(items: Iterable[T]) -> tuple[T, ...]:
    """The items in order, each once."""
    return tuple(dict.fromkeys(items))
