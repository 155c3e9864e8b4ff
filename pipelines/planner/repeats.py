"""Plans of Spark's that may give other rows each time that a job works them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OTHERWISE = ("CURRENT_LIKE", "EXPRESSION_WITH_RANDOM_SEED", "PYTHON_UDF", "EVAL_PYTHON_UDTF", "SCALA_UDF")
"""What a plan has, in Spark's words, where it asks the clock, draws lots, or calls a function that Spark cannot look into."""


def may_differ(frame: DataFrame) -> bool:
    """Return whether a frame's rows may be others the next time: what its plan calls may answer otherwise.

    Numbers of partitions and of rows in them do not count, which Spark takes for indeterminate: the engine orders tuples by them,
    and over the same input they are the same.
    """
    plan: Any = frame._jdf.queryExecution().analyzed()
    jvm: Any = frame.sparkSession._jvm
    known = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    return any(plan.containsPattern(getattr(known, name)()) for name in _OTHERWISE)
