"""Plans of Spark's that may give other rows each time that a job works them out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OTHERWISE = ("CURRENT_LIKE", "EXPRESSION_WITH_RANDOM_SEED", "PYTHON_UDF", "EVAL_PYTHON_UDTF", "SCALA_UDF")
"""What a plan has, in Spark's words, where it asks the clock, draws lots, or calls a function that Spark cannot look into."""
_TEXTS_OF_THE_CLOCK = re.compile(
    r"(?<!\bIN )\(\s*(?:now|today|tomorrow|yesterday)\s*(?: as (?:date|timestamp)|[,)])", re.IGNORECASE
)
"""Texts that become times of the clock in each job's optimizer, where they are cast or read as a date or a time, as a plan shows
them: a field would be followed by its number."""


def may_differ(frame: DataFrame) -> bool:
    """Return whether a frame's rows may be others the next time: what its plan calls may answer otherwise.

    Numbers of partitions and of rows in them do not count, which Spark takes for indeterminate: the engine orders tuples by them,
    and over the same input they are the same.
    """
    plan: Any = frame._jdf.queryExecution().analyzed()
    jvm: Any = frame.sparkSession._jvm
    known = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    asks = any(plan.containsPattern(getattr(known, name)()) for name in _OTHERWISE)
    return asks or _TEXTS_OF_THE_CLOCK.search(plan.toString()) is not None
