"""Servers on a loopback port, to which every user of this host can connect: none of them can stop or block one.

What a connection does happens in a thread of its own, so that nothing that is wrong with one ends or delays another. A
connection must be admitted (it has proved who it is) within a time, however slowly it talks; of those that wait to be
admitted there is a bound, past which the oldest is closed: whoever knows the key needs milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from pipelines import logs

logger = logs.logger(__name__)

HOST = "127.0.0.1"

# After an error of accept() that another try would meet at once (no file descriptor is free).
_PAUSE_SECONDS = 0.2


# Strangers can connect as often as they like; the lines about them leave room in the log for others.
_WARNINGS_PER_MINUTE = 10


class _FewWarnings:
    """Warnings of one server: so many per minute, and with the next one how many were left out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since, self._logged, self._left_out = 0.0, 0, 0

    def warning(self, event: str, **facts: Any) -> None:
        """Tell it, or count it."""
        with self._lock:
            now = time.monotonic()
            if not self._logged or now - self._since >= 60:
                self._since, self._logged = now, 0
            if self._logged >= _WARNINGS_PER_MINUTE:
                self._left_out += 1
                return
            self._logged += 1
            left_out, self._left_out = self._left_out, 0
        logger.warning(event, **facts, **({"left_out_before": left_out} if left_out else {}))


class BoundedThreads(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Bounds a socket server's connections in number and in time.

    Attributes:
        admit_seconds: So long a connection may take to be admitted; then it is closed.
        waiting_limit: So many may wait to be admitted; of more the oldest is closed.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    admit_seconds = 20.0
    waiting_limit = 64

    def admitted(self, request: socket.socket) -> None:
        """Take a connection out of the bounds: it has proved who it is."""
        with self._lock:
            self._waiting.pop(request, None)

    @property
    def waiting(self) -> int:
        """Count the connections that are not admitted yet."""
        return len(self._waiting)

    def server_activate(self) -> None:
        """Listen."""
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, float] = {}
        self._few = _FewWarnings()
        super().server_activate()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        try:
            return super().get_request()
        except OSError as error:
            self._few.warning("connection not accepted", reason=str(error))
            time.sleep(_PAUSE_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection its thread, and its time."""
        with self._lock:
            self._waiting[request] = time.monotonic() + self.admit_seconds
            surplus = next(iter(self._waiting)) if len(self._waiting) > self.waiting_limit else None
        if surplus is not None:
            self._end(surplus, "too many wait to be admitted")
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close what has had its time; called twice a second and after each connection."""
        now = time.monotonic()
        with self._lock:
            late = [request for request, until in self._waiting.items() if until < now]
        for request in late:
            self._end(request, f"it was not admitted within {self.admit_seconds:g} s")

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self.admitted(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell what went wrong in a connection's thread; the server goes on."""
        self._few.warning("connection failed", exc_info=True)

    def _end(self, request: socket.socket, reason: str) -> None:
        """End what its thread waits for; the thread closes it."""
        self.admitted(request)
        self._few.warning("connection closed", reason=reason)
        close_both_ways(request)


class KeyedServer(BoundedThreads):
    """Serves connections whose other side proves that it knows a key.

    Args:
        key: What both sides know.
        serve: Gets each that does, in a thread of its own, with what admits it. The connection is closed when it returns.

    Attributes:
        send_seconds: A line that the other side has not taken in after so long ends the connection.
    """

    send_seconds = 60

    def __init__(self, key: bytes, serve: Callable[[Connection, Callable[[], None]], None]) -> None:
        self._key, self._serve = key, serve
        super().__init__((HOST, 0), socketserver.BaseRequestHandler)
        self.port = int(self.server_address[1])

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self.serve_forever, name="requests", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections; those that are served go on."""
        self.shutdown()
        self.server_close()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Let the other side prove that it knows the key, then serve it."""
        request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", self.send_seconds, 0))
        # The socket stays, to end what a thread waits for on its duplicate.
        with Connection(request.dup().detach()) as connection:
            try:
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
            # Junk for an answer is an AssertionError or ValueError there.
            except Exception as error:
                self._few.warning("connection refused", reason=_reason(error))
                return
            with contextlib.suppress(OSError, EOFError):
                self._serve(connection, lambda: self.admitted(request))


class Deadline:
    """Ends whatever waits on a connection once its time is over, unless it was met before."""

    def __init__(self, plain: socket.socket, seconds: float) -> None:
        self._plain, self._lock, self._over, self._met = plain, threading.Lock(), False, False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def met(self) -> None:
        """Let the connection take as long as it likes from now on.

        Raises:
            TimeoutError: It is too late.
        """
        self._timer.cancel()
        with self._lock:
            if self._over:
                raise TimeoutError("it has not answered in time")
            self._met = True

    def drop(self) -> None:
        """Forget the deadline: the connection has ended."""
        self._timer.cancel()

    def _end(self) -> None:
        with self._lock:
            if not self._met:
                self._over = True
                close_both_ways(self._plain)


@contextlib.contextmanager
def connected(port: int, key: bytes, seconds: float) -> Iterator[tuple[Connection, Deadline]]:
    """Connect to a `KeyedServer`; all that is done with it before its deadline is met must be done within `seconds`, or
    fails with OSError or EOFError.

    Raises:
        OSError: Nobody answers there in time, or it is another that answers.
    """
    with socket.create_connection((HOST, port), timeout=seconds) as plain:
        plain.settimeout(None)
        deadline = Deadline(plain, seconds)
        try:
            with Connection(plain.dup().detach()) as connection:
                try:
                    answer_challenge(connection, key)
                    deliver_challenge(connection, key)
                # Junk for a challenge is an AssertionError there, on later Pythons a ValueError.
                except Exception as error:
                    raise ConnectionRefusedError(f"no hand-shake on port {port}: {_reason(error)}") from error
                yield connection, deadline
        finally:
            deadline.drop()


def close_both_ways(plain: socket.socket) -> None:
    """End whatever any thread waits for on a connection, also on duplicates of its socket."""
    with contextlib.suppress(OSError):
        plain.shutdown(socket.SHUT_RDWR)


def hang_up(connection: Connection) -> None:
    """Do as `close_both_ways`, for a connection whose socket somebody else has."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as plain:
        close_both_ways(plain)


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
