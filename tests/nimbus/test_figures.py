"""What waits at a query's sources: counted from Spark's own report, for folders and for Delta tables."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from assets.events.liveness import trouble
from pipelines.execution.report import BatchReport
from pipelines.nimbus.cluster import _TASK_FIELDS
from pipelines.nimbus.status import (
    ASSIGNED,
    DRAINED,
    DRAINING,
    FAILED,
    REPARTITIONING,
    RUNNING,
    STARTING,
    FlowStatus,
    TaskStatus,
)
from pipelines.nimbus.telemetry import figures
from pipelines.nimbus.telemetry.figures import TaskFigures, gone, waiting
from pipelines.sources.folder import literal_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@contextmanager
def held_up(frame: DataFrame, checkpoint: Path) -> Iterator[Any]:
    """A query whose first batch has come through and whose second one stands still."""
    go_on, second = threading.Event(), threading.Event()

    def batch(rows: DataFrame, number: int) -> None:
        rows.count()
        if number:
            second.set()
            go_on.wait(60)

    query = frame.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint)).start()
    try:
        assert second.wait(60)
        yield query
    finally:
        go_on.set()
        query.processAllAvailable()
        query.stop()


def progress(query: Any) -> Mapping[str, Any]:
    found = query.lastProgress
    assert found is not None
    return found if isinstance(found, Mapping) else found.jsonValue  # type: ignore[no-any-return]


def test_files_of_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "arriving here"
    folder.mkdir()
    for number in range(5):
        file = folder / f"{number}.json"
        file.write_text('{"v": 1}\n')
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    (folder / "_draft.json").write_text("{}")
    frame = spark.readStream.schema("v int").option("maxFilesPerTrigger", 1).json(str(folder))
    with held_up(frame, tmp_path / "checkpoint") as query:
        assert waiting(progress(query), tmp_path / "checkpoint") == {"files": 4.0}
    assert waiting(progress(query), tmp_path / "checkpoint") == {}


@pytest.mark.slow
def test_commits_of_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "channel"
    for number in range(4):
        write_deltalake(table, pa.table({"v": [number]}), mode="append")
    frame = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(table))
    with held_up(frame, tmp_path / "checkpoint") as query:
        # It reads the table as it stood when it began; only commits behind that wait.
        write_deltalake(table, pa.table({"v": [9]}), mode="append")
        write_deltalake(table, pa.table({"v": [9]}), mode="append")
        assert waiting(progress(query), tmp_path / "checkpoint")["commits"] >= 2.0
    assert waiting(progress(query), tmp_path / "checkpoint") == {}
    DeltaTable(table).optimize.compact()
    assert waiting(progress(query), tmp_path / "checkpoint") == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ({"description": "KafkaV2[Subscribe[t]]", "metrics": {"maxOffsetsBehindLatest": "7"}}, {"records": 7.0}),
        ({"description": "RateStreamV2[rowsPerSecond=1]", "endOffset": 5}, {}),
        ({"description": "FileStreamSource[file:/nowhere]", "endOffset": '{"logOffset": 3}'}, {}),
        ({"description": "DeltaSource[file:/nowhere]", "endOffset": {"reservoirVersion": 3, "index": -1}}, {}),
        ({"description": "DeltaSource[file:/nowhere]", "endOffset": "no json"}, {}),
        ({"description": None, "endOffset": None, "metrics": None}, {}),
    ],
)
def test_other_sources(source: dict[str, Any], found: dict[str, float], tmp_path: Path) -> None:
    assert waiting({"sources": [source]}, tmp_path) == found
    assert waiting(json.loads(json.dumps({"sources": [source, source]})), tmp_path) == {
        k: 2 * v for k, v in found.items()
    }


def test_sources_that_are_gone_are_named(tmp_path: Path) -> None:
    there, away = tmp_path / "a folder", tmp_path / "away"
    there.mkdir()
    described = [f"FileStreamSource[file:{there}]", f"FileStreamSource[{away}]", f"DeltaSource[file:{away}]"]
    described += ["FileStreamSource[/nowhere/*.json]", "KafkaV2[Subscribe[t]]", "FileStreamSource[s3://bucket/in]", ""]
    assert gone({"sources": [{"description": one} for one in described]}) == [str(away)] * 2
    assert gone({}) == []


def test_nothing_is_known_before_the_first_report(tmp_path: Path) -> None:
    assert waiting({}, tmp_path) == {}


@pytest.mark.parametrize("name", ["50%20off", "a%2Fb", "a b", "a{b}", "plain"])
def test_a_folder_is_looked_for_under_the_name_that_it_has(tmp_path: Path, name: str) -> None:
    """Spark describes a source by its path as text, no URL, with what stands for patterns escaped."""
    table = [{"description": f"DeltaSource[file:{tmp_path}/{name}]"}]
    files = [{"description": f"FileStreamSource[file:{literal_path(str(tmp_path / name))}]"}]
    assert gone({"sources": files}) == gone({"sources": table}) == [str(tmp_path / name)]
    (tmp_path / name).mkdir()
    assert gone({"sources": files}) == gone({"sources": table}) == []


def test_a_batch_that_ends_while_a_beat_reads_the_figures_disturbs_it_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made = TaskFigures("g", 5.0)

    def batch() -> None:
        gate = {"gate": f"g{made._batches}", "checks": [{"name": "n", "success": True}]}
        made.batch(BatchReport("f", "g", made._batches, 0, 1, 0, (), 0.1, gates=(gate,)))

    def disturbed(what: Callable[..., Any]) -> Callable[..., Any]:
        def done(*given: Any) -> Any:
            batch()
            return what(*given)

        return done

    batch()
    batch()
    monkeypatch.setattr(figures, "round", disturbed(round), raising=False)
    monkeypatch.setattr(figures, "asdict", disturbed(asdict))
    assert len(made.to_json()["checks"]) >= 2


class Reports:
    """A query whose last trigger has ended well, without a batch."""

    def __init__(self, report: str | None) -> None:
        self._jsq, self._report = self, report

    def lastProgress(self) -> Reports | None:  # noqa: N802
        return self if self._report else None

    def json(self) -> str | None:
        return self._report


def test_a_count_that_takes_long_pauses_counts_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now, counted = [1000.0], list[float]()
    monkeypatch.setattr(figures.time, "monotonic", lambda: now[0])

    def slow(*_: Any) -> dict[str, float]:
        counted.append(now[0])
        now[0] += 60
        return {"files": 1.0}

    monkeypatch.setattr(figures, "waiting", slow)
    own, query = TaskFigures("g", 5.0), cast("StreamingQuery", Reports("{}"))
    own.look(query, tmp_path)
    own.failed("it failed")
    now[0] += 5
    own.look(query, tmp_path)
    assert own.last_error is None, "a look that counts nothing sees all else"
    now[0] += 290
    own.look(query, tmp_path)
    assert len(counted) == 1
    now[0] += 5
    own.look(query, tmp_path)
    assert counted == [1000.0, 1360.0], "the pause is at most five minutes"


def test_what_is_told_as_its_begin_is_no_attempt_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(figures.time, "time", lambda: now)
    task = TaskFigures("days", 5.0)
    began = []
    for state in (ASSIGNED, FAILED, DRAINED, FAILED):
        now, task.state = now + 10.0, state
        task.begins()
        began.append(task.to_json()["begun_at"])
    assert began == [110.0, 110.0, 130.0, 130.0]


def test_a_failure_is_over_when_a_trigger_has_ended_without_a_batch_too(tmp_path: Path) -> None:
    made = TaskFigures("g", 5.0)
    made.failed("disk")
    made.started(again=True)
    made.look(cast("StreamingQuery", Reports(None)), tmp_path)
    assert made.last_error == "disk"
    assert made.to_json()["failing"]
    made.look(cast("StreamingQuery", Reports("{}")), tmp_path)
    assert made.last_error is None
    assert not made.to_json()["failing"]


def begun(state: str) -> TaskFigures:
    """Figures of a query of a new task that has come so far, from the second 100 on."""
    made = TaskFigures("days", 5.0)
    made.begins()
    made.state = state
    return made


def alerts(made: TaskFigures, now: float) -> list[str]:
    task = TaskStatus(1, **{name: value for name, value in made.to_json().items() if name in _TASK_FIELDS})
    return [*trouble(FlowStatus("days", "days-1-1", "ACTIVE", 1, 1, {}, {}, 0.0, tasks=(task,)), now).values()]


@pytest.mark.parametrize("state", [STARTING, REPARTITIONING, RUNNING, DRAINING])
def test_a_new_task_whose_start_hangs_is_in_trouble(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str
) -> None:
    monkeypatch.setattr("pipelines.nimbus.telemetry.figures.time.time", lambda: 100.0)
    made = begun(state)
    made.look(cast("StreamingQuery", Reports(None)), tmp_path)
    assert alerts(made, 600.0) == []
    assert alerts(made, 7300.0) == ["days: it has not come through a trigger since 7200 s"]


def test_a_query_that_is_idle_is_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its first trigger has ended, without a batch."""
    monkeypatch.setattr("pipelines.nimbus.telemetry.figures.time.time", lambda: 100.0)
    made = begun(RUNNING)
    made.look(cast("StreamingQuery", Reports("{}")), tmp_path)
    assert alerts(made, 7300.0) == []


def test_a_start_that_hangs_behind_what_it_reads_ahead_is_in_trouble(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = 100.0
    monkeypatch.setattr("pipelines.nimbus.telemetry.figures.time.time", lambda: now)
    made = begun(STARTING)
    now = 1000.0
    made.look(cast("StreamingQuery", Reports("{}")), tmp_path)
    assert alerts(made, 1500.0) == []
    assert alerts(made, 2000.0) == ["days: it has not come through a trigger since 1000 s"]


def test_a_task_that_waits_for_the_version_before_is_well() -> None:
    made = TaskFigures("days", 5.0)
    made.state = STARTING
    assert alerts(made, made.to_json()["begun_at"] + 7200) == []
