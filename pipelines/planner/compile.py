"""Graph -> Spark plan. One compiled plan serves streams and bounded input: only what enters differs.

A frame on its way carries its stream's fields and the engine's column `_slice`, so that one pass over bounded input keeps
its slices apart. Nothing here starts a Spark job.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import functions as F

from pipelines.graph import nodes
from pipelines.planner.functions import appended, condition, consumed, replaced
from pipelines.state.schema import SLICE_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pipelines.state.table import StateTable


class Context(Protocol):
    """What a plan needs from the run that it serves.

    Attributes:
        slices: of a bounded run its slices, each of which is a batch; None for a stream's batch.
    """

    slices: tuple[str, ...] | None

    def gate(self, node: nodes.GateNode, frame: DataFrame) -> DataFrame:
        """Let a frame pass a gate."""

    def shared(self, node: nodes.Node, frame: DataFrame) -> DataFrame:
        """A frame that two consumers read."""

    def state(self, name: str) -> tuple[StateTable, int | None]:
        """A state to query and the version to read it at."""


def column(name: str) -> Column:
    """A column by its exact name."""
    return F.col(f"`{name}`")


class Compiler:
    """Builds the frames of the wanted nodes from the frames of their spouts.

    Args:
        graph: the topology's graph.
        wanted: ids of the nodes whose frames are asked for (persists, a query's end).
        context: the run.
        spouts: frames of the spout nodes, by id, with the hidden columns.
    """

    def __init__(
        self, graph: nodes.Graph, wanted: tuple[int, ...], context: Context, spouts: dict[int, DataFrame]
    ) -> None:
        self._graph, self._context = graph, context
        self._frames = dict(spouts)
        self._hidden = {SLICE_COLUMN} if any(SLICE_COLUMN in frame.columns for frame in spouts.values()) else set()
        self._needed = {node.id for one in wanted for node in graph.ancestors(one)}
        self._wanted = wanted

    def frames(self) -> dict[int, DataFrame]:
        """The frames of the wanted nodes. A persist's frame is what it commits: keys and partial values, or the rows."""
        for node in self._graph:
            if node.id in self._needed:
                if node.id not in self._frames:
                    self._frames[node.id] = self._compile(node, self._frames[node.parents[0]])
                readers = sum(1 for child in self._graph.children(node.id) if child.id in self._needed)
                if readers > 1:
                    self._frames[node.id] = self._context.shared(node, self._frames[node.id])
        return {one: self._frames[one] for one in self._wanted}

    def _compile(self, node: nodes.Node, frame: DataFrame) -> DataFrame:
        compilers: dict[type[nodes.Node], Callable[[Any, DataFrame], DataFrame]] = {
            nodes.EachNode: appended,
            nodes.FilterNode: lambda n, f: f.where(condition(n)),
            nodes.MapNode: lambda n, f: replaced(n, f, self._kept()),
            nodes.PeekNode: lambda n, f: consumed(n, f, self._kept()),
            nodes.ProjectNode: lambda n, f: f.select(*(column(name) for name in n.fields), *self._kept()),
            nodes.AggregateNode: self._aggregate,
            nodes.GateNode: self._context.gate,
            nodes.StateQueryNode: self._state_query,
            nodes.PersistNode: self._persist,
        }
        return compilers[type(node)](node, frame)

    def _kept(self) -> list[Column]:
        return [column(name) for name in sorted(self._hidden)]

    def _aggregate(self, node: nodes.AggregateNode, frame: DataFrame) -> DataFrame:
        made = [
            a.aggregator.result(a.aggregator.partial(*(column(i) for i in a.inputs))).alias(a.output)
            for a in node.aggregations
        ]
        keys = [column(name) for name in node.group] + self._kept()
        grouped = frame.groupBy(*keys).agg(*made)
        slices = self._context.slices
        if slices is not None and not node.group and self._hidden:
            grouped = _with_zeros(node, grouped, slices)
        return grouped.select(*(column(name) for name in node.fields), *self._kept())

    def _persist(self, node: nodes.PersistNode, frame: DataFrame) -> DataFrame:
        if not node.aggregations:
            return frame.select(*(column(name) for name in node.inputs), *self._kept())
        partials = [a.aggregator.partial(*(column(i) for i in a.inputs)).alias(a.output) for a in node.aggregations]
        # Not a stream-wide agg(): an empty batch has no partial value to store, only a reader sees the zero.
        keys = [column(name) for name in node.group] + (self._kept() or [F.lit(0).alias("_all")])
        return frame.groupBy(*keys).agg(*partials).drop("_all")

    def _state_query(self, node: nodes.StateQueryNode, frame: DataFrame) -> DataFrame:
        table, version = self._context.state(node.state)
        spark = frame.sparkSession
        names = table.declared.keys
        values = node.outputs if set(node.outputs) <= set(table.declared.names) else table.declared.names[len(names) :]
        state = table.frame(spark, version=version)
        state = state.select(
            *(column(name).alias(f"_key{i}") for i, name in enumerate(names)),
            *(column(value).alias(output) for value, output in zip(values, node.outputs, strict=False)),
        )
        if not names:
            return frame.join(F.broadcast(state), how="left")
        same = [column(name).eqNullSafe(F.col(f"_key{i}")) for i, name in enumerate(node.inputs)]
        joined = frame.join(state, on=reduce(lambda a, b: a & b, same), how="left")
        return joined.select(*(column(name) for name in node.fields), *self._kept())


def _with_zeros(node: nodes.AggregateNode, grouped: DataFrame, slices: tuple[str, ...]) -> DataFrame:
    """A row of zeros for each slice without rows: a stream-wide aggregate of an empty batch (Trident rules 1.3)."""
    schema = grouped.schema
    wanted = grouped.sparkSession.createDataFrame([(one,) for one in slices], f"{SLICE_COLUMN} string")
    joined = wanted.join(grouped.withColumn("_there", F.lit(True)), SLICE_COLUMN, "left")
    outputs = []
    for a in node.aggregations:
        zero = F.lit(a.aggregator.finish(a.aggregator.zero())).cast(schema[a.output].dataType)
        outputs.append(F.when(F.col("_there"), column(a.output)).otherwise(zero).alias(a.output))
    return joined.select(*outputs, SLICE_COLUMN)
