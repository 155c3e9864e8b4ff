"""Column lineage, read off the graph: from which fields of which streams and states does a field take its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from typing import Any, Protocol

from pipelines.aggregators.window import WindowAggregator
from pipelines.errors import FieldError
from pipelines.graph import events, nodes
from pipelines.graph.fields import distinct

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
    """The origins of every output field of a node: `{"count": (("sentences", "sentence"),)}`.

    Only where values come from counts; what decides whether a row is there does not: a filter, a gate, a repartition,
    min and max and the keys of a group leave no trace in the fields beside them. The rules:

    - `each`: the outputs come from all inputs; `map` and `flat_map`: every field from all fields;
    - an aggregate: from its input fields. `Count` looks at no field, so its output has an empty tuple;
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

    Raises:
        FieldError: if a declared lineage names an input that the function does not have.
    """
    found: dict[int, Lineage] = {}
    for node in topology.graph.ancestors(node_id):
        found[node.id] = _step(node, tuple(found[parent] for parent in node.parents), topology.graph)
    return dict(found[node_id])


Above = tuple[Lineage, ...]
"""The lineage of each parent."""


def _from(above: Lineage, fields: Iterable[str]) -> tuple[Origin, ...]:
    return distinct(origin for field in fields for origin in above[field])


def _all(origins: Iterable[tuple[Origin, ...]]) -> tuple[Origin, ...]:
    return distinct(origin for some in origins for origin in some)


def _made(
    function: Any, inputs: Mapping[str, tuple[Origin, ...]], outputs: Iterable[str], more: tuple[Origin, ...] = ()
) -> dict[str, tuple[Origin, ...]]:
    """The outputs of a function: as it declares them, else from all its inputs and `more`."""
    declared: Mapping[str, Sequence[str]] = getattr(function, "lineage", None) or {}
    for name in (name for names in declared.values() for name in names):
        if name not in inputs:
            raise FieldError(f"lineage of {function}", name, tuple(inputs))
    everything = _all((*inputs.values(), more))
    return {
        output: _all(inputs[name] for name in declared[output]) if output in declared else everything
        for output in outputs
    }


@singledispatch
def _step(node: nodes.Node, above: Above, graph: nodes.Graph) -> Lineage:
    """Filters, gates, peeks, repartitions, extremes and projections: the fields as they were."""
    return {field: above[0][field] for field in node.fields}


@_step.register
def _spout(node: nodes.SpoutNode, above: Above, graph: nodes.Graph) -> Lineage:
    """Its own fields; what a source adds to them (an event's id and time) comes from the fields that it names."""
    added: Mapping[str, Sequence[str]] = getattr(node.source, "lineage", None) or {}
    return {field: tuple((node.stream, one) for one in added.get(field, (field,))) for field in node.fields}


@_step.register
def _query_spout(node: nodes.QuerySpoutNode, above: Above, graph: nodes.Graph) -> Lineage:
    return {field: ((node.stream, field),) for field in node.fields}


@_step.register
def _channels(node: nodes.ChannelSpoutNode, above: Above, graph: nodes.Graph) -> Lineage:
    """The columns of the channels, and what the part of the plan that runs in the stream itself makes of them."""
    found: Lineage = {
        field: tuple((edge.channel, field) for edge in node.source.edges if field in edge.fields)
        for field in node.source.fields
    }
    steps: dict[int, Lineage] = {}
    for one in node.prelude or ():
        parents = tuple(steps[parent] for parent in one.parents)
        found = steps[one.id] = _step(one, parents, node.prelude) if parents else found
    return {field: found[field] for field in node.fields}


@_step.register
def _window(node: nodes.WindowNode, above: Above, graph: nodes.Graph) -> Lineage:
    """Events that a window lets go are as they came. What it makes of several has the time of the last of them."""
    made = {name: origins for one in _made_by_windows(node, above[0]) for name, origins in one.items()}
    if not made:
        return {field: above[0][field] for field in node.fields}
    clock = above[0].get(events.CLOCK, ())
    own = {events.ID: (), events.TIME: clock, events.CLOCK: clock, events.FROM: (), events.ORDER: ()}
    known: Lineage = {**above[0], **own, **made}
    return {field: known[field] for field in node.fields}


def _made_by_windows(node: nodes.WindowNode, above: Lineage) -> Iterable[dict[str, tuple[Origin, ...]]]:
    """The fields that a stateful operation makes of many events."""
    fields = {name: origins for name, origins in above.items() if name not in events.COLUMNS}
    if hasattr(node.operation, "aggregations"):
        yield _aggregations(node.operation.aggregations, above)
    elif hasattr(node.operation, "aggregators"):
        for one in node.operation.aggregators:
            # A user's own, which names no field, sees all of the event.
            own = isinstance(one, WindowAggregator) and not one.reads
            yield _made(one, fields if own else {name: above[name] for name in one.reads}, one.result_fields)
    elif hasattr(node.operation, "outputs"):
        yield {name: _all(fields.values()) for name in node.operation.outputs}


@_step.register
def _static_state(node: nodes.StaticStateNode, above: Above, graph: nodes.Graph) -> Lineage:
    return {field: ((node.state.name, field),) for field in node.fields}


@_step.register
def _each(node: nodes.EachNode, above: Above, graph: nodes.Graph) -> Lineage:
    return {**above[0], **_made(node.function, {name: above[0][name] for name in node.inputs}, node.outputs)}


@_step.register
def _map(node: nodes.MapNode, above: Above, graph: nodes.Graph) -> Lineage:
    return _made(node.function, above[0], node.fields)


@_step.register
def _aggregate(node: nodes.AggregateNode, above: Above, graph: nodes.Graph) -> Lineage:
    return {**{field: above[0][field] for field in node.group}, **_aggregations(node.aggregations, above[0])}


@_step.register
def _persist(node: nodes.PersistNode, above: Above, graph: nodes.Graph) -> Lineage:
    """The state's fields; with an updater what it emits as well, for a stream of new values."""
    if node.updater is not None:
        inputs = {name: above[0][name] for name in node.inputs}
        return _made(node.updater, inputs, distinct((*node.fields, *node.outputs)))
    outputs = _aggregations(node.aggregations, above[0])
    return {field: outputs[field] if field in outputs else above[0][field] for field in node.fields}


def _aggregations(chain: Iterable[nodes.Aggregation], above: Lineage) -> dict[str, tuple[Origin, ...]]:
    found: dict[str, tuple[Origin, ...]] = {}
    for one in chain:
        found |= _made(one.aggregator, {name: above[name] for name in one.inputs}, one.outputs)
    return found


@_step.register
def _merge(node: nodes.MergeNode, above: Above, graph: nodes.Graph) -> Lineage:
    columns = zip(*(parent.values() for parent in above), strict=True)
    return {field: _all(origins) for field, origins in zip(node.fields, columns, strict=True)}


@_step.register
def _join(node: nodes.JoinNode, above: Above, graph: nodes.Graph) -> Lineage:
    if node.mode == nodes.PRESERVE:
        columns = [origins for parent in above for origins in parent.values()]
    else:
        keys = zip(*(_columns(parent, side.keys) for parent, side in zip(above, node.sides, strict=True)), strict=True)
        columns = [_all(origins) for origins in keys]
        for parent, side in zip(above, node.sides, strict=True):
            columns += _columns(parent, side.values)
    return dict(zip(node.fields, columns, strict=True))


def _columns(above: Lineage, fields: Iterable[str]) -> list[tuple[Origin, ...]]:
    return [above[field] for field in fields]


@_step.register
def _multi_reduce(node: nodes.MultiReduceNode, above: Above, graph: nodes.Graph) -> Lineage:
    """Fields before the outputs are the groups', by position; a declared lineage means an input of any stream."""
    groups = node.groups or ((),) * len(above)
    inputs: dict[str, tuple[Origin, ...]] = {}
    for parent, group, names in zip(above, groups, node.inputs, strict=True):
        for name in (*group, *names):
            inputs[name] = distinct((*inputs.get(name, ()), *parent[name]))
    by_place = zip(*(_columns(parent, group) for parent, group in zip(above, groups, strict=True)), strict=True)
    leading = node.fields[: len(node.fields) - len(node.outputs)]
    keys = {field: _all(origins) for field, origins in zip(leading, by_place, strict=False)}
    return {**keys, **_made(node.reducer, inputs, node.outputs)}


@_step.register
def _state_query(node: nodes.StateQueryNode, above: Above, graph: nodes.Graph) -> Lineage:
    holder = None if node.state_node is None else graph[node.state_node]
    if not node.types:
        columns = {output: ((node.state, _column(node, place, holder)),) for place, output in enumerate(node.outputs)}
        return {**above[0], **columns}
    values = _values(holder) or node.outputs
    shown = tuple((node.state, name) for name in values)
    return {**above[0], **_made(node.function, {name: above[0][name] for name in node.inputs}, node.outputs, shown)}


def _values(holder: nodes.Node | None) -> tuple[str, ...]:
    """The fields of a state that are not keys; of one whose table alone knows them, none."""
    if isinstance(holder, nodes.PersistNode | nodes.StaticStateNode):
        keys = holder.group if isinstance(holder, nodes.PersistNode) else holder.keys
        return tuple(name for name in holder.fields if name not in keys)
    return ()


def _column(node: nodes.StateQueryNode, place: int, holder: nodes.Node | None) -> str:
    """The column that an output of a built-in query shows: of its name, else its place among all or among the values."""
    output = node.outputs[place]
    if holder is None or set(node.outputs) <= set(holder.fields):
        return output
    for fields in (_values(holder), holder.fields):
        if len(fields) == len(node.outputs):
            return fields[place]
    return output


@_step.register
def _enter_window(node: nodes.EnterWindowNode, above: Above, graph: nodes.Graph) -> Lineage:
    """What is the engine's own comes from nowhere."""
    return {field: above[0].get(field, ()) for field in node.fields}
