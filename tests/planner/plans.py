"""Plans of a few rows, compiled and collected: no streams, no states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipelines.graph import nodes
from pipelines.planner.compile import Compiler
from pipelines.sources.fixed import arrow_rows
from pipelines.trident import Stream

Rows = Sequence[tuple[Any, ...]]


class Run:
    """A context without gates. `states` gives the frame, view and keys of a state by its name."""

    def __init__(self, slices: tuple[str, ...] | None = None, txid: int | None = None, **states: Any) -> None:
        self.slices, self.txid, self.states = slices, txid, states
        self.kept: list[DataFrame] = []

    def gate(self, node: nodes.GateNode, frame: DataFrame) -> DataFrame:
        return frame

    def shared(self, node: nodes.Node, frame: DataFrame) -> DataFrame:
        self.kept.append(frame.persist())
        return self.kept[-1]

    def state(self, name: str, behind: bool = True) -> Any:
        return self.states[name]


def source(spark: SparkSession, schema: str, rows: Rows, slices: Sequence[str] | None = None) -> DataFrame:
    """A spout's frame; with `slices` the slice of each row."""
    if slices is None:
        return spark.createDataFrame(arrow_rows("test", schema, rows))
    given = [(*row, one) for row, one in zip(rows, slices, strict=True)]
    return spark.createDataFrame(arrow_rows("test", f"{schema}, _slice string", given))


def frame_of(stream: Stream, frames: Mapping[str, DataFrame], run: Run | None = None) -> DataFrame:
    """The frame of a stream's node, from the frames of the spouts by name."""
    graph = stream._topology.graph
    spouts = {node.id: frames[node.stream] for node in graph if isinstance(node, nodes.SpoutNode)}
    return Compiler(graph, (stream.node,), run or Run(), spouts).frames()[stream.node]


def rows_of(stream: Stream, frames: Mapping[str, DataFrame], run: Run | None = None) -> list[tuple[Any, ...]]:
    """The stream's tuples, in order of their values as text; with the slice last if the run has slices."""
    frame = frame_of(stream, frames, run)
    names = [*stream.output_fields, *(["_slice"] if "_slice" in frame.columns else [])]
    return sorted((tuple(row) for row in frame.select(*(f"`{name}`" for name in names)).collect()), key=repr)
