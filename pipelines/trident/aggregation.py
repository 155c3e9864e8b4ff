"""Reading the argument forms of `aggregate`, `partition_aggregate`, `chained_agg` and `persistent_aggregate`; chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pipelines.aggregators import Aggregator, ColumnAggregator, CombinerAggregator, FirstN, ReducerAggregator
from pipelines.aggregators.window import numeric_type, undivided
from pipelines.errors import ChainOutputsError, FunctionError
from pipelines.graph.fields import as_names, require
from pipelines.graph.nodes import Aggregation
from pipelines.graph.types import Types, check_said, known_types
from pipelines.trident.functions import output_schema
from pipelines.trident.steps import in_form
from pipelines.windows.tuples import column_types

if TYPE_CHECKING:
    from pipelines.trident.stream import Stream

_KINDS = (CombinerAggregator, ReducerAggregator, Aggregator)
_FORMS = (("fields", "aggregator", "output"), ("aggregator", "output"))
_TAKES = "takes (aggregator, output), (fields, aggregator, output) or ([aggregators])"


class HasFields(Protocol):
    """A stream: its fields, and its place in a graph, from which their types follow."""

    _topology: Any

    @property
    def node(self) -> int: ...

    @property
    def output_fields(self) -> tuple[str, ...]: ...


def by_position(operation: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of an aggregate, of which some are given by name, as `parse_aggregations` reads them.

    Raises:
        FunctionError: for a name that there is not, or names that make no form.
    """
    return in_form(operation, args, named, _FORMS, _TAKES) if named else args


def parse_aggregations(operation: str, args: tuple[Any, ...], stream: HasFields) -> tuple[Aggregation, ...]:
    """Read `(aggregator, outputs)`, `(fields, aggregator, outputs)`, or one list of aggregators that name field and output.

    Outputs are names, or a schema (`"n bigint"`) whose types go before what the aggregator `returns`.

    Raises:
        FunctionError: if the forms do not fit, or an aggregator gets another number of fields than it takes.
    """
    available = stream.output_fields
    if len(args) == 3:
        chain: tuple[Aggregation, ...] = (_one(operation, args[1], as_names(args[0], operation), args[2], available),)
    elif len(args) == 2:
        chain = (_one(operation, args[0], None, args[1], available),)
    elif len(args) == 1 and isinstance(args[0], list | tuple) and args[0]:
        chain = tuple(_one(operation, each, None, None, available) for each in args[0])
    else:
        raise FunctionError(operation, _TAKES)
    if any(getattr(aggregation.aggregator, "numeric", False) for aggregation in chain):
        _take_numbers(chain, undivided(known_types(stream._topology.graph, stream.node)))
    return chain


def check_types(operation: str, chain: Sequence[Aggregation], stream: HasFields) -> None:
    """Refuse types that are written for a built-in aggregator's output and are not what comes, as far as that is known here."""
    said = {a.output: a.types[0] for a in chain if a.types and isinstance(a.aggregator, ColumnAggregator)}
    if said:
        check_said(operation, said, column_types(chain, known_types(stream._topology.graph, stream.node)))


def _take_numbers(chain: Sequence[Aggregation], types: Types) -> None:
    """Refuse the sum of a text or an array: Spark would end the batch at the first value that is no number."""
    for aggregation in chain:
        if getattr(aggregation.aggregator, "numeric", False):
            for field in aggregation.inputs:
                numeric_type(type(aggregation.aggregator).__name__, field, types)


def _one(
    operation: str, aggregator: Any, inputs: tuple[str, ...] | None, outputs: Any, available: Sequence[str]
) -> Aggregation:
    if not isinstance(aggregator, _KINDS):
        raise FunctionError(operation, f"{aggregator!r} is not an aggregator", hint="use Count(), Sum(), ...")
    inputs = require(operation, as_names(aggregator.field) if inputs is None else inputs, available)
    names, types = output_schema(aggregator.output if outputs is None else outputs)
    if not names:
        raise FunctionError(
            operation, f"{aggregator} does not name its output", hint=f'write {aggregator}(..., "name")'
        )
    if len(names) != 1 and not isinstance(aggregator, Aggregator):
        raise FunctionError(operation, f"{aggregator} makes a single field; got {list(names)}")
    if isinstance(aggregator, ColumnAggregator):
        return Aggregation(aggregator, _of_columns(operation, aggregator, inputs, available), names, types)
    if isinstance(aggregator, FirstN):
        aggregator = aggregator.bind(inputs)
    if aggregator.returns is None and not types:
        if len(inputs) != len(names):
            raise FunctionError(operation, f"{aggregator} gives its inputs {list(inputs)}; got the names {list(names)}")
        return Aggregation(aggregator, inputs, names)
    types = types or as_names(aggregator.returns)
    if len(types) != len(names):
        raise FunctionError(
            operation,
            f"{aggregator} returns {list(types)} for the fields {list(names)}",
            hint=f'say the types: returns=[...], or outputs as a schema ("{names[0]} bigint")',
        )
    return Aggregation(aggregator, inputs, names, types)


def _of_columns(
    operation: str, aggregator: ColumnAggregator, inputs: tuple[str, ...], available: Sequence[str]
) -> tuple[str, ...]:
    if aggregator.arity == 0:
        # A Count of the operation's fields counts tuples (Trident rules 1.3); one that names a field itself, those that have it.
        return require(operation, aggregator.field, available)
    if len(inputs) != aggregator.arity:
        raise FunctionError(operation, f"{aggregator} takes {aggregator.arity} field(s); got {list(inputs)}")
    return inputs


class ChainedAggregation:
    """Made by `chained_agg()` (Trident rules 1.4); `chain_end()` gives the stream. Immutable: each call returns a longer chain.

    The result's fields are the group's, then those of each aggregator in turn; its rows are the cross product of what
    they gave, the last varying fastest. One that gives no row makes the product empty (the original crashed). Output
    names must be distinct; they may be names that the stream had before, since it ends here (the original's combiners
    could not reuse them).
    """

    def __init__(
        self,
        stream: Stream,
        group: tuple[str, ...],
        chain: tuple[Aggregation, ...] = (),
        *,
        partitioned: bool = False,
    ) -> None:
        self._stream, self._group, self._chain, self._partitioned = stream, group, chain, partitioned

    def aggregate(self, *args: Any, **named: Any) -> ChainedAggregation:
        """Add an aggregator, in the forms of `Stream.aggregate`; the chain then aggregates the whole batch."""
        return self._and("chained aggregate", args, named, partitioned=False)

    def partition_aggregate(self, *args: Any, **named: Any) -> ChainedAggregation:
        """Add an aggregator; if it is the last call, the chain aggregates each partition by itself."""
        return self._and("chained partition_aggregate", args, named, partitioned=True)

    def chain_end(self) -> Stream:
        """Return the stream of the chain's rows.

        Raises:
            FunctionError: if the chain has no aggregator.
        """
        if not self._chain:
            raise FunctionError("chain_end", "the chain has no aggregator", hint="add aggregate(...) before it")
        return self._stream._aggregated("chain_end", self._group, self._chain, partitioned=self._partitioned)

    def _and(
        self, operation: str, args: tuple[Any, ...], named: Mapping[str, Any], *, partitioned: bool
    ) -> ChainedAggregation:
        chain = self._chain + parse_aggregations(operation, by_position(operation, args, named), self._stream)
        outputs = [output for aggregation in chain for output in aggregation.outputs]
        taken = [*self._group, *outputs]
        if len({name.lower() for name in taken}) != len(taken):
            raise ChainOutputsError(operation, outputs, self._group)
        return ChainedAggregation(self._stream, self._group, chain, partitioned=partitioned)
