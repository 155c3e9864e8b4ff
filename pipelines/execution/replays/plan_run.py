"""The flow's plan over replayed rows, as a batch of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipelines.execution.batch.plan_run import Base, PlanRun
from pipelines.execution.batch.quarantine import refused_by_gate, refused_by_source
from pipelines.execution.batch.slicing import with_slice
from pipelines.execution.replays.parsing import UNREADABLE
from pipelines.graph import nodes
from pipelines.planner.compile import Compiler
from pipelines.planner.step import REPLAYED
from pipelines.quality.compiled import compile_gate
from pipelines.sources.base import CORRUPT, FILE
from pipelines.state.schema import SLICE_COLUMN

if TYPE_CHECKING:
    from pipelines.execution.batch.group import BatchGroup
    from pipelines.quality.results import GateResult
    from pipelines.state.table import StateTable


class ReplayRun(PlanRun):
    """Builds the frames that a replay commits, and tells what is refused again.

    Args:
        group: the batch group.
        entry: where the rows enter.
        rows: a source's frame, or a gate's tuples, with `_replayed` and `_unreadable` (`parsing`).
        label: for messages.
        state: gives the table and version that a state query reads.
        base: gives what a map state held before the replay.
    """

    def __init__(
        self,
        group: BatchGroup,
        entry: nodes.SpoutNode | nodes.GateNode,
        rows: DataFrame,
        label: str,
        state: Callable[[str, bool], tuple[StateTable, int | None]],
        base: Callable[[str], Base],
    ) -> None:
        self._entry = entry
        self.results: dict[str, GateResult] = {}
        self._refused_rows: dict[str, DataFrame] = {}
        sources = {spout.id: _nothing(group, spout) for spout in group.spouts}
        if isinstance(entry, nodes.SpoutNode):
            sources[entry.id] = rows
        super().__init__(group, sources, label, state, base=base)
        self.entered = self._marked[entry.id] if isinstance(entry, nodes.SpoutNode) else self._cache(rows)

    def _enter(self, spout: nodes.SpoutNode, source: DataFrame) -> DataFrame:
        return self._cache(with_slice(spout, source))

    def frames(
        self, sinks: Iterable[int], left_out: Mapping[str, frozenset[str]], numbers: frozenset[int] = frozenset()
    ) -> dict[int, DataFrame]:
        """The frames of the given persist nodes, by node id.

        Args:
            left_out: none, ever: here rows are left out one by one.
            numbers: those rows.
        """
        spouts, given = {}, {}
        for spout in self.group.spouts:
            taken = self._without(self._marked[spout.id], numbers).where(~self._refused())
            fields = [*spout.fields, SLICE_COLUMN] if self.group.entrance.sliced else list(spout.fields)
            spouts[spout.id] = taken.select(*(f"`{name}`" for name in fields), REPLAYED)
        if isinstance(self._entry, nodes.GateNode):
            given[self._entry.id] = self.gate(self._entry, self._without(self.entered, numbers).drop(UNREADABLE))
        return Compiler(self.group.topology.graph, tuple(sinks), self, spouts, given).frames()

    def _without(self, frame: DataFrame, numbers: frozenset[int]) -> DataFrame:
        if not numbers:
            return frame
        gone = self.group.spark.createDataFrame(pa.table({REPLAYED: pa.array(sorted(numbers), pa.int64())}))
        return frame.join(F.broadcast(gone), REPLAYED, "left_anti")

    def gate(self, node: nodes.GateNode, frame: DataFrame) -> DataFrame:
        """Let a frame pass, at once: few rows come, and the verdict is there before anything is committed.

        Raises:
            GateError: it refuses all of them.
        """
        compiled = self.group.compiled_gate(node, frame.drop(REPLAYED), compile_gate)
        annotated = self._cache(compiled.annotate(frame))
        metrics = annotated.agg(*compiled.metrics()).collect()[0].asDict()
        found = compiled.verdict(metrics, compiled.run_batch_checks(annotated.drop(REPLAYED)))
        self.results[node.gate.name] = found
        found.raise_if_refused(self.label)
        if compiled.drop_names:
            also = [REPLAYED] if REPLAYED in annotated.columns else []
            self._refused_rows[node.gate.name] = refused_by_gate(
                compiled.dropped(annotated), node.gate.name, compiled.drop_names, node.fields, also
            )
        return compiled.kept(annotated)

    def refused_again(self) -> pa.Table:
        """What was refused of the rows that `frames` took last: as quarantine keeps it, with `_slice` and `_replayed`."""
        parts = list(self._refused_rows.values())
        if isinstance(self._entry, nodes.SpoutNode):
            marked = self._marked[self._entry.id].where(self._refused())
            parts.append(refused_by_source(marked, self._entry, [REPLAYED]))
        nothing = F.lit(None).cast("bigint").alias(REPLAYED)
        whole = [part if REPLAYED in part.columns else part.select("*", nothing) for part in parts]
        if not whole:
            return pa.table({REPLAYED: pa.array([], pa.int64())})
        return reduce(DataFrame.unionByName, whole).toArrow()


def _nothing(group: BatchGroup, spout: nodes.SpoutNode) -> DataFrame:
    """A source that gives no row."""
    own = [StructField(CORRUPT, StringType()), StructField(FILE, StringType()), StructField(REPLAYED, LongType())]
    return group.spark.createDataFrame([], StructType([*group.entrance.schema(spout).fields, *own]))
