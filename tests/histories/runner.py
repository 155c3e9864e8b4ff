"""Runs programs from a seed on: `python -m tests.histories --seed 1 --programs 50`."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.histories.child import Drivers
from tests.histories.drawing import SHAPES, draw
from tests.histories.programs import Finding, Program, run
from tests.histories.seeds import SEEDS
from tests.histories.shrinking import shrink
from tests.histories.world import StuckError, small_and_quick
from tests.lakes import STORES, store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Found:
    """A difference: the seed of its program, the program as it was shrunk, and what it shows."""

    seed: int
    operations: int
    shrunk: dict[str, Any]
    lines: list[str]
    what: str


@dataclass
class Figures:
    """What some programs came to."""

    seed: int
    programs: int = 0
    operations: int = 0
    seconds: float = 0.0
    found: list[Found] = field(default_factory=list)


@contextmanager
def _within(spark: SparkSession, seconds: float | None) -> Iterator[None]:
    """Raise a StuckError in what takes longer, and end the queries that it leaves behind."""

    def late(*_: Any) -> None:
        raise StuckError(f"the program has not ended after {seconds:g} s")

    if seconds is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        for query in spark.streams.active:
            query.stop()


def examine(
    spark: SparkSession,
    seed: int,
    program: Program,
    *,
    tries: int = 60,
    drivers: Drivers | None = None,
    limit: float | None = None,
) -> Found | None:
    """Run one program; a difference is shrunk."""

    def seen(candidate: Program) -> Finding | None:
        with _within(spark, limit):
            return run(spark, candidate, drivers)

    finding = seen(program)
    if finding is None:
        return None
    cut = Program(program.shape, program.operations[: finding.at + 1])

    def shows(candidate: Program) -> bool:
        found = seen(candidate)
        return found is not None and found.kind == finding.kind

    small = shrink(cut, shows, tries=tries) if tries else cut
    shown = (seen(small) if tries else None) or finding
    return Found(seed, len(small.operations), json.loads(small.dump()), small.lines(), str(shown))


def campaign(
    spark: SparkSession,
    seed: int,
    programs: int,
    *,
    minutes: float | None,
    tries: int,
    console: Console,
    drawn: Callable[[int], Program] = draw,
    drivers: Drivers | None = None,
    each: Callable[[dict[str, Any]], bool] = lambda line: False,
    limit: float | None = None,
) -> Figures:
    """Programs one after the other, each of a seed of its own that follows from the first.

    Args:
        each: gets a line of each program (seed, shape, operations, seconds, what it shows); true: begin no further one.
        limit: seconds that a program may take before it counts as stuck; for the main thread alone.
    """
    figures, started = Figures(seed), time.monotonic()
    seeds = random.Random(seed)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with small_and_quick(spark), Progress(*columns, console=console) as bar:
        task = bar.add_task(f"seed {seed}", total=programs)
        for number in range(programs):
            if minutes is not None and time.monotonic() - started > 60 * minutes:
                break
            own = seed if number == 0 else seeds.randrange(1 << 32)
            program, begun = drawn(own), time.monotonic()
            found = examine(spark, own, program, tries=tries, drivers=drivers, limit=limit)
            line = {"seed": own, "shape": _kind(program), "operations": len(program.operations)}
            line |= {"seconds": round(time.monotonic() - begun, 1), "found": asdict(found) if found else None}
            figures.programs += 1
            figures.operations += len(program.operations)
            figures.seconds = round(time.monotonic() - started, 1)
            if found is not None:
                figures.found.append(found)
                bar.console.print(f"[red]seed {own}[/red]: {found.what}", highlight=False, markup=True)
                bar.console.print("\n".join(f"    {line}" for line in found.lines), markup=False, highlight=False)
            bar.update(task, advance=1, description=f"seed {seed}, {len(figures.found)} found")
            if each(line):
                break
    return figures


def _kind(program: Program) -> str:
    shape = program.shape
    return "windows" if "window" in shape else str(shape.get("chance") or shape.get("source") or "files")


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first program; the others follow from it")
    parser.add_argument("--programs", type=int, default=10)
    parser.add_argument("--length", type=int, default=20, help="operations per program")
    parser.add_argument("--shape", choices=[*SHAPES], help="what the programs run over; by default that is drawn, too")
    parser.add_argument("--favour", help="an operation that comes more often than by lot")
    parser.add_argument("--minutes", type=float, default=None, help="begin no further program after so many")
    parser.add_argument("--limit", type=float, default=None, help="seconds that a program may take")
    parser.add_argument(
        "--tries", type=int, default=60, help="runs that shrinking a program may take; 0: leave it long"
    )
    parser.add_argument(
        "--signals", action="store_true", help="end and stop some lives by real signals, in processes of their own"
    )
    parser.add_argument("--fault", type=int, choices=[*SEEDS], help="bring an old fault back, and end when it is found")
    parser.add_argument("--store", choices=STORES, help="keep the lakes on such a server, which is started")
    parser.add_argument("--heap", default="1500m", help="of Spark's JVM")
    parser.add_argument("--log", type=Path, help="a file that gets a line of JSON per program")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """The command line; ends with 1 if there was a difference."""
    given = _arguments(arguments)
    with contextlib.ExitStack() as stack:
        if given.store:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tridelta-store-"))
            # Before the session, whose settings come from the environment.
            stack.enter_context(store_of(given.store, Path(folder)))
        return _campaign(given)


def _campaign(given: argparse.Namespace) -> int:
    from pipelines.spark.session import spark_session

    console = Console(stderr=True)
    java = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.driver.memory": given.heap}
    spark = spark_session("histories", master="local[2]", conf=java)
    spark.sparkContext.setLogLevel("OFF")
    drivers = Drivers() if given.signals else None

    def each(line: dict[str, Any]) -> bool:
        if given.log:
            with given.log.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
        return given.fault is not None and line["found"] is not None

    with SEEDS[given.fault]() if given.fault else contextlib.nullcontext():
        figures = campaign(
            spark,
            given.seed,
            given.programs,
            minutes=given.minutes,
            tries=given.tries,
            console=console,
            drawn=partial(draw, length=given.length, shape=given.shape, favour=given.favour, signals=given.signals),
            drivers=drivers,
            each=each,
            limit=given.limit,
        )
    if given.json:
        print(json.dumps(asdict(figures)))
    else:
        seconds = figures.seconds / max(1, figures.programs)
        console.print(
            f"seed {given.seed}: {figures.programs} programs, {seconds:.1f} s each, {len(figures.found)} differences"
        )
    if drivers is not None:
        drivers.close()
    spark.stop()
    return 1 if figures.found else 0


if __name__ == "__main__":
    sys.exit(main())
