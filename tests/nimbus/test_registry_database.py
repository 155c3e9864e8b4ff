"""The registry's database: many processes at once, frozen ones, migrations, settings, what cannot be opened."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, make_url
from typer.testing import CliRunner

from ops.cli.app import app
from ops.housekeeping import _registry
from pipelines.nimbus.errors import AlreadyAliveError, LeaseHeldError, NoTablesError, RegistryError
from pipelines.nimbus.registry.leases import Lease, Leases
from pipelines.nimbus.registry.records import Content, DeployedFlow
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store, insert_missing
from pipelines.nimbus.registry.tables import leases as leases_table
from pipelines.nimbus.registry.tables import metadata
from resources.engine import NimbusResource

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nimbus.conftest import Clock

# A holder in a process of its own: takes, waits to be told to go on, renews.
_HOLDER = """
import sys
from pipelines.nimbus.errors import RegistryLeaseLostError
from pipelines.nimbus.registry.leases import Leases
from pipelines.nimbus.registry.store import Store

leases = Leases(Store.migrated(sys.argv[1]))
lease = leases.take("flights/main", "frozen", 0.5)
print(lease.token, flush=True)
sys.stdin.readline()
try:
    leases.renew(lease, 60)
except RegistryLeaseLostError as error:
    print(error.seen_token, error.seen_holder, flush=True)
"""


@pytest.mark.slow
def test_a_process_that_was_stopped_finds_its_lease_gone(store: Store, url: str) -> None:
    command = [sys.executable, "-c", _HOLDER, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as frozen:
        assert frozen.stdin is not None
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "1\n"
        frozen.send_signal(signal.SIGSTOP)
        time.sleep(0.6)
        assert Leases(store).take("flights/main", "next", 60).token == 2
        frozen.send_signal(signal.SIGCONT)
        frozen.stdin.write("go on\n")
        frozen.stdin.flush()
        assert frozen.stdout.readline() == "2 next\n"
    assert frozen.returncode == 0


def test_a_process_that_hangs_within_a_transaction_is_told_of(url: str, clock: Clock) -> None:
    hanging, other = Store.migrated(url), Store.migrated(url, busy_seconds=0.2)
    blank = {"name": "x", "token": 0, "taken_at": 0.0, "expires_at": 0.0, "held": False}
    with hanging.write() as connection:
        insert_missing(connection, leases_table, blank)
        with pytest.raises(RegistryError, match=r"does not answer: .*lock"):
            Leases(other, clock=clock).take("x", "h", 10)
    assert Leases(other, clock=clock).take("x", "h", 10).token == 1
    hanging.close()
    other.close()


def test_many_takers_and_one_lease(url: str, clock: Clock) -> None:
    stores = [Store.migrated(url, busy_seconds=60) for _ in range(6)]
    gate = threading.Barrier(len(stores))

    def take(number: int) -> Lease | None:
        gate.wait()
        try:
            return Leases(stores[number], clock=clock).take("nimbus", f"n{number}", 10)
        except LeaseHeldError:
            return None

    with ThreadPoolExecutor(len(stores)) as pool:
        for round_ in range(1, 6):
            won = [lease for lease in pool.map(take, range(len(stores))) if lease]
            assert [lease.token for lease in won] == [round_]
            clock.now += 10
    for opened in stores:
        opened.close()


def test_many_submit_one_name(url: str, clock: Clock) -> None:
    stores = [Store.migrated(url, busy_seconds=60) for _ in range(4)]
    gate = threading.Barrier(len(stores))

    def submit(number: int) -> DeployedFlow | None:
        gate.wait()
        try:
            return Registry(stores[number], clock=clock).submit("counts", Content({"by": number}, {"spout": 1}))
        except AlreadyAliveError:
            return None

    with ThreadPoolExecutor(len(stores)) as pool:
        won = [flow for flow in pool.map(submit, range(len(stores))) if flow]
    assert won == Registry(stores[0], clock=clock).flows()
    assert len(won) == 1
    for opened in stores:
        opened.close()


def test_migrations_make_the_tables_and_take_them_down(store: Store) -> None:
    with store.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    store.downgrade("base")
    assert inspect(store.engine).get_table_names() == ["alembic_version"]
    assert store.revision() is None
    store.upgrade()
    assert store.revision() == store.newest() == "0003"
    with store.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_database_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(NoTablesError, match="has no tables"):
        Store(url)
    store = Store.migrated(url)
    store.downgrade("0001")
    with pytest.raises(RegistryError, match="stands at migration 0001, and this release needs 0003") as refused:
        Store(url)
    assert "tridelta supervisor" in refused.value.hint
    store.close()


def test_a_registry_of_a_newer_release_says_so(store: Store, url: str) -> None:
    with store.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    for opened in (Store, Store.migrated):
        with pytest.raises(RegistryError, match="stands at migration 9999, and this release needs 0003") as refused:
            opened(url)
        assert refused.value.hint == "use one release for all processes that share a registry"


def test_looks_make_no_tables(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may be restoring them at this moment."""
    monkeypatch.setenv("TRIDELTA_REGISTRY", url)
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path))
    (tmp_path / "registry.db").touch()
    assert NimbusResource().deployed() == {}
    with _registry(url) as registry:
        assert registry is None
    said = CliRunner().invoke(app, ["status"])
    assert said.exit_code == 1
    assert "has no tables" in said.stderr
    made = create_engine(make_url(url).set(**({"drivername": "postgresql+psycopg"} if "postgres" in url else {})))
    assert inspect(made).get_table_names() == []
    made.dispose()


def test_a_user_who_may_not_read_is_told_so(postgres: Callable[[], str]) -> None:
    store = Store.migrated(postgres())

    def read_as_another() -> None:
        with store.write() as connection:
            schema = connection.exec_driver_sql("SELECT current_schema()").scalar()
            connection.exec_driver_sql(f"CREATE ROLE onlooker; GRANT USAGE ON SCHEMA {schema} TO onlooker")
            connection.exec_driver_sql("SET LOCAL ROLE onlooker")
            connection.exec_driver_sql("SELECT * FROM flows")

    with pytest.raises(RegistryError, match="refuses this user: permission denied for table flows"):
        read_as_another()
    store.close()


def test_processes_that_start_at_once_migrate_once(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: Store.migrated(url, busy_seconds=60), range(4)))
    assert {opened.revision() for opened in stores} == {"0003"}
    for opened in stores:
        opened.close()


def test_sqlite_writes_ahead_and_waits(tmp_path: Path) -> None:
    opened = Store.migrated(f"sqlite:///{tmp_path}/deep/registry.db", busy_seconds=7)
    with opened.read() as connection:
        seen = [
            connection.exec_driver_sql(f"PRAGMA {p}").scalar() for p in ("journal_mode", "busy_timeout", "synchronous")
        ]
    assert seen == ["wal", 7000, 2]
    opened.close()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nonsense", "is no URL"),
        ("mysql://u:secret@h/d", "neither SQLite nor PostgreSQL"),
        ("sqlite://", "in memory"),
        ("sqlite:////proc/nowhere.db", "does not answer"),
    ],
)
def test_a_url_that_leads_nowhere_is_told_without_its_password(url: str, problem: str) -> None:
    with pytest.raises(RegistryError, match=problem) as caught:
        Store.migrated(url)
    assert "secret" not in str(caught.value)
