"""FirstN and LastN: the tuples at one end of a batch, and values at one end of an event window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

from pipelines.aggregators.base import Aggregator, ByValue
from pipelines.aggregators.ordering import foremost, spark_key, values_of
from pipelines.aggregators.values import KeptEntries
from pipelines.aggregators.window import EventAggregator, Types, element_type
from pipelines.errors import FieldError, FunctionError


class EndOfWindow(EventAggregator):
    """n values from one end of a window: `last` says which.

    Args:
        n: how many, at least 1.
        sort_field: what to order by; None: as they came.
        reverse: largest first.
        field: event flows: whose values to give; the sort field unless named.
        output: event flows: the output field.

    Raises:
        FunctionError: if n is not a positive whole number.
    """

    last: ClassVar[bool] = False
    output: str | Sequence[str] | None

    def __init__(
        self,
        n: int,
        sort_field: str | None = None,
        reverse: bool = False,
        *,
        field: str | None = None,
        output: str | None = None,
    ) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise FunctionError(type(self).__name__, f"takes a positive number of tuples; got {n!r}")
        super().__init__()
        self.n, self.sort_field, self.reverse = n, sort_field, reverse
        self.values_field, self.output = field or sort_field, output

    def accumulator(self) -> Ends:
        return Ends(self.n, str(self.values_field), self.sort_field, self.reverse, last=self.last)

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        kind = element_type(types.get(str(self.values_field)))
        return [(self.named, kind and f"array<{kind}>")]

    def check(self) -> None:
        if self.values_field is None:
            name = type(self).__name__
            hint = f'name it: {name}(3, field="delay")'
            raise FunctionError(name, "Aggregator needs a field to operate it", hint=hint)

    def __repr__(self) -> str:
        given = {
            "sort_field": self.sort_field,
            "reverse": self.reverse or None,
            "field": self.values_field,
            "output": self.output,
        }
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        return f"{type(self).__name__}({self.n}, {shown})"


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
        there.sort(key=lambda row: spark_key(row[at]), reverse=self.reverse)
        return (there + [row for row in tuples if row[at] is None])[: self.n]

    def __str__(self) -> str:
        by = "" if self.sort_field is None else f" by {self.sort_field}"
        return f"FirstN {self.n}{by}"


class LastN(ByValue, EndOfWindow):
    """The values of `field` of the last n events of the window that have it, as one array, the latest at its end.

    With a `sort_field` the last n in the order of that field (with `reverse` the largest come first), as of `FirstN`.

    Args:
        n: how many events, at least 1.
        sort_field: what to order by; without it events stand as they came.
        reverse: largest first.
        field: whose values to give; the sort field unless named.
        output: the output field, "last" unless named.

    Raises:
        FunctionError: if n is not a positive whole number.
    """

    default_output: ClassVar[str] = "last"
    last: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"LastN {self.n}"


class Ends(KeptEntries):
    """The values of a field of the first or last n events that have it, as they came or by a sort field.

    By a sort field events that lack it come last, and of several values the one that comes first counts, as in `sort`; of
    equal ones the earlier comes first.
    """

    def __init__(self, n: int, field: str, sort_field: str | None, reverse: bool, *, last: bool = False) -> None:
        super().__init__((field,) if sort_field in (None, field) else (field, str(sort_field)))
        self._n, self._field, self._sort_field, self._reverse, self._last = n, field, sort_field, reverse, last

    def entry(self, event: Mapping[str, Any]) -> list[Any]:
        return [event.get(self._field), None if self._sort_field is None else event.get(self._sort_field)]

    def aggregate(self) -> list[Any]:
        there = [entry for entry in self.entries if entry[0] is not None]
        if self._sort_field is not None:
            keyed = [(foremost(entry[1], self._reverse), entry) for entry in there]
            known = [(key, entry) for key, entry in keyed if key is not None]
            known.sort(key=itemgetter(0), reverse=self._reverse)
            there = [entry for _, entry in known] + [entry for key, entry in keyed if key is None]
        shown = there[-self._n :] if self._last else there[: self._n]
        return [value for entry in shown for value in values_of(entry[0])]
