"""Laws that every flow keeps on the reference engine, whatever the events."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipelines.flowmix import Count, Event, Flow, FlowStream, Policy, Sum, eq, gt, python
from pipelines.testing import TICK, run_flow

SCHEMA = "k string, v bigint"

fields = st.fixed_dictionaries({}, optional={"k": st.sampled_from("ab"), "v": st.integers(-3, 9)})
entries = st.lists(st.one_of(fields, st.just(TICK)), max_size=25)
policies = st.one_of(
    st.integers(0, 4).map(Policy.count), st.integers(0, 4).map(Policy.time), st.integers(0, 4).map(Policy.time_delta_lt)
)


def windows(kind: str, trigger: Policy, evict: Policy) -> Any:
    def write(stream: FlowStream) -> FlowStream:
        stream = stream.partition("k")
        if kind == "aggregate":
            return stream.aggregate(Count("v"), Sum("v", "total"), trigger=trigger, evict=evict, clear_on_trigger=True)
        if kind == "sort":
            return stream.sort("v", tumbling=trigger)
        if kind == "top":
            return stream.sort("v desc", top_n=2, trigger=trigger)
        if kind == "progressive":
            return stream.sort("v", progressive=2)
        return stream.switch(open=trigger, evict=evict, close=Policy.time(1))

    return write


kinds = st.builds(windows, st.sampled_from(["aggregate", "sort", "top", "progressive", "switch"]), policies, policies)


def shown(events: list[Event]) -> list[Any]:
    return [(event.id, event.timestamp, dict(event)) for event in events]


@given(entries, kinds, kinds)
def test_a_chain_is_the_same_in_one_stream_or_in_several(script: list[Any], first: Any, second: Any) -> None:
    """Only the ids of results differ: they name the stream that made them."""

    def second_of(stream: FlowStream) -> FlowStream:
        return second(stream.filter(python(lambda event: event.get("v", 1) != 2)).partition("k"))

    def typed(stream: FlowStream) -> FlowStream:
        return stream.each(dict, SCHEMA + ", total bigint")

    one = second_of(typed(first(Flow("f").stream("s", SCHEMA)))).output().build()
    two = second_of(typed(first(Flow("f").stream("s", SCHEMA))).to("t").stream("t")).output().build()
    here = run_flow(one, {"s": script}, clock="processing")["s"]
    there = run_flow(two, {"s": script}, clock="processing")["t"]
    assert [(event.timestamp, dict(event)) for event in here] == [(event.timestamp, dict(event)) for event in there]


@given(entries, kinds)
def test_processing_time_is_event_time_where_events_come_at_their_time(script: list[Any], write: Any) -> None:
    flow = write(Flow("f").stream("s", SCHEMA)).output().build()
    timed, now = [], 0
    for entry in script:
        now += 1000 if entry == TICK else 0
        timed.append(entry if entry == TICK else {**entry, "timestamp": now})
    assert shown(run_flow(flow, {"s": timed})["s"]) == shown(run_flow(flow, {"s": script}, clock="processing")["s"])


@given(entries, kinds)
def test_every_key_is_as_if_it_were_alone(script: list[Any], write: Any) -> None:
    flow = write(Flow("f").stream("s", SCHEMA)).output().build()
    together = run_flow(
        flow, {"s": [entry if entry == TICK else {"id": str(n), **entry} for n, entry in enumerate(script)]}
    )
    for key in ("a", "b", None):
        alone = [
            entry if entry == TICK else {"id": str(n), **entry}
            for n, entry in enumerate(script)
            if entry == TICK or entry.get("k") == key
        ]
        mine = [event for event in together["s"] if event.get("k") == key]
        assert shown(run_flow(flow, {"s": alone})["s"]) == shown(mine)


@given(entries)
def test_a_split_by_a_condition_and_its_contrary_loses_nothing(script: list[Any]) -> None:
    big = gt("v", 3)
    flow = (
        Flow("f").stream("s", SCHEMA).output()
        .split(paths={"big": big, "small": python(lambda event: not big.matches(event))}, all="every")
        .stream("big").output().to("joined")
        .stream("small").output().to("joined")
        .stream("every").output()
        .stream("joined").output()
        .build()
    )  # fmt: skip
    found = {name: shown(events) for name, events in run_flow(flow, {"s": script}).items()}
    assert found["every"] == found["joined"] == found["s"]
    assert sorted(map(str, found["big"] + found["small"])) == sorted(map(str, found["s"]))


@given(entries)
def test_filters_may_change_places_and_a_selection_keeps_what_they_see(script: list[Any]) -> None:
    def run(write: Any) -> list[Any]:
        return shown(run_flow(write(Flow("f").stream("s", SCHEMA)).output().build(), {"s": script})["s"])

    one = run(lambda s: s.filter(eq("k", "a")).filter(gt("v", 1)))
    assert one == run(lambda s: s.filter(gt("v", 1)).filter(eq("k", "a")))
    assert one == run(lambda s: s.select("k", "v").filter(gt("v", 1)).filter(eq("k", "a")))


@given(st.lists(fields, max_size=12), st.randoms())
def test_in_event_time_the_order_of_arrival_does_not_matter(events: list[Any], random: Any) -> None:
    script = [{"id": str(n), "timestamp": n * 700, **event} for n, event in enumerate(events)]
    mixed = random.sample(script, len(script))
    flow = (
        Flow("f").stream("s", SCHEMA).partition("k").aggregate(Sum("v"), trigger=Policy.count(2), evict=Policy.time(2))
        .output().build()
    )  # fmt: skip
    assert shown(run_flow(flow, {"s": script})["s"]) == shown(run_flow(flow, {"s": mixed})["s"])
