"""How a rule of Flowmix is run: one stream `s` of events, on both clocks of the reference engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipelines.flowmix import Event, Flow, FlowStream, Policy
from pipelines.testing import TICK, run_flow

COUNT, TIME, DELTA = Policy.count, Policy.time, Policy.time_delta_lt
SCHEMA = "k string, j string, v bigint, many array<string>, x double"


def with_times(entries: Sequence[Any]) -> list[dict[str, Any]]:
    """A script as events that carry the script's clock: for event time. Its last ticks get an event that nothing keeps."""
    found, now = [], 0
    for entry in entries:
        if entry == TICK:
            now += 1000
        else:
            found.append({"timestamp": now, **entry})
    return found


def run(write: Callable[[FlowStream], FlowStream], entries: Sequence[Any], *, event_time: bool = True) -> list[Event]:
    """What the stream's output receives.

    Args:
        write: adds the operations to a stream of SCHEMA.
        entries: events and TICKs.
        event_time: also run it in event time, and assert that the results are the same.
    """
    flow = write(Flow("rules").stream("s", SCHEMA)).output().stream("clock", "n bigint").output().build()
    ticks = [entry for entry in entries if entry == TICK]
    found = run_flow(flow, {"s": entries}, clock="processing")["s"]
    if event_time:
        # A second stream brings the clock to the end of the script.
        again = run_flow(flow, {"s": with_times(entries), "clock": ticks}, clock="event")["s"]
        assert [(e.id, e.timestamp, dict(e)) for e in again] == [(e.id, e.timestamp, dict(e)) for e in found]
    return found


def values(numbers: Sequence[int], **more: Any) -> list[dict[str, Any]]:
    """Events `{"v": number}`."""
    return [{"v": number, **more} for number in numbers]


def of(events: Sequence[Event], field: str) -> list[Any]:
    """One field of each event."""
    return [event.get(field) for event in events]


def pattern(passed: Sequence[Event], number: int) -> str:
    """Which of the events v = 0 .. number - 1 passed: `.`, or `x` for one that did not."""
    seen = set(of(passed, "v"))
    return "".join("." if n in seen else "x" for n in range(number))


def an_event_a_tick(number: int) -> list[Any]:
    """v = 0 .. number - 1, each behind a tick of its own."""
    return [entry for n in range(number) for entry in (TICK, {"v": n})]
