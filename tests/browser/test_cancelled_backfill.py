"""Backfills that are cancelled in the UI, through the real webserver and daemon: whole slices stay, and Dagster knows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines import Lake
from pipelines.catalog import FlowSettings
from pipelines.catalog.flights_data import lay_out
from pipelines.state.slices import made_slices
from tests.browser.dagster_ui import LOCATION, DagsterUi, dagster_ui
from tests.browser.held_flows import LAST_BEFORE_HOLD
from tests.crash.flights_case import STATES, Expected, assert_equal, contents, flight_files

pytestmark = pytest.mark.slow

ALL = [f"2013-01-{day:02}" for day in range(1, 11)]
DAYS = {"flights": ALL, "daily": ALL[:4]}
TABLES = {"flights": STATES, "daily": ("daily_flights", "daily_counts")}
HELD = {"flights": ALL[2], "daily": ALL[1]}
"""By flow the day in whose midst its backfill is cancelled: in one run of all days, and in the second of a run a day."""


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterUi]:
    home = tmp_path_factory.mktemp("cancelled")
    lay_out(home / "data", days=len(ALL))
    (home / "hold").mkdir()
    given = {"TRIDELTA_FLOWS": "tests.browser.held_flows", "TRIDELTA_NIMBUS_WORKER_MEMORY_MB": "1024"}
    with dagster_ui(home, **given) as started:
        started.stop_schedule("catch_up_schedule")
        yield started


def until(reached: Callable[[], Any], seen: Callable[[], Any] = lambda: "", seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, seen()
        time.sleep(0.3)


def launch(ui: DagsterUi, flow: str) -> str:
    """Launch a backfill of all days, as the UI does."""
    query = """mutation($p: LaunchBackfillParams!) {launchPartitionBackfill(backfillParams: $p) {
        ... on LaunchBackfillSuccess {backfillId} ... on PythonError {message}}}"""
    params = {"assetSelection": [{"path": [one]} for one in TABLES[flow]], "partitionNames": DAYS[flow]}
    return str(ui.ask(query, p=params)["launchPartitionBackfill"]["backfillId"])


def cancel(ui: DagsterUi, backfill: str) -> None:
    query = """mutation($id: String!) {cancelPartitionBackfill(backfillId: $id) {
        __typename ... on PythonError {message}}}"""
    assert ui.ask(query, id=backfill)["cancelPartitionBackfill"] == {"__typename": "CancelBackfillSuccess"}


def status(ui: DagsterUi, backfill: str) -> str:
    query = "query($id: String!) {partitionBackfillOrError(backfillId: $id) {... on PartitionBackfill {status}}}"
    return str(ui.ask(query, id=backfill)["partitionBackfillOrError"]["status"])


def statuses(ui: DagsterUi, backfill: str) -> list[str]:
    """Of its runs, the newest first."""
    return [run["status"] for run in ui.runs() if {"key": "dagster/backfill", "value": backfill} in run["tags"]]


def run_processes(home: Path) -> set[int]:
    """Processes that carry out runs: forks of the one that has loaded all."""
    found = set()
    for process in psutil.process_iter():
        try:
            parent = process.parent()
            ours = parent is not None and process.environ().get("TRIDELTA_HOME") == str(home)
            if ours and process.cmdline() == parent.cmdline() and "ops.launcher.preloaded_runs" in process.cmdline():
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


def assert_whole(ui: DagsterUi, flow: str, days: list[str], twice: Sequence[str] = ()) -> None:
    """The tables of a flow hold these days whole and nothing of others, and Dagster says the same, each once (or twice)."""
    lake = Lake(ui.home / "lake")
    for table in TABLES[flow]:
        assert made_slices(lake.state(table)) == frozenset(days), table
        assert sorted(map(str, ui.materialized([table]))) == sorted([*days, *twice]), table
    files = [file for file in flight_files(FlowSettings(ui.home)) if file.stem in days]
    if flow == "flights":
        assert_equal(contents(lake), Expected(files).states)
        return
    rows = {file.stem: len(file.read_text("utf-8").splitlines()) for file in files}
    counts = {row["date"]: row["flights"] for row in lake.state("daily_counts").scan().to_pylist()}
    kept = lake.state("daily_flights").scan()["date"].to_pylist()
    assert counts == rows == {day: kept.count(day) for day in set(kept)}


@pytest.mark.exhaustive
def test_what_a_cancelled_backfill_leaves_is_whole_and_the_rest_is_made_later(ui: DagsterUi) -> None:
    holds = {flow: ui.home / "hold" / f"{flow} {day}" for flow, day in HELD.items()}
    for hold in holds.values():
        hold.touch()
    backfills = {flow: launch(ui, flow) for flow in TABLES}
    for hold in holds.values():
        until(hold.with_suffix(".reached").exists, ui.runs)
    # In the midst of a slice: the table that is committed last has one day less than the first.
    lake = Lake(ui.home / "lake")
    for flow, day in HELD.items():
        assert day in made_slices(lake.state(LAST_BEFORE_HOLD[flow]))  # type: ignore[operator]
        assert day not in made_slices(lake.state(TABLES[flow][-1]))  # type: ignore[operator]
    assert len(run_processes(ui.home)) == len(holds)
    for backfill in backfills.values():
        cancel(ui, backfill)
    ended = {"CANCELING", "CANCELED", "SUCCESS"}
    for backfill in backfills.values():
        until(lambda backfill=backfill: ended.issuperset(statuses(ui, backfill)), ui.runs)  # type: ignore[misc]
    # A run hears of it a moment after Dagster has noted it.
    for hold in holds.values():
        until(hold.with_suffix(".asked").exists, ui.runs)
    for hold in holds.values():
        hold.unlink()
    for backfill in backfills.values():
        until(lambda backfill=backfill: status(ui, backfill) == "CANCELED", ui.runs)  # type: ignore[misc]
    assert statuses(ui, backfills["flights"]) == ["CANCELED"]
    # The first day's run was over, and those behind the second had not begun.
    assert statuses(ui, backfills["daily"]) == ["CANCELED"] * 3 + ["SUCCESS"]
    for flow, day in HELD.items():
        assert_whole(ui, flow, ALL[: ALL.index(day) + 1])
    until(lambda: not run_processes(ui.home), lambda: run_processes(ui.home))
    _the_rest(ui, backfills.values())


def _the_rest(ui: DagsterUi, before: Iterable[str]) -> None:
    """Of one flow by the job that finds missing slices, of the other by a second backfill of all days."""
    again = launch(ui, "daily")
    query = """mutation($p: ExecutionParams!) {launchRun(executionParams: $p) {
        __typename ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}}}"""
    asked = {"flows": ["flights"], "first": ALL[0], "last": ALL[-1]}
    params = {
        "selector": LOCATION | {"pipelineName": "relaunch_slices_job"},
        "runConfigData": {"ops": {"relaunch_slices": {"config": asked}}},
    }
    assert ui.ask(query, p=params)["launchRun"]["__typename"] == "LaunchRunSuccess"
    assert ui.wait_for("relaunch_slices_job")[0]["status"] == "SUCCESS"
    query = "{partitionBackfillsOrError {... on PartitionBackfills {results {id}}}}"
    (rest,) = {one["id"] for one in ui.ask(query)["partitionBackfillsOrError"]["results"]} - {*before, again}
    for backfill in (rest, again):
        until(lambda backfill=backfill: status(ui, backfill) == "COMPLETED_SUCCESS", ui.runs)  # type: ignore[misc]
    assert_whole(ui, "flights", ALL)
    assert_whole(ui, "daily", DAYS["daily"], twice=ALL[:2])
