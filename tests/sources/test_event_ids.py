"""Ids that events get from their place in the source: the same in a replay, others in another batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipelines import Lake, Runtime
from pipelines.flowmix import Flow
from pipelines.graph import events
from pipelines.sources import DeltaChangeFeed, DeltaTableSource, JsonFiles, Kafka, Rate, Source
from pipelines.sources.base import CORRUPT, FILE
from pipelines.sources.events import EventSource


@pytest.mark.parametrize("timestamp", [None, "v"])
@pytest.mark.parametrize(
    ("source", "per_batch"),
    [
        (Kafka("b:9092", "t", "v bigint"), True),
        (DeltaChangeFeed("table", "v bigint"), True),
        (JsonFiles("/in", "v bigint"), False),
        (DeltaTableSource("table", "v bigint"), False),
    ],
    ids=["kafka", "feed", "files", "table"],
)
def test_places_in_a_batch(spark: SparkSession, source: Source, per_batch: bool, timestamp: str | None) -> None:
    """A file is of one batch; a partition, or the snapshot of a feed, of many."""
    given = EventSource(source, "s", timestamp=timestamp)
    added = [F.lit(None).alias(name) for name in source.fields if name != "v"]
    rows = spark.range(2).select(F.col("id").alias("v"), *added, F.lit(None).alias(CORRUPT), F.lit("/in/p").alias(FILE))
    ids = [
        [row[events.ID] for row in given.events_of_batch(rows, frozenset({"/in/p"}), txid).select(events.ID).collect()]
        for txid in (0, 0, 1)
    ]
    assert ids[0] == ids[1]
    assert len({id_ for batch in ids for id_ in batch}) == (4 if per_batch else 2)


@pytest.mark.slow
def test_each_event_has_its_own_id(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow("numbers").stream("s", Rate(rows_per_batch=2, partitions=1)).persist("held").build()
    for _ in range(2):
        Runtime(spark, Lake(tmp_path)).catch_up(flow)
    ids = [row["event_id"] for row in Lake(tmp_path).state("held").scan().to_pylist()]
    assert (len(ids), len(set(ids))) == (4, 4)
