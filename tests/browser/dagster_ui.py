"""The whole product as its user starts it: `make ui`'s command in a process of its own, with a home of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import requests

PROJECT = Path(__file__).resolve().parent.parent.parent
STARTS_WITHIN = 180.0
LOCATION = {"repositoryName": "__repository__", "repositoryLocationName": "tridelta"}


class DagsterUi:
    """A running webserver with its daemon and code location.

    Args:
        url: Where it listens.
        home: TRIDELTA_HOME.
    """

    def __init__(self, url: str, home: Path) -> None:
        self.url, self.home = url, home

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """A GraphQL request; its `data`."""
        answer = requests.post(f"{self.url}/graphql", json={"query": query, "variables": variables}, timeout=60).json()
        assert "errors" not in answer, answer["errors"]
        data: dict[str, Any] = answer["data"]
        return data

    def runs(self, job: str | None = None) -> list[dict[str, Any]]:
        """The runs, the newest first."""
        query = "{runsOrError{... on Runs{results{runId status jobName tags{key value} startTime endTime}}}}"
        found: list[dict[str, Any]] = self.ask(query)["runsOrError"]["results"]
        return [one for one in found if job in (None, one["jobName"])]

    def wait_for(self, job: str, count: int = 1, seconds: float = 240) -> list[dict[str, Any]]:
        """Wait until so many runs of a job have ended."""
        deadline = time.monotonic() + seconds
        while True:
            runs = self.runs(job)
            if len([one for one in runs if one["status"] in ("SUCCESS", "FAILURE", "CANCELED")]) >= count:
                return runs
            assert time.monotonic() < deadline, runs
            time.sleep(0.5)

    def stop_schedule(self, name: str) -> None:
        """Turn a schedule off, as its switch in the UI does."""
        query = """query($s: ScheduleSelector!) {scheduleOrError(scheduleSelector: $s) {... on Schedule {scheduleState {id}}}}"""
        found = self.ask(query, s=LOCATION | {"scheduleName": name})["scheduleOrError"]["scheduleState"]
        query = """mutation($id: String!) {stopRunningSchedule(id: $id) {... on ScheduleStateResult {scheduleState {status}}}}"""
        stopped = self.ask(query, id=found["id"])["stopRunningSchedule"]
        assert stopped["scheduleState"]["status"] == "STOPPED"

    def materialized(self, asset: Sequence[str]) -> list[str | None]:
        """The partitions of an asset's materializations, the newest first."""
        query = "query($k:AssetKeyInput!){assetOrError(assetKey:$k){... on Asset{assetMaterializations{partition}}}}"
        found = self.ask(query, k={"path": list(asset)})["assetOrError"]
        return [one["partition"] for one in found.get("assetMaterializations", [])]


@contextmanager
def dagster_ui(home: Path, **environment: str) -> Iterator[DagsterUi]:
    """Start it, and end all that it has started, deployed flows included."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = home / "ui.log"
    home.mkdir(parents=True, exist_ok=True)
    chosen = os.environ | {"TRIDELTA_HOME": str(home), "PYTHONPATH": str(PROJECT), **environment}
    for name in ("DAGSTER_HOME", "TRIDELTA_REGISTRY"):
        chosen.pop(name, None)
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ops.web.ui", "--port", str(port)],
            cwd=PROJECT,
            env=chosen,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _answering(DagsterUi(f"http://127.0.0.1:{port}", home), process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _end_all(home)


def _answering(ui: DagsterUi, process: subprocess.Popen[bytes], log: Path) -> DagsterUi:
    """Wait until the code location is loaded."""
    deadline = time.monotonic() + STARTS_WITHIN
    query = "{repositoriesOrError{... on RepositoryConnection{nodes{name}}}}"
    while True:
        try:
            if ui.ask(query)["repositoriesOrError"].get("nodes"):
                return ui
        except (requests.RequestException, ValueError, AssertionError):
            pass
        assert process.poll() is None, log.read_text("utf-8")[-3000:]
        assert time.monotonic() < deadline, log.read_text("utf-8")[-3000:]
        time.sleep(0.3)


def _end_all(home: Path) -> None:
    """Supervisors and workers outlive the UI on purpose; not the test."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TRIDELTA_HOME") == str(home):
                found.append(process)
        except psutil.Error:
            continue
    for process in found:
        try:
            process.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(found, timeout=10)
