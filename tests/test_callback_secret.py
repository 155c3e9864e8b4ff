"""Nobody but this process's JVM calls the functions that Spark calls back."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession

from pipelines import Lake, Runtime
from pipelines.sources import FixedBatches
from pipelines.spark.callback_secret import _without_what_was_sent, ask_where_none_runs
from pipelines.trident import DeltaState, TridentTopology

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.parametrize(
    "greeting", ["", "A\nwrong\ne\n", "A\n\ne\n", "A\n{gateway}\ne\n"], ids=["none", "wrong", "empty", "the gateway's"]
)
def test_a_stranger_calls_nothing(spark: SparkSession, greeting: str) -> None:
    gateway = SparkContext._gateway
    assert gateway is not None
    ensure_callback_server_started(gateway)
    called: list[object] = []

    class Callback:
        def call(self, frame: object, batch_id: object) -> None:
            called.append(batch_id)

    target = gateway.gateway_property.pool.put(Callback())
    text = greeting.format(gateway=gateway.gateway_parameters.auth_token) + f"c\n{target}\ncall\ni1\ni12\ne\n"
    try:
        with socket.create_connection(("127.0.0.1", gateway._callback_server.get_listening_port()), timeout=20) as peer:
            peer.sendall(text.encode())
            try:
                answer = b"".join(iter(lambda: peer.recv(1000), b""))
            except ConnectionResetError:
                answer = b""
        # That it is no secret of this server's, at the most.
        assert answer in (b"", b"!x\n")
        assert called == []
    finally:
        del gateway.gateway_property.pool[target]


def test_the_jvm_calls_back(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\nb\n")
    seen: list[int] = []

    def count(frame: DataFrame, batch_id: int) -> None:
        seen.append(frame.count())

    writer = spark.readStream.text(str(tmp_path / "in")).writeStream.foreachBatch(count).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(120)
    assert seen == [2]


_OF_A_NOTEBOOK = """
import os
from pipelines.spark.java import find_java
os.environ["JAVA_HOME"] = str(find_java().home)
from pyspark import SparkContext
from pyspark.sql import SparkSession
wanted = "io.delta.sql.DeltaSparkSessionExtension"
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder.config("spark.sql.extensions", wanted).getOrCreate()
from pipelines import spark_session
spark_session()
gateway = SparkContext._gateway
print("secret:", len(gateway._callback_server.callback_server_parameters.auth_token or ""))
"""


@pytest.mark.exhaustive
def test_a_session_that_ran_before_gets_a_secret() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _OF_A_NOTEBOOK], capture_output=True, text=True, timeout=200, check=False
    )
    assert "secret: 64" in done.stdout, done.stderr


def test_a_server_that_runs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("pipelines.spark.callback_secret.ask_for_secret", asked.append)
    without, fresh, running = (
        SimpleNamespace(),
        SimpleNamespace(_callback_server=None),
        SimpleNamespace(_callback_server=1),
    )
    for gateway in (None, without, fresh, running):
        ask_where_none_runs(gateway)
    assert asked == [without, fresh]


class Gateway:
    """A gateway of py4j whose JVM fails at the steps named, each once; `held` is the secret that it has."""

    def __init__(self, *fails: str) -> None:
        self.fails, self.held, self.ended = [*fails], "", list[object]()
        self.callback_server_parameters = SimpleNamespace(auth_token=None)
        self.java_gateway_server = SimpleNamespace(getCallbackClient=lambda: "client")
        field = SimpleNamespace(setAccessible=lambda _: None, set=lambda _, secret: self._step("set", secret))
        found = SimpleNamespace(getDeclaredField=lambda _: field)
        self.jvm = SimpleNamespace(
            java=SimpleNamespace(lang=SimpleNamespace(Class=SimpleNamespace(forName=lambda _: found)))
        )

    def _step(self, name: str, secret: str = "") -> None:
        if name in self.fails:
            self.fails.remove(name)
            raise OSError(name)
        self.held = secret

    def started(self) -> None:
        """As `ensure_callback_server_started`: the server is there before the JVM knows its port."""
        if vars(self).get("_callback_server") is None:
            self._callback_server: object = SimpleNamespace(secret=self.callback_server_parameters.auth_token)
            self._step("reset")

    def shutdown_callback_server(self) -> None:
        self.ended.append(self._callback_server)


@pytest.mark.parametrize("fails", ["reset", "set"])
def test_a_server_whose_secret_the_jvm_did_not_get_does_not_stay(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """It would refuse each batch of the process."""
    monkeypatch.setattr("pipelines.spark.callback_secret.ensure_callback_server_started", Gateway.started)
    gateway: Any = Gateway(fails)
    with pytest.raises(OSError, match=fails):
        ask_where_none_runs(gateway)
    assert len(gateway.ended) == 1
    assert gateway.callback_server_parameters.auth_token is None
    ask_where_none_runs(gateway)
    assert gateway._callback_server.secret == gateway.held != ""
    assert len(gateway.ended) == 1


def test_a_stream_asks_for_it(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose session it is the runner does not know."""
    asked: list[object] = []
    monkeypatch.setattr("pipelines.execution.runners.stream.ask_where_none_runs", asked.append)
    topology = TridentTopology("secret")
    topology.new_stream("rows", FixedBatches("n bigint", [[(1,)]])).partition_persist(DeltaState("held"))
    Runtime(spark, Lake(tmp_path)).catch_up(topology)
    assert asked == [SparkContext._gateway]


def test_what_a_stranger_says_is_in_no_log() -> None:
    record = logging.LogRecord("py4j.clientserver", 40, "", 1, "Could not authenticate connection.", (), None)
    record.exc_info = (ValueError, ValueError("\x1b[2J"), None)
    assert _without_what_was_sent(record)
    assert record.exc_info is None


def test_the_servers_of_a_local_spark_have_a_secret(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    manager = jvm.org.apache.spark.SparkEnv.get().securityManager()
    assert manager.isAuthenticationEnabled()
    assert len(manager.getSecretKey()) >= 32
    assert manager.getSecretKey() not in str(spark.sparkContext.getConf().getAll())
