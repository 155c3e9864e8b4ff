"""The run that the steps of a batch serve, and the three kinds of functions over a table's rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from pipelines.aggregators.calls import taking
from pipelines.errors import FunctionError, NeedsSparkError
from pipelines.graph import nodes
from pipelines.graph.arrow_types import arrow_type
from pipelines.graph.plain_values import plain_list
from pipelines.graph.row_values import Convert, as_rows, as_text, to_arrow, to_plain
from pipelines.planner.plain.meeting import brought, common_of
from pipelines.planner.plain.table import Row, Table
from pipelines.planner.values import shown
from pipelines.state.views import StateView
from pipelines.trident.functions import ArrowFunction, ColumnFunction, Function, RowFunction


@dataclass(frozen=True)
class Evaluated:
    """For each row of the inputs the rows that came of it, and the types of the outputs."""

    rows: list[list[Row]]
    types: tuple[str | None, ...]


class Evaluate(Protocol):
    """Evaluates, with Spark, SQL text or a callable of Columns over a table's fields; `names` are the outputs."""

    def __call__(
        self, table: Table, expression: str | Callable[..., Any], names: tuple[str, ...], label: str
    ) -> Evaluated: ...


def _no_state(name: str) -> StateView:
    raise NotImplementedError(f"this run reads no states; asked for {name}")


def _no_types(name: str) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class PlainContext:
    """One batch.

    Attributes:
        batch: the txid, or what stands for it; aggregators that ask for a batch id are given it.
        label: the batch's name in errors.
        tasks: by node id in how many tasks it runs (`graph.bolts.node_tasks`); a node that is not named: one.
        evaluate: evaluates with Spark; None: NeedsSparkError.
        gate: passes a table through a gate (`gate(node's gate, table, label)`); None: NeedsSparkError.
        view: a state by its name, as the batch may see it.
        state_types: Spark SQL types of a state's columns, as far as they are known.
    """

    batch: int = 0
    label: str = "batch 0"
    tasks: Mapping[int, int] = field(default_factory=dict)
    evaluate: Evaluate | None = None
    gate: Callable[[Any, Table, str], Table] | None = None
    view: Callable[[str], StateView] = _no_state
    state_types: Callable[[str], Mapping[str, str | None]] = _no_types

    def tasks_of(self, node_id: int) -> int:
        return self.tasks.get(node_id, 1)

    def evaluated(
        self, table: Table, expression: str | Callable[..., Any], names: tuple[str, ...], label: str
    ) -> Evaluated:
        """Return what Spark makes of an expression."""
        if self.evaluate is None:
            raise NeedsSparkError(label)
        return self.evaluate(table, expression, names, label)


def call(
    function: Function, inputs: Table, names: tuple[str, ...], context: PlainContext
) -> tuple[list[list[Row]], tuple[str | None, ...]]:
    """Return for each row of the inputs the rows that a function gives, and the types of the outputs."""
    unknown: tuple[str | None, ...] = (None,) * len(names)
    if isinstance(function, RowFunction):
        given = taking(function.call, 0, len(inputs.fields))
        convert = to_plain(tuple(function.types), as_text) if len(function.types) == len(names) else None
        made = [_rows(str(function), given, convert, row, len(names)) for row in inputs.rows]
        return made, function.types or unknown
    if isinstance(function, ArrowFunction):
        return _over_arrays(function, inputs, names), function.types or unknown
    if function.rows is not None:
        made = [_rows(str(function), function.rows, None, row, len(names)) for row in inputs.rows]
        return made, function.types or function.said or unknown
    if not inputs.rows:
        return [], function.said or unknown
    result = context.evaluated(inputs, function, names, str(function))
    return result.rows, result.types


def keeps(node: nodes.FilterNode, inputs: Table, context: PlainContext) -> list[bool]:
    """Return for each row whether the predicate is true; null counts as false."""
    predicate = node.predicate
    plain: Callable[..., object] | None = None
    if isinstance(predicate, RowFunction):
        plain = taking(predicate.call, 0, len(inputs.fields))
    elif isinstance(predicate, ColumnFunction):
        plain = predicate.keep
        if predicate.compares:
            inputs = brought(inputs, [common_of(inputs.types)] * len(inputs.fields))
    if plain is not None:
        # A filter may give any value that Python takes for true or false.
        return [bool(plain(*row)) for row in inputs.rows]
    if not inputs.rows:
        return []
    return [rows[0][0] is True for rows in context.evaluated(inputs, predicate, ("keep",), node.label).rows]


def fitted(label: str, types: Sequence[str], rows: list[Row]) -> list[Row]:
    """Return rows that a user's aggregator, updater or query function gave, in its declared types; without: as they are."""
    convert = to_plain(tuple(types))
    if convert is None:
        return rows
    made = []
    for row in rows:
        try:
            made.append(convert(row))
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise FunctionError(label, f"gave {shown(row)}, which does not fit its output fields: {error}") from error
    return made


def _rows(label: str, function: Callable[..., object], convert: Convert | None, row: Row, width: int) -> list[Row]:
    """Return a Python function's rows, by the rule of a stream's.

    Raises:
        FunctionError: a row has another number of values than there are fields, or one that is none of its type.
    """
    given = function(*row)
    # To its end here: what the function itself raises is not about its rows.
    items = list(given) if inspect.isgenerator(given) else given
    try:
        return as_rows(width, convert, items)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        # An array, a map or a struct that is none is not gone through.
        raise FunctionError(label, f"failed on {shown(row)}: {error}") from error


def _over_arrays(function: ArrowFunction, inputs: Table, names: tuple[str, ...]) -> list[list[Row]]:
    """Return an Arrow function over the whole batch, as arrays of the inputs' types.

    Raises:
        FunctionError: it gives other than an array of the batch's length per output, or one that its type cannot hold.
    """
    given = function.call(*(_array(inputs.column(field), inputs.type_of(field)) for field in inputs.fields))
    arrays = given if isinstance(given, tuple | list) else (given,)
    if len(arrays) != len(names) or any(len(array) != len(inputs.rows) for array in arrays):
        raise FunctionError(str(function), f"must return {len(names)} array(s) of the length of its inputs")
    kinds = map(arrow_type, function.types or (None,) * len(names))
    try:
        columns = [
            plain_list(array if kind is None else array.cast(kind)) for array, kind in zip(arrays, kinds, strict=True)
        ]
    except pa.ArrowException as error:
        raise FunctionError(str(function), f"gave what does not fit its output fields: {error}") from error
    return [[row] for row in zip(*columns, strict=True)]


def _array(values: list[Any], kind: str | None) -> pa.Array:
    known = arrow_type(kind)
    if known is not None:
        # A decimal may have more digits than its type.
        with suppress(pa.ArrowInvalid):
            return to_arrow(values, known)
    return pa.array(values)
