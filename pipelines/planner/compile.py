"""Graph -> Spark plan. One compiled plan serves streams and bounded input: only what enters differs.

A frame on its way carries its stream's fields and the engine's hidden columns: `_slice`, so that one pass over bounded
input keeps its slices apart, and where something needs them `_task` and `_order` (`step.py`). Nothing here starts a Spark
job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pipelines.graph import nodes
from pipelines.graph.bolts import copies_taken, dealt_by, is_spout, node_tasks
from pipelines.graph.types import check_said
from pipelines.planner.aggregates import aggregated, extreme, multi_reduced
from pipelines.planner.functions import appended, consumed, kept, replaced
from pipelines.planner.joins import joined
from pipelines.planner.partitioning import entered, hidden_needs, merged, repartitioned
from pipelines.planner.persists import new_values, persisted, read_by
from pipelines.planner.siblings import Siblings
from pipelines.planner.state_queries import queried
from pipelines.planner.step import TASK, Context, Step, columns, is_checked, text_of, type_of
from pipelines.planner.windows import entering, on_time, windowed, windowed_in_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Compiler", "Context"]


class Compiler:
    """Builds the frames of the wanted nodes from the frames of their spouts.

    Args:
        wanted: ids of the nodes whose frames are asked for (persists, a query's end).
        spouts: frames of the spout nodes, by id: their fields, and `_slice` if the run has slices.
        given: frames of other nodes, by id, that are not to be worked out: what leads to them is not looked at.
        siblings: persists among the wanted ones that get one frame, with the rows of all.
    """

    def __init__(
        self,
        graph: nodes.Graph,
        wanted: tuple[int, ...],
        context: Context,
        spouts: Mapping[int, DataFrame],
        given: Mapping[int, DataFrame] | None = None,
        siblings: Sequence[Siblings] = (),
    ) -> None:
        self._graph, self._context, self._spouts = graph, context, spouts
        self._given = given or {}
        self._siblings = {family.first.id: family for family in siblings}
        first = {member.id: family.first.id for family in siblings for member in family.members}
        self._places = {node_id: first.get(node_id, node_id) for node_id in wanted}
        self._wanted = tuple(dict.fromkeys(self._places.values()))
        self._frames: dict[int, DataFrame] = {}
        self._sources = self._read_from()
        self._tasks, self._copies = node_tasks(graph), copies_taken(graph)
        self._needs = hidden_needs(graph, self._sources, self._tasks)

    def frames(self) -> dict[int, DataFrame]:
        """Return the frames of the wanted nodes. A persist's frame is what it commits (`persists.py`)."""
        readers = [parent for parents in self._sources.values() for parent in parents] + list(self._wanted)
        for node in self._graph:
            if node.id in self._sources:
                frame = self._compile(node)
                self._frames[node.id] = self._context.shared(node, frame) if readers.count(node.id) > 1 else frame
        return {node_id: self._frames[place] for node_id, place in self._places.items()}

    @property
    def reads_source(self) -> bool:
        """Check whether a spout is read. Not where all wanted stands on what an updater emitted, which was kept."""
        return any(is_spout(self._graph[node_id]) for node_id in self._sources)

    def _read_from(self) -> dict[int, tuple[int, ...]]:
        """Return for each node that is needed the nodes whose frames it reads.

        They are its parents, but for new values (`read_by`).
        """
        sources: dict[int, tuple[int, ...]] = {}
        waiting = list(self._wanted)
        while waiting:
            node = self._graph[waiting.pop()]
            if node.id not in sources:
                parents = node.parents
                if isinstance(node, nodes.NewValuesNode):
                    parents = read_by(node, self._graph, self._context)
                if node.id in self._given:
                    parents = ()
                sources[node.id] = parents
                waiting += parents
        return sources

    def _compile(self, node: nodes.Node) -> DataFrame:
        needed, tasks = self._needs[node.id], self._tasks[node.id]
        if node.id in self._given:
            return entered(self._given[node.id], node.fields, needed, tasks)
        if is_spout(node):
            assert node.id in self._spouts, f"the run gives no frame for {node.label}"
            return entered(self._spouts[node.id], dealt_by(node), needed, tasks)
        step = Step(
            node=node,
            frames=tuple(self._entering(node, parent) for parent in self._sources[node.id]),
            graph=self._graph,
            context=self._context,
            tasks=tasks,
            before=tuple(self._tasks[parent] for parent in node.parents),
            needed=needed,
        )
        siblings = self._siblings.get(node.id)
        frame = _COMPILERS[type(node)](step) if siblings is None else siblings.rows(step)
        if node.said and not is_checked(self._context):
            said = {name: text_of(type_of(str(kind))) for name, kind in node.said.items()}
            comes = {field.name: text_of(field.dataType) for field in frame.schema.fields}
            check_said(f"at {node.at}: {node.label}", said, comes)
        return frame

    def _entering(self, node: nodes.Node, parent: int) -> DataFrame:
        """Return a parent's frame, its tuples in the tasks that the node has.

        A repartition in front of bolts of different parallelism deals to the most of them; of a broadcast's copies each
        task takes its own. What the node itself deals stays where it is.
        """
        above, frame = self._graph[parent], self._frames[parent]
        tasks, before = self._tasks[node.id], self._tasks[parent]
        if TASK not in frame.columns:
            return frame
        if isinstance(above, nodes.PartitionNode) and above.kind == nodes.BROADCAST:
            copies = self._copies.get((node.id, parent), tasks)
            frame = frame.where(F.col(TASK) < copies) if copies < before else frame
        if isinstance(node, nodes.PartitionNode) or before == tasks:
            return frame
        return frame.withColumn(TASK, F.pmod(TASK, F.lit(tasks))) if tasks > 1 else frame.drop(TASK)


_COMPILERS: dict[type[nodes.Node], Callable[[Step], DataFrame]] = {
    nodes.EachNode: lambda step: appended(step.node, step.frame),
    nodes.FilterNode: lambda step: kept(step.node, step.frame),
    nodes.MapNode: lambda step: replaced(step.node, step.frame, step.parent().fields, step.kept),
    nodes.PeekNode: lambda step: consumed(step.node, step.frame),
    nodes.ProjectNode: lambda step: step.frame.select(*columns(step.node.fields), *step.kept),
    nodes.PartitionNode: repartitioned,
    nodes.GateNode: lambda step: step.context.gate(step.node, step.frame),
    nodes.MergeNode: merged,
    nodes.AggregateNode: aggregated,
    nodes.ExtremeNode: extreme,
    nodes.JoinNode: joined,
    nodes.MultiReduceNode: multi_reduced,
    nodes.NewValuesNode: new_values,
    nodes.StateQueryNode: queried,
    nodes.PersistNode: persisted,
    nodes.ChannelNode: persisted,
    nodes.LatePersistNode: persisted,
    nodes.OnTimeNode: on_time,
    nodes.EnterWindowNode: entering,
    nodes.WindowNode: windowed,
    nodes.BatchWindowNode: windowed_in_batch,
}
"""The step of each node, by its class: a node's frame from its parents' frames."""

_ENTRANCES = (nodes.SpoutNode, nodes.QuerySpoutNode, nodes.ChannelSpoutNode, nodes.StaticStateNode)
"""Nodes whose frames the run gives; a static state has none."""

nodes.check_all_known("the planner", _COMPILERS, _ENTRANCES)
