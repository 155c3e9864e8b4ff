"""A query of a deployed flow that starts over begins behind those that write its channels. No Spark."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines import Lake
from pipelines.errors import PoisonBatchError, UnknownStateError
from pipelines.execution.checkpoint.engine_files import REFUSE, RESET, Checkpoint, Epoch
from pipelines.execution.report import BatchReport
from pipelines.nimbus import deployed
from pipelines.nimbus.errors import LeaseHeldError
from pipelines.nimbus.nimbus import Nimbus
from pipelines.nimbus.processes.task import Task
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.places.location import on_disk
from tests.nimbus.test_former_version import FLOW


class Reader(Task):
    """The query behind the window, whose channel is there. `began` is whether it has come to its start."""

    def __init__(self, root: Path, on_fresh: str) -> None:
        url, file, self.lake, self.began = f"sqlite:///{root}/registry.db", root / "f.yaml", Lake(root / "lake"), False
        file.write_text(FLOW.replace("WINDOWS", "channels"))
        with Nimbus(url, self.lake) as nimbus:
            nimbus.deploy(file=file, on_fresh_checkpoint=on_fresh)
        store = Store.migrated(url)
        flow = Registry(store).flows()[0]
        store.close()
        _, query = deployed.queries_of(flow)
        nothing: Any = SimpleNamespace()
        super().__init__(nothing, flow, query, deployed.load(flow, root))
        self._starting.made_ready = self._made_ready  # type: ignore[method-assign]
        for spout in self._starting._spouts:
            for name in spout.reads:
                log = on_disk(self.lake.channel_path(name)) / "_delta_log"
                log.mkdir(parents=True)
                (log / f"{0:020d}.json").write_text("{}")
        self.want(wanted=True)

    def begin(self, query: str) -> None:
        checkpoint = Checkpoint("f", self.lake.checkpoint_path("f", query))
        on_disk(checkpoint.spark).mkdir(parents=True)
        checkpoint.begin(Epoch(1, 0))
        (on_disk(checkpoint.spark) / "metadata").write_text("{}")

    def run(self) -> None:
        with suppress(InterruptedError):
            self._live()

    def _made_ready(self, checkpoint: Checkpoint, on_fresh: str | None) -> str:
        self.began = True
        raise InterruptedError

    def share(self, **things: object) -> None:
        """Have these from its worker."""
        vars(self._application).update(things)

    def waits(self, seconds: float) -> bool:
        """Return whether it still waits after some time."""
        self.join(seconds)
        return self.is_alive()


def test_it_waits_until_the_query_before_it_has_begun_anew(tmp_path: Path) -> None:
    reader = Reader(tmp_path, RESET)
    reader.start()
    assert reader.waits(0.5)
    reader.begin("s")
    assert not reader.waits(10)
    assert reader.began


def test_one_that_is_wanted_no_more_does_not_begin_before_it(tmp_path: Path) -> None:
    reader = Reader(tmp_path, RESET)
    reader.start()
    assert reader.waits(0.5)
    reader.want(wanted=False)
    assert not reader.waits(10)
    assert not reader.began


@pytest.mark.parametrize(("on_fresh", "begun"), [(REFUSE, ()), (RESET, ("s__1",))])
def test_one_that_does_not_start_over_does_not_wait(tmp_path: Path, on_fresh: str, begun: tuple[str, ...]) -> None:
    reader = Reader(tmp_path, on_fresh)
    for query in begun:
        reader.begin(query)
    reader.start()
    assert not reader.waits(10)
    assert reader.began


def test_a_lease_that_came_after_a_wait_is_no_failure(tmp_path: Path) -> None:
    task, answers = Reader(tmp_path, REFUSE), iter([LeaseHeldError("task:f/q", "h", "another", 5.0), "lease"])

    def take(*_: object) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    task.share(registry=SimpleNamespace(leases=SimpleNamespace(take=take)), holder="h", lease_seconds=1.0)
    task._leaving.set()
    task._take_lease()
    assert str(task.figures.last_error).startswith('LeaseHeldError: lease "task:f/q": another holds it')
    task._take_lease()
    assert task.figures.last_error is None


def test_rows_of_windows_in_the_batch_are_those_behind_the_last_batch(tmp_path: Path) -> None:
    task, runner = Reader(tmp_path, REFUSE), SimpleNamespace(window_rows=3)
    task._running = runner  # type: ignore[assignment]
    task._came_through(BatchReport("f", "q", 0, 0, 5, 0, (), 0.1))
    assert task.figures.to_json()["state_rows"] == 3
    runner.window_rows = None
    task._came_through(BatchReport("f", "q", 1, 0, 5, 0, (), 0.1))
    assert task.figures.to_json()["state_rows"] is None


def test_a_failure_begins_with_its_class(tmp_path: Path) -> None:
    """The handbook is searched for it."""
    task, told = Reader(tmp_path, REFUSE), list[dict[str, Any]]()
    task.share(registry=SimpleNamespace(tell=lambda _, what, detail: told.append({"event": what} | detail)))
    task.want(wanted=False)
    error = PoisonBatchError("f", 2, 3, "no", "quarantine/f", stream="s")
    task._failed(error)
    assert task.figures.last_error == f"PoisonBatchError: {error}"
    assert told == [
        {"event": "TASK_FAILED", "group": task.query.group, "reason": f"PoisonBatchError: {error}", "final": False},
    ]


@pytest.mark.parametrize("wanted", [True, False])
def test_it_waits_until_other_queries_have_made_the_tables_that_it_reads(tmp_path: Path, wanted: bool) -> None:
    task, asked = Reader(tmp_path, REFUSE), list[bool]()
    group: Any = SimpleNamespace(ready=False, waits_in_vain=False, awaited=("a",))

    def prepare(wait: bool) -> bool:
        asked.append(wait)
        group.ready = len(asked) == 2
        return group.ready

    group.prepare = prepare
    task.share(preparing=Lock())
    task.want(wanted=wanted)
    task._starting.wait_for_states(group)
    assert asked == [True, True] * wanted


def test_one_that_waits_for_long_shows_for_which_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.nimbus.processes.starting._QUIET_SECONDS", 0.0)
    task, shown = Reader(tmp_path, REFUSE), list[str | None]()
    group: Any = SimpleNamespace(ready=False, waits_in_vain=False, awaited=("a", "b"))

    def prepare(wait: bool) -> None:
        shown.append(task.figures.last_error)
        group.ready = len(shown) == 2

    group.prepare = prepare
    task.share(preparing=Lock())
    task._starting.wait_for_states(group)
    assert shown == [None, "waits for the tables of a, b"]
    assert task.figures.last_error is None


def test_queries_that_wait_for_each_other_say_so(tmp_path: Path) -> None:
    task = Reader(tmp_path, REFUSE)

    def prepare(wait: bool) -> None:
        assert not wait
        raise UnknownStateError("b", (), "lake")

    task.share(preparing=Lock())
    with pytest.raises(UnknownStateError):
        task._starting.wait_for_states(
            SimpleNamespace(ready=False, waits_in_vain=True, awaited=("b",), prepare=prepare)
        )  # type: ignore[arg-type]
