"""The reference engine: an interpreter of a topology in plain Python, which says what the real engines must give.

It is written to be read, not to be fast: batches in order, one operation after the other (`pipelines.planner.plain`),
states as dicts. Only SQL text, callables of Columns without a plain form and gates are left to Spark, a step at a time
(`pipelines.testing.spark_step`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pipelines.aggregators import CombinerAggregator
from pipelines.aggregators.calls import emitted
from pipelines.errors import DuplicateKeyError, UnknownQueryError, UnknownStateError
from pipelines.graph import events, nodes
from pipelines.graph.arrow_types import arrow_type
from pipelines.graph.bolts import dealt_by, node_tasks, running_order
from pipelines.graph.types import check_said
from pipelines.planner.plain import PlainContext, Row, Table, entering, freeze, in_order, plain, read, step
from pipelines.planner.plain.context import fitted
from pipelines.planner.plain.partitions import by_hash
from pipelines.planner.plain.queries import fixed_view
from pipelines.planner.plain.steps import aggregate_types, kinds_of, running
from pipelines.planner.plan import answer_node
from pipelines.state.kinds import LOG
from pipelines.state.views import MapState, StateView
from pipelines.testing.flow_reference import milliseconds
from pipelines.testing.spark_step import SparkStep
from pipelines.trident.states import FixedState
from pipelines.windows.event import Event
from pipelines.windows.keyed import KeyedWindows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.trident import TridentTopology

Rows = list[dict[str, Any]]


class ReferenceState(Protocol):
    """A state that a batch commits into: dicts and lists. A batch runs once, so a state's kind is of no account."""

    def commit(self, table: Table, tasks: int, batch: int) -> Table:
        """Take in a batch; gives what `new_values_stream` shows: the keys that it touched, with their new values."""

    def rows(self) -> Rows:
        """Return what a reader sees: by key, None first; rows in commit order."""

    def view(self) -> StateView:
        """Return what a function sees."""

    def types(self) -> dict[str, str | None]:
        """Return the types of the columns, as far as they are known."""


def state_of(node: nodes.PersistNode) -> ReferenceState:
    """Return an empty state for what a node persists."""
    if node.updater is not None:
        return UpdatedState(node)
    return AggregateState(node) if node.aggregations else RowsState(node)


class _Keyed(ABC):
    """A state that holds a row per key."""

    node: nodes.PersistNode

    @abstractmethod
    def types(self) -> dict[str, str | None]:
        """Return the types of the columns, as far as they are known."""

    @abstractmethod
    def _held(self) -> list[Row]:
        """Return all rows: keys, then values."""

    def rows(self) -> Rows:
        return in_order((dict(zip(self.node.fields, row, strict=True)) for row in self._held()), self.node.group)

    def view(self) -> StateView:
        keys, types = len(self.node.group), self.types()
        own = [arrow_type(types.get(name)) for name in self.node.group]
        return StateView.of_rows(self.node.fields[:keys], self.node.fields[keys:], self._held(), own)


@dataclass
class AggregateState(_Keyed):
    """A persistent aggregate: by key, the key's fields and the folded values, unfinished."""

    node: nodes.PersistNode
    values: dict[Any, tuple[Row, list[Any]]] = field(default_factory=dict)
    known: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.node.group and self.node.state.layout == LOG:
            # A log that is not keyed has its zero from the start: a reader never sees nothing.
            self.values[()] = (), [a.aggregator.zero() for a in self.node.aggregations]

    def commit(self, table: Table, tasks: int, batch: int) -> Table:
        self.known = aggregate_types(table, self.node.group, self.node.aggregations)
        types = self.types()
        if all(table.types):
            check_said(f"at {self.node.at}: {self.node.label}", self.node.said, types)
        kinds = [kinds_of(a, types) for a in self.node.aggregations]
        touched = []
        stored = {frozen: values for frozen, (_, values) in self.values.items()}
        chains = running(table, self.node.group, self.node.aggregations, batch, stored) if table.rows else ()
        for key, chain in chains:
            new = [fitted(self.node.label, own, [(link.state,)])[0][0] for own, link in zip(kinds, chain, strict=True)]
            self.values[freeze(key)] = key, new
            touched.append(self._row(key, new))
        shown = Table(self.node.fields, self.known, tuple(touched))
        return by_hash(shown, self.node.group, tasks) if self.node.group else shown

    def _held(self) -> list[Row]:
        return [self._row(*entry) for entry in self.values.values()]

    def types(self) -> dict[str, str | None]:
        return dict(zip(self.node.fields, self.known, strict=False))

    def _row(self, key: Row, values: list[Any]) -> Row:
        finished = (
            a.aggregator.finish(value) if isinstance(a.aggregator, CombinerAggregator) else value
            for a, value in zip(self.node.aggregations, values, strict=True)
        )
        return (*key, *finished)


@dataclass
class RowsState:
    """A state that keeps the tuples themselves, commit after commit."""

    node: nodes.PersistNode
    commits: list[Rows] = field(default_factory=list)
    known: tuple[str | None, ...] = ()

    def commit(self, table: Table, tasks: int, batch: int) -> Table:
        kept = table.select(self.node.fields)
        self.known = kept.types
        self.commits.append(in_order(kept.dicts(), self.node.fields))
        return kept

    def rows(self) -> Rows:
        """Return rows in commit order, and within a commit (where Spark keeps no order) by value."""
        return [row for commit in self.commits for row in commit]

    def view(self) -> StateView:
        return _Tuples(self.node.fields, [tuple(row.values()) for row in self.rows()])

    def types(self) -> dict[str, str | None]:
        return dict(zip(self.node.fields, self.known, strict=False))


@dataclass
class UpdatedState(_Keyed):
    """A state that a user's updater writes. Each task's updater sees what the state held before the batch."""

    node: nodes.PersistNode
    held: dict[Row, Row] = field(default_factory=dict)

    def commit(self, table: Table, tasks: int, batch: int) -> Table:
        inputs, before = table.select(self.node.inputs), self.view()
        made, numbers, changed = list[Row](), list[int](), dict[Row, Row | None]()
        for task, part in enumerate(inputs.by_task(tasks)):
            if not part.rows:
                continue
            state = MapState(before, [arrow_type(kind) for _, kind in self.node.updater.key_columns])
            given = self.node.updater.update_state(state, list(part.rows))
            if self.node.outputs:
                rows = fitted(self.node.label, self.node.types, emitted(self.node.label, given, len(self.node.outputs)))
                made += rows
                numbers += [task] * len(rows)
            elif isinstance(given, Iterator):
                list(given)  # a generator's body runs as it is read
            self._take(changed, {**state.puts, **dict.fromkeys(state.removed)})
        for key, values in changed.items():
            if values is None:
                self.held.pop(key, None)
            else:
                self.held[key] = values
        shown = Table(self.node.outputs, self.node.types, tuple(made))
        return shown.dealt(numbers if tasks > 1 else None)

    def _take(self, changed: dict[Row, Row | None], new: dict[Row, Row | None]) -> None:
        kinds, nothing = [kind or "" for kind in self.types().values()], (None,) * len(self.node.updater.value_columns)
        for key, values in new.items():
            if key in changed:
                raise DuplicateKeyError(list(key))
            row = fitted(self.node.label, kinds, [(*key, *(values or nothing))])[0]
            changed[key] = None if values is None else row[len(key) :]

    def _held(self) -> list[Row]:
        return [(*key, *values) for key, values in self.held.items()]

    def types(self) -> dict[str, str | None]:
        return dict((*self.node.updater.key_columns, *self.node.updater.value_columns))


class _Tuples(StateView):
    """Rows without keys, repeated ones too."""

    by_key = False

    def __init__(self, fields: Sequence[str], rows: list[Row]) -> None:
        self.keys, self.values, self._rows = (), tuple(fields), rows

    def tuples(self) -> list[Row]:
        return self._rows

    def _find(self, keys: Sequence[Any]) -> dict[Any, Row]:
        """Return nothing: nothing is kept by key."""
        return {}


Batch = Sequence[Sequence[Any] | Mapping[str, Any]]
States = dict[str, list[dict[str, Any]]]
Entered = list[tuple[Event, int, str]]

BATCH_MILLIS = 1000
"""The time between two batches of windows that go by arrival, one second."""


class ReferenceEngine:
    """Runs batches of a topology, holds its states, answers its queries.

    Args:
        topology: what to interpret; it is not changed, and its own sources are not read.
        spark: for expressions that only Spark can evaluate; None: the active session, else the process's, if one is needed.
    """

    def __init__(self, topology: TridentTopology, spark: SparkSession | None = None) -> None:
        self._topology, self._spark = topology, SparkStep(spark)
        self._tasks = node_tasks(topology.graph)
        self._states: dict[str, ReferenceState] = {
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
        for group in running_order(self._topology.graph):
            of_group = {name: batches.get(name, ()) for name in group.streams}
            windowed = [self._windows.batches(channel) for channel in self._channels(group.nodes)]
            for txid in range(max([*(len(own) for own in of_group.values()), *windowed], default=0)):
                given = {name: own[txid] if txid < len(own) else () for name, own in of_group.items()}
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
        """List the channels that a batch group reads."""
        steps = (self._topology.graph[node_id] for node_id in members)
        return [name for node in steps if isinstance(node, nodes.ChannelSpoutNode) for name in node.reads]

    def _run_batch(self, members: Sequence[int], given: Mapping[str, Batch], txid: int, label: str) -> dict[int, Table]:
        """Run nodes in the order of their definition, so that a query behind a persist sees the batch's own updates."""
        context = PlainContext(
            txid, label, self._tasks, self._spark.evaluate, self._spark.pass_gate, self._view, self._types
        )
        tables: dict[int, Table] = {}
        for node in (self._topology.graph[node_id] for node_id in members):
            tasks, parents = context.tasks_of(node.id), entering(node, self._topology.graph, tables, context)
            if isinstance(node, nodes.ChannelSpoutNode):
                tables[node.id] = by_hash(self._windows.read(node, txid), dealt_by(node), tasks)
            elif isinstance(node, nodes.EnterWindowNode):
                tables[node.id] = self._windows.enter(node, parents[0], txid)
            elif isinstance(node, nodes.OnTimeNode):
                tables[node.id] = self._windows.in_time(node, parents[0])
            elif isinstance(node, nodes.ChannelNode):
                tables[node.id] = self._windows.commit(node, parents[0], txid)
            elif isinstance(node, nodes.SpoutNode):
                tables[node.id] = read(node.source.schema, given[node.stream], tasks)
            elif isinstance(node, nodes.QuerySpoutNode):
                tables[node.id] = read(node.schema, given[node.stream], tasks)
            elif isinstance(node, nodes.PersistNode):
                state = self._states[node.state.name]
                tables[node.id] = state.commit(parents[0], tasks, txid)
            elif not isinstance(node, nodes.StaticStateNode):
                tables[node.id] = step(node, parents, context)
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


class TaskWindows:
    """The channels into the windows of a topology, and the windows: what enters them batch by batch, and what they give."""

    def __init__(self, spark: SparkStep) -> None:
        self._spark = spark
        self._entered: dict[str, list[tuple[Entered, int | None]]] = {}
        self._clocks: dict[str, int] = {}
        self._windows: dict[int, KeyedWindows] = {}

    def batches(self, channel: str) -> int:
        """Return how many batches have been committed into a channel."""
        return len(self._entered.get(channel, ()))

    def enter(self, node: nodes.EnterWindowNode, table: Table, txid: int) -> Table:
        """Return tuples as events: their inputs, their task and their clock."""
        inputs = table.select(node.inputs)
        if node.timestamp is None:
            clocks: list[int] = [txid * BATCH_MILLIS] * len(table.rows)
        else:
            times = self._spark.evaluate(table, node.timestamp, ("at",), "window timestamp").rows
            clocks = [events.EARLIEST - 1 if rows[0][0] is None else milliseconds(rows[0][0]) for rows in times]
        rows = tuple(
            (*row, table.task_of(n), "", clock, clock, "", f"000.{txid:08x}{n:016x}")
            for n, (row, clock) in enumerate(zip(inputs.rows, clocks, strict=True))
        )
        return Table(node.fields, (*inputs.types, "int", *events.TYPES), rows)

    def in_time(self, node: nodes.OnTimeNode, table: Table) -> Table:
        """Return the tuples that the watermark has not passed, or those that it has."""
        mark = self._clocks.get(node.channel)
        first = events.EARLIEST if mark is None else max(mark, events.EARLIEST)
        late = [not first <= clock < events.BEYOND for clock in table.column(events.CLOCK)]
        return table.take([n for n, is_late in enumerate(late) if is_late == node.late])

    def commit(self, node: nodes.ChannelNode, table: Table, txid: int) -> Table:
        """Take a batch into a channel."""
        name = node.state.name
        rows = table.dicts()
        entered = [
            (
                Event(_fields(row), row[events.ID], row[events.TIME], row[events.FROM]),
                row[events.CLOCK],
                row[events.ORDER],
            )
            for row in rows
        ]
        latest = [clock for _, clock, _ in entered] if node.clock != nodes.NOW else [txid * BATCH_MILLIS]
        marks = [*(clock - node.delay for clock in latest), *([self._clocks[name]] if name in self._clocks else [])]
        if marks:
            self._clocks[name] = max(marks)
        self._entered.setdefault(name, []).append((entered, self._clocks.get(name)))
        return table

    def read(self, node: nodes.ChannelSpoutNode, txid: int) -> Table:
        """Return the results of the windows over one batch of their channel."""
        window = list(node.prelude)[-1]
        assert isinstance(window, nodes.WindowNode)
        windows = self._windows.setdefault(node.id, KeyedWindows(window.operation, window.context))
        given = self._entered.get(node.reads[0], [])
        entered, clock = given[txid] if txid < len(given) else ([], None)
        results = [] if clock is None else windows.feed(sorted(entered, key=lambda item: item[1:]), clock)
        rows = tuple(
            (*(plain(event.get(name)) for name in node.fields[: -len(events.COLUMNS)]), event.id, event.timestamp, at,
             event.stream, order)
            for event, at, order in results
        )  # fmt: skip
        kinds = [kind or "" for kind in window.types]
        return Table(node.fields, tuple(kind or None for kind in kinds), tuple(fitted(window.label, kinds, list(rows))))


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in events.COLUMNS}
