"""Aggregators; topologies and event flows use the same ones."""

from pipelines.aggregators.assoc_count import AssocCount, GroupCount
from pipelines.aggregators.average import Average
from pipelines.aggregators.base import Aggregator, ColumnAggregator, CombinerAggregator, ReducerAggregator
from pipelines.aggregators.collect import Collect
from pipelines.aggregators.count import Count
from pipelines.aggregators.distinct_count import DistinctCount
from pipelines.aggregators.ends import FirstN, LastN
from pipelines.aggregators.extremes import Max, Min
from pipelines.aggregators.std_dev import StdDev
from pipelines.aggregators.sum import Sum
from pipelines.aggregators.window import Accumulator, EventAggregator, WindowAggregator

BUILT_IN: dict[str, type[ColumnAggregator]] = {
    kind.__name__: kind for kind in (Count, Sum, Min, Max, Average, DistinctCount, Collect)
}
"""The aggregators that a state table can name in its metadata."""

__all__ = [
    "BUILT_IN",
    "Accumulator",
    "Aggregator",
    "AssocCount",
    "Average",
    "Collect",
    "ColumnAggregator",
    "CombinerAggregator",
    "Count",
    "DistinctCount",
    "EventAggregator",
    "FirstN",
    "GroupCount",
    "LastN",
    "Max",
    "Min",
    "ReducerAggregator",
    "StdDev",
    "Sum",
    "WindowAggregator",
]
