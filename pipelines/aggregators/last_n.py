"""LastN: values of the last n events of a window."""

from __future__ import annotations

from typing import ClassVar

from pipelines.aggregators.first_n import Ends, check_ends, ends_types
from pipelines.aggregators.window import EventAggregator, Types
from pipelines.errors import FunctionError


class LastN(EventAggregator):
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
            raise FunctionError("LastN", f"takes a positive number of events; got {n!r}")
        self.n, self.sort_field, self.reverse = n, sort_field, reverse
        self.values_field, self.output = field or sort_field, output

    def accumulator(self) -> Ends:
        return Ends(self.n, str(self.values_field), self.sort_field, self.reverse, last=True)

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        return ends_types(self.named, str(self.values_field), types)

    def check(self) -> None:
        check_ends("LastN", self.values_field)

    def __repr__(self) -> str:
        given = {
            "sort_field": self.sort_field,
            "reverse": self.reverse or None,
            "field": self.values_field,
            "output": self.output,
        }
        return f"LastN({self.n}, {', '.join(f'{k}={v!r}' for k, v in given.items() if v is not None)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((LastN, repr(self)))

    def __str__(self) -> str:
        return f"LastN {self.n}"
