"""Lineage and drawings of event flows: through channels, and through the windows that run in a stream itself."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import BadNameError
from pipelines.execution.protocol.groups import group_name, spout_groups
from pipelines.flowmix import Count, DistinctCount, Flow, FlowStream, Policy, Sum, WindowAggregator
from pipelines.flowmix.compile import topology_of
from pipelines.graph.types import known_types
from pipelines.planner import TopologyPlan
from pipelines.planner.changes import plan_changes, save_plan
from pipelines.sources import FixedBatches
from pipelines.state.lake import Lake

SCHEMA = "k string, v bigint, w bigint, at bigint"
EDGE = re.compile(r"^  (\w+) -->(?:\|.*\|)? (\w+)$", re.MULTILINE)


class Spread(WindowAggregator):
    outputs = "spread bigint"

    def __init__(self) -> None:
        self.values: list[int] = []

    def added(self, event: dict[str, int]) -> None:
        self.values.append(event["v"])

    def evicted(self, event: dict[str, int]) -> None:
        self.values.remove(event["v"])

    def aggregate(self) -> int:
        return max(self.values) - min(self.values)


def begun(name: str = "f") -> FlowStream:
    return (
        Flow(name, windows="channels")
        .stream("s", FixedBatches(SCHEMA, []), id="concat(k, v)", timestamp="at")
        .partition("k")
    )


def plan_of(stream: FlowStream) -> TopologyPlan:
    return TopologyPlan.of(topology_of(stream.persist("t").build()))


FIVE: Any = {"trigger": Policy.count(5), "evict": Policy.count(5)}


def test_a_source_says_where_ids_and_times_come_from() -> None:
    found = plan_of(begun().sort("v", tumbling=Policy.count(2))).lineage
    assert found["f__s__s"]["_event_id"] == (("s", "k"), ("s", "v"))
    assert found["f__s__s"]["_event_time"] == found["f__s__s"]["_event_clock"] == (("s", "at"),)
    assert found["f__s__s"]["_event_order"] == ()
    assert found["late_f_s"]["event_time"] == (("s", "at"),)
    # What is only sorted is as it came.
    assert found["t"]["v"] == (("f__s__s", "v"),)
    assert found["t"]["event_id"] == (("f__s__s", "_event_id"),)


def test_an_aggregate_takes_from_the_fields_that_it_reads() -> None:
    found = plan_of(begun().aggregate(Count("n"), Sum("v", "total"), DistinctCount("w", "ws"), **FIVE)).lineage["t"]
    assert found["k"] == (("f__s__s", "k"),)
    assert found["n"] == ()
    assert found["total"] == (("f__s__s", "v"),)
    assert found["ws"] == (("f__s__s", "w"),)
    assert found["event_id"] == ()
    assert found["event_time"] == (("f__s__s", "_event_clock"),)


def test_a_users_aggregator_and_a_collect_take_from_all_fields_unless_they_say() -> None:
    everything = tuple(("f__s__s", name) for name in ("k", "v", "w", "at"))
    assert plan_of(begun().aggregate(Spread(), **FIVE)).lineage["t"]["spread"] == everything
    told = copy.copy(Spread())
    told.lineage = {"spread": ("v",)}  # type: ignore[attr-defined]
    assert plan_of(begun().aggregate(told, **FIVE)).lineage["t"]["spread"] == (("f__s__s", "v"),)
    assert plan_of(begun().collect(**FIVE)).lineage["t"]["events"] == everything


def test_each_takes_from_all_fields_and_events_keep_their_times() -> None:
    found = plan_of(begun().each(lambda event: {"x": 1}, schema="x bigint")).lineage["t"]
    assert found["x"] == tuple(("s", name) for name in ("k", "v", "w", "at"))
    assert found["event_time"] == (("s", "at"),)


def test_windows_behind_windows() -> None:
    flow = begun().aggregate(Sum("v", "total"), **FIVE).filter("total > 3").partition().sort("total", progressive=3)
    plan = plan_of(flow)
    assert plan.lineage["t"]["total"] == (("f__s__s", "v"),)
    reader = plan.spouts[-1]
    assert [one.label.split()[0] for one in reader.steps] == ["aggregate", "filter", "sort"]  # type: ignore[union-attr]


def test_two_streams_that_meet() -> None:
    flow = Flow("f")
    (
        flow.stream("a", FixedBatches("k string, v bigint", [])).to("both")
        .stream("b", FixedBatches("k string, w bigint", [])).to("both")
        .stream("both").partition("k").join("a", "b", evict=Policy.count(1)).persist("t")
    )  # fmt: skip
    topology = topology_of(flow.build())
    plan = TopologyPlan.of(topology)
    assert plan.lineage["t"]["k"] == (("f__a__both", "k"), ("f__b__both", "k"))
    assert plan.lineage["t"]["v"] == (("f__a__both", "v"),)
    (table,) = (node for node in topology.persists if node.state.name == "t")
    assert known_types(topology.graph, table.id)["w"] == "bigint"
    edges = set(EDGE.findall(plan.to_mermaid()))
    reader = next(number for number in re.findall(r"^  (n\d+)\(\[\"both\"\]\)", plan.to_mermaid(), re.MULTILINE))
    assert {("state_f__a__both", reader), ("state_f__b__both", reader)} <= edges


def test_the_drawing_leads_from_the_source_to_the_table() -> None:
    text = plan_of(begun().aggregate(Sum("v", "total"), **FIVE)).to_mermaid()
    assert "in the stream itself" in text
    below: dict[str, set[str]] = {}
    for above, one in EDGE.findall(text):
        below.setdefault(above, set()).add(one)
    reached, waiting = set[str](), {"n0"}
    while waiting:
        one = waiting.pop()
        reached.add(one)
        waiting |= below.get(one, set()) - reached
    assert {"state_f__s__s", "state_t", "state_late_f_s"} <= reached
    assert set(re.findall(r"^ +(\w+)[\[({]", text, re.MULTILINE)) - {"flowchart"} <= reached


def test_a_change_of_windows_is_a_change_of_the_plan(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    before = topology_of(begun().aggregate(Sum("v", "total"), **FIVE).persist("t").build())
    save_plan(before, lake.checkpoint_path("f", "s"))
    six = begun().aggregate(Sum("v", "total"), trigger=Policy.count(6), evict=Policy.count(5)).persist("t").build()
    changes = {one.name: one for one in plan_changes(topology_of(six), lake).spouts}
    assert changes["s"].change == "same"
    assert changes["s__1"].change == "changed"
    assert "every count 6" in changes["s__1"].details[0]
    same = plan_changes(topology_of(begun().aggregate(Sum("v", "total"), **FIVE).persist("t").build()), lake)
    assert {one.change for one in same.spouts} == {"same"}


def test_a_stream_does_not_take_the_name_of_a_query_behind_windows() -> None:
    topology = topology_of(
        begun()
        .aggregate(Count(), **FIVE)
        .persist("t")
        .stream("s__1", FixedBatches(SCHEMA, []))
        .filter("v > 1")
        .persist("u")
        .build()
    )
    with pytest.raises(BadNameError, match="'s__1' is that of two batch groups") as caught:
        TopologyPlan.of(topology)
    # Nor does anything run, or look into the checkpoint that they would share.
    with pytest.raises(BadNameError):
        spout_groups(topology)
    lines = {node.at for node in topology.spouts if node.stream == "s__1"}
    assert len(lines) == 2
    assert all(str(line) in str(caught.value) for line in lines)


def test_such_a_name_alone_is_a_streams_own() -> None:
    stream = Flow("f").stream("s", FixedBatches(SCHEMA, [])).filter("v > 1").persist("t")
    topology = topology_of(stream.stream("s__1", FixedBatches(SCHEMA, [])).filter("v > 1").persist("u").build())
    assert [group_name(spouts) for spouts in spout_groups(topology)] == ["s", "s__1"]
