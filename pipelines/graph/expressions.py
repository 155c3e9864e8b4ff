"""SQL text over one row (filters, slices, checks): parsed at definition, so that a fault is refused at its line."""

from __future__ import annotations

import re
from functools import lru_cache

import sqlglot
from sqlglot import exp

from pipelines.errors import FunctionError
from pipelines.graph.fields import distinct

# Functions that reach the JVM, the network, files or the model's world outside the row (design, section 8).
FORBIDDEN = frozenset(
    {"reflect", "java_method", "try_reflect", "input_file_name", "read_files", "http_request", "ai_query", "secret"}
)

_NOT_A_VALUE = (exp.Query, exp.DDL, exp.Command, exp.Placeholder, exp.Parameter, exp.Star)
_NOT_OF_ONE_TUPLE = (exp.AggFunc, exp.Window, exp.UDTF)


@lru_cache(maxsize=1024)
def fields_of_sql(operation: str, text: str) -> tuple[str, ...]:
    """The columns that a Spark SQL expression reads, in order of appearance.

    Raises:
        FunctionError: if the text is not one expression over the fields of one tuple (an aggregate, a window, a
            subquery, a parameter or a star is not), or calls a forbidden function.
    """
    try:
        trees = sqlglot.parse(text, read="spark")
    except sqlglot.errors.SqlglotError as error:
        # The parser names its own classes; a reader knows the operator by its short name.
        said = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", str(error).splitlines()[0])
        raise FunctionError(operation, f"not a SQL expression: {text!r} ({said})") from None
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Condition) or tree.find(*_NOT_A_VALUE):
        raise FunctionError(operation, f"not a single SQL expression: {text!r}")
    if found := tree.find(*_NOT_OF_ONE_TUPLE):
        raise FunctionError(operation, f"{found.sql('spark')} does not look at one tuple alone")
    for call in tree.find_all(exp.Func):
        name = (call.name if isinstance(call, exp.Anonymous) else call.sql_name()).lower()
        if name in FORBIDDEN:
            raise FunctionError(operation, f"the function {name} is not allowed in {text!r}")
    return distinct(column.parts[0].name for column in tree.find_all(exp.Column))


def keeps_values(before: str, now: str) -> bool:
    """Whether an expression gives each row the value that an earlier one gave it, unless that was null.

    It is the same expression, or `coalesce(before, ...)`.
    """
    old, new = (sqlglot.parse_one(text, read="spark") for text in (before, now))
    return old == new or (isinstance(new, exp.Coalesce) and new.this == old)
