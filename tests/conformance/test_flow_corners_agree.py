"""Corners of flows on Spark as a bounded run: the answers are those of the reference engine."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.errors import BatchError
from pipelines.flowmix import (
    Count,
    DistinctCount,
    Event,
    Flow,
    Max,
    Policy,
    Sum,
    WindowAggregator,
    eq,
    gt,
    has,
    has_not,
    lt,
    not_,
    or_,
    python,
)
from pipelines.testing import TICK, run_flow
from tests.tiers import tier

C, T = Policy.count, Policy.time


def at(milliseconds: int, **fields: Any) -> dict[str, Any]:
    return {"timestamp": milliseconds, **fields}


def split_by_every_kind_of_criteria() -> tuple[Flow, Any]:
    odd = python(lambda event: event["v"] % 2 == 1)
    flow = (
        Flow("splits")
        .stream("s", "v bigint").split(default=gt("v", 2), paths={"a": odd, "b": "v > 0"}, all="c").output()
        .stream("a").output()
        .stream("b").output()
        .stream("c").persist("kept")
        .build()
    )  # fmt: skip
    return flow, {"s": [at(n * 10, v=n) for n in range(5)]}


def join_of_an_event_with_itself() -> tuple[Flow, Any]:
    flow = (
        Flow("diamond")
        .stream("s", "v bigint, tag string").split(all=["l", "r"])
        .stream("l").each(lambda e: {**e, "tag": "l"}, "v bigint, tag string").to("j")
        .stream("r").to("j")
        .stream("j").join("l", "r", C(1)).output()
        .build()
    )  # fmt: skip
    return flow, {"s": [at(0, v=1), at(0, v=2, tag="l"), at(1, v=3, tag="r")]}


def collected_events_and_keys_of_several_values() -> tuple[Flow, Any]:
    flow = (
        Flow("collects").stream("s", "many array<string>, v bigint").partition("many")
        .collect(trigger=C(2), evict=C(3)).output().build()
    )  # fmt: skip
    many = [["a", "b"], ["b", "a"], "a", None, ["a"]]
    events = [{"many": many[n % 5], **({"v": n} if n % 3 else {})} for n in range(15)]
    return flow, {"s": [at(n, **{k: v for k, v in event.items() if v is not None}) for n, event in enumerate(events)]}


def several_of_one_and_criteria_on_lists() -> tuple[Flow, Any]:
    def repeat(event: Event) -> Any:
        return [event, {"k": "x", "many": event["v"]}] if event["v"] % 2 else None

    flow = (
        Flow("lists").stream("s", "k string, v bigint")
        .each(repeat, "k string, v bigint, many array<bigint>")
        .filter(or_(gt("many", 2), eq("k", 5), has_not("many"))).sort("v desc", "k", tumbling=C(2)).output().build()
    )  # fmt: skip
    return flow, {"s": [at(n * 10, k=str(n), v=n) for n in range(8)]}


def values_beside_those_of_a_join() -> tuple[Flow, Any]:
    alone = python(lambda event: not isinstance(event["v"], list) or len(event["v"]) > 1)

    def named(event: Event) -> dict[str, Any]:
        return {**event, "tag": "several" if isinstance(event["v"], list) else "one"}

    flow = (
        Flow("beside")
        .stream("l", "k string, v bigint, tag string").to("j")
        .stream("r", "k string, v bigint, tag string").to("j", "all")
        .stream("j").partition("k").join("l", "r", C(2)).to("all")
        .stream("all").filter(alone).each(dict).persist("same")
        .each(named, "k string, v array<bigint>, tag string").output()
        .build()
    )  # fmt: skip
    lefts, rights = [at(0, k="a", v=1), at(10, k="b", v=2)], [at(20, k="a", v=1), at(30, k="b", v=3), at(40, v=4)]
    return flow, {"l": lefts, "r": rights}


def values_beside_declared_arrays() -> tuple[Flow, Any]:
    flow = (
        Flow("declared")
        .stream("l", "k string, v array<bigint>").to("all")
        .stream("r", "k string, v bigint").to("all")
        .stream("all").filter(python(lambda event: event.get("v") is None or len(event["v"]) > 0)).output()
        .build()
    )  # fmt: skip
    return flow, {"l": [at(0, k="a", v=[1]), at(0, k="a", v=[1, 2])], "r": [at(1, k="b", v=5), at(2, k="c")]}


def computed(stream: Any) -> Any:
    return stream.compute({"k string": "k", "x bigint": "coalesce(v, w)"})


def made(stream: Any) -> Any:
    return stream.each(lambda e: {"k": e["k"], "x": e.get("v", e.get("w"))}, "k string, x bigint")


def passed(stream: Any) -> Any:
    return stream.each(lambda e: {**e})


def kept(stream: Any) -> Any:
    return stream.persist("before")


def join_behind(change: Callable[[Any], Any]) -> Callable[[], tuple[Flow, Any]]:
    """A join of what an operation of the same stream gives, of one value and of two."""

    def case() -> tuple[Flow, Any]:
        flow = Flow("behind").stream("l", "k string, v bigint").to("j").stream("r", "k string, w bigint").to("j")
        flow = change(flow.stream("j")).partition("k").join("l", "r", C(3)).output().build()
        lefts = [at(0, k="a", v=1), at(1, k="a", v=2), at(2, k="b", v=6)]
        return flow, {"l": lefts, "r": [at(5, k="a", w=2), at(6, k="b", w=8)]}

    case.__name__ = f"join_behind_{change.__name__}"
    return case


class Total(WindowAggregator):
    outputs = "total bigint"

    def __init__(self) -> None:
        self.total = 0

    def added(self, event: Event) -> None:
        self.total += event["v"] if not isinstance(event["v"], list) else 100 * len(event["v"])

    def evicted(self, event: Event) -> None:
        self.total -= event["v"] if not isinstance(event["v"], list) else 100 * len(event["v"])

    def aggregate(self) -> int:
        return self.total


def join_behind_which_windows_stand() -> tuple[Flow, Any]:
    """A user's aggregator gets one value as it is; collected events have arrays."""
    flow = (
        Flow("windows")
        .stream("l", "k string, v bigint").to("j")
        .stream("r", "k string, v bigint").to("j")
        .stream("j").partition("k").join("l", "r", C(3)).to("own", "collects", "days", "visits")
        .stream("own").partition("k").aggregate(Total(), trigger=C(1), evict=C(3)).output()
        .stream("collects").collect(trigger=C(2), evict=C(2)).output()
        .stream("days").partition("k").aligned(Total(), every=1).output()
        .stream("visits").partition("k").session(Total(), gap=1).output()
        .build()
    )  # fmt: skip
    rights = [at(5, k="a", v=1), at(6, k="a", v=2), at(9000, k="b", v=1)]
    return flow, {"l": [at(0, k="a", v=1), at(1, k="a", v=1)], "r": rights}


def python_among_other_criteria() -> tuple[Flow, Any]:
    early = python(lambda event: event["at"].hour == 12 and isinstance(event["s"], dict) and event["s"].get("x") == 1)
    flow = (
        Flow("mixed").stream("e", "at timestamp, s struct<x: int>, v bigint")
        .split(default=or_(eq("v", -1), early), paths={"p": not_(early)}).output()
        .stream("p").output()
        .build()
    )  # fmt: skip
    noon = datetime.datetime(2026, 1, 1, 12)
    events = [at(n, at=noon + datetime.timedelta(hours=n // 2), s={"x": n % 2}, v=n) for n in range(4)]
    return flow, {"e": [*events, at(9, at=noon, s={"x": 5}, v=-1)]}


class Spread(WindowAggregator):
    outputs = "least bigint, largest bigint"

    def __init__(self) -> None:
        self.values: list[int] = []

    def added(self, event: Event) -> None:
        self.values.append(event["v"])

    def evicted(self, event: Event) -> None:
        self.values.remove(event["v"])

    def aggregate(self) -> dict[str, int]:
        return {"least": min(self.values), "largest": max(self.values)} if self.values else {}


def own_aggregator_then_ticks() -> tuple[Flow, Any]:
    flow = (
        Flow("ticks").stream("s", "k string, v bigint").partition("k")
        .aggregate(Spread(), trigger=T(2), evict=T(3)).to("t")
        .stream("t").aggregate(Count(), trigger=T(3), evict=C(5)).output().build()
    )  # fmt: skip
    script = [{"k": "a", "v": 3}, TICK, {"k": "b", "v": 9}, TICK, TICK, {"k": "a", "v": 1}, *[TICK] * 6]
    return flow, {"s": script}


class Shown(WindowAggregator):
    """The last event as a text."""

    outputs = "shown string"

    def __init__(self) -> None:
        self.shown = ""

    def added(self, event: Event) -> None:
        self.shown = str({name: str(event[name]) for name in sorted(event)})

    def evicted(self, event: Event) -> None:
        pass

    def aggregate(self) -> str:
        return self.shown


def values_in_user_code_and_in_keys() -> tuple[Flow, Any]:
    """Of one moment, number and struct in several forms, from a script and from functions; numbers of two types meet."""
    made = [{"n": 4.0, "d": 4, "x": "5"}, {"n": 4, "d": decimal.Decimal("4.004"), "x": 5}]
    flow = (
        Flow("forms")
        .stream("s", "t timestamp, s struct<a: bigint, b: string>, n bigint").to("own", "all", "keys", "spans")
        .stream("other", "n double, s struct<a: bigint, b: string>").to("all")
        .stream("own").aggregate(Shown(), trigger=C(1), evict=C(1)).output()
        .stream("all").partition("n").aggregate(Count(), Count("of_s", field="s"), trigger=C(1), evict=C(0)).output()
        .stream("keys").partition("t", "s").aggregate(Count(), trigger=C(1), evict=C(0)).output()
        .stream("spans").aligned(Count(), every=1)
        .each(lambda event: {"at": repr(event["window_start"])}, "at string").output()
        .stream("given", "v bigint").each(lambda event: made[event["v"]], "n bigint, d decimal(10,2), x string")
        .partition("n", "d", "x").aggregate(Count(), trigger=C(1), evict=C(0)).output()
        .build()
    )  # fmt: skip
    noon = datetime.datetime(2026, 1, 1, 12)
    moments = [noon, noon.replace(tzinfo=datetime.UTC), 1_767_268_800_000]
    structs: list[Any] = [{"a": 1}, {"b": None, "a": 1}, {"a": 1.0}]
    events = [at(n, t=t, s=s, n=1) for n, (t, s) in enumerate(zip(moments, structs, strict=True))]
    return flow, {"s": [*events, at(5000)], "other": [at(9, n=1.0)], "given": [at(0, v=0), at(1, v=1)]}


def aligned_behind_other_windows() -> tuple[Flow, Any]:
    """What is by chance as little behind the clock as results of aligned windows counts by the clock."""
    flow = (
        Flow("behind").stream("s", "k string, v bigint").partition("k").to("visits", "joins", "nested")
        .sort("v", tumbling=T(1)).aligned(Count(), every=1).output()
        .stream("visits").partition("k").switch(open=C(100), evict=C(1), close=C(1)).session(Count("n"), gap=1)
        .aligned(Count(), every=2).output()
        .stream("joins").partition("k").join("s", "right", evict=C(9)).aligned(Count(), every=1).output()
        .stream("right", "k string, w bigint").to("joins")
        .stream("nested").partition("k").sort("v", progressive=1).aligned(Count("n"), every=1).aligned(Count(), every=2).output()
        .build()
    )  # fmt: skip
    events = [at(ms, k="a", v=n) for n, ms in enumerate((0, 998, 999, 1000, 1999, 2500, 9000, 20_000))]
    return flow, {"s": events, "right": [at(1000, k="a", w=1), at(20_000, k="b")]}


def types_and_ways_that_meet() -> tuple[Flow, Any]:
    """Decimals beside other numbers, fields of structs that are not null beside others, a side of a join that comes along
    two ways, joins of open streams, names of the engine's."""
    each: dict[str, Any] = {"trigger": C(1), "evict": C(0)}
    flow = (
        Flow("meet", clock="processing")
        .stream("l", "k string, v bigint, p decimal(10,2), o struct<n: int not null>").to("j", "open", "all", "sums")
        .select("k").to("j")
        .stream("r", "k string, v bigint, p int, o struct<n: int>, event_id string, event_time timestamp")
        .to("j", "open", "all").output()
        .stream("j").partition("k").join("l", "r", C(5)).output()
        .stream("open").each(lambda event: {**event}).partition("k").join("l", "r", C(5))
        .filter(python(lambda event: isinstance(event["v"], list) or event["v"] > 0)).output()
        .stream("all").partition("p").aggregate(Count(), **each).output()
        .stream("sums").aggregate(Sum("p", "total"), **each).to("both")
        .stream("declared", "total decimal(20, 2), w double").to("both")
        .aggregate(Sum("w"), trigger=C(1), evict=C(1)).partition("sum").aggregate(Count(), **each).output()
        .stream("both").partition("total").aggregate(Count(), **each).output()
        .stream("capitals", "EVENT_ID string, v bigint").filter(lt("v", 2**63)).aggregate(Max("EVENT_ID"), **each).persist("ids")
        .build()
    )  # fmt: skip
    two, moment = decimal.Decimal("2.00"), datetime.datetime(2026, 1, 1, 12)
    lefts = [at(0, k="a", v=1, p=two, o={"n": 1}), at(1, k="b", v=2, p=two)]
    rights = [at(5, k="a", v=1, p=2), at(6, k="b", v=3)]
    script = {"l": lefts, "r": [{**right, "event_id": "own", "event_time": moment} for right in rights]}
    declared = [at(9, total=two), at(9, total=decimal.Decimal("4.00"), w=0.0), at(10, total=two)]
    return flow, {**script, "declared": declared, "capitals": [at(0, EVENT_ID="x", v=1), at(1, v=2)]}


def keys_with_both_zeros() -> tuple[Flow, Any]:
    each: dict[str, Any] = {"trigger": C(1), "evict": C(0)}
    kinds = {"one": "double", "several": "array<double>", "part": "struct<x: float>"}
    flow = Flow("zeros")
    for name, kind in kinds.items():
        flow.stream(name, f"k {kind}").partition("k").aggregate(Count(), **each).output()
    flow.stream("left", "k double, n bigint").to("both")
    flow.stream("right", "k double, m bigint").to("both")
    flow.stream("both").partition("k").join("left", "right", C(0)).output()
    keys: dict[str, list[Any]] = {
        "one": [0.0, -0.0],
        "several": [[0.0, -0.0], [0.0], [-0.0, 0.0], [-0.0]],
        "part": [{"x": -0.0}, {"x": 0.0}],
    }
    script = {name: [at(n, k=key) for n, key in enumerate(given)] for name, given in keys.items()}
    return flow.build(), {**script, "left": [at(0, k=0.0, n=1)], "right": [at(1, k=-0.0, m=2)]}


def lists_of_none() -> tuple[Flow, Any]:
    """A key without values is absent (Flowmix rules 1): it is not sent, and not counted, one by one and in arrays."""
    counts = Count(), Count("having", field="t"), DistinctCount("t", "different")
    flow = (
        Flow("none").stream("s", "t array<string>, v bigint").to("selected", "computed", "last", "spans", "keyed")
        .select("t", "v").output()
        .stream("selected").select("t").output()
        .stream("computed").compute({"t array<string>": "t"}).output()
        .stream("last").aggregate(*counts, trigger=C(1), evict=C(3)).output()
        .stream("spans").aligned(*counts, every=1).output()
        .stream("keyed").filter(has("t")).output()
        .build()
    )  # fmt: skip
    lists: list[Any] = [[], ["x"], [None], None, ["x", "y"], [], []]
    return flow, {"s": [*(at(n, t=given) for n, given in enumerate(lists)), at(9, t=[], v=1), at(3000, v=1)]}


CASES = [
    lists_of_none,
    split_by_every_kind_of_criteria,
    join_of_an_event_with_itself,
    collected_events_and_keys_of_several_values,
    several_of_one_and_criteria_on_lists,
    own_aggregator_then_ticks,
    values_beside_those_of_a_join,
    values_beside_declared_arrays,
    join_behind(computed),
    join_behind(made),
    types_and_ways_that_meet,
    join_behind(passed),
    join_behind(kept),
    python_among_other_criteria,
    join_behind_which_windows_stand,
    values_in_user_code_and_in_keys,
    aligned_behind_other_windows,
    keys_with_both_zeros,
]


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(one, marks=tier(one in CASES[2::8])) for one in CASES])
def test_the_bounded_run_agrees(spark: SparkSession, case: Any) -> None:
    flow, script = case()

    def shown(engine: Any) -> Any:
        found = run_flow(flow, script, engine=engine, clock="event", spark=spark)
        return {name: [(e.id, e.timestamp, dict(e)) for e in events] for name, events in found.items()}

    wanted = shown("reference")
    assert any(wanted.values())
    assert shown("batch") == wanted


@pytest.mark.slow
def test_a_predicate_that_fails_among_other_criteria_names_its_line_and_cause(spark: SparkSession) -> None:
    wrong = or_(eq("v", -1), python(lambda event: event["w"] > 1))
    flow = Flow("fails").stream("e", "v bigint, w bigint").filter(wrong).output().build()
    with pytest.raises(BatchError, match=r"filter or_\(eq\(v, -1\), python\).*failed on.*KeyError"):
        run_flow(flow, {"e": [at(0, v=1)]}, engine="batch", spark=spark)
