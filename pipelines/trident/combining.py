"""Bringing several streams together: merge, join, multi_reduce (Trident rules 1.1 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipelines.errors import FunctionError, MixedSpoutsError
from pipelines.graph import nodes
from pipelines.graph.bolts import behind_writers
from pipelines.graph.expansion import components
from pipelines.graph.fields import FieldNames, added, as_names, require
from pipelines.graph.types import check_meeting, known_types
from pipelines.trident.functions import output_schema
from pipelines.trident.stream import GroupedStream, Stream
from pipelines.trident.user_code import MultiReducer

if TYPE_CHECKING:
    from pipelines.trident.topology import TridentTopology

INNER, OUTER = "inner", "outer"


def mixed(*kinds: str) -> tuple[str, ...]:
    """Return a join's kind for each side: `mixed(INNER, OUTER)` is a left join (Trident's JoinType.mixed)."""
    return kinds


def merged(topology: TridentTopology, streams: Sequence[Any], outputs: FieldNames | None) -> Stream:
    """See `TridentTopology.merge`."""
    given = _streams(topology, "merge", streams, at_least=1)
    first = given[0].output_fields
    for stream in given[1:]:
        if len(stream.output_fields) != len(first):
            raise FunctionError(
                "merge",
                f"the streams have {len(first)} and {len(stream.output_fields)} fields: "
                f"{list(first)} and {list(stream.output_fields)}",
                hint="project them to the same fields first",
            )
    _check_types("merge", given, [stream.output_fields for stream in given])
    names = first if outputs is None else added("merge", outputs, ())
    if len(names) != len(first):
        raise FunctionError("merge", f"{list(names)} do not name the {len(first)} fields {list(first)}")
    return _joined_node(topology, given, nodes.MergeNode, names)


def joined(
    topology: TridentTopology,
    streams: Sequence[Any],
    on: Sequence[FieldNames],
    outputs: FieldNames,
    kind: str | Sequence[str],
    mode: str,
) -> Stream:
    """See `TridentTopology.join`."""
    given = _streams(topology, "join", streams, at_least=2)
    if len(on) != len(given):
        raise FunctionError("join", f"{len(given)} streams need as many join fields; got {len(on)}")
    if mode not in (nodes.COMPACT, nodes.PRESERVE):
        raise FunctionError("join", f"unsupported out-fields mode: {mode!r}", hint='use "compact" or "preserve"')
    keys = [
        added("join", require("join", names, stream.output_fields), ()) for stream, names in zip(given, on, strict=True)
    ]
    if not keys[0] or len({len(names) for names in keys}) != 1:
        raise FunctionError("join", f"needs the same number of join fields, at least one, of each stream; got {keys}")
    _check_types("join", given, keys)
    sides = tuple(
        nodes.JoinSide(names, tuple(f for f in stream.output_fields if f not in names), outer)
        for stream, names, outer in zip(given, keys, _outer(kind, len(given)), strict=True)
    )
    made = (
        len(keys[0]) + sum(len(side.values) for side in sides)
        if mode == nodes.COMPACT
        else sum(len(stream.output_fields) for stream in given)
    )
    names = added("join", outputs, ())
    if len(names) != made:
        raise FunctionError(
            "join",
            f"{len(names)} output fields are named for the {made} of mode {mode}",
            hint="compact: the join fields, then each stream's other fields; preserve: all fields of each stream",
        )
    return _joined_node(topology, given, nodes.JoinNode, names, sides=sides, mode=mode)


def multi_reduced(
    topology: TridentTopology,
    streams: Sequence[Any],
    inputs: Sequence[FieldNames | None] | None,
    reducer: Any,
    outputs: Any,
) -> Stream:
    """See `TridentTopology.multi_reduce`."""
    operation = "multi_reduce"
    if not isinstance(reducer, MultiReducer):
        raise FunctionError(operation, f"{reducer!r} is not a MultiReducer")
    grouped = [isinstance(stream, GroupedStream) for stream in streams]
    if any(grouped) and not all(grouped):
        raise FunctionError(operation, "takes streams or grouped streams, not both")
    groups = [stream.group_fields if isinstance(stream, GroupedStream) else () for stream in streams]
    plain = [stream.to_stream() if isinstance(stream, GroupedStream) else stream for stream in streams]
    given = _streams(topology, operation, plain, at_least=1)
    wanted = _reducer_inputs(given, groups, [None] * len(given) if inputs is None else inputs)
    _check_types(operation, given, groups)
    names, types = _reducer_outputs(reducer, outputs)
    return _joined_node(
        topology,
        given,
        nodes.MultiReduceNode,
        names,
        reducer=reducer,
        inputs=wanted,
        groups=tuple(groups),
        outputs=names,
        types=types,
    )


def _reducer_inputs(
    given: Sequence[Stream], groups: Sequence[tuple[str, ...]], inputs: Sequence[FieldNames | None]
) -> tuple[tuple[str, ...], ...]:
    """Return the fields of each stream that the reducer sees."""
    operation = "multi_reduce"
    if len(inputs) != len(given) or len({len(group) for group in groups}) != 1:
        raise FunctionError(
            operation,
            f"Multireducer groupFields and inputFields must be the same size; got {len(given)} streams grouped by "
            f"{[list(group) for group in groups]} and the inputs of {len(inputs)}",
        )
    return tuple(
        stream.output_fields if names is None else require(operation, names, stream.output_fields)
        for stream, names in zip(given, inputs, strict=True)
    )


def _reducer_outputs(reducer: MultiReducer, outputs: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields that come out, and their types."""
    names, types = output_schema(outputs)
    types = types or as_names(reducer.returns)
    if not names or len(types) != len(names):
        raise FunctionError(
            "multi_reduce",
            f"{reducer} does not say the types of {', '.join(names) or 'its outputs'}",
            hint=f'write the outputs as a schema ("{(names or ("n",))[0]} bigint") or give returns=',
        )
    return added("multi_reduce", names, ()), types


def _outer(kind: str | Sequence[str], sides: int) -> list[bool]:
    kinds = [kind] * sides if isinstance(kind, str) else list(kind)
    wrong = [side_kind for side_kind in kinds if side_kind not in (INNER, OUTER)]
    if wrong:
        raise FunctionError(
            "join",
            f"no such kind {wrong[0]!r}; there are: {INNER}, {OUTER}",
            hint="one for each side makes others: kind=mixed(INNER, OUTER) is a left join, mixed(OUTER, INNER) a right one",
        )
    if len(kinds) != sides:
        raise FunctionError("join", f"{sides} streams need as many kinds; got {kinds}")
    return [side_kind == OUTER for side_kind in kinds]


def _check_types(operation: str, streams: Sequence[Stream], fields: Sequence[Sequence[str]]) -> None:
    """Check that the fields of the streams, which meet by position, hold values of one sort."""
    sides = []
    for stream, names in zip(streams, fields, strict=True):
        known = known_types(stream._topology.graph, stream.node)
        sides.append([(name, known[name]) for name in names])
    check_meeting(operation, zip(*sides, strict=True))


def _streams(topology: TridentTopology, operation: str, streams: Sequence[Any], *, at_least: int) -> list[Stream]:
    """Return the streams, checked to be of this topology and not of a query and something else."""
    if len(streams) < at_least:
        raise FunctionError(operation, f"takes at least {at_least} stream(s); got {len(streams)}")
    for stream in streams:
        if not isinstance(stream, Stream):
            raise FunctionError(operation, f"{stream!r} is not a stream")
        if stream._topology is not topology:
            raise FunctionError(operation, f"a stream is of the topology {stream._topology.name}, not {topology.name}")
    spouts = {spout.id: spout for stream in streams for spout in topology.spouts_of(stream.node)}
    queries = [spout for spout in spouts.values() if isinstance(spout, nodes.QuerySpoutNode)]
    if queries and len(spouts) > 1:
        others = [spout.stream for spout in spouts.values() if spout is not queries[0]]
        raise MixedSpoutsError(operation, queries[0].stream, others)
    _check_channels(topology.graph, operation, set(spouts))
    return list(streams)


def _check_channels(graph: nodes.Graph, operation: str, spouts: set[int]) -> None:
    """Check that the batches in which some spouts' tuples meet wait for no channel that they write, or lead to."""
    parts = components(graph)
    together = [part for part in parts if spouts.intersection(part)]
    joined = [[node_id for part in together for node_id in part], *(part for part in parts if part not in together)]
    if len(behind_writers(graph, joined)) < len(joined):
        raise FunctionError(
            operation,
            "the streams wait for each other: a window's results come in batches behind those of the window's own tuples",
            hint="persist one of them into a state and read it with state_query",
        )


def _joined_node(
    topology: TridentTopology, streams: list[Stream], kind: type[nodes.Node], fields: tuple[str, ...], **more: Any
) -> Stream:
    """Return the stream of a node with several parents; its name is theirs, joined by "-" (rules 1.1)."""
    names = [stream._name for stream in streams]
    name = "-".join(part for part in names if part) or None
    parents = tuple(stream.node for stream in streams)
    return Stream(topology, topology.graph.new(kind, parents, fields=tuple(fields), name=name, **more).id, name)
