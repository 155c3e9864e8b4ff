"""FirstN: the first n tuples of a batch, by a field or as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pipelines.aggregators.base import Aggregator
from pipelines.aggregators.ends import EndOfWindow
from pipelines.aggregators.extremes import is_nan
from pipelines.errors import FieldError, FunctionError


class FirstN(EndOfWindow, Aggregator):
    """The n tuples with the least values of `sort_field` (with `reverse` the largest), in that order (rules 1.3).

    Without a `sort_field` the first n seen, which on Spark are any n. Null values come last either way, NaN counts as the
    largest. It is an aggregator over any fields, whose outputs have the types of its inputs, and an assembly:
    `stream.apply_assembly(FirstN(3, "n"))` takes n of each partition, then n of those.

    In an event flow it gives one array: `FirstN(3, field="v")` the values of `v` of the first three events of the window
    that have it, in the order in which they came; with a `sort_field` of the first three in its order. The output is
    "first" unless named.

    Args:
        n: how many tuples, at least 1.
        sort_field: one of the input fields.
        reverse: largest first.
        field: event flows: whose values to give; the sort field unless named.
        output: event flows: the output field.

    Raises:
        FunctionError: if n is not a positive whole number.
    """

    returns: Any = None

    default_output: ClassVar[str] = "first"

    position: int | None = None
    """Which of the inputs is the sort field; set by `bind`."""

    _UNBOUND: ClassVar[str] = "is not bound to its input fields"

    def bind(self, inputs: Sequence[str]) -> FirstN:
        """Return the same over these input fields.

        Raises:
            FieldError: if the sort field is none of them.
        """
        bound = FirstN(self.n, self.sort_field, self.reverse)
        if self.sort_field is not None:
            if self.sort_field not in inputs:
                raise FieldError("FirstN", self.sort_field, inputs)
            bound.position = tuple(inputs).index(self.sort_field)
        return bound

    def init(self) -> list[tuple[Any, ...]]:
        return []

    def aggregate(self, state: list[tuple[Any, ...]], *values: Any) -> None:
        state.append(values)
        if self.sort_field is None:
            del state[self.n :]
        elif len(state) >= 2 * self.n + 100:
            state[:] = self._first(state)

    def complete(self, state: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        yield from self._first(state)

    def apply(self, stream: Any) -> Any:
        """Return the assembly: n tuples of each partition, then n of all of them."""
        fields = stream.output_fields
        return stream.partition_aggregate(fields, self, fields).global_().partition_aggregate(fields, self, fields)

    def _first(self, tuples: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if self.sort_field is None:
            return tuples[: self.n]
        if self.position is None:
            raise FunctionError("FirstN", self._UNBOUND)
        at = self.position
        there = [row for row in tuples if row[at] is not None]
        there.sort(key=lambda row: (is_nan(row[at]), 0 if is_nan(row[at]) else row[at]), reverse=self.reverse)
        return (there + [row for row in tuples if row[at] is None])[: self.n]

    def __str__(self) -> str:
        by = "" if self.sort_field is None else f" by {self.sort_field}"
        return f"FirstN {self.n}{by}"
