"""Topologies by chance, with batches: what every engine must agree on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pipelines.sources import FixedBatches
from pipelines.trident import (
    Aggregator,
    CombinerAggregator,
    Count,
    DeltaState,
    FilterNull,
    FirstN,
    Max,
    Min,
    ReducerAggregator,
    Stream,
    Sum,
    TridentTopology,
    row_function,
)

SCHEMA = "k string, v bigint, w double"


@row_function("bigint")
def twice(v: int | None) -> Iterator[int | None]:
    """Nothing for a negative number, two rows for an even one."""
    if v is None or v >= 0:
        yield v
    if v is not None and v >= 0 and v % 2 == 0:
        yield v + 1


@row_function("boolean")
def small(v: int | None) -> bool:
    return v is None or v < 7


def longest(a: str, b: str) -> str:
    return max(a, b, key=lambda text: (len(text), text))


def texts() -> CombinerAggregator:
    return CombinerAggregator(str, longest, str, returns="string")


def total() -> ReducerAggregator:
    return ReducerAggregator(lambda: 0, lambda now, v: now + (v or 0))


def spread() -> Aggregator:
    """Two rows a group with tuples in it, one without: its number of tuples, and their sum."""

    def taken(state: list[int], v: int | None) -> None:
        state[0] += 1
        state[1] += v or 0

    def rows(state: list[int]) -> Iterator[int]:
        yield state[0]
        if state[0]:
            yield state[1]

    return Aggregator(lambda: [0, 0], taken, rows)


AGGREGATORS: tuple[Callable[[], Any], ...] = (Count, Sum, Min, Max, texts, total, spread)


@dataclass
class Built:
    """A topology and what it is run on; `story` says how it came to be."""

    topology: TridentTopology
    batches: dict[str, list[list[tuple[Any, ...]]]]
    story: list[str] = field(default_factory=list)


class Maker:
    """Makes one topology from a seed. Streams always have the fields k string, v bigint."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.topology = TridentTopology("by_chance")
        self.story: list[str] = []
        self.names = 0

    def build(self) -> Built:
        count = self.chance.choice([1, 1, 2])
        batches = {f"s{n}": [self.batch() for _ in range(self.chance.randint(1, 3))] for n in range(count)}
        streams = [
            self.topology.new_stream(name, FixedBatches(SCHEMA, [])).filter("w is null or w < 90").project(["k", "v"])
            for name in batches
        ]
        streams = [self.steps(stream) for stream in streams]
        met = self.meet(*streams) if count == 2 else streams[0]
        self.end(self.steps(met), "one")
        if self.chance.random() < 0.4:
            self.end(met, "two")
        return Built(self.topology, batches, self.story)

    def batch(self) -> list[tuple[Any, ...]]:
        keys: list[str | None] = ["a", "b", "c", "dd", None]
        number = self.chance.choice([0, 1, 4, 9])
        return [
            (
                self.chance.choice(keys),
                self.chance.choice([None, *range(-3, 10)]),
                self.chance.choice([None, 0.5, -1.25, 99.0]),
            )
            for _ in range(number)
        ]

    def steps(self, stream: Stream) -> Stream:
        for _ in range(self.chance.randint(0, 3)):
            step = self.chance.choice(
                [self.per_tuple, self.per_tuple, self.repartition, self.per_partition, self.per_batch]
            )
            stream = step(stream)
        return stream

    def say(self, text: str) -> None:
        self.story.append(text)

    def fresh(self) -> str:
        self.names += 1
        return f"f{self.names}"

    def shaped(self, stream: Stream, key: str, value: str) -> Stream:
        """The stream with the fields k and v again."""
        found = stream.project([key, value])
        return found.map(lambda k, v: (k.cast("string"), v.try_cast("bigint")), ["k string", "v bigint"])

    def per_tuple(self, stream: Stream) -> Stream:
        choice = self.chance.randrange(6)
        self.say(f"per tuple {choice}")
        if choice == 0:
            name = self.fresh()
            return self.shaped(stream.each("v", twice, name), "k", name)
        if choice == 1:
            return stream.filter("v", small)
        if choice == 2:
            return stream.filter("v is not null and v > -2")
        if choice == 3:
            return stream.each(["k"], FilterNull())
        if choice == 4:
            name = self.fresh()
            return self.shaped(stream.each("v", lambda v: v * 2 + 1, name), "k", name)
        return stream.peek(lambda row: None)

    def repartition(self, stream: Stream) -> Stream:
        kind = self.chance.choice(
            ["shuffle", "partition_by", "global_", "batch_global", "broadcast", "identity_partition"]
        )
        tasks = self.chance.choice([1, 2, 3])
        self.say(f"{kind} to {tasks}")
        dealt = stream.partition_by("k") if kind == "partition_by" else getattr(stream, kind)()
        return dealt.filter("true").parallelism_hint(tasks)

    def per_partition(self, stream: Stream) -> Stream:
        choice = self.chance.randrange(4)
        self.say(f"per partition {choice}")
        if choice == 0:
            return stream.max_by("v") if self.chance.random() < 0.5 else stream.min_by("v")
        aggregator, name = self.chance.choice(AGGREGATORS)(), self.fresh()
        self.say(f"  {aggregator}")
        if choice == 1:
            return self.shaped(stream.group_by("k").partition_aggregate("v", aggregator, name), "k", self.number(name))
        found = stream.partition_aggregate("v", aggregator, name)
        other = self.fresh()
        return self.shaped(found.each(name, lambda v: v.cast("string"), other), other, self.number(name))

    def per_batch(self, stream: Stream) -> Stream:
        aggregator, name = self.chance.choice(AGGREGATORS)(), self.fresh()
        grouped = self.chance.random() < 0.6
        self.say(f"aggregate {aggregator} {'by k' if grouped else ''}")
        if grouped:
            return self.shaped(stream.group_by("k").aggregate("v", aggregator, name), "k", self.number(name))
        other = self.fresh()
        found = stream.aggregate("v", aggregator, name).each(name, lambda v: v.cast("string"), other)
        return self.shaped(found, other, self.number(name))

    def number(self, name: str) -> str:
        return name

    def meet(self, left: Stream, right: Stream) -> Stream:
        kind = self.chance.choice(["merge", "inner", "outer", "mixed"])
        self.say(f"meet by {kind}")
        if kind == "merge":
            return self.topology.merge(left, right)
        kinds: Any = ["inner", "outer"] if kind == "mixed" else kind
        joined = self.topology.join(left, "k", right, "k", ["k", "v", "w"], kind=kinds)
        name = self.fresh()
        return self.shaped(joined.each(["v", "w"], lambda v, w: v + w, name), "k", name)

    def end(self, stream: Stream, name: str) -> None:
        choice = self.chance.randrange(5)
        self.say(f"end {name} {choice}")
        if choice == 0:
            stream.partition_persist(DeltaState(name))
        elif choice == 1:
            stream.group_by("k").persistent_aggregate(DeltaState(name), [Count("n"), Sum("v", "s"), Max("v", "m")])
        elif choice == 2:
            stream.group_by("k").persistent_aggregate(DeltaState(name), "v", total(), "s")
        elif choice == 3:
            stream.persistent_aggregate(DeltaState(name, layout="map"), "v", Sum(), "s")
        else:
            stream.apply_assembly(FirstN(2, "v")).project("v").partition_persist(DeltaState(name))
