"""State queries over a view of the state (Trident rules 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from pipelines.aggregators.calls import emitted
from pipelines.errors import FunctionError, StateQueryError
from pipelines.graph import nodes
from pipelines.graph.arrow_types import arrow_type
from pipelines.graph.fields import require_shown
from pipelines.graph.types import check_meeting
from pipelines.planner.plain.context import PlainContext, fitted
from pipelines.planner.plain.partitions import by_hash
from pipelines.planner.plain.table import Row, Table
from pipelines.state.views import StateView
from pipelines.trident.states import FixedState
from pipelines.trident.user_code import MapGet, SnapshotGet, TupleCollectionGet


def queried(node: nodes.StateQueryNode, table: Table, context: PlainContext) -> Table:
    """Return what a query function makes of each tuple; asked once a batch and task, not at all for an empty one.

    Raises:
        StateQueryError: if the function gives another number of results than there are tuples.
    """
    if node.group:
        table = by_hash(table, node.group, context.tasks_of(node.id))
    # Read once a request: a look at a table's log.
    held = cache(lambda: context.state_types(node.state))
    types = _types(node, context, held)
    if not table.rows:
        return Table(node.fields, table.types + types, (), None if table.tasks is None else ())
    view: Any = context.view(node.state)
    if node.function.in_spark:
        check_columns(
            node,
            table.select(node.inputs).types,
            {name: held().get(name) for name in view.keys},
            view.values,
            view.by_key,
        )
    arguments = list(table.select(node.inputs).rows)
    results: list[Any] = [None] * len(arguments)
    # A built-in function gives each tuple the same answer, whatever is beside it: the state is read once.
    for numbers in [range(len(arguments))] if node.function.in_spark else table.numbers(context.tasks_of(node.id)):
        asked = [arguments[number] for number in numbers]
        answers = list(node.function.batch_retrieve(view, asked)) if asked else []
        if len(answers) != len(asked):
            raise StateQueryError(str(node.function), node.state, len(answers), len(asked))
        for number, answer in zip(numbers, answers, strict=True):
            results[number] = answer
    if node.parted:
        results = _parts(view, table, results, held(), context.tasks_of(node.id))
    made = [_made(node, view, given, result) for given, result in zip(arguments, results, strict=True)]
    of_row = [[row + new for new in outputs] for row, outputs in zip(table.rows, made, strict=True)]
    return table.replaced(node.fields, table.types + types, of_row)


def check_columns(
    node: nodes.StateQueryNode,
    types: Sequence[str | None],
    keys: Mapping[str, str | None],
    values: Sequence[str],
    by_key: bool,
    *,
    named: bool = True,
) -> None:
    """Check what could not be checked when the line was written: a state of another flow shows its columns only now.

    Args:
        node: a query by a built-in function.
        types: of its inputs.
        keys: the state's key columns, with their types.
        values: its other columns.
        by_key: whether it has values by key, or one value; else it keeps rows.
        named: whether outputs with names of values are looked at, too.

    Raises:
        FunctionError: if the inputs are not as many as the keys, or of another sort, or the outputs more than the values, or
            rows are asked by key.
        FieldError: if an output has a name that none of the values has, others have one, and it is not meant by its position.
    """
    state = f'at {node.at}: state "{node.state}"'
    if isinstance(node.function, TupleCollectionGet):
        values = (*keys, *values)
    elif not by_key:
        raise FunctionError(
            "state_query",
            f"{state} keeps rows and has no values by key to ask for",
            hint="use TupleCollectionGet() for all of them",
        )
    elif len(node.inputs) != len(keys):
        raise FunctionError(
            "state_query",
            f"{state} has the keys {list(keys)}; got the fields {list(node.inputs)}",
            hint="use MapGet() with one field per key, or SnapshotGet() for a state without keys",
        )
    else:
        check_meeting(
            f"at {node.at}: state_query", zip(zip(node.inputs, types, strict=True), keys.items(), strict=True)
        )
    if not set(node.outputs) <= set(values) and len(node.outputs) > len(values):
        raise FunctionError(
            "state_query", f"{state} has the values {list(values)}; got the outputs {list(node.outputs)}"
        )
    # Where no name is a value's all are meant by position: the other flow may have added values since.
    if named and not set(node.outputs).isdisjoint(values):
        require_shown(f"at {node.at}: state_query", node.outputs, values, f'state "{node.state}" has')


def _parts(view: Any, table: Table, results: list[Any], types: Mapping[str, str | None], tasks: int) -> list[Any]:
    """Return for each tuple those rows of the state that belong to its task."""
    by_task: dict[int, list[Row]] = {}
    if results:
        known = tuple(types.get(name) for name in (*view.keys, *view.values))
        part = by_hash(Table((*view.keys, *view.values), known, tuple(results[0])), view.keys, tasks)
        for number, row in enumerate(part.rows):
            by_task.setdefault(part.task_of(number), []).append(row)
    return [by_task.get(table.task_of(number), []) for number in range(len(table.rows))]


def _made(node: nodes.StateQueryNode, view: Any, arguments: Row, result: Any) -> list[Row]:
    if isinstance(node.function, TupleCollectionGet):
        names = (*view.keys, *view.values)
        at = [names.index(name) for name in _columns(node.outputs, names)]
        return [tuple(row[i] for i in at) for row in result]
    if isinstance(node.function, MapGet | SnapshotGet):
        values = (None,) * len(view.values) if result is None else result if len(view.values) > 1 else (result,)
        return [tuple(values[view.values.index(name)] for name in _columns(node.outputs, view.values))]
    return fitted(
        node.label, node.types, emitted(node.label, node.function.execute(arguments, result), len(node.outputs))
    )


def _columns(outputs: tuple[str, ...], columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the state's columns that the outputs show: those of their names, else by position."""
    return outputs if set(outputs) <= set(columns) else columns[: len(outputs)]


def _types(
    node: nodes.StateQueryNode, context: PlainContext, held: Callable[[], Mapping[str, str | None]]
) -> tuple[str | None, ...]:
    if not node.function.in_spark:
        return node.types
    known, view = held(), context.view(node.state)
    shown = _columns(node.outputs, (*view.keys, *view.values) if node.function.shows_keys else view.values)
    # Of too many outputs, which are refused where there is a row.
    return (*map(known.get, shown), *[None] * (len(node.outputs) - len(shown)))


def fixed_view(state: FixedState) -> StateView:
    """Return what a function sees of a state that is given in the program: values of its schema's types."""
    from pipelines.sources.fixed import checked_rows

    given = checked_rows(state.name, state.schema, [tuple(row) for row in state.rows])
    values = [name for name in state.fields if name not in state.keys]
    rows = [dict(zip(state.fields, row, strict=True)) for row in given]
    return StateView.of_rows(tuple(state.keys), values, rows, [arrow_type(state.types[name]) for name in state.keys])
