"""Flowmix rules 5.3: the windows of `sort`, rule by rule, with the right answers where the original was at fault."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.errors import FunctionError
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import SortWindow
from pipelines.windows.policy import Policy
from tests.windows.window_runs import TICK, context, groups, items, run, values

NUMBERS = [5, 3, 9, 1, 7, 2, 8, 6, 4, 10]
COUNT, TIME, DELTA = Policy.count, Policy.time, Policy.time_delta_lt


def events(numbers: list[int] = NUMBERS) -> list[Any]:
    return [{"v": n} for n in numbers]


def top(size: int, *, desc: bool = False, flush: bool = False, trigger: Policy | None = None) -> SortWindow:
    return SortWindow((("v", desc),), "top_n", size, trigger or COUNT(10), flush)


@pytest.mark.parametrize("flush", [False, True])
def test_rule_5_3_6_bug_fixed_top_n_is_the_true_top_n(flush: bool) -> None:
    assert values(run(top(3, flush=flush), events())) == [1, 2, 3]
    assert values(run(top(3, desc=True, flush=flush), events())) == [10, 9, 8]
    assert values(run(top(3, desc=True, flush=flush), events(list(range(10, 0, -1))))) == [10, 9, 8]


def test_top_n_goes_on_or_starts_anew() -> None:
    script = events([1, 2, 3, 9, 8, 7])
    assert groups(run(top(2, trigger=COUNT(3)), script)) == [[1, 2], [1, 2]]
    assert groups(run(top(2, trigger=COUNT(3), flush=True), script)) == [[1, 2], [7, 8]]
    assert groups(run(top(2, trigger=TIME(1), flush=True), [*script, TICK, {"v": 5}, TICK, TICK])) == [[1, 2], [5]]


def test_rule_5_3_run_progressive() -> None:
    found = run(SortWindow((("v", False),), "progressive", 3), events())
    assert groups(found) == [[5], [3, 5], [9], [5], [7], [3], [8], [6], [4], [10]]


def test_rule_5_3_run_tumbling_count() -> None:
    found = run(SortWindow((("v", False),), "tumbling", trigger=COUNT(4)), events())
    assert groups(found) == [[1, 3, 5, 9], [2, 6, 7, 8]]


PAIRS = [[3, 5], [1, 9], [2, 7], [6, 8], [4, 10]]


def test_rule_5_3_run_tumbling_time() -> None:
    script = [one for event in events() for one in (event, TICK)]
    assert groups(run(SortWindow((("v", False),), "tumbling", trigger=TIME(2)), script)) == PAIRS


def test_rule_5_3_run_tumbling_time_delta() -> None:
    script = [one for event in events() for one in (event, TICK)]
    assert groups(run(SortWindow((("v", False),), "tumbling", trigger=DELTA(100)), script)) == PAIRS
    assert groups(run(SortWindow((("v", False),), "tumbling", trigger=DELTA(0)), script)) == []


def test_rule_5_3_3_time_delta_of_top_n_looks_at_the_youngest_and_the_oldest() -> None:
    script = [{"v": 2, "timestamp": 0}, {"v": 1, "timestamp": 3000}, {"v": 0, "timestamp": 4000}]
    assert groups(run(top(2, trigger=DELTA(2)), script)) == [[0, 1]]


def test_rule_5_3_7_bug_fixed_every_key_keeps_its_window() -> None:
    script = [{"k": "a", "v": 2}, {"k": "b", "v": 9}, {"k": "a", "v": 1}]
    assert values(run(SortWindow((("v", False),), "tumbling", trigger=COUNT(2)), script, "k")) == [1, 2]


def test_rule_5_3_8_latent_fixed_eviction_by_time_drops_the_oldest() -> None:
    operation = SortWindow((("v", False),), "top_n", 2, COUNT(1), evict=TIME(2))
    script = [{"v": 1}, TICK, {"v": 5}, {"v": 7}, TICK, {"v": 9}]
    assert groups(run(operation, script)) == [[1], [1, 5], [1, 5], [5, 7]]


def test_rule_5_3_5_absent_last_and_types_have_an_order() -> None:
    script = [{"v": "x"}, {}, {"v": 2}, {"v": 1.5}, {"v": True}, {"w": 1}]
    ordered = run(SortWindow((("v", False),), "tumbling", trigger=COUNT(6)), script)
    assert values(ordered) == [True, 1.5, 2, "x", None, None]
    turned = run(SortWindow((("v", True),), "tumbling", trigger=COUNT(6)), script)
    assert values(turned) == ["x", 2, 1.5, True, None, None]
    assert [event.get("w") for event, _, _ in ordered[-2:]] == [None, 1]


def test_sort_by_several_fields_is_stable_and_passes_events_as_they_are() -> None:
    script = [{"a": 1, "b": 1, "n": 0}, {"a": 2, "b": 5, "n": 1}, {"a": 1, "b": 2, "n": 2}, {"a": 1, "b": 2, "n": 3}]
    by = (("a", False), ("b", True))
    found = run(SortWindow(by, "tumbling", trigger=COUNT(4)), script)
    assert values(found, "n") == [2, 3, 0, 1]
    assert [event.id for event, _, _ in found] == ["e2", "e3", "e0", "e1"]
    assert values(run(SortWindow(by, "top_n", 2, COUNT(4)), script), "n") == [2, 3]


def test_several_values_of_a_sort_field() -> None:
    script = [{"v": [5, 1]}, {"v": 3}, {"v": []}]
    assert values(run(SortWindow((("v", False),), "tumbling", trigger=COUNT(3)), script)) == [[5, 1], 3, []]
    assert values(run(SortWindow((("v", True),), "tumbling", trigger=COUNT(3)), script)) == [[5, 1], 3, []]


@pytest.mark.parametrize(("desc", "order"), [(False, ["c", "b", "a", "d"]), (True, ["b", "c", "a", "d"])])
def test_a_null_among_several_values_is_none_of_them(desc: bool, order: list[str]) -> None:
    script = [{"k": "a", "v": [None]}, {"k": "b", "v": [3, None]}, {"k": "c", "v": [1]}, {"k": "d"}]
    assert values(run(SortWindow((("v", desc),), "tumbling", 0, COUNT(4), False), script), "k") == order


def test_sort_window_expires() -> None:
    operation = SortWindow((("v", False),), "tumbling", trigger=COUNT(2), window_evict_millis=1000)
    assert values(run(operation, [{"v": 1}, {"v": 2, "timestamp": 1000}, {"v": 0, "timestamp": 1999}])) == [0, 2]


@pytest.mark.parametrize("since", [-(10**9), 0, 10**9])
def test_a_window_before_1970_is_one_behind_it(since: int) -> None:
    script = [{"v": -n, "timestamp": since + 500 * n} for n in range(20)]
    expected = [[-3, -2, -1, 0], [-7, -6, -5, -4], [-11, -10, -9, -8], [-15, -14, -13, -12]]
    assert groups(run(SortWindow((("v", False),), "tumbling", trigger=TIME(2)), script)) == expected


def test_a_window_of_an_event_before_1970_is_forgotten() -> None:
    events, _ = items([{"v": 1, "timestamp": -5000}])
    windows = KeyedWindows(top(3, trigger=COUNT(2)), context())
    windows.feed(events, 10**12)
    assert len(windows) == 0


def test_errors_at_the_definition() -> None:
    with pytest.raises(FunctionError, match="at least one field"):
        SortWindow((), "tumbling", trigger=COUNT(1))
    with pytest.raises(FunctionError, match="trigger policy"):
        SortWindow((("v", False),), "tumbling")
    with pytest.raises(FunctionError, match="positive number"):
        SortWindow((("v", False),), "top_n", 0, COUNT(1))
    with pytest.raises(FunctionError, match="cannot evict"):
        SortWindow((("v", False),), "tumbling", trigger=COUNT(1), evict=TIME(1))
