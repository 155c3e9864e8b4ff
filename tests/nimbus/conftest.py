"""A registry's database for each test: SQLite, and PostgreSQL where a server can be started."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from pipelines.nimbus.registry.store import Store
from tests.nimbus.led_cluster import Cluster
from tests.nimbus.postgres_cluster import server, why_not

_numbers = itertools.count()


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """Give the URL of an empty schema with each call: a database of its own costs 300 files and half a second."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with server() as pattern:
        engine = create_engine(
            pattern.format(database="postgres").replace("postgresql:", "postgresql+psycopg:"),
            isolation_level="AUTOCOMMIT",
        )

        def fresh() -> str:
            name = f"registry_{next(_numbers)}"
            with engine.connect() as connection:
                connection.execute(text(f"CREATE SCHEMA {name}"))
            return f"{pattern.format(database='postgres')}&options=-csearch_path%3D{name}"

        yield fresh
        engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/registry.db"
    return str(request.getfixturevalue("postgres")())


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store.migrated(url, busy_seconds=20)
    yield opened
    opened.close()


@pytest.fixture
def cluster(store: Store, clock: Clock, tmp_path: Path) -> Cluster:
    return Cluster(store, clock, tmp_path)
