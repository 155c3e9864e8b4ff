"""What every test can ask for: the one Spark session of the run, and a lake of its own."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.lakes import STORES, store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A process of pytest-xdist has a main module without a file; pyspark's connect package, which great-expectations imports,
# takes that for a run of doctests and ends the process.
if not hasattr(sys.modules["__main__"], "__file__"):
    sys.modules["__main__"].__file__ = __file__

# Derandomised: a failure in CI is the same failure on a desk. No deadline: a shared machine stalls now and then.
# Rich asks for a terminal's width when a console is made, which is when the first test file imports one.
os.environ["COLUMNS"] = "200"

settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="run the tests marked exhaustive, too (make test-all)")
    parser.addoption(
        "--store", choices=STORES, help="keep the lakes of conformance, crash and histories on such a server"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need the session, so that `-m "not spark"` runs without a JVM; leave out what nobody asked for.

    The soak and the exhaustive tests run where `-m` or `--exhaustive` names them, or where a test is named by its node id.

    Files with many slow tests come first: processes side by side take file by file, and a long one at the end keeps one of them
    waiting for the other (`make test` asks xdist to keep this order).
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    left_out = {"soak", "exhaustive"} - ({"exhaustive"} if config.option.exhaustive else set())
    left_out -= {mark for mark in left_out if mark in config.option.markexpr}
    if not any("::" in asked for asked in config.args):
        items[:] = [item for item in items if not any(item.get_closest_marker(mark) for mark in left_out)]
    weights: Counter[Path] = Counter()
    for item in items:
        weights[item.path] += _weight(item)
    items.sort(key=lambda item: -weights[item.path])


def _weight(item: pytest.Item) -> int:
    """About how long a test takes: what has more time than others needs more."""
    if not item.get_closest_marker("slow"):
        return 0
    limit = item.get_closest_marker("timeout")
    return max(1, int(limit.args[0]) // 30) if limit else 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what a test has recorded as `shown`, such as a seed by which it can be repeated, also where it has passed.

    Properties of a test come from the processes of xdist with its reports; what it prints is shown only where it fails.
    """
    for report in (one for outcome in ("passed", "failed") for one in terminalreporter.getreports(outcome)):
        for name, value in report.user_properties:
            if name == "shown" and report.when == "call":
                terminalreporter.write_line(f"{report.nodeid}: {value}")


@pytest.fixture(scope="session", autouse=True)
def lakes_on_a_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What `--store` says: the server is there before the session, whose settings come from the environment."""
    kind = request.config.option.store
    with store_of(kind, tmp_path_factory.mktemp("store")) if kind else nullcontext():
        yield


@pytest.fixture(scope="session")
def spark(lakes_on_a_store: None) -> Iterator[SparkSession]:
    """The session that all tests share: there is never a second one in this process."""
    from pipelines.places.location import Location
    from pipelines.spark.session import spark_session

    # A session that reads S3 is one that was started after somebody named a place there.
    Location.of("s3://tests")
    # The first compiler only: tests start fast and run each query a few times, so the optimising one never pays.
    # 3 GB of heap: the processes of tests, and what they start, share a machine.
    session = spark_session(
        "tests",
        master="local[2]",
        conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.driver.memory": "3g"},
    )
    yield session
    session.stop()


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put this process, driver or worker, on a host whose time zone is not UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def lake_root(tmp_path: Path) -> str:
    """The root of a lake that only this test sees."""
    return str(tmp_path / "lake")
