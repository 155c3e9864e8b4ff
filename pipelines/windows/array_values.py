"""Aggregates of many windows over one array of values: what each aggregator gives for ranges of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipelines.aggregators import Average, Count, EventAggregator, Max, Min, StdDev, Sum
from pipelines.aggregators.exact import ends_fit, fits, fsum
from pipelines.aggregators.std_dev import Spread, spread_of

_SAFE: Final = 2**62
Array = np.ndarray[Any, Any]


@dataclass
class Values:
    """Numbers (int64 or float64), and which of them are there; None: all are."""

    numbers: Array
    valid: Array | None = None

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Values:
        """Return a column's values; those that are null are 0."""
        valid = None if not column.null_count else column.is_valid().to_numpy()
        wide = column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.float64())
        return cls((wide.fill_null(0) if column.null_count else wide).to_numpy(), valid)

    def spread(self, at: Array, size: int) -> Values:
        """Return a larger array with these values at some places; the others are still to be put in."""
        numbers = np.zeros(size, self.numbers.dtype)
        numbers[at] = self.numbers
        valid = None
        if self.valid is not None:
            valid = np.ones(size, bool)
            valid[at] = self.valid
        return Values(numbers, valid)

    def put(self, at: Array, others: Values) -> None:
        """Put values at places."""
        self.numbers[at] = others.numbers
        if others.valid is not None and self.valid is None:
            self.valid = np.ones(len(self.numbers), bool)
        if self.valid is not None:
            self.valid[at] = True if others.valid is None else others.valid

    def array(self, at: Array) -> pa.Array:
        """Return the values of some places, as Arrow."""
        return pa.array(self.numbers[at], mask=None if self.valid is None else ~self.valid[at])

    @property
    def whole(self) -> bool:
        """Check whether these are ints."""
        return self.numbers.dtype.kind == "i"

    def counts(self, start: Array, end: Array) -> Array:
        """Return how many values each range has."""
        if self.valid is None:
            return end - start
        sums = np.concatenate([[0], np.cumsum(self.valid)])
        return sums[end] - sums[start]

    def lists(self, start: Array, end: Array) -> Iterator[list[Any]]:
        """Yield the values of each range; one after the other, for windows that share their events hold many times these."""
        if self.valid is None:
            flat, first, last = self.numbers.tolist(), start.tolist(), end.tolist()
        else:
            places = np.concatenate([[0], np.cumsum(self.valid)])
            flat, first, last = self.numbers[self.valid].tolist(), places[start].tolist(), places[end].tolist()
        for a, b in zip(first, last, strict=True):
            yield flat[a:b]

    def sums(self, start: Array, end: Array, *, squares: bool = False) -> list[Any]:
        """Return the exact sum of each range, of floats rounded once; or of ints the sum of squares."""
        if not self.whole:
            return [fsum(values) for values in self.lists(start, end)]
        if self._most ** (2 if squares else 1) * max(len(self.numbers), 1) >= _SAFE:
            # What is null is 0. Ints of Python are exact, whatever their size.
            own = self.numbers.tolist()
            sums = [0, *accumulate(v * v for v in own)] if squares else [0, *accumulate(own)]
            return [sums[b] - sums[a] for a, b in zip(start.tolist(), end.tolist(), strict=True)]
        terms = self.numbers * self.numbers if squares else self.numbers
        total = np.concatenate([[0], np.cumsum(terms)])
        return (total[end] - total[start]).tolist()

    def beyond(self, start: Array, end: Array, *, ends: bool) -> list[int]:
        """Return the ranges of ints that have a sum that does not fit bigint, or with `ends` the last few of which have one."""
        if not self.whole or not len(start) or self._most * len(self.numbers) < _SAFE:
            return []
        # As floats they are near enough to tell where it is worth a look.
        sizes = np.concatenate([[0.0], np.cumsum(np.abs(self.numbers.astype(float)))])
        large = np.flatnonzero(sizes[end] - sizes[start] >= _SAFE).tolist()
        values = {n: self.numbers[start[n] : end[n]].tolist() for n in large}
        return [n for n, own in values.items() if not (ends_fit(own) if ends else fits(sum(own)))]

    @property
    def _most(self) -> int:
        """Return the greatest absolute value of ints."""
        return max(-int(self.numbers.min(initial=0)), int(self.numbers.max(initial=0)))


def aggregated(aggregator: EventAggregator, columns: dict[str, Values], start: Array, end: Array) -> Any:
    """Return what an aggregator gives for each range, as a list or an array; null where it has no value."""
    field = getattr(aggregator, "field", None)
    if isinstance(aggregator, Count):
        return end - start if field is None else columns[str(field)].counts(start, end)
    values = columns[str(field)]
    counts = values.counts(start, end)
    if isinstance(aggregator, Sum):
        return values.sums(start, end)
    if isinstance(aggregator, Average):
        sums = values.sums(start, end)
        return [total / count if count else 0.0 for total, count in zip(sums, counts.tolist(), strict=True)]
    if isinstance(aggregator, StdDev):
        return _spreads(values, counts, start, end)
    assert isinstance(aggregator, Min | Max)
    return _extremes(values, counts, start, end, greatest=aggregator.greatest)


def _spreads(values: Values, counts: Array, start: Array, end: Array) -> list[float]:
    if values.whole:
        sums, squares = values.sums(start, end), values.sums(start, end, squares=True)
        return [spread_of(n, s, q) for n, s, q in zip(counts.tolist(), sums, squares, strict=True)]
    spreads = []
    for part in values.lists(start, end):
        spread = Spread("StdDev", "")
        for value in part:
            spread.add(value)
        spreads.append(spread.aggregate())
    return spreads


def _extremes(values: Values, counts: Array, start: Array, end: Array, *, greatest: bool) -> pa.Array:
    """Return the least or greatest values; NaN is the greatest number; null where there is no value."""
    if not len(start):
        return pa.array([], pa.int64() if values.whole else pa.float64())
    numbers, reduce = values.numbers, np.maximum
    limit: Any
    if values.whole:
        limit = np.iinfo(np.int64).min if greatest else np.iinfo(np.int64).max
        reduce = reduce if greatest else np.minimum  # type: ignore[assignment]
    else:
        limit = -np.inf if greatest else np.nan
        reduce = reduce if greatest else np.fmin  # type: ignore[assignment]
    if values.valid is not None:
        numbers = np.where(values.valid, numbers, limit)
    # Pairs of places: every second result is that of a range. One more number, so that a range may end at the end.
    places = np.stack([start, end], axis=1).ravel()
    extremes = reduce.reduceat(np.append(numbers, limit), places)[::2]
    # Of -0.0 and 0.0 either may have come out.
    extremes = extremes if values.whole else extremes + 0.0
    return pa.array(extremes, mask=counts == 0, from_pandas=False)
