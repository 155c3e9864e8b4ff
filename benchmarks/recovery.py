"""Recovery: from SIGKILL of a deployed flow's worker to the next batch that is in its table.

Real processes with Nimbus' default settings, its standby among them: `python -m benchmarks.recovery`.
"""

from __future__ import annotations

import json
import statistics
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.measure import Ratio, scratch
from pipelines.nimbus.processes.life import STANDBY, Life
from pipelines.nimbus.settings import NimbusSettings
from tests.nimbus.deployment import PATIENCE, Deployment, wait_for
from tests.nimbus.faults import kill_worker

PEER = (
    "the bars of 4 s and 10 s, and 30 s, after which the original takes a silent task for dead; Nimbus' default settings, "
    "without the pause between restarts. A standby is up at each kill; the last lines are without one."
)
# With a standby, and without.
KILLS = {True: 5, False: 2}
# A worker that has lived for a minute is started at once when it dies; here it never lives so long.
NO_PAUSE_SECONDS = 0.0
STEPS = ("worker died", "worker up", "query running", "batch finished")
"""What the logs of supervisor and worker tell, in order: noticed, Spark is up, the query runs, the batch is in the table."""


def recover(here: Deployment) -> list[float]:
    """Kill the worker of `numbers`. Returns the seconds from one of `STEPS` to the next."""
    began = time.time()
    pid = kill_worker(here, "numbers")
    here.next_batch("numbers", pid)
    files = [here.nimbus.settings.supervisor_folder("one") / "supervisor.jsonl"]
    files.append(here.nimbus.settings.worker_folder("one", 6900) / "worker.jsonl")
    told = sorted((line for file in files for line in _lines(file)), key=lambda line: float(line["at"]))
    moments = [began]
    for step in STEPS:
        moments.append(next(float(one["at"]) for one in told if one["event"] == step and one["at"] >= moments[-1]))
    return [after - before for before, after in pairwise(moments)]


def runs(folder: Path, *, standby: bool) -> list[list[float]]:
    """The steps of each of the kills."""
    plain = NimbusSettings(folder)
    chosen = {
        name: getattr(plain, name)
        for name in ("beat_seconds", "lease_seconds", "task_timeout_seconds", "monitor_seconds", "worker_memory_mb")
    }
    quick = {"SPARK_SUBMIT_OPTS": ""}
    with Deployment(
        folder / "home", environment=quick, back_off_seconds=NO_PAUSE_SECONDS, standby=int(standby), **chosen
    ) as here:
        here.submit("numbers", trigger_seconds=1.0)
        here.runs("numbers")
        here.settles()
        found, file = [], Life(here.nimbus.settings, "one", STANDBY)
        for _ in range(KILLS[standby]):
            if standby:
                wait_for(lambda: file.read() is not None, PATIENCE, here.told)
            found.append(recover(here))
            here.settles()
        return found


def measure(spark: Any = None) -> list[Ratio]:
    """Median and worst, with a standby against the bars, without one against the original's time-out."""
    found: list[Ratio] = []
    for standby in (True, False):
        with scratch("recovery") as folder:
            silent = NimbusSettings(folder).task_timeout_seconds
            steps = runs(folder, standby=standby)
        totals = [sum(step) for step in steps]
        named = zip(("noticed", "Spark up", "query running", "batch committed"), zip(*steps, strict=True), strict=True)
        print({name: round(statistics.median(taken), 2) for name, taken in named})
        what = f"next batch after a SIGKILL of the worker, {'with' if standby else 'without'} a standby"
        against = ("4 s", "10 s") if standby else ("task time-out", "task time-out")
        bars = (4.0, 10.0) if standby else (silent, silent)
        found += [
            Ratio(f"{what}: median", against[0], statistics.median(totals), bars[0], "s", 1.0),
            Ratio(f"{what}: worst of {KILLS[standby]}", against[1], max(totals), bars[1], "s", 1.0),
        ]
    return found


def _lines(file: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [line | {"at": datetime.fromisoformat(line["timestamp"]).timestamp()} for line in found]


if __name__ == "__main__":
    for one in measure():
        print(f"{one.what}: {one.ours:.2f} {one.unit}")
