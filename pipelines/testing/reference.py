"""The reference engine: an interpreter of a topology in plain Python, which says what the real engines must give.

It is written to be read, not to be fast: batches in order, one operation after the other, states as dicts. Only SQL
text and callables of Columns without a plain form are left to Spark, a step at a time (`pipelines.testing.spark_step`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.errors import UnknownQueryError, UnknownStateError
from pipelines.graph import nodes
from pipelines.graph.bolts import batch_groups
from pipelines.graph.fields import parse_ddl
from pipelines.planner.plan import answer_node
from pipelines.sources import FixedBatches
from pipelines.testing.steps import aggregate_types, partial_values, step
from pipelines.testing.table import Row, Table, freeze, in_order, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.trident import TridentTopology

Batch = Sequence[Sequence[Any] | Mapping[str, Any]]
States = dict[str, list[dict[str, Any]]]


@dataclass
class AggregateState:
    """A state of a persistent aggregate: by key, the key's fields and the folded values, unfinished."""

    node: nodes.PersistNode
    types: tuple[str | None, ...]
    values: dict[Any, tuple[Row, list[Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.node.group:
            # One that is not keyed has its zero from the start: a reader never sees nothing.
            self.values[()] = (), [a.aggregator.zero() for a in self.node.aggregations]

    def commit(self, table: Table) -> None:
        """Fold a batch into the state."""
        for key, partial in partial_values(table, self.node.group, self.node.aggregations):
            known = self.values.setdefault(freeze(key), (key, [a.aggregator.zero() for a in self.node.aggregations]))
            for i, a in enumerate(self.node.aggregations):
                known[1][i] = a.aggregator.combine(known[1][i], partial[i])

    def rows(self) -> list[dict[str, Any]]:
        """What a reader sees, by key."""
        return in_order((self._row(*entry) for entry in self.values.values()), self.node.group)

    def _row(self, key: Row, values: list[Any]) -> dict[str, Any]:
        finished = [a.aggregator.finish(v) for a, v in zip(self.node.aggregations, values, strict=True)]
        return dict(zip(self.node.fields, (*key, *finished), strict=True))


@dataclass
class RowsState:
    """A state that keeps the tuples themselves, commit after commit."""

    node: nodes.PersistNode
    commits: list[list[dict[str, Any]]] = field(default_factory=list)

    def commit(self, table: Table) -> None:
        self.commits.append(in_order(table.select(self.node.fields).dicts(), self.node.fields))

    def rows(self) -> list[dict[str, Any]]:
        """What a reader sees: commit order, and within a commit (where Spark keeps no order) by value."""
        return [row for commit in self.commits for row in commit]


class ReferenceEngine:
    """Runs batches of a topology, holds its states, answers its queries.

    Args:
        topology: what to interpret; it is not changed, and its own sources are not read.
        spark: for expressions that only Spark can evaluate; None: the active session, if one is needed.
    """

    def __init__(self, topology: TridentTopology, spark: SparkSession | None = None) -> None:
        self._topology, self._spark = topology, spark
        self._states: dict[str, AggregateState | RowsState] = {}
        for node in topology.persists:
            kind: Any = AggregateState(node, (None,) * len(node.fields)) if node.aggregations else RowsState(node)
            self._states[node.state.name] = kind

    @property
    def states(self) -> States:
        """Every state as a reader sees it now."""
        return {name: state.rows() for name, state in self._states.items()}

    def run(self, batches: Mapping[str, Sequence[Batch]]) -> None:
        """Run batches in order, one batch group after the other.

        Args:
            batches: by the name of a stream its batches, each a list of tuples (in the order of the source's fields) or
                of dicts.
        """
        for group in batch_groups(self._topology.graph):
            of_group = {name: batches.get(name, ()) for name in group.streams}
            for txid in range(max(len(found) for found in of_group.values())):
                given = {name: found[txid] if txid < len(found) else () for name, found in of_group.items()}
                self._run_batch(group.nodes, given, f"batch {txid}")

    def query(self, name: str, arguments: Batch) -> list[dict[str, Any]]:
        """The rows that answer a query: those of the last operation defined on its stream.

        Raises:
            UnknownQueryError: if the topology has no such query stream.
        """
        queries = self._topology.queries
        if name not in queries:
            raise UnknownQueryError(self._topology.name, name, tuple(queries))
        graph = self._topology.graph
        members = tuple(node.id for node in graph.descendants(queries[name].id))
        tables = self._run_batch(members, {name: arguments}, f"query {name}")
        answer = tables[answer_node(graph, queries[name].id).id]
        return [{key: plain(value) for key, value in row.items()} for row in answer.dicts()]

    def _run_batch(self, members: Sequence[int], given: Mapping[str, Batch], batch: str) -> dict[int, Table]:
        tables: dict[int, Table] = {}
        for node in (self._topology.graph[node_id] for node_id in members):
            if isinstance(node, nodes.SpoutNode):
                tables[node.id] = read(node.source.schema, given[node.stream])
            elif isinstance(node, nodes.QuerySpoutNode):
                tables[node.id] = read(node.schema, given[node.stream])
            elif isinstance(node, nodes.PersistNode):
                self._persist(node, tables[node.parents[0]])
            elif isinstance(node, nodes.StateQueryNode):
                tables[node.id] = self._state_query(node, tables[node.parents[0]])
            else:
                tables[node.id] = step(node, tables[node.parents[0]], self._spark, batch)
        return tables

    def _persist(self, node: nodes.PersistNode, table: Table) -> None:
        state = self._states[node.state.name]
        if isinstance(state, AggregateState):
            state.types = aggregate_types(table, node.group, node.aggregations)
        state.commit(table)

    def _state_query(self, node: nodes.StateQueryNode, table: Table) -> Table:
        """Nodes run in the order of their definition, so a query behind the persist sees the batch's own updates."""
        state = self._states.get(node.state)
        if not isinstance(state, AggregateState):
            raise UnknownStateError(node.state, tuple(self._states), "of the reference engine")
        group, values = state.node.group, [a.output for a in state.node.aggregations]
        wanted = node.outputs if set(node.outputs) <= set(values) else values
        found = {freeze(tuple(row[key] for key in group)): row for row in state.rows()}
        rows = []
        for row, key in zip(table.rows, table.select(node.inputs).rows, strict=True):
            held = found.get(freeze(key), {})
            rows.append(row + tuple(held.get(value) for value in wanted))
        types = tuple(state.types[state.node.fields.index(value)] for value in wanted)
        return Table(node.fields, table.types + types, tuple(rows))


def read(schema: str, batch: Batch) -> Table:
    """A batch as a table; whole numbers become floats where the schema says so, as in a real source."""
    source = FixedBatches(schema, [batch])
    types = tuple(kind for _, kind in parse_ddl(schema))
    rows = tuple(
        tuple(
            float(value) if kind in ("double", "float") and isinstance(value, int) else value
            for value, kind in zip(row, types, strict=True)
        )
        for row in source.batches[0]
    )
    return Table(source.fields, types, rows)
