"""The page of numbers: what each benchmark gave, when, on what machine, under which load, beside which peer.

`benchmarks/results.json` keeps the last result of each benchmark, and `docs/benchmarks.md` is written from it.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from inspect import getdoc
from pathlib import Path

import psutil

from benchmarks.measure import Ratio

PROJECT = Path(__file__).parent.parent
RESULTS, PAGE = PROJECT / "benchmarks" / "results.json", PROJECT / "docs" / "benchmarks.md"
BENCHMARKS = (
    "engine_overhead",
    "first_batch",
    "freshness",
    "crowd",
    "growth",
    "keyed_counts",
    "nexmark",
    "point_reads",
    "gates",
    "get_slices",
    "accounting",
    "windows",
    "assignment",
    "placing",
    "recovery",
    "scale",
    "packing",
    "warm_launch",
    "sensor_tick",
    "word_count",
)
PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "dagster", "great-expectations")
# Above this share of the processors that others use, a ratio says more of them than of us.
QUIET_PERCENT = 10.0

_HEAD = """# Benchmarks

`make bench` measures all of this and writes this page; `python -m benchmarks NAME ...` measures some of it. Each ratio is of one
run: both sides take turns on the same machine over the same data, and the figures are medians. Where a bar says "at most", the
ratio is ours over the peer's; where it says "at least", it says how many times faster than the peer we are.
"""


@dataclass(frozen=True)
class Surroundings:
    """What a benchmark ran on.

    Attributes:
        date: of its start, UTC.
        commit: of the code; `+` behind it: the four packages had changes.
        machine: processor, cores, memory.
        versions: of Python and the packages that matter.
        load: processes that wanted to run in the minute before.
        busy_percent: of the processors, what others used in the second before.
    """

    date: str
    commit: str
    machine: str
    versions: Mapping[str, str]
    load: float
    busy_percent: float

    @property
    def quiet(self) -> bool:
        return self.busy_percent <= QUIET_PERCENT


@dataclass(frozen=True)
class Result:
    """What one benchmark gave.

    Attributes:
        about: what it measures: the first paragraph of its docstring.
        peer: what it is beside, with its settings.
        seconds: that it took.
    """

    name: str
    about: str
    peer: str
    seconds: float
    surroundings: Surroundings
    ratios: tuple[Ratio, ...] = field(default=())


def surroundings() -> Surroundings:
    """Look at the machine, for a second."""
    return Surroundings(
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        commit=_commit(),
        machine=f"{_processor()}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB",
        versions={"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        load=round(os.getloadavg()[0], 2),
        busy_percent=psutil.cpu_percent(interval=1.0),
    )


def described(name: str) -> tuple[str, str]:
    """Return what a benchmark measures, and its peer's settings."""
    module = importlib.import_module(f"benchmarks.{name}")
    about = (getdoc(module) or "").split("\n\n")[0].replace("\n", " ")
    return about, module.PEER


def keep(results: Iterable[Result], file: Path = RESULTS, page: Path = PAGE) -> None:
    """Put results in the place of older ones of the same benchmarks, and write the page."""
    kept = {result.name: result for result in read(file)} | {result.name: result for result in results}
    ordered = [kept[name] for name in sorted(kept)]
    file.write_text(json.dumps([asdict(result) for result in ordered], indent=1) + "\n", encoding="utf-8")
    page.write_text(as_page(ordered), encoding="utf-8")


def read(file: Path = RESULTS) -> list[Result]:
    """Return the kept results; none where there is no file."""
    if not file.exists():
        return []
    return [
        Result(
            **{name: value for name, value in one.items() if name not in ("surroundings", "ratios")},
            surroundings=Surroundings(**one["surroundings"]),
            ratios=tuple(Ratio(**ratio) for ratio in one["ratios"]),
        )
        for one in json.loads(file.read_text("utf-8"))
    ]


def as_page(results: Iterable[Result]) -> str:
    """Return the page: where we lose, what was not measured, then each benchmark."""
    ordered = list(results)
    return "\n".join(
        [_HEAD, *_losses(ordered), *_unmeasured(ordered), *(line for result in ordered for line in _section(result))]
    )


def _losses(results: list[Result]) -> list[str]:
    lost = [(result, ratio) for result in results for ratio in result.ratios if not (ratio.reached and _ahead(ratio))]
    if not lost:
        return []
    lines = ["## Where we lose", "", "Slower or larger than the peer, or short of our own bar:", ""]
    return [*lines, *(f"- {ratio.what}: {_shown(ratio)}, against {ratio.against}" for _, ratio in lost), ""]


def _unmeasured(results: list[Result]) -> list[str]:
    names = sorted(set(BENCHMARKS) - {result.name for result in results})
    lines = [
        "## Not measured yet",
        "",
        "Of these no result is kept; `.venv/bin/python -m benchmarks NAME` measures one.",
        "",
    ]
    return [*lines, *(f"- `{name}`: {described(name)[0]}" for name in names), ""] if names else []


def _ahead(ratio: Ratio) -> bool:
    """Return whether we are no worse than the peer. A bar above 1 for what costs more by its nature allows that."""
    return ratio.ratio <= max(1.0, ratio.bar) if ratio.better == "lower" else ratio.ratio >= 1.0


def _section(result: Result) -> list[str]:
    around = result.surroundings
    versions = ", ".join(f"{name} {number}" for name, number in around.versions.items())
    load = f"load {around.load:g}, others used {around.busy_percent:g} % of the processors"
    quiet = "" if around.quiet else " **The machine was not quiet.**"
    rows = (f"| {' | '.join(_cells(ratio))} |" for ratio in result.ratios)
    return [
        f"## {result.name.replace('_', ' ').capitalize()}",
        "",
        result.about,
        "",
        "| what | against | ours | theirs | ratio |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"The peer: {result.peer}",
        "",
        f"{around.date} UTC, commit {around.commit}, {result.seconds:.0f} s; {around.machine}; {load}.{quiet} {versions}.",
        f"Again: `.venv/bin/python -m benchmarks {result.name}`",
        "",
    ]


def _cells(ratio: Ratio) -> tuple[str, ...]:
    ours, theirs = (f"{_figure(number)} {ratio.unit}" for number in (ratio.ours, ratio.theirs))
    return ratio.what, ratio.against, ours, theirs, _shown(ratio)


def _shown(ratio: Ratio) -> str:
    sign = "at most" if ratio.better == "lower" else "at least"
    times = f"{ratio.ratio:.2f} x (bar: {sign} {ratio.bar:g} x)"
    return times if ratio.reached else f"**{times}, missed**"


def _figure(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "pipelines", "assets", "ops", "resources")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _processor() -> str:
    names = [line.split(":", 1)[1].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _lines(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines() if file.exists() else []
