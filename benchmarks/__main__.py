"""`make bench`: every benchmark, or those named; ratios within one run, as a table, JSON and a plot in out/."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from benchmarks.measure import Ratio, show
from pipelines import spark_session

BENCHMARKS = (
    "engine_overhead",
    "keyed_counts",
    "point_reads",
    "gates",
    "get_slices",
    "accounting",
    "windows",
    "assignment",
    "placing",
    "recovery",
    "packing",
    "warm_launch",
    "sensor_tick",
    "word_count",
)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="benchmarks to run; all by default")] = None,
    out: Path = Path("out/benchmarks"),
) -> None:
    """Run benchmarks and print their ratios."""
    wanted = names or list(BENCHMARKS)
    found: list[Ratio] = []
    spark = spark_session("benchmarks")
    with Progress() as progress:
        task = progress.add_task("benchmarks", total=len(wanted))
        for name in wanted:
            progress.update(task, description=name)
            found += importlib.import_module(f"benchmarks.{name}").measure(spark)
            progress.advance(task)
    if not found:
        raise typer.Exit(1)
    show(found, out)


if __name__ == "__main__":
    typer.run(main)
