"""Kafka as a source, on a real broker: where it starts, where it goes on, what its records become.

Rules 10 is docs/rules/trident.md, section 10: what Storm's KafkaTridentSpout tests say.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import DefinitionError, DuplicateFieldError, NotSliceableError, SourceError
from pipelines.sources import Kafka
from pipelines.trident import Count, DeltaState, Sum, TridentTopology
from tests.sources.kafka_broker import Topic

pytestmark = pytest.mark.slow

NewTopic = Callable[..., Topic]
SCHEMA = "n bigint"


class Numbers:
    """A flow that keeps and sums the numbers of a topic, and what it must hold."""

    def __init__(self, spark: SparkSession, root: Path, topic: Topic, **options: Any) -> None:
        self.lake, self.topic = Lake(root / "lake"), topic
        self.runtime = Runtime(spark, self.lake)
        self.source = Kafka(topic.servers, topic.name, SCHEMA, with_fields=["partition", "offset"], **options)
        self.topology = TridentTopology("numbers")
        rows = self.topology.new_stream("records", self.source)
        rows.partition_persist(DeltaState("rows"))
        rows.group_by("partition").persistent_aggregate(DeltaState("sums"), [Count("records"), Sum("n", "total")])

    def send(self, first: int, last: int, partition: int = 0, **more: Any) -> None:
        self.topic.send(*(json.dumps({"n": n}) for n in range(first, last + 1)), partition=partition, **more)

    def catch_up(self, **options: Any) -> list[int]:
        """The number of records of each batch."""
        return [batch.received for batch in self.runtime.catch_up(self.topology, **options).batches]

    @property
    def held(self) -> list[int]:
        """The numbers in the state, which the sums agree with."""
        if not self.lake.state("rows").history():
            return []
        rows = self.lake.state("rows").scan().to_pylist()
        sums = self.lake.state("sums").scan().to_pylist()
        assert (sum(r["records"] for r in sums), sum(r["total"] for r in sums)) == (
            len(rows),
            sum(r["n"] for r in rows),
        )
        return sorted(row["n"] for row in rows)


def test_batches_are_bounded_and_go_on_after_a_restart(
    spark: SparkSession, tmp_path: Path, new_topic: NewTopic
) -> None:
    """Rules 10: previous meta (0, 49) => 50..99."""
    flow = Numbers(spark, tmp_path, new_topic(), max_records_per_batch=50)
    flow.send(0, 99)
    assert flow.catch_up(max_batches=1) == [50]
    assert flow.held == list(range(50))
    again = Numbers(spark, tmp_path, flow.topic, max_records_per_batch=50)
    assert again.catch_up() == [50]
    assert again.held == list(range(100))
    assert again.catch_up() == []


def test_earliest_reads_all_that_is_there(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    """Rules 10: null meta + UNCOMMITTED_EARLIEST => offsets 0..99, meta (0, 99)."""
    flow = Numbers(spark, tmp_path, new_topic(2))
    flow.send(0, 59, partition=0)
    flow.send(60, 99, partition=1)
    assert flow.catch_up() == [100]
    assert flow.held == list(range(100))
    rows = flow.lake.state("rows").scan().to_pylist()
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        (part, offset) for part, count in ((0, 60), (1, 40)) for offset in range(count)
    ]
    checkpoint = flow.lake.checkpoint_path("numbers", "records") / "spark"
    assert flow.source.positions(checkpoint, 0, 0) == {f"kafka:{flow.topic.name}/{part}" for part in (0, 1)}
    assert flow.source.positions(checkpoint, 1, 0) == frozenset()


@pytest.mark.exhaustive
def test_latest_reads_what_comes_after_the_first_start(
    spark: SparkSession, tmp_path: Path, new_topic: NewTopic
) -> None:
    """Rules 10: UNCOMMITTED_LATEST => none, meta (99, 99); an empty first batch does not go back (STORM-3279)."""
    flow = Numbers(spark, tmp_path, new_topic(), starting="latest")
    flow.send(0, 99)
    assert sum(flow.catch_up()) == 0
    flow.send(100, 104)
    again = Numbers(spark, tmp_path, flow.topic, starting="latest")
    assert sum(again.catch_up()) == 5
    assert again.held == list(range(100, 105))


@pytest.mark.exhaustive
def test_a_time_to_start_at(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    """Rules 10: first poll strategy TIMESTAMP; a time after the last record means what comes from now on."""
    topic = new_topic()
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    flow = Numbers(spark, tmp_path / "a", topic, starting="2026-01-01T12:00:00")
    flow.send(0, 9, timestamp=int(noon.timestamp() * 1000) - 1)
    flow.send(10, 19, timestamp=int(noon.timestamp() * 1000))
    assert flow.catch_up() == [10]
    assert flow.held == list(range(10, 20))
    late = Numbers(spark, tmp_path / "b", topic, starting=datetime(2099, 1, 1, tzinfo=UTC))
    assert sum(late.catch_up()) == 0
    late.send(20, 20, timestamp=int(noon.timestamp() * 1000))
    assert sum(late.catch_up()) == 1
    assert late.held == [20]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "starting", ["latest", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("earliest", "2026-01-01"))]
)
def test_a_restart_goes_on_after_the_last_offset(
    spark: SparkSession, tmp_path: Path, new_topic: NewTopic, starting: str
) -> None:
    """Rules 10: worker restart resumes after last offset for EARLIEST / LATEST / TIMESTAMP."""
    flow = Numbers(spark, tmp_path, new_topic(), starting=starting)
    flow.catch_up()
    flow.send(0, 9)
    assert sum(flow.catch_up()) == 10
    flow.send(10, 12)
    assert sum(Numbers(spark, tmp_path, flow.topic, starting=starting).catch_up()) == 3
    assert flow.held == list(range(13))


@pytest.mark.exhaustive
def test_a_new_epoch_starts_where_it_is_told(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    """Rules 10: redeploy applies EARLIEST / LATEST / TIMESTAMP."""
    flow = Numbers(spark, tmp_path, new_topic())
    flow.send(0, 9)
    assert flow.catch_up() == [10]
    flow.lake.checkpoint_path("numbers", "records").rename(tmp_path / "lost")
    again = Numbers(spark, tmp_path, flow.topic, starting="latest")
    assert sum(again.catch_up(on_fresh_checkpoint="continue")) == 0
    again.send(10, 11)
    assert sum(again.catch_up()) == 2
    assert again.held == list(range(12))
    flow.lake.checkpoint_path("numbers", "records").rename(tmp_path / "lost again")
    assert flow.catch_up(on_fresh_checkpoint="reset") == [12]
    assert flow.held == list(range(12))


@pytest.mark.exhaustive
def test_runs_without_records_lose_and_repeat_nothing(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    """Rules 10: 10 empty batches, then 10 records => 100..109."""
    flow = Numbers(spark, tmp_path, new_topic())
    flow.send(0, 99)
    flow.catch_up()
    assert [flow.catch_up() for _ in range(3)] == [[], [], []]
    flow.send(100, 109)
    assert flow.catch_up() == [10]
    assert sorted(row["offset"] for row in flow.lake.state("rows").scan().to_pylist()) == list(range(110))


@pytest.mark.exhaustive
def test_a_new_partition_is_picked_up_from_its_start(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    """Rules 10: KafkaTridentSpoutEmitterPartitioningTest, new partition appended; the others keep their offsets."""
    flow = Numbers(spark, tmp_path, new_topic(), starting="latest")
    flow.catch_up()
    flow.send(0, 4)
    flow.catch_up()
    flow.topic.grow(3)
    flow.send(5, 9, partition=2)
    flow.send(10, 14)
    assert sum(flow.catch_up()) == 10
    assert flow.held == list(range(15))


def test_what_becomes_of_a_record(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    topic, lake = new_topic(), Lake(tmp_path / "lake")
    every = ["key", "topic", "partition", "offset", "timestamp"]
    bad = ["{torn", "[]", '{"n": "x", "k": "half"}', '""', " ", "7", "\t", "\r\n", '{"other": 1}']
    topic.send('{"n": 1, "k": "a", "more": 0}', '{"k": "b"}', None, key="some", timestamp=1_000)
    topic.send(*bad, b'{"k": "\xff', timestamp=2_000)
    topology = TridentTopology("records")
    records = topology.new_stream(
        "records", Kafka([topic.servers], [topic.name], "n bigint, k string", with_fields=every)
    )
    assert records.output_fields == ("n", "k", *every)
    records.partition_persist(DeltaState("rows"))
    report = Runtime(spark, lake).catch_up(topology)
    assert (report.received, report.quarantined) == (13, 10)
    rows = sorted(lake.state("rows").scan().to_pylist(), key=lambda row: row["offset"])
    seen = [(row["n"], row["k"], row["key"], row["topic"], row["partition"], row["offset"]) for row in rows]
    assert seen == [
        (1, "a", "some", topic.name, 0, 0),
        (None, "b", "some", topic.name, 0, 1),
        (None, None, "some", topic.name, 0, 2),
    ]
    assert {row["timestamp"] for row in rows} == {datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}
    refused = lake.quarantine("records").scan().to_pylist()
    assert sorted(row["row"] for row in refused) == sorted([*bad, '{"k": "�'])
    assert {row["stage"] for row in refused} == {"source"}


def test_text_and_bytes(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    topic, lake = new_topic(), Lake(tmp_path / "lake")
    topic.send("one", "{", b"\xff", "")
    topology = TridentTopology("plain")
    text = topology.new_stream("text", Kafka(topic.servers, topic.name, "line string", value_format="text"))
    text.partition_persist(DeltaState("lines"))
    raw = topology.new_stream("bytes", Kafka(topic.servers, topic.name, value_format="bytes", with_fields=["offset"]))
    raw.partition_persist(DeltaState("raw"))
    assert Runtime(spark, lake).catch_up(topology).quarantined == 0
    assert sorted(row["line"] for row in lake.state("lines").scan().to_pylist()) == sorted(["one", "{", "�", ""])
    rows = sorted(lake.state("raw").scan().to_pylist(), key=lambda row: row["offset"])
    assert [row["value"] for row in rows] == [b"one", b"{", b"\xff", b""]


def test_it_has_no_slices(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    flow = Numbers(spark, tmp_path, new_topic())
    with pytest.raises(NotSliceableError, match=r"Kafka\(.*has no slices"):
        TridentTopology("sliced").new_stream("records", flow.source, slice_by="n")
    with pytest.raises(NotSliceableError):
        flow.runtime.run_bounded(flow.topology)
    assert flow.held == []


def test_refused_before_the_start(spark: SparkSession, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic()
    Kafka(topic.servers, topic.name, SCHEMA).check("s", spark)
    with pytest.raises(SourceError, match="does not have all of the topics nowhere") as caught:
        Kafka(topic.servers, "nowhere", SCHEMA).check("s", spark)
    assert caught.value.hint == "create the topic or correct its name"
    monkeypatch.setattr("pipelines.sources.kafka._ANSWER_SECONDS", 1)
    with pytest.raises(SourceError, match=r"no Kafka broker answers at 127\.0\.0\.1:9"):
        Kafka("127.0.0.1:9", topic.name, SCHEMA).check("s", spark)


def test_wrong_arguments() -> None:
    for wrong in (
        lambda: Kafka("h:1", "t"),
        lambda: Kafka("h:1", [], SCHEMA),
        lambda: Kafka("h:1", "t t", SCHEMA),
        lambda: Kafka("h:1", "t", SCHEMA, value_format="xml"),
        lambda: Kafka("h:1", "t", "a string, b string", value_format="text"),
        lambda: Kafka("h:1", "t", SCHEMA, starting="soon"),
        lambda: Kafka("h:1", "t", SCHEMA, max_records_per_batch=0),
        lambda: Kafka("h:1", "t", SCHEMA, with_fields=["headers"]),
    ):
        with pytest.raises(DefinitionError, match="Kafka"):
            wrong()
    with pytest.raises(DuplicateFieldError):
        Kafka("h:1", "t", "offset bigint", with_fields=["offset"])
    source = Kafka("h:1", "t", SCHEMA, options={"kafka.sasl.jaas.config": "secret"})
    assert repr(source) == "Kafka('h:1', 't')"
    number = Kafka("h:1", "t", SCHEMA, options={"kafka.max.poll.records": 500})  # type: ignore[dict-item]
    assert number._reader_options()["kafka.max.poll.records"] == "500"
    assert (source.sliceable, source.transactional, source.max_parallelism) == (False, True, None)
