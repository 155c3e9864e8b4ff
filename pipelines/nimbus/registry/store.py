"""The registry's database: SQLite in a file by default, PostgreSQL by URL; opened, migrated, read and written here."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    DisconnectionError,
    InterfaceError,
    InternalError,
    InvalidRequestError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError,
)

from pipelines.nimbus.errors import NoTablesError, RegistryError
from pipelines.private import FOLDER_MODE, masked, private_file

_FILE = "file"
_SQLITE_OPTIONS = {"cache", "immutable", "mode", "nolock", "timeout", "uri", "vfs"}
_UNDEFINED_TABLE, _INSUFFICIENT_PRIVILEGE = "42P01", "42501"
MIGRATIONS = Path(__file__).with_name("migrations")


class Store:
    """One database with the registry's tables, opened as it is: nothing is made or migrated (`migrated` does that).

    Args:
        url: `sqlite:///path` or `postgresql://user@host/database`.
        busy_seconds: How long a statement waits for another process's lock.
        silent_seconds: How long a transaction on PostgreSQL may take at all; by default half as long again as `busy_seconds`.

    Raises:
        NoTablesError: It has none.
        RegistryError: The database cannot be opened, its driver is not installed, or its tables have another form.
    """

    def __init__(self, url: str, *, busy_seconds: float = 30.0, silent_seconds: float | None = None) -> None:
        self._open(url, busy_seconds, silent_seconds)
        with self._closed_on_error():
            self._check_form()

    @classmethod
    def migrated(cls, url: str, *, busy_seconds: float = 30.0, silent_seconds: float | None = None) -> Self:
        """Make the tables, or bring those of an earlier release to this release's form; then open and check as `Store` does."""
        store = cls.__new__(cls)  # The constructor would refuse the tables before they are migrated.
        store._open(url, busy_seconds, silent_seconds)
        with store._closed_on_error():
            if store._is_older():
                store.upgrade()
            store._check_form()
        return store

    def _open(self, url: str, busy_seconds: float, silent_seconds: float | None) -> None:
        parsed = _parsed(url)
        self._busy_seconds = busy_seconds
        self._writing = threading.Lock() if parsed.get_backend_name() == "sqlite" else None
        self.url = masked(parsed.render_as_string(hide_password=True))
        with self._openable():
            self.engine = self._engine(parsed, silent_seconds)

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            with self._openable():
                yield
        except BaseException:
            self.close()
            raise

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads and waits for no writer. All that it reads is of one moment."""
        with self._registry_errors(), self._connect() as connection:
            if connection.dialect.name == "postgresql":
                # By itself each statement would see what was committed since the one before.
                connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that writes: all or nothing, durable when the block ends.

        On SQLite it is the only one from its first line on (BEGIN IMMEDIATE). On PostgreSQL others may run beside it, so
        whoever reads a row to change it must lock it (`with_for_update`, which SQLite leaves out).
        """
        with (
            self._registry_errors(),
            self._turn(),
            self._connect().execution_options(writes=True) as connection,
            connection.begin(),
        ):
            yield connection

    def _connect(self) -> Connection:
        try:
            return self.engine.connect()
        except InvalidRequestError as error:
            # SQLAlchemy's word, without a cause, where one new connection after the other fails when it is looked at.
            raise DisconnectionError("each new connection was cut off at its first statement") from error

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let the threads of this process write one after another, in SQLite: who waits for its lock looks ever more seldom."""
        if self._writing is None:
            yield
            return
        if not self._writing.acquire(timeout=self._busy_seconds):
            problem = f"does not answer: its lock was held in this process for {self._busy_seconds:g} s"
            raise RegistryError(self.url, problem, hint="look for a disk that hangs, or start the process again")
        try:
            yield
        finally:
            self._writing.release()

    def revision(self) -> str | None:
        """Return the migration that the tables stand at; None for an empty database."""
        with self.read() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def newest(self) -> str | None:
        """Return the last migration of this release."""
        return ScriptDirectory.from_config(_config()).get_current_head()

    def upgrade(self, to: str = "head") -> None:
        """Run the migrations up to a revision, in one transaction."""
        with self._migrating() as config:
            command.upgrade(config, to)

    def downgrade(self, to: str) -> None:
        """Take migrations back down to a revision; `base` drops every table."""
        with self._migrating() as config:
            command.downgrade(config, to)

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()

    @contextmanager
    def _registry_errors(self) -> Iterator[None]:
        """Raise a RegistryError, without the statement, for every driver error that means "not now".

        What is wrong with a statement or its values is no matter of time, and goes on as it is. Tables may be missing for the
        time of a restore.
        """
        try:
            yield
        except (DBAPIError, DisconnectionError, TimeoutError) as error:
            problem = " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())
            state = getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None
            if state == _UNDEFINED_TABLE or problem.startswith("no such table"):
                raise RegistryError(self.url, f"has lost its tables: {problem}", hint="restore them") from error
            if state == _INSUFFICIENT_PRIVILEGE:
                hint = "grant the user of TRIDELTA_REGISTRY the registry's tables"
                raise RegistryError(self.url, f"refuses this user: {problem}", hint=hint) from error
            if not _not_now(error):
                raise
            if "read-only" in problem:
                # A fail-over has made a standby of it: the next transaction connects again, to the primary if the URL says so.
                self.engine.dispose()
                hint = (
                    "wait for the fail-over; a URL with all hosts and target_session_attrs=read-write finds the primary"
                )
            elif "lock" in problem:
                hint = (
                    "another process keeps it locked: look for a registry's user that hangs or is stopped, and end it"
                )
            else:
                hint = "start it, make room on its disk, or correct the URL; then try again"
            raise RegistryError(self.url, f"does not answer: {problem}", hint=hint) from error

    @contextmanager
    def _openable(self) -> Iterator[None]:
        """Turn every error while opening into a RegistryError: what the URL names is no registry."""
        try:
            yield
        except (SQLAlchemyError, CommandError, OSError, ValueError, TypeError) as error:
            problem = " ".join(str(getattr(error, "orig", None) or error).split())
            hint = "correct TRIDELTA_REGISTRY: sqlite:///path of a file, or postgresql://user@host:5432/database"
            raise RegistryError(self.url, f"cannot be opened: {problem}", hint=hint) from error

    @contextmanager
    def _migrating(self) -> Iterator[Config]:
        with self.write() as connection:
            if connection.dialect.name == "postgresql":
                # Two processes that start at once must not both create the tables. The number is only a name.
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7302114)")
            config = _config()
            config.attributes["connection"] = connection
            yield config

    def _is_older(self) -> bool:
        """Return whether the tables stand at an earlier migration of this release, or there are none: not a newer one."""
        script, present = ScriptDirectory.from_config(_config()), self.revision()
        known = {None, *(revision.revision for revision in script.walk_revisions())}
        return present in known and present != script.get_current_head()

    def _check_form(self) -> None:
        present, wanted = self.revision(), self.newest()
        if present is None:
            raise NoTablesError(self.url)
        if present != wanted:
            problem = f"stands at migration {present}, and this release needs {wanted}"
            hint = "use one release for all processes that share a registry"
            if self._is_older():
                hint = f"start this release's supervisor, which brings it there: tridelta supervisor; {hint}"
            raise RegistryError(self.url, problem, hint=hint)

    def _engine(self, url: URL, silent_seconds: float | None) -> Engine:
        try:
            if url.get_backend_name() == "sqlite":
                return _sqlite(url, self._busy_seconds)
            return postgres(url, self._busy_seconds, silent_seconds)
        except ModuleNotFoundError as error:
            hint = 'install it: pip install "psycopg[binary]"'
            raise RegistryError(
                self.url, f"needs the driver {error.name}, which is not installed", hint=hint
            ) from error


def _not_now(error: Exception) -> bool:
    """Return whether another try may do: the database is away, busy, read-only for now, or has cut the connection."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, OperationalError | InterfaceError | InternalError | DisconnectionError | TimeoutError)


def insert_missing(connection: Connection, table: Table, values: Mapping[str, Any]) -> None:
    """Insert a row unless one with its primary key is there."""
    row = _insert(connection, table).values(**values)
    connection.execute(row.on_conflict_do_nothing(index_elements=list(table.primary_key)))


def upsert(connection: Connection, table: Table, values: Mapping[str, Any]) -> None:
    """Insert a row, or replace the other columns of the one with its primary key."""
    key = list(table.primary_key)
    others = {name: value for name, value in values.items() if name not in {column.name for column in key}}
    row = _insert(connection, table).values(**values)
    connection.execute(row.on_conflict_do_update(index_elements=key, set_=others))


def _insert(connection: Connection, table: Table) -> Any:
    """Return the dialect's own insert, which knows what to do on a conflict; the generic one does not."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def _parsed(url: str) -> URL:
    try:
        # What is no UTF-8 names no database, and no message could show it.
        url.encode()
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The error's text has the URL, with the password.
        url = url.encode(errors="backslashreplace").decode()
        raise RegistryError(url, "is no URL", hint="write sqlite:///path or postgresql://user@host/database") from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        shown = parsed.render_as_string(hide_password=True)
        raise RegistryError(shown, "is neither SQLite nor PostgreSQL", hint="write sqlite:///path or postgresql://...")
    if parsed.get_backend_name() == "sqlite":
        _check_file(parsed)
    return parsed


def _check_file(url: URL) -> None:
    """Refuse a URL of SQLite that names no file of this host."""
    shown = url.render_as_string(hide_password=True)
    if unknown := sorted(set(url.query) - _SQLITE_OPTIONS):
        raise RegistryError(shown, f"has an option that SQLite does not know: {unknown[0]}", hint="leave it out")
    if url.host or url.username or url.port:
        hint = "write sqlite:///path, with three slashes"
        raise RegistryError(shown, "names a host, and SQLite is a file", hint=hint)
    if url.database in (None, "", ":memory:"):
        raise RegistryError(shown, "is in memory, where no other process sees it", hint="write sqlite:///path")


def _sqlite(url: URL, busy_seconds: float) -> Engine:
    file = Path(str(url.database)).absolute()
    file.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    # The database reports what cannot be made. Files beside it have its mode.
    with suppress(OSError):
        private_file(file)
    engine = create_engine(url, connect_args={"timeout": busy_seconds})
    opened: list[tuple[int, int] | None] = []

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours: the driver's own comes too late for reads
        connection.execute("PRAGMA journal_mode=WAL")
        # FULL: a commit that a power cut takes back could give a lease's token out twice.
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        record.info[_FILE] = _identity(file)
        opened[:] = [record.info[_FILE]]

    @event.listens_for(engine, "do_connect")
    def refuse_missing(*_: Any) -> None:
        # SQLite would make an empty one, beside what other processes have open.
        if any(opened) and _identity(file) is None:
            raise RegistryError(str(url), "is missing: its file was removed", hint="restore the file")

    @event.listens_for(engine, "checkout")
    def check_file(_: Any, record: Any, proxy: Any) -> None:
        if _identity(file) != record.info[_FILE]:
            # Its connection goes with this. The next one is to the new file, whose leases are others: each holder finds out.
            hint = "nothing, if that was meant: who holds a lease in the new one goes on, and others end or take theirs again"
            raise RegistryError(str(url), "was replaced by another file, or removed", hint=hint)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


# In seconds. Lost packets are found out about within 20 s, on connections that wait for an answer too.
_TCP = {"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3}
_CONNECT_SECONDS = 10

_DEADLINE = "deadline"


def postgres(url: URL, busy_seconds: float, silent_seconds: float | None = None) -> Engine:
    """Return an engine whose statements, transactions and connections all end.

    Three things may fall silent. A host that does not answer while connecting: `connect_timeout`. A network that swallows
    packets: TCP keeps asking, and gives up. Something between that takes all in and answers nothing (a proxy that hangs, a
    server that is stopped): TCP is content with that, so each transaction has a deadline of its own here, after which its
    socket is shut.

    Args:
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
    own = url.query.get("options", "")
    arguments: dict[str, Any] = {
        "connect_timeout": max(2, min(_CONNECT_SECONDS, int(busy_seconds))),
        "tcp_user_timeout": 20_000,
        **_TCP,
    }
    # What the URL says itself wins: of two values of a setting in `options`, PostgreSQL takes the last.
    connect = {name: arguments[name] for name in arguments.keys() - url.query.keys()}
    options = [f"-c {name}={value}" for name, value in limits.items()] + ([own] if isinstance(own, str) else [*own])
    engine = create_engine(url, connect_args=connect | {"options": " ".join(options).strip()})
    _watch(engine, 1.5 * busy_seconds + 2 if silent_seconds is None else silent_seconds)
    return engine


def _watch(engine: Engine, seconds: float) -> None:
    """Give each transaction its deadline, and look first whether the connection is still one: as `pool_pre_ping` does, which
    has no deadline.
    """

    @event.listens_for(engine, "checkout")
    def begin(connection: Any, record: Any, proxy: Any) -> None:
        record.info[_DEADLINE] = deadline = _TransactionDeadline(connection, seconds)
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


class _TransactionDeadline:
    """Shuts a connection's socket when its time is over: what waits on it gets an error."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._lock = threading.Lock()
        # A duplicate: the number of a socket that was closed meanwhile may be another file's by then.
        self._socket: socket.socket | None = socket.socket(fileno=os.dup(connection.fileno()))
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def drop(self) -> None:
        """Drop the deadline: the transaction has ended."""
        self._timer.cancel()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _end(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
