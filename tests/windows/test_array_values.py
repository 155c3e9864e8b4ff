"""Sums over many ranges of one array: what they give, and what they hold at once."""

from __future__ import annotations

import tracemalloc
from math import fsum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.aggregators import EventAggregator, StdDev, Sum
from pipelines.windows.array_values import Values, aggregated

ROWS = 20_000
# Every tenth is null.
FLOATS = [n * 0.1 if n % 10 else None for n in range(ROWS)]
LARGE = [2**62 - n if n % 2 else n - 2**62 for n in range(ROWS)]


@pytest.mark.parametrize(
    ("given", "aggregator", "size", "most"),
    [
        # Of 20,000 windows of 2,000 events that were 300 MB.
        pytest.param(FLOATS, Sum("v"), 2000, 20_000_000, id="sums of floats"),
        pytest.param(LARGE, Sum("v"), 2000, 20_000_000, id="sums of ints beyond 64 bits"),
        pytest.param(FLOATS[:800], StdDev("v"), 150, 400_000, id="deviations of floats"),
    ],
)
def test_windows_that_share_their_events_are_not_laid_out_all_at_once(
    given: list[Any], aggregator: EventAggregator, size: int, most: int
) -> None:
    values, end = Values.of(pa.chunked_array([given])), np.arange(1, len(given) + 1)
    start = np.maximum(end - size, 0)
    tracemalloc.start()
    try:
        found = aggregated(aggregator, {"v": values}, start, end)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most
    if isinstance(aggregator, Sum):
        add: Any = fsum if given is FLOATS else sum
        for n in (0, 1, size, ROWS // 2, ROWS - 1):
            assert found[n] == add(v for v in given[start[n] : end[n]] if v is not None)


@pytest.mark.parametrize("largest", [3, 2**40, 2**63 - 1])
@pytest.mark.parametrize("squares", [False, True])
def test_sums_of_ints_are_exact_whatever_their_size(largest: int, squares: bool) -> None:
    given = [None, largest, -largest, largest, 1, None, largest, -largest - 1]
    start, end = (
        np.array([a for a in range(9) for b in range(a, 9)]),
        np.array([b for a in range(9) for b in range(a, 9)]),
    )
    wanted = [
        sum(v * v if squares else v for v in given[a:b] if v is not None)
        for a, b in zip(start.tolist(), end.tolist(), strict=True)
    ]
    found = Values.of(pa.chunked_array([given])).sums(start, end, squares=squares)
    assert found == wanted
    assert {*map(type, found)} == {int}
