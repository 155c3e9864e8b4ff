"""LastN: values of the last n events of a window."""

from __future__ import annotations

from typing import ClassVar

from pipelines.aggregators.ends import EndOfWindow


class LastN(EndOfWindow):
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

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((LastN, repr(self)))

    def __str__(self) -> str:
        return f"LastN {self.n}"
