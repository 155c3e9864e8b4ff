"""Flowmix rules 4 (join) and Trident rules 5 with the cases of WindowManagerTest."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.aggregators import Aggregator, Collect, Count, Sum
from pipelines.errors import FlowError, PolicyError
from pipelines.graph.nodes import Aggregation
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import JoinWindow, TaskWindow
from pipelines.windows.policy import Policy
from tests.windows.window_runs import TICK, context, items, run, values

COUNT, TIME, DELTA = Policy.count, Policy.time, Policy.time_delta_lt


def left(n: int, **more: Any) -> dict[str, Any]:
    return {"stream": "l", "n": n, **more}


def right(**more: Any) -> dict[str, Any]:
    return {"stream": "r", **more}


@pytest.mark.parametrize("evict", [COUNT(2), DELTA(2)])
def test_rule_4_join_run_ring_of_left_events(evict: Policy) -> None:
    found = run(JoinWindow("l", "r", evict), [right(m=0), left(1), left(2), left(3), right(m=9)])
    assert [dict(event) for event, _, _ in found] == [{"n": 2, "m": 9}, {"n": 3, "m": 9}]
    assert [(event.id, event.stream) for event, _, _ in found] == [("e2", "l"), ("e3", "l")]


def test_rule_4_join_bug_fixed_every_key_joins() -> None:
    script = [left(1, k="a"), left(2, k="b"), right(k="b", m=1), right(k="a", m=2), right(k="c", m=3)]
    found = run(JoinWindow("l", "r", COUNT(5)), script, "k")
    assert [(event["k"], event["n"], event["m"]) for event, _, _ in found] == [("b", 2, 1), ("a", 1, 2)]


def test_rule_4_join_age_counts_when_the_right_event_comes() -> None:
    operation = JoinWindow("l", "r", TIME(2))
    assert len(run(operation, [left(1), right(m=1, timestamp=1999)])) == 1
    assert run(operation, [left(1), right(m=1, timestamp=2000)]) == []


def test_rule_4_join_union_of_values() -> None:
    script = [left(1, a=["x", "y"], b=2, c="c"), right(a="x", b=3, c="c", d=None, n=1)]
    ((event, _, _),) = run(JoinWindow("l", "r", COUNT(1)), script)
    assert event == {"n": 1, "a": ["x", "y"], "b": [2, 3], "c": "c"}


def test_rule_4_join_of_a_stream_that_is_none_of_its_sides() -> None:
    with pytest.raises(FlowError, match="Flowmix has been miswired"):
        run(JoinWindow("l", "r", COUNT(1)), [{"stream": "x", "n": 1}])


def test_join_forgets_keys_whose_events_are_too_old() -> None:
    windows = KeyedWindows(JoinWindow("l", "r", TIME(2)), context("k"))
    events, _ = items([left(1, k="a"), right(k="b", m=1)])
    windows.feed(events, 1000)
    assert len(windows) == 2
    assert windows.due() == 2000
    windows.feed([], 2000)
    assert windows.save()["windows"][0][1]["lefts"] == []
    windows.feed([], 10_000)
    assert len(windows) == 0


SEEN = (Aggregation(Collect(), ("v",), ("seen",)),)


def windows_of(operation: TaskWindow, count: int) -> list[Any]:
    return values(run(operation, [{"v": n} for n in range(1, count + 1)]), "seen")


def test_window_manager_count_window_5_slide_2() -> None:
    assert windows_of(TaskWindow(5, 2, "count", SEEN), 8) == [[1, 2], [1, 2, 3, 4], [2, 3, 4, 5, 6], [4, 5, 6, 7, 8]]


def test_window_manager_tumbling_count_window() -> None:
    assert windows_of(TaskWindow(3, 3, "count", SEEN), 7) == [[1, 2, 3], [4, 5, 6]]


def test_window_manager_expire_threshold() -> None:
    windows = KeyedWindows(TaskWindow(5, 5, "count", SEEN), context())
    windows.feed(*items([{"v": n} for n in range(1, 101)]))
    (window,) = windows
    assert [values for (values,), _ in window.save()["tuples"]] == [96, 97, 98, 99, 100]


def test_window_manager_time_window_expires_what_is_old() -> None:
    windows = KeyedWindows(TaskWindow(1000, 1000, "duration", SEEN), context())
    windows.feed(
        *items([*[{"v": n, "timestamp": 100} for n in range(50)], *[{"v": n, "timestamp": 1100} for n in range(50)]])
    )
    (window,) = windows
    assert len(window.save()["tuples"]) == 50


def test_rule_trident_5_duration_windows() -> None:
    script = [{"v": n, "timestamp": n * 100} for n in (0, 4, 5, 9, 10, 14, 31)]
    found = run(TaskWindow(1000, 500, "duration", SEEN), [*script, *[TICK] * 3])
    assert [(now, event["seen"]) for event, now, _ in found] == [
        (500, [0, 4]),
        (1000, [0, 4, 5, 9]),
        (1500, [5, 9, 10, 14]),
        (2000, [10, 14]),
        (3500, [31]),
        (4000, [31]),
    ]


def test_rule_trident_5_count_window_of_jstorm() -> None:
    found = run(TaskWindow(1000, 100, "count", (Aggregation(Count(), (), ("n",)),)), [{"v": 1}] * 1500)
    assert values(found, "n") == [min(100 * k, 1000) for k in range(1, 16)]


def test_task_window_crosses_the_rows_of_its_aggregators_and_stores_only_their_inputs() -> None:
    each = Aggregator(
        lambda: [], lambda state, v: state.append(v), lambda state: [(v,) for v in state], returns="bigint"
    )
    chain = (Aggregation(each, ("v",), ("one",)), Aggregation(Sum(), ("w",), ("sum",)))
    script = [{"v": 1, "w": 10, "x": "big"}, {"v": 2, "w": None, "x": "big"}]
    found = run(TaskWindow(2, 2, "count", chain), script)
    assert [dict(event) for event, _, _ in found] == [{"one": 1, "sum": 10}, {"one": 2, "sum": 10}]
    assert len({event.id for event, _, _ in found}) == 2
    windows = KeyedWindows(TaskWindow(3, 2, "count", chain), context())
    windows.feed(*items(script))
    assert "big" not in str(windows.save())


def test_errors_at_the_definition() -> None:
    with pytest.raises(PolicyError, match="should always be less than"):
        TaskWindow(2, 3, "count")
    for length in (0, 2**63):
        with pytest.raises(PolicyError, match="positive"):
            TaskWindow(length, length, "duration")
