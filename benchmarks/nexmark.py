"""Nexmark: events per second and CPU seconds per query, durable in Delta, beside PyFlink and Spark's own streaming.

Every query runs twice on each side, over the same files in turn; the second run counts. (The first is over some of the files, but
PyFlink's.) The tests compare the rows of these
queries with DuckDB's; here the number of rows is compared with it, once per query.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import nexmark_spark
from benchmarks.flink import nexmark_queries
from benchmarks.flink.nexmark_queries import cpu_seconds
from benchmarks.measure import Ratio, scratch
from examples.nexmark.generator import Auctions
from examples.nexmark.queries import QUERIES, SIDE_INPUT, topology
from examples.nexmark.sql import SQL, connect
from examples.nexmark.windows import WINDOWED, files, flow
from pipelines import Lake, Runtime
from pipelines.spark.jars import cache_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLINK = "2.3.0"
PEER = (
    f"PyFlink {FLINK} (SQL in streaming mode in one process, parallelism 2, mini-batches of 50,000 rows, its default state in "
    "memory, no checkpoints, a blackhole sink: nothing is kept) and Spark's own Structured Streaming in our session (a file per "
    "batch, append into Delta). Ours keeps every row and state in Delta, each batch exactly once."
)
EVENTS, BATCH = 500_000, 100_000
ROUNDS, WARM_BATCHES = 2, 2
CORES = 2


@dataclass(frozen=True)
class Cost:
    """What a query took."""

    seconds: float
    cpu: float


def measure(spark: SparkSession) -> list[Ratio]:
    """Run every query on every engine that can say it.

    Where PyFlink can't be installed, Spark alone is beside ours, and a line says so.
    """
    with scratch("nexmark") as folder:
        _generate(folder)
        rows = _expected_rows(folder / "events")
        with _flink(folder) as flink:
            found = {
                query: _query(spark, query, folder, flink, rows.get(query)) for query in track(_ordered(), "queries")
            }
    _show(found)
    return list(_ratios(found))


def _ordered() -> list[str]:
    return sorted([*QUERIES, *WINDOWED], key=lambda query: int(query[1:]))


def _generate(folder: Path) -> None:
    """Files of a batch each, some of them once more to warm up with, and the side input of Flink's q13."""
    Auctions(seed=8).write(folder / "events", [BATCH] * (EVENTS // BATCH))
    (folder / "some").mkdir()
    for file in sorted((folder / "events").iterdir())[:WARM_BATCHES]:
        (folder / "some" / file.name).hardlink_to(file)
    (folder / "side_input").mkdir()
    (folder / "side_input" / "0.csv").write_text("".join(f"{key},value-{key}\n" for key in range(SIDE_INPUT)))


def _expected_rows(events: Path) -> dict[str, int]:
    """Count the rows of DuckDB's answers: of queries without windows, whose last one is open when the events end."""
    connection = connect(events)
    told = (query for query in QUERIES if query != "q12")
    return {query: connection.execute(f"select count(*) from ({SQL[query]})").fetchone()[0] for query in told}


Flink = Callable[[str], Cost]


def _query(spark: SparkSession, query: str, folder: Path, flink: Flink | None, rows: int | None) -> dict[str, Cost]:
    costs = dict[str, Cost]()
    for number in range(ROUNDS):
        last = number == ROUNDS - 1
        events = folder / ("events" if last else "some")
        out = folder / f"{query}-{number}"
        costs["ours"] = _cost(lambda out=out, events=events: _ours(spark, query, events, out / "ours"))
        if last and rows is not None:
            _check(query, out / "ours", rows)
        if flink is not None and query in nexmark_queries.QUERIES:
            costs["PyFlink"] = flink(query)
        if query in nexmark_spark.QUERIES:
            costs["Spark"] = _cost(
                lambda out=out, events=events: nexmark_spark.run(spark, query, events, out / "spark")
            )
        shutil.rmtree(out)
    return costs


def _cost(work: Callable[[], object]) -> Cost:
    began, cpu = time.perf_counter(), cpu_seconds()
    work()
    return Cost(time.perf_counter() - began, cpu_seconds() - cpu)


def _ours(spark: SparkSession, query: str, events: Path, lake: Path) -> None:
    wanted = flow(query, files(events, 1)) if query in WINDOWED else topology([query], events, files_per_batch=1)
    Runtime(spark, Lake(lake)).catch_up(wanted)


def _check(query: str, lake: Path, rows: int) -> None:
    """Raises ValueError if the state has not as many rows as DuckDB's answer."""
    scanned = Lake(lake).state(query).scan()
    # q19 keeps the ten highest bids of an auction as one value.
    ours = sum(map(len, scanned["top"].to_pylist())) if query == "q19" else scanned.num_rows
    if ours != rows:
        raise ValueError(f"{query} has {ours} rows, and DuckDB's answer {rows}")


@contextmanager
def _flink(folder: Path) -> Iterator[Flink | None]:
    """Start PyFlink in its own environment; None where it can't be installed."""
    python = _flink_python()
    if python is None:
        yield None
        return
    command = [str(python), nexmark_queries.__file__, str(folder), str(CORES)]
    log = (folder / "flink.log").open("w")
    with (
        log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):

        def answer() -> Any:
            assert process.stdout
            for line in process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
            raise RuntimeError(f"PyFlink ended:\n{Path(log.name).read_text()[-2000:]}")

        def ask(query: str) -> Cost:
            assert process.stdin
            process.stdin.write(f"{query}\n")
            process.stdin.flush()
            return Cost(**answer())

        answer()
        try:
            yield ask
        finally:
            assert process.stdin
            process.stdin.close()


def _flink_python() -> Path | None:
    """Return the Python of PyFlink's environment, which the first call makes (from PyPI, some 450 MB)."""
    home = cache_folder() / "flink"
    python = home / "bin" / "python"
    if list(home.glob("lib/python*/site-packages/pyflink")):
        return python
    print(f"Installing PyFlink {FLINK} into {home} (once)")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"apache-flink=={FLINK}"]
    for command in ([sys.executable, "-m", "venv", "--clear", str(home)], install):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"PyFlink is left out: it could not be installed. {done.stderr.strip()[-300:]}")
            return None
    return python


def _show(found: dict[str, dict[str, Cost]]) -> None:
    table = Table(title=f"Nexmark, {EVENTS:,} events in batches of {BATCH:,}: k events/s (CPU seconds)")
    sides = ("ours", "PyFlink", "Spark")
    for column in ("query", *sides):
        table.add_column(column, justify="right")
    for query, costs in found.items():
        shown = (costs.get(side) for side in sides)
        table.add_row(query, *(f"{EVENTS / one.seconds / 1000:.0f} ({one.cpu:.1f})" if one else "" for one in shown))
    Console().print(table)


def _ratios(found: dict[str, dict[str, Cost]]) -> Iterator[Ratio]:
    """Yield the time and the CPU time per event of each query beside each peer. The bar is the peer itself."""
    per_event = 1e6 / EVENTS
    for query, costs in found.items():
        ours = costs.pop("ours")
        for peer, cost in costs.items():
            against = f"{peer}, {'in memory, nothing kept' if peer == 'PyFlink' else 'into Delta'}"
            yield Ratio(query, against, ours.seconds * per_event, cost.seconds * per_event, "us/event", 1.0, "higher")
            yield Ratio(f"{query}, CPU", against, ours.cpu * per_event, cost.cpu * per_event, "us/event", 1.0, "higher")
