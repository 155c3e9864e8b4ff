"""Windows one by one as a function of state: a state that is cut, saved and laid over gives what one that lives on gives."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import aggregators as agg
from pipelines.flowmix import Flow
from pipelines.graph import events as ev
from pipelines.testing import run_flow
from pipelines.windows import arrays
from pipelines.windows.array_kinds import OneByOne
from pipelines.windows.arrays import EMPTY, WindowContent, from_ipc, to_ipc
from pipelines.windows.event_rows import items_of, rows_of
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import (
    AggregateWindow,
    AlignedWindow,
    CollectWindow,
    SessionWindow,
    SortWindow,
    SwitchWindow,
)
from pipelines.windows.policy import Policy
from tests.windows.window_runs import context, run

OWN = [(name, pa.int64() if name in (ev.TIME, ev.CLOCK) else pa.string()) for name in ev.COLUMNS]
TAKEN = pa.schema([("k", pa.list_(pa.string())), ("v", pa.float64()), *OWN])
KEY = [("k", pa.list_(pa.string()))]
BOUNDS = [(name, pa.timestamp("us", "UTC")) for name in ("window_start", "window_end")]
count, seconds = Policy.count, Policy.time
CHAIN = (agg.Count(), agg.DistinctCount("v", "distinct"), agg.Collect("v", "all"))
MADE = [("count", pa.int64()), ("distinct", pa.int64()), ("all", pa.list_(pa.float64()))]
WINDOWS: list[tuple[Any, list[Any]]] = [
    (AggregateWindow(CHAIN, count(2), count(3), False, 5000), MADE),
    (AggregateWindow(CHAIN, seconds(2), seconds(3), True), MADE),
    (CollectWindow(count(2), seconds(4), field="all"), [("all", pa.list_(pa.struct([("v", pa.float64())])))]),
    (AlignedWindow(CHAIN, 2, 5), [*BOUNDS, *MADE]),
    (SessionWindow(CHAIN, 2), [*BOUNDS, *MADE]),
    (SortWindow((("v", True),), "top_n", 2, seconds(2)), [("v", pa.float64())]),
    (SortWindow((("v", False),), "tumbling", None, count(3)), [("v", pa.float64())]),
    (SwitchWindow(count(3), count(2), seconds(2)), [("v", pa.float64())]),
]

Row = tuple[Any, Any, int]


def table(rows: list[Row], first: int) -> pa.Table:
    columns: list[list[Any]] = [
        [k for k, _, _ in rows],
        [v for _, v, _ in rows],
        [f"e{first + n}" for n in range(len(rows))],
    ]
    columns += [[at for _, _, at in rows], [at for _, _, at in rows], ["s"] * len(rows)]
    columns.append([f"{first + n:06d}" for n in range(len(rows))])
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, TAKEN, strict=True)], schema=TAKEN)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[Row], int]]:
    """Batches of events, each with a clock that no later event is before; keys of several values, and none."""
    now, parts = 0, []
    for _ in range(draw(st.integers(1, 6))):
        rows = []
        for _ in range(draw(st.integers(0, 8))):
            now += draw(st.sampled_from([0, 1, 400, 1000, 2500]))
            key = draw(st.sampled_from([["a"], ["b"], ["a", "b"], ["b", "a"], None, []]))
            rows.append((key, draw(st.sampled_from([None, 1.0, 2.5, -1.0])), now))
        now += draw(st.sampled_from([0, 10, 3000, 9000]))
        parts.append((rows, now))
    return [*parts, ([], now + 30_000)]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.sampled_from(WINDOWS), histories(), st.booleans(), st.sampled_from([2, arrays.RESULTS_AT_ONCE]))
def test_cuts_and_restarts_make_no_difference(
    window: Any, parts: list[tuple[list[Row], int]], keyed: bool, most: int
) -> None:
    with patch.object(arrays, "RESULTS_AT_ONCE", most):
        check_history(window, parts, keyed)


def check_history(window: Any, parts: list[tuple[list[Row], int]], keyed: bool) -> None:
    operation, outputs = window
    where = context("k") if keyed else context()
    schema = pa.schema([*(KEY if keyed else []), *outputs, *OWN])
    alive, state, kept = KeyedWindows(operation, where), EMPTY, list[pa.Table]()
    first = 0
    for rows, clock in parts:
        batch = table(rows, first)
        first += len(rows)
        wanted = rows_of(alive.feed(items_of(batch), clock), schema)
        windows = OneByOne(operation, where, schema)
        due = windows.due(state)
        results, after = windows.feed(state, batch, clock)
        assert results.to_pylist() == wanted.to_pylist()
        assert not results.num_rows or rows or (due is not None and due <= clock)
        # The file of a batch holds the whole, or what has changed since; a process that knows nothing reads both.
        kept = [*kept, after.changed] if kept and after.changed is not None else [after.windows]
        laid = windows.laid_over([from_ipc([to_ipc(part, "lz4")]) for part in kept], clock)
        assert laid is not None
        assert after.windows is not None
        assert laid.sort_by("_text").to_pylist() == after.windows.sort_by("_text").to_pylist()
        state = WindowContent(laid, after.pending, after.clock)


FAR = [datetime(2300, 1, 1, 0, 0, 0, micros, UTC) for micros in (1, 2)]


def test_keys_a_microsecond_apart_have_windows_of_their_own_however_far_away_they_are() -> None:
    """Floats of seconds do not tell them apart from the year 2242 on; Spark, which deals keys to buckets, does."""
    operation, kind = AggregateWindow((agg.Count("n"),), count(2), count(2)), pa.timestamp("us", "UTC")
    for keys in (FAR, [[FAR[0]], [FAR[1]]]):
        assert run(operation, [{"k": key} for key in keys], "k") == []
    flow = Flow("f").stream("s", "k timestamp, v bigint").partition("k")
    built = flow.aggregate(agg.Count("n"), trigger=count(2), evict=count(2)).output().build()
    assert run_flow(built, {"s": [{"k": key, "timestamp": n} for n, key in enumerate(FAR)]})["s"] == []
    taken = TAKEN.set(0, pa.field("k", kind))
    windows = OneByOne(operation, context("k"), pa.schema([("k", kind), ("n", pa.int64()), *OWN]))
    batch = table([(None, 1.0, 0), (None, 1.0, 0)], 0).set_column(0, taken.field("k"), pa.array(FAR, kind))
    results, state = windows.feed(EMPTY, batch, 0)
    assert (results.num_rows, state.keys) == (0, 2)
