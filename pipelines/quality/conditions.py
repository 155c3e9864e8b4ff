"""`row_condition` in every form that great-expectations takes, read without importing it.

The forms: `col("x") == "a"` text, a Condition object or its dict, and Spark SQL text (`condition_parser="spark"`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

from pipelines import spark_functions as F
from pipelines.ddl import MOST_DIGITS, MOST_TEXT
from pipelines.errors import FieldError, FunctionError
from pipelines.graph.dialects import SPARK
from pipelines.graph.expressions import fields_of_sql, spark_sql

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from pipelines.quality.literals import Frame

_SIMPLE = re.compile(r"""^\s*col\(\s*["'](?P<column>[^"']+)["']\s*\)(?P<rest>.*)$""", re.DOTALL)
_COMPARISON = re.compile(
    r"""^(?P<op>==|!=|<=|>=|<|>)\s*(?:(?P<number>[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"""
    r"""|"(?P<double>[^"]*)"|'(?P<single>[^']*)'|date\(\s*["'](?P<date>[^"']*)["']\s*\))$"""
)
_READ_BY_SPARK = {
    "integer": re.compile(r"\s*[+-]?\d+\s*", re.ASCII),
    "number": re.compile(
        r"\s*(?:[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|[+-]?inf(?:inity)?|nan)\s*", re.ASCII | re.IGNORECASE
    ),
    "time": re.compile(
        r"\s*[+-]?\d{4,7}(?:-(?:0?[1-9]|1[0-2])(?:-(?:0?[1-9]|[12]\d|3[01])(?:[ T].*)?)?)?\s*", re.ASCII
    ),
    "boolean": re.compile(r".*", re.DOTALL),
}
"""The texts, by the field, that are left to Spark, which reads times in the session's zone."""
_NOT_NULL = re.compile(r"^\.notnull\(\)$", re.IGNORECASE)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_KEYS = {
    "comparison": {"type", "column", "operator", "parameter"},
    "nullity": {"type", "column", "is_null"},
    "and": {"type", "conditions"},
    "or": {"type", "conditions"},
    "pass_through": {"type", "pass_through_filter"},
}
_PARTS_OF_PATH = re.compile(r"`(?:[^`]|``)*`|[^.`][^.]*")


def parse_condition(condition: Any) -> dict[str, Any] | None:
    """Return `condition` as great-expectations' own dict form (`{"type": "comparison", ...}`); SQL text as `pass_through`."""
    if condition is None:
        return None
    if isinstance(condition, Mapping):
        return dict(condition)
    if hasattr(condition, "dict"):  # great-expectations' Condition objects are pydantic models
        return dict(condition.dict())
    if not isinstance(condition, str):
        raise FunctionError("row_condition", f"{condition!r} is neither text nor a great-expectations Condition")
    if len(condition) > MOST_TEXT:
        raise FunctionError("row_condition", f"has {len(condition):,} characters; {MOST_TEXT:,} are the most")
    simple = _SIMPLE.match(condition)
    return _parse_simple(simple) if simple else {"type": "pass_through", "pass_through_filter": condition}


def _parse_simple(match: re.Match[str]) -> dict[str, Any]:
    """Return the text form `col("x") == 1`, as great-expectations' grammar defines it."""
    column, rest = {"name": match["column"]}, match["rest"].strip()
    if _NOT_NULL.match(rest):
        return {"type": "nullity", "column": column, "is_null": False}
    parsed = _COMPARISON.match(rest)
    if parsed is None:
        raise FunctionError(
            "row_condition",
            f"cannot read {match.string!r}",
            hint='write col("x") == "a", col("x") > 1, col("x").notnull(), or Spark SQL with condition_parser="spark"',
        )
    parameter: Any = next((parsed[key] for key in ("double", "single", "date") if parsed[key] is not None), None)
    if parsed["number"] is not None:
        number = parsed["number"]
        parameter = int(number) if re.fullmatch(r"[+-]?\d+", number) else float(number)
    return {"type": "comparison", "column": column, "operator": parsed["op"], "parameter": parameter}


def condition_fields(condition: Any) -> tuple[str, ...]:
    """Return the columns that a condition names."""
    names: list[str] = []
    for leaf in _leaves(parse_condition(condition)):
        text = _text(leaf)
        names += [_name(leaf)] if text is None else fields_of_sql("row_condition", text)
    return tuple(names)


def condition_texts(condition: Any) -> tuple[str, ...]:
    """Return the SQL texts in a condition."""
    return tuple(text for leaf in _leaves(parse_condition(condition)) if (text := _text(leaf)) is not None)


def _leaves(node: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if node is not None and _kind(node) in ("and", "or"):
        for child in _children(node):
            yield from _leaves(child)
    elif node is not None:
        yield node


def _text(leaf: Mapping[str, Any]) -> str | None:
    """Return the SQL text that a part of a condition is; None: it is another kind of part."""
    return str(leaf.get("pass_through_filter")) if _kind(leaf) == "pass_through" else None


def _kind(node: Mapping[str, Any]) -> str:
    """Return the type of a condition, which has no part that its type does not have: such a part would go unread."""
    kind = str(node.get("type"))
    if kind not in _KEYS or not node.keys() <= _KEYS[kind]:
        raise FunctionError("row_condition", f"cannot read {dict(node)!r}")
    return kind


def _children(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the conditions that an `and` or `or` is made of."""
    given = node.get("conditions")
    children = [parse_condition(child) for child in given] if isinstance(given, list | tuple) else []
    if not children:
        raise FunctionError("row_condition", f"cannot read {dict(node)!r}")
    return [child or {} for child in children]


def _name(node: Mapping[str, Any]) -> str:
    """Return the name of a condition's column."""
    column = node.get("column")
    name = column.get("name") if isinstance(column, Mapping) else getattr(column, "name", None)
    if not isinstance(name, str):
        raise FunctionError("row_condition", f"cannot read {dict(node)!r}")
    return name


def condition_column(condition: Any, frame: Frame) -> Column | None:
    """Return a condition as a Spark Column, or None when there is none.

    Args:
        condition: any form of `row_condition`.
        frame: the schema with its fields.

    Source: great_expectations/execution_engine/sparkdf_execution_engine.py, `_apply_row_condition_filter`.
    """
    parsed = parse_condition(condition)
    return None if parsed is None else _column(parsed, frame)


def _column(node: Mapping[str, Any], frame: Frame) -> Column:
    kind = _kind(node)
    if kind == "pass_through":
        text = str(node["pass_through_filter"])
        return F.expr(spark_sql("row_condition", text))
    if kind in ("and", "or"):
        both = operator.and_ if kind == "and" else operator.or_
        return reduce(both, [_column(child, frame) for child in _children(node)])
    name = _name(node)
    column = frame.column(name)
    if kind == "nullity":
        return column.isNull() if node.get("is_null") else column.isNotNull()
    type_of: DataType | None = None
    # Spark finds more: the key of a map, a field of a struct in other capitals. What is missing, it says.
    with suppress(FieldError):
        type_of = frame.type_of(name)
    return _compare(column, _symbol(node), node.get("parameter"), type_of, name)


def _symbol(node: Mapping[str, Any]) -> str:
    """Return the operator of a comparison."""
    symbol = node.get("operator")
    symbol = str(getattr(symbol, "value", symbol))
    if symbol not in _OPERATORS and symbol not in ("IN", "NOT_IN"):
        raise FunctionError("row_condition", f"unknown operator {symbol!r}")
    return symbol


def _compare(column: Column, symbol: str, parameter: Any, kind: DataType | None, name: str) -> Column:
    if symbol in ("IN", "NOT_IN"):
        # An iterator would be empty for the second batch.
        if not isinstance(parameter, Collection) or isinstance(parameter, str | bytes):
            raise FunctionError("row_condition", f"{parameter!r} is not a list of values")
        within = column.isin([_value(one, kind, name) for one in parameter])
        return within if symbol == "IN" else ~within
    compared: Column = _OPERATORS[symbol](column, F.lit(_value(parameter, kind, name)))
    return compared


def _value(value: Any, kind: DataType | None, name: str) -> Any:
    """Return a value, fit for a comparison with a field; Spark reads a number, a truth value or a time in a text."""
    from pipelines.graph.plain_values import in_utc
    from pipelines.quality.literals import INTEGRAL, family, literal, value_family

    value = in_utc(value)
    if kind is None:
        return value
    texts = _READ_BY_SPARK.get("integer" if isinstance(kind, INTEGRAL) else family(kind))
    if texts is not None and isinstance(value, str):
        if not texts.fullmatch(value):
            raise FunctionError(
                "row_condition", f"{value!r} does not compare with {name}, which is {kind.simpleString()}"
            )
        return value
    if family(kind) == "string" and value_family(value) in ("time", "boolean"):
        return value
    return literal(value, kind, name, "row_condition")


def condition_sql(condition: Any) -> str:
    """Return a condition as Spark SQL, for great-expectations, which gives Spark any text as it stands.

    All of it is written here: Spark replaces `${...}` in a text, and finds other ends of comments than the check of a text does.

    Raises:
        FunctionError: it cannot be read, SQL text is refused, or a name or a value cannot be written.
    """
    said = _sql(parse_condition(condition) or {})
    if "${" in said:
        raise FunctionError("row_condition", f"holds a name with ${{, which Spark would replace: {said[:60]!r}")
    return said


def _sql(node: Mapping[str, Any]) -> str:
    kind = _kind(node)
    if kind == "pass_through":
        return f"({spark_sql('row_condition', str(node.get('pass_through_filter')))})"
    if kind in ("and", "or"):
        return f"({f' {kind.upper()} '.join(_sql(child) for child in _children(node))})"
    name = _name(node)
    # As great-expectations reads it: a path, whose parts may stand in backticks.
    parts = _PARTS_OF_PATH.findall(name)
    whole = ".".join(parts) != name
    column = SPARK.name(name) if whole else ".".join(one if one[0] == "`" else SPARK.name(one) for one in parts)
    if kind == "nullity":
        return f"{column} IS NULL" if node.get("is_null") else f"{column} IS NOT NULL"
    symbol, parameter = _symbol(node), node.get("parameter")
    if symbol in ("IN", "NOT_IN"):
        return f"{column} {symbol.replace('_', ' ')} ({', '.join(_value_sql(one) for one in parameter or ())})"
    return f"{column} {symbol} {_value_sql(parameter)}"


def _value_sql(value: Any) -> str:
    if isinstance(value, str):
        return SPARK.text(value)
    if isinstance(value, int | float) and math.isfinite(value):
        return str(value)
    if isinstance(value, Decimal) and value.is_finite():
        digits = max(value.adjusted() + 1, 0) + max(-int(value.as_tuple().exponent), 0)
        if digits <= MOST_DIGITS:
            return f"{value:f}BD"
    raise FunctionError("row_condition", f"{value!r} is no text, number or truth value that Spark has")
