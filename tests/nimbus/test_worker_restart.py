"""What a worker does with a new version while it serves a request. No Spark, no processes."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.errors import TrideltaError
from pipelines.nimbus import deployed
from pipelines.nimbus.errors import DeployError, RegistryError
from pipelines.nimbus.processes.life import Life
from pipelines.nimbus.processes.slot_spark import spark_needs_of
from pipelines.nimbus.processes.standby import SlotOrder
from pipelines.nimbus.processes.worker import WorkerProcess, main
from pipelines.nimbus.registry.lifecycle import Request
from pipelines.nimbus.registry.placements import Places, Placing
from pipelines.nimbus.registry.records import Content, DeployedFlow
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import WARM, NimbusSettings
from pipelines.private import private_folder

MODULE = "pipelines.nimbus.processes.worker"


@dataclass
class FakeServer:
    """Of a worker's server what a look at flows needs."""

    busy: bool = False
    refuses: bool = False
    started: bool = False

    def refuse(self) -> None:
        self.refuses = True

    def take(self) -> None:
        self.refuses = False

    def start(self) -> None:
        self.started = True

    def stop(self) -> None:
        """As a server's."""

    def end_if_idle(self) -> bool:
        return not self.busy


@dataclass
class FakeTask:
    """Of a task what it is told."""

    flow: DeployedFlow
    told: list[str] = field(default_factory=list)
    revision: int = 1
    ran: bool = False
    stopping_seconds: float = 0.0
    name: str = "task"
    lost: None = None
    query: Any = field(default_factory=lambda: SimpleNamespace(task=1))
    figures: Any = field(default_factory=lambda: SimpleNamespace(state="running"))

    @property
    def drains(self) -> bool:
        return bool(self.figures.state == "draining")

    def want(self, accepting: bool) -> None:
        self.told.append(f"accept {accepting}")
        if not accepting:
            self.figures.state = "draining"

    def leave(self) -> None:
        self.told.append("leave")
        self.figures.state = "draining"

    def force(self) -> None:
        self.told.append("force")

    def is_alive(self) -> bool:
        return "leave" not in self.told


def content(text: str) -> Content:
    query = {"group": "q", "components": ["q"], "inputs": [], "stateful": False}
    return Content({"kind": "catalog", "name": text, "queries": [query], "explicit": {}}, {"q": 1})


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(Store.migrated(f"sqlite:///{tmp_path}/registry.db"))


@pytest.fixture
def worker(registry: Registry, tmp_path: Path) -> WorkerProcess:
    return WorkerProcess(
        Store.migrated(f"sqlite:///{tmp_path}/registry.db"), NimbusSettings(tmp_path / "nimbus"), "s1", 1, "x"
    )


def has_spark(monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> None:
    """Its Spark and its server are none."""
    monkeypatch.setattr(f"{MODULE}.Server", lambda *_: server)
    monkeypatch.setattr(f"{MODULE}.lives", lambda _: True)
    monkeypatch.setattr(WorkerProcess, "_end_with_jvm", lambda _: None)


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


@pytest.mark.parametrize("port", [1, WARM])
def test_a_worker_takes_no_new_request_while_its_slot_is_empty_and_says_that_it_is_busy(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int
) -> None:
    has_spark(monkeypatch, server := FakeServer(busy=True))
    worker._server, worker._slot = server, ("s1", port)  # type: ignore[assignment]
    life, places = Life(worker._settings, "s1", port), Places(worker._store)
    private_folder(worker._settings.supervisor_folder("s1"))
    monkeypatch.setattr(worker, "_begin", lambda *_: None)
    flow = registry.submit("a", content("a"))
    assert life.marked_busy() == 0
    for slots in ({}, {("s1", port): [1]}, {}):
        places.assign_all([Placing(flow, slots, "NEW")])
        before = life.marked_busy()
        time.sleep(0.01)
        assert not worker._round(None)  # type: ignore[arg-type]
        assert server.refuses is (not slots and port != WARM)
        assert life.marked_busy() > before
    server.busy = False
    marked = life.marked_busy()
    assert worker._round(None) is (port != WARM)  # type: ignore[arg-type]
    assert life.marked_busy() == marked
    life.forget()
    assert life.marked_busy() == 0


def test_a_request_does_not_keep_a_slot_in_which_a_query_cannot_be_stopped(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new place waits for the lease, and a request may take hours: its supervisor does as if there were none."""
    has_spark(monkeypatch, server := FakeServer(busy=True))
    worker._server = server  # type: ignore[assignment]
    private_folder(worker._settings.supervisor_folder("s1"))
    life = Life(worker._settings, *worker._slot)
    task = FakeTask(registry.submit("a", content("a")))
    monkeypatch.setattr(task, "is_alive", lambda: True, raising=False)
    worker._tasks = {(1, 1): task}  # type: ignore[dict-item]
    task.stopping_seconds = 4.0
    assert not worker._round(None)  # type: ignore[arg-type]
    marked = life.marked_busy()
    assert marked
    task.stopping_seconds = 1000.0
    time.sleep(0.01)
    assert not worker._round(None)  # type: ignore[arg-type]
    assert life.marked_busy() == marked


CLUSTER = "spark://cluster:7077"


def has_asked(worker: WorkerProcess, flows: Iterable[DeployedFlow]) -> None:
    """Its Spark was made of what these flows ask for."""
    there = {flow.serial: flow for flow in flows}
    worker._asked, worker._compared = spark_needs_of(there.values()), there


@pytest.mark.parametrize("late", [False, True], ids=["while it runs", "while Spark starts"])
@pytest.mark.parametrize(
    ("own", "asked", "ends"),
    [
        ("", Request(settings={"spark": {"spark.driver.memory": "8g"}}), True),
        ("", Request(settings={"master": CLUSTER}), True),
        (CLUSTER, Request(parallelism={"q": 8}), True),
        (CLUSTER, Request(parallelism={"q": 2}), False),
        (CLUSTER, Request(settings={"trigger_seconds": 1}), False),
        ("", Request(parallelism={"q": 800}), False),
    ],
)
def test_a_rebalance_that_asks_for_another_spark_restarts_the_worker(
    registry: Registry,
    worker: WorkerProcess,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    asked: Request,
    ends: bool,
    late: bool,
) -> None:
    def load(*_: object) -> object:
        raise DeployError("a", "its module does not import")

    def look() -> bool:
        flow = registry.flow("a")
        worker._revisions[flow.serial] = 1
        worker._follow({(flow.serial, 1): flow})
        return worker.ending.is_set()

    monkeypatch.setattr(deployed, "load", load)
    monkeypatch.setenv("TRIDELTA_SPARK_MASTER", own)
    server = FakeServer(busy=True)
    worker._server = server  # type: ignore[assignment]
    four = content("a")
    has_asked(worker, [registry.submit("a", replace(four, definition={**four.definition, "explicit": {"q": 4}}))])
    if not late:
        assert not look()
    registry.rebalance("a", asked, wait_seconds=0)
    registry.fire()
    # A request that is under way is not cut off.
    assert not look()
    assert server.refuses is ends
    server.busy = False
    assert look() is ends


def test_a_flow_that_leaves_for_a_spark_of_its_own_restarts_nobody(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = replace(content("b"), settings={"application": "x", "spark": {"spark.driver.memory": "8g"}})
    for name in ("a", "b"):
        registry.submit(name, named)
    monkeypatch.setattr(worker, "_begin", lambda *_: None)
    worker._server = FakeServer()  # type: ignore[assignment]
    has_asked(worker, registry.flows())

    def look() -> bool:
        worker._follow({(flow.serial, 1): flow for flow in registry.flows()})
        return worker.ending.is_set()

    assert not look()
    registry.rebalance("a", Request(settings={"application": "y", "master": CLUSTER}), wait_seconds=0)
    registry.fire()
    assert not look()
    registry.kill("b", wait_seconds=0)
    registry.fire()
    # It has stayed behind, alone.
    assert look()


def test_the_master_is_that_of_flows_that_stand(registry: Registry) -> None:
    """The leader refuses another one beside them, and who asked for it stays where it is."""
    named = [replace(content("a"), settings={"application": "x", "master": f"spark://{n}:7077"}) for n in (1, 2)]
    for name in ("a", "b"):
        registry.submit(name, named[0])
    registry.update("a", named[1])
    assert spark_needs_of(registry.flows()).master == "spark://1:7077"
    registry.update("b", named[1])
    assert spark_needs_of(registry.flows()).master == "spark://2:7077"


def test_flows_that_came_or_went_make_no_rebalance_a_restart(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks(**settings: object) -> Content:
        return replace(content("x"), settings={"application": "x", **settings})

    def look() -> bool:
        worker._follow({(flow.serial, 1): flow for flow in registry.flows()})
        return worker.ending.is_set()

    def rebalance(**settings: object) -> None:
        registry.rebalance("b", Request(settings=settings), wait_seconds=0)
        registry.fire()

    monkeypatch.setattr(worker, "_begin", lambda *_: None)
    server = FakeServer(busy=True)
    worker._server = server  # type: ignore[assignment]
    registry.submit("a", asks(master=CLUSTER, spark={"spark.driver.memory": "8g"}))
    registry.submit("b", asks())
    has_asked(worker, registry.flows())
    # While Spark starts.
    registry.submit("c", asks(spark={"spark.driver.cores": 2}))
    assert not look()
    registry.kill("a", wait_seconds=0)
    registry.fire()
    rebalance(trigger_seconds=1)
    assert not look()
    assert not server.refuses
    rebalance(spark={"spark.driver.memory": "9g"})
    assert not look()
    assert server.refuses
    # Taken back before the request came to its end.
    rebalance(spark={})
    assert not look()
    assert not server.refuses
    server.busy = False
    assert not look()


def test_an_update_in_place_that_asks_for_another_spark_restarts_the_worker(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flow of a watched folder, whose next version the same process may run."""
    watched = replace(content("a"), settings={"application": deployed.WATCHED})
    watched = replace(watched, definition={**watched.definition, "kind": deployed.YAML})
    monkeypatch.setattr(worker, "_begin", lambda *_: None)
    worker._server = FakeServer()  # type: ignore[assignment]
    registry.submit("a", watched)
    has_asked(worker, registry.flows())
    for settings, ends in (({"trigger_seconds": 2.0}, False), ({"spark": {"spark.driver.memory": "8g"}}, True)):
        flow = registry.update("a", replace(watched, settings={**watched.settings, **settings}))
        worker._follow({(flow.serial, 1): flow})
        assert worker.ending.is_set() is ends


def test_a_worker_that_is_told_to_end_does_so_without_the_registry(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise RegistryError("x", "does not answer", hint="")

    has_spark(monkeypatch, FakeServer())
    monkeypatch.setattr(worker, "_flows", down)
    monkeypatch.setattr(worker._registry.leases, "release", down)
    task = FakeTask(registry.submit("a", content("a")))
    worker._tasks = {(1, 1): task}  # type: ignore[dict-item]
    assert not worker._round(None)  # type: ignore[arg-type]
    assert task.told == []
    worker.ending.set()
    worker.run(object())  # type: ignore[arg-type]
    assert task.told == ["leave"]


@pytest.mark.parametrize("changed", [False, True])
def test_a_standby_that_is_older_than_its_code_serves_nobody(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: bool
) -> None:
    """An update came while it waited: its slot gets a process that imports what is there now."""
    file = tmp_path / f"imported_before_{changed}.py"
    file.write_text("BOUND = 1800\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module(file.stem)
    server, ends = FakeServer(), []

    def stand_by(*_: object) -> tuple[SlotOrder, object]:
        if changed:
            file.write_text("BOUND = 900\n")
        return SlotOrder(1, "x"), object()

    has_spark(monkeypatch, server)
    monkeypatch.setenv("TRIDELTA_REGISTRY", registry._store.url)
    monkeypatch.setenv("TRIDELTA_NIMBUS_HOME", str(tmp_path / "nimbus"))
    for name in ("_log", "watch_registry", "kill_jvm", "signal.signal"):
        monkeypatch.setattr(f"{MODULE}.{name}", lambda *_: None)
    monkeypatch.setattr(f"{MODULE}.stand_by", stand_by)
    monkeypatch.setattr(f"{MODULE}.os._exit", ends.append)
    main(["--supervisor", "s1", "--standby", "--life", "x"])
    assert server.started is not changed
    # Its supervisor starts another at once.
    assert ends == [0]
    assert registry.leases.holder("slot:s1:1") is None


@pytest.mark.parametrize(
    "error",
    [
        UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "no"),
        PermissionError("no"),
        SystemExit(2),
        FileNotFoundError("caf\udce9.csv"),
    ],
    ids=ascii,
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
    told = str(registry.flow("a").problem)
    assert told.startswith('DeployError: flow "a": cannot be loaded: ')
    assert type(error).__name__ in told


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The worker's time, in its only item."""
    now = [1_000.0]
    monkeypatch.setattr(f"{MODULE}.time.monotonic", lambda: now[0])
    return now


@pytest.mark.slow
def test_a_flow_that_could_not_be_loaded_is_tried_again_after_a_pause_that_doubles(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    flow = registry.submit("a", content("a"))
    tried: list[float] = []

    def load(*_: object) -> object:
        tried.append(clock[0] - 1_000.0)
        if clock[0] < 1_100.0:
            raise DeployError("a", "its module does not import")
        return SimpleNamespace(name="a")

    monkeypatch.setattr(deployed, "load", load)
    for _ in range(400):
        made = worker._load(registry.flow("a"))
        clock[0] += 0.5
    assert not isinstance(made, TrideltaError)
    assert registry.flow("a").problem is None
    assert tried == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0]
    # Told once in its history, however often it was tried.
    assert [line.event for line in registry.history("a")].count("PROBLEM") == 1
    assert flow.version.number == 1


@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True])
def test_code_that_was_imported_is_read_again_by_another_process(
    registry: Registry,
    worker: WorkerProcess,
    monkeypatch: pytest.MonkeyPatch,
    clock: list[float],
    tmp_path: Path,
    beside: bool,
) -> None:
    """The code is brought back under a version: what this process has imported stays as it was."""
    file = tmp_path / f"imported_flow_{beside}.py"
    file.write_text("FLOWS = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module(file.stem)

    def load(*_: object) -> object:
        raise DeployError("a", "version 1 was deployed from plan X; the code here gives Y")

    monkeypatch.setattr(deployed, "load", load)
    flow = registry.submit("a", content("a"))
    worker._server, worker._revisions = FakeServer(), {flow.serial: 1}  # type: ignore[assignment]
    neighbour = registry.submit("b", content("b"))
    if beside:
        worker._revisions[neighbour.serial] = 1
        worker._loaded[neighbour.serial] = (neighbour, SimpleNamespace())  # type: ignore[assignment]
        worker._tasks = {(neighbour.serial, 1): FakeTask(neighbour)}  # type: ignore[dict-item]
    flows = {(one.serial, 1): one for one in ((flow, neighbour) if beside else (flow,))}

    def rounds() -> None:
        for _ in range(20):
            worker._follow(flows)
            clock[0] += 10.0

    rounds()
    # As long as nobody has changed anything, another process would find the same.
    assert not worker.ending.is_set()
    file.write_text("FLOWS = 1  # as it was\n")
    rounds()
    # Not while others run: their code may have changed under them, too.
    assert worker.ending.is_set() is not beside
    worker._tasks.clear()
    worker._follow({(flow.serial, 1): flow})
    assert worker.ending.is_set()


@pytest.mark.parametrize("definition", [{}, {"kind": "catalog", "queries": [{"group": "q"}]}, {"queries": 5}], ids=str)
def test_a_version_that_cannot_be_read_ends_its_own_tasks_alone(
    registry: Registry, worker: WorkerProcess, definition: dict[str, Any]
) -> None:
    flow, neighbour = registry.submit("a", content("a")), registry.submit("b", content("b"))
    tasks = {(one.serial, 1): FakeTask(one) for one in (flow, neighbour)}
    worker._tasks = dict(tasks)  # type: ignore[arg-type]
    worker._revisions = {flow.serial: 1, neighbour.serial: 1}
    odd = registry.update("a", replace(content("a"), definition=definition))
    worker._follow({(flow.serial, 1): odd, (neighbour.serial, 1): neighbour})
    assert [task.told for task in tasks.values()] == [["leave"], ["accept True"]]
    worker._tasks.pop((flow.serial, 1))
    worker._loaded = {flow.serial: (flow, TrideltaError("not looked at"))}
    worker._follow({(flow.serial, 1): odd, (neighbour.serial, 1): neighbour})
    assert worker._tasks.keys() == {(neighbour.serial, 1)}


@pytest.mark.parametrize(
    ("what", "timeout", "seconds"),
    [
        ("move", None, 30),
        ("move", 7, 7),
        ("move", 0, 0),
        ("update", 7, 7),
        ("inactive", 7, 7),
        ("rebalance", 60, 0),
        ("kill", 60, 0),
    ],
)
def test_a_task_that_is_placed_elsewhere_drains_first(
    registry: Registry,
    worker: WorkerProcess,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    timeout: int | None,
    seconds: int,
) -> None:
    """Its flow did not drain before: slots have come for an earlier wish, or another flow joins. After a rebalance it has."""
    now = 1000.0
    monkeypatch.setattr(f"{MODULE}.time.monotonic", lambda: now)
    settings = {} if timeout is None else {"message_timeout_seconds": timeout}
    flow = registry.submit("a", replace(content("a"), settings=settings))
    task = FakeTask(flow)
    worker._tasks = {(flow.serial, 1): task}  # type: ignore[dict-item]
    worker._loaded = {flow.serial: (flow, TrideltaError("not looked at"))}
    if what == "rebalance":
        registry.rebalance("a", Request(), wait_seconds=60)
    if what == "update":
        flow = registry.update("a", replace(content("a"), settings={**settings, "hosts": ["s2"]}))
    if what == "inactive":
        flow = registry.deactivate("a")
    worker._flows()
    worker._revisions = {flow.serial: 1}
    worker._server = FakeServer()  # type: ignore[assignment]
    worker._follow({(flow.serial, 1): registry.flow("a")})
    assert worker.ending.is_set() is (what == "update")
    if what == "kill":
        registry.kill("a", wait_seconds=0)
    registry.fire()
    if what == "rebalance":
        registry.hurry(registry.flow("a"))
        registry.fire()
        # It looks before the leader has placed it.
        worker._follow({(flow.serial, 1): registry.flow("a")})
    task.told.clear()
    assert worker._flows() == {}
    worker._follow({})
    assert task.told == (["leave"] if seconds else ["leave", "force"])
    now += seconds - 0.1
    worker._follow({})
    assert ("force" in task.told) is (seconds == 0)
    now += 0.2
    worker._follow({})
    assert task.told[-1] == "force"


def test_a_task_that_comes_back_while_it_drains_has_its_time_anew(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(f"{MODULE}.time.monotonic", lambda: now)
    flow = registry.submit("a", content("a"))
    task = FakeTask(flow)
    worker._tasks = {(flow.serial, 1): task}  # type: ignore[dict-item]
    worker._flows()
    worker._revisions = {flow.serial: 1}
    worker._follow({})
    now += 29
    worker._follow({(flow.serial, 1): flow})
    now += 2
    worker._follow({})
    assert task.told == ["leave", "accept True", "leave"]
    # So it has where a rebalance comes while it drains.
    worker._revisions = {flow.serial: 3}
    worker._follow({(flow.serial, 1): registry.rebalance("a", Request(), wait_seconds=60)})
    assert "force" not in task.told


def test_a_rebalance_that_nobody_has_seen_is_waited_for_as_long_as_its_flow_says(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wait was shorter than a look at the registry, and its query stays in its slot: behind a batch that hangs, too."""
    now = 1000.0
    monkeypatch.setattr(f"{MODULE}.time.monotonic", lambda: now)
    flow = registry.submit("a", content("a"))
    task = FakeTask(flow)
    worker._tasks = {(flow.serial, 1): task}  # type: ignore[dict-item]
    registry.rebalance("a", Request(parallelism={"q": 2}), wait_seconds=0)
    registry.fire()
    worker._flows()
    worker._revisions = {flow.serial: 2}
    for seconds, forced in ((0.0, False), (29.0, False), (2.0, True)):
        now += seconds
        worker._follow({(flow.serial, 1): registry.flow("a")})
        assert ("force" in task.told) is forced


@pytest.mark.parametrize("seen", ["nothing", "another rebalance", "the end of another rebalance"])
def test_a_kill_behind_a_rebalance_has_its_own_wait(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    now = 1000.0
    monkeypatch.setattr(f"{MODULE}.time.monotonic", lambda: now)
    flow = registry.submit("a", content("a"))
    task = FakeTask(flow)
    worker._tasks = {(flow.serial, 1): task}  # type: ignore[dict-item]

    def look(seconds: float = 0.0) -> None:
        nonlocal now
        now += seconds
        worker._follow({(flow.serial, 1): registry.flow("a")})

    registry.rebalance("a", Request(parallelism={"q": 2}), wait_seconds=0)
    registry.fire()
    worker._flows()
    worker._revisions = {flow.serial: 2}
    look()
    if seen != "nothing":
        registry.rebalance("a", Request(parallelism={"q": 3}), wait_seconds=600)
        look(10)
    if seen == "the end of another rebalance":
        registry.hurry(registry.flow("a"))
        registry.fire()
        worker._revisions = {flow.serial: 3}
    registry.kill("a", wait_seconds=600)
    for seconds in (0.5, 21, 500):
        look(seconds)
        assert "force" not in task.told
    registry.hurry(registry.flow("a"))
    registry.fire()
    worker._flows()
    worker._follow({})
    assert task.told[-1] == "force"


@pytest.mark.parametrize("drained", [True, False], ids=["it has seen the rebalance", "it has not"])
@pytest.mark.parametrize("behind", ["kill", "rebalance"])
def test_what_comes_behind_a_rebalance_that_moved_its_query_has_its_own_wait(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch, behind: str, drained: bool
) -> None:
    now = 1000.0
    monkeypatch.setattr(f"{MODULE}.time.monotonic", lambda: now)
    flow = registry.submit("a", content("a"))
    task, key = FakeTask(flow), (flow.serial, 1)
    worker._tasks = {key: task}  # type: ignore[dict-item]
    if drained:
        worker._draining.rebalanced.add(key)
    if behind == "kill":
        registry.kill("a", wait_seconds=600)
    else:
        registry.rebalance("a", Request(), wait_seconds=600)
    for seconds in (0, 31, 500):
        now += seconds
        assert worker._flows() == {}
        worker._follow({})
        assert task.told[-1] == "leave"
    registry.hurry(registry.flow("a"))
    registry.fire()
    worker._flows()
    worker._follow({})
    assert task.told[-1] == "force"


@pytest.mark.parametrize("what", ["nothing", "rebalance", "another restart"])
def test_only_a_task_that_a_rebalance_has_drained_is_forced_by_another_assignment(
    registry: Registry, worker: WorkerProcess, what: str
) -> None:
    """One that stays as it was has its time at the next drain; so has one that drains because its worker restarts."""
    flow = registry.submit("a", content("a"))
    task = FakeTask(flow)
    worker._tasks = {(flow.serial, 1): task}  # type: ignore[dict-item]
    worker._loaded = {flow.serial: (flow, TrideltaError("not looked at"))}
    worker._revisions = {flow.serial: 1}
    if what == "rebalance":
        worker._follow({(flow.serial, 1): registry.rebalance("a", Request(), wait_seconds=60)})
    if what == "another restart":
        worker.ending.set()
        worker._follow({(flow.serial, 1): flow})
    worker._revisions = {flow.serial: 2}
    worker._follow({(flow.serial, 1): flow})
    assert ("force" in task.told) is (what == "rebalance")
    task.figures.state = "draining"
    worker._follow({(flow.serial, 1): flow})
    assert ("force" in task.told) is (what == "rebalance")


@pytest.mark.parametrize("ends", [True, False], ids=["it needs another process", "it runs beside"])
def test_a_slot_that_another_application_waits_for_is_left_in_time(
    registry: Registry, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    now = 1000.0
    monkeypatch.setattr(f"{MODULE}.time.monotonic", lambda: now)
    monkeypatch.setattr(worker, "_begin", lambda *_: None)
    worker._server = FakeServer()  # type: ignore[assignment]
    flow = registry.submit("a", replace(content("a"), settings={"message_timeout_seconds": 3600}))
    has_asked(worker, [flow])
    task = FakeTask(flow)
    worker._tasks = {(flow.serial, 1): task}  # type: ignore[dict-item]
    worker._flows()
    worker._follow({})
    new = registry.submit("z", replace(content("z"), settings={"application": "z"}))
    now += 100
    if ends:
        worker.ending.set()
    for seconds in (0, worker._settings.stop_seconds - 1):
        now += seconds
        worker._follow({(new.serial, 1): new})
        assert "force" not in task.told
    now += 2
    worker._follow({(new.serial, 1): new})
    assert ("force" in task.told) is ends
