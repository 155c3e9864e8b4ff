"""Flowmix rules 5.4: the stop gate, here `switch`. "open" says when it stops, "close" when it lets pass again."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.flowmix import Flow, FlowStream
from pipelines.testing import TICK, run_flow
from tests.conformance.flowmix_case import COUNT, DELTA, SCHEMA, TIME, an_event_a_tick, of, pattern, run, values


def switch(open: Any, evict: Any, close: Any, by: tuple[str, ...] = ()) -> Any:
    def write(stream: FlowStream) -> FlowStream:
        return stream.partition(*by).switch(open=open, evict=evict, close=close)

    return write


def repeated(unit: str, length: int) -> str:
    return (unit * length)[:length]


def test_5_4_run_delta_1000_count_5_count_3() -> None:
    passed = of(run(switch(DELTA(1000), COUNT(5), COUNT(3)), values(range(1, 26))), "v")
    assert passed == [*range(1, 6), *range(10, 15), *range(19, 24)]


def test_5_4_run_delta_3_count_5_count_3() -> None:
    """BUG 5.4.4: the original compares 3 s with a counter of events and passes 1, 2, 7, 8, 13, ..."""
    passed = of(run(switch(DELTA(3), COUNT(5), COUNT(3)), values(range(1, 26))), "v")
    assert passed == [*range(1, 6), *range(10, 15), *range(19, 24)]


def test_5_4_1_delta_never_stops_what_comes_slowly() -> None:
    """BUG 5.4.4: the original stops at the 3rd event."""
    script = an_event_a_tick(20)
    assert pattern(run(switch(DELTA(3), COUNT(5), COUNT(3)), script), 20) == "." * 20
    assert pattern(run(switch(DELTA(4), COUNT(5), COUNT(3)), script), 20) == repeated(".....xxxx", 20)


def test_5_4_a_gate_lives_as_long_as_one_says() -> None:
    hourly = [{"v": n, "timestamp": n * 3_600_000} for n in range(14)]
    for given, passed in (({"window_evict_millis": 86_400_000}, [0, 1, 2, 7, 8, 9]), ({}, [*range(14)])):
        stream = Flow("hourly").stream("s", SCHEMA).switch(open=COUNT(4), evict=COUNT(5), close=COUNT(3), **given)
        assert of(run_flow(stream.output().build(), {"s": hourly})["s"], "v") == passed


@pytest.mark.parametrize(
    ("open", "evict", "close", "unit"),
    [
        (DELTA(1000), COUNT(5), TIME(5), ".....xxxxxx"),
        # BUG 5.4.4: in the original each opening after the first lasts one tick ("....xx.xx.xx").
        (TIME(3), TIME(100), TIME(2), "....xx"),
        # BUG 5.4.4, the same: "......xxx.xxx.xxx".
        (TIME(5), TIME(100), COUNT(3), "......xxx"),
        (COUNT(4), TIME(100), TIME(2), "...xxx"),
    ],
)
def test_5_4_run_an_event_a_tick(open: Any, evict: Any, close: Any, unit: str) -> None:
    assert pattern(run(switch(open, evict, close), an_event_a_tick(30)), 30) == repeated(unit, 30)


def test_5_4_1_the_event_that_stops_is_dropped_and_close_count_waits_for_more() -> None:
    """After 3 events were dropped (the one that stopped it not counted) the next one passes."""
    passed = run(switch(COUNT(3), COUNT(5), COUNT(3)), values(range(12)))
    assert pattern(passed, 12) == repeated("..xxxx", 12)


def test_5_4_3_time_t_needs_t_plus_1_ticks() -> None:
    """The tick that stops the gate by TIME is also the first that its close policy counts."""
    script = an_event_a_tick(12)
    assert pattern(run(switch(TIME(1), TIME(100), TIME(1)), script), 12) == repeated("..x", 12)
    assert pattern(run(switch(COUNT(3), TIME(100), TIME(1)), script), 12) == repeated("..xx", 12)


def test_5_4_every_key_has_its_own_gate() -> None:
    script = [{"k": "ab"[n % 2], "v": n} for n in range(12)]
    passed = run(switch(COUNT(3), COUNT(5), COUNT(30), by=("k",)), script)
    assert of(passed, "v") == [0, 1, 2, 3]


def test_5_4_events_pass_unchanged() -> None:
    script = [{"v": 1, "k": "x", "id": "one"}, TICK]
    found = run(switch(COUNT(9), COUNT(9), COUNT(9)), script)
    assert [(e.id, e.timestamp, dict(e)) for e in found] == [("one", 0, {"v": 1, "k": "x"})]


# SwitchBoltIT (rules 8): an event every 50 ms.


def every_50_ms(seconds: int) -> list[Any]:
    return [entry for s in range(seconds) for entry in ([TICK] if s else []) + values(range(s * 20, s * 20 + 20))]


def test_8_switch_bolt_it_1_exactly_5() -> None:
    assert of(run(switch(DELTA(1000), COUNT(5), TIME(5)), every_50_ms(5)), "v") == [0, 1, 2, 3, 4]


def test_8_switch_bolt_it_2_50_to_65() -> None:
    assert 50 <= len(run(switch(DELTA(5), TIME(1), TIME(1)), every_50_ms(7))) <= 65
