"""Dagster's daemon on one host, web server and workers on another: databases in PostgreSQL, the lake in a bucket."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from ops.demo_store import free_port
from ops.launcher.run_launcher import PROCESS_TAG
from pipelines.places.location import Location
from tests.browser.dagster_ui import DagsterUi, _answering
from tests.nimbus.deployment import PATIENCE, PROJECT, Deployment, end_all, wait_for
from tests.places.conftest import SERVERS
from tests.places.flows_on_s3 import DATA

DEPLOY = PROJECT / "deploy"


def procfile() -> dict[str, list[str]]:
    """The commands by the names of their processes."""
    lines = [line for line in (DEPLOY / "Procfile").read_text("utf-8").splitlines() if not line.startswith("#")]
    return {name: command.split() for name, _, command in (line.partition(": ") for line in lines)}


def test_the_instance_differs_in_its_storage_alone() -> None:
    ours = yaml.safe_load((PROJECT / "dagster.yaml").read_text("utf-8"))
    several = yaml.safe_load((DEPLOY / "dagster.yaml").read_text("utf-8"))
    assert several.pop("storage") == {"postgres": {"postgres_url": {"env": "DAGSTER_POSTGRES_URL"}}}
    assert several == ours


def test_each_process_has_its_command() -> None:
    assert {name: command[0] for name, command in procfile().items()} == {
        "web": "python",
        "daemon": "dagster-daemon",
        "supervisor": "tridelta",
    }


@contextmanager
def process(name: str, home: Path, database: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the Procfile on the host of a home."""
    dagster = home / "dagster"
    dagster.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(DEPLOY / "dagster.yaml", dagster / "dagster.yaml")
    environment = os.environ | {
        "TRIDELTA_HOME": str(home),
        "TRIDELTA_HOST": home.name,
        "DAGSTER_HOME": str(dagster),
        "DAGSTER_POSTGRES_URL": database,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONWARNINGS": "ignore",
    }
    with (home / f"{name}.log").open("ab") as out:
        started = subprocess.Popen(
            [*procfile()[name], *options], cwd=PROJECT, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield started
    finally:
        started.terminate()
        started.wait(60)


def batches_shown(ui: DagsterUi, asset: str) -> list[int]:
    """The last txids of an asset's materializations, the newest first."""
    query = """query($k: AssetKeyInput!) {assetOrError(assetKey: $k) {... on Asset {
        assetMaterializations {metadataEntries {label ... on IntMetadataEntry {intValue}}}}}}"""
    made = ui.ask(query, k={"path": [asset]})["assetOrError"].get("assetMaterializations", [])
    entries = [{entry["label"]: entry.get("intValue") for entry in one["metadataEntries"]} for one in made]
    return [entry["txid_last"] for entry in entries if "txid_last" in entry]


def launch(ui: DagsterUi, job: str, config: dict[str, Any]) -> str:
    """Launch a job as the launchpad does; its run's id."""
    query = """mutation($p: ExecutionParams!) {launchRun(executionParams: $p) {__typename
        ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}
        ... on RunConfigValidationInvalid {errors {message}}}}"""
    selector = {"repositoryName": "__repository__", "repositoryLocationName": "tridelta", "jobName": job}
    answer = ui.ask(query, p={"selector": selector, "runConfigData": config})["launchRun"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    return str(answer["run"]["runId"])


def host_of(run_id: str, dagster: Path) -> str:
    """The host of a run's process; the UI hides the tag."""
    with dg.DagsterInstance.from_config(str(dagster)) as instance:
        run = instance.get_run_by_id(run_id)
        assert run is not None
        return str(json.loads(run.tags[PROCESS_TAG])["host"])


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_a_deployment_over_two_hosts(
    s3_jars: None, place: Location, postgres: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, registry = place / "in", postgres()
    # As deploy/cluster.env says.
    database = postgres().replace("postgresql:", "postgresql+psycopg2:")
    monkeypatch.setenv(DATA, str(data))
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", database)
    given: dict[str, Any] = {"flows": "tests.places.flows_on_s3", "lake": place / "lake", "data": data}
    a, b, port = tmp_path / "a", tmp_path / "b", free_port()
    with Deployment(b, registry=registry, supervisors=("b",), environment={"TRIDELTA_HOST": "b"}, **given) as here:
        here.feed("numbers")
        try:
            with process("web", b, database, "--port", str(port)) as web:
                ui = _answering(DagsterUi(f"http://127.0.0.1:{port}", b), web, b / "web.log")
                with process("daemon", a, database) as daemon:
                    launch(
                        ui,
                        "deploy_job",
                        {"ops": {"deploy_flow": {"config": {"flow": "numbers", "trigger_seconds": 0.3}}}},
                    )
                    (run,) = ui.wait_for("deploy_job")
                    assert run["status"] == "SUCCESS", (b / "web.log").read_text("utf-8")[-3000:]
                    assert host_of(run["runId"], a / "dagster") == "a"
                    assert here.task("numbers").supervisor == "b"
                    here.settles()
                    wait_for(lambda: batches_shown(ui, "sums_by_key"), PATIENCE, lambda: str(ui.runs()))
                    daemon.kill()
                    end_all(a)
                here.next_batch("numbers")
                here.settles()
                last = here.lake.state("sums_by_key").commits.batches()[-1].txid
                with process("daemon", b, database):
                    wait_for(
                        lambda: last in batches_shown(ui, "sums_by_key"),
                        PATIENCE,
                        lambda: str(batches_shown(ui, "sums_by_key")),
                    )
                    here.ends_well()
                shown = batches_shown(ui, "sums_by_key")
                assert shown == sorted(set(shown), reverse=True), "each batch is reported once, in order"
                assert not (b / "lake").exists()
        finally:
            end_all(a)
