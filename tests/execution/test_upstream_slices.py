"""Slices of a flow that reads another flow's table, without Dagster: made where that table holds them, refused where not."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.catalog import FlowSettings
from pipelines.errors import SourceError
from pipelines.execution.report import SliceReport
from pipelines.execution.runners.bounded_inputs import UpstreamSliceError
from pipelines.maintenance import compact
from pipelines.sources import DeltaTableSource
from pipelines.state.record import BatchRecord, CommitRecord
from pipelines.state.slices import made_slices, outdated
from tests.assets import two_flows

pytestmark = pytest.mark.slow

DAYS = ["2024-01-01", "2024-01-02", "2024-01-03"]


def test_a_slice_that_is_not_there_is_refused_alone(spark: SparkSession, tmp_path: Path) -> None:
    settings, lake = FlowSettings(tmp_path), Lake(tmp_path / "lake")
    rides, days = (spec.topology(settings) for spec in two_flows.specs())
    folder = settings.data / "trips"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(json.dumps({"day": DAYS[0], "line": "a", "n": 5}) + "\n")
    runtime = Runtime(spark, lake)
    # The second day is made of no rows; nobody has made the third.
    runtime.backfill(rides, DAYS[:2])
    assert made_slices(lake.state("kept_rides")) == made_slices(lake.state("ride_lines")) == set(DAYS[:2])

    heard: list[SliceReport] = []
    report = runtime.backfill(days, DAYS, progress=heard.append)
    assert [one.slice for one in report.slices] == DAYS
    assert sorted(one.slice for one in heard) == DAYS
    (failed,) = report.failed
    assert failed.error == (
        'flow "days": slice 2024-01-03 was not computed: it reads "kept_rides" of the flow "rides", and that slice is not '
        "there (it holds 2 others, 2024-01-01 to 2024-01-02)\n  Next: make it there first: tridelta backfill rides --from "
        "2024-01-03 --to 2024-01-03; then this one again"
    )
    assert lake.state("passengers").scan().to_pylist() == [{"day": DAYS[0], "passengers": 5}]
    assert made_slices(lake.state("passengers")) == set(DAYS[:2])

    _older_slices_are_found(runtime, settings)

    # The log of a state is no table to read rows from.
    with pytest.raises(SourceError, match="partial values of the keys"):
        DeltaTableSource(lake.state_path("ride_lines"), "line string").check("lines", spark)
    assert made_slices(lake.table(tmp_path / "nothing", "nothing")) == frozenset()


def test_the_next_step_is_one_command_of_a_shell() -> None:
    hint = UpstreamSliceError("days", "a $(x)", "kept", "rides", "it is not there").hint
    command = hint.removeprefix("make it there first: ").removesuffix("; then this one again")
    assert shlex.split(command) == ["tridelta", "backfill", "rides", "--from", "a $(x)", "--to", "a $(x)"]


def _older_slices_are_found(runtime: Runtime, settings: FlowSettings) -> None:
    rides, days = (spec.topology(settings) for spec in two_flows.specs())
    kept, passengers = runtime.lake.state("kept_rides"), runtime.lake.state("passengers")
    said = [one.record for one in passengers.history() if one.record and one.record.read]
    assert {one.read["kept_rides"] for one in said if one.read} == {kept.version()}
    assert [one.read_ids for one in said] == [{"kept_rides": kept.id}] * 2
    assert outdated(passengers, kept, DAYS) == {}
    # Made again by a backfill, or met by the stream; a slice of no rows too.
    runtime.backfill(rides, [DAYS[1]])
    assert [(slice_, one.kind) for slice_, one in outdated(passengers, kept, DAYS).items()] == [(DAYS[1], "slice")]
    for file, count in (("2.json", 4), ("3.json", 2)):
        (settings.data / "trips" / file).write_text(json.dumps({"day": DAYS[0], "line": "a", "n": count}) + "\n")
        runtime.catch_up(rides)
    assert {slice_: one.kind for slice_, one in outdated(passengers, kept, DAYS).items()} == {
        DAYS[0]: "batch",
        DAYS[1]: "slice",
    }
    assert list(outdated(passengers, kept, DAYS[1:])) == [DAYS[1]]
    assert not runtime.backfill(days, DAYS[:2]).failed
    # The same rows in other files make nothing stale.
    before = kept.version()
    compact(runtime.spark, runtime.lake, rides)
    assert kept.version() > before
    assert outdated(passengers, kept, DAYS) == {}
    assert passengers.scan().to_pylist() == [{"day": DAYS[0], "passengers": 11}]


@pytest.mark.parametrize(
    ("read", "stale"), [(None, ["a"]), ({"other": 9}, ["a"]), ({"source": 2}, ["b"]), ({"source": 4}, [])]
)
def test_slices_without_a_recorded_version_count_by_time(
    tmp_path: Path, read: dict[str, int] | None, stale: list[str]
) -> None:
    """Of the source a was written at noon, as version 2, and b before, as version 3: a clock was set back."""

    def commit(version: int, hour: int, slice_: str, read: dict[str, int] | None = None) -> CommitRecord:
        record = BatchRecord(kind="slice", flow="f", slice=slice_, read=read)
        return CommitRecord(version, datetime(2024, 1, 1, hour, tzinfo=UTC), "WRITE", record)

    source: Any = SimpleNamespace(name="source", path=tmp_path, exists=lambda: True, last=(4, "id"))
    source.history = lambda: [commit(2, 12, "a"), commit(3, 10, "b")]
    table: Any = SimpleNamespace(exists=lambda: True)
    table.commits = SimpleNamespace(counting=lambda: [commit(7, 11, "a", read), commit(8, 11, "b", read)])
    assert list(outdated(table, source, ["a", "b"])) == stale
