"""The questions that a state query may ask of a state, checked when the line is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipelines.errors import FunctionError
from pipelines.graph import nodes
from pipelines.graph.fields import as_names, require
from pipelines.trident.query_functions import MapGet, QueryFunction, SnapshotGet, TupleCollectionGet
from pipelines.trident.states import FixedState

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
        state: the state's name.
        shape: its columns; None for a state of another flow, which is checked at the start.
        inputs: the fields that are matched with the state's keys.
        function: the query function.
        outputs: the fields that the query adds.

    Raises:
        FunctionError: if the function does not suit the state, or the number of inputs is not that of its keys.
        FieldError: if an output names none of the state's values.
    """
    if not isinstance(function, QueryFunction):
        raise FunctionError(
            "state_query",
            f"{function!r} is not a query function",
            hint="use MapGet(), SnapshotGet(), TupleCollectionGet() or a subclass of QueryFunction",
        )
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
    """Return the types of the outputs of a function written in Python; of a built-in one they are the state's: empty.

    Raises:
        FunctionError: if nobody says them.
    """
    if isinstance(function, _BUILT_IN):
        return ()
    types = types or as_names(function.returns)
    if len(types) != len(outputs):
        raise FunctionError(
            "state_query",
            f"{function} does not say the types of {', '.join(outputs)}",
            hint=f'write the outputs as a schema ("{outputs[0]} bigint") or set `returns`',
        )
    return types


def _check_tuples(state: str, shape: Shape, outputs: tuple[str, ...]) -> None:
    fields = shape.keys + shape.values
    if len(outputs) != len(fields):
        require(f"state_query {state}", outputs, fields)


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
            hint="use MapGet() with one field a key, or SnapshotGet() for a state without keys",
        )
    if len(outputs) > 1 or len(shape.values) > 1:
        require(f"state_query {state}", outputs, shape.values)
