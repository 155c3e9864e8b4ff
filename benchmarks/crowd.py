"""A crowd: many small flows in one Spark application, each given a file of 20 rows every 5 s.

Real processes with Nimbus' default settings: `python -m benchmarks.crowd 10 50 100`.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.crowd_flows import MOST, NAMES
from benchmarks.freshness import write
from benchmarks.measure import Ratio, scratch
from pipelines import Lake
from pipelines.nimbus.settings import NimbusSettings
from pipelines.state.schema import TXID
from tests.nimbus.deployment import PATIENCE, Deployment, meanwhile, processes_of, resident_mb, wait_for

PEER = "the bars of the design, of which that of 10 s and 6 GB is for a hundred flows; the standby's memory is counted."
COUNTS = (100,)
EVERY, TRIGGER_SECONDS = 5.0, 1.0
# The first batches load classes, and queries start one after another.
WARM_SECONDS, SECONDS = 30.0, 60.0
P99_SECONDS, MEMORY_MB = 10.0, 6 * 1024.0


@dataclass(frozen=True)
class Crowd:
    """What so many flows took.

    Attributes:
        started_seconds: from the first submit until all have committed.
        median, p99: seconds from a row's birth to its commit.
        memory_mb: resident, of all processes.
        cores: processors that were busy with them.
        batches: per second, of all flows.
    """

    flows: int
    started_seconds: float
    median: float
    p99: float
    memory_mb: float
    cores: float
    batches: float


def measure(spark: Any = None, counts: tuple[int, ...] = COUNTS) -> list[Ratio]:
    """Freshness and memory by the number of flows."""
    ratios: list[Ratio] = []
    for count in counts:
        with scratch("crowd") as folder:
            crowd = run(folder, count)
        print(crowd, flush=True)
        what = f"{count} small flows in one application"
        ratios += [
            Ratio(f"{what}, a row's birth to its commit: median", "5 s", crowd.median, 5.0, "s", 1.0),
            Ratio(f"{what}, a row's birth to its commit: 99 %", "10 s", crowd.p99, P99_SECONDS, "s", 1.0),
            Ratio(f"{what}: memory", "6 GB", crowd.memory_mb, MEMORY_MB, "MB", 1.0),
            Ratio(f"{what}: processors", "all", crowd.cores, float(psutil.cpu_count() or 1), "cores", 1.0),
        ]
    return ratios


def run(folder: Path, count: int) -> Crowd:
    """Deploy so many flows, feed them, and look at the rows that came once all were warm."""
    names, plain = NAMES[:count], NimbusSettings(folder)
    chosen = {
        name: getattr(plain, name)
        for name in ("beat_seconds", "lease_seconds", "task_timeout_seconds", "monitor_seconds", "worker_memory_mb")
    }
    with Deployment(
        folder,
        flows="benchmarks.crowd_flows",
        ports="6900",
        task_launch_seconds=300,
        environment={"SPARK_SUBMIT_OPTS": ""},
        standby=1,
        **chosen,
    ) as here:
        began = time.time()
        with _feeding(here.home / "data", names):
            for name in names:
                here.nimbus.submit(name, trigger_seconds=TRIGGER_SECONDS)
            for name in names:
                wait_for(lambda name=name: _commits(here.lake, name), PATIENCE, here.told, every=1.0)
            started = time.time() - began
            time.sleep(WARM_SECONDS)
            since, cpu = time.time(), _cpu_seconds(here.home)
            time.sleep(SECONDS)
            took, cpu = time.time() - since, _cpu_seconds(here.home) - cpu
            memory = resident_mb(here.home)
            # What was born last has come by then, too.
            time.sleep(2 * EVERY)
        waits, batches = _waits(here.lake, names, since, since + took)
    hundredths = statistics.quantiles(waits, n=100)
    return Crowd(count, started, hundredths[49], hundredths[98], memory, cpu / took, batches / took)


@contextmanager
def _feeding(data: Path, names: tuple[str, ...]) -> Iterator[None]:
    """Give each flow a file every few seconds, one after another and not all at once."""
    for name in names:
        (data / name).mkdir(parents=True)
        write(data / name, 0)

    def feed(ended: threading.Event) -> None:
        began, turn = time.monotonic(), 0
        while not ended.wait(max(0.0, began + turn * EVERY / len(names) - time.monotonic())):
            write(data / names[turn % len(names)], 1 + turn // len(names))
            turn += 1

    with meanwhile(feed):
        yield


def _commits(lake: Lake, name: str) -> bool:
    return (lake.state_path(f"{name}_kept") / "_delta_log" / f"{1:020d}.json").exists()


def _waits(lake: Lake, names: tuple[str, ...], since: float, until: float) -> tuple[list[float], int]:
    """Seconds from birth to commit of the rows born in a span of time, and how many batches were committed in it."""
    waits: list[float] = []
    batches = 0
    for name in names:
        state = lake.state(f"{name}_kept")
        committed = {commit.txid: commit.time.timestamp() for commit in state.commits.batches()}
        batches += sum(since <= at < until for at in committed.values())
        rows = state.stored("true", f"born, {TXID} AS txid").to_pylist()
        waits += [committed[row["txid"]] - row["born"] for row in rows if since <= row["born"] < until]
    return waits, batches


def _cpu_seconds(home: Path) -> float:
    total = 0.0
    for process in processes_of(home):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


if __name__ == "__main__":
    for ratio in measure(counts=tuple(min(int(text), MOST) for text in sys.argv[1:]) or COUNTS):
        print(f"{ratio.what}: {ratio.ours:.2f} {ratio.unit}")
