"""What a state query may ask of a state, checked when the line is written."""

from __future__ import annotations

from typing import Any

from pipelines.errors import FunctionError
from pipelines.graph.fields import require
from pipelines.graph.nodes import PersistNode
from pipelines.trident.operations import MapGet, QueryFunction, SnapshotGet


def check_query(
    state: str, writer: PersistNode | None, inputs: tuple[str, ...], function: Any, outputs: tuple[str, ...]
) -> None:
    """Check a query against the operation that writes the state.

    Args:
        state: the state's name.
        writer: what persists into it in this topology; None for a state of another flow, which is checked at the start.
        inputs: the fields that are matched with the state's keys.
        function: the query function.
        outputs: the fields that the query adds.

    Raises:
        FunctionError: if the function does not suit the state, or the number of inputs is not that of its keys.
        FieldError: if an output names none of the state's values.
    """
    if not isinstance(function, QueryFunction):
        raise FunctionError(
            "state_query", f"{function!r} is not a query function", hint="use MapGet() or SnapshotGet()"
        )
    if not outputs:
        raise FunctionError("state_query", f"{function} has no output field")
    if isinstance(function, SnapshotGet) and inputs:
        raise FunctionError("state_query", f"SnapshotGet reads the one value of a state; got the fields {list(inputs)}")
    if isinstance(function, MapGet) and not inputs:
        raise FunctionError("state_query", "MapGet needs the fields to match with the state's keys")
    if writer is not None:
        _check_writer(state, writer, inputs, outputs)


def _check_writer(state: str, writer: PersistNode, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    if not writer.aggregations:
        raise FunctionError("state_query", f'state "{state}" keeps rows and has no values by key to ask for')
    if len(inputs) != len(writer.group):
        raise FunctionError(
            "state_query",
            f'state "{state}" has the keys {list(writer.group)}; got the fields {list(inputs)}',
            hint="use MapGet() with one field a key, or SnapshotGet() for a state without keys",
        )
    values = [one.output for one in writer.aggregations]
    if len(outputs) > 1 or len(values) > 1:
        require(f"state_query {state}", outputs, values)
