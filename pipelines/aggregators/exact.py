"""Sums that are exact whatever comes and goes: a window's sum does not drift, and no order of events changes it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from itertools import accumulate
from typing import Any, Final

_DECIMALS: Final = Context(prec=200, rounding=ROUND_HALF_UP)
PLACES: Final = 28
"""So many digits behind the point are left of a topology's sum on Spark: the zero of no tuples takes ten whole ones."""
_PENDING: Final = 200
"""Floats that are summed at once: below that appending is all the work, at the cost of 200 numbers a window."""


def plus(a: Any, b: Any) -> Any:
    """Add two numbers; decimals exactly, where Python's own addition keeps 28 digits."""
    if not isinstance(a, Decimal) and not isinstance(b, Decimal):
        return a + b
    return _DECIMALS.add(Decimal(a), Decimal(b))


BIGINT: Final = 2**63
DIGITS: Final = 38
"""A decimal has so many at most, those behind the point included."""


class TotalError(ArithmeticError):
    """A sum does not fit its type. The batch that brings it there fails, not the one that ends or emits the window.

    Attributes:
        field: that is summed.
        number: of the window among those of the batch.
    """

    def __init__(self, field: str, number: int = 0, *, decimal: bool = False) -> None:
        self.field, self.number = field, number
        super().__init__(f'the sum of "{field}" does not fit {f"decimal({DIGITS})" if decimal else "bigint"}')


def fits(total: Any) -> bool:
    """Check whether a sum of ints fits bigint, or one of decimals 38 digits; one of anything else does."""
    if not isinstance(total, Decimal):
        return not isinstance(total, int) or -BIGINT <= total < BIGINT
    return total.adjusted() + 1 + max(0, -int(total.as_tuple().exponent)) <= DIGITS


def in_column(total: Any) -> Any:
    """Return a sum of decimals as a topology's column has it: at most `PLACES` digits behind the point, rounded half up (ADR 90).

    Raises:
        TotalError: with all its digits it does not fit, as Spark adds it up before it is rounded.
    """
    if not isinstance(total, Decimal) or not total.is_finite() or int(total.as_tuple().exponent) >= -PLACES:
        return total
    if not fits(total):
        raise TotalError("", decimal=True)
    return _DECIMALS.quantize(total, Decimal(1).scaleb(-PLACES))


def ends_fit(values: Sequence[Any]) -> bool:
    """Check whether the sum of the last of some ints or decimals fits, however many these are."""
    if not values:
        return True
    most = max(values, key=abs)
    if fits(_DECIMALS.multiply(most, len(values)) if isinstance(most, Decimal) else most * len(values)):
        return True
    return all(map(fits, accumulate(reversed(values), plus)))


class ExactSum:
    """The sum of numbers added and removed: an int of ints, a Decimal of decimals (and ints), else a float.

    A float is the exact sum rounded once, as of `math.fsum`; it does not depend on what was in the window before.
    """

    __slots__ = ("decimals", "floats", "fraction", "parts", "special", "whole")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start from nothing."""
        self.whole, self.floats, self.decimals = 0, 0, 0
        self.parts: list[float] = []
        self.fraction = Decimal(0)
        self.special = {"nan": 0, "inf": 0, "-inf": 0}

    def add(self, value: Any, sign: int = 1) -> None:
        """Add a number, or with sign -1 take it out again."""
        kind = type(value)
        if kind is int:
            self.whole += sign * value
        elif kind is float:
            self.add_float(value, sign)
        elif isinstance(value, Decimal):
            self.decimals += sign
            signed = value if sign > 0 else value.copy_negate()
            self.fraction = _DECIMALS.add(self.fraction, signed) if self.decimals else Decimal(0)
        else:
            self.add(int(value) if isinstance(value, int) else float(value), sign)

    def add_float(self, value: float, sign: int) -> None:
        """Add a float, or with sign -1 take it out again."""
        self.floats += sign
        if value - value != 0.0:
            self.special["nan" if value != value else str(value)] += sign
        elif not self.floats:
            self.parts.clear()
        else:
            parts = self.parts
            parts.append(sign * value)
            if len(parts) > _PENDING:
                self.parts = shortened(parts)

    @property
    def value(self) -> Any:
        """The sum; 0 of nothing."""
        if not self.floats:
            return plus(self.fraction, self.whole) if self.decimals else self.whole
        special = self.special
        if special["nan"] or (special["inf"] and special["-inf"]):
            return math.nan
        if special["inf"] or special["-inf"]:
            return math.inf if special["inf"] else -math.inf
        rest = self._floats_of_whole()
        return fsum([*self.parts, *rest, float(self.fraction)])

    def _floats_of_whole(self) -> list[float]:
        rest, floats = self.whole, []
        while rest:
            floats.append(float(rest))
            rest -= int(floats[-1])
        return floats

    def save(self) -> list[Any]:
        """Return plain data."""
        self.parts = shortened(self.parts)
        return [self.whole, self.floats, self.parts, self.decimals, self.fraction, self.special]

    def restore(self, state: list[Any]) -> None:
        """Take what `save` gave."""
        self.whole, self.floats, parts, self.decimals, self.fraction, special = state
        self.parts, self.special = list(parts), dict(special)


def fsum(values: list[float]) -> float:
    """Return the exact sum rounded once; an infinity where it is too great for a float, NaN of both infinities."""
    try:
        return math.fsum(values)
    except ValueError:
        return math.nan
    except OverflowError:
        # Some of the values may be too great together, and all of them not.
        if others := [value for value in values if value - value != 0.0]:
            return sum(others)
        total = sum(map(Fraction, values))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def shortened(parts: list[float]) -> list[float]:
    """Return a few floats with exactly the same sum."""
    rest, totals = list(parts), []
    try:
        while total := math.fsum(rest):
            totals.append(total)
            rest.append(-total)
    except OverflowError:
        return _in_pieces(sum(map(Fraction, parts), Fraction()))
    return totals


def _in_pieces(total: Fraction) -> list[float]:
    """Return a few floats with a sum that may be too great for one."""
    most, pieces = Fraction(sys.float_info.max), list[float]()
    while total:
        pieces.append(float(max(-most, min(total, most))))
        total -= Fraction(pieces[-1])
    return pieces
