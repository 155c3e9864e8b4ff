"""The nodes of one query of a flow: operations over events as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pipelines.aggregators.window import WindowAggregator
from pipelines.errors import FlowError
from pipelines.flowmix import operations as ops
from pipelines.flowmix.criteria import Criteria
from pipelines.flowmix.definition import Schema
from pipelines.flowmix.flow import window_context
from pipelines.flowmix.row_calls import (
    Calls,
    Expressions,
    Matches,
    Types,
    anonymous,
    any_there,
    nothing,
    readable,
)
from pipelines.flowmix.schemas import after, require_fields, several_fields, sides_behind
from pipelines.graph import events, nodes
from pipelines.graph.expressions import fields_of_sql
from pipelines.graph.fields import storable
from pipelines.sources.channels import ChannelInput
from pipelines.sources.events import PROCESSING, EventSource
from pipelines.state.kinds import ROWS
from pipelines.trident.functions import ColumnFunction, RowFunction
from pipelines.trident.states import DeltaState
from pipelines.windows.operations import AggregateWindow, SpanWindow

if TYPE_CHECKING:
    from pyspark.sql import Column

    from pipelines.flowmix.definition import StreamDefinition
    from pipelines.flowmix.flow import Flow
    from pipelines.trident.topology import TridentTopology

PUBLIC = {events.ID: events.PUBLIC_ID, events.TIME: events.PUBLIC_TIME}


def known(flow: Flow, stream: StreamDefinition, schema: Schema | None, at: object) -> Types:
    """Return the fields with their Spark SQL types."""
    unknown = [name for name, kind in (schema or {}).items() if not kind]
    if schema is not None and not unknown:
        return {name: kind for name, kind in schema.items() if kind}
    raise FlowError(
        flow.name,
        f"Spark needs the types of all fields, and does not know that of {', '.join(unknown) or 'any'}",
        stream=stream.name,
        at=at,
        hint='where a function makes fields, say so: each(function, schema="v bigint, k string")',
    )


class NodeChain:
    """Nodes one after the other in a graph, from a spout; `types` are the fields of the last one."""

    def __init__(self, flow: Flow, stream: StreamDefinition, graph: nodes.Graph, node: int, types: Types) -> None:
        self.flow, self.stream, self.graph, self.node, self.types = flow, stream, graph, node, types
        self.pruned = False
        """Whether what stands here carries only what the windows behind it read."""
        self.sides: Mapping[str, Schema | None] = {}
        """What each stream sent of the fields that stand here, for joins; a stream that is not there: all of them."""

    def add(self, kind: type[nodes.Node], at: nodes.CodeLocation, **more: Any) -> int:
        more.setdefault("fields", (*self.types, *events.COLUMNS))
        self.node = self.graph.new(kind, (self.node,), name=self.stream.name, at=at, **more).id
        return self.node

    def branch(self) -> NodeChain:
        """Return a second chain from here."""
        return NodeChain(self.flow, self.stream, self.graph, self.node, dict(self.types))

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """Return the fields and their types."""
        return tuple(self.types.items())

    def step(self, index: int) -> None:
        """Add an operation that works on one event at a time."""
        operation = self.stream.operations[index]
        self._check_fields(operation)
        if isinstance(operation, ops.Select):
            self.types = {name: self.types[name] for name in operation.fields}
            self.add(nodes.ProjectNode, operation.at)
            self._where_any(operation)
        elif isinstance(operation, ops.Compute):
            self._compute(operation)
        elif isinstance(operation, ops.Filter):
            self.where(operation.criteria, operation.at, index)
        elif isinstance(operation, ops.Each):
            self._each(operation, index)
        elif isinstance(operation, ops.Stateful):
            self._windows(operation, index)
        self.sides = sides_behind(operation, self.sides)

    def _check_fields(self, operation: ops.Operation) -> None:
        """Check an operation's fields; behind an `each` that does not say its schema they are those that it was given."""
        require_fields(f'flow "{self.flow.name}", at {operation.at}', operation, self.types)

    def after(self, operation: ops.Operation) -> Types:
        """Return the fields behind an operation."""
        return known(self.flow, self.stream, after(operation, self.types, self.sides), operation.at)

    def filter(self, predicate: Any, at: nodes.CodeLocation, inputs: tuple[str, ...] | None = None) -> None:
        self.add(nodes.FilterNode, at, inputs=inputs or (*self.types, *events.COLUMNS), predicate=predicate)

    def where(self, criteria: Criteria, at: nodes.CodeLocation, index: int) -> None:
        """Keep the events for which the criteria of operation `index` hold, and every watermark row."""
        several = several_fields(self.flow, self.stream, index)
        if not criteria.columnar:
            # Python among other criteria: all of them in Python, over plain values (what only Spark answers is not among them).
            self.filter(RowFunction(Matches(criteria, tuple(self.types), several)), at)
            return
        types = dict(self.types)

        def holds(*_: Column) -> Column:
            from pyspark.sql import functions as F

            return F.col(events.ID).isNull() | criteria.column(types)

        self.filter(ColumnFunction(holds, str(criteria)), at)

    def order_as(self, change: Callable[[Column], Column], label: str, at: nodes.CodeLocation) -> None:
        """Rewrite the order of the events."""
        names = (*self.types, *events.COLUMNS)

        def rewritten(*columns: Column) -> tuple[Column, ...]:
            return (*columns[:-1], change(columns[-1]))

        assert names[-1] == events.ORDER
        same = {name: (name,) for name in names}
        self.add(nodes.MapNode, at, fields=names, function=ColumnFunction(rewritten, label, lineage=same))

    def _compute(self, operation: ops.Compute) -> None:
        self.types = operation.schema
        origins = {name: fields_of_sql("compute", text) for name, _, text in operation.outputs}
        function = ColumnFunction(
            Expressions(operation.outputs), operation.label, lineage={**origins, **{c: (c,) for c in events.COLUMNS}}
        )
        self.add(nodes.MapNode, operation.at, function=function)
        self._where_any(operation)

    def _where_any(self, operation: ops.Operation) -> None:
        """Keep the events that have a value of a field, and every watermark row."""
        self.filter(ColumnFunction(any_there(self.types), operation.label), operation.at, (*self.types, events.ID))

    def _each(self, operation: ops.Each, index: int) -> None:
        before = tuple(self.types)
        self.types = dict(operation.schema) or self.types
        several = several_fields(self.flow, self.stream, index)
        call = Calls(operation, before, tuple(self.types), several)
        types = (*self.types.values(), *events.TYPES)
        own = {name: (name,) for name in events.COLUMNS} | dict.fromkeys(self.types, before)
        self.add(nodes.MapNode, operation.at, function=RowFunction(call, types, own), flat=True)

    def _windows(self, operation: ops.Stateful, index: int) -> None:
        self.prune(operation, index)
        self._window(nodes.WindowNode, operation, index, origins=self._origins())

    def _origins(self) -> tuple[str, ...]:
        # The first windows hear the channels' watermark rows, those behind it the first ones'.
        spout: Any = next(iter(self.graph))
        first = not any(isinstance(node, nodes.WindowNode) for node in self.graph)
        return spout.source.channels if first else ("",)

    def _window(self, kind: type[nodes.WindowNode], operation: ops.Stateful, index: int, **more: Any) -> None:
        self.types, self.pruned = self.after(operation), False
        self.add(
            kind,
            operation.at,
            operation=operation.operation,
            context=window_context(self.flow, self.stream, index),
            key=operation.partition,
            types=(*self.types.values(), *events.TYPES),
            **more,
        )

    def prune(self, operation: ops.Stateful, index: int) -> None:
        """Leave out the fields that the windows of operation `index` do not read."""
        window = operation.operation
        if not isinstance(window, AggregateWindow | SpanWindow):
            return
        if any(isinstance(aggregator, WindowAggregator) for aggregator in window.aggregators):
            return
        if self.pruned:
            return
        self.pruned = True
        wanted = operation.named
        if set(wanted) < set(self.types):
            self.types = {name: kind for name, kind in self.types.items() if name in wanted}
            self.add(nodes.ProjectNode, operation.at)
        if isinstance(window, SpanWindow) and window_context(self.flow, self.stream, index).depth:
            # Behind other windows an event's own time says in which span it is.
            return
        # Nor do they need an event's id or its own time: a word of text an event is half of what travels.
        origins = {name: (name,) for name in (*self.types, *events.COLUMNS)} | {events.ID: (), events.TIME: ()}
        self.add(nodes.MapNode, operation.at, function=ColumnFunction(anonymous, "anonymous", lineage=origins))

    def public(self, at: nodes.CodeLocation) -> tuple[str, ...]:
        """Make the event's id and time fields that people read; returns the names of all fields that they see."""
        taken = {name.lower() for name in self.types}
        made = {shown: name for name, shown in PUBLIC.items() if shown not in taken}
        if made:
            fields = (*self.types, *events.COLUMNS, *made)
            origins = {name: (column,) for name, column in made.items()}
            function = ColumnFunction(readable(tuple(made.values())), "event", lineage=origins)
            self.add(
                nodes.EachNode, at, fields=fields, inputs=tuple(made.values()), function=function, outputs=tuple(made)
            )
        return (*self.types, *made)


class QuerySteps(NodeChain):
    """The chain of a query in the topology's own graph: with tables, gates, channels, and its prelude."""

    def __init__(
        self, topology: TridentTopology, graph: nodes.Graph, flow: Flow, stream: StreamDefinition, *, ordered: bool
    ) -> None:
        super().__init__(flow, stream, graph, 0, {})
        self._topology, self._ordered = topology, ordered
        self._spout: Any = None
        self._late = False
        self._bare = False
        self._on_time = False
        """Whether what stands here is all in time: results of windows."""

    @property
    def at_start(self) -> bool:
        """Return whether nothing stands behind the query's channels yet."""
        return self._bare

    def begin(self, kind: type[nodes.SpoutNode], name: str, types: Types, **more: Any) -> None:
        """Start a query at a source or at channels."""
        self.types = types
        self._spout = self.graph.new(kind, name=name, at=self.stream.at, stream=name, **more)
        self._late, self._bare = False, kind is nodes.ChannelSpoutNode
        self._on_time = False
        self.node = self._spout.id

    def enter_prelude(self, first: int, end: int) -> None:
        """Put the operations from `first` up to before `end` into the stream itself."""
        graph = nodes.Graph()
        spout = self._spout
        own = {"name": spout.name, "stream": spout.stream, "source": spout.source}
        inner = graph.new(nodes.SpoutNode, at=spout.at, fields=spout.fields, **own)
        chain = NodeChain(self.flow, self.stream, graph, inner.id, self.types)
        chain.sides, chain.pruned = self.sides, self.pruned
        for index in range(first, end):
            chain.step(index)
        self.types, self.sides = chain.types, chain.sides
        ddl = ", ".join(f"`{name}` {kind}" for name, kind in self.types.items())
        self._spout = nodes.ChannelSpoutNode(
            id=spout.id,
            parents=(),
            fields=(*self.types, *events.COLUMNS),
            at=self.stream.operations[end - 1].at,
            prelude=graph,
            schema=f"{ddl}, {events.DDL}",
            **own,
        )
        self.graph.put(self._spout)
        # What follows is the batch's.
        self._bare = self.pruned = False

    def step(self, index: int) -> None:
        self._bare = False
        operation = self.stream.operations[index]
        if isinstance(operation, ops.Split):
            if operation.default is None:
                self.filter(ColumnFunction(nothing, "nothing"), operation.at, (events.ID,))
            else:
                self.where(operation.default, operation.at, index)
        elif isinstance(operation, ops.Persist):
            self._table(operation.table, operation.at)
        elif isinstance(operation, ops.Output):
            self._table(f"{self.flow.name}_{self.stream.name}", operation.at)
        elif isinstance(operation, ops.GateOn):
            self._topology.claim_gate(operation.gate.name)
            self.add(nodes.GateNode, operation.at, gate=operation.gate)
        else:
            super().step(index)

    def _table(self, name: str, at: nodes.CodeLocation) -> None:
        """Append the events to a table: their fields, id and time."""
        chain = self.branch()
        fields = chain.public(at)
        if self._ordered:
            fields = (*fields, *events.COLUMNS)
        chain.add(nodes.ProjectNode, at, fields=fields)
        self._persist(chain, name, fields, at)

    def _persist(
        self,
        chain: NodeChain,
        name: str,
        fields: tuple[str, ...],
        at: nodes.CodeLocation,
        kind: type[nodes.PersistNode] = nodes.PersistNode,
    ) -> None:
        storable(fields)
        self._topology.claim_state(name)
        chain.add(kind, at, fields=fields, inputs=fields, state=DeltaState(name, layout=ROWS))

    def send(self, index: int, path: int, channel: str, *, numbered: bool) -> ChannelInput:
        """Send what has come so far along one path of operation `index`, into a channel."""
        operation = self.stream.operations[index]
        chain = self.branch()
        if isinstance(operation, ops.Split) and path >= len(operation.all):
            chain.where(operation.paths[path - len(operation.all)][1], operation.at, index)
        suffix = ops.sent_order("", self.stream.index, index, path)

        def sent(order: Column) -> Column:
            from pyspark.sql import functions as F

            return F.concat(order, F.lit(suffix))

        chain.order_as(sent, "send", operation.at)
        self._into(chain, channel, operation.at)
        return ChannelInput(self.stream.name, channel, numbered, chain.shown)

    def window_in_batch(self, index: int, channel: str) -> None:
        """Add the windows of operation `index`, over the events that are in time; the late ones go to their table.

        Args:
            channel: what the channel in front of the first ones would be called; here the name of their watermark.
        """
        operation = self.stream.operations[index]
        assert isinstance(operation, ops.Stateful)
        self.prune(operation, index)
        if self._on_time:
            self._window(nodes.BatchWindowNode, operation, index, origins=("",), channel=channel, behind=True)
            return
        self.add(nodes.OnTimeNode, operation.at, channel=channel)
        self._keep_late(channel, operation.at)
        delay = self.stream.delay * 1000
        self._window(nodes.BatchWindowNode, operation, index, origins=(self.stream.name,), channel=channel, delay=delay)
        self._on_time = True

    def channel(self, name: str, index: int, *, numbered: bool) -> ChannelInput:
        """End the query in a channel of the stream's own, in front of operation `index`."""
        operation = self.stream.operations[index] if index < len(self.stream.operations) else None
        if isinstance(operation, ops.Stateful):
            self.prune(operation, index)
        self._into(self.branch(), name, operation.at if operation else self.stream.at)
        return ChannelInput(self.stream.name, name, numbered, self.shown, own=True)

    def _into(self, chain: NodeChain, channel: str, at: nodes.CodeLocation) -> None:
        delay = 0
        if isinstance(self._spout.source, EventSource) and self._in_event_time:
            delay = self.stream.delay * 1000
            if not self._on_time:
                chain.add(nodes.OnTimeNode, at, channel=channel)
                self._keep_late(channel, at)
        fields = (*chain.types, *events.COLUMNS)
        storable(fields)
        state = DeltaState(channel, layout=ROWS)
        chain.add(nodes.ChannelNode, at, fields=fields, inputs=fields, state=state, delay=delay)

    @property
    def _in_event_time(self) -> bool:
        return self.flow.clock != PROCESSING and self.stream.event_timestamp is not None

    def _keep_late(self, channel: str, at: nodes.CodeLocation) -> None:
        """Keep the events that came behind the watermark, as the source gave them, in a table of their own; once per query."""
        if self._late:
            return
        self._late = True
        own = self.stream.source_schema
        types = {name: kind for name, kind in own.items() if kind and name not in events.COLUMNS}
        chain = NodeChain(self.flow, self.stream, self.graph, self._spout.id, types)
        chain.add(nodes.OnTimeNode, at, channel=channel, late=True)
        fields = chain.public(at)
        chain.add(nodes.ProjectNode, at, fields=fields)
        self._persist(chain, f"late_{self.flow.name}_{self.stream.name}", fields, at, nodes.LatePersistNode)
