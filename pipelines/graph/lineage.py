"""Column lineage, read off the graph: from which fields of which streams and states does a field take its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pipelines.aggregators.window import WindowAggregator
from pipelines.errors import FieldError
from pipelines.graph import events
from pipelines.graph.fields import distinct

if TYPE_CHECKING:
    from pipelines.graph import nodes

Origin = tuple[str, str]
"""A source's stream and field, or a state and its column."""

Lineage = Mapping[str, tuple[Origin, ...]]
"""The origins of each field, in the order of the fields. A field that depends on nothing has an empty tuple."""


class HasGraph(Protocol):
    """A topology, as far as lineage and drawings need it."""

    @property
    def name(self) -> str: ...

    @property
    def graph(self) -> nodes.Graph: ...


def lineage(topology: HasGraph, node_id: int) -> dict[str, tuple[Origin, ...]]:
    """Return the origins of every output field of a node: `{"count": (("sentences", "sentence"),)}`.

    Only where values come from counts; what decides whether a row is there does not: a filter, a gate, a repartition,
    min and max and the keys of a group leave no trace in the fields beside them. The rules:

    - `each`: the outputs come from all inputs; `map` and `flat_map`: every field from all fields;
    - an aggregate: from its input fields. A `Count` of tuples looks at none, so its output has an empty tuple;
    - a merge: from the fields at the same place of all streams; a join: each field from the one that it shows, a key of
      a compact join from the keys of all sides (an absent side's comes from another); a multi-reduce: from all inputs and
      group fields of all streams;
    - a state query: from the state's column, as (state, column), and no further: the state has a lineage of its own. Of
      a query function written in Python: from its inputs and all values of the state;
    - windows of events: the key fields from themselves, the outputs of an aggregator from the fields that it reads, a list of
      events from all fields; sorted, joined and switched events are as they came. What comes through a channel comes from
      the channel's column, which has a lineage of its own;
    - a state with an updater: from the updater's inputs, and so what the updater emits;
    - new values: as the state's fields.

    A function, aggregator, reducer, updater or query function may know better: its attribute `lineage`, a mapping from
    outputs to the inputs that each comes from, wins for the outputs that it names.
    """
    lineages: dict[int, Lineage] = {}
    for node in topology.graph.ancestors(node_id):
        lineages[node.id] = node.field_origins(tuple(lineages[parent] for parent in node.parents), topology.graph)
    return dict(lineages[node_id])


def all_of(origins: Iterable[tuple[Origin, ...]]) -> tuple[Origin, ...]:
    """Return the origins of several fields, each once."""
    return distinct(origin for some in origins for origin in some)


def made(
    function: Any, inputs: Mapping[str, tuple[Origin, ...]], outputs: Iterable[str], more: tuple[Origin, ...] = ()
) -> dict[str, tuple[Origin, ...]]:
    """Return the origins of a function's outputs: as it declares them, else all of its inputs and `more`."""
    declared: Mapping[str, Sequence[str]] = getattr(function, "lineage", None) or {}
    for name in (name for names in declared.values() for name in names):
        if name not in inputs:
            raise FieldError(f"lineage of {function}", name, tuple(inputs))
    everything = all_of((*inputs.values(), more))
    return {
        output: all_of(inputs[name] for name in declared[output]) if output in declared else everything
        for output in outputs
    }


def of_aggregations(chain: Iterable[nodes.Aggregation], above: Lineage) -> dict[str, tuple[Origin, ...]]:
    """Return the origins of the outputs of aggregators: their inputs."""
    origins: dict[str, tuple[Origin, ...]] = {}
    for aggregation in chain:
        inputs = {name: above[name] for name in aggregation.inputs}
        origins |= made(aggregation.aggregator, inputs, aggregation.outputs)
    return origins


def made_by_window(operation: Any, above: Lineage) -> dict[str, tuple[Origin, ...]]:
    """Return the origins of the fields that a stateful operation makes of many events."""
    fields = {name: origins for name, origins in above.items() if name not in events.COLUMNS}
    if hasattr(operation, "aggregations"):
        return of_aggregations(operation.aggregations, above)
    outputs: dict[str, tuple[Origin, ...]] = {}
    if hasattr(operation, "aggregators"):
        for aggregator in operation.aggregators:
            # A user's own, which names no field, sees all of the event.
            own = isinstance(aggregator, WindowAggregator) and not aggregator.reads
            inputs = fields if own else {name: above[name] for name in aggregator.reads}
            outputs |= made(aggregator, inputs, aggregator.result_fields)
        # The bounds of a span of time.
        outputs |= {name: above.get(events.CLOCK, ()) for name in operation.outputs if name not in outputs}
    elif hasattr(operation, "outputs"):
        outputs = {name: all_of(fields.values()) for name in operation.outputs}
    return outputs
