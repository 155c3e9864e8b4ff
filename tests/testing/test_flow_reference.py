"""Values in the reference engine of flows are those that columns of Spark's hold, wherever they come from."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from pipelines.errors import FunctionError, GateError, JavaError, NeedsSparkError
from pipelines.flowmix import Count, DistinctCount, Flow, Policy, Sum, WindowAggregator, eq, gt, python
from pipelines.quality import fail
from pipelines.sources import FixedBatches
from pipelines.testing import TICK, run_flow
from pipelines.testing.flows import FlowEngine

EPOCH, NAIVE = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(1970, 1, 1)
EACH: Any = {"trigger": Policy.count(1), "evict": Policy.count(0)}


def own(outputs: str, *values: Any) -> WindowAggregator:
    """Return an aggregator that gives the n-th value of the n-th event."""

    class Own(WindowAggregator):
        def __init__(self) -> None:
            self.count = 0

        def added(self, event: Any) -> None:
            self.count += 1

        def evicted(self, event: Any) -> None:
            pass

        def aggregate(self) -> Any:
            return values[self.count - 1]

    Own.outputs = outputs
    return Own()


def made(kind: str, *values: Any, by: str = "each") -> Any:
    """Return what begins a stream whose field `x` has these values, of an `each`, an aggregator, or the script."""
    if by == "script":
        return Flow("f").stream("s", f"x {kind}")
    stream = Flow("f").stream("s", "n bigint")
    if by == "each":
        return stream.each(lambda event: {"x": values[event["n"]]}, f"x {kind}")
    return stream.aggregate(own(f"x {kind}", *values), **EACH)


def run(stream: Any, *values: Any, by: str = "each") -> list[Any]:
    """Return what comes out of a stream that `made` began with these values."""
    script = [{"x": value} if by == "script" else {"n": n} for n, value in enumerate(values)]
    return run_flow(stream.output().build(), {"s": script})["s"]


def test_criteria_that_need_spark_name_those_that_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def started() -> None:
        raise JavaError("there is none")

    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setattr("pipelines.spark.session.spark_session", started)
    stream: Any = Flow("f").stream("s", "x bigint")
    with pytest.raises(NeedsSparkError, match="Spark needs Java 17 or 21, and there is none") as caught:
        run(stream.filter("x > 15"), 1, by="script")
    assert 'gt("v", 15)' in caught.value.hint
    assert "python(...)" in caught.value.hint


ONE_KEY = [
    ("bigint", (np.int64(4), 4.0, 4, Decimal("4.00")), 4),
    ("double", (np.float64(4), 4, 4.0), 4.0),
    ("boolean", (np.bool_(True), True), True),
    ("decimal(10,2)", (4, Decimal(4), Decimal("4.0"), Decimal("4.000")), Decimal("4.00")),
    ("date", (dt.datetime(2020, 1, 1), dt.date(2020, 1, 1)), dt.date(2020, 1, 1)),
    ("array<bigint>", ([np.int64(4)], [4.0], 4), [4]),
    ("struct<a: double, b: string>", ({"a": 1}, {"b": None, "a": 1.0}), {"a": 1.0}),
    ("array<struct<a: bigint, b: string>>", ([{"a": 1}], {"a": 1, "b": None}), [{"a": 1}]),
]


@pytest.mark.parametrize("by", ["each", "aggregator", "script"])
@pytest.mark.parametrize(("kind", "values", "held"), ONE_KEY, ids=[case[0] for case in ONE_KEY])
def test_values_that_are_equal_in_a_column_are_one_key(kind: str, values: tuple[Any, ...], held: Any, by: str) -> None:
    found = run(
        made(kind, *values, by=by).partition("x").aggregate(Count(), DistinctCount("x"), **EACH), *values, by=by
    )
    assert [event["count"] for event in found] == [*range(1, len(values) + 1)]
    assert {repr((event["x"], event["distinct_count"])) for event in found} == {repr((held, 1))}


ROUNDED = [
    ("decimal(10,2)", (Decimal("1.005"), Decimal("-1.005"), Decimal("1.0149")), ("1.01", "-1.01", "1.01")),
    ("string", (5, True, 1.5, Decimal("1.50"), "x"), ("5", "true", "1.5", "1.50", "x")),
    ("array<string>", ([5],), ("['5']",)),
]


@pytest.mark.parametrize(("kind", "values", "texts"), ROUNDED, ids=[case[0] for case in ROUNDED])
def test_an_each_rounds_and_makes_texts_and_an_aggregator_may_not(
    kind: str, values: tuple[Any, ...], texts: tuple[str, ...]
) -> None:
    assert [str(event["x"]) for event in run(made(kind, *values), *values)] == list(texts)
    with pytest.raises(FunctionError, match="field x"):
        run(made(kind, values[0], by="aggregator"), 0)


@pytest.mark.parametrize("value", [Decimal("123456789.1"), Decimal("1e5000"), Decimal("NaN")], ids=str)
def test_a_decimal_beyond_its_type_is_refused(value: Decimal) -> None:
    with pytest.raises(FunctionError, match="field x"):
        run(made("decimal(10,2)", value), value)


def test_values_of_numpy_are_numbers_to_what_follows() -> None:
    values = tuple(map(np.int64, (5, 9, 2)))
    assert run(made("bigint", *values).filter(gt("x", 4)), *values) == [{"x": 5}, {"x": 9}]
    assert run(made("bigint", *values, by="aggregator").sort("x", tumbling=Policy.count(3)), *values) == [
        {"x": 2},
        {"x": 5},
        {"x": 9},
    ]
    three: Any = {"trigger": Policy.count(3), "evict": Policy.count(0)}
    assert run(made("bigint", *values).aggregate(Sum("x"), **three), *values) == [{"sum": 16}]
    assert run(made("boolean", np.bool_(True)).filter(eq("x", True)), 0) == [{"x": True}]


def test_numbers_that_meet_are_of_the_type_that_holds_both() -> None:
    """Of other streams and of a stream's own source, and those beside what a join made."""
    flow = Flow("f").stream("a", "k bigint").to("j", "s").stream("b", "k double").to("j", "s")
    flow = flow.stream("j").partition("k").aggregate(Count(), **EACH).output()
    flow = flow.stream("s", "k bigint").partition("k").aggregate(Count(), **EACH).output()
    ones: Any = {"a": [{"k": 1}], "b": [{"k": 1.0, "timestamp": 9}], "s": [{"k": 1, "timestamp": 10}]}
    found = run_flow(flow.build(), ones)
    assert repr([(event["k"], event["count"]) for event in found["j"]]) == "[(1.0, 1), (1.0, 2)]"
    assert repr([(event["k"], event["count"]) for event in found["s"]]) == "[(1.0, 1), (1.0, 2), (1.0, 3)]"


def test_numbers_of_different_types_join() -> None:
    flow = (
        Flow("f").stream("a", "k bigint, v bigint").to("j").stream("b", "k double, v bigint").to("j")
        .stream("j").partition("k").join("a", "b", Policy.count(9)).to("all")
        .stream("c", "v double").to("all").stream("all").output().build()
    )  # fmt: skip
    rows = [{"k": 1.0, "v": 2, "timestamp": 8}, {"k": 1.0, "v": 3, "timestamp": 9}]
    found = run_flow(flow, {"a": [{"k": 1, "v": 2}], "b": rows, "c": [{"v": 4, "timestamp": 10}]})["all"]
    assert repr(list(map(dict, found))) == "[{'k': 1.0, 'v': 2.0}, {'k': 1.0, 'v': [2.0, 3.0]}, {'v': 4.0}]"


def changing(event: Any) -> bool:
    """Change all of an event that can be changed."""
    event["s"]["a"] = event["l"][0]["a"] = event["v"] = 9
    event["l"].append({"a": 8})
    return True


class Changing(WindowAggregator):
    outputs = "n bigint"

    def added(self, event: Any) -> None:
        changing(event)

    def evicted(self, event: Any) -> None:
        pass

    def aggregate(self) -> int:
        return 1


@pytest.mark.parametrize(
    "change",
    [
        lambda stream: stream.to("same").filter(python(changing)),
        lambda stream: stream.split(default=python(changing), paths={"same": python(changing)}),
        lambda stream: stream.to("same").each(lambda event: changing(event) and None),
        lambda stream: stream.to("same").aggregate(Changing(), **EACH),
        lambda stream: stream.to("same").aligned(Changing(), every=1),
    ],
    ids=["filter", "split", "each", "aggregate", "aligned"],
)
def test_what_user_code_does_to_its_event_stays_there(change: Any) -> None:
    stream = Flow("f").stream("s", "v bigint, s struct<a: bigint>, l array<struct<a: bigint>>")
    flow = change(stream.persist("before")).output().stream("same").output().build()
    given = [{"v": 1, "s": {"a": 1}, "l": [{"a": 1}]}, {"v": 2, "s": {"a": 2}, "l": [{"a": 2}]}]
    found = run_flow(flow, {"s": [{**event, "timestamp": 5000 * n} for n, event in enumerate(given)]})
    assert found["before"] == found["same"] == given
    assert all(event == given[n] for n, event in enumerate(found["s"]) if "v" in event)


TIMES = (0, dt.datetime(1970, 1, 1), EPOCH, EPOCH.astimezone(dt.timezone(dt.timedelta(hours=1))))


class Shown(WindowAggregator):
    """The last event as a text."""

    outputs = "x string"

    def added(self, event: Any) -> None:
        self.x = repr(dict(event))

    def evicted(self, event: Any) -> None:
        pass

    def aggregate(self) -> str:
        return self.x


def show(event: Any) -> dict[str, str]:
    return {"x": repr(dict(event))}


@pytest.mark.parametrize("value", TIMES, ids=str)
def test_times_have_no_zone_in_functions_and_utc_in_aggregators(value: Any) -> None:
    """As on Spark, whatever the script gives, and whatever makes them."""
    begun = Flow("f").stream("s", "t timestamp, l array<timestamp>, m map<timestamp, int>")
    script = {"s": [{"t": value, "l": [EPOCH], "m": {EPOCH: 1}}, {"t": value, "timestamp": 5000}]}
    flow = (
        begun.to("each", "own", "again", "spans", "keyed").filter(python(lambda e: repr(e["t"]) == repr(NAIVE))).output()
        .stream("each").each(show, "x string").output()
        .stream("own").aggregate(Shown(), **EACH).output()
        .stream("again").each(dict).each(lambda event: {**event}).aggregate(Shown(), **EACH).output()
        .stream("spans").aligned(Count(), every=1).select("window_start").each(show, "x string").output()
        .stream("keyed").partition("t").aggregate(Shown(), Count(), **EACH).each(lambda event: event).output()
        .build()
    )  # fmt: skip
    found = run_flow(flow, script)
    assert found["s"] == [{"t": NAIVE, "l": [NAIVE], "m": {NAIVE: 1}}, {"t": NAIVE}]
    assert found["each"] == [{"x": repr({"t": NAIVE, "l": [NAIVE], "m": {NAIVE: 1}})}, {"x": repr({"t": NAIVE})}]
    assert (
        found["own"]
        == found["again"]
        == [{"x": repr({"t": EPOCH, "l": [EPOCH], "m": {EPOCH: 1}})}, {"x": repr({"t": EPOCH})}]
    )
    assert found["spans"] == [{"x": repr({"window_start": NAIVE})}]
    assert [(event["t"], event["count"]) for event in found["keyed"]] == [(NAIVE, 1), (NAIVE, 2)]


@pytest.mark.parametrize("by", ["each", "aggregator", "script"])
def test_spellings_of_one_moment_are_one_key(by: str) -> None:
    times = TIMES if by == "script" else TIMES[1:]
    found = run(
        made("timestamp", *times, by=by).partition("x").aggregate(Count(), DistinctCount("x"), **EACH), *times, by=by
    )
    assert found == [{"x": NAIVE, "count": n, "distinct_count": 1} for n in range(1, len(times) + 1)]


def test_bounds_of_windows_join_with_times_of_a_source() -> None:
    flow = (
        Flow("f").stream("a", "v bigint").aligned(Count(), every=1).to("j")
        .stream("b", "window_start timestamp, w bigint").to("j")
        .stream("j").partition("window_start").join("b", "a", Policy.count(9)).select("w", "count").output().build()
    )  # fmt: skip
    script = {"a": [{"timestamp": at} for at in (100, 3000)], "b": [{"window_start": 0, "w": 7, "timestamp": 0}]}
    assert run_flow(flow, script)["j"] == [{"w": 7, "count": 1}]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("engine", ["reference", "batch"])
def test_a_gate_that_no_event_reaches_judges_an_empty_batch(engine: FlowEngine) -> None:
    stream = Flow("f").stream("s", FixedBatches("n bigint", [])).filter("n > 0")
    flow = stream.gate(fail("table_row_count_to_be_between", min_value=1)).output().build()
    assert run_flow(flow, {"s": [{"n": 1}]}, engine=engine) == {"s": [{"n": 1}]}
    with pytest.raises(GateError, match="table_row_count_to_be_between: observed 0"):
        run_flow(flow, {"s": [{"n": -1}]}, engine=engine)


def test_the_sum_of_nothing_is_the_key_that_a_sum_of_zero_is() -> None:
    for kind, zero in (("double", 0.0), ("decimal(6, 2)", Decimal(0))):
        flow = (
            Flow("f").stream("s", f"n bigint, x {kind}").aggregate(Sum("x"), trigger=Policy.count(1), evict=Policy.count(1))
            .partition("sum").aggregate(Count(), **EACH).output().build()
        )  # fmt: skip
        found = run_flow(flow, {"s": [{"n": 0}, {"x": zero}, {"n": 1}]})["s"]
        assert [(event["count"], event["sum"], type(event["sum"])) for event in found] == [
            (n, zero, type(zero)) for n in (1, 2, 3)
        ]


@pytest.mark.parametrize(
    ("kind", "values", "times"),
    [
        ("date", (dt.date(1970, 1, 2), None), [86_400_000]),
        ("double", (5.5, float("nan"), float("inf"), None, 1e30), [5]),
        ("timestamp", (EPOCH, None, dt.datetime(50, 1, 1)), [0]),
        ("bigint", (7, None, -(2**62)), [7]),
    ],
)
def test_an_event_whose_source_says_no_time_is_left_out_in_event_time(
    kind: str, values: tuple[Any, ...], times: list[int]
) -> None:
    def found(clock: str) -> list[int]:
        flow = Flow("f", clock=clock).stream("s", f"at {kind}, n bigint", timestamp="at").select("n").output().build()
        script = {"s": [TICK, *({"at": value, "n": n} for n, value in enumerate(values))]}
        return [event.timestamp for event in run_flow(flow, script)["s"]]

    assert found("event") == times
    assert found("processing") == times + [1000] * (len(values) - 1)
