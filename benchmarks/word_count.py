"""Word count over two million lines, durable and exactly once, beside Storm Trident with its state in memory.

Both read the same JSON lines on this machine, in turn, each in a fresh process that counts them several times over. Their
counts must be those of a plain recount.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import Ratio, scratch
from benchmarks.storm import harness, sentences
from benchmarks.storm.harness import Passes

if TYPE_CHECKING:
    from collections import Counter

    from pyspark.sql import SparkSession

PEER = (
    "Storm Trident 2.8.3 in local mode with its state in memory (`MemoryMapState`), batches of 50,000 lines, a "
    "heap of 2 GB, JSON parsed by Jackson. Ours is durable: every batch is a commit in Delta."
)
ROUNDS, PASSES = 3, 5
PROJECT = Path(__file__).parent.parent
BAR = 1.2


def measure(_spark: SparkSession) -> list[Ratio]:
    """Lines a second, of the last pass of a process (warm) and from its start; the session given is not used.

    Where Maven or a Java compiler is missing nothing is measured, and a line says so.
    """
    problem = harness.missing_tools()
    if problem:
        print(problem)
        return []
    ours, theirs = list[Passes](), list[Passes]()
    with scratch("words") as folder:
        jars = harness.class_path()
        sentences.generate(folder / "in")
        expected = sentences.recount(folder / "in")
        for number in range(ROUNDS):
            work = folder / str(number)
            work.mkdir()
            ours.append(_ours(folder / "in", work, expected))
            theirs.append(_storm(jars, folder / "in", work, expected))
            _tell(number, ours[-1], theirs[-1])
    return [
        _ratio(
            f"word count, warm (pass {PASSES})",
            [p.pass_seconds[-1] for p in ours],
            [p.pass_seconds[-1] for p in theirs],
        ),
        _ratio(
            "word count, from process start",
            [p.from_start_seconds for p in ours],
            [p.from_start_seconds for p in theirs],
        ),
    ]


def _ratio(what: str, ours: list[float], theirs: list[float]) -> Ratio:
    """Seconds of two million lines, so that the median and the ratio are those of lines a second."""
    return Ratio(what, "Storm Trident 2.8", statistics.median(ours), statistics.median(theirs), "s", BAR, "higher")


def _ours(source: Path, work: Path, expected: Counter[str]) -> Passes:
    counts = work / "ours.tsv"
    command = [sys.executable, "-m", "benchmarks.word_count_process"]
    passes = harness.finished([*command, str(source), str(work / "lakes"), str(PASSES), str(counts)], PROJECT)
    _check("the flow", counts, expected)
    return passes


def _storm(jars: str, source: Path, work: Path, expected: Counter[str]) -> Passes:
    counts = work / "storm.tsv"
    passes = harness.run(jars, source, sentences.LINES, PASSES, counts, work)
    _check("Storm", counts, expected)
    return passes


def _check(who: str, counts: Path, expected: Counter[str]) -> None:
    """Raises ValueError if the counts differ from the recount's."""
    found = sentences.read_counts(counts)
    if found != expected:
        wrong = sorted(word for word in found.keys() | expected.keys() if found.get(word) != expected[word])[:3]
        seen = ", ".join(f"{word}: {found.get(word)}, not {expected[word]}" for word in wrong)
        raise ValueError(f"{who} counted wrong: {seen}")


def _tell(number: int, ours: Passes, theirs: Passes) -> None:
    for who, passes in (("ours", ours), ("Storm", theirs)):
        rates = ", ".join(f"{sentences.LINES / one / 1000:.0f}" for one in passes.pass_seconds)
        start = sentences.LINES / passes.from_start_seconds / 1000
        print(f"round {number + 1}, {who}: {rates} k lines/s by pass; {start:.0f} k lines/s from process start")
