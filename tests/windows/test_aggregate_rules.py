"""Flowmix rules 5.1: the window of `aggregate`, rule by rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from pipelines.aggregators import AssocCount, Count, Sum, WindowAggregator
from pipelines.errors import ChainOutputsError, FunctionError, PolicyError
from pipelines.graph.events import CLOCK, COLUMNS, FROM, ID, ORDER
from pipelines.windows.arrays import EMPTY
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import AggregateWindow, CollectWindow
from pipelines.windows.policy import Policy
from pipelines.windows.vectorised import ArrayWindows
from tests.windows.window_runs import TICK, context, items, run, values

COUNT, TIME, DELTA = Policy.count, Policy.time, Policy.time_delta_lt
ONE = {"v": 1}


class Held(WindowAggregator):
    """Gives its own list, which goes on changing."""

    outputs = "held array<bigint>"

    def __init__(self) -> None:
        self.values: list[int] = []

    def added(self, event: Any) -> None:
        self.values.append(event["v"])

    def evicted(self, event: Any) -> None:
        self.values.remove(event["v"])

    def aggregate(self) -> Any:
        return self.wrapped(self.values)


@pytest.mark.parametrize("wrapped", [lambda held: held, lambda held: MappingProxyType({"held": held})])
@pytest.mark.parametrize("clear", [False, True])
def test_a_result_is_what_the_aggregator_held_then(
    clear: bool, wrapped: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Held, "wrapped", staticmethod(wrapped), raising=False)
    found = run(AggregateWindow((Held(),), COUNT(2), COUNT(3), clear), [{"v": n} for n in range(6)])
    assert values(found, "held") == ([[0, 1], [2, 3], [4, 5]] if clear else [[0, 1], [1, 2, 3], [3, 4, 5]])


def test_rule_5_1_run_1_count_5_evict_2() -> None:
    found = run(AggregateWindow((Count(),), COUNT(5), COUNT(2)), [ONE] * 12)
    assert values(found, "count") == [2, 2]


def test_rule_5_1_run_2_sum_with_clear() -> None:
    operation = AggregateWindow((Sum("v"),), COUNT(2), COUNT(3), clear_on_trigger=True)
    assert values(run(operation, [{"v": n} for n in range(1, 9)]), "sum") == [3, 7, 11, 15]


def test_rule_5_1_run_3_time_trigger_fires_empty_windows_too() -> None:
    operation = AggregateWindow((Count(),), TIME(2), COUNT(10), clear_on_trigger=True)
    found = run(operation, [*[ONE] * 3, TICK, *[ONE] * 3, *[TICK] * 5])
    assert [(event["count"], now) for event, now, _ in found] == [(6, 2000), (0, 4000), (0, 6000)]


def test_rule_5_1_run_4_evict_by_age() -> None:
    operation = AggregateWindow((Sum("v"),), COUNT(2), TIME(1))
    assert values(run(operation, [{"v": 1}, {"v": 2, "timestamp": 1100}]), "sum") == [2]
    assert values(run(operation, [{"v": 1}, {"v": 2, "timestamp": 999}]), "sum") == [3]


def test_rule_5_1_3_no_clear_keeps_the_window() -> None:
    assert values(run(AggregateWindow((Sum("v"),), COUNT(2), COUNT(3)), [{"v": n} for n in range(1, 7)]), "sum") == [
        3,
        9,
        15,
    ]


@pytest.mark.parametrize("trigger", [DELTA(5), COUNT(0), TIME(0)])
def test_rule_5_1_4_triggers_that_never_fire(trigger: Policy) -> None:
    assert run(AggregateWindow((Count(),), trigger, COUNT(2)), [ONE, TICK, ONE, TICK, ONE, TICK]) == []


def test_rule_5_1_4_threshold_0_with_eviction_by_time_fires_at_every_tick() -> None:
    found = run(AggregateWindow((Count(),), COUNT(0), TIME(2)), [ONE, TICK, TICK, TICK])
    assert [(event["count"], now) for event, now, _ in found] == [(1, 1000), (0, 2000), (0, 3000)]


def test_rule_5_1_4_time_delta_eviction_keeps_all() -> None:
    assert values(run(AggregateWindow((Count(),), COUNT(3), DELTA(0)), [ONE] * 6), "count") == [3, 6]


def test_rule_5_1_4_window_is_dropped_after_its_lifetime_without_an_event() -> None:
    operation = AggregateWindow((Count(),), COUNT(2), COUNT(9), window_evict_millis=5000)
    assert values(run(operation, [ONE, {"timestamp": 4999}]), "count") == [2]
    assert run(operation, [ONE, {"timestamp": 5000}]) == []
    by_time = AggregateWindow((Count(),), TIME(2), COUNT(9), window_evict_millis=5000)
    assert [now for _, now, _ in run(by_time, [ONE, *[TICK] * 20])] == [2000, 4000]


def test_ticks_of_a_year_cost_nothing_and_fire_until_the_window_is_dropped() -> None:
    operation = AggregateWindow((Count(),), TIME(60), COUNT(9))
    year = 365 * 86_400_000
    found = run(operation, [ONE, {"timestamp": year}])
    assert [now for _, now, _ in found] == [60_000 * n for n in range(1, 60)]
    windows = KeyedWindows(operation, context())
    events, _ = items([ONE])
    assert len(windows.feed(events, year)) == 59
    assert len(windows) == 0


def test_rule_5_1_5_result_has_the_group_fields_of_the_first_event() -> None:
    operation = AggregateWindow((Sum("v"),), COUNT(2), COUNT(2))
    first, second = {"k": ["b", "a"], "v": 1}, {"k": ["a", "b", "a"], "v": 2, "timestamp": 7}
    (made,) = run(operation, [first, second], "k")
    event, now, order = made
    assert event == {"k": ["b", "a"], "sum": 3}
    assert (event.timestamp, event.stream, now, order) == (7, "stream", 7, "000001.000000")


def test_rule_5_1_6_bug_fixed_an_absent_group_field_stays_absent() -> None:
    (made,) = run(AggregateWindow((Count(),), COUNT(1), COUNT(1)), [{"v": 1}], "k", "v")
    assert made[0] == {"v": 1, "count": 1}


def test_ids_are_unique_over_windows_of_one_key_that_follow_each_other() -> None:
    operation = AggregateWindow((AssocCount("v"),), COUNT(2), COUNT(2), window_evict_millis=1000)
    script = [{"v": n, "timestamp": n // 4 * 1000} for n in range(40)]
    made = [event for event, _, _ in run(operation, script)]
    assert len(made) == 40
    assert len({event.id for event in made}) == 40
    assert [event.id for event in made] == [event.id for event, _, _ in run(operation, script)]


def test_keys_that_look_alike_are_apart() -> None:
    operation = AggregateWindow((Count(),), COUNT(1), COUNT(9))
    keys = [["a", "b"], "ab", "a|b", ["b", "a"], 1, True, "1", None, ["a"], "a", 1.5]
    counts = values(run(operation, [{"k": key} for key in keys], "k"), "count")
    assert counts == [1, 1, 1, 2, 1, 1, 1, 1, 1, 2, 1]
    two = [{"a": "x", "b": "y"}, {"a": "xy"}, {"b": "xy"}, {"a": ["x", "y"]}, {"a": "x,y"}]
    assert values(run(operation, two, "a", "b"), "count") == [1] * 5


def test_collect_gives_one_event_with_all_of_the_window() -> None:
    operation = CollectWindow(COUNT(2), COUNT(3), field="seen")
    found = run(operation, [{"k": "a", "v": n} for n in range(1, 5)], "k")
    assert values(found, "seen") == [
        [{"k": "a", "v": 1}, {"k": "a", "v": 2}],
        [{"k": "a", "v": 2}, {"k": "a", "v": 3}, {"k": "a", "v": 4}],
    ]
    cleared = CollectWindow(COUNT(2), COUNT(3), clear_on_trigger=True)
    assert [len(one) for one in values(run(cleared, [ONE] * 4), "events")] == [2, 2]


def test_errors_at_the_definition() -> None:
    with pytest.raises(FunctionError, match="needs an aggregator"):
        AggregateWindow((), COUNT(1), COUNT(1))
    with pytest.raises(FunctionError, match="needs a field to operate it"):
        AggregateWindow((Sum(),), COUNT(1), COUNT(1))
    with pytest.raises(ChainOutputsError):
        AggregateWindow((Sum("v"), Sum("w")), COUNT(1), COUNT(1))
    with pytest.raises(PolicyError):
        AggregateWindow((Count(),), COUNT(1), COUNT(1), window_evict_millis=0)
    with pytest.raises(FunctionError, match="no aggregator of event windows"):
        AggregateWindow((object(),), COUNT(1), COUNT(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 10**30, math.inf, math.nan])
def test_lengths_that_no_window_can_count_to_are_refused(number: Any) -> None:
    for made in (COUNT, TIME, DELTA, lambda n: AggregateWindow((Count(),), COUNT(1), COUNT(1), False, n)):
        with pytest.raises(PolicyError):
            made(number)


def test_the_longest_lengths_work() -> None:
    most = 2**40
    operation = AggregateWindow((Sum("v"),), COUNT(2), TIME(most), False, 1000 * most)
    assert values(run(operation, [{"v": n, "timestamp": 10**14 * n} for n in (1, 2)]), "sum") == [3]
    rows = pa.table({"v": [1, 2], CLOCK: [10**14, 2 * 10**14], ORDER: ["1", "2"]})
    own = [(name, pa.string() if name in (ID, FROM, ORDER) else pa.int64()) for name in COLUMNS]
    windows = ArrayWindows(operation, context(), pa.schema([("sum", pa.int64()), *own]))
    assert windows.feed(EMPTY, rows, 2 * 10**14)[0]["sum"].to_pylist() == [3]


def test_feed_refuses_a_clock_that_goes_back() -> None:
    windows = KeyedWindows(AggregateWindow((Count(),), COUNT(1), COUNT(1)), context())
    windows.feed([], 5000)
    with pytest.raises(ValueError, match="goes back"):
        windows.feed([], 4999)
    events, _ = items([{"v": 1, "timestamp": 4000}])
    with pytest.raises(ValueError, match="comes after"):
        windows.feed(events, 6000)


def test_events_after_the_clock_wait() -> None:
    windows = KeyedWindows(AggregateWindow((Sum("v"),), COUNT(1), COUNT(9)), context())
    events, _ = items([{"v": n, "timestamp": n * 1000} for n in range(1, 5)])
    assert values(windows.feed([events[0], events[3]], 2000), "sum") == [1]
    assert windows.holds_back
    assert windows.due() == 4000
    again = KeyedWindows(AggregateWindow((Sum("v"),), COUNT(1), COUNT(9)), context())
    again.restore(windows.save())
    for one in (windows, again):
        assert values(one.feed(events[1:3], 9000), "sum") == [3, 6, 10]
        assert not one.holds_back
