"""Plans of Spark's that may give other rows each time that a job works them out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OTHERWISE = ("CURRENT_LIKE", "EXPRESSION_WITH_RANDOM_SEED", "PYTHON_UDF", "EVAL_PYTHON_UDTF", "SCALA_UDF")
"""What a plan has, in Spark's words, where it asks the clock, draws lots, or calls a function that Spark cannot look into."""
_TEXTS_OF_THE_CLOCK = re.compile(
    r"(?<!\bIN )\(\s*(?:now|today|tomorrow|yesterday)(?:\s+[\w/:+-]+?)?\s*(?: as (?:date|timestamp)|[,)])"
    r"|\(\s*T?\d{1,2}:\d[\d:.]*[^(),]*? as timestamp|\bto_timestamp\w*\(\s*T?\d{1,2}:\d",
    re.IGNORECASE,
)
"""Texts that become times of the clock in each job's optimizer, where they are cast or read as a date or a time, as a plan shows
them: a field would be followed by its number. A time alone is one of the day on which the job runs."""
_DRAWS_LOTS = re.compile(r"\baes_encrypt\(", re.IGNORECASE)
"""Functions that draw lots and have no such word: the first bytes that a cipher adds are other ones each time."""
_ALL_FIELDS = 2**31 - 1


def may_differ(frame: DataFrame) -> bool:
    """Return whether a frame's rows may be others the next time: what its plan calls may answer otherwise.

    Numbers of partitions and of rows in them do not count, which Spark takes for indeterminate: the engine orders tuples by them,
    and over the same input they are the same.
    """
    plan: Any = frame._jdf.queryExecution().analyzed()
    jvm: Any = frame.sparkSession._jvm
    known = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if any(plan.containsPattern(getattr(known, name)()) for name in _OTHERWISE):
        return True
    # By default a plan shows the first 25 fields of a list, and what a gate asks stands behind all fields.
    shown = plan.treeString(True, False, _ALL_FIELDS, False, False)
    return any(signs.search(shown) for signs in (_TEXTS_OF_THE_CLOCK, _DRAWS_LOTS))
