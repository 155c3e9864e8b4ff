"""A worker that does not come to its next round ends, though it beats: another process may do better. No Spark, no processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import TrideltaError
from pipelines.nimbus import deployed
from pipelines.nimbus.processes.beats import Beats
from pipelines.nimbus.processes.life import STUCK
from pipelines.nimbus.processes.worker import WorkerProcess
from pipelines.nimbus.registry.records import DeployedFlow
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings
from tests.nimbus.test_worker_restart import MODULE, FakeServer, content, registry

__all__ = ["registry"]


class Watched:
    """A worker by a clock of its own. `ended` is by what codes it has ended, and why."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.ended, self.passes = 1000.0, list[tuple[int, str]](), 0.0
        settings = NimbusSettings(root / "nimbus", beat_seconds=0.1, lease_seconds=5, task_launch_seconds=120)
        self.process = WorkerProcess(Store.migrated(f"sqlite:///{root}/registry.db"), settings, "s1", 1, "x")
        self.beats: Beats = self.process._beats
        monkeypatch.setattr(self.beats, "_end_now", lambda code, why: self.ended.append((code, why)))
        monkeypatch.setattr(f"{MODULE}.Server", lambda *_: self)
        monkeypatch.setattr(f"{MODULE}.lives", self.lives)
        monkeypatch.setattr(deployed, "load", self.load)
        self.where = ""

    def work(self, where: str, result: Any = None) -> Any:
        """Take some seconds, if it is here that it does."""
        if where == self.where:
            self.now += self.passes
        self.beats._end_if_it_hangs()
        return result

    def start(self) -> None:
        """As a server's."""
        self.work("start")
        raise InterruptedError

    def lives(self, _: object) -> bool:
        self.work("lives")
        return True

    def load(self, *_: object) -> Any:
        return self.work("load", TrideltaError("not looked at"))

    def look(self, flows: list[DeployedFlow]) -> None:
        """Begin to serve, and make a round."""
        with pytest.raises(InterruptedError):
            self.process._serve(None)  # type: ignore[arg-type]
        self.process._server = FakeServer()  # type: ignore[assignment]
        self.process._revisions = {flow.serial: 1 for flow in flows}
        self.process._flows = lambda: {(flow.serial, 1): flow for flow in flows}  # type: ignore[method-assign]
        self.process._round(None)  # type: ignore[arg-type]


@pytest.fixture
def watched(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched(tmp_path, monkeypatch)
    monkeypatch.setattr(f"{MODULE}.time.monotonic", lambda: watched.now)
    return watched


@pytest.mark.parametrize(("seconds", "ends"), [(1199.0, False), (1201.0, True)])
@pytest.mark.parametrize(
    ("where", "named"),
    [("start", "TRIDELTA_FLOWS"), ("lives", "its Spark"), ("load", 'flow "a"')],
)
def test_it_ends_where_it_is_at_one_thing_for_too_long(
    registry: Registry, watched: Watched, where: str, named: str, seconds: float, ends: bool
) -> None:
    watched.where, watched.passes = where, seconds
    flow = registry.submit("a", content("a"))
    watched.look([flow])
    assert [code for code, _ in watched.ended] == [STUCK] * ends
    assert all(named in why for _, why in watched.ended)


def test_many_flows_may_take_longer_together(registry: Registry, watched: Watched) -> None:
    watched.where, watched.passes = "load", 900.0
    flows = [registry.submit(name, content(name)) for name in ("a", "b", "c")]
    watched.look(flows)
    assert watched.now == 3700
    assert not watched.ended


def test_while_its_spark_starts_it_has_no_round(watched: Watched) -> None:
    watched.now += 10_000
    watched.work("Spark")
    assert not watched.ended


@pytest.mark.parametrize(("launch", "patience"), [(120.0, 1200.0), (5.0, 600.0), (600.0, 6000.0)])
def test_its_patience_comes_from_the_time_of_a_launch(tmp_path: Path, launch: float, patience: float) -> None:
    settings = NimbusSettings(tmp_path, task_launch_seconds=launch)
    nothing: Any = None
    assert Beats(nothing, nothing, settings, ("s1", 1), lambda *_: None)._patience == patience


def test_its_beats_find_that_out(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = threading.Event()
    watched = Watched(tmp_path, monkeypatch)
    end: Callable[..., None] = lambda code, why: found.set()  # noqa: E731
    monkeypatch.setattr(watched.beats, "_end_now", end)
    watched.beats._patience = 0.3
    watched.beats.take_slot("h")
    watched.beats.start({}, {})
    try:
        time.sleep(0.6)
        assert not found.is_set()
        watched.beats.goes_on("a look at its flows")
        assert found.wait(20)
    finally:
        watched.beats.end()
        watched.beats._thread.join(10)
