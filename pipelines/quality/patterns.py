"""Rules about text: regular expressions and SQL LIKE, as the Spark provider of great-expectations matches them.

Source: great_expectations/expectations/metrics/column_map_metrics/column_values_*match_*.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F

from pipelines.errors import FunctionError
from pipelines.quality.literals import Frame, family


def text(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    """Return the column of a text rule.

    Raises:
        FunctionError: its type has no text form that Spark would match.
    """
    field = kwargs["column"]
    if family(frame.type_of(field)) not in ("string", "number", "time", "boolean"):
        raise FunctionError(operation, f"{field} is {frame.type_of(field).simpleString()}, which is not text")
    return frame.column(field)


def _patterns(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _match_on(kwargs: Mapping[str, Any], operation: str) -> str:
    match_on = str(kwargs.get("match_on") or "any")
    if match_on not in ("any", "all"):
        raise FunctionError(operation, f'match_on must be "any" or "all", not {match_on!r}')
    return match_on


def _regexes(value: str | Iterable[str], operation: str) -> list[str]:
    """Return regular expressions that Java can read: it would find out in the middle of the first batch."""
    patterns = _patterns(value)
    context = SparkContext._active_spark_context
    if context is not None and context._jvm is not None:
        for pattern in patterns:
            try:
                context._jvm.java.util.regex.Pattern.compile(pattern)
            except (PySparkException, Py4JJavaError) as error:
                reason = str(error).splitlines()[0]
                raise FunctionError(operation, f"{pattern!r} is not a regular expression: {reason}") from None
    return patterns


def regex(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    # The default is great-expectations' own: anything at all.
    return text(frame, kwargs, operation).rlike(_regexes(kwargs.get("regex", "(?s).*"), operation)[0])


def regex_list(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    column, patterns = text(frame, kwargs, operation), _regexes(kwargs["regex_list"], operation)
    if _match_on(kwargs, operation) == "any":
        return column.rlike("|".join(patterns))
    return reduce(lambda left, right: left & right, [column.rlike(pattern) for pattern in patterns])


def no_regex_of_list(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    column, patterns = text(frame, kwargs, operation), _regexes(kwargs["regex_list"], operation)
    return reduce(lambda left, right: left & right, [~column.rlike(pattern) for pattern in patterns])


def _like(column: Column, pattern: str, escape: Any, operation: str) -> Column:
    """Compile SQL LIKE. great-expectations has it for databases only; without `escape`, Spark's own (a backslash) holds."""
    sign = "\\" if escape is None else escape
    if not isinstance(sign, str) or len(sign) != 1:
        raise FunctionError(operation, f"escape must be a single character, not {escape!r}")
    # Spark finds out in the middle of the first batch.
    if sign in re.sub(f"{re.escape(sign)}[_%{re.escape(sign)}]", "", pattern):
        raise FunctionError(operation, f"{pattern!r}: only _, % or {sign} itself may follow the escape {sign}")
    return column.like(pattern) if escape is None else F.like(column, F.lit(pattern), F.lit(escape))


def like_pattern(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    return _like(text(frame, kwargs, operation), kwargs["like_pattern"], kwargs.get("escape"), operation)


def like_list(frame: Frame, kwargs: Mapping[str, Any], operation: str) -> Column:
    column, escape = text(frame, kwargs, operation), kwargs.get("escape")
    conditions = [_like(column, pattern, escape, operation) for pattern in _patterns(kwargs["like_pattern_list"])]
    every = _match_on(kwargs, operation) == "all"
    return reduce(lambda left, right: left & right if every else left | right, conditions)
