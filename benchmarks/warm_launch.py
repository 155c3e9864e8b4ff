"""A run of Dagster: from its launch to the first batch in the table, handed to a worker that is up beside a Spark of its own.

Real processes, as Dagster's run launcher starts them, taking turns: `python -m benchmarks.warm_launch`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Ratio, paired, scratch
from tests.nimbus.deployment import PATIENCE, PROJECT, Deployment, wait_for

ROUNDS, BAR = 5, 0.25
_RUN = """
import sys
import dagster as dg
from definitions import defs, settings

job = defs.get_job_def("catch_up_job")
with dg.DagsterInstance.get() as instance:
    done = job.execute_in_process(op_selection=["catch_up_numbers"], instance=instance)
sys.exit(not done.success)
"""


def launch(here: Deployment, *, warm: bool) -> tuple[float, float]:
    """Launch a run over one more file. Returns seconds to its first batch in the table, and to the run's end."""
    before = _batches(here)
    here.feed("numbers")
    home = here.home / "dagster"
    home.mkdir(exist_ok=True)
    variables = {
        "DAGSTER_HOME": str(home),
        "SPARK_SUBMIT_OPTS": "",
        # Another home of Nimbus has no worker.
        "TRIDELTA_NIMBUS_HOME": str(here.home / ("nimbus" if warm else "nobody")),
    }
    began = time.perf_counter()
    run = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _RUN],
        cwd=PROJECT,
        env=os.environ | here.environment | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: _batches(here) > before or run.poll(), PATIENCE, lambda: "no batch", every=0.02)
    first = time.perf_counter() - began
    if run.wait():
        raise RuntimeError(f"the run ended with {run.returncode}")
    return first, time.perf_counter() - began


def imports(here: Deployment) -> float:
    """Seconds that a run's process needs before it knows what to do: the part that no worker can take over."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import definitions"],
        cwd=PROJECT,
        env=os.environ | here.environment,
        check=True,
    )
    return time.perf_counter() - began


def measure(spark: Any = None) -> list[Ratio]:
    """To the first batch, and from the moment when the run knows what to do."""
    with (
        scratch("warm-launch") as folder,
        Deployment(folder / "home", environment={"TRIDELTA_NIMBUS_WARM": "1"}) as here,
    ):
        here.files["numbers"] = 0
        wait_for(lambda: here.worker(port=0), PATIENCE, lambda: "no warm worker")
        launch(here, warm=True)
        launch(here, warm=False)
        warm, own = paired(lambda: launch(here, warm=True)[0], lambda: launch(here, warm=False)[0], ROUNDS)
        loads = statistics.median(imports(here) for _ in range(ROUNDS))
        assert here.differences("numbers") == [], "each run has made its rows, each once"
    what = "launch of a run to its first batch, handed to a worker"
    return [
        Ratio(what, "a Spark of its own", warm, own, "s", BAR),
        Ratio(f"{what}, without loading the definitions", "the same", warm - loads, own - loads, "s", BAR),
    ]


def _batches(here: Deployment) -> int:
    log: Path = here.lake.root / "states" / "numbers_kept" / "_delta_log"
    return len(list(log.glob("*.json")))


if __name__ == "__main__":
    for one in measure():
        print(f"{one.what}: {one.ours:.2f} against {one.theirs:.2f} {one.unit}, {one.ratio:.2f} (bar {one.bar:g})")
