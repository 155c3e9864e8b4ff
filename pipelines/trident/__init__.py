"""The Trident API: topologies of streams, operations and states."""

from pipelines.aggregators import (
    Aggregator,
    Average,
    Collect,
    CombinerAggregator,
    Count,
    DistinctCount,
    FirstN,
    Max,
    Min,
    ReducerAggregator,
    Sum,
)
from pipelines.graph.nodes import COMPACT, PRESERVE
from pipelines.state.kinds import LOG, MAP, NON_TRANSACTIONAL, OPAQUE, ROWS, TRANSACTIONAL
from pipelines.trident.aggregation import ChainedAggregation
from pipelines.trident.combining import INNER, OUTER, mixed
from pipelines.trident.counters import count
from pipelines.trident.functions import (
    ArrowFunction,
    ColumnFunction,
    Debug,
    Equals,
    FilterNull,
    Not,
    RowFunction,
    Split,
    arrow_function,
    row_function,
)
from pipelines.trident.grouped import GroupedStream
from pipelines.trident.states import DeltaState, FixedState, TridentState
from pipelines.trident.stream import Stream
from pipelines.trident.topology import TridentTopology
from pipelines.trident.user_code import (
    Assembly,
    MapGet,
    MultiReducer,
    QueryFunction,
    SnapshotGet,
    StateUpdater,
    TupleCollectionGet,
)
from pipelines.trident.windowing import (
    AlignedDurationWindow,
    SessionDurationWindow,
    SlidingCountWindow,
    SlidingDurationWindow,
    TumblingCountWindow,
    TumblingDurationWindow,
    WindowConfig,
)

__all__ = [
    "COMPACT",
    "INNER",
    "LOG",
    "MAP",
    "NON_TRANSACTIONAL",
    "OPAQUE",
    "OUTER",
    "PRESERVE",
    "ROWS",
    "TRANSACTIONAL",
    "Aggregator",
    "AlignedDurationWindow",
    "ArrowFunction",
    "Assembly",
    "Average",
    "ChainedAggregation",
    "Collect",
    "ColumnFunction",
    "CombinerAggregator",
    "Count",
    "Debug",
    "DeltaState",
    "DistinctCount",
    "Equals",
    "FilterNull",
    "FirstN",
    "FixedState",
    "GroupedStream",
    "MapGet",
    "Max",
    "Min",
    "MultiReducer",
    "Not",
    "QueryFunction",
    "ReducerAggregator",
    "RowFunction",
    "SessionDurationWindow",
    "SlidingCountWindow",
    "SlidingDurationWindow",
    "SnapshotGet",
    "Split",
    "StateUpdater",
    "Stream",
    "Sum",
    "TridentState",
    "TridentTopology",
    "TumblingCountWindow",
    "TumblingDurationWindow",
    "TupleCollectionGet",
    "WindowConfig",
    "arrow_function",
    "count",
    "mixed",
    "row_function",
]
