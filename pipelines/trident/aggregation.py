"""Reading the argument forms of `aggregate` and `persistent_aggregate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.aggregators import Aggregator, ColumnAggregator, CombinerAggregator, ReducerAggregator
from pipelines.errors import FunctionError
from pipelines.graph.fields import as_names, require
from pipelines.graph.nodes import Aggregation

_KINDS = (CombinerAggregator, ReducerAggregator, Aggregator)


def parse_aggregations(operation: str, args: tuple[Any, ...], available: Sequence[str]) -> tuple[Aggregation, ...]:
    """`(aggregator, output)`, `(fields, aggregator, output)`, or one list of aggregators that name field and output.

    Raises:
        FieldError: if an input field is not there.
        FunctionError: if the forms do not fit, or an aggregator gets another number of fields than it takes.
    """
    if len(args) == 3:
        return (_one(operation, args[1], as_names(args[0]), _output(operation, args[2]), available),)
    if len(args) == 2:
        return (_one(operation, args[0], None, _output(operation, args[1]), available),)
    if len(args) == 1 and isinstance(args[0], list | tuple) and args[0]:
        return tuple(_one(operation, each, None, None, available) for each in args[0])
    raise FunctionError(operation, "takes (aggregator, output), (fields, aggregator, output) or ([aggregators])")


def _output(operation: str, output: Any) -> str:
    names = as_names(output)
    if len(names) != 1:
        raise FunctionError(operation, f"an aggregator makes one field; got {list(names)}")
    return names[0]


def _one(
    operation: str, aggregator: Any, inputs: tuple[str, ...] | None, output: str | None, available: Sequence[str]
) -> Aggregation:
    if not isinstance(aggregator, _KINDS):
        raise FunctionError(operation, f"{aggregator!r} is not an aggregator", hint="use Count(), Sum(), ...")
    if inputs is None:
        inputs = as_names(aggregator.field)
    inputs = require(operation, inputs, available)
    if not isinstance(aggregator, ColumnAggregator):
        raise FunctionError(
            operation,
            f"{aggregator} is written in Python",
            hint="use a built-in aggregator: Count, Sum, Min, Max, Average",
        )
    if aggregator.arity == 0:
        inputs = ()
    elif len(inputs) != aggregator.arity:
        raise FunctionError(operation, f"{aggregator} takes {aggregator.arity} field(s); got {list(inputs)}")
    name = output or aggregator.output
    if not name:
        raise FunctionError(
            operation, f"{aggregator} does not name its output", hint=f'write {aggregator}(..., "name")'
        )
    return Aggregation(aggregator, inputs, (name,))
