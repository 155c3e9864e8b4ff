"""The rules of windows done in the simplest way: every event kept, everything computed anew, one tick at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

from pipelines.windows.buffer import key_of, key_text
from pipelines.windows.event import Event
from pipelines.windows.keyed import Item
from pipelines.windows.operations import (
    AggregateWindow,
    CollectWindow,
    JoinWindow,
    SortWindow,
    SwitchWindow,
    TaskWindow,
)

Out = tuple[int, dict[str, Any]]


class Naive:
    """One window of one key: `event` and `tick` give the fields of what is emitted."""

    step = 1000

    def __init__(self, operation: Any, partition: tuple[str, ...]) -> None:
        self.op, self.partition = operation, partition
        self.items: list[tuple[Event, int]] = []
        self.ticks, self.written = 0, 0
        self.group: dict[str, Any] | None = None

    def age_out(self, policy: Any, now: int) -> None:
        if policy is not None and policy.kind == "time":
            self.items = [(e, at) for e, at in self.items if now - at < policy.threshold * 1000]

    def keep_last(self, policy: Any, kinds: tuple[str, ...] = ("count",)) -> None:
        if policy.kind in kinds and policy.threshold:
            self.items = self.items[-policy.threshold :]

    def over(self, now: int) -> bool:
        return now - self.written >= self.op.window_evict_millis


class NaiveAggregate(Naive):
    def event(self, event: Event, now: int) -> list[dict[str, Any]]:
        if self.group is None:
            self.group = {f: event[f] for f in self.partition if f in event}
        self.age_out(self.op.evict, now)
        self.items.append((event, now))
        self.keep_last(self.op.evict)
        self.written = now
        if self.op.trigger.kind == "count":
            self.ticks += 1
            if self.ticks == self.op.trigger.threshold:
                return self.fire()
        return []

    def tick(self, now: int) -> list[dict[str, Any]]:
        if "time" not in (self.op.trigger.kind, self.op.evict.kind):
            return []
        self.age_out(self.op.evict, now)
        if self.op.trigger.kind != "time" and self.op.trigger.threshold == 0:
            return self.fire()
        self.ticks += self.op.trigger.kind == "time"
        return self.fire() if self.ticks == self.op.trigger.threshold else []

    def fire(self) -> list[dict[str, Any]]:
        events = [event for event, _ in self.items]
        if isinstance(self.op, CollectWindow):
            rows = [{self.op.field: [dict(event) for event in events]}]
        else:
            rows = [{}]
            for one in self.op.aggregators:
                made = VALUES[type(one).__name__](one, events)
                alone = len(self.op.aggregators) == 1
                rows = [{**row, **new} for row in rows for new in (made or ([] if alone else [{}]))]
        if self.op.clear_on_trigger:
            self.items = []
        self.ticks = 0
        return [{**(self.group or {}), **row} for row in rows]


def field_values(one: Any, events: list[Event]) -> list[Any]:
    return [value for event in events for value in event.values_of(one.field)]


def exact(values: list[Any]) -> Any:
    if all(isinstance(value, int) for value in values):
        return sum(values)
    return float(sum(map(Fraction, values)))


def spread(values: list[Any]) -> float:
    if len(values) < 2:
        return 0.0
    whole = [Fraction(value) for value in values]
    mean = sum(whole) / len(whole)
    return math.sqrt(sum((value - mean) ** 2 for value in whole) / (len(whole) - 1))


def counted(one: Any, events: list[Event]) -> list[dict[str, Any]]:
    rows: dict[tuple[Any, ...], int] = {}
    for event in events:
        combined: list[tuple[Any, ...]] = [()]
        for field in one.fields:
            combined = [(*row, value) for row in combined for value in event.values_of(field)]
        for row in combined:
            rows[row] = rows.get(row, 0) + 1
    return [{**dict(zip(one.fields, row, strict=True)), one.named: rows[row]} for row in sorted(rows)]


def of_values(call: Callable[[list[Any]], Any]) -> Callable[[Any, list[Event]], list[dict[str, Any]]]:
    return lambda one, events: [{one.named: call(field_values(one, events))}]


def first(one: Any, events: list[Event], *, last: bool = False) -> list[dict[str, Any]]:
    there = [event for event in events if one.values_field in event]
    if one.sort_field:
        there.sort(key=lambda event: event[one.sort_field], reverse=one.reverse)
    shown = there[-one.n :] if last else there[: one.n]
    return [{one.named: [value for event in shown for value in event.values_of(one.values_field)]}]


VALUES: dict[str, Callable[[Any, list[Event]], list[dict[str, Any]]]] = {
    "Count": lambda one, events: [{one.named: sum(one.field is None or one.field in event for event in events)}],
    "Sum": of_values(exact),
    "Average": of_values(lambda values: exact(values) / len(values) if values else 0.0),
    "Min": of_values(lambda values: min(values, default=None)),
    "Max": of_values(lambda values: max(values, default=None)),
    "DistinctCount": of_values(lambda values: len(set(values))),
    "Collect": of_values(list),
    "StdDev": of_values(spread),
    "AssocCount": counted,
    "GroupCount": counted,
    "FirstN": first,
    "LastN": lambda one, events: first(one, events, last=True),
    "Spread": lambda one, events: [
        {"low": min(v), "high": max(v)} if (v := [event["v"] for event in events]) else {"low": None, "high": None}
    ],
}


class NaiveSort(Naive):
    def ordered(self, items: list[tuple[Event, int]]) -> list[tuple[Event, int]]:
        def compare(a: tuple[Event, int], b: tuple[Event, int]) -> int:
            for field, descending in self.op.by:
                x, y = a[0].get(field), b[0].get(field)
                if x is None or y is None:
                    if (x is None) != (y is None):
                        return 1 if x is None else -1
                elif x != y:
                    return (1 if x > y else -1) * (-1 if descending else 1)
            return 0

        return sorted(items, key=cmp_to_key(compare))

    def event(self, event: Event, now: int) -> list[dict[str, Any]]:
        self.age_out(self.op.evict, now)
        self.items.append((event, now))
        self.written = now
        if self.op.mode == "progressive":
            self.items = self.ordered(self.items)
            if len(self.items) == self.op.size:
                return [self.items.pop()[0]]
            return [e for e, _ in self.items]
        if self.op.mode == "top_n" and self.op.evict is None:
            self.items = self.ordered(self.items)[: self.op.size]
        if self.op.trigger.kind == "count":
            self.ticks += 1
            return self.fire() if self.ticks == self.op.trigger.threshold else []
        clocks = [at for _, at in self.items]
        near = len(clocks) > 1 and max(clocks) - min(clocks) <= self.op.trigger.threshold * 1000
        return self.fire() if self.op.trigger.kind == "time_delta_lt" and near else []

    def tick(self, now: int) -> list[dict[str, Any]]:
        self.age_out(self.op.evict, now)
        if self.op.trigger is None or self.op.trigger.kind != "time":
            return []
        self.ticks += 1
        return self.fire() if self.ticks == self.op.trigger.threshold else []

    def fire(self) -> list[dict[str, Any]]:
        shown = [event for event, _ in self.ordered(self.items)]
        if self.op.mode == "tumbling" or self.op.flush:
            self.items = []
        self.ticks = 0
        return shown[: self.op.size] if self.op.mode == "top_n" else shown


class NaiveSwitch(Naive):
    """Rules 5.4 in their own words."""

    def __init__(self, operation: Any, partition: tuple[str, ...]) -> None:
        super().__init__(operation, partition)
        self.stopped, self.stop_ticks, self.evict_ticks = False, 0, 0

    def over(self, now: int) -> bool:
        return now - self.written >= self.op.idle_millis

    def stop(self) -> None:
        self.stopped, self.items, self.ticks, self.evict_ticks = True, [], 0, 0

    def near(self) -> bool:
        if len(self.items) < 2:
            return False
        return self.items[-1][1] - self.items[0][1] <= self.op.open.threshold * 1000

    def closing(self) -> None:
        if self.stop_ticks == self.op.close.threshold:
            self.stopped, self.stop_ticks = False, 0
        else:
            self.stop_ticks += 1

    def event(self, event: Event, now: int) -> list[dict[str, Any]]:
        self.written = now
        if not self.stopped:
            self.age_out(self.op.evict, now)
        if self.stopped and self.op.close.kind == "count":
            self.closing()
        if not self.stopped:
            if self.op.open.kind == "count":
                self.ticks += 1
                if self.ticks == self.op.open.threshold:
                    self.stop()
            full = self.op.evict.kind == "count" and len(self.items) == self.op.evict.threshold
            if self.op.open.kind == "time_delta_lt" and full and self.near():
                self.stop()
        if self.stopped:
            return []
        self.items.append((event, now))
        self.keep_last(self.op.evict, ("count", "time_delta_lt"))
        return [event]

    def tick(self, now: int) -> list[dict[str, Any]]:
        if self.op.open.kind == "time" and not self.stopped:
            if self.ticks == self.op.open.threshold:
                self.stop()
            else:
                self.ticks += 1
        if self.op.close.kind == "time" and self.stopped:
            self.closing()
        if self.op.evict.kind == "time" and not self.stopped:
            if self.evict_ticks == self.op.evict.threshold:
                if self.op.open.kind == "time_delta_lt" and self.near():
                    self.stop()
            else:
                self.evict_ticks += 1
        return []


class NaiveJoin(Naive):
    def over(self, now: int) -> bool:
        return self.op.window_evict_millis is not None and super().over(now)

    def event(self, event: Event, now: int) -> list[dict[str, Any]]:
        self.age_out(self.op.evict, now)
        self.written = now
        if event.stream == self.op.left:
            self.items.append((event, now))
            self.keep_last(self.op.evict, ("count", "time_delta_lt"))
            return []
        return [self.both(left, event) for left, _ in self.items]

    def both(self, left: Event, right: Event) -> dict[str, Any]:
        found = {}
        for field in {**left, **right}:
            values = sorted({*left.values_of(field), *right.values_of(field)})
            found[field] = values if len(values) > 1 else values[0]
        return found

    def tick(self, now: int) -> list[dict[str, Any]]:
        self.age_out(self.op.evict, now)
        return []


class NaiveTask(Naive):
    """Keeps everything for ever; sums of `v`, the only aggregation that the tests give it."""

    def __init__(self, operation: Any, partition: tuple[str, ...]) -> None:
        super().__init__(operation, partition)
        self.step = operation.slide if operation.unit == "duration" else 1000

    def over(self, now: int) -> bool:
        return False

    def event(self, event: Event, now: int) -> list[dict[str, Any]]:
        self.items.append((event, now))
        if self.op.unit != "count" or len(self.items) % self.op.slide:
            return []
        return [self.row([event for event, _ in self.items[-self.op.size :]])]

    def tick(self, now: int) -> list[dict[str, Any]]:
        seen = [event for event, at in self.items if now - 1 - at < self.op.size]
        return [self.row(seen)] if self.op.unit == "duration" and seen else []

    def row(self, events: list[Event]) -> dict[str, Any]:
        return {"sum": sum(event.get("v", 0) for event in events), "count": len(events)}


KINDS: dict[type, type[Naive]] = {
    AggregateWindow: NaiveAggregate,
    CollectWindow: NaiveAggregate,
    SortWindow: NaiveSort,
    SwitchWindow: NaiveSwitch,
    JoinWindow: NaiveJoin,
    TaskWindow: NaiveTask,
}


def there(row: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in row.items() if value is not None}


def naive(operation: Any, partition: tuple[str, ...], events: Iterable[Item], end: int) -> list[Out]:
    """All that an operation makes of events up to a clock: (clock, fields)."""
    windows: dict[str, Naive] = {}
    made: list[Out] = []
    now = -8000

    def tick_to(clock: int) -> None:
        # All ticks of the tests are multiples of 100 ms.
        nonlocal now
        while now + 100 <= clock:
            now += 100
            for text in sorted(windows, key=lambda text: f"{text}."):
                window = windows[text]
                if window.over(now):
                    del windows[text]
                elif now % window.step == 0:
                    made.extend((now, there(row)) for row in window.tick(now))

    for event, clock, _ in events:
        tick_to(clock)
        text = key_text(key_of(event, partition))
        if text not in windows or windows[text].over(clock):
            windows[text] = KINDS[type(operation)](operation, partition)
            windows[text].written = clock
        made += [(clock, there(row)) for row in windows[text].event(event, clock)]
    tick_to(end)
    return made
