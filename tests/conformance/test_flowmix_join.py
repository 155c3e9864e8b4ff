"""Flowmix rules 4, join: each event of the right stream with every stored one of the left."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.flowmix import Count, Event, Flow, eq
from pipelines.testing import TICK, run_flow
from tests.conformance.flowmix_case import COUNT, DELTA, TIME

LEFT, RIGHT = "k string, l bigint, both string", "k string, r bigint, both string"


def join(left: list[Any], right: list[Any], evict: Any, by: tuple[str, ...] = ()) -> list[Event]:
    flow = (
        Flow("f")
        .stream("left", LEFT).to("j")
        .stream("right", RIGHT).to("j")
        .stream("j").partition(*by).join("left", "right", evict).output()
        .build()
    )  # fmt: skip
    return run_flow(flow, {"left": left, "right": right}, clock="processing")["j"]


def test_4_join_run_three_left_evict_count_2_then_right() -> None:
    found = join([{"l": 1}, {"l": 2}, {"l": 3}], [{"r": 9}], COUNT(2))
    assert found == [{"l": 2, "r": 9}, {"l": 3, "r": 9}]


def test_4_join_every_right_is_joined_with_every_stored_left() -> None:
    found = join([{"l": 1}, {"l": 2}], [{"r": 8}, {"r": 9}], COUNT(9))
    assert [(e["l"], e["r"]) for e in found] == [(1, 8), (2, 8), (1, 9), (2, 9)]


def test_4_join_a_right_before_its_left_is_dropped() -> None:
    assert join([TICK, {"l": 1}], [{"r": 9}], COUNT(9)) == []


def test_4_join_id_and_time_are_those_of_the_left() -> None:
    found = join([{"l": 1, "id": "left"}], [TICK, {"r": 9, "id": "right"}], COUNT(9))
    assert [(e.id, e.timestamp, e.stream) for e in found] == [("left", 0, "left")]


def test_4_join_equal_values_merge_and_different_ones_stand_side_by_side() -> None:
    found = join([{"both": "x", "l": 1}, {"both": "y", "l": 2}, {"l": 3}], [{"both": "x", "r": 9}], COUNT(9))
    assert [e["both"] for e in found] == ["x", ["x", "y"], "x"]


def test_4_join_time_evicts_at_ticks_and_when_a_left_event_comes() -> None:
    assert join([{"l": 1}], [TICK, TICK, {"r": 9}], TIME(3)) == [{"l": 1, "r": 9}]
    assert join([{"l": 1}], [TICK, TICK, TICK, {"r": 9}], TIME(3)) == []
    flow = (
        Flow("f").stream("left", LEFT).to("j").stream("right", RIGHT).to("j")
        .stream("j").join("left", "right", TIME(1)).output().build()
    )  # fmt: skip
    for later, number in ((1499, 1), (1500, 1), (1999, 1), (2000, 0)):
        script = {"left": [{"l": 1, "timestamp": 500}], "right": [{"r": 9, "timestamp": later}]}
        assert len(run_flow(flow, script)["j"]) == number
    lefts = [{"l": at, "timestamp": at} for at in (500, 1500)]
    assert [e["l"] for e in run_flow(flow, {"left": lefts, "right": [{"r": 9, "timestamp": 1600}]})["j"]] == [1500]


def test_4_join_time_delta_lt_behaves_as_count() -> None:
    assert join([{"l": 1}, {"l": 2}, {"l": 3}], [{"r": 9}], DELTA(2)) == [{"l": 2, "r": 9}, {"l": 3, "r": 9}]


def test_4_join_works_for_every_key() -> None:
    """BUG: the original fails on the second key."""
    left = [{"k": k, "l": n} for n, k in enumerate("abc")]
    right = [{"k": k, "r": n} for n, k in enumerate("cba")]
    assert join(left, right, COUNT(9), ("k",)) == [
        {"k": "c", "l": 2, "r": 0},
        {"k": "b", "l": 1, "r": 1},
        {"k": "a", "l": 0, "r": 2},
    ]


def test_4_join_of_one_event_along_two_ways() -> None:
    """The stream that is defined first comes first, at the same clock."""
    flow = (
        Flow("f")
        .stream("s", "v bigint").split(all=["l", "r"])
        .stream("l").to("j")
        .stream("r").to("j")
        .stream("j").join("l", "r", COUNT(1)).output()
        .build()
    )  # fmt: skip
    found = run_flow(flow, {"s": [{"v": 1}, {"v": 2}]})["j"]
    assert [(e.id, e["v"]) for e in found] == [("s-0", 1), ("s-1", 2)]


def test_4_join_with_the_streams_own_source_and_again() -> None:
    flow = (
        Flow("f")
        .stream("l", "a bigint").to("j")
        .stream("j", "b bigint").join("l", "j", COUNT(9)).to("k")
        .stream("m", "c bigint").to("k")
        .stream("k").join("j", "m", COUNT(9)).aggregate(Count(), trigger=COUNT(1), evict=COUNT(9)).output()
        .build()
    )  # fmt: skip
    script = {"l": [{"a": 1}], "j": [TICK, {"b": 2}], "m": [TICK, TICK, {"c": 3}]}
    assert run_flow(flow, script, clock="processing") == {"k": [{"count": 1}]}


def test_4_join_fields_of_both_sides_are_arrays_for_spark() -> None:
    flow = (
        Flow("f").stream("left", LEFT).to("j").stream("right", RIGHT).to("j")
        .stream("j").partition("k").join("left", "right", TIME(1)).output().build()
    )  # fmt: skip
    schema = flow.streams["j"].schema_at(-1)
    assert schema == {"k": "string", "l": "bigint", "both": "array<string>", "r": "bigint"}


# JoinBoltIT (rules 8): two streams tag the mock event with their names.

MOCK = {f"key{n}": f"val{n}" for n in range(1, 6)}


@pytest.mark.parametrize(("evict", "number"), [(TIME(5), 15), (COUNT(1), 5)])
def test_8_join_bolt_it(evict: Any, number: int) -> None:
    schema = ", ".join(f"{key} string" for key in MOCK)

    def tag(name: str) -> Any:
        return lambda event: {**event, "stream": name}

    flow = (
        Flow("f")
        .stream("stream1", schema).each(tag("stream1"), f"{schema}, stream string").to("stream3")
        .stream("stream2", schema).each(tag("stream2"), f"{schema}, stream string").to("stream3")
        .stream("stream3").join("stream1", "stream2", evict).filter(eq("key1", "val1")).output()
        .build()
    )  # fmt: skip
    script = [entry for _ in range(5) for entry in (MOCK, TICK)]
    found = run_flow(flow, {"stream1": script, "stream2": script}, clock="processing")["stream3"]
    assert len(found) == number
    assert all(e.values_of("stream") == ["stream1", "stream2"] for e in found)
    assert all(e.values_of(key) == [value] for e in found for key, value in MOCK.items())
