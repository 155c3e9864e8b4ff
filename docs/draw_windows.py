"""Draws the pictures of `flow-operators.md` from runs of the reference engine: `python -m docs.draw_windows`.

Each picture's title is the code that was run. When an operation emits is found by running it up to each moment in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pipelines.flowmix
from docs.svg import Picture
from pipelines.flowmix import Flow
from pipelines.sources import FixedBatches
from pipelines.testing import run_flow, run_topology
from pipelines.trident import Aggregator, DeltaState, Sum, TridentTopology
from pipelines.windows.operations import BOUNDS

FOLDER = Path(__file__).parent / "pictures"
NAMES = {name: getattr(pipelines.flowmix, name) for name in pipelines.flowmix.__all__}
MEMBERS = ', Collect("v", "members")'
"""What a run computes beside what its picture shows: which events were in the window."""

Events = Sequence[tuple[int, int]]
"""Time in ms and value of each; values differ."""


@dataclass(frozen=True)
class Emission:
    """What came out at one moment: `at` in ms."""

    at: int
    events: list[Any]


def emissions(call: str, events: Events, seconds: int) -> list[Emission]:
    """What an operation emits, and when: it is run up to every second and up to every event."""
    found, seen = [], 0
    for moment in sorted({*(at for at, _ in events), *range(0, seconds * 1000 + 1, 1000)}):
        results = passed(call, [one for one in events if one[0] <= moment], moment)
        if len(results) > seen:
            found.append(Emission(moment, results[seen:]))
        seen = len(results)
    return found


def passed(call: str, events: Events, moment: int) -> list[Any]:
    """What an operation emits of these events until `moment`, to which an event of another stream takes the clock."""
    start = Flow("picture").stream("s", "v bigint")
    stream = eval(f"stream.{call}", {**NAMES, "stream": start})
    flow = stream.output().stream("clock", "v bigint").output().build()
    script = {
        "s": [{"v": value, "timestamp": at} for at, value in events],
        "clock": [{"v": 0, "timestamp": moment}],
    }
    return run_flow(flow, script)["s"]


def _rows(title: str, events: Events, seconds: int, count: int) -> Picture:
    """The lane of the events, and room for so many emissions."""
    picture = Picture(title, seconds, count + 1)
    picture.label(0, "events v")
    for at, value in events:
        picture.event(0, at, value)
    return picture


def aggregate(call: str, events: Events, seconds: int, *, age: int = 0, clears: bool = False) -> str:
    """A bar for each emission: the window it was made of.

    Args:
        call: with `{members}` where the aggregators end.
        age: of TIME eviction how many ms the window reaches back.
        clears: whether a window reaches back to the emission before.
    """
    found = emissions(call.format(members=MEMBERS), events, seconds)
    picture = _rows(call.format(members=""), events, seconds, len(found))
    times = {value: at for at, value in events}
    before = events[0][0]
    for lane, one in enumerate(found, 1):
        (result,) = one.events
        members = [times[value] for value in result["members"]]
        start = max(one.at - age, 0) if age else before if clears else min(members)
        picture.window(lane, start, one.at, members, "bar" if members else "empty")
        picture.result(lane, one.at, f"sum {result['sum']}")
        before = one.at
    return picture.svg()


def spans(call: str, events: Events, seconds: int) -> str:
    """A bar for each window from its start to its end, with the events in it."""
    results = [
        (emission.at, result)
        for emission in emissions(call.format(members=MEMBERS), events, seconds)
        for result in emission.events
    ]
    picture = _rows(call.format(members=""), events, seconds, len(results))
    times = {value: at for at, value in events}
    for lane, (at, result) in enumerate(results, 1):
        start, end = (int(result[bound].replace(tzinfo=UTC).timestamp() * 1000) for bound in BOUNDS)
        picture.window(lane, max(start, 0), end, [times[value] for value in result["members"]])
        picture.result(lane, at, f"sum {result['sum']}")
    return picture.svg()


def collect(call: str, events: Events, seconds: int) -> str:
    """A bar for each emission, and the list that it is."""
    found = emissions(call, events, seconds)
    picture = _rows(call, events, seconds, len(found))
    times = {value: at for at, value in events}
    for lane, one in enumerate(found, 1):
        values = [event["v"] for event in one.events[0]["events"]]
        members = [times[value] for value in values]
        picture.window(lane, min(members), one.at, members)
        picture.result(lane, one.at, f"events of v {', '.join(map(str, values))}")
    return picture.svg()


def sort(call: str, events: Events, seconds: int, *, clears: bool = False) -> str:
    """A bar for each emission, with the emitted events in it, and their order."""
    found = emissions(call, events, seconds)
    picture = _rows(call, events, seconds, len(found))
    start = events[0][0]
    for lane, one in enumerate(found, 1):
        picture.window(lane, start, one.at, [event.timestamp for event in one.events])
        picture.result(lane, one.at, ", ".join(str(event["v"]) for event in one.events))
        if clears:
            start = min((at for at, _ in events if at > one.at), default=one.at)
    return picture.svg()


def progressive(call: str, events: Events, seconds: int, size: int) -> str:
    """A bar for each event: the events that the window holds when it emits."""
    found = emissions(call, events, seconds)
    picture = _rows(call, events, seconds, len(found))
    held: dict[int, int] = {}
    for lane, (one, (at, value)) in enumerate(zip(found, events, strict=True), 1):
        held[value] = at
        picture.window(lane, min(held.values()), one.at, list(held.values()))
        picture.result(lane, one.at, ", ".join(str(event["v"]) for event in one.events))
        if len(held) == size:
            # At its size the window emits the event that leaves.
            del held[one.events[0]["v"]]
    return picture.svg()


def switch(call: str, events: Events, seconds: int) -> str:
    """What passes and what does not, and how long the gate is shut: at each tick one more event tries it."""
    there = {event["v"] for event in passed(call, events, seconds * 1000)}
    picture = Picture(call, seconds, 3)
    for lane, text in enumerate(("passes", "dropped", "shut")):
        picture.label(lane, text)
    for at, value in events:
        picture.event(0 if value in there else 1, at, value, "event" if value in there else "out")
    for start, end in _shut(call, events, there, seconds):
        picture.window(2, start, end, [], "shut")
    return picture.svg()


def _shut(call: str, events: Events, there: set[int], seconds: int) -> Iterator[tuple[int, int]]:
    end = 0
    for at, value in events:
        if value in there or at < end:
            continue
        ticks = range(at // 1000 * 1000 + 1000, seconds * 1000, 1000)
        end = next((tick for tick in ticks if _is_open(call, events, tick)), seconds * 1000)
        yield at, end


def _is_open(call: str, events: Events, moment: int) -> bool:
    tried = [*(one for one in events if one[0] < moment), (moment, -1)]
    return any(event["v"] == -1 for event in passed(call, tried, moment))


def join(call: str, lefts: Events, rights: Events, seconds: int) -> str:
    """Left events with the time for which they are stored, and lines to the right events that they meet."""
    picture = Picture(call, seconds, len(lefts) + 1)
    times = {f"r{value}": at for at, value in rights}
    for lane, (at, value) in enumerate(lefts):
        picture.label(lane, f"left {value}")
        # It is stored as long as a right event that comes meets it.
        moments = range(at + 250, seconds * 1000, 250)
        gone = (moment for moment in moments if (f"l{value}", "r0") not in _met(call, lefts, [(moment, 0)]))
        picture.window(lane, at, next(gone, seconds * 1000), [])
        picture.event(lane, at, "")
    for left, right in sorted(_met(call, lefts, rights)):
        lane = next(n for n, (_, value) in enumerate(lefts) if f"l{value}" == left)
        picture.line(lane, times[right], len(lefts), times[right])
        picture.result(lane, times[right], "")
    for at, value in rights:
        picture.event(len(lefts), at, "", "other")
        picture.note(len(lefts), at, f"right {value}")
    return picture.svg()


def _met(call: str, lefts: Events, rights: Events) -> set[tuple[str, str]]:
    flow = Flow("picture").stream("left", "l string").to("both").stream("right", "r string").to("both")
    stream = eval(f"stream.{call}", {**NAMES, "stream": flow.stream("both")})
    script = {
        "left": [{"l": f"l{value}", "timestamp": at} for at, value in lefts],
        "right": [{"r": f"r{value}", "timestamp": at} for at, value in rights],
    }
    return {(event["l"], event["r"]) for event in run_flow(stream.output().build(), script)["both"]}


def task_window(call: str, batches: Sequence[Sequence[int]], *, size: int = 0) -> str:
    """Trident's windows over batches, of which one comes each second.

    Args:
        call: with `{given}` for what is aggregated.
        size: of a duration, in ms.
    """
    results: list[tuple[int, list[int], int]] = []
    for count in range(1, len(batches) + 1):
        members = _of_topology(call, 'members, "found"', batches[:count])[len(results) :]
        sums = _of_topology(call, 'Sum(), "found"', batches[:count])[len(results) :]
        at = (count - 1) * 1000
        results += [(at, [int(v) for v in one.split()], total) for one, total in zip(members, sums, strict=True)]
    picture = Picture(call.format(given='"v", Sum(), "sum"'), len(batches), len(results) + 1)
    times = _times(batches)
    picture.label(0, "batches v")
    for value, at in times.items():
        picture.event(0, at, value)
    for lane, (at, members, total) in enumerate(results, 1):
        end = max([at, *(times[value] for value in members)]) if not size else at
        start = max(end - size, 0) if size else times[members[0]]
        picture.window(lane, start, end, [times[value] for value in members])
        picture.result(lane, end, f"sum {total}")
    return picture.svg()


def _times(batches: Sequence[Sequence[int]]) -> dict[int, int]:
    """Where each tuple is drawn: the tuples of a batch one behind the other."""
    return {value: n * 1000 + 170 * i for n, batch in enumerate(batches) for i, value in enumerate(batch)}


def _of_topology(call: str, given: str, batches: Sequence[Sequence[int]]) -> list[Any]:
    members = Aggregator(
        init=list, aggregate=lambda state, v: state.append(v), complete=lambda state: [(" ".join(map(str, state)),)],
        returns="string", output="found",
    )  # fmt: skip
    topology = TridentTopology("picture")
    stream = topology.new_stream("s", FixedBatches("v bigint", []))
    names = {"timedelta": timedelta, "members": members, "Sum": Sum, "stream": stream}
    shown = call.format(given=f'"v", {given}')
    eval(f"stream.{shown}", names).partition_persist(DeltaState("results"))
    rows = run_topology(topology, {"s": [[(v,) for v in batch] for batch in batches]}, engine="reference")["results"]
    return [row["found"] for row in rows]


STEADY = [(300, 1), (800, 2), (1400, 3), (2600, 4), (3300, 5), (3700, 6), (4500, 7), (5200, 8)]
GAP = [(300, 1), (800, 2), (2400, 3), (3100, 4), (6700, 5), (8300, 6)]
MIXED = [(300, 5), (800, 3), (1400, 9), (1900, 1), (2600, 7), (3300, 2), (3800, 8), (4500, 6), (5200, 4), (5700, 10)]
EVERY_HALF = [(n * 500 + 200, n + 1) for n in range(18)]
BATCHES = [[1, 2, 3], [4], [5, 6], [7, 8], [9]]

PICTURES: dict[str, Callable[[], str]] = {
    "aggregate-count-tumbling": lambda: aggregate(
        'aggregate(Sum("v"){members}, trigger=Policy.count(3), evict=Policy.count(3), clear_on_trigger=True)', STEADY, 6
    ),
    "aggregate-count-sliding": lambda: aggregate(
        'aggregate(Sum("v"){members}, trigger=Policy.count(2), evict=Policy.count(4))', STEADY, 6
    ),
    "aggregate-time-clear": lambda: aggregate(
        'aggregate(Sum("v"){members}, trigger=Policy.time(2), evict=Policy.count(0), clear_on_trigger=True)',
        GAP, 9, clears=True,
    ),
    "aggregate-time-keep": lambda: aggregate(
        'aggregate(Sum("v"){members}, trigger=Policy.time(2), evict=Policy.count(3))', GAP, 9
    ),
    "aggregate-time-eviction": lambda: aggregate(
        'aggregate(Sum("v"){members}, trigger=Policy.time(1), evict=Policy.time(3))', GAP[:5], 9, age=3000
    ),
    "aligned-tumbling": lambda: spans('aligned(Sum("v"){members}, every=2)', STEADY, 6),
    "aligned-hopping": lambda: spans('aligned(Sum("v"){members}, every=1, size=2)', GAP[:4], 5),
    "session": lambda: spans('session(Sum("v"){members}, gap=2)', GAP, 11),
    "collect": lambda: collect('collect(trigger=Policy.count(3), evict=Policy.count(4))', STEADY, 6),
    "sort-progressive": lambda: progressive('sort("v", progressive=3)', MIXED, 6, 3),
    "sort-tumbling": lambda: sort('sort("v", tumbling=Policy.count(4))', MIXED, 6, clears=True),
    "sort-top-n": lambda: sort('sort("v desc", top_n=3, trigger=Policy.count(5))', MIXED, 6),
    "sort-top-n-flush": lambda: sort(
        'sort("v desc", top_n=3, trigger=Policy.count(5), flush=True)', MIXED, 6, clears=True
    ),
    "switch": lambda: switch(
        "switch(open=Policy.time_delta_lt(2), evict=Policy.count(4), close=Policy.time(2))", EVERY_HALF, 9
    ),
    "join-count": lambda: join(
        'join("left", "right", evict=Policy.count(2))', [(500, 1), (1500, 2), (3500, 3)], [(250, 1), (2500, 2), (5250, 3)], 6
    ),
    "join-time": lambda: join(
        'join("left", "right", evict=Policy.time(3))', [(500, 1), (1500, 2), (3500, 3)], [(250, 1), (2500, 2), (5250, 3)], 6
    ),
    "trident-count": lambda: task_window("sliding_window(4, 2, {given})", BATCHES),
    "trident-duration": lambda: task_window(
        "sliding_window(timedelta(seconds=2), timedelta(seconds=1), {given})", BATCHES, size=2000
    ),
}  # fmt: skip
"""By file name the way to draw it."""


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
