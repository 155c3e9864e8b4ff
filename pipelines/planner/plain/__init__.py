"""The operations of one batch in plain Python: the reference engine's, and of queries that need no Spark.

`step(node, tables, context)` gives what a node makes of its parents' tables. It imports no Spark; what only Spark can
evaluate (SQL text, callables of Columns without a plain form, gates) is asked of the context, which may refuse.
"""

from pipelines.aggregators.ordering import freeze
from pipelines.planner.plain.context import Evaluated, PlainContext
from pipelines.planner.plain.partitions import entering
from pipelines.planner.plain.steps import needs_spark, read, step
from pipelines.planner.plain.table import Row, Table, in_order, plain

__all__ = [
    "Evaluated",
    "PlainContext",
    "Row",
    "Table",
    "entering",
    "freeze",
    "in_order",
    "needs_spark",
    "plain",
    "read",
    "step",
]
