"""A gate sees the same columns on every engine, which are those of the user's table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines.flowmix import Flow, Policy, Sum
from pipelines.quality import fail, validate_frame, warn
from pipelines.sources import FixedBatches
from pipelines.testing import run_flow, run_topology
from pipelines.testing.engines import Engine
from pipelines.testing.flows import FlowEngine
from pipelines.trident import DeltaState, FirstN, TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

FORM = (
    fail("table_column_count_to_equal", value=2),
    fail("table_column_count_to_be_between", max_value=2),
    fail("table_columns_to_match_ordered_list", column_list=["k", "n"]),
    fail("table_columns_to_match_set", column_set=["n", "k"]),
)
"""What holds of a table of `k` and `n`."""


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("engine", ["reference", "stream", "bounded"])
def test_a_gate_sees_the_fields_of_its_stream_alone(engine: Engine) -> None:
    """Slices, tasks and the order of arrival are columns, too."""
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatches("n bigint, k string", []), slice_by="k").gate(
        fail("table_columns_to_match_ordered_list", column_list=["n", "k"])
    )
    dealt = stream.project(["k", "n"]).shuffle().filter("n > 0").parallelism_hint(3).gate(*FORM)
    dealt.partition_persist(DeltaState("rows"))
    dealt.partition_aggregate(["k", "n"], FirstN(1, "n"), ["k2", "n2"]).partition_persist(DeltaState("first"))
    found = run_topology(topology, {"s": [[(1, "a"), (2, "b")]]}, engine)
    assert found["rows"] == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("engine", ["reference", "batch", "stream"])
def test_a_gate_sees_the_fields_of_events_alone(engine: FlowEngine) -> None:
    stream = Flow("f").stream("s", FixedBatches("k string, n bigint", [])).gate(*FORM)
    summed = stream.partition("k").aggregate(Sum("n"), trigger=Policy.count(1), evict=Policy.count(0))
    flow = summed.gate(fail("table_columns_to_match_set", column_set=["k", "sum"])).output().build()
    assert [event["sum"] for event in run_flow(flow, {"s": [{"k": "a", "n": 1}]}, engine=engine)["s"]] == [1]


def test_a_table_of_the_users_has_all_its_columns(spark: SparkSession) -> None:
    frame = spark.sql("select 'a' k, 1 n, '2024' _slice")
    checks = [warn("table_column_count_to_equal", value=3), warn("column_to_exist", column="_slice", column_index=2)]
    assert validate_frame(frame, checks).success
