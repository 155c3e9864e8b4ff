"""The engines of the test kit without a session: where one is needed they start the process's own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from pipelines.flowmix import Flow
from pipelines.quality import fail
from pipelines.sources import FixedBatches
from pipelines.testing import query_topology, run_flow, run_topology
from pipelines.testing.spark_step import session
from pipelines.trident import DeltaState, TridentTopology


class StartedError(Exception):
    """The process's session is asked for."""


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def started() -> None:
        raise StartedError

    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setattr("pipelines.spark.session.spark_session", started)


def flow() -> Flow:
    return Flow("f").stream("s", "v bigint").filter("v > 1").output().build()


def topology() -> TridentTopology:
    made = TridentTopology("t")
    made.new_query_stream("q", "n bigint").filter("n > 1")
    made.new_stream("s", FixedBatches("n bigint", [])).filter("n > 1").partition_persist(DeltaState("out"))
    return made


@pytest.mark.parametrize("engine", ["reference", "batch", "bounded", "stream"])
def test_it_is_started_where_none_is_given_or_active(engine: Any) -> None:
    with pytest.raises(StartedError):
        run_flow(flow(), {"s": [{"v": 1}]}, engine=engine)
    with pytest.raises(StartedError):
        run_topology(topology(), {"s": [[(1,)]]}, engine)
    with pytest.raises(StartedError):
        query_topology(topology(), {}, "q", [(1,)], engine)


def test_a_gate_of_the_reference_engine_starts_it() -> None:
    gated = Flow("f").stream("s", "v bigint").gate(fail("column_values_to_not_be_null", column="v")).output().build()
    with pytest.raises(StartedError):
        run_flow(gated, {"s": [{"v": 1}]})


def test_one_that_is_given_or_active_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    given, active = object(), object()
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: active)
    assert session(given) is given  # type: ignore[arg-type]
    assert session(None) is active


def test_plain_python_starts_none() -> None:
    made = TridentTopology("t")
    made.new_stream("s", FixedBatches("n bigint", [])).partition_persist(DeltaState("out"))
    assert run_topology(made, {"s": [[(1,)]]}) == {"out": [{"n": 1}]}


ALONE = """
from pyspark.sql import SparkSession
from pipelines.flowmix import Average, Flow, Policy
from pipelines.testing import TICK, run_flow

flow = (
    Flow("late_departures")
    .stream("departures", "origin string, dep_delay double")
    .filter("dep_delay > 15")
    .partition("origin")
    .aggregate(Average("dep_delay", "avg_delay"), trigger=Policy.count(2), evict=Policy.count(2))
    .to("alerts")
    .stream("alerts").filter("avg_delay > 60").persist("delay_alerts")
    .build()
)
events = [{"origin": "EWR", "dep_delay": delay} for delay in (10.0, 60.0, 80.0)]
wanted = {"delay_alerts": [{"origin": "EWR", "avg_delay": 70.0}]}
assert run_flow(flow, {"departures": [*events, TICK]}, engine="reference", clock="processing") == wanted
SparkSession.getActiveSession().stop()
assert run_flow(flow, {"departures": events}, engine="batch") == wanted
assert run_flow(flow, {"departures": events}, engine="stream") == wanted
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_fresh_process_runs_a_flow_also_after_a_stop() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True, timeout=300)
