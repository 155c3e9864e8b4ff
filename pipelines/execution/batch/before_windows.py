"""The rows of a stream's batch before the windows of its query: read again for quarantine, or kept from the windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties that Spark sets for the jobs of a stream's batch."""


def named(frame: DataFrame, spout: int) -> DataFrame:
    """A source's streaming frame under a name by which `rows_before_windows` finds it in the plan of a batch."""
    return frame.alias(_name(spout))


def without_batches(frame: DataFrame, left_out: frozenset[int]) -> DataFrame:
    """A source's streaming frame without the rows of some batches (Spark's ids).

    A batch that is left out is known when the query starts, and the workers ask which batch they work for: so a batch that
    is replayed after a crash is left out again.
    """
    if not left_out:
        return frame

    # Not a function with type hints, from which Spark would infer another kind of UDF. Workers have a task, and it a batch.
    wanted = F.udf(lambda _: int(TaskContext.get().getLocalProperty(_BATCH)) not in left_out, "boolean")  # type: ignore[union-attr,arg-type]
    return frame.where(wanted.asNondeterministic()(F.lit(True)))


def rows_before_windows(spark: SparkSession, spouts: Iterable[int]) -> dict[int, DataFrame]:
    """The rows of the batch that this thread works on, as its sources gave them. To be called in `foreachBatch`.

    The frame that Spark gives to `foreachBatch` is what the windows made. What went into them is in the plan of the batch,
    below the names that `named` has put there.

    Args:
        spark: the session that the query was started in.
        spouts: ids of the spouts whose frames are `named`.

    Raises:
        LookupError: the plan does not have them.
    """
    query = spark.streams.get(spark.sparkContext.getLocalProperty(_QUERY) or "")
    assert query is not None
    execution = query._jsq.streamingQuery().lastExecution()
    plans = {plan.alias(): plan for plan in _named_parts(execution.analyzed())}
    # The batch's own plan says of its source that it streams, which a query of its own must not say.
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.unsupportedOperationCheck", "false")
    jvm: Any = spark._jvm
    make = jvm.org.apache.spark.sql.classic.Dataset.ofRows
    return {one: DataFrame(make(session._jsparkSession, plans[_name(one)]), session) for one in spouts}


def _name(spout: int) -> str:
    return f"before_windows_{spout}"


def _named_parts(plan: Any) -> Iterator[Any]:
    """The parts of a plan of Spark's (a JVM object) that have a name."""
    if plan.nodeName() == "SubqueryAlias" and plan.alias().startswith(_name(0)[:-1]):
        yield plan
        return
    children = plan.children().iterator()
    while children.hasNext():
        yield from _named_parts(children.next())
