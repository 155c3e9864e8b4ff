"""Gates of flows whose states are committed in waves, for one is made of what another holds: all are told, none is waited for."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.quality import drop, warn
from pipelines.sources import FixedBatches
from pipelines.trident import Count, DeltaState, MapGet, TridentTopology

ROWS = [[("a", 1), ("a", -1), ("b", 2)]]
POSITIVE = {"column": "v", "min_value": 0}


@pytest.mark.slow
def test_a_gate_behind_a_state_query_is_told(spark: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("waves")
    stream = topology.new_stream("s", FixedBatches("k string, v bigint", ROWS))
    known = stream.gate(warn("expect_column_values_to_be_between", **POSITIVE), name="first")
    counts = known.group_by("k").persistent_aggregate(DeltaState("counts"), Count(), "n")
    enriched = known.state_query(counts, "k", MapGet(), "n")
    kept = enriched.gate(drop("expect_column_values_to_be_between", **POSITIVE), name="second")
    kept.partition_persist(DeltaState("enriched"))

    (batch,) = Runtime(spark, Lake(tmp_path / "lake")).catch_up(topology).batches

    found = {gate["gate"]: [(check["rows"], check["unexpected"]) for check in gate["checks"]] for gate in batch.gates}
    assert found == {"first": [(3, 1)], "second": [(3, 1)]}
    assert len(batch.gates) == 2
    assert batch.gates[0]["checks"][0]["detail"]["sample"] == [{"k": "a", "v": -1}]


@pytest.mark.slow
def test_a_bounded_run_waits_for_no_gate_that_its_last_wave_does_not_pass(spark: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("bounded")
    stream = topology.new_stream("s", FixedBatches("k string, v bigint", ROWS))
    kept = stream.gate(drop("expect_column_values_to_be_between", **POSITIVE), name="g")
    counts = kept.group_by("k").persistent_aggregate(DeltaState("counts"), Count(), "n")
    stream.state_query(counts, "k", MapGet(), "n").partition_persist(DeltaState("seen"))
    lake = Lake(tmp_path / "lake")

    (report,) = Runtime(spark, lake).run_bounded(topology).slices

    assert [(commit.state, commit.rows) for commit in report.commits] == [("counts", 2), ("seen", 3)]
    assert [(gate["gate"], gate["checks"][0]["unexpected"]) for gate in report.gates] == [("g", 1)]
    assert (report.error, report.quarantined, lake.quarantine("bounded").count()) == (None, 1, 1)
