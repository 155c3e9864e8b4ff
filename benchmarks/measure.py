"""What the benchmarks share: paired timing in one run, the table, the plot."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Ratio:
    """One line of the result: ours against theirs, both medians of the same run.

    `bar` is the ratio that the design asks for; `better` says whether a lower or a higher ratio is the good side.
    """

    what: str
    against: str
    ours: float
    theirs: float
    unit: str
    bar: float
    better: str = "lower"

    @property
    def ratio(self) -> float:
        """ours / theirs where lower is better, theirs / ours (times faster) where higher is."""
        return self.ours / self.theirs if self.better == "lower" else self.theirs / self.ours

    @property
    def reached(self) -> bool:
        return self.ratio <= self.bar if self.better == "lower" else self.ratio >= self.bar


def paired(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Medians of two measurements taken in turn, so that a machine that slows down slows both."""
    mine, others = [], []
    for _ in range(rounds):
        mine.append(ours())
        others.append(theirs())
    return statistics.median(mine), statistics.median(others)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A folder for one benchmark, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=f"tridelta-{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def show(ratios: list[Ratio], out: Path) -> None:
    """Print the table; keep it as JSON and as a plot in `out`."""
    table = Table(title="Ratios of one run (median)")
    for column in ("what", "against", "ours", "theirs", "ratio", "bar", ""):
        table.add_column(column)
    for one in ratios:
        sign = "<=" if one.better == "lower" else ">="
        table.add_row(
            one.what,
            one.against,
            f"{one.ours:.4g} {one.unit}",
            f"{one.theirs:.4g} {one.unit}",
            f"{one.ratio:.2f} x",
            f"{sign} {one.bar:g} x",
            "reached" if one.reached else "missed",
        )
    Console().print(table)
    out.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(one), "ratio": one.ratio, "reached": one.reached} for one in ratios]
    (out / "ratios.json").write_text(json.dumps(rows, indent=1))
    _plot(ratios, out / "ratios.png")


def _plot(ratios: list[Ratio], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.5 * len(ratios) + 1.2))
    # Times better than the bar, whichever side is the good one: 1 is the bar.
    margins = [one.bar / one.ratio if one.better == "lower" else one.ratio / one.bar for one in ratios]
    axes.barh([f"{one.what} / {one.against}" for one in ratios], margins)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("times better than the bar (1 = the bar)")
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
