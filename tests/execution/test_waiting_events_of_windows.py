"""Which events that wait for the clock the windows of a changed definition can take, by what was kept of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipelines.execution.batch.driver_windows import _Stage
from pipelines.flowmix import Collect, Count, Flow, Policy, Sum
from pipelines.flowmix.compile import topology_of
from pipelines.graph import events, nodes
from pipelines.planner.step import struct
from pipelines.sources import FixedBatches

TYPES = {"k": "string", "v": "bigint", "w": "bigint", **dict(zip(events.COLUMNS, events.TYPES, strict=True))}
EVENT = {"k": "a", "v": 1, "w": 7, events.ID: "e", events.TIME: 10_000, events.FROM: "s"}
EVENT |= {events.CLOCK: 10_000, events.ORDER: "000.1"}
PRUNED = {name: EVENT[name] for name in ("k", "v", events.CLOCK, events.ORDER)}
KEPT = {
    "whole": EVENT,
    "pruned": PRUNED,
    # The windows of an earlier release that go one by one had columns for the id and the time, and nothing in them.
    "pruned with columns": {**PRUNED, events.ID: "", events.TIME: None, events.FROM: "s"},
}


def stage(windows: Any) -> _Stage:
    """Return the windows that `windows` adds to a stream."""
    stream: Any = Flow("f").stream("s", FixedBatches("k string, v bigint, w bigint, timestamp bigint", []), delay=5)
    topology = topology_of(windows(stream.partition("k")).persist("t").build())
    node = next(node for node in topology.graph if isinstance(node, nodes.BatchWindowNode))
    kinds = {**TYPES, "timestamp": "bigint"}
    before = struct(", ".join(f"`{name}` {kinds[name]}" for name in topology.graph[node.parents[0]].fields))
    group: Any = SimpleNamespace(topology=topology, schema_at=lambda _: before)
    return _Stage(group, node)


def aggregate(*aggregators: Any) -> Any:
    policies = {"trigger": Policy.time(60), "evict": Policy.count(0), "clear_on_trigger": True}
    return lambda stream: stream.aggregate(*aggregators, **policies)


def switch(stream: Any) -> Any:
    return stream.select("k", "v").switch(open=Policy.count(9), evict=Policy.count(3), close=Policy.count(1))


@pytest.mark.parametrize(
    ("windows", "taken"),
    [
        (aggregate(Sum("v", "v"), Count()), {"whole", "pruned", "pruned with columns"}),
        (aggregate(Collect("v", "all")), {"whole", "pruned", "pruned with columns"}),
        (aggregate(Sum("v", "v"), Sum("w", "w")), {"whole"}),
        (switch, {"whole"}),
    ],
)
def test_what_was_kept_without_what_windows_look_at_is_not_for_them(
    windows: Any, taken: set[str], spark: SparkSession
) -> None:
    made = stage(windows)
    rows = {name: pa.Table.from_pylist([event]) for name, event in KEPT.items()}
    assert {name for name, pending in rows.items() if made.takes(pending)} == taken
    # What does not look at ids and times does not keep their columns.
    assert (events.ID in made.row_schema.names) == (windows is switch)
