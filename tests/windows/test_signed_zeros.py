"""Keys of windows with zeros in them: -0.0 and 0.0 are one value, and windows that earlier releases kept apart go on."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

from pipelines import aggregators as agg
from pipelines.flowmix import Count, Flow
from pipelines.graph import events as ev
from pipelines.testing import run_flow
from pipelines.windows.array_kinds import OneByOne
from pipelines.windows.arrays import WindowContent
from pipelines.windows.buffer import identity_of, key_of, key_text
from pipelines.windows.event import Event
from pipelines.windows.event_rows import items_of
from pipelines.windows.keyed import Item, KeyedWindows
from pipelines.windows.operations import AggregateWindow, JoinWindow
from pipelines.windows.policy import Policy
from tests.windows.window_runs import context, run, values

NAN = float("nan")
EACH = AggregateWindow((agg.Count("n"),), Policy.count(1), Policy.count(0), False, 60_000)
ALIKE: list[tuple[list[Any], list[int]]] = [
    ([0.0, -0.0, NAN, NAN], [1, 2, 1, 2]),
    ([[0.0, -0.0], [0.0], [-0.0, 0.0], [-0.0], [1.0, -0.0]], [1, 2, 3, 4, 1]),
    ([{"x": -0.0, "y": [0.0]}, {"x": 0.0, "y": [-0.0]}, {"x": 1.0, "y": [-0.0]}], [1, 2, 1]),
    ([[{"x": -0.0}, {"x": 0.0}], [{"x": 0.0}]], [1, 2]),
    ([0, -0.0, True, None, 0.0], [1, 1, 1, 1, 2]),
]


@pytest.mark.parametrize(("keys", "counts"), ALIKE)
def test_both_zeros_are_one_key(keys: list[Any], counts: list[int]) -> None:
    assert values(run(EACH, [{"k": key} for key in keys], "k"), "n") == counts


@pytest.mark.parametrize("kind", ["double", "array<double>", "float"])
def test_both_zeros_are_one_key_of_a_flow(kind: str) -> None:
    each: dict[str, Any] = {"trigger": Policy.count(1), "evict": Policy.count(0)}
    flow = Flow("f").stream("s", f"k {kind}, v bigint").partition("k").aggregate(Count(), **each).output().build()
    keys = [[0.0, -0.0], [0.0], [-0.0, 0.0]] if kind.startswith("array") else [0.0, -0.0, -0.0]
    script = [{"k": key, "timestamp": n} for n, key in enumerate(keys)]
    assert [event["count"] for event in run_flow(flow, {"s": script})["s"]] == [1, 2, 3]


def test_both_zeros_join() -> None:
    script = [{"stream": "l", "k": 0.0, "n": 1}, {"stream": "r", "k": -0.0, "m": 2}]
    assert [(e["n"], e["m"]) for e, _, _ in run(JoinWindow("l", "r", Policy.count(0)), script, "k")] == [(1, 2)]


def test_the_key_of_a_set_does_not_depend_on_its_order() -> None:
    for several in permutations([0.0, -0.0, 1.0, NAN]):
        key = key_of(Event({"k": list(several)}, "e", 0), ("k",))
        assert key_text(key) == "float:0.0|float:1.0|number~nan:0"


Before = list[tuple[Any, list[int]]]
"""Keys as an earlier release had them, and the clocks of the events in their windows."""


def former(operation: AggregateWindow, before: Before, clock: int) -> dict[str, Any]:
    """State that an earlier release has saved: a window for each way to write a key."""
    windows = []
    for key, clocks in before:
        kept = KeyedWindows(operation, context("k"))
        kept.feed([(Event({"k": key}, f"e{n}", at, "s"), at, f"{n:06d}") for n, at in enumerate(clocks)], clock)
        ((_, state),) = kept.save()["windows"]
        windows.append([(tuple(key) if isinstance(key, list) else (key,),), state])
    return {"clock": clock, "pending": [], "windows": windows}


def identity(text: str) -> str:
    return identity_of(context("k"), text)


class Kept:
    """A former state that goes on, restored before each batch."""

    def __init__(self, operation: AggregateWindow, state: dict[str, Any], one_by_one: bool, kind: Any) -> None:
        own = [(name, pa.int64() if name in (ev.TIME, ev.CLOCK) else pa.string()) for name in ev.COLUMNS]
        self.rows, schema = pa.schema([("k", kind), *own]), pa.schema([("k", kind), ("n", pa.int64()), *own])
        self.operation, self.kept = operation, state
        self.arrays = OneByOne(operation, context("k"), schema) if one_by_one else None
        if self.arrays:
            self.content = self.arrays.of_buckets([state], self.rows, state["clock"])

    def feed(self, keys: list[Any], at: int, clock: int) -> list[tuple[int, str]]:
        """The counts and ids of what a batch of events at one clock makes."""
        known = [
            keys,
            *([at if n in (ev.TIME, ev.CLOCK) else f"{n}{i}" for i, _ in enumerate(keys)] for n in ev.COLUMNS),
        ]
        rows = pa.table([pa.array(c, f.type) for c, f in zip(known, self.rows, strict=True)], schema=self.rows)
        if self.arrays:
            made, after = self.arrays.feed(self.content, rows, clock)
            assert after.windows is not None
            texts = after.windows["_text"].to_pylist()
            assert len(texts) == len(set(texts))
            # As a process that knows nothing reads it: the whole before, and what has changed since.
            parts = [part for part in (self.content.windows, after.changed) if part is not None]
            laid = self.arrays.laid_over(parts, clock)
            assert laid is not None
            assert laid.sort_by("_text").to_pylist() == after.windows.sort_by("_text").to_pylist()
            self.content = WindowContent(laid, after.pending, after.clock)
            results: list[Item] = items_of(made)
        else:
            windows = KeyedWindows(self.operation, context("k"))
            windows.restore(self.kept)
            results = windows.feed(items_of(rows), clock)
            self.kept = windows.save()
        return [(event["n"], event.id.split("-")[-3]) for event, _, _ in results]


def tail(text: str) -> str:
    return identity(text).split("-")[-1]


TICKS = AggregateWindow((agg.Count("n"),), Policy.time(5), Policy.count(9), False, 60_000)
ZERO, MINUS = "float:0.0", "float:-0.0"


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_windows_that_were_kept_for_both_zeros_lose_nothing(one_by_one: bool, turned: bool) -> None:
    before: Before = [(0.0, [1000]), (-0.0, [1000, 1000])]
    kept = Kept(TICKS, former(TICKS, before[:: -1 if turned else 1], 2000), one_by_one, pa.float64())
    # Ticks alone, of one of the two first: no window takes the place of the other.
    assert kept.feed([], 3000, 6500) == [(2, tail(MINUS)), (1, tail(ZERO))]
    # New events of both are of one window; the other ends by itself, with the ids that it had.
    assert kept.feed([-0.0, 0.0], 7000, 11_500) == [(2, tail(MINUS)), (3, tail(ZERO))]
    # Both have expired in the end.
    assert len(kept.feed([], 12_000, 200_000)) > 10
    assert kept.feed([0.0], 200_000, 206_000) == [(1, tail(ZERO))]


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("key", [0.0, -0.0])
def test_a_window_that_was_kept_for_one_zero_goes_on(one_by_one: bool, key: float) -> None:
    kept = Kept(EACH, former(EACH, [(-0.0, [1000, 1000])], 2000), one_by_one, pa.float64())
    assert kept.feed([key], 3000, 3000) == [(3, tail(ZERO))]
    assert kept.feed([-key], 4000, 4000) == [(4, tail(ZERO))]


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("key", [[0.0, 1.0], [-0.0, 0.0, 1.0], [0.0, 1.0, -0.0]])
def test_a_window_that_was_kept_for_a_set_with_a_zero_goes_on(one_by_one: bool, key: list[float]) -> None:
    kept = Kept(EACH, former(EACH, [([-0.0, 1.0], [1000, 1000])], 2000), one_by_one, pa.list_(pa.float64()))
    assert kept.feed([key, key], 3000, 3000) == [(3, tail("float:0.0|float:1.0")), (4, tail("float:0.0|float:1.0"))]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_ids_of_a_window_that_goes_on_are_those_of_its_key_however_the_batches_are_cut(one_by_one: bool) -> None:
    whole = KeyedWindows(TICKS, context("k"))
    whole.restore(former(TICKS, [(-0.0, [1000])], 2000))
    item = (Event({"k": 0.0}, "e", 7000, "s"), 7000, "000001")
    at_once = [(event["n"], event.id.split("-")[-3]) for event, _, _ in whole.feed([item], 11_500)]
    kept = Kept(TICKS, former(TICKS, [(-0.0, [1000])], 2000), one_by_one, pa.float64())
    assert kept.feed([], 3000, 6500) + kept.feed([0.0], 7000, 11_500) == at_once == [(1, tail(MINUS)), (2, tail(ZERO))]


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_a_former_window_goes_on_behind_the_end_of_another_wherever_a_batch_ends(one_by_one: bool, cut: bool) -> None:
    before: Before = [(0.0, [1000]), (-0.0, [1000, 30_000])]
    kept = Kept(EACH, former(EACH, before, 30_500), one_by_one, pa.float64())
    if cut:
        assert kept.feed([], 62_000, 62_000) == []
    assert kept.feed([0.0, -0.0], 70_000, 70_000) == [(3, tail(ZERO)), (4, tail(ZERO))]
