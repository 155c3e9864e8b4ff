"""TridentTopology: where a topology begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipelines.errors import BadNameError, FunctionError, NotSliceableError
from pipelines.graph import nodes
from pipelines.graph.expressions import fields_of_sql
from pipelines.graph.fields import FieldNames, added, checked_name, parse_ddl, require
from pipelines.sources.base import Source
from pipelines.trident.combining import joined, merged, multi_reduced
from pipelines.trident.states import DeltaState, FixedState, TridentState
from pipelines.trident.steps import checked_resources, in_form
from pipelines.trident.stream import Stream

_JOINS = (("left", "left_fields", "right", "right_fields", "outputs"), ("streams", "fields", "outputs"))
_JOIN_TAKES = "takes (left, left_fields, right, right_fields, outputs) or ([streams], [fields], outputs)"


class TridentTopology:
    """A directed graph of spouts, operations and states.

    Args:
        name: the flow's name, `[a-z][a-z0-9_]*`; checkpoints, quarantine and Dagster assets carry it.
        description: one sentence for people.

    Raises:
        BadNameError: if the name is not legal.
    """

    def __init__(self, name: str, description: str = "") -> None:
        self.name = checked_name("topology", name)
        self.description = description
        self.graph = nodes.Graph()
        self.resource_defaults: dict[str, float] = {}
        self.coordinator_resources: dict[str, float] = {}
        self.on_channels: Callable[[], TridentTopology] | None = None
        """Compiles the same flow with its windows on channels, where they run in the batch of their source (docs/adr/0063)."""
        self._streams: set[str] = set()
        self._states: set[str] = set()
        self._gates: set[str] = set()

    def new_stream(self, name: str, source: Any, *, slice_by: str | None = None) -> Stream:
        """Return a stream of the batches of a source.

        Args:
            name: the stream's name, unique in the topology (Storm let two spouts share one).
            source: one of `pipelines.sources`, or a class of your own that derives from `Source`.
            slice_by: SQL over the source's fields that gives each row's slice (usually a date); it makes the states
                of this stream backfillable slice by slice.

        Raises:
            BadNameError: for a name that is not legal or is taken.
            FieldError: if `slice_by` names a field that the source does not have.
            FunctionError: if `source` is not a source.
            NotSliceableError: if it names a slice of a source that has none (Kafka, a rate, a change feed).
        """
        if not isinstance(source, Source):
            raise FunctionError(
                "new_stream",
                f"{source!r} is not a source",
                hint="use one of pipelines.sources, PythonSource for your own, or a class derived from Source",
            )
        fields = added("new_stream", tuple(source.fields), ())
        if slice_by is not None:
            if not source.sliceable:
                raise NotSliceableError(repr(source), f"new_stream {name} slice_by")
            require(f"new_stream {name} slice_by", fields_of_sql("slice_by", slice_by, fields), fields)
        return self._spout(nodes.SpoutNode, name, fields, source=source, slice_by=slice_by)

    def new_query_stream(self, name: str, schema: str = "args string") -> Stream:
        """Return a stream that queries enter (the DRPC use): each query is a batch of its own, its arguments are the fields.

        Args:
            name: the query's name, for `Runtime.query` and `tridelta query`.
            schema: the arguments as DDL, e.g. `"args string"`.
        """
        fields = tuple(column for column, _ in parse_ddl(schema))
        return self._spout(nodes.QuerySpoutNode, name, fields, schema=schema)

    def new_static_state(self, state: DeltaState | FixedState) -> TridentState:
        """Return a state that this topology only reads: a table of the lake that something else writes, or rows given in code.

        A query needs no static state for a table of the lake: `state_query("name", ...)` reads it as well.

        Raises:
            FunctionError: if it is neither.
            BadNameError: if the topology has a state of this name.
        """
        if not isinstance(state, DeltaState | FixedState):
            raise FunctionError(
                "new_static_state", f"{state!r} is not a state", hint="give a DeltaState or a FixedState"
            )
        self.claim_state(state.name)
        keys = tuple(state.keys) if isinstance(state, FixedState) else ()
        fields = state.fields if isinstance(state, FixedState) else ()
        node = self.graph.new(nodes.StaticStateNode, fields=fields, state=state, keys=keys)
        return TridentState(state, keys, node.values, node.id, Stream(self, node.id))

    def merge(self, *streams: Any, outputs: FieldNames | None = None) -> Stream:
        """Return the tuples of all streams as one; fields are matched by position (Trident rules 1.1).

        Args:
            streams: one or more, or one list of them, with the same number of fields.
            outputs: names of the fields; None: those of the first stream.

        Raises:
            FunctionError: if the numbers of fields differ, or a stream is of another topology.
            MixedSpoutsError: if one is a query stream.
        """
        given = streams[0] if len(streams) == 1 and isinstance(streams[0], list | tuple) else streams
        return merged(self, given, outputs)

    def join(self, *args: Any, kind: str | Sequence[str] = "inner", mode: str = nodes.COMPACT, **named: Any) -> Stream:
        """Join streams on equal fields, batch by batch (Trident rules 8); null equals null.

        `join(left, left_fields, right, right_fields, outputs)`, also by these names, or
        `join([s1, s2, s3], [f1, f2, f3], outputs)`.

        Args:
            args: the streams, their join fields, the names of the fields that come out.
            kind: `"inner"`, `"outer"` (any side may be absent: its fields are null), or one of them for each side:
                `mixed(INNER, OUTER)` keeps every tuple of the left.
            mode: `"compact"`: the join fields once, then the other fields of each stream; `"preserve"`: all fields of
                each stream in their own order, the join fields repeated.

        Raises:
            FieldError: if a join field is not there.
            FunctionError: if numbers of streams, fields, kinds or outputs do not fit.
            MixedSpoutsError: if one is a query stream.
        """
        if named:
            args = in_form("join", args, named, _JOINS, _JOIN_TAKES)
        if len(args) == 5:
            return joined(self, [args[0], args[2]], [args[1], args[3]], args[4], kind, mode)
        if len(args) == 3 and all(isinstance(arg, list | tuple) for arg in args[:2]):
            return joined(self, args[0], args[1], args[2], kind, mode)
        raise FunctionError("join", _JOIN_TAKES)

    def multi_reduce(
        self, streams: Sequence[Any], inputs: Sequence[FieldNames | None] | None, reducer: Any, outputs: Any
    ) -> Stream:
        """Reduce the tuples of several streams together, per partition of a batch, or per group (Trident rules 1.1).

        Args:
            streams: streams, or grouped streams with the same number of group fields.
            inputs: for each stream the fields that the reducer sees (None: all); None: all of all.
            reducer: a MultiReducer.
            outputs: the fields that come out, exactly these (a group's own fields are the reducer's to emit): names, or
                a schema with types (`"word string, n bigint"`).

        Raises:
            FieldError, FunctionError, MixedSpoutsError: as of `join`.
        """
        return multi_reduced(self, streams, inputs, reducer, outputs)

    def set_resource_defaults(self, **kinds: float) -> TridentTopology:
        """Return what each operation needs that does not say it itself: `set_resource_defaults(cpu=10, memory=128)`."""
        self.resource_defaults.update(checked_resources("set_resource_defaults", kinds))
        return self

    def set_coordinator_resources(self, **kinds: float) -> TridentTopology:
        """Return what a batch group's coordinator (the driver) needs, over the defaults."""
        self.coordinator_resources.update(checked_resources("set_coordinator_resources", kinds))
        return self

    def _spout(
        self, kind: type[nodes.SpoutNode] | type[nodes.QuerySpoutNode], name: str, fields: tuple[str, ...], **more: Any
    ) -> Stream:
        self.claim_stream(checked_name("stream", name))
        return Stream(self, self.graph.new(kind, fields=fields, name=name, stream=name, **more).id)

    def claim_stream(self, name: str) -> None:
        """Take a stream's name: it is its own."""
        if name in self._streams:
            raise BadNameError("stream", name, "is taken by another stream of this topology")
        self._streams.add(name)

    def claim_state(self, name: str) -> None:
        """Take a state's name: a state has one writer, since two would mix their txids; and a static state is not written."""
        if name in self._states:
            raise BadNameError("state", name, "is taken by another state of this topology")
        self._states.add(name)

    def claim_gate(self, name: str) -> None:
        """Take a gate's name: it is its own."""
        if name in self._gates:
            raise BadNameError("gate", name, "is taken by another gate of this topology")
        self._gates.add(name)

    @property
    def gates(self) -> frozenset[str]:
        """Return the names of its gates."""
        return frozenset(self._gates)

    @property
    def spouts(self) -> tuple[nodes.SpoutNode, ...]:
        return tuple(node for node in self.graph if isinstance(node, nodes.SpoutNode))

    @property
    def queries(self) -> dict[str, nodes.QuerySpoutNode]:
        """Query streams by name."""
        return {node.stream: node for node in self.graph if isinstance(node, nodes.QuerySpoutNode)}

    @property
    def persists(self) -> tuple[nodes.PersistNode, ...]:
        return tuple(node for node in self.graph if isinstance(node, nodes.PersistNode))

    @property
    def static_states(self) -> tuple[nodes.StaticStateNode, ...]:
        return tuple(node for node in self.graph if isinstance(node, nodes.StaticStateNode))

    def holder_of(self, state: str) -> nodes.PersistNode | nodes.StaticStateNode | None:
        """Return the node that writes a state or names it as static; None if it is not of this topology."""
        holders: tuple[nodes.PersistNode | nodes.StaticStateNode, ...] = (*self.persists, *self.static_states)
        return next((node for node in holders if node.state.name == state), None)

    def spouts_of(self, node_id: int) -> tuple[nodes.SpoutNode | nodes.QuerySpoutNode, ...]:
        """Return the spouts whose tuples can reach a node, in the order of their definition."""
        ancestors = self.graph.ancestors(node_id)
        return tuple(node for node in ancestors if isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode))

    def build(self) -> Any:
        """Return the plan of this topology: bolts, spouts, batch groups, lineage, `to_mermaid()`.

        Raises:
            DefinitionError: if the topology has no stream.
        """
        from pipelines.planner import TopologyPlan

        return TopologyPlan.of(self)
