"""Flowmix rules 2: builders, their defaults and their errors, each at the line that causes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.catalog import FlowSettings, FlowSpec
from pipelines.errors import BadNameError, DefinitionError, FieldError, FlowError
from pipelines.flowmix import Count, Flow, FlowStream, Policy, Sum, WindowAggregator, eq, gt, lt
from pipelines.flowmix.compile import as_topology
from pipelines.flowmix.operations import Partition, Select, Stateful
from pipelines.sources import FixedBatches
from pipelines.testing import run_flow

FIVE = Policy.count(5)


def stream(name: str = "s") -> FlowStream:
    return Flow("f").stream(name, "k string, v bigint")


untyped: Callable[[], Any] = stream


def gate(given: FlowStream) -> FlowStream:
    return given.switch(open=Policy.time_delta_lt(1), evict=FIVE, close=Policy.time(60))


def refused(write: Callable[[], Any]) -> FlowError:
    """The error of a line, which must name this file."""
    with pytest.raises(FlowError) as caught:
        write()
    assert f"{__file__}:" in str(caught.value.at)
    return caught.value


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (lambda: Flow(""), "A flow needs to have an id"),
        (lambda: Flow("f").build(), "A flow should have at least one flow op"),
        (lambda: stream().filter(None), "Filter operator needs a filter"),
        (lambda: stream().select(), "Selector operator needs to select at least 1 field"),
        (lambda: stream().aggregate(trigger=FIVE, evict=FIVE), "Aggregator operator needs an aggregator class"),
        (lambda: stream().aggregate(Count, trigger=FIVE, evict=FIVE), "Aggregator operator needs an aggregator class"),
        (
            lambda: stream().aggregate(Count(), evict=FIVE),
            "Aggregator operator needs to have trigger policy and threshold",
        ),
        (
            lambda: stream().aggregate(Count(), trigger=FIVE),
            "Aggregator operator needs to have eviction policy and threshold",
        ),
        (lambda: stream().sort(tumbling=FIVE), "Sort operator needs at least one field name to sort by"),
        (lambda: stream().sort("v"), "Sort operator needs an eviction policy and threshold"),
        (lambda: stream().sort("v", top_n=3), "Sort operator needs a trigger policy and threshold"),
        (lambda: stream().sort(), "Sort operator needs at least one field name to sort by"),
        (
            lambda: stream().switch(evict=FIVE, close=FIVE),
            "Stop gate operator must have an activation policy and threshold",
        ),
        (
            lambda: stream().switch(open=FIVE, close=FIVE),
            "Stop gate operator must have an eviction policy and threshold",
        ),
        (lambda: stream().switch(open=FIVE, evict=FIVE), "Stop gate operator must have an close policy and threshold"),
        (lambda: stream().join("a", "b"), "Eviction policy is required by the join operator"),
        (lambda: stream().join("a", "", FIVE), "Left and right side streams required by the join operator"),
        (
            lambda: stream().split(paths={"a": None}),
            "Each path in the split operator must have both a non-null filter and destination stream name.",
        ),
        (lambda: stream().select("v").build(), "You must specify at least one output. Offending stream: s"),
        (lambda: stream().output().filter("v > 1").build(), "You must specify at least one output. Offending stream: s"),
        (lambda: Flow("f").stream("s").output().build(), "At least one stream needs to read from std input"),
        (lambda: untyped().select(None), "select takes names; got None"),
        (lambda: untyped().partition("k", ["v", 5]), "partition takes names; got 5"),
        (lambda: untyped().sort(None, tumbling=FIVE), "sort takes names; got None"),
        (lambda: untyped().to(None), "to takes names; got None"),
        (lambda: untyped().split(all=[None]), "split takes names; got None"),
        (lambda: untyped().split(default=gt("v", 1), paths="x"), "split takes its paths by stream; got 'x'"),
        (lambda: untyped().each(dict, 5), "each takes its schema as text; got 5"),
        (lambda: untyped().compute({5: "v"}), "compute takes SQL text; got 5"),
        (lambda: untyped().collect(trigger=FIVE, evict=FIVE, field=5), "field is the name of the list of events; got 5"),
        (
            lambda: untyped().aggregate(Count(), trigger=FIVE, evict=FIVE, clear_on_trigger="no"),
            "clear_on_trigger is True or False; got 'no'",
        ),
        (lambda: untyped().collect(trigger=FIVE, evict=FIVE, clear_on_trigger=0.0), "clear_on_trigger is True or False"),
        (lambda: untyped().sort("v", top_n=1, trigger=FIVE, flush="no"), "flush is True or False; got 'no'"),
    ],
)  # fmt: skip
def test_2_every_builder_refuses_what_is_missing(write: Callable[[], Any], text: str) -> None:
    assert refused(write).problem.startswith(text)


@pytest.mark.parametrize("flag", [0, 1, None])
def test_2_a_flag_may_be_what_python_takes_for_one_and_stays_as_it_is(flag: Any) -> None:
    """It is part of what tells windows apart: another value would be another window."""
    window = operation_of(stream().aggregate(Count(), trigger=FIVE, evict=FIVE, clear_on_trigger=flag), 1).operation
    assert window.clear_on_trigger is flag
    stream().collect(trigger=FIVE, evict=FIVE, clear_on_trigger=flag)
    assert operation_of(stream().sort("v", top_n=1, trigger=FIVE, flush=flag), 1).operation.flush is flag


def test_2_paths_of_a_split_may_be_pairs() -> None:
    pairs: Any = [("b", gt("v", 1))]
    flow = stream().split(paths=pairs).output().stream("b").output().build()
    assert [to for to, _ in flow.streams["s"].operations[0].paths] == ["b"]  # type: ignore[attr-defined]


def test_2_the_error_stands_at_the_line_that_causes_it() -> None:
    begun = stream()
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.raises(FlowError) as caught:
        begun.sort()
    assert str(caught.value.at) == f"{__file__}:{line}"
    assert f"{__file__}:{line}" in str(caught.value)
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    begun = stream().to("nowhere")
    with pytest.raises(FlowError) as caught:
        begun.build()
    assert str(caught.value.at) == f"{__file__}:{line}"


def test_2_a_threshold_of_0_is_accepted_and_negative_ones_are_not() -> None:
    stream().aggregate(Count(), trigger=Policy.count(0), evict=Policy.time(0)).output().build()
    with pytest.raises(DefinitionError):
        Policy.count(-1)


def test_2_defaults_of_an_aggregate() -> None:
    window = operation_of(stream().aggregate(Count(), trigger=FIVE, evict=FIVE), 1).operation
    assert (window.clear_on_trigger, window.window_evict_millis) == (False, 3_600_000)


def test_2_the_order_of_a_sort_errors_is_fields_eviction_trigger() -> None:
    assert "field name" in refused(lambda: stream().sort()).problem
    assert "eviction" in refused(lambda: stream().sort("v")).problem
    assert "trigger" in refused(lambda: stream().sort("v", top_n=1)).problem


def test_2_a_sort_is_one_of_progressive_tumbling_top_n() -> None:
    """In the original a later call overwrites some of an earlier one; here two of them are an error."""
    assert "progressive and top_n" in refused(lambda: stream().sort("v", progressive=1, top_n=1)).problem
    refused(lambda: stream().sort("v", progressive=1, trigger=FIVE))
    refused(lambda: stream().sort("v", tumbling=FIVE, flush=True))
    refused(lambda: stream().sort("v", top_n=0, trigger=FIVE))


def test_2_duplicate_stream_names_are_refused() -> None:
    """The original lets the later one win."""
    assert "already" in refused(lambda: stream().output().stream("s", "k string")).problem


def test_2_a_stream_without_an_operation_is_refused() -> None:
    """BUG: the original accepts it and fails on the first event."""
    error = refused(lambda: stream().to("t").stream("t").build())
    assert error.stream == "t"
    assert error.problem.startswith("A flow should have at least one flow op")


def test_2_a_split_takes_none_for_no_stream_that_gets_all() -> None:
    assert operation_of(stream().split(default=gt("v", 1), paths=None, all=None), 0).all == ()


def test_2_a_split_to_an_unknown_stream_is_refused() -> None:
    """BUG: the original accepts it and fails on the first event."""
    error = refused(lambda: stream().split(paths={"alert": eq("k", "a")}).stream("alerts", "k string").output().build())
    assert 'did you mean "alerts"' in error.problem


def test_2_a_stream_that_nothing_leads_to_is_refused() -> None:
    assert "no stream leads here" in refused(lambda: stream().output().stream("t").output().build()).problem


def test_2_a_default_path_that_leads_nowhere_is_refused() -> None:
    error = refused(lambda: stream().split(default="v > 1", paths={"t": "v > 2"}).stream("t").output().build())
    assert error.problem.startswith("You must specify at least one output. Offending stream: s")


def test_2_a_cycle_is_refused_and_shown() -> None:
    def write() -> None:
        Flow("f").stream("a", "v bigint").to("b").stream("b").to("c").stream("c").split(all=["b"]).output().build()

    assert refused(write).problem == "streams lead in a cycle: b -> c -> b"
    assert refused(lambda: stream().split(all=["s"]).output().build()).problem == "streams lead in a cycle: s -> s"


def test_2_streams_that_lead_to_each_other_alone_write_nothing() -> None:
    for write in (lambda: stream().to("s"), lambda: stream().to("t").stream("t").to("s")):
        problem = refused(lambda write=write: write().build()).problem
        assert problem == "At least one stream needs to write to std output"


def test_2_a_flow_that_is_not_built_is_refused(tmp_path: Path) -> None:
    last: Any = stream().persist("n")

    def of_the_catalog(given: Any) -> Any:
        return FlowSpec("f", "of a test", lambda settings: given).topology(FlowSettings(tmp_path))

    for given in (last, last._flow):
        for use in (as_topology, of_the_catalog, lambda one: run_flow(one, {})):
            with pytest.raises(FlowError, match=r'^flow "f": the flow is not built'):
                use(given)


def test_2_nothing_changes_a_built_flow() -> None:
    begun = stream().output()
    flow = begun.build()
    assert list(flow.streams) == ["s"]
    assert len(flow.streams["s"].operations) == 1
    refused(lambda: flow.stream("t", "k string"))
    refused(flow.build)
    begun.persist("t")  # what was written first may go on, and be built again
    assert len(flow.streams["s"].operations) == 1
    assert len(begun.build().streams["s"].operations) == 2


@pytest.mark.parametrize("name", ["Upper", "a-b", "1a", "a.b", "a/b", "ä"])
def test_14_names_are_lower_case_words(name: str) -> None:
    for write in (
        lambda: Flow(name),
        lambda: stream(name),
        lambda: stream().persist(name),
        lambda: stream().to(name),
        lambda: stream().split(all=name),
    ):
        with pytest.raises(BadNameError):
            write()


@pytest.mark.parametrize("name", ["_txid", "_gen", "_slice", "_event_id", "_event_clock", "_order", "a`b", "${x}"])
def test_14_no_operation_makes_a_field_of_the_engine(name: str) -> None:
    own = type(
        "Own", (WindowAggregator,), {"outputs": f"`{name}` bigint", "added": max, "evicted": max, "aggregate": max}
    )
    for aggregator in (Sum("v", name), Count(name), own()):
        for window, arguments in (
            ("aggregate", {"trigger": FIVE, "evict": FIVE}),
            ("aligned", {"every": 1}),
            ("session", {"gap": 1}),
        ):
            with pytest.raises(DefinitionError, match=r"starts with _|not a schema"):
                getattr(stream(), window)(aggregator, **arguments)
    for write in (
        lambda: stream().collect(trigger=FIVE, evict=FIVE, field=name),
        lambda: stream().each(dict, f"{name} bigint"),
        lambda: stream().compute({f"{name} bigint": "v"}),
    ):
        with pytest.raises(DefinitionError, match=r"starts with _|not a schema"):
            write()


def test_14_no_source_has_a_column_of_the_engine() -> None:
    schema = "k string, _event_clock bigint"
    for write in (lambda: Flow("f").stream("s", schema), lambda: Flow("f").stream("s", FixedBatches(schema, []))):
        assert "is the engine's" in str(refused(write))


# FlowBuilderTest (rules 8): what the original's own tests say.


def operation_of(given: FlowStream, index: int) -> Any:
    return given.output().build().streams["s"].operations[index]


def test_8_flow_builder_1_operations_fields_and_names_are_kept() -> None:
    """The partition of the gate is that of the aggregate before it, so there is one less of them than in the original."""
    flow = (
        gate(
            Flow("my_flow", "My first flow")
            .stream("s", "name string, age bigint, country string")
            .filter("age > 20")
            .select("name", "age")
            .partition("name")
            .aggregate(Sum("age"), trigger=Policy.time(25), evict=Policy.count(500))
        )
        .output()
        .build()
    )
    operations = flow.streams["s"].operations
    assert (flow.name, flow.description) == ("my_flow", "My first flow")
    assert [type(one).__name__ for one in operations] == [
        "Filter", "Select", "Partition", "Stateful", "Stateful", "Output",
    ]  # fmt: skip
    assert isinstance(operations[1], Select)
    assert operations[1].fields == ("name", "age")


def test_8_flow_builder_3_no_std_input_throws() -> None:
    nothing = refused(lambda: Flow("f").stream("s", std_input=False).select("v").output().build())
    assert nothing.problem == "At least one stream needs to read from std input"
    assert "needs a source" in refused(lambda: Flow("f").stream("s", std_input=True)).problem
    assert "reads from std input" in refused(lambda: Flow("f").stream("s", "v bigint", std_input=False)).problem


@pytest.mark.parametrize(("left", "right", "missing"), [("a", "x", "x"), ("x", "b", "x")])
def test_8_flow_builder_4_and_5_a_join_without_a_side_throws(left: str, right: str, missing: str) -> None:
    def write() -> None:
        (
            Flow("f")
            .stream("a", "v bigint").to("j")
            .stream("b", "v bigint").to("j")
            .stream("j").join(left, right, FIVE).output()
            .build()
        )  # fmt: skip

    problem = refused(write).problem
    assert problem.startswith(
        "A join operator was found but the necessary streams are not being routed to it. Offending stream: j"
    )
    assert f'"{missing}" does not reach the join' in problem


def test_2_a_join_without_a_side_names_a_stream_that_is_routed_to_it() -> None:
    def write(left: str) -> FlowError:
        flow = Flow("f").stream("lefts", "v bigint").to("j").stream("r", "v bigint").to("j")
        return refused(flow.stream("left", "v bigint").output().stream("j").join(left, "r", FIVE).output().build)

    assert '"left" does not reach the join; what does: lefts, r (did you mean "lefts"?)' in write("left").problem
    assert "did you mean" not in write("x").problem


@pytest.mark.parametrize(
    "add",
    [
        lambda s: s.aggregate(Count(), trigger=FIVE, evict=FIVE),
        lambda s: s.sort("v", tumbling=FIVE),
        gate,
        lambda s: s.to("j").stream("j").join("s", "t", FIVE),
    ],
    ids=["aggregate", "sort", "switch", "join"],
)
def test_8_flow_builder_6_to_9_op_0_is_a_partition_without_fields(add: Callable[[FlowStream], FlowStream]) -> None:
    flow = add(Flow("f").stream("t", "v bigint").to("j").stream("s", "v bigint")).output()
    if not isinstance(flow._operations[1], Stateful):
        raise AssertionError(flow._operations)
    assert flow._operations[0] == Partition(fields=(), at=flow._operations[0].at)


def test_2_a_join_fed_by_split_paths_is_built() -> None:
    """BUG: the original does not count the paths of a split, and refuses."""
    flow = (
        Flow("f")
        .stream("a", "v bigint").split(paths={"l": gt("v", 1), "r": lt("v", 5)})
        .stream("l").split(all="j")
        .stream("r").split(paths={"j": gt("v", 3)})
        .stream("j").join("l", "r", FIVE).output()
        .build()
    )  # fmt: skip
    assert [feed.stream for feed in flow.streams["j"].feeds] == ["l", "r"]
    found = run_flow(flow, {"a": [{"v": 2}, {"v": 4}, {"v": 9}]}, clock="processing")
    # 4 alone comes along both paths; on the left 2 and 4 itself wait for it.
    assert found == {"j": [{"v": [2, 4]}, {"v": 4}]}


def test_4_join_nothing_else_may_lead_to_a_join() -> None:
    """The original fails when the event comes: "Flowmix has been miswired"."""

    def write() -> None:
        (
            Flow("f")
            .stream("a", "v bigint").to("j")
            .stream("b", "v bigint").to("j")
            .stream("c", "v bigint").to("j")
            .stream("j").join("a", "b", FIVE).output()
            .build()
        )  # fmt: skip

    assert "does not match the join: c" in refused(write).problem


def test_fields_are_checked_at_the_line_or_at_build() -> None:
    with pytest.raises(FieldError, match=r'did you mean "v"'):
        stream().select("k", "v").filter("vv > 3")
    with pytest.raises(FieldError, match="sort"):
        stream().aggregate(Count(), trigger=FIVE, evict=FIVE).sort("v", progressive=1)
    later = Flow("f").stream("t").filter("x > 1").output().stream("s", "v bigint").to("t")
    with pytest.raises(FieldError, match=rf"{__file__}:\d+"):
        later.build()
