"""The base of FirstN and LastN: the values at one end of an event window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pipelines.aggregators.ordering import order_key, values_of
from pipelines.aggregators.values import Kept
from pipelines.aggregators.window import EventAggregator, Types, element_type
from pipelines.errors import FunctionError


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


class Ends(Kept):
    """The values of a field of the first or last n events that have it, as they came or by a sort field.

    By a sort field events that lack it come last; of equal ones the earlier comes first.
    """

    def __init__(self, n: int, field: str, sort_field: str | None, reverse: bool, *, last: bool = False) -> None:
        super().__init__((field,) if sort_field in (None, field) else (field, str(sort_field)))
        self._n, self._field, self._sort_field, self._reverse, self._last = n, field, sort_field, reverse, last

    def entry(self, event: Mapping[str, Any]) -> list[Any]:
        return [event.get(self._field), None if self._sort_field is None else event.get(self._sort_field)]

    def aggregate(self) -> list[Any]:
        there = [entry for entry in self.entries if entry[0] is not None]
        if self._sort_field is not None:
            known = [entry for entry in there if entry[1] is not None]
            known.sort(key=lambda entry: order_key(entry[1]), reverse=self._reverse)
            there = known + [entry for entry in there if entry[1] is None]
        shown = there[-self._n :] if self._last else there[: self._n]
        return [value for entry in shown for value in values_of(entry[0])]
