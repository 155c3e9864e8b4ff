"""Stream and GroupedStream: the fluent half of the Trident API. Every line is checked when it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipelines.errors import FunctionError
from pipelines.graph import nodes
from pipelines.graph.expressions import fields_of_sql
from pipelines.graph.fields import FieldNames, added, checked_name, require, storable
from pipelines.trident.aggregation import parse_aggregations
from pipelines.trident.functions import ColumnFunction, as_function, as_predicate
from pipelines.trident.queries import check_query
from pipelines.trident.states import LOG, ROWS, DeltaState, TridentState, state_name

if TYPE_CHECKING:
    from pipelines.trident.topology import TridentTopology


class Stream:
    """Tuples of named fields, cut in batches. Immutable: each operation returns a new stream.

    Field arguments take a name or a list of names. An operation that names a field that is not there raises FieldError
    at its own line; one that adds a field that is there raises DuplicateFieldError.
    """

    def __init__(self, topology: TridentTopology, node: int, name: str | None = None) -> None:
        self._topology, self._node, self._name = topology, node, name

    @property
    def output_fields(self) -> tuple[str, ...]:
        """The fields of the stream's tuples, in order."""
        return self._topology.graph[self._node].fields

    @property
    def node(self) -> int:
        """Id of the node whose output this stream is."""
        return self._node

    def name(self, name: str) -> Stream:
        """The same stream; operations that follow carry the name (Trident rules 1.2, metadata)."""
        return Stream(self._topology, self._node, checked_name("stream", name))

    def each(self, *args: Any) -> Stream:
        """Append fields, or keep tuples.

        `each(inputs, function, outputs)` or `each(function, outputs)` appends the function's outputs: a tuple for which
        it gives no row is dropped, n rows repeat it n times. `each(inputs, filter)` keeps the tuples for which the
        filter is true.

        Raises:
            FieldError, DuplicateFieldError, FunctionError: at this line.
        """
        if len(args) == 3:
            inputs, given, outputs = args
        elif len(args) == 2 and not isinstance(args[0], str | list | tuple):
            inputs, given, outputs = None, args[0], args[1]
        elif len(args) == 2:
            return self.filter(*args)
        else:
            raise FunctionError("each", "takes (inputs, function, outputs), (function, outputs) or (inputs, filter)")
        wanted = require("each", inputs, self.output_fields)
        function, names = as_function("each", given, outputs)
        if not names:
            raise FunctionError("each", f"{function} has no output field")
        new = added("each", names, self.output_fields)
        return self._add(nodes.EachNode, fields=self.output_fields + new, inputs=wanted, function=function, outputs=new)

    def filter(self, *args: Any) -> Stream:
        """Keep the tuples for which it is true: `filter(predicate)` over all fields, or `filter(inputs, predicate)`.

        The predicate is SQL text, a callable of Columns, or a RowFunction over plain values; null counts as false.
        """
        if len(args) not in (1, 2):
            raise FunctionError("filter", "takes (predicate) or (inputs, predicate)")
        predicate = as_predicate("filter", args[-1])
        inputs = require("filter", args[0], self.output_fields) if len(args) == 2 else self.output_fields
        if isinstance(predicate, str):
            inputs = require("filter", fields_of_sql("filter", predicate), inputs)
        return self._add(nodes.FilterNode, inputs=inputs, predicate=predicate)

    def map(self, function: Any, outputs: FieldNames | None = None) -> Stream:
        """Replace each tuple by one: the function takes all fields; `outputs` defaults to the fields that are there."""
        return self._map("map", function, outputs, flat=False)

    def flat_map(self, function: Any, outputs: FieldNames | None = None) -> Stream:
        """Replace each tuple by any number: as `map`, with a generator Column or a Python generator."""
        return self._map("flat_map", function, outputs, flat=True)

    def _map(self, operation: str, given: Any, outputs: FieldNames | None, *, flat: bool) -> Stream:
        function, names = as_function(operation, given, outputs)
        new = added(operation, names or self.output_fields, ())
        if not isinstance(function, ColumnFunction) and len(function.types) != len(new):
            raise FunctionError(operation, f"{function} gives {len(function.types)} field(s), not {', '.join(new)}")
        return self._add(nodes.MapNode, fields=new, function=function, flat=flat)

    def peek(self, consumer: Any) -> Stream:
        """Call `consumer(row: dict)` with every tuple, in the worker that holds it, and pass the tuple on unchanged."""
        if not callable(consumer):
            raise FunctionError("peek", f"{consumer!r} is not a function")
        return self._add(nodes.PeekNode, consumer=consumer)

    def project(self, fields: FieldNames) -> Stream:
        """Keep exactly `fields`, in the given order."""
        return self._add(nodes.ProjectNode, fields=added("project", require("project", fields, self.output_fields), ()))

    def group_by(self, fields: FieldNames) -> GroupedStream:
        """Group the tuples of each batch by `fields`."""
        group = added("group_by", require("group_by", fields, self.output_fields), ())
        if not group:
            raise FunctionError(
                "group_by", "takes at least one field", hint="aggregate the stream itself for one group"
            )
        return GroupedStream(self, group)

    def aggregate(self, *args: Any) -> Stream:
        """Aggregate each batch to one tuple: `aggregate([fields,] aggregator, output)` or `aggregate([aggregators])`.

        An empty batch gives the aggregator's zero (Trident rules 1.3).
        """
        return self._aggregate((), args)

    def _aggregate(self, group: tuple[str, ...], args: tuple[Any, ...]) -> Stream:
        found = parse_aggregations("aggregate", args, self.output_fields)
        fields = group + added("aggregate", [one.output for one in found], group)
        return self._add(nodes.AggregateNode, fields=fields, group=group, aggregations=found)

    def persistent_aggregate(self, state: DeltaState, *args: Any) -> TridentState:
        """Keep an aggregate of the whole stream: `persistent_aggregate(state, [fields,] aggregator, output)`."""
        return self._persistent_aggregate(state, (), args)

    def _persistent_aggregate(self, state: DeltaState, group: tuple[str, ...], args: tuple[Any, ...]) -> TridentState:
        found = parse_aggregations("persistent_aggregate", args, self.output_fields)
        values = added("persistent_aggregate", [one.output for one in found], group)
        return self._persist(state, LOG, group, values, group=group, aggregations=found)

    def partition_persist(
        self, state: DeltaState, fields: FieldNames | None = None, updater: Any = None
    ) -> TridentState:
        """Keep the tuples themselves in a state: all fields, or `fields`. One append a batch."""
        if updater is not None:
            raise FunctionError(
                "partition_persist", "a user's own updater is not supported", hint="leave `updater` out"
            )
        inputs = require("partition_persist", fields, self.output_fields) or self.output_fields
        return self._persist(state, ROWS, (), added("partition_persist", inputs, ()), inputs=inputs)

    def _persist(
        self, state: DeltaState, layout: str, keys: tuple[str, ...], values: tuple[str, ...], **more: Any
    ) -> TridentState:
        operation = "partition_persist" if layout == ROWS else "persistent_aggregate"
        if not isinstance(state, DeltaState):
            raise FunctionError(operation, f"{state!r} is not a state", hint='write DeltaState("name")')
        if state.layout not in (None, layout):
            raise FunctionError(
                operation, f'state "{state.name}" has layout {state.layout}; this operation writes {layout}'
            )
        fields = keys + values
        storable(fields)
        self._topology.claim_state(state.name)
        stream = self._add(nodes.PersistNode, fields=fields, state=state, **more)
        return TridentState(state, keys, values, stream.node, stream)

    def state_query(
        self, state: TridentState | DeltaState | str, fields: FieldNames | None, function: Any, outputs: FieldNames
    ) -> Stream:
        """Append what a state holds for each tuple: `state_query(state, fields, MapGet(), outputs)`.

        Inside a stream the state is read as of the batch's own txid; in a query stream at the latest committed batch.
        """
        return self._state_query((), state, fields, function, outputs)

    def _state_query(
        self,
        group: tuple[str, ...],
        state: TridentState | DeltaState | str,
        fields: FieldNames | None,
        function: Any,
        outputs: FieldNames,
    ) -> Stream:
        name = state_name(state)
        inputs = require("state_query", fields, self.output_fields)
        new = added("state_query", outputs, self.output_fields)
        # By name and not by the handle's node: the handle may be another topology's.
        writer = next((node for node in self._topology.persists if node.state.name == name), None)
        check_query(name, writer, inputs, function, new)
        return self._add(
            nodes.StateQueryNode,
            fields=self.output_fields + new,
            state=name,
            state_node=writer.id if writer else None,
            inputs=inputs,
            function=function,
            outputs=new,
            group=group,
        )

    def gate(self, *checks: Any, name: str | None = None) -> Stream:
        """Put data checks here: `gate(warn(...), drop(...), fail(...), name=...)` or `gate(Gate(...))`.

        Rows that a `drop` check refuses go to quarantine; a `fail` check fails the batch before anything is committed
        behind the gate; `warn` only reports.
        """
        from pipelines.quality import Gate

        gate = checks[0] if len(checks) == 1 and isinstance(checks[0], Gate) else None
        gate = gate or Gate(name or self._topology.next_gate_name(), tuple(checks))
        gate.validate(self.output_fields)
        self._topology.claim_gate(gate.name)
        return self._add(nodes.GateNode, gate=gate)

    def _add(self, kind: type[nodes.Node], *, fields: Sequence[str] | None = None, **more: Any) -> Stream:
        graph = self._topology.graph
        node = kind(
            id=graph.next_id(),
            parents=(self._node,),
            fields=self.output_fields if fields is None else tuple(fields),
            name=self._name,
            at=nodes.CodeLocation.of_caller(),
            **more,
        )
        return Stream(self._topology, graph.add(node).id, self._name)


class GroupedStream:
    """A stream whose aggregates are per group; made by `Stream.group_by`."""

    def __init__(self, stream: Stream, group: tuple[str, ...]) -> None:
        self._stream, self._group = stream, group

    @property
    def group_fields(self) -> tuple[str, ...]:
        return self._group

    @property
    def output_fields(self) -> tuple[str, ...]:
        return self._stream.output_fields

    def name(self, name: str) -> GroupedStream:
        """The same grouped stream; operations that follow carry the name."""
        return GroupedStream(self._stream.name(name), self._group)

    def to_stream(self) -> Stream:
        """The stream without its grouping."""
        return self._stream

    def each(self, *args: Any) -> GroupedStream:
        """As `Stream.each`; the grouping stays."""
        return GroupedStream(self._stream.each(*args), self._group)

    def aggregate(self, *args: Any) -> Stream:
        """Aggregate each group of each batch; an empty batch gives nothing. Fields: the group's, then the outputs."""
        return self._stream._aggregate(self._group, args)

    def persistent_aggregate(self, state: DeltaState, *args: Any) -> TridentState:
        """Keep an aggregate a key over all batches: `persistent_aggregate(state, [fields,] aggregator, output)`.

        `persistent_aggregate(state, [Count("n"), Sum("x", "sum_x")])` keeps several values a key in one state.
        """
        return self._stream._persistent_aggregate(state, self._group, args)

    def state_query(
        self, state: TridentState | DeltaState | str, fields: FieldNames | None, function: Any, outputs: FieldNames
    ) -> Stream:
        """As `Stream.state_query`, with the tuples brought to the partition of their key first."""
        return self._stream._state_query(self._group, state, fields, function, outputs)
