"""PostgreSQL's engine: nothing waits for good for a network, or a server, that has gone silent.

Three things may fall silent. A host that does not answer while connecting: `connect_timeout`. A network that swallows packets:
TCP keeps asking, and gives up. Something between that takes all in and answers nothing (a proxy that hangs, a server that is
stopped): TCP is content with that, so each transaction has a deadline of its own here, after which its socket is shut.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.exc import DisconnectionError

# In seconds. Lost packets are found out about within 20 s, on connections that wait for an answer too.
_TCP = {"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3}
_CONNECT_SECONDS = 10

_DEADLINE = "deadline"


def postgres(url: URL, busy_seconds: float, silent_seconds: float | None = None) -> Engine:
    """An engine whose statements, transactions and connections all end.

    Args:
        url: The database.
        busy_seconds: How long a statement waits for another's lock.
        silent_seconds: How long a transaction may take at all; by default a while longer than the server's own limits.
    """
    wait = int(busy_seconds * 1000)
    limits = {
        "lock_timeout": wait,
        # A process that freezes within a transaction must not keep its locks for as long as it likes.
        "idle_in_transaction_session_timeout": wait,
        "statement_timeout": wait + wait // 4,
    }
    arguments: dict[str, Any] = {
        "options": " ".join(f"-c {name}={value}" for name, value in limits.items()),
        "connect_timeout": max(2, min(_CONNECT_SECONDS, int(busy_seconds))),
        "tcp_user_timeout": 20_000,
        **_TCP,
    }
    # What the URL says itself goes before.
    engine = create_engine(url, connect_args={name: arguments[name] for name in arguments.keys() - url.query.keys()})
    _watch(engine, 1.5 * busy_seconds + 2 if silent_seconds is None else silent_seconds)
    return engine


def _watch(engine: Engine, seconds: float) -> None:
    """Give each transaction its deadline, and look first whether the connection is still one: as `pool_pre_ping` does, which
    has no deadline.
    """

    @event.listens_for(engine, "checkout")
    def begin(connection: Any, record: Any, proxy: Any) -> None:
        record.info[_DEADLINE] = deadline = _Deadline(connection, seconds)
        try:
            engine.dialect.do_ping(connection)
        except Exception as error:
            deadline.drop()
            raise DisconnectionError(str(error)) from error

    def end(connection: Any, record: Any, *_: Any) -> None:
        deadline = record.info.pop(_DEADLINE, None)
        if deadline is not None:
            deadline.drop()

    for what in ("checkin", "invalidate", "close"):
        event.listen(engine, what, end)


class _Deadline:
    """Shuts a connection's socket when its time is over: what waits on it gets an error."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._lock = threading.Lock()
        # A duplicate: the number of a socket that was closed meanwhile may be another file's by then.
        self._socket: socket.socket | None = socket.socket(fileno=os.dup(connection.fileno()))
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def drop(self) -> None:
        """The transaction has ended."""
        self._timer.cancel()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _end(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
