"""Deployed flows whose lake is in a bucket, with real processes: each row counts once, whatever dies."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pipelines.places.location import Location
from tests.nimbus.deployment import PATIENCE, Deployment, jvm_of, processes_of, wait_for
from tests.nimbus.spark_cluster import SparkCluster
from tests.nimbus.test_deployed_on_a_cluster import without_the_package
from tests.places.conftest import SERVERS
from tests.places.flows_on_s3 import DATA
from tests.tiers import EXHAUSTIVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@EXHAUSTIVE
@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_a_jvm_that_dies(s3_jars: None, place: Location, tmp_path: Path) -> None:
    with Deployment(tmp_path / "home", lake=place / "lake") as here:
        here.submit("numbers")
        here.runs("numbers")
        here.settles()
        with here.feeding("numbers", every=0.5):
            jvm_of(here.worker_of("numbers")).kill()
            here.next_batch("numbers")
        here.ends_well()
        # Nothing of a lake is on this host.
        assert not (here.home / "lake").exists()


@pytest.mark.exhaustive
def test_a_life(s3_jars: None, place: Location, tmp_path: Path) -> None:
    """Windows in both places; a worker killed, a new version, killed by its operator and submitted again."""
    with Deployment(tmp_path / "home", lake=place / "lake") as here:
        here.submit("numbers", "readings")
        here.runs("numbers", "readings")
        here.settles()
        with here.feeding("numbers", "readings"):
            here.worker_of("numbers").kill()
            here.next_batch("readings")
        here.settles()
        here.nimbus.update("numbers", trigger_seconds=0.2)
        here.next_batch("numbers", here.worker_of("numbers").pid)
        here.nimbus.kill("numbers", 1)
        here.nimbus.wait("numbers", until="gone", seconds=PATIENCE)
        here.feed("numbers")
        here.submit("numbers")
        here.ends_well()


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_a_cluster(s3_jars: None, place: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark on two workers, lake and files in a bucket: an executor dies, the store stands still, the driver dies."""
    home, data, python = tmp_path / "home", place / "in", without_the_package(tmp_path / "python")
    monkeypatch.setenv(DATA, str(data))
    given = {"flows": "tests.places.flows_on_s3", "environment": {"PYSPARK_PYTHON": str(python)}}
    with SparkCluster(home) as cluster, Deployment(home, lake=place / "lake", data=data, **given) as here:
        here.submit("numbers", master=cluster.master, spark=cluster.settings, application="clustered")
        here.runs("numbers")
        here.settles()
        with here.feeding("numbers", every=1):
            cluster.executors()[0].kill()
            here.next_batch("numbers")
        with standing_still():
            time.sleep(10)
        here.next_batch("numbers")
        here.worker_of("numbers").kill()
        here.next_batch("numbers")
        here.ends_well()
        assert not (home / "lake").exists()


@contextmanager
def standing_still() -> Iterator[None]:
    """The server of S3 answers nothing."""
    port = int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])
    listening = [one for one in psutil.Process().children() if serves(one, port)]
    assert len(listening) == 1
    listening[0].suspend()
    try:
        yield
    finally:
        listening[0].resume()


def serves(process: psutil.Process, port: int) -> bool:
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in process.net_connections())


@pytest.mark.exhaustive
def test_two_hosts(
    s3_jars: None, place: Location, postgres: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a home of its own, one registry and one lake: one freezes, the other goes on; then that one dies."""
    data, registry = place / "in", postgres()
    monkeypatch.setenv(DATA, str(data))

    def host(name: str) -> Deployment:
        return Deployment(
            tmp_path / name,
            registry=registry,
            supervisors=(name,),
            flows="tests.places.flows_on_s3",
            lake=place / "lake",
            data=data,
            environment={"TRIDELTA_HOST": name},
        )

    with host("a") as a:
        a.submit("numbers")
        a.runs("numbers")
        a.settles()
        assert a.task("numbers").supervisor == "a"
        with host("b") as b:
            b.files = a.files
            with frozen(a.home):
                b.feed("numbers", files=2)
                wait_for(lambda: b.task("numbers").supervisor == "b", PATIENCE, lambda: str(b.nimbus.flow("numbers")))
                b.next_batch("numbers")
                b.settles()
                worker = a.worker("a")
            # It wakes, and may think that the flow is its own.
            b.feed("numbers", files=2)
            b.settles()
            assert worker is not None
            wait_for(lambda: not worker.is_running(), PATIENCE, lambda: f"{worker} still runs")
            b.die()
            a.feed("numbers")
            wait_for(lambda: a.task("numbers").supervisor == "a", PATIENCE, lambda: str(a.nimbus.flow("numbers")))
            a.next_batch("numbers")
            a.ends_well()


@contextmanager
def frozen(home: Path) -> Iterator[None]:
    """All processes of a home stand still."""
    stopped = processes_of(home)
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            with contextlib.suppress(psutil.Error):
                process.resume()
