"""Packing: ten small flows in one Spark application against the same ten in an application each.

Real processes: `python -m benchmarks.packing`. Memory is what all processes have resident; batches are those of half a minute.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Ratio, scratch
from benchmarks.small_flows import NAMES
from tests.nimbus.deployment import Deployment, resident_mb

PEER = "the same ten flows deployed with `--isolated`, a Spark application each."
SECONDS, TRIGGER_SECONDS, FILES_EVERY = 30.0, 2.0, 4.0
MOST_SECONDS = 300.0


def batch_seconds(here: Deployment) -> list[float]:
    """Return the seconds of the batches so far. The first ones of a flow still load classes."""
    return [float(line["seconds"]) for line in here.log() if line["event"] == "batch finished" and line["txid"] >= 3]


def run(folder: Path, *, isolated: bool) -> tuple[float, float]:
    """Megabytes of all processes, and the median seconds of a batch."""
    ports = ",".join(str(6900 + number) for number in range(len(NAMES)))
    environment = {"SPARK_SUBMIT_OPTS": ""}
    made = Deployment(
        folder, flows="benchmarks.small_flows", ports=ports, task_launch_seconds=300, environment=environment
    )
    with made as here:
        for name in NAMES:
            here.submit(name, trigger_seconds=TRIGGER_SECONDS, isolated=isolated)
        here.runs(*NAMES)
        began = time.time()
        with here.feeding(*NAMES, every=FILES_EVERY):
            time.sleep(SECONDS)
            # Ten applications that begin together on a slow machine have no batch in that time.
            while not (batches := batch_seconds(here)) and time.time() - began < MOST_SECONDS:
                time.sleep(1.0)
        print(f"isolated={isolated}: {len(batches)} batches in {time.time() - began:.0f} s")
        return resident_mb(here.home), statistics.median(batches)


def measure(spark: Any = None) -> list[Ratio]:
    """One application's memory and batch time against those of ten."""
    with scratch("packing") as folder:
        packed_mb, packed_seconds = run(folder / "packed", isolated=False)
        apart_mb, apart_seconds = run(folder / "apart", isolated=True)
    what = f"{len(NAMES)} small flows in one application"
    against = "an application each"
    return [
        Ratio(f"{what}: memory", against, packed_mb, apart_mb, "MB", 0.25),
        Ratio(f"{what}: batch", against, packed_seconds, apart_seconds, "s", 1.2),
    ]


if __name__ == "__main__":
    for one in measure():
        print(f"{one.what}: {one.ours:.4g} {one.unit}, {one.against}: {one.theirs:.4g} {one.unit}")
