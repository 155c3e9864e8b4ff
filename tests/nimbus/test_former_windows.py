"""Windows go over from a channel into the batch of a deployed query: what runs ahead of it can be ended and holds up no start."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake
from pipelines.execution.checkpoint.engine_files import CONTINUE
from pipelines.nimbus import deployed
from pipelines.nimbus.nimbus import Nimbus
from pipelines.nimbus.processes import starting as starting_module
from pipelines.nimbus.processes.task import Task
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from tests.nimbus.test_former_version import FLOW

FIELDS = '"k string, v bigint, timestamp bigint, id string"'
ROWS = [{"k": "a", "v": v, "timestamp": 100_000 + 1_000 * v, "id": f"e{v}"} for v in range(5)]


class Deployed:
    """A flow whose windows ran over a channel, of which nothing was read, and are to go over.

    Attributes:
        told: What the flow's history says.
        guard: What happens before each commit.
    """

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark, self._root, self.lake = spark, root, Lake(root / "lake")
        self.told: list[str] = []
        self.preparing = threading.Lock()
        self.guard: Callable[[str], None] = lambda state: None
        (root / "in").mkdir()
        (root / "in" / "0.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        self.task("channels")._live()

    def task(self, windows: str = "batch") -> Task:
        """The task of the source's query; it ends when that is read."""
        url, file = f"sqlite:///{self._root}/registry.db", self._root / "f.yaml"
        text = FLOW.replace("WINDOWS", windows).replace("path: in", f"path: {self._root}/in")
        file.write_text(text.replace('"k string, v bigint"', FIELDS))
        with Nimbus(url, self.lake) as nimbus:
            nimbus.deploy(file=file, application=deployed.WATCHED)
        store = Store(url)
        flow = Registry(store).flows()[0]
        store.close()
        registry = SimpleNamespace(tell=lambda _, what, detail: self.told.append(what), leases=None)
        application: Any = SimpleNamespace(
            spark=self._spark, preparing=self.preparing, registry=registry, store=None, admission=None
        )
        task = Task(application, flow, deployed.queries_of(flow)[0], deployed.load(flow, self._root))
        task.lease, task._trigger = SimpleNamespace(), None  # type: ignore[assignment]
        task._on_fresh = CONTINUE
        task._starting._query = SimpleNamespace(group="s", partitions=None, inputs=())  # type: ignore[assignment]
        task._starting._guard = lambda lease, moment, state, txid: self.guard(state) if moment == "committing" else None  # type: ignore[method-assign]
        task.want(wanted=True)
        return task

    def sums(self) -> list[int]:
        return sorted(row["sum"] for row in self.lake.state("sums").scan().to_pylist())


@pytest.fixture
def flow(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    monkeypatch.setattr(starting_module, "FencedAttempts", lambda own, *_: own)
    return Deployed(spark, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("forced", [False, True], ids=["drained", "stopped in mid-batch"])
def test_a_query_ahead_of_the_own_one_ends_with_its_task(flow: Deployed, forced: bool) -> None:
    begun, over = threading.Event(), threading.Event()

    def hang(state: str) -> None:
        begun.set()
        over.wait(60)

    flow.guard = hang
    task = flow.task()
    errors: list[Exception] = []

    def live() -> None:
        try:
            task._live()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        assert begun.wait(120), errors
        # The other tasks of the worker may start.
        assert flow.preparing.acquire(timeout=5)
        flow.preparing.release()
        task.leave()
        if forced:
            task.force()
            time.sleep(0.2)
            assert task.stopping_seconds > 0.1
    finally:
        over.set()
        thread.join(60)
    assert not thread.is_alive()
    assert not errors
    assert not task.ran
    assert task.stopping_seconds == 0
    # The next start goes on there.
    flow.guard = lambda state: None
    flow.task()._live()
    assert flow.sums() == [0, 1, 3, 6, 10]
    assert not flow.told
