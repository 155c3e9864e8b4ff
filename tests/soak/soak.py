"""A long run of deployed flows under faults drawn by lot, and what came of it as figures."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from tests.nimbus import faults
from tests.nimbus.deployed_flows import ROWS
from tests.nimbus.deployment import PATIENCE, Deployment, processes_of, wait_for
from tests.nimbus.undisturbed import TABLES, expected, minus, seen

FLOWS = ("numbers", "readings", "apart")
SECONDS_BETWEEN_FAULTS = (20.0, 60.0)
SECONDS_BETWEEN_FILES = 1.5
SETTLING_SECONDS = 600.0


@dataclass
class Figures:
    """What a soak has seen.

    Attributes:
        minutes: How long files came in.
        files, rows: What was fed.
        batches: Finished ones of all queries.
        faults: By kind, how many.
        restarts: Worker processes that were started after the first ones.
        recoveries: By kind, seconds from a fault to the next batch of the flow that it met.
        median_recovery, worst_recovery: Of all of them.
        rows_lost, rows_doubled: Over all tables, against an undisturbed run.
        begin_mb, end_mb, peak_mb: Resident memory of all processes: once all runs, at the end, and the most that was seen.
        left_over: Processes that belong to no life any more.
    """

    minutes: float = 0.0
    files: int = 0
    rows: int = 0
    batches: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    median_recovery: float = 0.0
    worst_recovery: float = 0.0
    rows_lost: int = 0
    rows_doubled: int = 0
    begin_mb: int = 0
    end_mb: int = 0
    peak_mb: int = 0
    left_over: int = 0

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


class Soak:
    """Faults on a deployment whose flows run.

    Args:
        here: The deployment.
        disk: The lake's own file system, if it has one: then it is full, now and then.
        seed: Of the lots.
    """

    def __init__(self, here: Deployment, disk: Path | None, seed: int) -> None:
        self._here, self._disk, self._chance = here, disk, random.Random(seed)
        self.figures = Figures()
        self._partitions = 2
        self._pack: list[str] = []

    def run(self, minutes: float) -> Figures:
        """Until so many minutes are over, and all rows are in.

        Raises:
            AssertionError: A flow does not go on.
        """
        here, figures = self._here, self.figures
        figures.minutes, figures.begin_mb = minutes, self._memory()
        until = time.monotonic() + minutes * 60
        with here.feeding(*FLOWS, every=SECONDS_BETWEEN_FILES, slower=1.0):
            while time.monotonic() < until:
                time.sleep(min(self._chance.uniform(*SECONDS_BETWEEN_FAULTS), max(0.0, until - time.monotonic())))
                if time.monotonic() < until:
                    self._suffer()
        here.settles(seconds=SETTLING_SECONDS)
        figures.end_mb = self._memory()
        self._count()
        return figures

    def _suffer(self) -> None:
        flow = self._chance.choice(("numbers", "apart"))
        kinds = faults.by_name(self._here, flow) | {"rebalanced": self._rebalance}
        if self._disk is not None:
            kinds["disk full for 5 s"] = self._fill
        # As cards from a shuffled pack: every kind comes before one comes again.
        if not self._pack:
            self._pack = self._chance.sample(sorted(kinds), len(kinds))
        met = self._pack.pop()
        watched = "readings" if met == "rebalanced" else flow
        began = time.monotonic()
        kinds[met]()
        before = self._txid(watched)
        wait_for(
            lambda: self._txid(watched) > before, SETTLING_SECONDS, lambda: f"{met}: {self._here.nimbus.flow(flow)}"
        )
        taken = round(time.monotonic() - began, 1)
        self.figures.recoveries.setdefault(met, []).append(taken)
        self.figures.peak_mb = max(self.figures.peak_mb, self._memory())
        print(f"{time.strftime('%H:%M:%S')} {flow}: {met}; next batch after {taken} s", flush=True)

    def _rebalance(self) -> None:
        self._partitions = self._chance.choice([n for n in (2, 3, 5) if n != self._partitions])
        self._here.nimbus.rebalance("readings", parallelism={"readings__1": self._partitions})

        def through() -> bool:
            now = self._here.nimbus.flow("readings")
            return now.status == "ACTIVE" and now.running

        wait_for(through, PATIENCE, lambda: str(self._here.nimbus.flow("readings")))

    def _fill(self) -> None:
        assert self._disk is not None
        with faults.full(self._disk):
            time.sleep(5)

    def _txid(self, flow: str) -> int:
        """The last batch that is in a table of the flow."""
        last = self._here.lake.state(TABLES[flow][0]).last_txid()
        return -1 if last is None else last

    def _memory(self) -> int:
        total = 0
        for one in processes_of(self._here.home):
            with contextlib.suppress(psutil.Error):  # it has just ended
                total += one.memory_info().rss
        return total // 1024**2

    def _count(self) -> None:
        here, figures = self._here, self.figures
        every = [one for taken in figures.recoveries.values() for one in taken]
        figures.faults = dict(Counter({name: len(taken) for name, taken in figures.recoveries.items()}))
        figures.median_recovery = round(statistics.median(every), 1) if every else 0.0
        figures.worst_recovery = max(every, default=0.0)
        figures.files = sum(here.files.values())
        for flow in FLOWS:
            wanted, found = expected(flow, range(here.files[flow])), seen(here.lake, flow)
            figures.rows += ROWS * here.files[flow]
            figures.rows_lost += sum(len(minus(wanted[name], found[name])) for name in wanted)
            figures.rows_doubled += sum(len(minus(found[name], wanted[name])) for name in wanted)
            figures.batches += here.batches(flow)
        log = here.nimbus.settings.supervisor_folder("one") / "supervisor.jsonl"
        figures.restarts = log.read_text("utf-8").count('"event": "worker started"') - 2
        # What a killed process has started notices within a minute that it is alone.
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self._strays(), 60, str)
        figures.left_over = len(self._strays())

    def _strays(self) -> list[int]:
        """Processes that are none of the supervisor, the two workers and what those have started."""
        here = self._here
        known = {here.supervisor().pid}
        for worker in filter(None, (here.worker(port=6900), here.worker(port=6901))):
            known |= {worker.pid, *(one.pid for one in worker.children(recursive=True))}
        return [one.pid for one in processes_of(here.home) if one.pid not in known]
