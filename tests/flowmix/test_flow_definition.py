"""A built flow as the engines read it: fields and types along the streams, ways between them, orders, contexts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.errors import DuplicateFieldError, FieldError, FlowError, FunctionError
from pipelines.flowmix import AssocCount, Average, Count, Event, Flow, Policy, Sum, eq, has
from pipelines.flowmix.compile import topology_of
from pipelines.flowmix.definition import Feed
from pipelines.flowmix.each import made_of
from pipelines.flowmix.flow import window_context
from pipelines.flowmix.operations import Each, Stateful, sent_order, several_order, source_order
from pipelines.flowmix.schemas import common, several_fields
from pipelines.graph.nodes import ChannelSpoutNode, CodeLocation
from pipelines.quality import drop
from pipelines.sources import FixedBatches
from pipelines.testing import run_flow

FIVE = Policy.count(5)
TIMED = FixedBatches("v bigint, at timestamp", [])


def flow() -> Flow:
    return (
        Flow("f")
        .stream("a", "k string, v int, many array<string>")
        .filter("v > 1")
        .select("v", "k")
        .partition("k")
        .aggregate(Sum("v"), Average("v"), Count(), trigger=FIVE, evict=FIVE)
        .to("c")
        .stream("b", FixedBatches("k string, v bigint, extra double", []))
        .split(default="v > 3", paths={"c": "v > 4", "d": "v > 5"})
        .each(lambda event: event, "w bigint")
        .output()
        .stream("c")
        .partition("k")
        .join("a", "b", FIVE)
        .sort("v desc", top_n=3, trigger=FIVE)
        .collect(trigger=FIVE, evict=FIVE, field="all")
        .output()
        .stream("d")
        .each(lambda event: event)
        .persist("d")
        .build()
    )


def test_fields_and_types_along_the_streams() -> None:
    streams = flow().streams
    assert streams["a"].schema_at(0) == {"k": "string", "v": "int", "many": "array<string>"}
    assert list(streams["a"].schema_at(2) or ()) == ["v", "k"]
    assert streams["a"].schema_at(-1) == {"k": "string", "sum": "bigint", "avg": "double", "count": "bigint"}
    assert streams["b"].schema_at(1) == {"k": "string", "v": "bigint", "extra": "double"}
    assert streams["b"].schema_at(2) == {"w": "bigint"}
    everything = {
        "k": "string", "sum": "bigint", "avg": "double", "count": "bigint", "v": "bigint", "extra": "double",
    }  # fmt: skip
    assert streams["c"].schema_at(0) == everything
    assert streams["c"].schema_at(3) == everything
    struct = ", ".join(f"`{name}`: {kind}" for name, kind in everything.items())
    assert streams["c"].schema_at(4) == {"k": "string", "all": f"array<struct<{struct}>>"}
    assert streams["d"].schema_at(0) == {"k": "string", "v": "bigint", "extra": "double"}
    assert streams["d"].schema_at(1) is None


def test_types_that_meet() -> None:
    for one, other, both in (
        ("int", "bigint", "bigint"),
        ("bigint", "double", "double"),
        ("string", "string", "string"),
        ("string", "bigint", None),
        ("string", "array<string>", "array<string>"),
        ("array<int>", "array<bigint>", "array<bigint>"),
        ("array<int>", "string", None),
        (None, "string", None),
        (None, None, None),
        ("decimal(10, 2)", "decimal(12, 2)", "decimal(12, 2)"),
        ("decimal(20,2)", "decimal(20, 2)", "decimal(20, 2)"),
        ("decimal(10, 2)", "decimal(8, 4)", "decimal(12, 4)"),
        ("decimal(38, 2)", "decimal(10, 4)", None),
        ("int", "decimal(6, 2)", "decimal(12, 2)"),
        ("decimal(38, 18)", "bigint", "decimal(38, 18)"),
        ("decimal(6, 2)", "float", "double"),
        ("varchar(3)", "string", "string"),
        ("varchar(3)", "char(5)", "string"),
        ("varchar(3)", "int", None),
        ("date", "timestamp", None),
        ("array<decimal(6, 2)>", "int", "array<decimal(12, 2)>"),
        ("struct<a: int>", "struct<a: bigint>", None),
        ("map<string, int>", "map<string,int>", "map<string,int>"),
        ("struct<a: int>", "struct<A: int>", None),
        ("array<struct<a: int>>", "array<struct<A: int>>", None),
        ("struct<`a b`: int>", "struct<ab: int>", None),
        ("struct<`a``b`: int>", "struct<ab: int>", None),
        ("struct<a: int not null>", "struct<a: int>", "struct<a: int>"),
        ("array<struct<`not null`: int not null>>", "struct<`not null`: int>", "array<struct<`not null`: int>>"),
    ):
        for found in (common(one, other), common(other, one)):
            assert (found or "").replace(" ", "") == (both or "").replace(" ", "")


def test_fields_that_no_type_holds_are_refused_where_streams_meet() -> None:
    def meeting(one: str, other: str, change: Any = lambda stream: stream) -> Flow:
        flow = change(Flow("f").stream("l", one)).to("j").stream("r", other).to("j")
        return flow.stream("j", FixedBatches("w bigint", [])).output().build()

    assert meeting("v decimal(10, 2)", "v int").streams["j"].schema_at(0) == {"w": "bigint", "v": "decimal(12, 2)"}
    summed = meeting(
        "p decimal(10, 2)", "sum decimal(20, 2)", lambda stream: stream.aggregate(Sum("p"), trigger=FIVE, evict=FIVE)
    )
    assert summed.streams["j"].schema_at(0) == {"w": "bigint", "sum": "decimal(20, 2)"}
    with pytest.raises(FlowError, match='field "v" is struct<a: int> of stream "l" and struct<A: int> of stream "r"'):
        meeting("v struct<a: int>", "v struct<A: int>")
    for one, other in (("v bigint", "v string"), ("w date", "v bigint")):
        with pytest.raises(
            FlowError, match=r'flow "f", stream "j", at .*: field "[vw]" is bigint of stream "[lj]"'
        ) as caught:
            meeting(one, other)
        assert f"{__file__}:" in str(caught.value)
    three = (
        Flow("f").stream("a", "v int").to("j").stream("b", "v decimal(38, 0)").to("j").stream("c", "v decimal(9, 8)")
    )
    with pytest.raises(FlowError, match='"b" and decimal'):
        three.to("j").stream("j").output().build()
    with pytest.raises(FlowError, match='fields "v" of stream "l" and "V" of stream "r" differ in capitals alone'):
        meeting("v bigint", "V bigint")
    # Where only Spark knows the fields it is told when the flow is compiled.
    source = FixedBatches("v bigint", [])
    late = Flow("f").stream("l", source).each(dict).to("j").stream("r", FixedBatches("v string", [])).to("j")
    with pytest.raises(FlowError, match='field "v" is bigint of stream "l" and string of stream "r"'):
        topology_of(late.stream("j").persist("t").build())


def test_ways_between_streams() -> None:
    built = flow()
    assert built.streams["c"].feeds == (Feed("a", 4, 0), Feed("b", 0, 0))
    assert built.streams["d"].feeds == (Feed("b", 0, 1),)
    assert built.streams["b"].targets == ("c", "d")
    assert [stream.name for stream in built.in_order] == ["a", "b", "c", "d"]
    assert [stream.name for stream in built.inputs] == ["a", "b"]
    assert (built.outputs, built.tables) == (("b", "c"), {"d": "d"})
    backwards = Flow("f").stream("z").output().stream("y").to("z").stream("x", "v bigint").to("y").build()
    assert [stream.name for stream in backwards.in_order] == ["x", "y", "z"]


def test_where_windows_stand() -> None:
    built = flow()
    c = built.streams["c"]
    contexts = [window_context(built, c, index) for index in (1, 2, 3)]
    assert [one.operation for one in contexts] == [0, 1, 2]
    assert [one.depth for one in contexts] == [1, 2, 3]
    assert {one.partition for one in contexts} == {("k",)}
    assert window_context(built, built.streams["a"], 3).depth == 0


def test_how_far_behind_the_clock_results_of_aligned_windows_come() -> None:
    """Not behind a window that makes new events, and of a join those of the left side, whose times the pairs have."""
    built = (
        Flow("f").stream("a", "v bigint").sort("v", progressive=1).aligned(Sum("v", "v"), every=1).to("c")
        .stream("b", "v bigint").aligned(Sum("v", "v"), every=1).to("c", "d")
        .stream("c").join("a", "b", evict=Policy.count(1)).sort("v", progressive=1).session(Sum("v"), gap=1)
        .aligned(Sum("sum"), every=1).output()
        .stream("d", "v bigint").sort("v", progressive=1).aligned(Sum("v", "v"), every=1).aligned(Sum("v"), every=2).output()
        .build()
    )  # fmt: skip
    lags = {
        name: [
            window_context(built, stream, index).lags
            for index, operation in enumerate(stream.operations)
            if isinstance(operation, Stateful)
        ]
        for name, stream in built.streams.items()
    }
    assert lags == {"a": [set(), set()], "b": [set()], "c": [{1, 2}, {2}, {2}, set()], "d": [{1}, {1}, {3}]}


def test_ids_and_times_of_a_source() -> None:
    named = Flow("f").stream("s", "id string, timestamp timestamp").output().build().streams["s"]
    assert (named.event_id, named.event_timestamp) == ("id", "timestamp")
    plain = Flow("f").stream("s", "k string").output().build().streams["s"]
    assert (plain.event_id, plain.event_timestamp) == (None, None)
    own = (
        Flow("f")
        .stream("s", "k string, t bigint", id="k", timestamp="t * 1000", delay=60)
        .output()
        .build()
        .streams["s"]
    )
    assert (own.event_id, own.event_timestamp, own.delay) == ("k", "t * 1000", 60)
    for argument in ("id", "timestamp", "slice_by"):
        with pytest.raises(FieldError, match=argument):
            Flow("f").stream("s", "k string", **{argument: "kk"})
        with pytest.raises(FunctionError):
            Flow("f").stream("s", "k string", **{argument: "reflect(k, k) = 1"})
    for delay in (-1, 1.5, True, "1", 10**16):
        with pytest.raises(FlowError, match="delay"):
            Flow("f").stream("s", "k string", delay=delay)  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="not a source"):
        Flow("f").stream("s", 5)


def test_a_field_of_any_case_takes_the_place_of_an_events_id_or_time() -> None:
    source = FixedBatches("EVENT_ID string, Event_Time bigint", [])
    flow = (
        Flow("f").stream("s", source, timestamp="Event_Time").persist("a").aggregate(Count(), trigger=FIVE, evict=FIVE)
    )
    tables = {node.state.name: node.fields for node in topology_of(flow.persist("b").build()).persists}
    assert tables["a"] == tables["late_f_s"] == ("EVENT_ID", "Event_Time")
    assert tables["b"] == ("count", "event_id", "event_time")


def test_outputs_of_an_aggregate_have_names_of_their_own() -> None:
    stream = Flow("f").stream("s", "k string, v bigint").partition("k")
    for aggregators in ((Count(), Sum("v", "count")), (Count("k"),), (AssocCount("k"),)):
        with pytest.raises(DuplicateFieldError):
            stream.aggregate(*aggregators, trigger=FIVE, evict=FIVE)


@pytest.mark.parametrize(
    "add",
    [
        lambda stream: stream.partition("bid.who"),
        lambda stream: stream.aggregate(Average("bid.price", "mean"), trigger=FIVE, evict=FIVE),
        lambda stream: stream.sort("bid.price", tumbling=FIVE),
        lambda stream: stream.filter(eq("bid.price", 5)),
        lambda stream: stream.filter(eq("k.typo", 5)),
        lambda stream: stream.filter(has("`bid`.price")),
    ],
)
def test_a_field_of_a_struct_is_no_field_of_the_event(add: Any) -> None:
    stream = Flow("f").stream("s", "k string, bid struct<price: bigint, who: string>")
    # SQL and checks take it.
    stream.filter("bid.price > 1").gate(drop("column_values_to_not_be_null", column="bid.price"))
    with pytest.raises(FieldError, match="no such field") as caught:
        add(stream)
    assert "compute(" in caught.value.hint


def test_gates_have_names_of_their_own_and_know_their_fields() -> None:
    check = drop("column_values_to_not_be_null", column="v")
    stream = Flow("f").stream("s", "v bigint").gate(check).gate(check, name="mine")
    built = stream.output().build()
    assert [one.label for one in built.streams["s"].operations] == ["gate gate1", "gate mine", "output"]
    with pytest.raises(FlowError, match="already"):
        stream.gate(check, name="mine")
    with pytest.raises(FieldError):
        Flow("f").stream("s", "w bigint").gate(check)


def test_tables_and_outputs_have_one_writer() -> None:
    with pytest.raises(FlowError, match="already"):
        Flow("f").stream("s", "v bigint").persist("t").filter("v > 1").persist("t")
    with pytest.raises(FlowError, match="already"):
        Flow("f").stream("s", "v bigint").output().persist("s")


def test_a_table_is_none_that_the_flow_writes_by_itself() -> None:
    own = FixedBatches("v bigint", [])
    with pytest.raises(FlowError, match=r'"f".*"b".*its table "f_a" is that of the output of stream "a"'):
        Flow("f").stream("a", own).output().stream("b", own).persist("f_a").build()
    late = Flow("f").stream("a", TIMED, timestamp="at").persist("late_f_a")
    with pytest.raises(FlowError, match=r'its table "late_f_a" is that of the late events of stream "a"'):
        late.aggregate(Count(), trigger=FIVE, evict=FIVE).output().build()
    assert Flow("f").stream("a", TIMED, timestamp="at").persist("late_f_a").persist("f_a").build().tables


@pytest.mark.parametrize("clock", ["event", "processing"])
@pytest.mark.parametrize("windows", ["batch", "channels"])
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("shape", ["alone", "windows", "other windows", "sends on", "is fed", "sent into windows"])
def test_a_table_of_late_events_is_refused_where_the_flow_makes_one(
    clock: str, windows: str, timed: bool, shape: str
) -> None:
    def flow(table: str) -> Flow:
        stream = Flow("f", clock=clock, windows=windows).stream("a", TIMED, timestamp="at" if timed else None)
        stream = stream.persist(table)
        if shape == "windows":
            stream = stream.aggregate(Count(), trigger=FIVE, evict=FIVE).output()
        if shape in ("sends on", "sent into windows"):
            stream = stream.to("b")
        other = stream.stream("b", None if shape.startswith("sen") else TIMED)
        if shape in ("other windows", "sent into windows"):
            other = other.aggregate(Count(), trigger=FIVE, evict=FIVE)
        return (other.to("a") if shape == "is fed" else other.output()).build()

    if topology_of(flow("t")).holder_of("late_f_a"):
        with pytest.raises(FlowError, match=r'its table "late_f_a" is that of the late events of stream "a"'):
            flow("late_f_a")
    else:
        assert "late_f_a" in flow("late_f_a").tables


def test_orders_keep_the_sources_order_everywhere() -> None:
    first, second = source_order(0, 1), source_order(0, 2)
    assert first < second < source_order(1, 0)
    made = [several_order(first, n) for n in (0, 1, 2, 999_999, 10**6, 10**6 + 1, 10**7)]
    sent = [sent_order(one, stream, 0, path) for one in (first, *made) for stream in (0, 1) for path in (0, 1)]
    assert sorted(made) == made
    assert max(*made, *sent) < second


@pytest.mark.parametrize(("id_", "time"), [(None, 5), (7, 5), ("a", None), ("a", "5"), ("a", 5.5)])
def test_an_event_of_each_has_an_id_and_a_time(id_: Any, time: Any) -> None:
    """A row without an id would be a watermark."""
    operation = Each(function=lambda event: [event, Event({"v": 2}, id_, time)], at=CodeLocation.of_caller())
    with pytest.raises(FunctionError, match="gives an event of id"):
        made_of(operation, Event({"v": 1}, "e", 5), "0")


@pytest.mark.parametrize("below", [False, True])
def test_both_sides_of_a_join_have_what_an_operation_before_it_makes(below: bool) -> None:
    def feeding(flow: Any) -> Any:
        return flow.stream("l", "k string, v bigint").to("j").stream("r", "k string, w bigint").to("j")

    def joining(flow: Any, change: Callable[[Any], Any]) -> Any:
        return change(flow.stream("j")).partition("k").join("l", "r", FIVE).output()

    for change in (
        lambda j: j.compute({"k string": "k", "x bigint": "coalesce(v, w)"}),
        lambda j: j.each(dict, "k string, x bigint"),
    ):
        stream = feeding(joining(Flow("f"), change)) if below else joining(feeding(Flow("f")), change)
        if not below:
            assert stream._schema == {"k": "string", "x": "array<bigint>"}
        assert stream.build().streams["j"].schema_at(-1) == {"k": "string", "x": "array<bigint>"}


def test_a_side_of_a_join_has_the_fields_of_all_its_ways() -> None:
    source = FixedBatches("k string, v bigint", [])
    flow = (
        Flow("f").stream("l", source).to("j").select("k").to("j").stream("r", source).to("j")
        .stream("j").partition("k").join("l", "r", FIVE).persist("joined").build()
    )  # fmt: skip
    (inbox,) = (node for node in topology_of(flow).graph if isinstance(node, ChannelSpoutNode))
    assert inbox.schema.startswith("`k` string, `v` array<bigint>, ")


def test_what_comes_of_a_channel_may_be_null_in_all_its_parts() -> None:
    """Spark casts no field of a table, which may be null, into one that may not."""
    source = FixedBatches("k struct<a: int not null>", [])
    flow = Flow("f").stream("l", source).to("j").stream("j").persist("t").build()
    (inbox,) = (node for node in topology_of(flow).graph if isinstance(node, ChannelSpoutNode))
    assert inbox.schema.startswith("`k` struct<a: int>, ")


@pytest.mark.parametrize("below", [False, True])
def test_select_keeps_fields_named_id_and_timestamp_wherever_the_feeder_stands(below: bool) -> None:
    def feeding(flow: Any, schema: str) -> Any:
        return flow.stream("a", schema).to("b")

    def selecting(flow: Any, *names: str) -> Any:
        return flow.stream("b").select(*names).output()

    def built(schema: str, *names: str) -> Flow:
        if below:
            return feeding(selecting(Flow("f"), *names), schema).build()
        return selecting(feeding(Flow("f"), schema), *names).build()

    flow = built("id string, v bigint", "id", "timestamp", "v")
    assert flow.streams["b"].schema_at(1) == {"id": "string", "v": "bigint"}
    (event,) = run_flow(flow, {"a": [{"id": "x", "v": 1}]})["b"]
    assert dict(event) == {"id": "x", "v": 1}
    assert built("id string, v bigint", "id").streams["b"].schema_at(1) == {"id": "string"}
    assert built("v bigint", "id", "v").streams["b"].schema_at(1) == {"v": "bigint"}
    with pytest.raises(FlowError, match="select at least 1 field") as caught:
        built("v bigint", "id", "timestamp")
    assert f"{__file__}:" in str(caught.value)


def test_fields_that_a_join_made_several() -> None:
    built = (
        Flow("f")
        .stream("l", "k string, x string, y bigint, many array<string>").to("j")
        .stream("r", "k string, x string, z bigint, many array<string>").to("j")
        .stream("j").partition("k").join("l", "r", FIVE).to("t").select("x", "z").output()
        .stream("t").partition("x").aggregate(Count(), trigger=FIVE, evict=FIVE).output()
        .build()
    )  # fmt: skip
    j, t = built.streams["j"], built.streams["t"]
    assert j.schema_at(2) == {
        "k": "string", "x": "array<string>", "y": "bigint", "many": "array<string>", "z": "bigint",
    }  # fmt: skip
    assert several_fields(built, j, 1) == frozenset()
    assert several_fields(built, j, 2) == {"x"}
    assert several_fields(built, j, 4) == {"x"}
    assert several_fields(built, t, 2) == {"x"}
    assert t.schema_at(2) == {"x": "array<string>", "count": "bigint"}


def test_fields_that_a_join_made_several_of_what_a_function_gave() -> None:
    """On Spark an each without a schema gives the fields that it got."""
    built = (
        Flow("f").stream("l", "k string, x string").to("j").stream("r", "k string, x string, y bigint").to("j")
        .stream("j").each(dict).partition("k").join("l", "r", FIVE).each(dict).filter("x").to("t")
        .stream("t").select("x", "y").output().build()
    )  # fmt: skip
    assert built.streams["j"].schema_at(3) is None
    assert [several_fields(built, built.streams["j"], index) for index in (2, 3, 4)] == [frozenset(), {"x"}, {"x"}]
    assert several_fields(built, built.streams["t"], 1) == {"x"}


def test_a_function_without_a_schema_may_change_types_on_the_reference_engine() -> None:
    stream = Flow("f").stream("s", "v string").each(lambda event: {"v": int(event["v"])})
    built = stream.aggregate(Sum("v"), trigger=Policy.count(1), evict=FIVE).filter(eq("sum", 7)).output().build()
    assert run_flow(built, {"s": [{"v": "7"}, {"v": "1"}]})["s"] == [{"sum": 7}]


def test_what_a_function_does_to_an_event_stays_with_it() -> None:
    def spoil(event: Event) -> Event:
        event["many"].append("spoiled")
        event["k"] = "spoiled"
        return event

    built = Flow("f").stream("s", "k string, many array<string>").persist("before").each(spoil).persist("after").build()
    found = run_flow(built, {"s": [{"k": "a", "many": ["x"]}]})
    assert found == {
        "before": [{"k": "a", "many": ["x"]}],
        "after": [{"k": "spoiled", "many": ["x", "spoiled"]}],
    }


@pytest.mark.slow
def test_a_flow_is_written_and_run_without_spark() -> None:
    code = """
import sys
from pipelines.flowmix import Count, Flow, Policy, eq, load_flow
from pipelines.sources import JsonFiles
from pipelines.testing import TICK, run_flow
flow = (Flow("f").stream("s", JsonFiles("nowhere", "k string")).filter(eq("k", "a")).filter("k = 'a'").partition("k")
    .aggregate(Count(), trigger=Policy.count(1), evict=Policy.count(1)).output().build())
assert "pyspark" not in sys.modules, "to write"
flow = (Flow("f").stream("s", "k string").filter(eq("k", "a")).partition("k")
    .aggregate(Count(), trigger=Policy.count(1), evict=Policy.count(1)).output().build())
assert run_flow(flow, {"s": [{"k": "a"}, TICK, {"k": "b"}]}) == {"s": [{"k": "a", "count": 1}]}
assert not {"pyspark", "py4j", "dagster", "great_expectations"} & set(sys.modules), "to run"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("schema", "named"), [("at string, k string", "at"), ("timestamp string", None), ("at array<bigint>", "at")]
)
def test_a_text_is_no_time(schema: str, named: str | None) -> None:
    with pytest.raises(FlowError, match="an event's time is in ms since 1970") as caught:
        Flow("f").stream("s", schema, timestamp=named)
    assert f'timestamp="to_timestamp({named or "timestamp"})"' in caught.value.hint
    for good in ("at bigint", "at timestamp", "at date"):
        Flow("f").stream("s", good, timestamp="at")
    Flow("f").stream("s", "at string", timestamp="to_timestamp(at)")
