"""SQL text in filters: parsed at definition, so that a wrong field or a dangerous function is refused at its line."""

from __future__ import annotations

from functools import lru_cache

import sqlglot
from sqlglot import exp

from pipelines.errors import FunctionError
from pipelines.graph.fields import distinct

# Functions that reach the JVM, the network, files or the model's world outside the row (design, section 8).
FORBIDDEN = frozenset(
    {"reflect", "java_method", "try_reflect", "input_file_name", "read_files", "http_request", "ai_query", "secret"}
)


@lru_cache(maxsize=1024)
def fields_of_sql(operation: str, text: str) -> tuple[str, ...]:
    """The columns that a Spark SQL expression reads, in order of appearance.

    Raises:
        FunctionError: if the text is not one expression, holds a subquery, or calls a forbidden function.
    """
    try:
        tree = sqlglot.parse_one(text, read="spark")
    except sqlglot.errors.SqlglotError as error:
        raise FunctionError(operation, f"not a SQL expression: {text!r} ({str(error).splitlines()[0]})") from None
    if not isinstance(tree, exp.Expression) or tree.find(exp.Query, exp.DDL, exp.Command):
        raise FunctionError(operation, f"not a single SQL expression: {text!r}")
    for call in tree.find_all(exp.Func):
        name = (call.name if isinstance(call, exp.Anonymous) else call.sql_name()).lower()
        if name in FORBIDDEN:
            raise FunctionError(operation, f"the function {name} is not allowed in {text!r}")
    return distinct(column.parts[0].name for column in tree.find_all(exp.Column))
