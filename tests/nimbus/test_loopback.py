"""Servers on a loopback port: strangers neither stop one nor keep those waiting who know the key."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection

import pytest

from pipelines.nimbus.handover import loopback
from pipelines.nimbus.handover.loopback import HOST, KeyedServer, connected

KEY = b"k" * 32


class Echo:
    """A server that says what it hears, and counts whom it has served."""

    def __init__(self) -> None:
        self.server = KeyedServer(KEY, self.serve)
        self.served = 0

    def serve(self, connection: Connection, admitted: Callable[[], None]) -> None:
        admitted()
        self.served += 1
        connection.send_bytes(connection.recv_bytes())

    def answers(self) -> bool:
        with connected(self.server.port, KEY, 10) as (connection, deadline):
            connection.send_bytes(b"hello")
            deadline.met()
            return connection.recv_bytes() == b"hello"

    def stranger(self) -> socket.socket:
        return socket.create_connection((HOST, self.server.port), timeout=20)


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Echo]:
    made = Echo()
    made.server.start()
    yield made
    made.server.close()


def closed(stranger: socket.socket) -> bool:
    """Wait until the server has closed a connection; what it says before does not matter."""
    try:
        while stranger.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_connection_that_is_aborted_in_the_handshake_ends_nothing(echo: Echo) -> None:
    for _ in range(3):
        stranger = echo.stranger()
        # With a reset, not a close: the server's next call on it fails.
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        stranger.close()
        assert echo.answers()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x7f\xff\xff\xff", b"\0\0\0\x04junk"])
def test_junk_is_refused_and_the_next_is_served(echo: Echo, said: bytes) -> None:
    with echo.stranger() as stranger:
        stranger.sendall(said)
        assert echo.answers()
        with suppress(OSError):
            stranger.shutdown(socket.SHUT_WR)
        assert closed(stranger)
    assert echo.answers()


def test_another_key_is_refused_and_the_next_is_served(echo: Echo) -> None:
    with pytest.raises(OSError, match="no hand-shake"), connected(echo.server.port, b"guessed", 10):
        pass
    assert echo.answers()
    assert echo.served == 1


def test_nobody_waits_for_those_who_say_nothing_or_little(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo.server, "waiting_limit", 8)
    with ExitStack() as stack:
        silent = [stack.enter_context(echo.stranger()) for _ in range(20)]
        for stranger in silent[::2]:
            # The begin of a length, byte by byte.
            stranger.send(b"\0")
        assert echo.answers()
        assert echo.server.waiting <= 8
        # Of so many the oldest are closed.
        assert closed(silent[0])
        assert echo.answers()


def test_a_connection_that_is_not_admitted_in_time_is_closed(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo.server, "admit_seconds", 0.1)
    with echo.stranger() as stranger:
        assert closed(stranger)
    monkeypatch.undo()
    assert echo.answers()


def test_no_free_file_descriptor_ends_nothing(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    accept = socket.socket.accept

    def fails(self: socket.socket) -> tuple[socket.socket, object]:
        if not failed.is_set():
            failed.set()
            raise OSError(24, os.strerror(24))
        return accept(self)

    monkeypatch.setattr(loopback, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(echo.server.socket.__class__, "accept", fails)
    assert echo.answers()
    assert failed.is_set()


def test_no_free_thread_ends_nothing(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def fails(self: threading.Thread) -> None:
        if "process_request_thread" in self.name:
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as none_free:
        none_free.setattr(threading.Thread, "start", fails)
        with echo.stranger() as stranger:
            assert closed(stranger)
    assert echo.answers()


def test_whoever_asks_gives_up_in_time_on_a_port_that_is_silent() -> None:
    """As a worker that hangs: the kernel accepts, nobody answers."""
    with (
        socket.create_server((HOST, 0)) as silent,
        pytest.raises(OSError, match="no hand-shake"),
        connected(silent.getsockname()[1], KEY, 0.2),
    ):
        pass


def test_an_answer_that_does_not_come_in_time_is_an_error(echo: Echo) -> None:
    with connected(echo.server.port, KEY, 0.5) as (connection, deadline):
        with pytest.raises((OSError, EOFError)):
            # Nothing was said, so nothing is answered.
            connection.recv_bytes()
        with pytest.raises(TimeoutError, match="in time"):
            deadline.met()


def test_junk_without_end_fills_no_log(echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(40):
        with echo.stranger() as stranger:
            stranger.sendall(b"\0\0\0\x04junk")
            assert closed(stranger)
    assert echo.answers()
    told = [one for one in caplog.records if one.name == loopback.__name__]
    assert 1 <= len(told) <= loopback._WARNINGS_PER_MINUTE
