"""Chained aggregators: several over the same tuples, their rows crossed (Trident rules 1.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.errors import ChainOutputsError, FunctionError
from pipelines.graph.nodes import Aggregation
from pipelines.trident.aggregation import parse_aggregations

if TYPE_CHECKING:
    from pipelines.trident.stream import Stream


class ChainedAggregation:
    """Made by `chained_agg()`; `chain_end()` gives the stream. Immutable: each call returns a longer chain.

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

    def aggregate(self, *args: Any) -> ChainedAggregation:
        """Add an aggregator, in the forms of `Stream.aggregate`; the chain then aggregates the whole batch."""
        return self._and("chained aggregate", args, partitioned=False)

    def partition_aggregate(self, *args: Any) -> ChainedAggregation:
        """Add an aggregator; if it is the last call, the chain aggregates each partition by itself."""
        return self._and("chained partition_aggregate", args, partitioned=True)

    def chain_end(self) -> Stream:
        """Return the stream of the chain's rows.

        Raises:
            FunctionError: if the chain has no aggregator.
        """
        if not self._chain:
            raise FunctionError("chain_end", "the chain has no aggregator", hint="add aggregate(...) before it")
        return self._stream._aggregated("chain_end", self._group, self._chain, partitioned=self._partitioned)

    def _and(self, operation: str, args: tuple[Any, ...], *, partitioned: bool) -> ChainedAggregation:
        chain = self._chain + parse_aggregations(operation, args, self._stream)
        outputs = [output for aggregation in chain for output in aggregation.outputs]
        taken = [*self._group, *outputs]
        if len({name.lower() for name in taken}) != len(taken):
            raise ChainOutputsError(operation, outputs, self._group)
        return ChainedAggregation(self._stream, self._group, chain, partitioned=partitioned)
