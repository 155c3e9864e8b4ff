"""Flowmix rules 5.4: the gate, row by row of the executed table, with the right answers where the original was at fault."""

from __future__ import annotations

import pytest

from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import SwitchWindow
from pipelines.windows.policy import Policy
from pipelines.windows.switch import SwitchBuffer
from tests.windows.window_runs import TICK, context, items, run, values

COUNT, TIME, DELTA = Policy.count, Policy.time, Policy.time_delta_lt


def passed(operation: SwitchWindow, count: int) -> list[int]:
    """The numbers, from 1, of events at one clock that pass."""
    return [event["n"] for event, _, _ in run(operation, [{"n": n} for n in range(1, count + 1)])]


def marks(operation: SwitchWindow, count: int = 30) -> str:
    """One event, then a tick, and again: . passes, x is dropped."""
    script = [one for n in range(count) for one in ({"n": n}, TICK)]
    there = {event["n"] for event, _, _ in run(operation, script)}
    return "".join("." if n in there else "x" for n in range(count))


def test_rule_5_4_run_1_delta_closes_a_full_window() -> None:
    expected = [*range(1, 6), *range(10, 15), *range(19, 24)]
    assert passed(SwitchWindow(DELTA(1000), COUNT(5), COUNT(3)), 25) == expected


def test_rule_5_4_4_bug_fixed_run_2_delta_compares_the_stated_policy() -> None:
    # The original closed on the third event, as its counter of events met the 3 of "3 seconds".
    expected = [*range(1, 6), *range(10, 15), *range(19, 24)]
    assert passed(SwitchWindow(DELTA(3), COUNT(5), COUNT(3)), 25) == expected


def test_rule_5_4_run_3_close_by_time() -> None:
    assert marks(SwitchWindow(DELTA(1000), COUNT(5), TIME(5))) == ".....xxxxxx.....xxxxxx.....xxx"


def test_rule_5_4_4_bug_fixed_run_4_open_counter_starts_anew() -> None:
    assert marks(SwitchWindow(TIME(3), TIME(100), TIME(2))) == "....xx" * 5


def test_rule_5_4_4_bug_fixed_run_5_open_counter_starts_anew() -> None:
    assert marks(SwitchWindow(TIME(5), TIME(100), COUNT(3))) == ("......xxx" * 4)[:30]


def test_rule_5_4_run_6_open_by_count() -> None:
    assert marks(SwitchWindow(COUNT(4), TIME(100), TIME(2))) == "...xxx" * 5


def test_rule_5_4_1_delta_too_slow_never_closes() -> None:
    assert marks(SwitchWindow(DELTA(3), COUNT(5), COUNT(3))) == "." * 30
    assert marks(SwitchWindow(DELTA(4), COUNT(5), COUNT(3)), 9) == ".....xxxx"


def test_rule_5_4_2_full_by_time() -> None:
    # Full after 2 ticks of passing, looked at on the third; two events are near enough.
    assert marks(SwitchWindow(DELTA(5), TIME(2), TIME(1)), 12) == "...xx..xx..x"


def test_rule_5_4_2_ticks_let_nothing_go_by_age() -> None:
    script = [{"n": 1, "timestamp": 0}, {"n": 2, "timestamp": 500}, {"n": 3, "timestamp": 60_500}]
    assert values(run(SwitchWindow(DELTA(2), TIME(5), COUNT(9)), script), "n") == [1, 2]
    # What has come since lets them go: one event is no flood.
    script.insert(2, {"n": 4, "timestamp": 5800})
    assert values(run(SwitchWindow(DELTA(2), TIME(5), COUNT(9)), script), "n") == [1, 2, 4, 3]


def test_rule_5_4_delta_as_close_never_opens_again() -> None:
    assert marks(SwitchWindow(COUNT(3), COUNT(9), DELTA(1))) == ".." + "x" * 28


def test_rule_5_4_a_threshold_of_0_is_reached_at_the_next_tick_or_event() -> None:
    """But for `open` by a count, whose counter has passed 0 when it is looked at."""
    assert marks(SwitchWindow(TIME(0), COUNT(5), COUNT(3)), 12) == ".xxx" * 3
    assert marks(SwitchWindow(COUNT(3), COUNT(5), TIME(0)), 12) == "..x" * 4
    assert marks(SwitchWindow(COUNT(3), COUNT(5), COUNT(0)), 12) == "..x" * 4
    assert marks(SwitchWindow(COUNT(0), COUNT(5), COUNT(2)), 12) == "." * 12


def test_every_key_has_a_gate_and_events_pass_unchanged() -> None:
    operation = SwitchWindow(COUNT(2), COUNT(9), COUNT(9))
    script = [{"k": key, "n": n} for n, key in enumerate("aababb")]
    found = run(operation, script, "k")
    assert [event["n"] for event, _, _ in found] == [0, 2]
    assert [(event.id, event.stream) for event, _, _ in found] == [("e0", ""), ("e2", "")]


def test_an_idle_gate_is_forgotten_but_not_before_its_own_time() -> None:
    short = SwitchWindow(COUNT(2), COUNT(9), COUNT(9), window_evict_millis=5000)
    script = [{"n": 0}, {"n": 1}, {"n": 2, "timestamp": 5000}, {"n": 3, "timestamp": 20_000}]
    assert [event["n"] for event, _, _ in run(short, script)] == [0, 2, 3]
    long = SwitchWindow(COUNT(2), COUNT(9), TIME(10), window_evict_millis=5000)
    assert long.idle_millis == 12_000


@pytest.mark.parametrize("since", [-(10**9), -1, 10**9])
def test_a_gate_before_1970_is_one_behind_it(since: int) -> None:
    operation = SwitchWindow(TIME(2), COUNT(9), TIME(2))
    script = [{"n": n, "timestamp": since // 1000 * 1000 + 1000 * n} for n in range(20)]
    assert [event["n"] for event, _, _ in run(operation, script)] == [n for n in range(20) if n % 5 < 3]


def test_a_gate_of_an_event_before_1970_is_forgotten() -> None:
    operation = SwitchWindow(COUNT(2), COUNT(9), COUNT(9))
    events, end = items([{"k": "a", "timestamp": -1}, {"k": "b", "timestamp": 1_700_000_000_000}])
    windows = KeyedWindows(operation, context("k"))
    assert len(windows.feed(events, end)) == 2
    assert len(windows) == 1


def test_nobody_plays_the_ticks_of_a_gate_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """They make nothing: only the key's next event asks where they have left the gate."""
    played: list[SwitchBuffer] = []

    def play(window: SwitchBuffer) -> None:
        played.append(window)

    monkeypatch.setattr(SwitchBuffer, "_tick", play)
    operation = SwitchWindow(TIME(1), COUNT(9), TIME(1))
    events, _ = items({"k": str(n), "timestamp": n} for n in range(3))
    windows = KeyedWindows(operation, context("k"))
    assert len(windows.feed(events, operation.idle_millis)) == 3
    assert len(windows) == 2
    assert not played


@pytest.mark.parametrize("gap", [3, 60, 86_400])
def test_ticks_of_a_gap_at_once(gap: int) -> None:
    operation = SwitchWindow(TIME(3), TIME(100), TIME(2), window_evict_millis=10**12)
    ticked = [{"n": 0}, *[TICK] * gap, {"n": 1}, TICK, {"n": 2}, TICK, {"n": 3}, TICK, {"n": 4}]
    at_once, _ = items(ticked)
    closed = [(event.timestamp // 1000 % 6) in (4, 5) for event, _, _ in at_once]
    there = {event["n"] for event, _, _ in run(operation, ticked)}
    assert [event["n"] not in there for event, _, _ in at_once] == closed


@pytest.mark.parametrize(
    "operation",
    [
        SwitchWindow(DELTA(1), COUNT(0), TIME(2)),
        SwitchWindow(COUNT(0), COUNT(0), TIME(2)),
        SwitchWindow(COUNT(0), TIME(9), TIME(2)),
        SwitchWindow(TIME(100), COUNT(9), COUNT(0)),
        SwitchWindow(DELTA(1), DELTA(0), TIME(2)),
    ],
    ids=str,
)
def test_a_gate_keeps_no_clocks_that_nothing_asks_for(operation: SwitchWindow) -> None:
    windows = KeyedWindows(operation, context())
    assert len(windows.feed(*items({"n": n} for n in range(100)))) == 100
    assert [window.save()["passed"] for window in windows] == [[]]
