"""Flows and scripts by chance: streams that lead to one another, operations of every kind, events with gaps and ties."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from pipelines.flowmix import (
    Average,
    Count,
    DistinctCount,
    Event,
    Flow,
    Max,
    Min,
    Policy,
    Sum,
    and_,
    gt,
    has,
    in_,
    lte,
    not_eq,
    or_,
    range_,
)
from pipelines.testing import TICK

SCHEMA = "k string, g string, v bigint, w double"


@dataclass
class Built:
    """A flow, a script for it, and the story of how it was made."""

    flow: Flow
    script: dict[str, list[Any]]
    story: list[str]


def doubled(event: Event) -> list[dict[str, Any]]:
    """An event whose `v` is even twice, the second time with a greater `v`."""
    return (
        [dict(event), {**event, "v": (event.get("v") or 0) + 100}] if (event.get("v") or 0) % 2 == 0 else [dict(event)]
    )


class FlowMaker:
    """Makes one flow of a seed.

    Args:
        windows: where the windows of a stream's own source run.
    """

    def __init__(self, seed: int, windows: str = "channels") -> None:
        self._random, self._place = random.Random(seed), windows
        self._story: list[str] = []
        self._name = f"flow_{seed}"
        self._several = False

    def build(self) -> Built:
        pick = self._random
        sources = [f"s{n}" for n in range(pick.choice((1, 1, 2)))]
        fed = [f"f{n}" for n in range(pick.choice((0, 1, 2)))]
        chain: Any = Flow(self._name, windows=self._place)
        for number, name in enumerate(sources):
            chain = self._stream(chain, name, SCHEMA, fed, last=not fed or number == 0)
        for number, name in enumerate(fed):
            chain = self._fed(chain, name, sources, fed[number + 1 :])
        return Built(chain.build(), {name: self._events() for name in sources}, self._story)

    def _stream(self, chain: Any, name: str, source: str, targets: list[str], *, last: bool) -> Any:
        self._say(f"stream {name}")
        chain = chain.stream(name, source)
        for _ in range(self._random.randint(0, 2)):
            chain = self._stateless(chain)
        if targets:
            chain = self._send(chain, targets)
        if self._random.random() < 0.7 or not targets:
            chain = self._windows(chain)
            if self._random.random() < 0.4:
                chain = self._windows(chain)
        return self._end(chain, name)

    def _send(self, chain: Any, targets: list[str]) -> Any:
        """All targets get something from every source, so that none dangles."""
        if len(targets) > 1 and self._random.random() < 0.5:
            self._say("split")
            first, second = targets
            return chain.split(default=gt("v", 2), paths={first: lte("v", 12)}, all=[second])
        self._say("to")
        return chain.to(*targets)

    def _fed(self, chain: Any, name: str, sources: list[str], targets: list[str]) -> Any:
        self._say(f"stream {name}, fed")
        chain = chain.stream(name)
        # Into a stream that joins nothing may lead but its two sides.
        if len(sources) > 1 and name == "f0" and self._random.random() < 0.6:
            evict = self._random.choice((Policy.count(2), Policy.time(3)))
            self._say(f"join {evict}")
            chain = chain.partition(self._random.choice(("k", "g"))).join(sources[0], sources[1], evict)
            self._several = True
        else:
            chain = self._windows(self._stateless(chain))
        if targets and self._random.random() < 0.5:
            chain = chain.to(*targets)
        return self._end(chain, name)

    def _end(self, chain: Any, name: str) -> Any:
        return chain.persist(f"t_{name}") if self._random.random() < 0.5 else chain.output()

    def _stateless(self, chain: Any) -> Any:
        pick = self._random.choice(("filter", "sql", "each", "select", "compute", "none"))
        if self._several and pick in ("sql", "each", "compute"):
            pick = "none"  # they are written for fields of one value
        self._say(pick)
        fields = chain.fields or ()
        if pick == "filter" and "v" in fields:
            return chain.filter(or_(and_(has("k"), range_("v", 1, 14)), in_("g", "x", "y"), not_eq("w", 1.5)))
        if pick == "sql" and "v" in fields:
            return chain.filter("v % 3 != 0 or g = 'x'")
        # It gives the fields of its event: a window's results beside a source's events have others than it declares.
        if pick == "each" and "v" in fields and not set(fields) - {"k", "g", "v", "w"}:
            return chain.each(doubled, schema=SCHEMA)
        if pick == "compute" and {"k", "g", "v", "w"} <= set(fields):
            return chain.compute({"v bigint": "v + 1", "k string": "k", "g string": "coalesce(g, k)", "w double": "w"})
        if pick == "select" and "v" in fields:
            return chain.select("k", "g", "v", "w")
        return chain

    def _windows(self, chain: Any) -> Any:
        fields = chain.fields or ()
        keys = [name for name in ("k", "g") if name in fields]
        number = next((name for name in ("v", "sum", "n") if name in fields), None)
        if keys and self._random.random() < 0.8:
            by = self._random.sample(keys, self._random.randint(1, len(keys)))
            self._say(f"partition {by}")
            chain = chain.partition(*by)
        else:
            chain = chain.partition()
        kinds = ("aggregate", "aggregate", "spans", "sort", "switch") if number else ("aggregate", "spans")
        kind = self._random.choice(kinds)
        if kind == "spans":
            return self._spans(chain, number)
        if kind == "aggregate":
            return self._aggregate(chain, number)
        if kind == "switch":
            self._say("switch")
            opens = self._random.choice((Policy.count(3), Policy.time(2), Policy.time_delta_lt(2)))
            evict = self._random.choice((Policy.count(2), Policy.time(2)))
            close = self._random.choice((Policy.count(2), Policy.time(1)))
            return chain.switch(open=opens, evict=evict, close=close)
        return self._sort(chain, str(number))

    def _aggregate(self, chain: Any, number: str | None) -> Any:
        trigger = self._random.choice((Policy.count(2), Policy.count(3), Policy.time(1), Policy.time(3)))
        evict = self._random.choice((Policy.count(2), Policy.count(4), Policy.time(2), Policy.time_delta_lt(5)))
        clear = self._random.random() < 0.5
        self._say(f"aggregate {trigger} {evict} {clear}")
        aggregators = self._aggregators(number)
        millis = self._random.choice((4_000, 60_000, 3_600_000))
        return chain.aggregate(
            *aggregators, trigger=trigger, evict=evict, clear_on_trigger=clear, window_evict_millis=millis
        )

    def _spans(self, chain: Any, number: str | None) -> Any:
        if self._random.random() < 0.4:
            gap = self._random.choice((1, 3, 60))
            self._say(f"session {gap}")
            return chain.session(*self._aggregators(number), gap=gap)
        every, zone = self._random.choice(((1, None), (7, None), (3600, None), (86_400, "Europe/Berlin")))
        times, offset = self._random.choice((1, 1, 2, 3)), self._random.choice((0, 0, 1 - every, 1))
        self._say(f"aligned {every} {times} {offset} {zone}")
        return chain.aligned(*self._aggregators(number), every=every, size=every * times, offset=offset, time_zone=zone)

    def _aggregators(self, number: str | None) -> list[Any]:
        aggregators: list[Any] = [Count(output="n")]
        if number:
            more = [Sum(number, "sum"), Average(number, "avg"), Min(number, "least"), Max(number, "most")]
            more.append(DistinctCount(number, "different"))
            aggregators += self._random.sample(more, self._random.randint(1, 3))
            if not any(isinstance(aggregator, Sum) for aggregator in aggregators):
                aggregators.append(Sum(number, "sum"))
        return aggregators

    def _sort(self, chain: Any, number: str) -> Any:
        way = self._random.choice(("progressive", "tumbling", "top_n"))
        self._say(f"sort {way}")
        by = f"{number} desc" if self._random.random() < 0.5 else number
        trigger = self._random.choice((Policy.count(3), Policy.time(2)))
        if way == "progressive":
            return chain.sort(by, progressive=2)
        if way == "tumbling":
            return chain.sort(by, tumbling=trigger)
        return chain.sort(by, top_n=2, trigger=trigger, flush=self._random.random() < 0.5)

    def _events(self) -> list[Any]:
        pick, at = self._random, 0
        found: list[Any] = []
        # Some scripts leave the time to their ticks: there many events share a clock, and the first ones are at 0.
        timed = pick.random() < 0.7
        for _ in range(pick.randint(8, 30)):
            if not timed and pick.random() < 0.3:
                found.append(TICK)
            at += pick.choice((0, 0, 100, 400, 1000, 1500, 5000, 4_000_000 if pick.random() < 0.1 else 700))
            event: dict[str, Any] = {"timestamp": at} if timed else {}
            for name, values in (("k", "abc"), ("g", "xyz"), ("v", range(16)), ("w", (0.5, 1.5, 2.5))):
                if pick.random() < 0.9:
                    event[name] = pick.choice(values)  # type: ignore[arg-type]
            found.append(event)
        return found

    def _say(self, text: str) -> None:
        self._story.append(text)


__all__ = ["Built", "FlowMaker"]
