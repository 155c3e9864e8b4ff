"""Windows: events per second against a processor that takes them one by one, beside Spark's own, and as the keys grow."""

from __future__ import annotations

import itertools
import os
import statistics
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Ratio, paired, scratch, seconds
from pipelines import Lake, Runtime
from pipelines.flowmix import Count, Flow, Policy, Sum, WindowAggregator
from pipelines.sources import ParquetFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEER = (
    "a row-at-a-time processor of Spark (`transformWithStateInPandas`, a value state per key with its window as a "
    "list) and Spark's own sliding windows (`window('at', '10 seconds', '5 seconds')` with a watermark), both "
    "into Delta in the same session; the original's published 92,000 events per second in memory."
)
EVENTS, KEYS, COUNT, ROUNDS = 2_000_000, 10_000, 100, 3
BATCH, SMALLER_BATCH, TINY_BATCH = 200_000, 100_000, 1_000
# The one-by-one processor needs so long for two million that a part tells its pace as well: enough that windows fill.
ONE_BY_ONE_EVENTS = 1_200_000
SLIDING_EVENTS = 1_000_000
TINY_EVENTS = 40_000
KIND_EVENTS = 600_000
KINDS = ("sort", "switch", "collect", "the user's own aggregator")
GROWTH = (1_000, 10_000, 100_000, 1_000_000)
# What the original did on a machine of two cores: 53,000 to 92,000 events a second, in memory alone.
ORIGINAL = 92_000
# Events a second that the design asks for in batches of half the size.
SMALLER = 180_000
# What a window may add to a tiny batch of its source.
TINY_SECONDS = 0.15
SCHEMA = "k bigint, v bigint, timestamp bigint"
WHAT = "count windows of 100, 10 k keys, batches of"


def measure(spark: SparkSession) -> list[Ratio]:
    """Windows in the batch of their source, warm; the answers are compared before anything is timed."""
    with scratch("windows") as folder:
        few = folder / "few"
        generate(few, ONE_BY_ONE_EVENTS, KEYS)
        check_answers(spark, folder, few)
        found = [
            *beside_one_by_one(spark, folder, few),
            in_batch_beside_channels(spark, folder),
            *other_kinds_beside_channels(spark, folder),
            beside_sparks_windows(spark, folder),
            with_many_keys(spark, folder),
            on_tiny_batches(spark, folder),
        ]
        show_growth(spark, folder)
    return found


def beside_one_by_one(spark: SparkSession, folder: Path, few: Path) -> list[Ratio]:
    """The pace beside a processor of single rows and beside the original's, and that of smaller batches."""
    many, smaller = folder / "many", folder / "smaller"
    generate(many, EVENTS, KEYS)
    generate(smaller, EVENTS, KEYS, SMALLER_BATCH)
    ours, theirs = paired(
        lambda: pace(spark, many, fresh(folder)),
        lambda: one_by_one(spark, few, fresh(folder)) / ONE_BY_ONE_EVENTS * 1e6,
        ROUNDS,
    )
    small = statistics.median(pace(spark, smaller, fresh(folder)) for _ in range(ROUNDS))
    original = 1e6 / ORIGINAL
    return [
        Ratio(f"{WHAT} 200 k", "row-at-a-time processor", ours, theirs, "us/event", 6, "higher"),
        Ratio(f"{WHAT} 200 k", "the original, in memory", ours, original, "us/event", 2.5, "higher"),
        Ratio(f"{WHAT} 100 k", "the original, in memory", small, original, "us/event", SMALLER / ORIGINAL, "higher"),
    ]


def beside_sparks_windows(spark: SparkSession, folder: Path) -> Ratio:
    """Sums of sliding windows, both into Delta."""
    sliding = folder / "sliding"
    generate(sliding, SLIDING_EVENTS, 1_000)
    own, sparks = paired(
        lambda: sliding_windows(spark, sliding, fresh(folder)) / SLIDING_EVENTS * 1e6,
        lambda: sparks_windows(spark, sliding, fresh(folder)) / SLIDING_EVENTS * 1e6,
        ROUNDS,
    )
    return Ratio("sums of 10 s every 5 s, 1 k keys", "Spark's sliding windows", own, sparks, "us/event", 1.5, "higher")


def with_many_keys(spark: SparkSession, folder: Path) -> Ratio:
    """The pace over a million keys beside that over ten thousand."""
    wide, narrow = folder / "wide", folder / "narrow"
    generate(wide, EVENTS, 1_000_000)
    generate(narrow, EVENTS, KEYS)
    ours, theirs = paired(lambda: pace(spark, wide, fresh(folder)), lambda: pace(spark, narrow, fresh(folder)), ROUNDS)
    return Ratio("count windows over 1 M keys", "over 10 k keys", ours, theirs, "us/event", 1 / 0.7)


def on_tiny_batches(spark: SparkSession, folder: Path) -> Ratio:
    """What a window adds to a batch of a thousand events: median seconds with it, less those of the plain rows."""
    tiny = folder / "tiny"
    generate(tiny, TINY_EVENTS, KEYS, TINY_BATCH)

    def batch_seconds(flow: Flow) -> float:
        batches = Runtime(spark, Lake(fresh(folder))).catch_up(flow).batches
        return statistics.median(batch.seconds for batch in batches[5:])

    plain = Flow("plain").stream("events", source(tiny)).persist("kept").build()
    own, without = paired(lambda: batch_seconds(count_flow(tiny)), lambda: batch_seconds(plain), ROUNDS)
    return Ratio("what a window adds to a tiny batch", f"{TINY_SECONDS} s", own - without, TINY_SECONDS, "s", 1.0)


def fresh(folder: Path) -> Path:
    """Return a folder that no run has used."""
    return folder / f"run{next(_NUMBERS)}"


_NUMBERS = itertools.count()


def generate(folder: Path, events: int, keys: int, batch: int = BATCH) -> None:
    """Parquet files of a batch each, twenty events a millisecond, in order."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(5)
    for number, start in enumerate(range(0, events, batch)):
        size = min(batch, events - start)
        at = (np.arange(start, start + size) // 20).astype("int64")
        rows = pa.table({"k": chance.integers(0, keys, size), "v": chance.integers(0, 100, size), "timestamp": at})
        file = folder / f"part-{number:05d}.parquet"
        pq.write_table(rows, file)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def source(folder: Path) -> ParquetFiles:
    return ParquetFiles(folder, SCHEMA, max_files_per_batch=1)


def count_flow(folder: Path, place: str = "batch") -> Flow:
    return (
        Flow("counted", windows=place)
        .stream("events", source(folder))
        .partition("k")
        .aggregate(Sum("v", "sum"), trigger=Policy.count(COUNT), evict=Policy.count(COUNT))
        .persist("sums")
        .build()
    )


def count_windows(spark: SparkSession, folder: Path, lake: Path, place: str = "batch") -> float:
    return seconds(lambda: Runtime(spark, Lake(lake)).catch_up(count_flow(folder, place)))


def pace(spark: SparkSession, folder: Path, lake: Path, place: str = "batch") -> float:
    """Microseconds per event."""
    return count_windows(spark, folder, lake, place) / EVENTS * 1e6


def in_batch_beside_channels(spark: SparkSession, folder: Path, rounds: int = ROUNDS) -> Ratio:
    """The same windows in the batch of their source and on a channel, both warm; the same sums come out of both."""
    many = folder / "placed"
    generate(many, EVENTS, KEYS)
    lakes = {place: folder / f"warm_{place}" for place in ("batch", "channels")}
    sums = []
    for place, lake in lakes.items():
        count_windows(spark, many, lake, place)
        sums.append(sorted(map(repr, Lake(lake).state("sums").scan().select(["k", "sum"]).to_pylist())))
    assert sums[0] == sums[1]
    assert sums[0]
    ours, theirs = paired(
        lambda: pace(spark, many, fresh(folder)), lambda: pace(spark, many, fresh(folder), "channels"), rounds
    )
    return Ratio(f"{WHAT} 200 k", "the same windows on a channel", ours, theirs, "us/event", 1.5, "higher")


class Spread(WindowAggregator):
    """The greatest less the least value."""

    outputs = "spread bigint"

    def __init__(self) -> None:
        self.values: list[int] = []

    def added(self, event: Any) -> None:
        self.values.append(event["v"])

    def evicted(self, event: Any) -> None:
        self.values.remove(event["v"])

    def aggregate(self) -> int | None:
        return max(self.values) - min(self.values) if self.values else None


def kind_flow(kind: str, folder: Path, place: str) -> Flow:
    """Return a flow of a window that is worked one event at a time."""
    events: Any = Flow("kinds", windows=place).stream("events", source(folder)).partition("k")
    each = Policy.count(COUNT)
    made = {
        "sort": lambda: events.sort("v desc", top_n=10, trigger=each, flush=True),
        "switch": lambda: events.switch(open=Policy.count(COUNT // 2), evict=each, close=Policy.count(COUNT // 2)),
        "collect": lambda: events.collect(trigger=each, evict=each, clear_on_trigger=True),
        "the user's own aggregator": lambda: events.aggregate(Spread(), trigger=each, evict=each),
    }[kind]()
    return made.persist("made").build()


def other_kinds_beside_channels(spark: SparkSession, folder: Path, rounds: int = 2) -> list[Ratio]:
    """Windows one by one, in the batch of their source and on a channel, where they are spread over the cores."""
    few = folder / "kinds"
    generate(few, KIND_EVENTS, KEYS)

    def took(kind: str, place: str) -> float:
        flow = kind_flow(kind, few, place)
        return seconds(lambda: Runtime(spark, Lake(fresh(folder))).catch_up(flow)) / KIND_EVENTS * 1e6

    found = []
    for kind in KINDS:
        for place in ("batch", "channels"):
            took(kind, place)
        ours, theirs = paired(lambda k=kind: took(k, "batch"), lambda k=kind: took(k, "channels"), rounds)
        found.append(Ratio(f"{kind}, 10 k keys", "the same on a channel", ours, theirs, "us/event", 1.0, "higher"))
    return found


def one_by_one(spark: SparkSession, folder: Path, out: Path) -> float:
    """What one writes first: a state entry a key, its values as a list, an event at a time; the results into Delta."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Windows(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._values = handle.getValueState("values", "ticks int, kept array<bigint>")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            import pandas as pd

            ticks, kept = self._values.get() if self._values.exists() else (0, [])
            window: deque[int] = deque(kept, COUNT)
            sums = []
            for frame in rows:
                for value in frame.iloc[:, 1]:
                    window.append(int(value))
                    ticks += 1
                    if ticks == COUNT:
                        sums.append(sum(window))
                        ticks = 0
            self._values.update((ticks, list(window)))
            if sums:
                yield pd.DataFrame({"k": key[0], "sum": sums})

        def close(self) -> None:
            """Nothing to close."""

    stream = source(folder).stream(spark).select("k", "v")
    found = stream.groupBy("k").transformWithStateInPandas(Windows(), "k bigint, sum bigint", "append", "none")
    writer = found.writeStream.format("delta").option("checkpointLocation", str(out / "checkpoint"))
    return seconds(lambda: writer.trigger(availableNow=True).start(str(out / "table")).awaitTermination())


def check_answers(spark: SparkSession, folder: Path, few: Path) -> None:
    """Both give the same sums, before anything is timed; it also warms both."""
    count_windows(spark, few, folder / "checked")
    one_by_one(spark, few, folder / "checked_one")
    ours = Lake(folder / "checked").state("sums").scan().select(["k", "sum"]).to_pylist()
    theirs = spark.read.format("delta").load(str(folder / "checked_one" / "table")).toArrow().to_pylist()
    assert sorted(map(repr, ours)) == sorted(map(repr, theirs))
    assert len(ours) > 1000, "too few events a key: no window has filled"


def sliding_flow(folder: Path) -> Flow:
    """The windows of `sparks_windows`: ten seconds, every five, at the same places."""
    return (
        Flow("sliding", windows="batch")
        .stream("events", source(folder))
        .partition("k")
        .aligned(Sum("v", "sum"), Count(output="n"), every=5, size=10)
        .persist("sliding_sums")
        .build()
    )


def sliding_windows(spark: SparkSession, folder: Path, lake: Path) -> float:
    return seconds(lambda: Runtime(spark, Lake(lake)).catch_up(sliding_flow(folder)))


def sparks_windows(spark: SparkSession, folder: Path, out: Path) -> float:
    from pyspark.sql import functions as F

    stream = source(folder).stream(spark).select("k", "v", F.timestamp_millis("timestamp").alias("at"))
    by = [F.window("at", "10 seconds", "5 seconds"), F.col("k")]
    found = stream.withWatermark("at", "0 seconds").groupBy(*by).agg(F.sum("v").alias("sum"), F.count("*").alias("n"))
    writer = found.writeStream.format("delta").option("checkpointLocation", str(out / "checkpoint"))
    return seconds(lambda: writer.trigger(availableNow=True).start(str(out / "table")).awaitTermination())


def show_growth(spark: SparkSession, folder: Path) -> None:
    """Batch time and size of the windows' state as the keys grow; no bar."""
    table = Table(title="Count windows of 100, a batch of 100 k events, after ten of them")
    for column in ("keys", "batch, s", "state, MB"):
        table.add_column(column, justify="right")
    for keys in GROWTH:
        events, lake = folder / f"grown{keys}", folder / f"lake{keys}"
        generate(events, 1_000_000, keys, 100_000)
        Runtime(spark, Lake(lake)).catch_up(count_flow(events))
        more = events / "part-99999.parquet"
        pq.write_table(pq.read_table(sorted(events.iterdir())[-1]), more)
        os.utime(more, (1_800_000_000, 1_800_000_000))
        took = Runtime(spark, Lake(lake)).catch_up(count_flow(events)).batches[-1].seconds
        state = sum(file.stat().st_size for file in (lake / "checkpoints").rglob("windows/*") if file.is_file())
        table.add_row(f"{keys:,}", f"{took:.2f}", f"{state / 1e6:.1f}")
    Console().print(table)
