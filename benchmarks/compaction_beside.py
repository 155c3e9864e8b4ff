"""Compaction and housekeeping in a loop, beside running streams and running backfills: do the tables stay the same?

Three flows run as streams over one folder that fills: sliced aggregates with a gate (backfilled all the while), windows over
channels, map states. At the end every table is compared with those of an undisturbed run over the same files.

`python -m benchmarks.compaction_beside --minutes 10`
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines import Lake, Runtime, spark_session
from pipelines.execution.verify import verify
from pipelines.flowmix import Count as CountEvents
from pipelines.flowmix import Flow, Policy
from pipelines.flowmix import Sum as SumEvents
from pipelines.flowmix.compile import topology_of
from pipelines.maintenance import Retention, compact, run_housekeeping
from pipelines.quality import drop
from pipelines.sources import JsonFiles
from pipelines.trident import (
    OPAQUE,
    Average,
    Count,
    DeltaState,
    Max,
    ReducerAggregator,
    Sum,
    TridentTopology,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = tuple(f"2024-01-0{n}" for n in range(1, 6))
LINES = tuple("abcdefgh")
ROWS_A_FILE = 20


@dataclass
class Beside:
    """What happened, and what differs."""

    seconds: float = 0.0
    files: int = 0
    batches: int = 0
    backfills: int = 0
    rounds: int = 0
    conflicts: int = 0
    files_removed: int = 0
    log_files_removed: int = 0
    rows_compared: int = 0
    differences: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)


class Deployment:
    """The three flows over a folder, in a lake."""

    def __init__(self, source: Path, lake: Path, *, files_a_batch: int) -> None:
        self.source, self.lake, self.files_a_batch = source, Lake(lake), files_a_batch
        source.mkdir(parents=True, exist_ok=True)
        self.shop, self.latest, self.trips = self._shop(), self._latest(), self._trips()

    @property
    def topologies(self) -> tuple[TridentTopology, ...]:
        return self.shop, self.latest, self.trips

    def _files(self) -> JsonFiles:
        schema = "day string, line string, n bigint, price decimal(10,2), at bigint"
        return JsonFiles(self.source, schema, max_files_per_batch=self.files_a_batch)

    def _shop(self) -> TridentTopology:
        made = TridentTopology("shop")
        sales = made.new_stream("sales", self._files(), slice_by="day")
        sales.persistent_aggregate(DeltaState("total"), [Count("count"), Sum("price", "revenue")])
        known = sales.gate(drop("column_values_to_not_be_null", column="line", name="line_is_there"), name="known")
        by_line = known.group_by("line")
        by_line.persistent_aggregate(DeltaState("by_line"), [Count("count"), Sum("n", "sum"), Average("price", "mean")])
        by_line.persistent_aggregate(DeltaState("highest", OPAQUE), [Max("n", "high"), Count("count")])
        known.partition_persist(DeltaState("raw"))
        return made

    def _latest(self) -> TridentTopology:
        made = TridentTopology("latest")
        by_line = made.new_stream("sales", self._files()).group_by("line")
        by_line.persistent_aggregate(DeltaState("summed"), "n", ReducerAggregator(int, _added), "s")
        by_line.persistent_aggregate(DeltaState("summed_opaque", OPAQUE), "n", ReducerAggregator(int, _added), "s")
        return made

    def _trips(self) -> TridentTopology:
        return topology_of(
            Flow("trips")
            .stream("rides", self._files(), timestamp="at")
                .filter("line IS NOT NULL")
                .partition("line")
                .aggregate(CountEvents("trips"), SumEvents("n", "total"), trigger=Policy.count(3), evict=Policy.count(7))
                .persist("counted")
            .build()
        )  # fmt: skip

    def content(self) -> dict[str, Counter[str]]:
        """Every row of every table, as text, with how often it is there. Quarantine too."""
        tables = {name: self.lake.state(name) for name in self.lake.states()}
        tables["quarantine of shop"] = self.lake.quarantine("shop")
        return {
            name: Counter(json.dumps(_plain(row), default=str, sort_keys=True) for row in table.scan().to_pylist())
            for name, table in tables.items()
        }


def run(
    spark: SparkSession,
    root: Path,
    seconds: float,
    *,
    every: float = 1.0,
    trigger_seconds: float = 0.5,
    seed: int = 1,
    told: Callable[[Beside], None] = lambda seen: None,
) -> Beside:
    """Run all of it for so long, then compare.

    Args:
        spark: the session; all streams, backfills and compactions share it.
        root: an empty folder.
        seconds: how long files arrive.
        every: seconds between two files.
        told: called after each file with how far it is.
    """
    disturbed = Deployment(root / "in", root / "lake", files_a_batch=4)
    seen, over, faults = Beside(), threading.Event(), list[BaseException]()
    runtime, chance = Runtime(spark, disturbed.lake, lock_wait_seconds=600), random.Random(seed)
    started = time.monotonic()
    _lay(disturbed.source, seen, chance)
    with _streams(runtime, disturbed, trigger_seconds, seen), ExitStack() as stack:
        for work in (
            lambda: _backfill(runtime, disturbed, seen, random.Random(seed + 1)),
            lambda: _maintain(spark, disturbed, seen),
        ):
            stack.enter_context(_looping(work, over, faults))
        while time.monotonic() - started < seconds and not faults:
            time.sleep(every)
            _lay(disturbed.source, seen, chance)
            told(seen)
        over.set()
    for fault in faults:
        raise fault
    seen.batches += sum(len(runtime.catch_up(one).batches) for one in disturbed.topologies)
    # Once more while nothing runs: then the open generations are rewritten too.
    _maintain(spark, disturbed, seen)
    seen.seconds = round(time.monotonic() - started, 1)
    _compare(spark, root, disturbed, seen)
    return seen


def _lay(source: Path, seen: Beside, chance: random.Random) -> None:
    """One more file, later than those before."""
    at = seen.files * 100_000
    rows = [
        {
            "day": chance.choice(DAYS),
            "line": None if chance.random() < 0.05 else chance.choice(LINES),
            "n": chance.randrange(1000),
            "price": f"{chance.randrange(100)}.{chance.randrange(100):02d}",
            "at": at + n * 1000,
        }
        for n in range(ROWS_A_FILE)
    ]
    part = source / f".{seen.files:06d}"
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(part, (1_700_000_000 + seen.files, 1_700_000_000 + seen.files))
    part.rename(source / f"{seen.files:06d}.json")
    seen.files += 1


@contextmanager
def _streams(runtime: Runtime, deployed: Deployment, trigger_seconds: float, seen: Beside) -> Iterator[None]:
    with ExitStack() as stack:
        running = [runtime.stream(one, trigger_seconds=trigger_seconds) for one in deployed.topologies]
        for one in running:
            stack.callback(lambda one=one: setattr(seen, "batches", seen.batches + len(one.stop())))
        yield
        if not all(one.running for one in running):
            seen.differences.append("a stream has ended by itself")


@contextmanager
def _looping(work: Callable[[], None], over: threading.Event, faults: list[BaseException]) -> Iterator[None]:
    def loop() -> None:
        try:
            while not over.is_set():
                work()
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _backfill(runtime: Runtime, deployed: Deployment, seen: Beside, chance: random.Random) -> None:
    report = runtime.backfill(deployed.shop, chance.sample(DAYS, chance.randint(1, 3)))
    seen.backfills += len(report.slices)
    seen.differences += [f"backfill of {one.slice}: {one.error}" for one in report.failed]


def _maintain(spark: SparkSession, deployed: Deployment, seen: Beside) -> None:
    """One round: as hard as can be, nothing that is old is kept."""
    for topology in deployed.topologies:
        report = compact(
            spark, deployed.lake, topology, retention_hours=0, channel_retention_hours=0, quarantine_days=1
        )
        seen.conflicts += sum(table.conflicts for table in report.tables)
        seen.files_removed += sum(table.files_removed for table in report.tables)
        seen.log_files_removed += sum(table.log_files_removed for table in report.tables)
    kept = Retention(
        state_hours=0, quarantine_days=1, state_versions=2, copies_days=0, replaced_days=0, wait_seconds=600
    )
    for note in run_housekeeping(deployed.lake, None, kept).notes:
        seen.notes[note] += 1
    seen.rounds += 1


def _compare(spark: SparkSession, root: Path, disturbed: Deployment, seen: Beside) -> None:
    calm = Deployment(disturbed.source, root / "undisturbed", files_a_batch=100)
    runtime = Runtime(spark, calm.lake)
    for topology in calm.topologies:
        runtime.catch_up(topology)
    ours, theirs = disturbed.content(), calm.content()
    if ours.keys() != theirs.keys():
        seen.differences.append(f"tables: {sorted(ours.keys() ^ theirs.keys())}")
    for name in ours.keys() & theirs.keys():
        seen.rows_compared += theirs[name].total()
        lost, more = theirs[name] - ours[name], ours[name] - theirs[name]
        if lost or more:
            example = next(iter(lost or more))
            seen.differences.append(f"{name}: {lost.total()} rows lost, {more.total()} too many, e.g. {example}")
    for topology in disturbed.topologies:
        for one in verify(spark, disturbed.lake, topology).differing:
            seen.differences.append(f"verify: {one.state} {one.txid} {one.slice}: {one.reason}")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Without what says when a row was made."""
    return {name: value for name, value in row.items() if name not in ("reason",)}


def _added(total: int, value: int) -> int:
    return total + (value or 0)


def main(
    minutes: Annotated[float, typer.Option(help="how long files arrive")] = 10.0,
    out: Annotated[Path, typer.Option(help="where the figures go")] = Path("out/benchmarks"),
) -> None:
    """Run it, print the figures; exit code 1 if a table differs."""
    from rich.console import Console

    console = Console()
    spark = spark_session("compaction_beside")
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="tridelta-beside-") as root, console.status("running") as status:
        seen = run(
            spark,
            Path(root),
            minutes * 60,
            told=lambda now: status.update(f"{now.files} files, {now.backfills} backfills, {now.rounds} rounds"),
        )
    spark.stop()
    found = {**asdict(seen), "notes": dict(seen.notes)}
    out.mkdir(parents=True, exist_ok=True)
    (out / "compaction_beside.json").write_text(json.dumps(found, indent=2) + "\n")
    for name, value in found.items():
        console.print(f"{name.replace('_', ' '):18} {value}", markup=False, highlight=False)
    console.print(f"differences: {len(seen.differences)}")
    if seen.differences:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
