"""A launch in Dagster's UI to the first batch in the table: handed to a worker that is up, beside a Spark of the run's own.

Two real UIs with daemon, code location and this project's `dagster.yaml`, taking turns: `python -m benchmarks.warm_launch`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Ratio, paired, scratch
from pipelines import Lake
from tests.browser.dagster_ui import LOCATION, DagsterUi, dagster_ui
from tests.nimbus.deployed_flows import ROWS, write
from tests.nimbus.deployment import wait_for

PEER = "the same launch with `TRIDELTA_NIMBUS_WARM=0`: the run starts a Spark of its own."
ROUNDS, BAR = 7, 0.25
PATIENCE = 60.0
_ENVIRONMENT = {
    "TRIDELTA_FLOWS": "tests.nimbus.deployed_flows",
    "TRIDELTA_NIMBUS_PORTS": "6900",
    "TRIDELTA_NIMBUS_WORKER_MEMORY_MB": "1024",
}
_LAUNCH = """mutation($p: ExecutionParams!) {launchRun(executionParams: $p) {__typename
    ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}}}"""


class Launches:
    """Runs of `catch_up_job` over one more file each.

    Args:
        ui: Where they are launched.
    """

    def __init__(self, ui: DagsterUi) -> None:
        self._ui, self._files = ui, 0
        # A run of the schedule would take the file away.
        ui.stop_schedule("catch_up_schedule")

    def seconds(self) -> float:
        """From the request for a launch to the batch in the table."""
        write(self._ui.home / "data" / "numbers", self._files)
        self._files += 1
        before = self._commits()
        began = time.perf_counter()
        selector = LOCATION | {"pipelineName": "catch_up_job", "solidSelection": ["catch_up_numbers"]}
        asked = {"selector": selector, "mode": "default", "runConfigData": "{}"}
        run_id = self._ui.ask(_LAUNCH, p=asked)["launchRun"]["run"]["runId"]
        wait_for(lambda: self._commits() > before, PATIENCE, lambda: f"no batch: {self._status(run_id)}", every=0.02)
        took = time.perf_counter() - began
        wait_for(lambda: self._status(run_id) == "SUCCESS", PATIENCE, lambda: self._status(run_id))
        return took

    def complete(self) -> bool:
        """Whether all rows of all files are there, each once."""
        return Lake(self._ui.home / "lake").state("numbers_kept").count("true") == self._files * ROWS

    def _commits(self) -> int:
        log: Path = self._ui.home / "lake" / "states" / "numbers_kept" / "_delta_log"
        return len(list(log.glob("*.json")))

    def _status(self, run_id: str) -> str:
        return str(next(one["status"] for one in self._ui.runs() if one["runId"] == run_id))


def measure(spark: Any = None) -> list[Ratio]:
    """Medians of launches in turn; the first of each kind, which starts what stays up, is not counted."""
    with (
        scratch("warm-launch") as folder,
        dagster_ui(folder / "warm", **_ENVIRONMENT, TRIDELTA_NIMBUS_WARM="1") as one,
        dagster_ui(folder / "own", **_ENVIRONMENT, TRIDELTA_NIMBUS_WARM="0") as other,
    ):
        warm, own = Launches(one), Launches(other)
        wait_for(lambda: _warm_one(one.home), PATIENCE, lambda: "no warm worker")
        for _ in range(2):
            warm.seconds()
        own.seconds()
        mine, its = paired(warm.seconds, own.seconds, ROUNDS)
        if not (warm.complete() and own.complete()):
            raise RuntimeError("rows are missing or doubled")
    return [Ratio("launch in the UI to the first batch, handed to a worker", "a Spark of its own", mine, its, "s", BAR)]


def _warm_one(home: Path) -> bool:
    return any(home.glob("nimbus/supervisors/*/*.endpoint.json"))


if __name__ == "__main__":
    for one in measure():
        print(f"{one.what}: {one.ours:.2f} against {one.theirs:.2f} {one.unit}, {one.ratio:.2f} (bar {one.bar:g})")
