"""Deployed flows whose lake is in a bucket, with real processes: each row counts once, whatever dies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pipelines.places.location import Location
from tests.nimbus.deployment import PATIENCE, Deployment, jvm_of, processes_of, wait_for
from tests.places.flows_on_s3 import DATA

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


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
