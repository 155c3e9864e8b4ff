"""A batch of Kafka's that runs again: the same records, or a clear stop where they are gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import LostRowsError, PoisonBatchError
from pipelines.sources import Kafka
from pipelines.trident import OPAQUE, Count, DeltaState, Sum, TridentTopology
from tests.sources.kafka_broker import Topic

pytestmark = pytest.mark.slow

NewTopic = Callable[..., Topic]


class StopError(BaseException):
    """Stands for the end of the process."""


class Orders:
    """A flow with two states over a topic, stopped between Delta's commit and Spark's."""

    def __init__(self, spark: SparkSession, root: Path, topic: Topic, **state: Any) -> None:
        self.spark, self.lake, self.topic = spark, Lake(root / "lake"), topic
        self.topology = TridentTopology("orders")
        source = Kafka(topic.servers, topic.name, "n bigint", max_records_per_batch=10)
        records = self.topology.new_stream("records", source)
        records.partition_persist(DeltaState("rows", **state))
        records.persistent_aggregate(DeltaState("totals", **state), [Count("records"), Sum("n", "total")])

    def send(self, first: int, last: int) -> None:
        self.topic.send(*(json.dumps({"n": n}) for n in range(first, last + 1)))

    def catch_up(self) -> list[tuple[int, int]]:
        """Txid and number of records of each batch."""
        report = Runtime(self.spark, self.lake).catch_up(self.topology)
        return [(batch.txid, batch.received) for batch in report.batches]

    def stop_at(self, moment: str, state: str, txid: int) -> None:
        """Run until that moment."""

        def stop(*seen: object) -> None:
            if seen == (moment, state, txid):
                raise StopError

        with pytest.raises(StopError):
            Runtime(self.spark, self.lake, listeners=[stop]).catch_up(self.topology)

    @property
    def held(self) -> list[int]:
        """The numbers in the state of rows, which the totals agree with."""
        rows = self.lake.state("rows").scan().to_pylist()
        totals = self.lake.state("totals").scan().to_pylist()
        assert sum(row["records"] for row in totals) == len(rows)
        assert sum(row["total"] or 0 for row in totals) == sum(row["n"] for row in rows)
        return sorted(row["n"] for row in rows)


@pytest.mark.parametrize(
    ("moment", "state"),
    [
        ("committed", "rows"),
        *(pytest.param(*at, marks=pytest.mark.exhaustive) for at in (("committed", "totals"), ("closed", ""))),
    ],
)
def test_the_same_records_again(
    spark: SparkSession, tmp_path: Path, new_topic: NewTopic, moment: str, state: str
) -> None:
    """Rules 10: re-emit (50, 59) => exactly 10 even if more exist."""
    flow = Orders(spark, tmp_path, new_topic())
    flow.send(0, 24)
    flow.stop_at(moment, state, 1)
    flow.send(25, 29)
    assert flow.catch_up() == [(1, 10), (2, 10)]
    assert flow.held == list(range(30))


@pytest.mark.exhaustive
def test_records_that_retention_has_deleted(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    """The first try has committed the batch, Spark has not: a replay of fewer records is refused, nothing is doubled."""
    flow = Orders(spark, tmp_path, new_topic())
    flow.send(0, 24)
    flow.stop_at("committed", "rows", 1)
    flow.topic.forget(15)
    with pytest.raises(LostRowsError) as caught:
        flow.catch_up()
    assert caught.value.source == "records"
    assert flow.topic.name in caught.value.lost
    assert "on_fresh_checkpoint" in caught.value.hint
    with pytest.raises(LostRowsError):
        flow.catch_up()
    rows = sorted(row["n"] for row in flow.lake.state("rows").scan().to_pylist())
    assert rows == list(range(20))


@pytest.mark.exhaustive
def test_records_deleted_while_the_flow_stood_still(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    """Between two batches; and the way on that the error names."""
    flow = Orders(spark, tmp_path, new_topic())
    flow.send(0, 9)
    assert flow.catch_up() == [(0, 10)]
    flow.send(10, 19)
    flow.topic.forget(15)
    with pytest.raises(LostRowsError):
        flow.catch_up()
    assert flow.held == list(range(10))
    flow.lake.checkpoint_path("orders", "records").rename(tmp_path / "given up")
    Runtime(spark, flow.lake).catch_up(flow.topology, on_fresh_checkpoint="continue")
    assert flow.held == [*range(10), *range(15, 20)]


@pytest.mark.exhaustive
def test_a_topic_made_anew(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    """Its offsets start again at 0: what the flow has still to read is not there."""
    flow = Orders(spark, tmp_path, new_topic())
    flow.send(0, 24)
    flow.stop_at("committed", "rows", 1)
    flow.topic.recreate()
    flow.send(100, 104)
    with pytest.raises(LostRowsError):
        flow.catch_up()


def other_records(spark: SparkSession, root: Path, topic: Topic, **state: Any) -> Orders:
    """A batch that was committed once, whose offsets now hold as many other records."""
    flow = Orders(spark, root, topic, **state)
    flow.send(0, 24)
    flow.stop_at("committed", "rows", 1)
    flow.topic.recreate()
    flow.send(100, 124)
    # As if the topic were the same one, whose broker has lost records and got others: after an unclean election, say.
    for file in flow.lake.checkpoint_path("orders", "records").rglob("tridelta_topics*"):
        file.unlink()
    return flow


def test_other_records_at_the_same_offsets(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    """Rules 6, transactional: what a replayed txid brings must be what it brought before; nothing is mixed."""
    flow = other_records(spark, tmp_path, new_topic())
    with pytest.raises(PoisonBatchError, match="10 rows as expected, but not the same ones"):
        flow.catch_up()
    rows = sorted(row["n"] for row in flow.lake.state("rows").scan().to_pylist())
    assert rows == list(range(20))


@pytest.mark.exhaustive
def test_an_opaque_state_takes_the_other_records_instead(
    spark: SparkSession, tmp_path: Path, new_topic: NewTopic
) -> None:
    """Rules 6, opaque: a replayed txid replaces what it wrote, even if the rows differ now."""
    flow = other_records(spark, tmp_path, new_topic(), kind=OPAQUE)
    assert flow.catch_up() == [(1, 10), (2, 5)]
    assert flow.held == [*range(10), *range(110, 125)]


def test_a_topic_made_anew_and_filled_past_the_offset(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    """Its offsets are there, and mean other records: Kafka's id of the topic tells."""
    flow = Orders(spark, tmp_path, new_topic())
    flow.send(0, 4)
    flow.catch_up()
    flow.topic.recreate()
    flow.send(100, 119)
    with pytest.raises(LostRowsError, match="was deleted and created again"):
        flow.catch_up()
    assert flow.held == list(range(5))


@pytest.mark.exhaustive
def test_a_broker_that_gives_ids_since_its_upgrade(spark: SparkSession, tmp_path: Path, new_topic: NewTopic) -> None:
    """Before 2.8 each topic has the id of zeros: that is none."""
    flow = Orders(spark, tmp_path, new_topic())
    flow.send(0, 4)
    flow.catch_up()
    (file,) = flow.lake.checkpoint_path("orders", "records").rglob("tridelta_topics*")
    known = json.loads(file.read_text())
    file.write_text(json.dumps({flow.topic.name: "AAAAAAAAAAAAAAAAAAAAAA"}))
    flow.send(5, 9)
    flow.catch_up()
    assert flow.held == list(range(10))
    assert json.loads(file.read_text()) == known
