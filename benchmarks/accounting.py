"""What the accounts cost: hashes of rows, hooks, user counters, custom and direct grouping, and a later `verify`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pyspark.sql import functions as F

from benchmarks.engine_overhead import BATCHES, generate
from benchmarks.measure import Ratio, paired, scratch, seconds
from pipelines import Lake, Runtime
from pipelines.execution.events.hooks import Hook
from pipelines.execution.verify import verify
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, Split, Stream, TridentTopology, count, row_function

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEER = (
    "the same flow without what is measured: rows counted and not hashed, no hooks, a function that does not "
    "count, a shuffle. `verify` is beside the run that wrote the table."
)
LINES = 100_000
ROUNDS = 3
TASKS = 4
# None of these has a bar in the design; twice would be too much for what each gives.
BAR = 2.0


@row_function("bigint")
def length(sentence: str) -> Iterator[int]:
    yield len(sentence)


@row_function("bigint")
def counted_length(sentence: str) -> Iterator[int]:
    count("sentences")
    yield len(sentence)


def measure(spark: SparkSession) -> list[Ratio]:
    with scratch("accounts") as folder:
        generate(folder / "in", BATCHES, LINES)
        number = iter(range(1000))

        def run(steps: Callable[[Stream], object], hooks: tuple[Hook, ...] = (), **hidden: Any) -> Callable[[], float]:
            def one() -> float:
                lake = Lake(folder / f"lake{next(number)}")
                with patch.multiple("pipelines.execution.batch.plan_run", **hidden) if hidden else nullcontext():
                    return seconds(lambda: Runtime(spark, lake, hooks=hooks).catch_up(topology(folder, steps)))

            return one

        def compared(what: str, against: str, ours: Callable[[], float], theirs: Callable[[], float]) -> Ratio:
            return Ratio(what, against, *paired(ours, theirs, ROUNDS), "s", BAR)

        # The first runs of a process compile, and would count against whichever comes first.
        for _ in range(3):
            run(words)()
        return [
            compared("rows hashed", "rows counted", run(words), run(words, xor_of_rows=lambda _: "0L")),
            compared("three hooks", "no hook", run(words, (Hook(), Hook(), Hook())), run(words)),
            compared("Python function that counts", "the same without", run(by(counted_length)), run(by(length))),
            compared("custom grouping", "shuffle", run(dealt_by_function), run(dealt_by_shuffle)),
            compared("direct grouping", "shuffle", run(dealt_directly), run(dealt_by_shuffle)),
            _verified(spark, folder),
        ]


def topology(folder: Path, steps: Callable[[Stream], object]) -> TridentTopology:
    found = TridentTopology("accounts")
    steps(found.new_stream("sentences", JsonFiles(folder / "in", "sentence string", max_files_per_batch=1)))
    return found


def words(stream: Stream) -> object:
    grouped = stream.each("sentence", Split(), "word").group_by("word")
    return grouped.persistent_aggregate(DeltaState("counts"), Count(), "n")


def by(function: Any) -> Callable[[Stream], object]:
    return lambda stream: (
        stream.each("sentence", function, "length")
        .group_by("length")
        .persistent_aggregate(DeltaState("lengths"), Count(), "n")
    )


def _tallied(stream: Stream) -> object:
    counted = stream.partition_aggregate(Count(), "n").parallelism_hint(TASKS)
    return counted.partition_persist(DeltaState("tallies"))


def dealt_by_shuffle(stream: Stream) -> object:
    return _tallied(stream.shuffle())


def dealt_by_function(stream: Stream) -> object:
    return _tallied(stream.partition(F.length))


def dealt_directly(stream: Stream) -> object:
    return _tallied(stream.each("sentence", lambda sentence: F.length(sentence) % TASKS, "task").direct("task"))


def _verified(spark: SparkSession, folder: Path) -> Ratio:
    """A table of all rows, proven after the run."""
    lake = Lake(folder / "verified")
    found = topology(folder, lambda stream: stream.partition_persist(DeltaState("kept")))
    took = seconds(lambda: Runtime(spark, lake).catch_up(found))
    return Ratio(
        "verify of a table of rows",
        "the run that wrote it",
        seconds(lambda: verify(spark, lake, found)),
        took,
        "s",
        1.0,
    )
