"""The registry's PostgreSQL goes down and comes back, while two flows run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.nimbus.deployment import PATIENCE, Deployment, wait_for
from tests.nimbus.postgres_cluster import Cluster, cluster, why_not

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.exhaustive
def test_postgres_goes_down(tmp_path: Path) -> None:
    """For a moment: nothing ends. For longer than a lease: the worker ends, and comes again with the registry."""
    if reason := why_not():
        pytest.skip(reason)
    with cluster() as postgres, Deployment(tmp_path / "home", registry=database(postgres)) as here:
        here.submit("numbers", "readings")
        here.runs("numbers", "readings")
        pid, keeper = here.worker_of("numbers").pid, here.supervisor()
        with here.feeding("numbers", "readings"):
            postgres.stop()
            time.sleep(2)
            postgres.start()
            here.next_batch("numbers")
            assert here.worker_of("numbers").pid == pid
            postgres.stop()
            time.sleep(here.nimbus.settings.lease_seconds + 5)
            postgres.start()
            here.next_batch("numbers", pid)
        wait_for(lambda: here.nimbus.cluster().leader, PATIENCE, lambda: "nobody leads")
        assert keeper.is_running()
        here.ends_well()


def database(postgres: Cluster) -> str:
    """The URL of a database of its own."""
    url = postgres.url.format(database="postgres").replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE DATABASE deployed"))
    engine.dispose()
    return postgres.url.format(database="deployed")
