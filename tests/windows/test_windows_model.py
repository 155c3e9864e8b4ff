"""Windows against the naive model: any policies, any interleaving of events, ticks and keys, any cut with a restart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import aggregators as agg
from pipelines.aggregators import WindowAggregator
from pipelines.graph.nodes import Aggregation
from pipelines.windows.blob import dumps, loads
from pipelines.windows.event import Event
from pipelines.windows.keyed import Item, KeyedWindows
from pipelines.windows.operations import (
    AggregateWindow,
    CollectWindow,
    JoinWindow,
    SortWindow,
    SwitchWindow,
    TaskWindow,
)
from pipelines.windows.policy import Policy
from tests.windows.naive_windows import naive
from tests.windows.window_runs import context


class Spread(WindowAggregator):
    """A user's own, with state that only comes and goes with events."""

    outputs = "low bigint, high bigint"

    def __init__(self) -> None:
        self.values: list[Any] = []

    def added(self, event: Any) -> None:
        self.values.append(event["v"])

    def evicted(self, event: Any) -> None:
        self.values.remove(event["v"])

    def aggregate(self) -> Any:
        return {"low": min(self.values), "high": max(self.values)} if self.values else {"low": None, "high": None}


policies = st.one_of(
    st.integers(0, 5).map(Policy.count), st.integers(0, 4).map(Policy.time), st.integers(0, 3).map(Policy.time_delta_lt)
)
lifetimes = st.sampled_from([1, 700, 2000, 3000, 4500, 10_000_000])
clocks = st.lists(st.sampled_from([0, 0, 1, 200, 500, 999, 1000, 1001, 2500, 6000]), min_size=1, max_size=25)
keys = st.sampled_from(["a", "b", ["b", "a"], ["a", "b"], 7, None])
numbers = st.one_of(st.integers(-3, 9), st.sampled_from([2**60, 10**20]))


@st.composite
def streams(draw: st.DrawFn, values: st.SearchStrategy[Any] = numbers, origin: tuple[str, ...] = ("s",)) -> list[Item]:
    now, found = draw(st.sampled_from([0, -8000])), []
    for number, gap in enumerate(draw(clocks)):
        now += gap
        fields = {"v": draw(values), "w": draw(st.sampled_from(["x", "y", None, ["x", "y"]])), "k": draw(keys)}
        found.append((Event(fields, f"e{number}", now, draw(st.sampled_from(origin))), now, f"{number:06d}"))
    return found


def check(operation: Any, events: list[Item], cuts: list[int], partition: tuple[str, ...] = ("k",)) -> None:
    """The same as the naive model, in one feed, and in several with a restart from bytes after each."""
    end = events[-1][1] + 7000
    expected = naive(operation, partition, events, end)
    whole = KeyedWindows(operation, context(*partition)).feed(events, end)
    assert [(now, dict(event)) for event, now, _ in whole] == expected
    assert len({(now, order) for _, now, order in whole}) == len(whole)
    windows, found, at = KeyedWindows(operation, context(*partition)), [], 0
    for cut in [*sorted(cuts), None]:
        upto = len(events) if cut is None else min(cut, len(events))
        clock = end if cut is None else events[upto - 1 if upto else 0][1] - 300
        clock = max(clock, windows._clock if windows._clock is not None else clock)
        found += windows.feed(events[at:upto], clock)
        due = windows.due()
        assert due is None or due > clock
        at, state = upto, dumps(windows.save())
        windows = KeyedWindows(operation, context(*partition))
        windows.restore(loads(state))
        assert dumps(windows.save()) == state
        assert windows.due() == due
    assert [(dict(event), event.id, now, order) for event, now, order in found] == [
        (dict(event), event.id, now, order) for event, now, order in whole
    ]
    made = [event.id for event, _, _ in whole if event.id.startswith("flow-")]
    assert len(set(made)) == len(made)


cuts = st.lists(st.integers(0, 25), max_size=3)

CHAINS = [
    (agg.Count(), agg.Sum("v"), agg.Average("v"), agg.StdDev("v")),
    (agg.Min("v"), agg.Max("v"), agg.DistinctCount("w"), agg.Count("having", field="w")),
    (agg.AssocCount("w"), agg.Sum("v")),
    (agg.GroupCount("w", "v"),),
    (agg.FirstN(2, field="w"), agg.LastN(2, "v", field="v"), agg.Collect("w")),
    (agg.FirstN(2, "v", True, output="best"), agg.LastN(3, field="v")),
    (Spread(), agg.Sum("v")),
]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: "+".join(type(one).__name__ for one in chain))
@settings(max_examples=60, deadline=None)
@given(streams(), policies, policies, st.booleans(), lifetimes, cuts)
def test_aggregate(
    chain: Any, events: list[Item], trigger: Policy, evict: Policy, clear: bool, lifetime: int, cuts: list[int]
) -> None:
    check(AggregateWindow(chain, trigger, evict, clear, lifetime), events, cuts)


@settings(max_examples=60, deadline=None)
@given(
    streams(st.floats(-1e9, 1e9) | st.sampled_from([1e300, -1e300, 1e-300])), policies, policies, st.booleans(), cuts
)
def test_aggregate_floats(events: list[Item], trigger: Policy, evict: Policy, clear: bool, cuts: list[int]) -> None:
    check(AggregateWindow((agg.Sum("v"), agg.Average("v"), agg.Min("v")), trigger, evict, clear), events, cuts, ())


@settings(max_examples=60, deadline=None)
@given(streams(), policies, policies, st.booleans(), lifetimes, cuts)
def test_collect(
    events: list[Item], trigger: Policy, evict: Policy, clear: bool, lifetime: int, cuts: list[int]
) -> None:
    check(CollectWindow(trigger, evict, clear, window_evict_millis=lifetime), events, cuts)


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(
    streams(st.one_of(st.none(), st.integers(0, 5))),
    st.sampled_from(["progressive", "tumbling", "top_n"]),
    st.integers(1, 4),
    policies,
    st.booleans(),
    st.booleans(),
    lifetimes,
    st.none() | st.integers(0, 4).map(Policy.time),
    cuts,
)
def test_sort(
    events: list[Item],
    mode: Any,
    size: int,
    trigger: Policy,
    descending: bool,
    flush: bool,
    lifetime: int,
    evict: Policy | None,
    cuts: list[int],
) -> None:
    by = (("v", descending),)
    if mode == "progressive":
        operation = SortWindow(by, mode, size, None, False, lifetime)
    elif mode == "tumbling":
        operation = SortWindow(by, mode, None, trigger, False, lifetime)
    else:
        operation = SortWindow(by, mode, size, trigger, flush, lifetime, evict)
    check(operation, events, cuts)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(streams(), policies, policies, policies, lifetimes, cuts)
def test_switch(
    events: list[Item], opened: Policy, evict: Policy, closed: Policy, lifetime: int, cuts: list[int]
) -> None:
    check(SwitchWindow(opened, evict, closed, lifetime), events, cuts)


@settings(max_examples=150, deadline=None)
@given(streams(origin=("l", "r")), policies, st.none() | lifetimes, cuts)
def test_join(events: list[Item], evict: Policy, lifetime: int | None, cuts: list[int]) -> None:
    check(JoinWindow("l", "r", evict, lifetime), events, cuts)


SUMS = (Aggregation(agg.Sum(), ("v",), ("sum",)), Aggregation(agg.Count(), (), ("count",)))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(streams(), st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 300, 1000]), cuts)
def test_task_window(events: list[Item], one: int, other: int, unit: int, cuts: list[int]) -> None:
    size, slide = max(one, other), min(one, other)
    check(TaskWindow(size, slide, "count", SUMS), events, cuts, ())
    if unit > 1:
        check(TaskWindow(size * unit, slide * unit, "duration", SUMS), events, cuts, ())
