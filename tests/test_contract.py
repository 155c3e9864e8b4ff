"""The design's examples, as written; only the paths are a test's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime, spark_session
from pipelines.flowmix import Average, Flow, Policy
from pipelines.nimbus import Nimbus
from pipelines.sources import FixedBatches, JsonFiles
from pipelines.testing import TICK, run_flow, run_topology
from pipelines.trident import Count, DeltaState, MapGet, Split, Sum, TridentTopology


def wordcount() -> TridentTopology:
    topology = TridentTopology("wordcount")
    counts = (
        topology.new_stream("sentences", FixedBatches("sentence string", [
            [("hello the man said",)],
            [("the",)],
        ]))
        .each("sentence", Split(), "word")
        .group_by("word")
        .persistent_aggregate(DeltaState("word_counts"), Count(), "count")
    )  # fmt: skip
    (topology.new_query_stream("words", "args string")
        .each("args", Split(), "word")
        .group_by("word")
        .state_query(counts, "word", MapGet(), "count")
        .aggregate("count", Sum(), "sum"))  # fmt: skip
    return topology


@pytest.mark.usefixtures("spark")
def test_the_trident_example_runs_as_written(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    topology = wordcount()
    lake = Lake(root)
    runtime = Runtime(spark_session(), lake)
    report = runtime.catch_up(topology)  # run all that the sources hold now, then stop  # fmt: skip
    assert [b.txid for b in report.batches] == [0, 1]
    assert lake.state("word_counts").get([{"word": "the"}]) == [{"word": "the", "count": 2}]
    assert lake.state("word_counts").get([{"word": "the"}], txid=0) == [{"word": "the", "count": 1}]
    assert runtime.query(topology, "words", [("the man",)]) == [{"sum": 3}]

    assert not runtime.catch_up(topology).batches
    assert lake.state("word_counts").frame(spark).orderBy("word").collect()[0].asDict() == {"word": "hello", "count": 1}


@pytest.mark.usefixtures("spark")
def test_the_flow_example_runs_as_written(tmp_path: Path) -> None:
    path, schema = tmp_path, "origin string, carrier string, dep_delay double"
    flow = (
        Flow("late_departures")
        .stream("departures", JsonFiles(path, schema))
            .select("origin", "carrier", "dep_delay")
            .filter("dep_delay > 15")
            .partition("origin")
            .aggregate(Average("dep_delay", "avg_delay"), trigger=Policy.count(50), evict=Policy.count(100))
            .to("alerts")
        .stream("alerts")                                # fed by other streams only
            .filter("avg_delay > 60")
            .persist("delay_alerts")                     # a Delta table in the lake
        .build()
    )  # fmt: skip
    late = [{"origin": "EWR", "carrier": "UA", "dep_delay": float(delay)} for delay in range(16, 166)]
    early = [{"origin": "JFK", "carrier": "B6", "dep_delay": 15.0}] * 60
    found = run_flow(
        flow, {"departures": [*early, *late[:75], TICK, *late[75:]]}, engine="reference", clock="processing"
    )
    # The 50th has seen 16 .. 65, the 100th 16 .. 115, the 150th the last hundred, 66 .. 165.
    assert found == {"delay_alerts": [{"origin": "EWR", "avg_delay": 65.5}, {"origin": "EWR", "avg_delay": 115.5}]}
    assert [event.timestamp for event in found["delay_alerts"]] == [1000, 1000]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_the_flow_example_runs_as_written_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The same flow over real files, and `run_flow` on the two Spark engines."""
    from pipelines.flowmix import Average, Flow, Policy
    from pipelines.sources import JsonFiles
    from pipelines.testing import run_flow

    path, schema = tmp_path / "in", "origin string, carrier string, dep_delay double"
    path.mkdir()
    late = [{"origin": "EWR", "carrier": "UA", "dep_delay": float(delay)} for delay in range(16, 166)]
    (path / "day.json").write_text("\n".join(json.dumps(event) for event in late))
    flow = (
        Flow("late_departures")
        .stream("departures", JsonFiles(path, schema))
            .select("origin", "carrier", "dep_delay")
            .filter("dep_delay > 15")
            .partition("origin")
            .aggregate(Average("dep_delay", "avg_delay"), trigger=Policy.count(50), evict=Policy.count(100))
            .to("alerts")
        .stream("alerts")
            .filter("avg_delay > 60")
            .persist("delay_alerts")
        .build()
    )  # fmt: skip
    wanted = [{"origin": "EWR", "avg_delay": 65.5}, {"origin": "EWR", "avg_delay": 115.5}]
    for engine in ("batch", "stream"):
        assert run_flow(flow, {"departures": late}, engine=engine, spark=spark) == {"delay_alerts": wanted}

    lake = Lake(tmp_path / "lake")
    Runtime(spark, lake).catch_up(flow)
    rows = lake.state("delay_alerts").scan().to_pylist()
    assert sorted(row["avg_delay"] for row in rows) == [65.5, 115.5]
    assert {row["origin"] for row in rows} == {"EWR"}


def test_the_assignment_example_runs_as_written() -> None:
    from pipelines.nimbus import plan_assignment, Supervisor, Component, Demand  # noqa: I001

    assignment = plan_assignment(
        [Supervisor("s1", ports=[1, 2, 3, 4]), Supervisor("s2", ports=[1, 2, 3, 4], used=[1])],
        Demand("flights", workers=3, components=[
            Component("spout", tasks=5, kind="spout"),
            Component("delays", tasks=4, kind="bolt", inputs=["spout"]),
        ]),
        kind="NEW",                                      # or "REBALANCE", "MONITOR" with old=assignment
    )  # fmt: skip
    # task ids a worker; w.supervisor, w.port
    assert [w.tasks for w in assignment.workers] == [(1, 5, 8), (3, 7, 9), (2, 4, 6)]
    assert [(w.supervisor, w.port) for w in assignment.workers] == [("s1", 1), ("s1", 2), ("s2", 2)]


def test_the_nimbus_example_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No supervisor is there: what is asked for is written into the registry."""
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path))
    store_url, lake = f"sqlite:///{tmp_path}/registry.db", Lake(tmp_path / "lake")
    nimbus = Nimbus(store_url, lake)  # sqlite:///... by default, postgresql://... in production
    nimbus.submit("flights", trigger_seconds=5)  # a flow of the catalog, by name
    nimbus.deactivate("flights")
    nimbus.activate("flights")
    nimbus.rebalance("flights", parallelism={"delays": 4})
    assert nimbus.flow("flights").status == "REBALANCING"
    nimbus.kill("flights", wait_seconds=30)
    seen = nimbus.cluster(), nimbus.flow("flights")  # what runs, where, how far, how late
    told = [line.event for line in nimbus.history("flights")]
    nimbus.close()
    assert seen[0].flows == (seen[1],)
    assert told == ["SUBMIT", "INACTIVATE", "ACTIVATE", "REBALANCE", "KILL"]


def test_the_run_topology_example_runs_as_written() -> None:
    topology = wordcount()
    found = run_topology(topology, {"sentences": [[("the man",)], [("the",)]]}, engine="reference")  # batches a source
    assert found == {"word_counts": [{"word": "man", "count": 1}, {"word": "the", "count": 2}]}
