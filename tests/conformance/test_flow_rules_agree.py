"""Rules of Flowmix with answers made by hand, each a stream of one flow: on the reference engine, and in one run on Spark."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.flowmix import (
    AssocCount,
    Average,
    Collect,
    Count,
    DistinctCount,
    FirstN,
    Flow,
    FlowStream,
    GroupCount,
    LastN,
    Max,
    Min,
    Policy,
    StdDev,
    Sum,
    eq,
    gte,
    has,
    lt,
    or_,
)
from pipelines.testing import run_flow

C = Policy.count
NAN, INF = float("nan"), float("inf")
Case = tuple[str, Callable[[FlowStream], FlowStream], Sequence[dict[str, Any]], Sequence[dict[str, Any]]]
"""The schema of a stream, what is done with it, its events (one per 10 ms), and what comes out."""


def v(*values: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"v": value, **more} for value in values]


DAY = datetime.date(2024, 1, 1)
KEYS: dict[str, Any] = {
    "b": True, "d": DAY, "n": Decimal("1.50"), "f": NAN, "t": datetime.datetime(2024, 1, 1, 1), "s": {"x": 1}, "y": b"q",
}  # fmt: skip
ALL_OF_V = [
    Count("cv", field="v"),
    Sum("v"),
    Average("v"),
    Min("v"),
    Max("v"),
    StdDev("v"),
    DistinctCount("v"),
    Collect("v"),
]
MADE: dict[int, Any] = {1: None, 2: {"v": 20}, 3: [], 4: [{"v": 40}, {"v": 41}]}

RULES: dict[str, Case] = {
    "1_null_is_absent_and_empty_text_is_there": (
        "k string, v bigint",
        lambda s: s.filter(has("k")),
        [{"k": None, "v": 1}, {"k": "", "v": 2}],
        [{"k": "", "v": 2}],
    ),
    "4_select": (
        "a array<bigint>, b string, c bigint",
        lambda s: s.select("a", "b"),
        [{"c": 1}, {"a": [], "c": 2}, {"b": "x", "c": 3}, {"a": [1, 2], "b": "y"}],
        [{"b": "x"}, {"a": [1, 2], "b": "y"}],
    ),
    "4_each": (
        "v bigint",
        lambda s: s.each(lambda event: MADE.get(event["v"], event), "v bigint"),
        v(1, 2, 3, 4, 5),
        v(20, 40, 41, 5),
    ),
    "4_partition_of_several_values_whatever_their_order": (
        "k array<bigint>, v bigint",
        lambda s: s.partition("k").aggregate(Count(), trigger=C(2), evict=C(9)),
        [{"k": [2, 1, 2]}, {"k": [1, 2]}, {"k": [1]}, {"k": [3]}],
        [{"k": [2, 1, 2], "count": 2}],
    ),
    "4_partition_by_all_types": (
        "b boolean, d date, n decimal(5,2), f double, t timestamp, s struct<x: int>, y binary",
        lambda s: s.partition(*KEYS).aggregate(Count(), trigger=C(2), evict=C(0)).select("count", "b", "n"),
        [KEYS, {**KEYS, "b": False}, {**KEYS, "n": Decimal("1.51")}, KEYS],
        [{"count": 2, "b": True, "n": Decimal("1.50")}],
    ),
    "4_partition_keeps_fields_and_absence_apart": (
        "a string, b string",
        lambda s: s.partition("a", "b").aggregate(Count(), trigger=C(2), evict=C(0)),
        [{"a": "ab", "b": "c"}, {"a": "a", "b": "bc"}, {"a": "", "b": "x"}, {"b": "x"}, {"b": "x"}, {"a": "", "b": "x"}],
        [{"b": "x", "count": 2}, {"a": "", "b": "x", "count": 2}],
    ),
    "4_partition_without_fields_is_one_window": (
        "k string, v bigint",
        lambda s: s.partition("k").aggregate(Sum("v"), trigger=C(1), evict=C(0)).partition()
        .aggregate(Sum("sum", "total"), trigger=C(1), evict=C(0)),
        [{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"v": 4}],
        [{"total": 1}, {"total": 3}, {"total": 7}],
    ),
    "5_1_trigger_and_evict_of_one": (
        "v bigint",
        lambda s: s.aggregate(Sum("v"), Min("v"), Max("v"), trigger=C(1), evict=C(1)),
        v(3, -1, 5),
        [{"sum": n, "min": n, "max": n} for n in (3, -1, 5)],
    ),
    "5_1_trigger_above_evict_with_clear": (
        "v bigint",
        lambda s: s.aggregate(Sum("v"), trigger=C(4), evict=C(2), clear_on_trigger=True),
        v(1, 2, 3, 4, 5, 6, 7, 8),
        [{"sum": 7}, {"sum": 15}],
    ),
    "5_1_5_a_group_is_shown_as_its_first_event_has_it": (
        "k array<string>, v bigint",
        lambda s: s.partition("k").aggregate(Count(), trigger=C(2), evict=C(1), clear_on_trigger=True),
        [*({"k": k} for k in (["y", "x"], ["x", "y"], ["x", "y"], ["y", "x"])), *v(1, 2), {"k": []}, {"k": []}],
        [{"k": ["y", "x"], "count": 1}, {"k": ["y", "x"], "count": 1}, {"count": 1}, {"count": 1}],
    ),
    "5_2_a_field_that_is_absent_empty_or_several": (
        "v array<bigint>",
        lambda s: s.aggregate(Count(), *ALL_OF_V, FirstN(2, field="v"), LastN(1, field="v"), trigger=C(4), evict=C(4)),
        [{}, *v([], [4, 4], [1])],
        [{"count": 4, "cv": 2, "sum": 9, "avg": 3.0, "min": 1, "max": 4, "std_dev": 3**0.5, "distinct_count": 2,
          "collected": [4, 4, 1], "first": [4, 4], "last": [1]}],
    ),
    "5_2_assoc_count": (
        "k string, v bigint",
        lambda s: s.aggregate(AssocCount("k", "n"), trigger=C(2), evict=C(3)),
        [{"v": 1}, {"v": 2}, {"k": "a"}, {"k": "a"}, {"k": "b"}, {"k": "b"}],
        [{"k": "a", "n": 2}, {"k": "a", "n": 1}, {"k": "b", "n": 2}],
    ),
    "5_2_group_count": (
        "k string, v bigint",
        lambda s: s.aggregate(GroupCount("k", "v", output="n"), trigger=C(3), evict=C(2)),
        [{"v": 1}, {"v": 2}, {"k": "a", "v": 1}, {"k": "a", "v": 1}, {"k": "b"}, {"k": "b", "v": 1}],
        [{"k": "a", "v": 1, "n": 1}, {"k": "b", "v": 1, "n": 1}],
    ),
    "5_2_least_and_greatest_of_other_types_when_events_leave": (
        "k string, d date, b boolean, n decimal(6,2)",
        lambda s: s.aggregate(Min("k"), Max("d", "late"), Max("b", "any"), Min("n", "low"), trigger=C(1), evict=C(2)),
        [{"k": k, "d": DAY.replace(day=day), "b": day == 3, "n": Decimal(n)} for k, day, n in (
            ("b", 3, "2.50"), ("a", 1, "1.50"), ("c", 2, "9.00"))],
        [{"min": k, "late": DAY.replace(day=day), "any": day == 3, "low": Decimal(n)} for k, day, n in (
            ("b", 3, "2.50"), ("a", 3, "1.50"), ("a", 2, "1.50"))],
    ),
    "5_2_infinities_come_and_go": (
        "w double",
        lambda s: s.aggregate(Average("w"), Sum("w"), trigger=C(1), evict=C(1)),
        [{"w": INF}, {"w": -INF}, {"w": 1.5}, {}],
        [{"avg": n, "sum": n} for n in (INF, -INF, 1.5, 0.0)],
    ),
    "5_3_tumbling_is_stable_and_absent_comes_last": (
        "k string, v bigint",
        lambda s: s.sort("v desc", "k", tumbling=C(5)),
        [{"k": "b", "v": 1}, {"k": "a", "v": 1}, {"v": 1}, {"k": "z"}, {"k": "c", "v": 2}],
        [{"k": "c", "v": 2}, {"k": "a", "v": 1}, {"k": "b", "v": 1}, {"v": 1}, {"k": "z"}],
    ),
    "5_3_several_values_sort_by_the_least": (
        "v array<bigint>",
        lambda s: s.sort("v", tumbling=C(3)),
        v([5, 2], [3], [1, 9]),
        v([1, 9], [5, 2], [3]),
    ),
    "5_3_4_progressive": ("v bigint", lambda s: s.sort("v desc", progressive=2), v(2, 3, 1), v(2, 2, 1)),
    "5_3_6_top_n_flushed_per_key": (
        "k string, v bigint",
        lambda s: s.partition("k").sort("v", top_n=1, trigger=C(2), flush=True),
        [{"k": k, "v": n} for k, n in (("a", 2), ("b", 9), ("a", 1), (None, 4), ("b", 8), (None, 3), ("a", 7), ("a", 8))],
        [{"k": "a", "v": 1}, {"k": "b", "v": 8}, {"v": 3}, {"k": "a", "v": 7}],
    ),
    "5_4_switch_per_key": (
        "k string, v bigint",
        lambda s: s.partition("k").switch(open=C(2), evict=C(5), close=C(0)),
        [{"k": k, "v": n} for n, k in enumerate("aabaabb")],
        [{"k": "a", "v": 0}, {"k": "b", "v": 2}, {"k": "a", "v": 3}, {"k": "b", "v": 6}],
    ),
    "6_criteria_of_other_types_and_beyond_them": (
        "y binary, n decimal(6,2), v bigint",
        lambda s: s.filter(or_(eq("y", b"q"), gte("n", 1.5), lt("v", 2**63))),
        [{"y": b"q"}, {"y": b"r"}, {"n": Decimal("1.49")}, {"n": Decimal("1.50")}, {"v": 5}],
        [{"y": b"q"}, {"n": Decimal("1.50")}, {"v": 5}],
    ),
    "8_windows_of_all_kinds_in_a_chain": (
        "k string, v bigint",
        lambda s: s.partition("k").aggregate(Sum("v"), trigger=C(2), evict=C(2)).sort("sum desc", tumbling=C(2))
        .switch(open=C(3), evict=C(1), close=C(1)).collect(trigger=C(2), evict=C(2)),
        v(0, 1, 2, 3, 4, 5, 6, 7, k="a"),
        [{"k": "a", "events": [{"k": "a", "sum": 5}, {"k": "a", "sum": 1}]}],
    ),
}  # fmt: skip


def flow_of_all() -> tuple[Flow, dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """One flow with a stream per rule, its script, and what comes out by the name of a stream."""
    flow, script, wanted = Flow("rules"), {}, {}
    for name, (schema, write, given, results) in RULES.items():
        stream = f"rule_{name}"
        write(flow.stream(stream, schema)).output()
        script[stream] = [{"timestamp": 10 * n, **event} for n, event in enumerate(given)]
        wanted[stream] = list(results)
    return flow.build(), script, wanted


def test_rules_on_the_reference_engine() -> None:
    flow, script, wanted = flow_of_all()
    found = run_flow(flow, script)
    for stream, results in wanted.items():
        assert found[stream] == results, stream


@pytest.mark.slow
@pytest.mark.exhaustive
def test_rules_in_one_bounded_run(spark: SparkSession) -> None:
    flow, script, _ = flow_of_all()
    wanted, found = run_flow(flow, script), run_flow(flow, script, engine="batch", spark=spark)
    for stream, events in wanted.items():
        assert [(e.id, dict(e)) for e in found[stream]] == [(e.id, dict(e)) for e in events], stream
