"""What a worker does with a new version while it serves a request. No Spark, no processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.errors import TrideltaError
from pipelines.nimbus import deployed
from pipelines.nimbus.errors import DeployError
from pipelines.nimbus.processes.worker import WorkerProcess
from pipelines.nimbus.registry.records import Content, DeployedFlow
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings


@dataclass
class FakeServer:
    """Of a worker's server what a look at flows needs."""

    busy: bool = False
    refuses: bool = False

    def refuse(self) -> None:
        self.refuses = True


@dataclass
class FakeTask:
    """Of a task what it is told."""

    flow: DeployedFlow
    told: list[str] = field(default_factory=list)
    revision: int = 1
    query: Any = field(default_factory=lambda: SimpleNamespace(task=1))
    figures: Any = field(default_factory=lambda: SimpleNamespace(state="running"))

    def want(self, accepting: bool) -> None:
        self.told.append(f"accept {accepting}")

    def leave(self) -> None:
        self.told.append("leave")


def content(text: str) -> Content:
    query = {"group": "q", "components": ["q"], "inputs": [], "stateful": False}
    return Content({"kind": "catalog", "name": text, "queries": [query], "explicit": {}}, {"q": 1})


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(Store(f"sqlite:///{tmp_path}/registry.db"))


@pytest.fixture
def worker(registry: Registry, tmp_path: Path) -> WorkerProcess:
    return WorkerProcess(Store(f"sqlite:///{tmp_path}/registry.db"), NimbusSettings(tmp_path / "nimbus"), "s1", 1, "x")


def test_while_a_request_is_under_way_flows_go_on_as_they_are(registry: Registry, worker: WorkerProcess) -> None:
    first, neighbour = registry.submit("a", content("a")), registry.submit("b", content("b"))
    tasks = {(flow.serial, 1): FakeTask(flow) for flow in (first, neighbour)}
    worker._tasks = dict(tasks)  # type: ignore[arg-type]
    worker._loaded = {flow.serial: (flow, TrideltaError("not looked at")) for flow in (first, neighbour)}
    worker._revisions = {first.serial: 1, neighbour.serial: 1}
    server = FakeServer(busy=True)
    worker._server = server  # type: ignore[assignment]
    flows = {(first.serial, 1): registry.update("a", content("other")), (neighbour.serial, 1): neighbour}
    worker._follow(flows)
    assert server.refuses
    assert not worker.ending.is_set()
    assert [task.told for task in tasks.values()] == [["accept True"], ["accept True"]]
    server.busy = False
    worker._follow(flows)
    assert worker.ending.is_set()
    assert [task.told[-1] for task in tasks.values()] == ["leave", "leave"]


@pytest.mark.parametrize(
    "error", [UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "no"), PermissionError("no"), SystemExit(2)]
)
def test_whatever_a_flow_brings_about_is_its_own_problem(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    flow = registry.submit("a", content("a"))

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(deployed, "load", fails)
    monkeypatch.setattr(deployed, "check_deployed", lambda _: None)
    loaded = worker._load(replace(flow))
    assert isinstance(loaded, DeployError)
    assert type(error).__name__ in str(registry.flow("a").problem)
