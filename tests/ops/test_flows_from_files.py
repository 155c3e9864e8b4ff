"""A flow that was deployed from a YAML file is operated like one of the catalog: by its name, or by its file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ops import housekeeping
from ops.cli import app as commands
from pipelines.catalog import FlowSettings
from pipelines.maintenance import HousekeepingReport, Retention
from pipelines.maintenance.housekeeping import Flows
from pipelines.state.kinds import ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from tests.state.small_kinds import SmallTable

TEXT = (
    "flow: orders\nstreams:\n  - name: s\n    source: {json_files: {path: in, schema: v bigint}}\n"
    "    operations: [{persist: kept}]\n"
)


@pytest.fixture
def file(home: Path) -> Path:
    """A file whose flow is deployed."""
    path = home / "orders.yaml"
    path.write_text(TEXT)
    run("submit", str(path), "--inactive", "--no-supervisor", "--no-wait")
    return path


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(commands.app, arguments)
    assert done.exit_code == code, done.output + str(done.exception)
    return done


def named_as(how: str, file: Path) -> str:
    """Return what a user writes."""
    if how == "gone":
        # The text is in the registry.
        file.unlink()
    return str(file) if how == "file" else "orders"


@pytest.mark.parametrize("how", ["name", "file", "gone"])
def test_verbs_without_spark(file: Path, how: str) -> None:
    named = named_as(how, file)
    assert "NoPoisonBatchError" in run("skip", named, "0", code=1).stderr
    assert [one["name"] for one in json.loads(run("plan", named, "--json").stdout)["states"]] == ["kept"]
    assert 'flow "orders"' in run("query", named, "q", code=1).stderr
    assert json.loads(run("adopt", named, "--json").stdout) == {"flow": "orders", "adopted": {}}
    assert 'no state "quarantine of orders"' in run("replay-quarantine", named, "--dry-run", code=1).stderr
    assert json.loads(run("replay-quarantine", named, "--history", "--json").stdout) == []


@pytest.mark.parametrize("how", ["name", "file", "gone"])
def test_verbs_with_spark(file: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[str] = []

    def work(spark: Any, lake: Any, topology: Any, *_: Any) -> Any:
        got.append(topology.name)
        return SimpleNamespace(to_json=dict, differing=(), faults=(), tables=())

    def catch_up(topology: Any, **_: Any) -> Any:
        return work(None, None, topology)

    @contextmanager
    def engine(_: bool) -> Iterator[Any]:
        yield SimpleNamespace(spark=None, lake=None, catch_up=catch_up)

    monkeypatch.setattr(commands, "engine", engine)
    monkeypatch.setattr("pipelines.execution.verify.verify", work)
    monkeypatch.setattr("pipelines.maintenance.compaction.compact", work)
    monkeypatch.setattr(commands.rendering, "flat_tables", lambda _: [])
    named = named_as(how, file)
    run("verify", named, "--json")
    run("compact", named, "--json")
    run("run", named, "--json")
    assert got == ["orders"] * 3


SLICED = TEXT.replace("schema: v bigint}}", "schema: 'v bigint, day string'}}\n    slice_by: day")


@pytest.fixture
def backfilled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """What is backfilled, with no Spark."""
    got: list[tuple[str, list[str]]] = []

    def backfill(topology: Any, slices: list[str], **_: Any) -> Any:
        got.append((topology.name, slices))
        return SimpleNamespace(to_json=dict, failed=())

    @contextmanager
    def engine(_: bool) -> Iterator[Any]:
        yield SimpleNamespace(backfill=backfill)

    monkeypatch.setattr(commands, "engine", engine)
    return got


@pytest.mark.parametrize("how", ["name", "file", "gone"])
def test_slices_of_a_flow_from_a_file(home: Path, how: str, backfilled: list[tuple[str, list[str]]]) -> None:
    file = home / "orders.yaml"
    file.write_text(SLICED)
    run("submit", str(file), "--inactive", "--no-supervisor", "--no-wait")
    named = named_as(how, file)
    run("backfill", named, "--from", "2026-01-01", "--to", "2026-01-02", "--json")
    run("backfill", named, "--slice", "EMEA", "--slice", "2026-01-05", "--json")
    assert backfilled == [("orders", ["2026-01-01", "2026-01-02"]), ("orders", ["EMEA", "2026-01-05"])]
    for wrong in (["--from", "2026-01-01"], ["--from", "EMEA", "--to", "EMEA"], [], ["--to", "a", "--slice", "a"]):
        assert "DefinitionError" in run("backfill", named, *wrong, code=1).stderr


def test_slices_of_a_flow_of_the_catalog(home: Path, backfilled: list[tuple[str, list[str]]]) -> None:
    run("backfill", "flights", "--slice", "2013-01-05", "--json")
    assert backfilled == [("flights", ["2013-01-05"])]
    assert "not a slice of this flow" in run("backfill", "flights", "--slice", "2012-01-05", code=1).stderr


def test_a_flow_from_a_file_that_is_not_sliced(file: Path) -> None:
    done = run("backfill", str(file), "--slice", "a", code=1)
    assert ("is not sliced" in done.stderr, f"tridelta run {file}" in done.stderr.replace("\n", "")) == (True, True)


def test_a_flow_that_is_gone_is_compacted_by_its_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []

    def compact(spark: Any, lake: Any, flow: Any, *_: Any) -> Any:
        got.append(flow)

    @contextmanager
    def engine(_: bool) -> Iterator[Any]:
        yield SimpleNamespace(spark=None, lake=None)

    monkeypatch.setattr(commands, "engine", engine)
    monkeypatch.setattr("pipelines.maintenance.compaction.compact", compact)
    monkeypatch.setattr(commands.rendering, "flat_tables", lambda _: [])
    SmallTable(home / "lake", ROWS, TRANSACTIONAL).commit(0, ("a", 1))
    done = run("compact", "shop", "--json")
    assert (got, json.loads(done.stdout)) == (["shop"], [])
    assert "Nobody knows the flow shop here" in done.stderr
    assert "UnknownFlowError" in run("compact", "shops", code=1).stderr


def test_what_nobody_knows_is_still_refused(file: Path) -> None:
    assert 'no flow "ordres" in the catalog' in run("skip", "ordres", "0", code=1).stderr
    refused = run("run", "ordres", code=1).stderr
    assert ("UnknownFlowError" in refused, "name its file: FILE.yaml" in refused) == (True, True)


def test_who_only_looks_makes_no_tables(home: Path) -> None:
    """They may be missing for as long as a restore takes."""
    registry = home / "nimbus" / "registry.db"
    registry.parent.mkdir(parents=True)
    registry.touch()
    assert "UnknownFlowError" in run("skip", "orders", "0", code=1).stderr
    run("housekeeping", "--dry-run")
    with closing(sqlite3.connect(registry)) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == []


def test_housekeeping_compacts_what_was_deployed_from_a_file(
    file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[Any] = []
    sessions: list[Any] = []

    def rounds(lake: Any, registry: Any, kept: Any, *, flows: Flows, **_: Any) -> Any:
        got.extend(flows.flows)
        sessions.append(flows.spark)
        return HousekeepingReport((), 0.0)

    monkeypatch.setattr("pipelines.maintenance.run_housekeeping", rounds)
    monkeypatch.setattr("pipelines.maintenance.housekeeping.flows_in", lambda _: ["flights", "orders", "unknown"])
    lake, settings, kept = Lake(home / "lake"), FlowSettings(home), Retention(run_days=None)
    housekeeping.run_round(lake, settings, kept, compacts=True)
    assert [getattr(flow, "name", flow) for flow in got] == ["flights", "orders", "unknown"]
    assert [isinstance(flow, str) for flow in got] == [False, False, True]
    got.clear()
    # By Dagster, whose job has a step for each of the catalog's flows. The unknown one may be of another deployment.
    session: Any = object()
    night = housekeeping.Night(lambda: session, ["flights"])
    housekeeping.run_round(lake, settings, kept, night=night)
    assert [getattr(flow, "name", flow) for flow in got] == ["orders"]
    assert sessions.pop()() is session
    got.clear()
    housekeeping.run_round(lake, settings, kept)
    assert got == []
    assert sessions == [None, None]
    # A deployed one whose module does not load, by its name; until it is removed.
    run("submit", "flights", "--inactive", "--no-supervisor", "--no-wait")
    monkeypatch.setattr(housekeeping, "found", lambda: ((), ()))
    night = housekeeping.Night(lambda: session)
    housekeeping.run_round(lake, settings, kept, night=night)
    assert [flow if isinstance(flow, str) else flow.name for flow in got] == ["flights", "orders"]
    assert isinstance(got[0], str)
    got.clear()
    with closing(sqlite3.connect(home / "nimbus" / "registry.db")) as database, database:
        database.execute("UPDATE flows SET removed_at = 1 WHERE name = 'flights'")
    housekeeping.run_round(lake, settings, kept, night=night)
    assert [flow if isinstance(flow, str) else flow.name for flow in got] == ["orders"]
