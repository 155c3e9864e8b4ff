"""The callback that Spark calls with each batch of a query; when the query has ended nothing is left of it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame


class SparkCallback:
    """The callback that Spark calls with each batch: the runner, until the query has ended.

    The JVM keeps what it was given as long as the query, and an error of the query keeps the query, by the frames in which it was
    raised. Each garbage collector sees its own half of such a ring: every query that failed would stay, with its plans. So
    Spark gets the text of an error alone, and after the end nothing leads from here to the runner.
    """

    def __init__(self, run: Callable[[DataFrame, int], None]) -> None:
        self._run: Callable[[DataFrame, int], None] | None = run
        self._connections: dict[int, Any] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run a batch.

        Raises:
            RuntimeError: it failed; the runner has the error itself.
        """
        # The thread of the JVM that runs the query has a connection, and a thread here, of its own.
        connection = SparkContext._gateway._gateway_client.get_thread_connection()  # type: ignore[union-attr]
        self._connections[id(connection)] = connection
        failed = self._failed(frame, batch_id)
        if failed is not None:
            del frame
            raise RuntimeError(failed)

    def _failed(self, frame: DataFrame, batch_id: int) -> str | None:
        if self._run is None:
            # Spark would take a batch that nobody has run for done.
            return "the runner of this query has ended"
        try:
            self._run(frame, batch_id)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def release(self) -> None:
        """Let go of the runner, and of the connections that have served the query: py4j keeps them, a thread here with each."""
        self._run = None
        while self._connections:
            _, connection = self._connections.popitem()
            served = getattr(connection, "socket", None)
            if served is not None:
                with contextlib.suppress(OSError, Py4JError, AttributeError):
                    _close_in_jvm(served.getpeername()[1])
                with contextlib.suppress(OSError):
                    served.shutdown(socket.SHUT_RDWR)


def _close_in_jvm(port: int) -> None:
    """Close the JVM's end of a connection: its client keeps every one that it has made in a list of its own."""
    gateway: Any = SparkContext._gateway
    client = gateway.java_gateway_server.getCallbackClient()
    kept = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("connections")
    kept.setAccessible(True)
    connections = kept.get(client)
    for connection in connections.toArray():
        made = connection.getSocket()
        if made is not None and made.getLocalPort() == port:
            connections.remove(connection)
            connection.shutdown()
