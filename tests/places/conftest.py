"""Servers of S3 for the tests of places, each started with the first of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import obstore
import pytest

from pipelines.errors import JarsError
from pipelines.places.location import HDFS, Location
from pipelines.spark.jars import set_paths
from pipelines.spark.s3_jars import S3_JARS
from tests.nimbus.conftest import postgres as postgres
from tests.places.hadoop_servers import Hdfs, hadoop_jars, hdfs_server
from tests.places.s3_servers import Server, moto, versity, versity_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVERS = ["moto", pytest.param("versity", marks=pytest.mark.exhaustive)]


@pytest.fixture(scope="session")
def moto_server() -> Iterator[Server]:
    with moto() as server:
        yield server


@pytest.fixture(scope="session")
def versity_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if versity_program() is None:
        pytest.skip("versitygw is not there, and there is no Go to build it with")
    with versity(tmp_path_factory.mktemp("versity")) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """An HDFS of one DataNode."""
    jars = hadoop_jars()
    if not jars:
        pytest.skip("Hadoop's jars for a small HDFS are not in the cache, and cannot be fetched")
    with hdfs_server(jars, tmp_path_factory.mktemp("hdfs")) as server:
        yield server


def use(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Point this process at a server. Return a bucket of it."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.bucket()


@pytest.fixture
def bucket(moto_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    return use(moto_server, monkeypatch)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that a HEAD was sent for."""
    keys: list[str] = []
    head = obstore.head

    def counted(s3: Any, key: str) -> Any:
        keys.append(key)
        return head(s3, key)

    monkeypatch.setattr(obstore, "head", counted)
    return keys


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    chosen: Server = request.getfixturevalue(f"{request.param}_server")
    return chosen


@pytest.fixture(params=[*SERVERS, pytest.param("hdfs", marks=pytest.mark.exhaustive)])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Location:
    """A bucket of its own for each test, or an HDFS without a file."""
    if request.param == "hdfs":
        return Location.of(f"hdfs://{request.getfixturevalue('hdfs').empty()}")
    return Location.of(f"s3://{use(request.getfixturevalue(f'{request.param}_server'), monkeypatch)}")


@pytest.fixture(scope="session")
def s3_jars() -> None:
    try:
        set_paths(S3_JARS)
    except JarsError as error:
        # As with Kafka's: `make setup` goes on where they cannot be fetched.
        pytest.skip(str(error))


@pytest.fixture
def reaching(request: pytest.FixtureRequest, spark: SparkSession, place: Location) -> SparkSession:
    """The tests' session, told of the bucket: its Spark was up before the server."""
    if place.scheme == HDFS:
        return spark
    request.getfixturevalue("s3_jars")
    hadoop = spark._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    told = {
        "endpoint": os.environ["AWS_ENDPOINT_URL"],
        "endpoint.region": os.environ["AWS_REGION"],
        "path.style.access": "true",
        "access.key": os.environ["AWS_ACCESS_KEY_ID"],
        "secret.key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    for name, value in told.items():
        hadoop.set(f"fs.s3a.bucket.{place.bucket}.{name}", value)
    return spark
