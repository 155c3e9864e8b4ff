"""OpenLineage events of real runs, as the client writes them to a file: jobs, runs, tables, columns and where those come from."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import DefinitionError, MissingPathError
from pipelines.execution.batch.group import BatchGroup
from pipelines.execution.events import openlineage as lineage_events
from pipelines.execution.events.openlineage import BATCH, STREAMING, LineageRun, lineage_run
from pipelines.execution.report import StateCommit
from pipelines.sources import FixedBatches, JsonFiles
from pipelines.trident import Count, DeltaState, MapGet, Sum, TridentTopology

pytest.importorskip("openlineage.client")

Events = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Events]:
    """Switches the events on, into a file; gives those that are there."""
    file = tmp_path / "events.json"
    monkeypatch.setenv("TRIDELTA_OPENLINEAGE", "1")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(file))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    lineage_events._client.cache_clear()
    yield lambda: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    lineage_events._client.cache_clear()


def sales(folder: Path) -> TridentTopology:
    topology = TridentTopology("sales", "What was sold.")
    sold = topology.new_stream("receipts", JsonFiles(folder, "day string, shop string, n bigint"), slice_by="day")
    shops = sold.group_by("shop").persistent_aggregate(DeltaState("shops"), [Count("receipts"), Sum("n", "sold")])
    (
        sold.state_query(shops, "shop", MapGet(), ["receipts", "sold"])
        .project(["shop", "sold"])
        .partition_persist(DeltaState("standing"))
    )
    return topology


def columns(output: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    fields = output["facets"]["columnLineage"]["fields"]
    return {name: [(one["name"], one["field"]) for one in field["inputFields"]] for name, field in fields.items()}


@pytest.mark.slow
def test_runs_are_told_with_their_tables_and_columns(spark: SparkSession, tmp_path: Path, events: Events) -> None:
    folder, lake = tmp_path / "receipts", Lake(tmp_path / "lake")
    folder.mkdir()
    (folder / "1.json").write_text('{"day": "d1", "shop": "a", "n": 3}\n{"day": "d2", "shop": "a", "n": 4}\n')
    runtime = Runtime(spark, lake)
    runtime.catch_up(sales(folder))

    start, complete = events()
    assert [one["eventType"] for one in (start, complete)] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert start["job"]["namespace"] == "tridelta"
    assert start["job"]["name"] == "sales.receipts"
    assert start["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert start["job"]["facets"]["documentation"]["description"] == "What was sold."
    assert [(one["namespace"], one["name"]) for one in start["inputs"]] == [("file", str(folder))]

    shops, standing = complete["outputs"]
    assert (shops["namespace"], shops["name"]) == ("file", str(lake.state_path("shops")))
    kinds = {one["name"]: one["type"] for one in shops["facets"]["schema"]["fields"]}
    assert kinds == {"shop": "string", "receipts": "bigint", "sold": "bigint"}
    assert columns(shops) == {"shop": [(str(folder), "shop")], "receipts": [], "sold": [(str(folder), "n")]}
    assert columns(standing)["sold"] == [(str(lake.state_path("shops")), "sold")]
    assert shops["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert shops["facets"]["version"]["datasetVersion"] == str(lake.state("shops").version())

    runtime.backfill(sales(folder), ["d2"])
    *_, start, complete = events()
    assert [one["eventType"] for one in (start, complete)] == ["START", "COMPLETE"]
    assert start["run"]["runId"] not in [one["run"]["runId"] for one in events()[:2]]
    (asked,) = start["run"]["facets"]["executionParameters"]["parameters"]
    assert (asked["key"], asked["value"]) == ("slices", "d2")

    running = runtime.stream(sales(folder))
    assert [one["eventType"] for one in events()[4:]] == ["START"]
    running.stop()
    start, complete = events()[4:]
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert complete["job"]["facets"]["jobType"]["processingType"] == "STREAMING"


@pytest.mark.slow
def test_fixed_batches_are_named_by_their_place_in_the_lake(
    spark: SparkSession, tmp_path: Path, events: Events
) -> None:
    topology = TridentTopology("fixed")
    words = topology.new_stream("words", FixedBatches("word string, n bigint", [[("a", 1)]]))
    words.partition_persist(DeltaState("kept"))
    Runtime(spark, Lake(tmp_path / "lake")).catch_up(topology)

    _, complete = events()
    (read,) = complete["inputs"]
    assert Path(read["name"]).is_relative_to(tmp_path / "lake")
    assert list(Path(read["name"]).glob("*.parquet"))
    (kept,) = complete["outputs"]
    assert columns(kept)["n"] == [(read["name"], "n")]


def test_a_run_that_goes_on_is_told_from_time_to_time(
    spark: SparkSession, tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = sales(tmp_path / "receipts")
    (tmp_path / "receipts").mkdir()
    group = BatchGroup(spark, Lake(tmp_path / "lake"), topology, topology.spouts)

    def wrote(run: LineageRun, version: int) -> None:
        """A batch is committed; waits until all is told."""
        run.wrote([StateCommit("shops", version, rows=2, seconds=0.1)])
        for thread in threading.enumerate():
            if thread.name == "lineage":
                thread.join()

    with lineage_run(group, STREAMING) as run:
        assert run is not None
        wrote(run, 0)
        monkeypatch.setattr(lineage_events, "RUNNING_EVERY_SECONDS", 0.0)
        wrote(run, 1)
        monkeypatch.setattr(lineage_events, "RUNNING_EVERY_SECONDS", 60.0)
        wrote(run, 2)
    # One that was on its way when the run ended does not bring it to life again.
    run.tell("RUNNING")
    found = events()
    assert [one["eventType"] for one in found] == ["START", "RUNNING", "COMPLETE"]
    assert len({one["run"]["runId"] for one in found}) == 1
    shops = [one["outputs"][0] for one in found]
    assert [one["outputFacets"]["outputStatistics"]["rowCount"] for one in shops] == [0, 4, 6]
    assert [one["facets"].get("version", {}).get("datasetVersion") for one in shops] == [None, "1", "2"]

    # What ends by itself is told at its end.
    monkeypatch.setattr(lineage_events, "RUNNING_EVERY_SECONDS", 0.0)
    with lineage_run(group, BATCH) as run:
        assert run is not None
        wrote(run, 3)
    assert [one["eventType"] for one in events()[3:]] == ["START", "COMPLETE"]


def test_what_fails_says_why(
    spark: SparkSession, tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lake = tmp_path / "receipts", Lake(tmp_path / "lake")
    folder.mkdir()
    (folder / "1.json").write_text('{"day": "?", "shop": "a", "n": 3}\n')
    with pytest.raises(DefinitionError):
        Runtime(spark, lake).backfill(sales(folder), ["?"])
    start, failed = events()
    assert (start["eventType"], failed["eventType"]) == ("START", "FAIL")
    assert "reserved" in failed["run"]["facets"]["errorMessage"]["message"]


def test_a_collector_that_does_not_answer_stops_no_flow(
    spark: SparkSession,
    tmp_path: Path,
    events: Events,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "receipts"
    folder.mkdir()
    (folder / "1.json").write_text('{"day": "d1", "shop": "a", "n": 3}\n')
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(tmp_path / "receipts" / "1.json" / "no folder"))
    report = Runtime(spark, Lake(tmp_path / "lake")).backfill(sales(folder), ["d1"])
    assert not report.failed
    assert not events()


def test_nothing_is_told_unless_asked_for(
    spark: SparkSession, tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIDELTA_OPENLINEAGE", "off")
    with pytest.raises(MissingPathError):
        Runtime(spark, Lake(tmp_path / "lake")).catch_up(sales(tmp_path / "nowhere"))
    assert not lineage_events.is_on()
    assert not events()


def test_without_the_client_the_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_OPENLINEAGE", "1")
    monkeypatch.setattr(lineage_events, "find_spec", lambda name: None)
    with pytest.raises(DefinitionError, match=r"client is not installed\n  Next: pip install"):
        lineage_events.is_on()
