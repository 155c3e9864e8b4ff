"""The Trident API: topologies of streams, operations and states."""

from pipelines.aggregators import Aggregator, Average, CombinerAggregator, Count, Max, Min, ReducerAggregator, Sum
from pipelines.trident.functions import ArrowFunction, ColumnFunction, RowFunction, arrow_function, row_function
from pipelines.trident.operations import MapGet, QueryFunction, SnapshotGet, Split
from pipelines.trident.states import TRANSACTIONAL, DeltaState, TridentState
from pipelines.trident.stream import GroupedStream, Stream
from pipelines.trident.topology import TridentTopology

__all__ = [
    "TRANSACTIONAL",
    "Aggregator",
    "ArrowFunction",
    "Average",
    "ColumnFunction",
    "CombinerAggregator",
    "Count",
    "DeltaState",
    "GroupedStream",
    "MapGet",
    "Max",
    "Min",
    "QueryFunction",
    "ReducerAggregator",
    "RowFunction",
    "SnapshotGet",
    "Split",
    "Stream",
    "Sum",
    "TridentState",
    "TridentTopology",
    "arrow_function",
    "row_function",
]
