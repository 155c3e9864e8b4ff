"""Windows: events a second against a processor that takes them one by one, beside Spark's own, and as the keys grow."""

from __future__ import annotations

import os
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
from pipelines.flowmix import Count, Flow, Policy, Sum
from pipelines.sources import ParquetFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS, KEYS, COUNT, BATCH, ROUNDS = 2_000_000, 10_000, 100, 500_000, 3
PLACED_BATCH = 200_000
# The one-by-one processor needs so long for two million that a part tells its pace as well: enough that windows fill.
ONE_BY_ONE_EVENTS = 1_200_000
SLIDING_EVENTS = 1_000_000
GROWTH = (1_000, 10_000, 100_000, 1_000_000)
# What the original did on a machine of two cores: 53,000 to 92,000 events a second, in memory alone.
ORIGINAL = 92_000
SCHEMA = "k bigint, v bigint, timestamp bigint"


def measure(spark: SparkSession) -> list[Ratio]:
    with scratch("windows") as folder:
        many, few, sliding = folder / "many", folder / "few", folder / "sliding"
        generate(many, EVENTS, KEYS)
        generate(few, ONE_BY_ONE_EVENTS, KEYS)
        generate(sliding, SLIDING_EVENTS, 1_000)
        check_answers(spark, folder, few)
        number = iter(range(1000))
        ours, theirs = paired(
            lambda: count_windows(spark, many, folder / f"ours{next(number)}") / EVENTS * 1e6,
            lambda: one_by_one(spark, few, folder / f"theirs{next(number)}") / ONE_BY_ONE_EVENTS * 1e6,
            ROUNDS,
        )
        own, sparks = paired(
            lambda: sliding_windows(spark, sliding, folder / f"sliding{next(number)}") / SLIDING_EVENTS * 1e6,
            lambda: sparks_windows(spark, sliding, folder / f"sparks{next(number)}") / SLIDING_EVENTS * 1e6,
            ROUNDS,
        )
        placed = in_batch_beside_channels(spark, folder)
        show_growth(spark, folder)
    return [
        Ratio("count windows of 100, 10 k keys, 2 M events", "row-at-a-time processor", ours, theirs, "us/event", 3, "higher"),
        Ratio("the same", "the original, in memory (92 k/s)", ours, 1e6 / ORIGINAL, "us/event", 2, "higher"),
        placed,
        Ratio("sums of 10 s every 5 s, 1 k keys", "Spark's sliding windows", own, sparks, "us/event", 1, "higher"),
    ]  # fmt: skip


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


def count_flow(folder: Path, place: str = "channels") -> Flow:
    return (
        Flow("counted", windows=place)
        .stream("events", source(folder))
        .partition("k")
        .aggregate(Sum("v", "sum"), trigger=Policy.count(COUNT), evict=Policy.count(COUNT))
        .persist("sums")
        .build()
    )


def count_windows(spark: SparkSession, folder: Path, lake: Path, place: str = "channels") -> float:
    return seconds(lambda: Runtime(spark, Lake(lake)).catch_up(count_flow(folder, place)))


def in_batch_beside_channels(spark: SparkSession, folder: Path, rounds: int = ROUNDS) -> Ratio:
    """The same windows in the batch of their source and on a channel, both warm; the same sums come out of both."""
    many = folder / "placed"
    generate(many, EVENTS, KEYS, PLACED_BATCH)
    lakes = {place: folder / f"warm_{place}" for place in ("batch", "channels")}
    sums = []
    for place, lake in lakes.items():
        count_windows(spark, many, lake, place)
        sums.append(sorted(map(repr, Lake(lake).state("sums").scan().select(["k", "sum"]).to_pylist())))
    assert sums[0] == sums[1]
    assert sums[0]
    number = iter(range(1000))
    ours, theirs = paired(
        lambda: count_windows(spark, many, folder / f"batch{next(number)}", "batch") / EVENTS * 1e6,
        lambda: count_windows(spark, many, folder / f"channels{next(number)}") / EVENTS * 1e6,
        rounds,
    )
    what = "count windows of 100 in the batch of their source, batches of 200 k"
    return Ratio(what, "on a channel", ours, theirs, "us/event", 1.5, "higher")


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
    return (
        Flow("sliding")
        .stream("events", source(folder))
        .partition("k")
        .aggregate(
            Sum("v", "sum"),
            Count(output="n"),
            trigger=Policy.time(5),
            evict=Policy.time(10),
            window_evict_millis=11_000,
        )
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
    for column in ("keys", "windows' query, s", "state in RocksDB, MB"):
        table.add_column(column, justify="right")
    for keys in GROWTH:
        events, lake = folder / f"grown{keys}", folder / f"lake{keys}"
        generate(events, 1_000_000, keys, 100_000)
        Runtime(spark, Lake(lake)).catch_up(count_flow(events))
        more = events / "part-99999.parquet"
        pq.write_table(pq.read_table(sorted(events.iterdir())[-1]), more)
        os.utime(more, (1_800_000_000, 1_800_000_000))
        took = Runtime(spark, Lake(lake)).catch_up(count_flow(events)).batches[-1].seconds
        state = sum(file.stat().st_size for file in (lake / "checkpoints").rglob("state/**/*") if file.is_file())
        table.add_row(f"{keys:,}", f"{took:.2f}", f"{state / 1e6:.1f}")
    Console().print(table)
