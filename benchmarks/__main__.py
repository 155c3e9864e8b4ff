"""`make bench`: every benchmark, or those named; ratios within one run, as a table, JSON and a plot in out/.

Results are kept in benchmarks/results.json, from which docs/benchmarks.md is written.
"""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from benchmarks.measure import Ratio, show
from benchmarks.page import BENCHMARKS, Result, described, keep, surroundings
from pipelines import spark_session


def main(
    names: Annotated[list[str] | None, typer.Argument(help="benchmarks to run; all by default")] = None,
    out: Path = Path("out/benchmarks"),
    page: Annotated[bool, typer.Option(help="keep the results, and write docs/benchmarks.md")] = True,
) -> None:
    """Run benchmarks and print their ratios."""
    wanted = names or list(BENCHMARKS)
    if unknown := sorted(set(wanted) - set(BENCHMARKS)):
        raise typer.BadParameter(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    found: list[Ratio] = []
    spark = spark_session("benchmarks")
    with Progress() as progress:
        task = progress.add_task("benchmarks", total=len(wanted))
        for name in wanted:
            progress.update(task, description=name)
            around, began = surroundings(), time.perf_counter()
            ratios = importlib.import_module(f"benchmarks.{name}").measure(spark)
            if ratios and page:
                about, peer = described(name)
                keep([Result(name, about, peer, round(time.perf_counter() - began, 1), around, tuple(ratios))])
            found += ratios
            progress.advance(task)
    if not found:
        raise typer.Exit(1)
    show(found, out)


if __name__ == "__main__":
    typer.run(main)
