"""Schemas as text: names and types of columns, read by sqlglot, so that no Spark session is needed.

Before any parser reads a text it must keep some limits: parsers take a nesting for a depth of calls of their own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pipelines.errors import BadNameError, DefinitionError, DuplicateFieldError, FunctionError

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

# What it warns of (a text that it takes for a command) is refused, and the error says why.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

ENGINE_COLUMNS: Final = (
    "_event_id", "_event_time", "_event_clock", "_event_from", "_event_order", "_event_task",
)  # fmt: skip
"""Columns that an event carries beside its fields (`pipelines.graph.events`): the only names that may begin with `_`."""

FieldNames = str | Sequence[str]
"""Field arguments take one name or a list of names."""

MOST_TEXT = 20_000
"""Characters of one SQL expression, type or schema."""
DEEPEST_BRACKETS = 50

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, which no other program takes."""

MOST_DIGITS = 38
"""The most digits of a decimal of Spark's."""

_DECIMAL = re.compile(r"\bdec(?:imal)?\s*\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?\)", re.IGNORECASE)
_COMMENT = re.compile(r"/\*\+|/\*(?:(?!\*/)[\s\S])*/\*|--.*\\(?:\n|\Z)")
"""A hint, a comment within another, one whose line goes on: Spark and sqlglot end them at other places."""
_QUOTED = re.compile(
    r"\br(?:'[^']*+(?:'|\Z)|\"[^\"]*+(?:\"|\Z))"
    r"|'(?:[^'\\]|\\.)*+(?:'|\\?\Z)|\"(?:[^\"\\]|\\.)*+(?:\"|\\?\Z)|`[^`]*+(?:`|\Z)"
    r"|(?P<comment>--[^\r\n]*+\n?|/\*\+?(?:(?!\*/).)*+(?:\*/|\Z))",
    re.DOTALL | re.IGNORECASE,
)
"""A text or a name in quotes, or a comment, whichever begins first: one may hold the signs of the others."""


def nested_too_deeply(text: str, opens: str = "([{", closes: str = ")]}") -> bool:
    """Check whether the brackets of a text, those in quotes and comments aside, are nested more deeply than is read."""
    depth = 0
    for character in _QUOTED.sub(" ", text):
        if character in opens:
            depth += 1
            if depth > DEEPEST_BRACKETS:
                return True
        elif character in closes:
            depth = max(0, depth - 1)
    return False


def decimal_problem(text: str) -> str | None:
    """Return what is wrong with the first decimal type in a text that Spark does not have; None: nothing."""
    for match in _DECIMAL.finditer(_QUOTED.sub(" ", text)):
        digits, scale = int(match[1]), int(match[2] or 0)
        if not 1 <= digits <= MOST_DIGITS or not 0 <= scale <= digits:
            return f"there is no {match[0]}: a decimal has 1 to {MOST_DIGITS} digits, and no more behind the point than it has"
    return None


def type_problem(text: str) -> str | None:
    """Return why the text of a type or a schema is not read at all; None: it can be given to the parser."""
    if len(text) > MOST_TEXT:
        return f"it has {len(text):,} characters; {MOST_TEXT:,} are the most"
    if nested_too_deeply(text, "(<[", ")>]"):
        return f"its types are nested more than {DEEPEST_BRACKETS} deep"
    if "${" in text:
        return "it has ${ in it, which Spark would replace"
    if any(_COMMENT.match(found["comment"] or "") for found in _QUOTED.finditer(text)):
        return "it has a comment that Spark ends elsewhere"
    return decimal_problem(text)


def as_names(names: FieldNames | None, operation: str = "fields") -> tuple[str, ...]:
    """Return one name, a list of names or None as a tuple of names.

    Raises:
        FunctionError: it is something else.
    """
    if names is None:
        return ()
    if not isinstance(names, str | Iterable):
        raise FunctionError(operation, f"fields are a name or a list of names; got {names!r}")
    return (names,) if isinstance(names, str) else tuple(names)


def added(operation: str, names: FieldNames, available: Sequence[str]) -> tuple[str, ...]:
    """Return the names as a tuple, none of them a field of the stream, none twice, each usable as a column.

    Raises:
        DuplicateFieldError: if a name is taken (compared without case, as Spark and Delta do).
        BadNameError: if a name is empty, starts with an underscore (reserved for the engine), or holds a backtick or `${`.
    """
    new = as_names(names, operation)
    taken = {field.lower() for field in available}
    for name in new:
        # Spark replaces `${...}` in every SQL text before it parses it, also within the quotes of a name.
        if not isinstance(name, str) or not name or name.startswith("_") or "`" in name or "${" in name:
            raise BadNameError("field", name, "is empty, starts with _, or holds a backtick or ${")
        if name.lower() in taken:
            raise DuplicateFieldError(operation, name, available)
        taken.add(name.lower())
    return new


def _shown(ddl: str) -> str:
    return repr(ddl) if len(ddl) <= 200 else f"{ddl[:200]!r}..."


def _fault(ddl: str, said: str) -> str:
    """Return the column of a schema that the parser stumbles over, in plain words; else what it said."""
    import sqlglot

    from pipelines.sql_parser import BoundedSpark, EndlessTextError

    # Commas within `decimal(10,2)` or `struct<a int, b int>` part no columns.
    for column in re.split(r",(?![^(<]*[)>])", ddl):
        try:
            sqlglot.parse_one(f"CREATE TABLE t ({column})", read=BoundedSpark)
        except (sqlglot.errors.SqlglotError, EndlessTextError):
            return f'"{column.strip()[:100]}" is not a column as "name type", with a type of Spark SQL'
    return said


@lru_cache(maxsize=1024)
def parse_ddl(ddl: str) -> tuple[tuple[str, str], ...]:
    """Return names and Spark SQL types of a schema as DDL: `"word string, n bigint"` -> `(("word", "string"), ...)`.

    The parser is sqlglot's, so that a topology can be defined and checked before there is a Spark session.
    """
    import sqlglot
    from sqlglot import exp

    from pipelines.sql_parser import BoundedSpark, EndlessTextError

    if problem := type_problem(ddl):
        raise DefinitionError(f"not a schema: {_shown(ddl)}; {problem}")
    try:
        tree = sqlglot.parse_one(f"CREATE TABLE t ({ddl})", read=BoundedSpark)
    except (sqlglot.errors.SqlglotError, EndlessTextError) as error:
        raise DefinitionError(f"not a schema: {_shown(ddl)}; {_fault(ddl, str(error).splitlines()[0])}") from None
    schema = tree.this if isinstance(tree, exp.Create) else None
    parts = schema.expressions if isinstance(schema, exp.Schema) and not _says_more(tree) else []
    if not parts or not all(isinstance(column, exp.ColumnDef) and column.args.get("kind") for column in parts):
        raise DefinitionError(
            f'not a schema: {ddl!r}; write it as "name type, name type", with NOT NULL and COMMENT at the most'
        )
    if any(kind.this in (exp.DataType.Type.TIME, exp.DataType.Type.TIMETZ) for kind in tree.find_all(exp.DataType)):
        raise DefinitionError(
            f"not a schema: {_shown(ddl)}; no table holds the type time: write string, or int for the seconds of the day"
        )
    columns = [(column.name, _lower(column.args["kind"].sql("spark"))) for column in parts]
    added("schema", [name for name, _ in columns if name not in ENGINE_COLUMNS], ())
    return tuple(columns)


def _says_more(tree: Expr) -> bool:
    """Return whether a schema has more than columns, or a column more than name, type, NOT NULL and COMMENT."""
    from sqlglot import exp

    parts = [
        (tree, {"this", "kind"}),
        *((column, {"this", "kind", "constraints"}) for column in tree.find_all(exp.ColumnDef)),
    ]
    if any(value and name not in allowed for part, allowed in parts for name, value in part.args.items()):
        return True
    if any(kind.args.get("collate") for kind in tree.find_all(exp.DataType)):
        return True
    allowed = (exp.NotNullColumnConstraint, exp.CommentColumnConstraint)
    return not all(
        isinstance(constraint.args.get("kind"), allowed) for constraint in tree.find_all(exp.ColumnConstraint)
    )


def _lower(sql_type: str) -> str:
    """Return a type in small letters, but for the names of the fields in a struct."""
    return re.sub(r"(`[^`]*`|\w+\s*:)|\w+", lambda match: match[1] or match[0].lower(), sql_type)
