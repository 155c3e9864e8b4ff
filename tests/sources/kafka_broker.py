"""A real Kafka broker for tests: one process in KRaft mode on loopback, with a folder of its own, and what speaks to it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyspark
from filelock import FileLock
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pipelines.spark import jars
from pipelines.spark.java import find_java

VERSION = "3.9.2"
# What Spark's own folder of jars has, what only ZooKeeper's network or other tools of Kafka need.
EXCLUDED = (
    *("org.scala-lang:*", "com.fasterxml.jackson.core:*", "com.github.luben:*", "at.*:*", "org.slf4j:*", "io.netty:*"),
    *("org.xerial.snappy:*", "org.apache.kafka:kafka-clients", "com.google.errorprone:*", "org.apache.yetus:*"),
    *("com.thoughtworks.paranamer:*", "com.fasterxml.jackson.module:*", "commons-beanutils:*", "commons-digester:*"),
    *("commons-logging:*", "commons-collections:*", "commons-io:*", "commons-cli:*"),
)
START_SECONDS = 120
# The broker ends with this process, however that ends: then the pipe closes.
_UNTIL_INPUT_ENDS = '"$@" </dev/null & child=$!; cat >/dev/null; kill -9 $child; wait $child 2>/dev/null; true'


def broker_jars() -> Path:
    """The folder of the broker's own jars (11 MB): fetched once into the project's cache.

    Raises:
        RuntimeError: they are not there and cannot be fetched.
    """
    cache = jars.cache_folder()
    folder = cache / f"kafka-broker-{VERSION}"
    with FileLock(cache / "kafka-broker.lock"):
        if not (folder / "complete").exists():
            folder.mkdir(exist_ok=True)
            problem = jars.fetch(folder, [f"org.apache.kafka:kafka_2.13:{VERSION}"], EXCLUDED, cache / "jars.log")
            if problem:
                raise RuntimeError(
                    f"the tests of Kafka run a real broker, and its jars are not in {folder}: {problem}. "
                    "They need access to Maven Central (or your mirror of it) once"
                )
            shutil.rmtree(folder / "cache", ignore_errors=True)
            (folder / "complete").touch()
    return folder / "jars"


class Broker:
    """A broker that is up.

    Attributes:
        servers: where it listens.
        log: what it printed.
    """

    def __init__(self, folder: Path, port: int, controller_port: int) -> None:
        self.servers, self.log = f"127.0.0.1:{port}", folder / "broker.log"
        self._settings = folder / "server.properties"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(folder / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "file.delete.delay.ms": "0",
            "auto.create.topics.enable": "false",
            # Records of tests carry times of their own; by default the broker deletes what is older than a week.
            "log.retention.ms": "-1",
            # By default half of the heap that the process has.
            "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
        }
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def start(self) -> subprocess.Popen[bytes]:
        """Format the storage and start the process.

        Raises:
            RuntimeError: with the end of what it printed, if it does not come up.
        """
        java = self._java()
        cluster = "MkU3OEVBNTcwNTJENDM2Qk"
        with self.log.open("ab") as log:
            self._run([*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._settings)], log)
            command = ["sh", "-c", _UNTIL_INPUT_ENDS, "sh", *java, "kafka.Kafka", str(self._settings)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._wait(process)
        except BaseException:
            stop(process)
            raise
        return process

    def _run(self, command: Sequence[str], log: IO[bytes]) -> None:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True, timeout=START_SECONDS)

    def _java(self) -> list[str]:
        spark_jars = Path(pyspark.__file__).parent / "jars"
        client = next(path for path in jars.set_paths(jars.KAFKA) if "kafka-clients" in path.name)
        logging = Path(jars.__file__).parent / "log4j2.properties"
        return [
            str(find_java().home / "bin" / "java"),
            *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            f"-Dlog4j2.configurationFile={logging.as_uri()}",
            *("-cp", os.pathsep.join([f"{broker_jars()}/*", str(client), f"{spark_jars}/*"])),
        ]

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        host, port = self.servers.split(":")
        for _ in range(START_SECONDS * 10):
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    return
            if process.poll() is not None or "Exception" in self.log.read_text(errors="replace"):
                break
            time.sleep(0.1)
        raise RuntimeError(f"Kafka's broker did not come up:\n{self.log.read_text(errors='replace')[-3000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the broker: its shell does so when its input ends."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=30)


@contextmanager
def running_broker(folder: Path) -> Iterator[Broker]:
    """A broker for as long as the block runs; another pair of ports if one was taken in between."""
    for attempt in range(3):
        home = folder / str(attempt)
        home.mkdir(parents=True)
        broker = Broker(home, *_free_ports(2))
        try:
            process = broker.start()
            break
        except RuntimeError:
            if attempt == 2 or "BindException" not in broker.log.read_text(errors="replace"):
                raise
    try:
        yield broker
    finally:
        stop(process)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Topic:
    """One topic, spoken to through the clients in Spark's JVM.

    Args:
        spark: the session, whose JVM has Kafka's clients.
        servers: the broker.
        name: the topic's name.
        partitions: how many it starts with.
    """

    def __init__(self, spark: SparkSession, servers: str, name: str, partitions: int = 1) -> None:
        self._jvm: Any = spark._jvm
        self._gateway = spark.sparkContext._gateway
        self.servers, self.name = servers, name
        self.create(partitions)

    def create(self, partitions: int = 1) -> None:
        new = self._jvm.org.apache.kafka.clients.admin.NewTopic(self.name, partitions, 1)
        self._admin(lambda admin: admin.createTopics([new]).all().get())
        self._wait_for_leaders(partitions)

    def recreate(self, partitions: int = 1) -> None:
        """Delete it and make it anew: its offsets start at 0 again."""
        self._admin(lambda admin: admin.deleteTopics([self.name]).all().get())
        for _ in range(100):
            names: list[str] = []
            self._admin(lambda admin, found=names: found.extend(admin.listTopics().names().get()))
            if self.name not in names:
                break
            time.sleep(0.1)
        self.create(partitions)

    def grow(self, partitions: int) -> None:
        """Give it so many partitions in all."""
        more = self._jvm.org.apache.kafka.clients.admin.NewPartitions.increaseTo(partitions)
        self._admin(lambda admin: admin.createPartitions({self.name: more}).all().get())
        self._wait_for_leaders(partitions)

    def _wait_for_leaders(self, partitions: int) -> None:
        """Wait until the broker names the leaders: a producer that asks earlier may lose its first record after two minutes."""
        for _ in range(100):
            leaders: list[bool] = []
            self._admin(lambda admin, found=leaders: found.extend(self._has_leaders(admin)))
            if len(leaders) == partitions and all(leaders):
                return
            time.sleep(0.1)
        raise RuntimeError(f"{self.name}: the broker names no leaders of {partitions} partitions")

    def _has_leaders(self, admin: Any) -> list[bool]:
        try:
            topic = admin.describeTopics([self.name]).allTopicNames().get().get(self.name)
        except Py4JJavaError:
            return []
        return [not (part.leader() is None or part.leader().isEmpty()) for part in topic.partitions()]

    def forget(self, before: int, partition: int = 0) -> None:
        """Delete all records before an offset, as retention does."""
        where = self._jvm.org.apache.kafka.common.TopicPartition(self.name, partition)
        # By reflection: py4j does not find a static method that has a namesake among the others.
        methods = self._jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete").getMethods()
        make = next(one for one in methods if one.getName() == "beforeOffset" and one.getParameterCount() == 1)
        arguments = self._gateway.new_array(self._jvm.java.lang.Object, 1)  # type: ignore[union-attr]
        arguments[0] = before
        upto = make.invoke(None, arguments)
        self._admin(lambda admin: admin.deleteRecords({where: upto}).all().get())

    def send(
        self,
        *values: str | bytes | None,
        partition: int = 0,
        key: str | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Append records; `timestamp` is in ms."""
        name = "org.apache.kafka.common.serialization.ByteArraySerializer"
        producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(
            self._map({"key.serializer": name, "value.serializer": name})
        )
        try:
            sent = []
            for value in values:
                raw = value.encode() if isinstance(value, str) else value
                record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord(
                    self.name, partition, timestamp, key.encode() if key else None, raw
                )
                sent.append(producer.send(record))
            producer.flush()
            # A record that a broker refuses makes no noise elsewhere.
            for answer in sent:
                answer.get()
        finally:
            producer.close()

    def _admin(self, work: Any) -> None:
        admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(self._map({}))
        try:
            from py4j.java_collections import ListConverter, MapConverter

            client = self._gateway._gateway_client  # type: ignore[union-attr]
            work(_Converting(admin, {list: ListConverter(), dict: MapConverter()}, client))
        finally:
            admin.close()

    def _map(self, settings: Mapping[str, str]) -> Any:
        found = self._jvm.java.util.HashMap()
        for name, value in ({"bootstrap.servers": self.servers} | dict(settings)).items():
            found.put(name, value)
        return found


class _Converting:
    """An object of the JVM whose methods take Python's lists and dicts."""

    def __init__(self, target: Any, converters: Mapping[type, Any], client: Any) -> None:
        self._target, self._converters, self._client = target, converters, client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        return lambda *args: method(*(self._converted(arg) for arg in args))

    def _converted(self, value: Any) -> Any:
        converter = self._converters.get(type(value))
        return converter.convert(value, self._client) if converter else value
