"""A batch group has sources of its own: a topology, whose nodes are frozen, may run on several lakes at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines.aggregators import Count
from pipelines.execution.batch.group import BatchGroup
from pipelines.execution.protocol.groups import spout_groups
from pipelines.flowmix import Flow, Policy
from pipelines.flowmix.compile import as_topology
from pipelines.sources import FixedBatches
from pipelines.state.lake import Lake
from pipelines.trident import DeltaState, TridentTopology


def counts() -> TridentTopology:
    topology = TridentTopology("counts")
    rows = topology.new_stream("rows", FixedBatches("word string", [[("a",)]]))
    rows.group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "count")
    return topology


def windows() -> TridentTopology:
    """Its second group reads a channel."""
    flow = Flow("events").stream("rows", FixedBatches("word string, timestamp bigint", [[("a", 1)]]))
    windows = (
        flow.persist("words")
        .partition("word")
        .aggregate(Count(output="n"), trigger=Policy.count(1), evict=Policy.count(2))
    )
    return as_topology(windows.persist("counts").build())


@pytest.mark.parametrize("make", [counts, windows])
def test_two_lakes_share_no_source(spark: SparkSession, tmp_path: Path, make: Callable[[], TridentTopology]) -> None:
    topology = make()
    sources = [source for spout in topology.spouts for source in (spout.source, spout.source.inner)]
    before = [dict(vars(source)) for source in sources]
    lakes = [Lake(tmp_path / name) for name in ("one", "other")]
    groups = [[BatchGroup(spark, lake, topology, spouts) for spouts in spout_groups(topology)] for lake in lakes]
    for lake, (first, *_) in zip(lakes, groups, strict=True):
        _, positions = first.sources.bounded(spark)
        assert positions
        assert all(str(lake.root) in position for position in positions)
    for of_lake in groups:
        for group in of_lake:
            group.sources.start_at(None, tmp_path / "checkpoint")
    assert [dict(vars(source)) for source in sources] == before
