"""Flowmix rules 3 and 4: routing, and the operators that keep no window; and 1: what an event is."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.errors import FieldError, FlowError, FunctionError, GateError
from pipelines.flowmix import Count, Event, Flow, FlowStream, Sum, eq, gt, has, python
from pipelines.quality import drop, fail
from pipelines.testing import TICK, run_flow
from tests.conformance.flowmix_case import COUNT, DELTA, TIME, of, run, values

# 1. Model


def test_1_a_script_gives_ids_and_times() -> None:
    flow = Flow("f").stream("s", "v bigint").output().build()
    script = [{"v": 1}, TICK, {"v": 2, "id": "x", "timestamp": 7}]
    found = run_flow(flow, {"s": script}, clock="processing")["s"]
    assert [(e.id, e.timestamp, e.stream) for e in found] == [("s-0", 0, "s"), ("x", 7, "s")]
    assert found == [{"v": 1}, {"v": 2, "id": "x", "timestamp": 7}]


def test_1_fields_named_id_and_timestamp_are_the_events() -> None:
    flow = Flow("f").stream("s", "id string, timestamp bigint, v bigint").output().build()
    found = run_flow(flow, {"s": [{"id": "a", "timestamp": 5, "v": 1}]})["s"]
    assert [(e.id, e.timestamp, dict(e)) for e in found] == [("a", 5, {"id": "a", "timestamp": 5, "v": 1})]


def test_1_id_and_timestamp_may_be_other_fields() -> None:
    flow = Flow("f").stream("s", "key string, at timestamp, v bigint", id="key", timestamp="at").output().build()
    import datetime

    at = datetime.datetime(1970, 1, 1, 0, 0, 3, 500_000)
    found = run_flow(flow, {"s": [{"key": "a", "at": at, "v": 1}]})["s"]
    assert [(e.id, e.timestamp) for e in found] == [("a", 3500)]


@pytest.mark.slow
def test_1_id_and_timestamp_may_be_sql(spark: SparkSession) -> None:
    flow = (
        Flow("f")
        .stream("s", "a string, b string, sec bigint", id="concat(a, b)", timestamp="sec * 1000")
        .output()
        .build()
    )
    found = run_flow(flow, {"s": [{"a": "x", "b": "y", "sec": 3}]}, spark=spark)["s"]
    assert [(e.id, e.timestamp) for e in found] == [("xy", 3000)]


def test_1_event_time_takes_events_in_the_order_of_their_times() -> None:
    script = [{"v": 3, "timestamp": 3000}, {"v": 1, "timestamp": 1000}, {"v": 2, "timestamp": 2000}]
    flow = Flow("f").stream("s", "v bigint").aggregate(Sum("v"), trigger=COUNT(2), evict=COUNT(9)).output().build()
    assert run_flow(flow, {"s": script}) == {"s": [{"sum": 3, "timestamp": 2000}]}
    found = run_flow(flow, {"s": script}, clock="processing")["s"]
    assert [(e["sum"], e.timestamp) for e in found] == [(4, 0)]


def test_1_the_script_is_checked() -> None:
    flow = Flow("f").stream("s", "v bigint").to("t").stream("t").output().build()
    with pytest.raises(FlowError, match="did you mean"):
        run_flow(flow, {"ss": []})
    with pytest.raises(FlowError, match="with a source"):
        run_flow(flow, {"t": []})
    with pytest.raises(FieldError):
        run_flow(flow, {"s": [{"w": 1}]})
    with pytest.raises(FlowError, match="built"):
        run_flow(Flow("f"), {})
    with pytest.raises(FlowError, match="built"):
        run_flow(Flow("f").stream("s", "v bigint").output(), {})  # type: ignore[arg-type]
    assert run_flow(flow, {}) == {"t": []}


# 3. Routing


def test_3_1_every_stream_with_an_input_gets_its_events_told_by_its_name() -> None:
    origin = python(lambda event: event.stream in ("a", "b"))
    flow = (
        Flow("f")
        .stream("a", "v bigint")
        .filter(origin)
        .output()
        .stream("b", "v bigint")
        .filter(origin)
        .output()
        .build()
    )
    assert run_flow(flow, {"a": values([1]), "b": values([2])}) == {"a": [{"v": 1}], "b": [{"v": 2}]}


def test_3_2_others_get_what_has_come_so_far_told_by_the_sender() -> None:
    seen: list[str] = []

    def note(event: Event) -> Event:
        seen.append(event.stream)
        return event

    flow = (
        Flow("f")
        .stream("a", "k string, v bigint").filter(gt("v", 1)).select("v").to("b").output()
        .stream("b").each(note).output()
        .build()
    )  # fmt: skip
    assert run_flow(flow, {"a": [{"k": "x", "v": 1}, {"k": "x", "v": 2}]}) == {"a": [{"v": 2}], "b": [{"v": 2}]}
    assert seen == ["a"]


def test_3_2_an_event_may_go_on_after_to_persist_and_output() -> None:
    flow = (
        Flow("f")
        .stream("a", "v bigint").to("b").persist("early").filter(gt("v", 1)).output().filter(gt("v", 2)).persist("late")
        .stream("b").output()
        .build()
    )  # fmt: skip
    found = run_flow(flow, {"a": values([1, 2, 3])})
    assert {name: of(events, "v") for name, events in found.items()} == {
        "a": [2, 3], "b": [1, 2, 3], "early": [1, 2, 3], "late": [3],
    }  # fmt: skip


def test_3_2_a_result_of_a_window_reaches_the_next_stream_at_its_clock() -> None:
    flow = (
        Flow("f")
        .stream("a", "v bigint").aggregate(Count(), trigger=TIME(2), evict=COUNT(9), clear_on_trigger=True).to("b")
        .stream("b").aggregate(Sum("count", "total"), trigger=COUNT(2), evict=COUNT(9)).output()
        .build()
    )  # fmt: skip
    found = run_flow(flow, {"a": [*values([1, 2]), TICK, TICK, *values([3]), TICK, TICK]}, clock="processing")["b"]
    assert [(e["total"], e.timestamp, e.stream) for e in found] == [(3, 4000, "b")]


def test_3_2_the_same_operation_any_number_of_times() -> None:
    def write(stream: FlowStream) -> FlowStream:
        policies = {"trigger": COUNT(2), "evict": COUNT(2)}
        return stream.aggregate(Sum("v", "v"), **policies).filter(gt("v", 1)).aggregate(Sum("v"), **policies)

    assert run(write, values(range(1, 9))) == [{"sum": 3 + 7}, {"sum": 11 + 15}]


# 4. Operators


def test_4_filter_keeps_what_it_accepts() -> None:
    assert of(run(lambda s: s.filter(gt("v", 2)), values(range(5))), "v") == [3, 4]
    assert of(run(lambda s: s.filter(python(lambda event: True)), values(range(3))), "v") == [0, 1, 2]


def test_4_filter_by_sql_and_by_columns(spark: SparkSession) -> None:
    assert of(run(lambda s: s.filter("v > 2 and k is null"), values(range(5))), "v") == [3, 4]
    assert of(run(lambda s: s.filter(lambda v: v % 2 == 1), values(range(5))), "v") == [1, 3]
    open_stream = run(lambda s: s.each(lambda event: {"w": event["v"]}).filter("w > 2"), values(range(5)))
    assert of(open_stream, "w") == [3, 4]
    assert of(
        run(lambda s: s.filter("array_contains(many, 'b')"), [{"many": ["a", "b"]}, {"many": "b"}, {}]), "many"
    ) == [
        ["a", "b"],
        ["b"],
    ]


def test_4_select_keeps_id_time_and_the_listed_fields() -> None:
    found = run(lambda s: s.select("k", "v"), [{"id": "x", "k": "a", "j": "b", "v": 1}, TICK, {"j": "b", "v": 2}])
    assert [(e.id, e.timestamp, dict(e)) for e in found] == [("x", 0, {"k": "a", "v": 1}), ("s-1", 1000, {"v": 2})]


def test_4_select_sends_nothing_if_none_of_the_fields_is_there() -> None:
    assert run(lambda s: s.select("k"), values(range(5))) == []


def test_4_select_takes_a_list_of_none_for_absent() -> None:
    flow = Flow("f").stream("s", "t array<string>, v bigint").select("t").output().build()
    script = [{"t": []}, {"t": ["x"]}, {"v": 1, "t": []}, {"v": 1}]
    assert run_flow(flow, {"s": script})["s"] == [{"t": ["x"]}]


def test_4_select_sends_the_selection_to_other_streams_too() -> None:
    """BUG: the original sends the whole event to other streams, even if nothing was selected."""
    flow = Flow("f").stream("s1", "a bigint, b bigint").select("a").to("s2").output().stream("s2").output().build()
    assert run_flow(flow, {"s1": [{"a": 1, "b": 2}, {"b": 3}]}) == {"s1": [{"a": 1}], "s2": [{"a": 1}]}


def test_4_each_gives_none_one_or_several() -> None:
    def repeat(event: Event) -> Any:
        given: list[Any] = [None, {"v": 10}, event, [], [{"v": 4}, event]]
        return given[event["v"]]

    found = run(lambda s: s.each(repeat), values(range(5)))
    assert [(e.id, e["v"]) for e in found] == [("s-1", 10), ("s-2", 2), ("s-4", 4), ("s-4", 4)]


def test_4_each_may_make_an_event_of_its_own() -> None:
    found = run(lambda s: s.each(lambda e: Event({"w": 1}, "mine", 99)), values([1]))
    assert [(e.id, e.timestamp, dict(e)) for e in found] == [("mine", 99, {"w": 1})]


def test_4_each_says_what_it_may_not_give() -> None:
    with pytest.raises(FunctionError, match="gives 5"):
        run(lambda s: s.each(lambda event: 5), values([1]))
    with pytest.raises(FunctionError, match="its schema has: w"):
        run(lambda s: s.each(lambda event: {"x": 1}, "w bigint"), values([1]))


def keys(events: list[dict[str, Any]], *fields: str) -> list[int]:
    """How many events of its key each event is."""
    return of(run(lambda s: s.partition(*fields).aggregate(Count(), trigger=COUNT(1), evict=COUNT(9)), events), "count")


def test_4_partition_several_values_are_one_key_in_any_order() -> None:
    assert keys([{"many": ["a", "b"]}, {"many": ["b", "a", "b"]}, {"many": ["a"]}], "many") == [1, 2, 1]
    assert keys([{"many": "a"}, {"many": ["a"]}], "many") == [1, 2]


def test_4_partition_values_do_not_run_together() -> None:
    """BUG-like: the original joins the texts without a separator, so that these were one key."""
    assert keys([{"many": ["a", "bc"]}, {"many": ["ab", "c"]}, {"many": "abc"}], "many") == [1, 1, 1]
    assert keys([{"k": "a|j", "j": "b"}, {"k": "a", "j": "|jb"}], "k", "j") == [1, 1]


def test_4_partition_an_absent_field_is_a_key() -> None:
    assert keys([{"v": 1}, {"k": "a"}, {"v": 2}], "k") == [1, 1, 2]
    assert keys([{"k": ""}, {"v": 2}], "k") == [1, 1]


def test_4_partition_without_fields_is_one_window() -> None:
    assert keys([{"k": "a"}, {"k": "b"}, {"v": 2}]) == [1, 2, 3]


def test_4_partition_is_the_key_of_all_that_follows_until_the_next() -> None:
    def write(stream: FlowStream) -> FlowStream:
        every = {"trigger": COUNT(1), "evict": COUNT(9)}
        return (
            stream.partition("k").filter(has("k")).aggregate(Count(), **every).partition().aggregate(Count(), **every)
        )

    assert run(write, [{"k": "a"}, {"k": "b"}]) == [{"count": 1}, {"count": 2}]


def test_1_collect_gives_the_windows_events_as_one() -> None:
    """README promised it and nobody built it."""

    def collect(**options: Any) -> Any:
        return lambda stream: stream.partition("k").collect(**options)

    script = [{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "a", "v": 3}, {"k": "a", "v": 4}]
    found = run(collect(trigger=COUNT(3), evict=COUNT(2)), script)
    assert found == [{"k": "a", "events": [{"k": "a", "v": 3}, {"k": "a", "v": 4}]}]
    found = run(collect(trigger=TIME(1), evict=COUNT(9), clear_on_trigger=True, field="all"), [*script, TICK])
    assert [(e["k"], len(e["all"])) for e in found] == [("a", 3), ("b", 1)]


def test_4_split_is_not_exclusive() -> None:
    flow = (
        Flow("f")
        .stream("s", "v bigint").split(default=gt("v", 2), paths={"a": gt("v", 1), "b": gt("v", 0)}, all="c").output()
        .stream("a").output()
        .stream("b").output()
        .stream("c").output()
        .build()
    )  # fmt: skip
    found = run_flow(flow, {"s": values(range(4))})
    assert {name: of(events, "v") for name, events in found.items()} == {
        "s": [3], "a": [2, 3], "b": [1, 2, 3], "c": [0, 1, 2, 3],
    }  # fmt: skip


def test_4_split_without_a_default_sends_along_its_paths_only() -> None:
    flow = Flow("f").stream("s", "v bigint").split(paths={"a": gt("v", 1)}).output().stream("a").output().build()
    assert run_flow(flow, {"s": values(range(3))}) == {"s": [], "a": [{"v": 2}]}


def test_4_split_by_sql(spark: SparkSession) -> None:
    flow = (
        Flow("f")
        .stream("s", "v bigint").split(default="v < 1", paths={"a": "v > 1", "b": lambda v: v == 1}).output()
        .stream("a").output()
        .stream("b").output()
        .build()
    )  # fmt: skip
    found = run_flow(flow, {"s": values(range(3))}, spark=spark)
    assert {name: of(events, "v") for name, events in found.items()} == {"s": [0], "a": [2], "b": [1]}


def test_gate_drops_rows_or_refuses_all(spark: SparkSession) -> None:
    def gated(check: Any) -> Flow:
        return Flow("f").stream("s", "k string, v bigint").gate(check).output().build()

    script = {"s": [{"k": "a", "v": 1}, {"v": 2}, {"k": "a", "v": 1}]}
    found = run_flow(gated(drop("column_values_to_not_be_null", column="k")), script, spark=spark)["s"]
    assert [e.id for e in found] == ["s-0", "s-2"]
    with pytest.raises(GateError):
        run_flow(gated(fail("column_values_to_not_be_null", column="k")), script, spark=spark)


# FilterBoltIT, SelectorBoltIT (rules 8) and the examples of rules 7: one mock event key1 .. key5 = val1 .. val5.

MOCK = {f"key{n}": f"val{n}" for n in range(1, 6)}
MOCK_SCHEMA = ", ".join(f"{key} string" for key in MOCK)


def mock(name: str = "stream1") -> FlowStream:
    return Flow("f").stream(name, MOCK_SCHEMA)


def test_8_filter_bolt_it() -> None:
    for value, passes in (("val50", 0), ("val3", 9)):
        flow = mock().filter(eq("key3", value)).output().build()
        assert len(run_flow(flow, {"stream1": [MOCK] * 9})["stream1"]) == passes


def test_8_selector_bolt_it() -> None:
    flow = mock().select("key1", "key2").output().build()
    assert run_flow(flow, {"stream1": [MOCK] * 3}) == {"stream1": [{"key1": "val1", "key2": "val2"}] * 3}
    with pytest.raises(FieldError):  # the original finds nothing at run time
        mock().select("key7")


def test_7_example_split() -> None:
    flow = (
        mock().split(default=eq("key1", "val1"), paths={"stream3": eq("key2", "val2")}, all=["stream2"]).output()
        .stream("stream2").output()
        .stream("stream3").output()
        .build()
    )  # fmt: skip
    found = run_flow(flow, {"stream1": [MOCK, {"key1": "other"}]})
    assert {name: len(events) for name, events in found.items()} == {"stream1": 1, "stream2": 2, "stream3": 1}


def test_7_example_stream_bridge() -> None:
    flow = (
        mock().filter(eq("key1", "val1")).to("stream2")
        .stream("stream2").filter(eq("key4", "val4")).select("key4").output()
        .build()
    )  # fmt: skip
    assert run_flow(flow, {"stream1": [MOCK]}) == {"stream2": [{"key4": "val4"}]}


def test_7_example_aggregator() -> None:
    """Broken in the original: its field was never named."""
    flow = (
        mock().select("key3").partition("key3")
        .aggregate(Count(), trigger=TIME(5), evict=COUNT(50_000), clear_on_trigger=True).output().build()
    )  # fmt: skip
    script = [entry for _ in range(10) for entry in (*[MOCK] * 100, TICK)]
    found = run_flow(flow, {"stream1": script}, clock="processing")["stream1"]
    assert found == [{"key3": "val3", "count": 500}, {"key3": "val3", "count": 500}]


def test_7_example_switch() -> None:
    flow = (
        mock().filter(eq("key3", "val3")).select("key3")
        .switch(open=DELTA(1000), evict=COUNT(5), close=TIME(5)).output().build()
    )  # fmt: skip
    script = [entry for n in range(17) for entry in ({**MOCK, "id": str(n)}, TICK)]
    found = run_flow(flow, {"stream1": script}, clock="processing")["stream1"]
    assert [event.id for event in found] == ["0", "1", "2", "3", "4", "11", "12", "13", "14", "15"]
    assert found[0] == {"key3": "val3"}


def test_7_example_sort() -> None:
    flow = (
        Flow("f").stream("s", "key1 string, n bigint").partition("key1").sort("n", tumbling=COUNT(500)).output().build()
    )
    found = run_flow(flow, {"s": [{"key1": "val1", "n": n} for n in range(50_000, 49_000, -1)]})["s"]
    assert of(found, "n") == [*range(49_501, 50_001), *range(49_001, 49_501)]
