"""A registry on PostgreSQL at its edges: a silent network, a fail-over to read-only, reads beside writes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import Connection, event, make_url, select, text
from sqlalchemy.exc import IntegrityError, ProgrammingError

from pipelines.nimbus.errors import RegistryError
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.records import Content
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store, postgres
from pipelines.nimbus.registry.tables import flows
from tests.nimbus.deployment import wait_for


class Proxy:
    """A way to the server that can fall silent: it goes on to take all in, and passes nothing on."""

    def __init__(self, behind: str) -> None:
        self._behind, self._passes = behind, threading.Event()
        self._passes.set()
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        self._passes.clear()

    def answer(self) -> None:
        self._passes.set()

    def close(self) -> None:
        self._ended.set()
        self._passes.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._behind)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while said := one.recv(65_536):
                self._passes.wait()
                if self._ended.is_set():
                    break
                other.sendall(said)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def database(postgres: Callable[[], str]) -> str:
    return postgres()


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    folder = parse_qs(urlsplit(database).query)["host"][0]
    made = Proxy(f"{folder}/.s.PGSQL.5432")
    yield made
    made.close()


def through(proxy: Proxy, database: str) -> str:
    options = parse_qs(urlsplit(database).query)["options"][0].replace("=", "%3D")
    return f"postgresql://tridelta@127.0.0.1:{proxy.port}{urlsplit(database).path}?options={options}"


def submit(store: Store, name: str) -> None:
    Registry(store).submit(name, Content({"kind": "catalog", "name": name}, {"q": 1}))


@pytest.mark.slow
def test_a_network_that_falls_silent_is_an_error_and_no_wait_for_good(proxy: Proxy, database: str) -> None:
    Store.migrated(database).close()
    store = Store(through(proxy, database), busy_seconds=2, silent_seconds=1)
    places = Places(store)
    places.beat_supervisor("s1", "a", (6900,), started_at=0.0)
    proxy.fall_silent()
    # The connection of the pool, and a new one.
    for _ in range(2):
        with pytest.raises(RegistryError, match="does not answer"):
            places.beat_supervisor("s1", "a", (6900,), started_at=0.0)
    proxy.answer()
    places.beat_supervisor("s1", "a", (6900,), started_at=0.0)
    store.close()


def test_a_network_that_falls_silent_within_a_transaction_ends_it(proxy: Proxy, database: str) -> None:
    Store.migrated(database).close()
    store = Store(through(proxy, database), busy_seconds=2, silent_seconds=1)

    def write() -> None:
        with store.write() as connection:
            proxy.fall_silent()
            connection.execute(text("SELECT 1"))

    with pytest.raises(RegistryError, match="does not answer"):
        write()
    proxy.answer()
    store.close()


def test_connections_have_time_outs(database: str) -> None:
    store = Store.migrated(database, busy_seconds=8)
    with store.read() as connection:
        parameters = connection.connection.dbapi_connection.info.get_parameters()  # type: ignore[union-attr]
        shown = {name: connection.scalar(text(f"SHOW {name}")) for name in ("lock_timeout", "statement_timeout")}
    assert shown == {"lock_timeout": "8s", "statement_timeout": "10s"}
    assert {"keepalives", "keepalives_idle", "tcp_user_timeout", "connect_timeout"} <= parameters.keys()
    store.close()


def test_options_of_the_url_win_and_take_no_other_limit_away(database: str) -> None:
    store = Store.migrated(f"{database}%20-c%20lock_timeout%3D3s", busy_seconds=8)
    with store.read() as connection:
        shown = [connection.scalar(text(f"SHOW {name}")) for name in ("lock_timeout", "statement_timeout")]
    assert shown == ["3s", "10s"]
    store.close()


def test_a_fail_over_to_read_only_is_told_as_not_now(database: str) -> None:
    store = Store.migrated(database, busy_seconds=5)
    name = urlsplit(database).path.removeprefix("/")
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
    store.engine.dispose()
    with pytest.raises(RegistryError, match="read-only") as told:
        submit(store, "a")
    assert "target_session_attrs" in str(told.value)
    assert Registry(store).flows() == []
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SET default_transaction_read_only = off"))
        connection.execute(text(f"ALTER DATABASE {name} RESET default_transaction_read_only"))
    store.engine.dispose()
    submit(store, "a")
    store.close()


def test_a_server_that_cuts_connections_is_told_and_met_again(database: str) -> None:
    store = Store.migrated(database, busy_seconds=5)

    def read() -> None:
        with store.read() as connection:
            own = connection.scalar(text("SELECT pg_backend_pid()"))
            with store.engine.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": own})
            connection.execute(text("SELECT 1"))

    with pytest.raises(RegistryError, match="does not answer"):
        read()
    assert Registry(store).flows() == []
    store.close()


class CutOff:
    """A connection to a pooler whose server is away: the login succeeds, and the first statement fails."""

    autocommit = False

    def __init__(self) -> None:
        self._socket = socket.socketpair()[0]
        self.fileno, self.close = self._socket.fileno, self._socket.close

    def rollback(self) -> None:
        pass

    def add_notice_handler(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_pooler_that_cuts_off_the_first_statement_is_told_as_not_now(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg")
    engine = postgres(make_url("postgresql+psycopg://u@h/d"), 5)
    event.listen(engine, "do_connect", lambda *_: CutOff())
    monkeypatch.setattr(engine.dialect, "initialize", lambda _: None)

    def cut(_: object) -> None:
        raise OSError("server login has been failing, try again later")

    monkeypatch.setattr(engine.dialect, "do_ping", cut)
    store = Store.migrated(f"sqlite:///{tmp_path}/r.db")
    monkeypatch.setattr(store, "engine", engine)
    with (
        pytest.raises(RegistryError, match=r"does not answer: .* cut off at its first statement"),
        getattr(store, way)(),
    ):
        pass


def test_what_is_wrong_with_a_statement_goes_on_as_it_is(store: Store) -> None:
    with pytest.raises((ProgrammingError, RegistryError)), store.read() as connection:
        connection.execute(text("SELECT nothing FROM nowhere"))
    with pytest.raises(IntegrityError), store.write() as connection:
        connection.execute(text("INSERT INTO leases (name) VALUES (NULL)"))


def test_all_that_a_read_sees_is_of_one_moment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow that is updated between the two queries of a list of flows."""
    submit(store, "a")
    registry, other = Registry(store), Registry(store)
    updated: list[Any] = []
    import pipelines.nimbus.registry.registry as module

    made_of = module.and_

    def between(*parts: Any) -> Any:
        # Called when the flows have been read and their versions have not.
        if not updated:
            updated.append(other.update("a", Content({"kind": "catalog", "name": "a"}, {"q": 2})))
        return made_of(*parts)

    monkeypatch.setattr(module, "and_", between)
    (seen,) = registry.flows()
    assert updated[0].version.number == 2
    assert seen.version.number == 1
    (later,) = registry.flows()
    assert later.version.number == 2


def test_delays_that_are_over_and_beats_lock_flows_in_one_order(database: str) -> None:
    """The flow that is due first came last: locked by when it is due, each would wait for the other."""
    store, other = Store.migrated(database, busy_seconds=20), Store(database, busy_seconds=20)
    now, registry = [1000.0], Registry(store, clock=lambda: now[0])
    first, second = [registry.submit(name, Content({"kind": "catalog"}, {"q": 1})) for name in ("a", "b")]
    for flow, seconds in ((first, 20), (second, 10)):
        registry.kill(flow.name, wait_seconds=seconds)
    now[0] += 30

    def lock(connection: Connection, serial: int) -> None:
        """As a beat does."""
        connection.execute(select(flows).where(flows.c.serial == serial).with_for_update(read=True))

    with ThreadPoolExecutor(1) as pool:
        with other.write() as beats:
            lock(beats, first.serial)
            fired = pool.submit(registry.fire)
            waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            wait_for(lambda: beats.scalar(waiting), 20, lambda: "it does not wait")
            lock(beats, second.serial)
        assert [flow.name for flow, _ in fired.result()] == ["b", "a"], "those due first in front"
    store.close()
    other.close()
