"""Flowmix rules 5.3: sorted windows. Each executed example is here; where the original is wrong, with the right answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.flowmix import Event, FlowStream
from pipelines.testing import TICK
from tests.conformance.flowmix_case import COUNT, DELTA, TIME, of, run, values

INPUT = [5, 3, 9, 1, 7, 2, 8, 6, 4, 10]


def sort(*fields: str, by: tuple[str, ...] = (), **options: Any) -> Callable[[FlowStream], FlowStream]:
    return lambda stream: stream.partition(*by).sort(*fields, **options)


def at_times(found: list[Event]) -> dict[int, list[int]]:
    """The values by the clock at which they came out."""
    clocks: dict[int, list[int]] = {}
    for event in found:
        clocks.setdefault(event.timestamp, []).append(event["v"])
    return clocks


@pytest.mark.parametrize(
    ("field", "right"),
    [("v", [1, 2, 3]), ("v desc", [10, 9, 8])],
)
def test_5_3_run_top_3_of_10(field: str, right: list[int]) -> None:
    """BUG 5.3.6: the original gives 1, 2, 10 and 10, 9, 8: the newest always gets in."""
    assert of(run(sort(field, top_n=3, trigger=COUNT(10)), values(INPUT)), "v") == right


def test_5_3_run_top_3_of_falling_numbers() -> None:
    """BUG 5.3.6: the original gives 10, 9, 1."""
    assert of(run(sort("v desc", top_n=3, trigger=COUNT(10)), values(range(10, 0, -1))), "v") == [10, 9, 8]


@pytest.mark.parametrize(("field", "right"), [("v", [1, 2, 3]), ("v desc", [10, 9, 8])])
def test_5_3_run_top_3_with_flush(field: str, right: list[int]) -> None:
    """BUG 5.3.6: the original keeps the first two arrivals and the newest: 3, 5, 10 and 10, 5, 3."""
    assert of(run(sort(field, top_n=3, trigger=COUNT(10), flush=True), values(INPUT)), "v") == right


def test_5_3_flush_begins_anew() -> None:
    flushed = run(sort("v", top_n=2, trigger=COUNT(3), flush=True), values([1, 2, 3, 9, 8, 7]))
    assert of(flushed, "v") == [1, 2, 7, 8]
    kept = run(sort("v", top_n=2, trigger=COUNT(3)), values([1, 2, 3, 9, 8, 7]))
    assert of(kept, "v") == [1, 2, 1, 2]


def test_5_3_run_progressive_3() -> None:
    assert of(run(sort("v", progressive=3), values(INPUT)), "v") == [5, 3, 5, 9, 5, 7, 3, 8, 6, 4, 10]


def test_5_3_4_below_n_the_whole_window_is_emitted_then_the_last() -> None:
    found = run(sort("v", progressive=3), [entry for v in INPUT for entry in (TICK, {"v": v, "k": str(v)})])
    assert len(found) == 11
    assert of(run(sort("v", progressive=3), values([5])), "v") == [5]
    assert of(run(sort("v", progressive=3), values([5, 3])), "v") == [5, 3, 5]
    assert of(run(sort("v desc", progressive=3), values(INPUT)), "v") == [5, 5, 3, 3, 1, 5, 2, 7, 6, 4, 8]


def test_5_3_run_tumbling_count_4() -> None:
    assert of(run(sort("v", tumbling=COUNT(4)), values(INPUT)), "v") == [1, 3, 5, 9, 2, 6, 7, 8]


def test_5_3_run_tumbling_time_2_a_tick_after_each_event() -> None:
    script = [entry for v in INPUT for entry in ({"v": v}, TICK)]
    found = of(run(sort("v", tumbling=TIME(2)), script), "v")
    assert [found[i : i + 2] for i in range(0, 10, 2)] == [[3, 5], [1, 9], [2, 7], [6, 8], [4, 10]]


def test_5_3_run_tumbling_time_delta_lt_100() -> None:
    found = of(run(sort("v", tumbling=DELTA(100)), values(INPUT)), "v")
    assert [found[i : i + 2] for i in range(0, 10, 2)] == [[3, 5], [1, 9], [2, 7], [6, 8], [4, 10]]


def test_5_3_1_tumbling_is_stable() -> None:
    script = [{"v": 1, "k": "b"}, {"v": 0, "k": "x"}, {"v": 1, "k": "a"}, {"v": 1, "k": "c"}]
    assert of(run(sort("v", tumbling=COUNT(4)), script), "k") == ["x", "b", "a", "c"]


def test_5_3_3_time_delta_lt_looks_at_the_first_and_the_last_arrival() -> None:
    script = [{"v": 2}, *[TICK] * 5, {"v": 1}, TICK, {"v": 3}]
    assert of(run(sort("v", tumbling=DELTA(5)), script), "v") == [1, 2]
    assert run(sort("v", tumbling=DELTA(4)), script) == []


def test_5_3_5_several_fields_each_with_its_direction() -> None:
    script = [{"k": k, "v": v} for k, v in (("b", 1), ("a", 1), ("a", 2), ("b", 2))]
    found = run(sort("k", "v desc", tumbling=COUNT(4)), script)
    assert [(e["k"], e["v"]) for e in found] == [("a", 2), ("a", 1), ("b", 2), ("b", 1)]


def test_5_3_5_absent_fields_come_last_and_mixed_types_have_an_order() -> None:
    """BUG: the original fails once two such events meet."""
    script = [{"k": "none"}, {"v": 2}, {"v": 1}]
    assert of(run(sort("v", tumbling=COUNT(3)), script), "v") == [1, 2, None]
    assert of(run(sort("v desc", tumbling=COUNT(3)), script), "v") == [2, 1, None]

    def mixed(stream: FlowStream) -> FlowStream:
        return stream.each(lambda e: {"v": ["b", 2, "a", 1.5][e["v"]]}).sort("v", tumbling=COUNT(4))

    assert sorted(map(str, of(run(mixed, values(range(4))), "v"))) == ["1.5", "2", "a", "b"]


def test_5_3_7_every_key_keeps_its_window() -> None:
    """BUG: a new key replaces all windows of the original: a2, b9, a1 give nothing."""
    script = [{"k": "a", "v": 2}, {"k": "b", "v": 9}, {"k": "a", "v": 1}]
    assert run(sort("v", by=("k",), tumbling=COUNT(2)), script) == [{"k": "a", "v": 1}, {"k": "a", "v": 2}]


def test_5_3_events_come_out_as_they_went_in() -> None:
    script = [{"v": 2, "k": "x", "id": "two"}, TICK, {"v": 1, "id": "one"}]
    found = run(sort("v", tumbling=COUNT(2)), script)
    assert [(e.id, e.timestamp, dict(e)) for e in found] == [
        ("one", 1000, {"v": 1}),
        ("two", 0, {"v": 2, "k": "x"}),
    ]


# SortBoltIT (rules 8).


@pytest.mark.parametrize("direction", ["", " desc"])
def test_8_sort_bolt_it_tumbling_25_never_falls_or_never_rises(direction: str) -> None:
    numbers = [(n * 7) % 10 for n in range(40)]
    found = of(run(sort(f"v{direction}", tumbling=COUNT(25)), values(numbers)), "v")
    assert found == sorted(numbers[:25], reverse=bool(direction))


@pytest.mark.parametrize("direction", ["", " desc"])
def test_8_sort_bolt_it_top_10_every_5_seconds(direction: str) -> None:
    numbers = [(n * 7) % 10 for n in range(100)]
    script = [*values(numbers), *[TICK] * 5]
    found = of(run(sort(f"v{direction}", top_n=10, trigger=TIME(5)), script), "v")
    assert found == sorted(numbers, reverse=bool(direction))[:10]
