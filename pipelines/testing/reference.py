"""The reference engine: an interpreter of a topology in plain Python, which says what the real engines must give.

It is written to be read, not to be fast: batches in order, one operation after the other (`pipelines.planner.plain`),
states as dicts. Only SQL text, callables of Columns without a plain form and gates are left to Spark, a step at a time
(`pipelines.testing.spark_step`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.errors import UnknownQueryError, UnknownStateError
from pipelines.graph import nodes
from pipelines.graph.bolts import batch_groups, node_tasks
from pipelines.planner.plain import PlainContext, Table, plain, read, step
from pipelines.planner.plain.queries import fixed_view
from pipelines.planner.plan import answer_node
from pipelines.state.views import StateView
from pipelines.testing.spark_step import SparkStep
from pipelines.testing.states import State, state_of
from pipelines.testing.task_windows import TaskWindows
from pipelines.trident.states import FixedState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.trident import TridentTopology

Batch = Sequence[Sequence[Any] | Mapping[str, Any]]
States = dict[str, list[dict[str, Any]]]


class ReferenceEngine:
    """Runs batches of a topology, holds its states, answers its queries.

    Args:
        topology: what to interpret; it is not changed, and its own sources are not read.
        spark: for expressions that only Spark can evaluate; None: the active session, if one is needed.
    """

    def __init__(self, topology: TridentTopology, spark: SparkSession | None = None) -> None:
        self._topology, self._spark = topology, SparkStep(spark)
        self._tasks = node_tasks(topology.graph)
        self._states: dict[str, State] = {
            node.state.name: state_of(node) for node in topology.persists if not isinstance(node, nodes.ChannelNode)
        }
        self._windows = TaskWindows(self._spark)
        self._fixed = {n.state.name: n.state for n in topology.static_states if isinstance(n.state, FixedState)}

    @property
    def states(self) -> States:
        """Every state as a reader sees it now."""
        return {name: state.rows() for name, state in self._states.items()}

    def run(self, batches: Mapping[str, Sequence[Batch]]) -> None:
        """Run batches in order, one batch group after the other; batch i of each stream of a group run together.

        Args:
            batches: by the name of a stream its batches, each a list of tuples (in the order of the source's fields) or
                of dicts.
        """
        for group in batch_groups(self._topology.graph):
            of_group = {name: batches.get(name, ()) for name in group.streams}
            windowed = [self._windows.batches(channel) for channel in self._channels(group.nodes)]
            for txid in range(max([*(len(found) for found in of_group.values()), *windowed], default=0)):
                given = {name: found[txid] if txid < len(found) else () for name, found in of_group.items()}
                self._run_batch(group.nodes, given, txid, f"batch {txid}")

    def query(self, name: str, arguments: Batch) -> list[dict[str, Any]]:
        """Return the rows that answer a query: those of the last operation defined on its stream.

        Raises:
            UnknownQueryError: if the topology has no such query stream.
        """
        queries = self._topology.queries
        if name not in queries:
            raise UnknownQueryError(self._topology.name, name, tuple(queries))
        graph = self._topology.graph
        members = tuple(node.id for node in graph.descendants(queries[name].id))
        tables = self._run_batch(members, {name: arguments}, 0, f"query {name}")
        answer = tables[answer_node(graph, queries[name].id).id]
        return [{key: plain(value) for key, value in row.items()} for row in answer.dicts()]

    def _channels(self, members: Sequence[int]) -> list[str]:
        """The channels that a batch group reads."""
        found = (self._topology.graph[one] for one in members)
        return [name for node in found if isinstance(node, nodes.ChannelSpoutNode) for name in node.reads]

    def _run_batch(self, members: Sequence[int], given: Mapping[str, Batch], txid: int, label: str) -> dict[int, Table]:
        """Nodes run in the order of their definition, so a query behind a persist sees the batch's own updates."""
        context = PlainContext(
            txid, label, self._tasks, self._spark.evaluate, self._spark.pass_gate, self._view, self._types
        )
        tables: dict[int, Table] = {}
        for node in (self._topology.graph[node_id] for node_id in members):
            tasks = context.tasks_of(node.id)
            if isinstance(node, nodes.ChannelSpoutNode):
                tables[node.id] = self._windows.read(node, txid)
            elif isinstance(node, nodes.EnterWindowNode):
                tables[node.id] = self._windows.enter(node, tables[node.parents[0]], txid)
            elif isinstance(node, nodes.OnTimeNode):
                tables[node.id] = self._windows.in_time(node, tables[node.parents[0]])
            elif isinstance(node, nodes.ChannelNode):
                tables[node.id] = self._windows.commit(node, tables[node.parents[0]], txid)
            elif isinstance(node, nodes.SpoutNode):
                tables[node.id] = read(node.source.schema, given[node.stream], tasks)
            elif isinstance(node, nodes.QuerySpoutNode):
                tables[node.id] = read(node.schema, given[node.stream], tasks)
            elif isinstance(node, nodes.PersistNode):
                state = self._states[node.state.name]
                tables[node.id] = state.commit(tables[node.parents[0]], tasks, txid)
            elif not isinstance(node, nodes.StaticStateNode):
                tables[node.id] = step(node, [tables[parent] for parent in node.parents], context)
        return tables

    def _view(self, name: str) -> StateView:
        if name in self._fixed:
            return fixed_view(self._fixed[name])
        if name not in self._states:
            raise UnknownStateError(name, tuple(self._states), "of the reference engine")
        return self._states[name].view()

    def _types(self, name: str) -> Mapping[str, str | None]:
        if name in self._fixed:
            return self._fixed[name].types
        return self._states[name].types() if name in self._states else {}
