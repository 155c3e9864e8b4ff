"""StdDev of a numeric field over an event window."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pipelines.aggregators.base import ByValue
from pipelines.aggregators.values import OfField
from pipelines.aggregators.window import EventAggregator, Types, number, numeric_type


class StdDev(ByValue, EventAggregator):
    """Sample standard deviation (divided by n - 1, Spark's `stddev`) of one field, as double; 0.0 of fewer than two values.

    It is computed from exact sums: no order of events and nothing that left the window changes it.

    Args:
        field: the input field.
        output: the output field, "std_dev" unless named.
    """

    default_output: ClassVar[str] = "std_dev"

    def __init__(self, field: str, output: str | None = None) -> None:
        self.field, self.output = field, output

    def accumulator(self) -> Spread:
        return Spread("StdDev", self.field)

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        numeric_type("StdDev", self.field, types)
        return [(self.named, "double")]

    def __repr__(self) -> str:
        return f"StdDev({self.field!r}, {self.named!r})"


class Spread(OfField):
    """Exact sums of the values and of their squares, as whole numbers of 2 ** -scale and 2 ** -(2 * scale)."""

    def __init__(self, name: str, field: str) -> None:
        self.count = self.scale = self.total = self.squares = self.not_finite = 0
        super().__init__(name, field)

    def clear(self) -> None:
        self.count = self.scale = self.total = self.squares = self.not_finite = 0

    def add(self, value: Any, sign: int = 1) -> None:
        if type(value) is int:
            whole = value << self.scale
        else:
            value = float(number(self._name, self._field, value))
            if not math.isfinite(value):
                self.not_finite += sign
                return
            whole, parts = value.as_integer_ratio()
            bits = parts.bit_length() - 1
            if bits > self.scale:
                self.total <<= bits - self.scale
                self.squares <<= 2 * (bits - self.scale)
                self.scale = bits
            whole <<= self.scale - bits
        self.count += sign
        self.total += sign * whole
        self.squares += sign * whole * whole

    def remove(self, value: Any) -> None:
        self.add(value, -1)

    def aggregate(self) -> float:
        if self.not_finite:
            return math.nan
        return spread_of(self.count, self.total, self.squares, self.scale)

    def save(self) -> Any:
        return [self.count, self.scale, self.total, self.squares, self.not_finite]

    def restore(self, state: Any) -> None:
        self.count, self.scale, self.total, self.squares, self.not_finite = state


def spread_of(count: int, total: int, squares: int, scale: int = 0) -> float:
    """Return the sample standard deviation from the number of values, their sum and the sum of their squares."""
    if count < 2:
        return 0.0
    above, below = count * squares - total * total, (count * (count - 1)) << (2 * scale)
    # The variance of great numbers may be beyond a float though its root is not.
    halvings = max(0, (above.bit_length() - below.bit_length() - 1000) // 2)
    return math.ldexp(math.sqrt(above / (below << (2 * halvings))), halvings)
