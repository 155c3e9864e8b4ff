"""Writing states and asking them: the half of Stream that meets the lake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

from pipelines.aggregators import BUILT_IN, Aggregator, CombinerAggregator
from pipelines.errors import BadNameError, FunctionError
from pipelines.graph import nodes
from pipelines.graph.fields import FieldNames, added, as_names, require, require_shown, storable
from pipelines.graph.types import check_meeting, known_types
from pipelines.state.kinds import LOG, MAP, OPAQUE, ROWS
from pipelines.trident.aggregation import by_position, check_types, parse_aggregations
from pipelines.trident.functions import output_schema
from pipelines.trident.states import DeltaState, FixedState, TridentState, state_name
from pipelines.trident.steps import Steps
from pipelines.trident.user_code import (
    MapGet,
    QueryFunction,
    SnapshotGet,
    StateUpdater,
    TupleCollectionGet,
    check_defines,
)

if TYPE_CHECKING:
    from pipelines.trident.stream import Stream

_BUILT_IN = (MapGet, SnapshotGet, TupleCollectionGet)


@dataclass(frozen=True)
class Shape:
    """The columns of a state, as far as its topology says them. `by_key` is false for a state of tuples."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    by_key: bool = True

    @classmethod
    def of(cls, node: nodes.Node | None) -> Shape | None:
        """Return the schema that the node which writes or names the state declares; None if only its table can tell."""
        if isinstance(node, nodes.PersistNode):
            return cls(node.group, node.fields[len(node.group) :], bool(node.aggregations or node.updater))
        if isinstance(node, nodes.StaticStateNode) and isinstance(node.state, FixedState):
            return cls(node.keys, tuple(name for name in node.fields if name not in node.keys))
        return None


def check_query(
    state: str, shape: Shape | None, inputs: tuple[str, ...], function: Any, outputs: tuple[str, ...]
) -> None:
    """Check a query against its state.

    Args:
        shape: its columns; None for a state of another flow, which is checked at the start.
        inputs: the fields that are matched with the state's keys.

    Raises:
        FunctionError: if the function does not suit the state, or the number of inputs is not that of its keys.
    """
    if not isinstance(function, QueryFunction):
        raise FunctionError(
            "state_query",
            f"{function!r} is not a query function",
            hint="use MapGet(), SnapshotGet(), TupleCollectionGet() or a subclass of QueryFunction",
        )
    check_defines("state_query", function, QueryFunction, "batch_retrieve")
    if not outputs:
        raise FunctionError("state_query", f"{function} has no output field")
    if isinstance(function, SnapshotGet) and inputs:
        raise FunctionError("state_query", f"SnapshotGet reads the one value of a state; got the fields {list(inputs)}")
    if isinstance(function, MapGet) and not inputs:
        raise FunctionError("state_query", "MapGet needs the fields to match with the state's keys")
    if shape is None:
        return
    if isinstance(function, TupleCollectionGet):
        _check_tuples(state, shape, outputs)
    elif isinstance(function, MapGet | SnapshotGet):
        _check_values(state, shape, inputs, outputs)


def query_types(function: QueryFunction, outputs: tuple[str, ...], types: tuple[str, ...]) -> tuple[str, ...]:
    """Return the types of the outputs of a function written in Python; of a built-in one, whose are the state's, as written."""
    if isinstance(function, _BUILT_IN):
        return types
    types = types or as_names(function.returns)
    if len(types) != len(outputs):
        raise FunctionError(
            "state_query",
            f"{function} does not say the types of {', '.join(outputs)}",
            hint=f'write the outputs as a schema ("{outputs[0]} bigint") or set `returns`',
        )
    return types


def _check_tuples(state: str, shape: Shape, outputs: tuple[str, ...]) -> None:
    require_shown("state_query", outputs, shape.keys + shape.values, f'state "{state}" has')


def _check_values(state: str, shape: Shape, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    if not shape.by_key:
        raise FunctionError(
            "state_query",
            f'state "{state}" keeps rows and has no values by key to ask for',
            hint="use TupleCollectionGet() for all of them",
        )
    if len(inputs) != len(shape.keys):
        raise FunctionError(
            "state_query",
            f'state "{state}" has the keys {list(shape.keys)}; got the fields {list(inputs)}',
            hint="use MapGet() with one field per key, or SnapshotGet() for a state without keys",
        )
    if len(outputs) > 1 or len(shape.values) > 1:
        require(f"state_query {state}", outputs, shape.values)


def _layouts(operation: str, aggregators: list[Any]) -> tuple[str, ...]:
    """Return the layouts that can keep these aggregators, the default first."""
    # A log's table names its aggregators: a subclass of one has no name there.
    built_in = [aggregator for aggregator in aggregators if BUILT_IN.get(type(aggregator).__name__) is type(aggregator)]
    unfinished = [a for a in aggregators if isinstance(a, CombinerAggregator) and not a.shown_as_stored]
    for aggregator in unfinished:
        if aggregator not in built_in:
            raise FunctionError(
                operation,
                f"{aggregator} cannot be kept: a map shows what is stored, unfinished, and a log takes built-in aggregators",
                hint="keep what it is made of, and finish it where the state is read",
            )
    if len(built_in) < len(aggregators) and unfinished:
        raise FunctionError(
            operation,
            f"{unfinished[0]} can only be kept in a log, and an aggregator written in Python only in a map",
            hint="keep them in two states",
        )
    if unfinished:
        return (LOG,)
    return (LOG, MAP) if len(built_in) == len(aggregators) else (MAP,)


class Persisting(Steps):
    """Persistent aggregates, partition persists and state queries."""

    def persistent_aggregate(self, state: DeltaState, *args: Any, **named: Any) -> TridentState:
        """Keep an aggregate of the whole stream: `persistent_aggregate(state, [fields,] aggregator, output)`.

        Takes combiners and reducers; `persistent_aggregate(state, [Count("n"), Sum("x", "sum_x")])` keeps several
        values in one state.
        """
        return self._persistent_aggregate(state, (), by_position("persistent_aggregate", args, named))

    def _persistent_aggregate(self, state: DeltaState, group: tuple[str, ...], args: tuple[Any, ...]) -> TridentState:
        operation = "persistent_aggregate"
        chain = parse_aggregations(operation, args, self)
        for aggregation in chain:
            if isinstance(aggregation.aggregator, Aggregator):
                raise FunctionError(
                    operation,
                    f"{aggregation.aggregator} cannot be kept over batches",
                    hint="use a CombinerAggregator, a ReducerAggregator or a built-in aggregator",
                )
        values = added(operation, [member.output for member in chain], group)
        check_types(operation, chain, self)
        layouts = _layouts(operation, [member.aggregator for member in chain])
        return self._persist(operation, state, layouts, group, values, group=group, aggregations=chain)

    def partition_persist(
        self,
        state: DeltaState,
        fields: FieldNames | StateUpdater | None = None,
        updater: Any = None,
        outputs: Any = None,
    ) -> TridentState:
        """Keep the tuples themselves in a state: `partition_persist(state, [fields,] [updater, [outputs]])`. One append a batch.

        With an `updater` (a StateUpdater) its state takes what the updater makes of the tuples, by key; `outputs` name
        the rows that it emits, with their types (`"word string, n bigint"`), for `new_values_stream()`.
        """
        operation = "partition_persist"
        if isinstance(fields, StateUpdater):
            if updater is not None and (outputs is not None or isinstance(updater, StateUpdater)):
                raise FunctionError(operation, "takes one updater, and its outputs once")
            fields, updater, outputs = None, fields, outputs if updater is None else updater
        inputs = require(operation, fields, self.output_fields) or self.output_fields
        if updater is not None:
            return self._update(state, inputs, updater, outputs)
        if outputs is not None:
            raise FunctionError(operation, "outputs are what an updater emits, and there is no updater")
        return self._persist(operation, state, (ROWS,), (), added(operation, inputs, ()), inputs=inputs)

    def _update(self, state: DeltaState, inputs: tuple[str, ...], updater: Any, outputs: Any) -> TridentState:
        operation = "partition_persist"
        if not isinstance(updater, StateUpdater):
            raise FunctionError(operation, f"{updater!r} is not an updater", hint="subclass StateUpdater")
        check_defines(operation, updater, StateUpdater, "update_state")
        keys = tuple(name for name, _ in updater.key_columns)
        values = tuple(name for name, _ in updater.value_columns)
        if not values:
            raise FunctionError(
                operation,
                f"{updater} does not say the state's columns",
                hint='set keys = "word string" and values = "n bigint" in the class',
            )
        names, types = output_schema(outputs)
        types = types or (as_names(updater.returns) if names else ())
        if len(names) != len(types):
            raise FunctionError(
                operation,
                f"{updater} does not say the types of {', '.join(names)}",
                hint=f'write the outputs as a schema ("{names[0]} bigint")',
            )
        return self._persist(
            operation,
            state,
            (MAP,),
            keys,
            added(operation, values, keys),
            group=keys,
            inputs=inputs,
            updater=updater,
            outputs=added(operation, names, ()),
            types=types,
        )

    def _persist(
        self,
        operation: str,
        state: DeltaState,
        layouts: tuple[str, ...],
        keys: tuple[str, ...],
        values: tuple[str, ...],
        **more: Any,
    ) -> TridentState:
        if isinstance(state, FixedState):
            raise FunctionError(operation, f'state "{state.name}" is fixed: it can only be read')
        if not isinstance(state, DeltaState):
            raise FunctionError(operation, f"{state!r} is not a state", hint='write DeltaState("name")')
        chosen = state.with_layout(operation, layouts)
        fields = keys + values
        queries = [spout for spout in self._topology.spouts_of(self._node) if isinstance(spout, nodes.QuerySpoutNode)]
        if queries:
            raise FunctionError(
                operation,
                f'query "{queries[0].stream}" is answered and keeps nothing',
                hint="persist a stream of a source",
            )
        if not fields:
            raise FunctionError(operation, f'state "{state.name}" would have no field', hint="keep one field at least")
        storable(fields)
        for name in values if (chosen.layout, chosen.kind) == (MAP, OPAQUE) else ():
            if name.lower() == "txid":
                # What its table keeps of the row before has a field of that name.
                why = "cannot be a value of an opaque state of layout map, which keeps a txid of its own; call it otherwise"
                raise BadNameError("field", name, why)
        self._topology.claim_state(state.name)
        stream = self._add(nodes.PersistNode, fields=fields, state=chosen, **more)
        return TridentState(chosen, keys, values, stream.node, cast("Stream", stream))

    def state_query(
        self, state: TridentState | DeltaState | str, fields: FieldNames | None, function: Any, outputs: Any
    ) -> Self:
        """Append what a state holds for each tuple: `state_query(state, fields, MapGet(), outputs)`.

        Inside a stream the state is read as of the batch's own txid; in a query stream at the latest committed batch.
        The function is built in (MapGet, SnapshotGet, TupleCollectionGet) or a QueryFunction written in Python, whose
        outputs are written as a schema.
        """
        return self._state_query((), state, fields, function, outputs)

    def _state_query(
        self,
        group: tuple[str, ...],
        state: TridentState | DeltaState | str,
        fields: FieldNames | None,
        function: Any,
        outputs: Any,
    ) -> Self:
        name = state_name(state)
        inputs = require("state_query", fields, self.output_fields)
        names, types = output_schema(outputs)
        new = added("state_query", names, self.output_fields)
        # By name and not by the handle's node: the handle may be another topology's.
        holder = self._topology.holder_of(name)
        shape = Shape.of(holder)
        check_query(name, shape, inputs, function, new)
        if isinstance(function, MapGet) and holder and shape:
            known, held = (known_types(self._topology.graph, node) for node in (self._node, holder.id))
            met = [((a, known[a]), (b, held[b])) for a, b in zip(inputs, shape.keys, strict=True)]
            if any(isinstance(spout, nodes.QuerySpoutNode) for spout in self._topology.spouts_of(self._node)):
                # Its arguments are texts as long as nobody says otherwise: one that does not fit fails its own request alone.
                met = [pair for pair in met if pair[0][1] != "string"]
            check_meeting("state_query", met)
        return self._add(
            nodes.StateQueryNode,
            fields=self.output_fields + new,
            state=name,
            state_node=holder.id if holder else None,
            inputs=inputs,
            function=function,
            outputs=new,
            types=query_types(function, new, types),
            group=group,
            parted=isinstance(function, TupleCollectionGet) and not group and self._is_broadcast(),
        )

    def _is_broadcast(self) -> bool:
        """Return whether the tuples are copies that a broadcast gave to every task."""
        node = self._topology.graph[self._node]
        while node.by_tuple:
            node = self._topology.graph[node.parents[0]]
        return isinstance(node, nodes.PartitionNode) and node.kind == nodes.BROADCAST
