"""Writing states and asking them: the half of Stream that meets the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

from pipelines.aggregators import Aggregator, ColumnAggregator
from pipelines.errors import FunctionError
from pipelines.graph import nodes
from pipelines.graph.fields import FieldNames, added, as_names, require, storable
from pipelines.state.kinds import LOG, MAP, ROWS
from pipelines.trident.aggregation import parse_aggregations
from pipelines.trident.functions import output_schema
from pipelines.trident.queries import Shape, check_query, query_types
from pipelines.trident.query_functions import TupleCollectionGet
from pipelines.trident.states import DeltaState, FixedState, TridentState, state_name
from pipelines.trident.steps import Steps
from pipelines.trident.user_code import StateUpdater

if TYPE_CHECKING:
    from pipelines.trident.stream import Stream


def _layouts(operation: str, aggregators: list[Any]) -> tuple[str, ...]:
    """The layouts that can keep these aggregators, the default first.

    Raises:
        FunctionError: if there is none for all of them.
    """
    built_in = [aggregator for aggregator in aggregators if isinstance(aggregator, ColumnAggregator)]
    unfinished = [aggregator for aggregator in built_in if not aggregator.shown_as_stored]
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

    def persistent_aggregate(self, state: DeltaState, *args: Any) -> TridentState:
        """Keep an aggregate of the whole stream: `persistent_aggregate(state, [fields,] aggregator, output)`.

        Takes combiners and reducers; `persistent_aggregate(state, [Count("n"), Sum("x", "sum_x")])` keeps several
        values in one state.
        """
        return self._persistent_aggregate(state, (), args)

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
        layouts = _layouts(operation, [member.aggregator for member in chain])
        return self._persist(operation, state, layouts, group, values, group=group, aggregations=chain)

    def partition_persist(
        self, state: DeltaState, fields: FieldNames | None = None, updater: Any = None, outputs: Any = None
    ) -> TridentState:
        """Keep the tuples themselves in a state: all fields, or `fields`. One append a batch.

        With an `updater` (a StateUpdater) its state takes what the updater makes of the tuples, by key; `outputs` name
        the rows that it emits, with their types (`"word string, n bigint"`), for `new_values_stream()`.
        """
        operation = "partition_persist"
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
        storable(fields)
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
        check_query(name, Shape.of(holder), inputs, function, new)
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
