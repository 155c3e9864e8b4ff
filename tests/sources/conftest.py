"""What tests of sources share: one Kafka broker for the whole run, started by the first test that asks for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from tests.sources.kafka_broker import Broker, Topic, running_broker

_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker on loopback."""
    with running_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def new_topic(spark: SparkSession, broker: Broker) -> Callable[..., Topic]:
    """Makes a topic of its own for a test; takes the number of partitions."""

    def make(partitions: int = 1) -> Topic:
        return Topic(spark, broker.servers, f"t{next(_numbers)}", partitions)

    return make
