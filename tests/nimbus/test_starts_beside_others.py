"""A query whose start waits for another process holds up no other start of its worker. No Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.errors import LockedError
from pipelines.execution.checkpoint.engine_files import MARKER, Checkpoint
from pipelines.execution.checkpoint.ownership import OtherHostError
from pipelines.execution.events import openlineage
from pipelines.execution.events.openlineage import LineageRun
from pipelines.execution.runners import former_windows, stream
from pipelines.execution.runners.stopping import Stopping
from pipelines.execution.runners.stream import StreamOptions, StreamRunner
from pipelines.maintenance import repartition
from pipelines.maintenance.repartition import UnfinishedBatchError
from pipelines.nimbus.processes import starting as starting_module
from pipelines.nimbus.processes import task as task_module
from pipelines.nimbus.processes.former import FormerQuery
from pipelines.nimbus.processes.starting import Starting as StartOfQuery
from pipelines.nimbus.processes.starting import UnwantedError
from pipelines.places.location import on_disk
from tests.nimbus.test_failed_tasks import SILENT, Failing, Query, Runner

LOCKED = LockedError("f", "rewrite.lock", 1.0)
COMMITS = LockedError("f", "commit.lock", 5.0)


class Starting(Failing):
    """A task whose query starts, and ends when it is not wanted. `told` is what its flow's history says."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told = list[str]()
        super().__init__(root, monkeypatch)

    def _tell(self, _: object, what: str, detail: object) -> None:
        self.told.append(what)


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starting:
    return Starting(tmp_path, monkeypatch)


@pytest.fixture
def rewritten(task: Starting, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[Any]]:
    """Its flow's parallelism asks for other partitions. How long each try waited, and what the tries come to."""
    waits, answers = list[float](), list[Any]()

    def answer(*_: object, wait_seconds: float = 600.0, **__: object) -> Any:
        waits.append(wait_seconds)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    task._starting._query = replace(task.query, partitions=4)
    monkeypatch.setattr(Checkpoint, "has_state", True)
    monkeypatch.setattr(repartition, "partitions_of", lambda _: 2)
    monkeypatch.setattr(repartition, "repartition", answer)
    monkeypatch.setattr(starting_module, "LOCK_WAIT_SECONDS", 0.2)
    return waits, answers


def ends(task: Starting) -> None:
    task.leave()
    assert not task.waits(20)
    assert task.failure is None


def runs(task: Starting) -> None:
    until = time.monotonic() + 20
    while not task.ran:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_one_that_is_wanted_no_more_does_not_wait_for_a_start_that_hangs(task: Starting) -> None:
    with task._application.preparing:
        task.start()
        assert task.waits(0.3)
        ends(task)
    assert not task.ran
    assert not task.checkpoint.is_running()


@pytest.mark.parametrize("where", ["made_ready", "group", "start"])
def test_a_start_that_hangs_counts_as_one_that_does_not_stop(
    task: Starting, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    hangs, over = threading.Event(), threading.Event()
    owner = task.runner if where == "start" else task._starting
    goes_on = getattr(owner, where)

    def hang(*given: object, **named: object) -> object:
        hangs.set()
        assert over.wait(20)
        return goes_on(*given, **named)

    monkeypatch.setattr(owner, where, hang)
    task.start()
    assert hangs.wait(20)
    assert task.stopping_seconds == 0
    task.leave()
    task.force()
    time.sleep(0.05)
    assert task.stopping_seconds >= 0.05
    over.set()
    ends(task)
    assert task.stopping_seconds == 0
    # Who has read it beside the end would take the next start for one that has not stopped since.
    assert task._asked.forced_at == 0
    assert task.streaming.isActive is (where != "start")


def test_a_repartition_has_ten_minutes_more(
    task: Starting, rewritten: tuple[list[float], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, over, now = threading.Event(), threading.Event(), time.monotonic()

    def hang(*_: object, **__: object) -> object:
        hangs.set()
        assert over.wait(20)
        return SimpleNamespace(to_json=dict)

    monkeypatch.setattr(repartition, "repartition", hang)
    task.start()
    assert hangs.wait(20)
    task.leave()
    task.force()
    time.sleep(0.05)
    assert task.stopping_seconds == 0
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now + 680)
        assert 60 < task.stopping_seconds < 81
    over.set()
    ends(task)


def test_a_repartition_that_has_ended_well_is_not_stuck_behind_it(
    task: Starting, rewritten: tuple[list[float], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of its worker that comes before its thread has ended would restart the worker."""
    hangs, over, seen = threading.Event(), threading.Event(), list[float]()

    def hang(*_: object, **__: object) -> object:
        hangs.set()
        assert over.wait(20)
        return SimpleNamespace(to_json=dict)

    monkeypatch.setattr(repartition, "repartition", hang)
    task._application.registry.tell = lambda *_: seen.append(task.stopping_seconds)  # type: ignore[method-assign]
    task.start()
    assert hangs.wait(20)
    task.leave()
    task.force()
    time.sleep(1)
    over.set()
    ends(task)
    assert 0 < seen[0] < 0.5


@pytest.mark.parametrize("half_made", [True, False])
def test_so_has_a_roll_back_of_a_half_made_one(
    task: Starting, monkeypatch: pytest.MonkeyPatch, half_made: bool
) -> None:
    """It copies the whole state, too. A look for one that hangs is like any other start."""
    hangs, over = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        hangs.set()
        assert over.wait(20)
        raise InterruptedError

    if half_made:
        (on_disk(task.checkpoint.folder) / MARKER).write_text("{}")
    monkeypatch.setattr(task._starting, "made_ready", partial(StartOfQuery.made_ready, task._starting))
    monkeypatch.setattr(repartition, "recover", hang)
    task.start()
    assert hangs.wait(20)
    task.leave()
    task.force()
    time.sleep(0.1)
    assert (task.stopping_seconds == 0) is half_made
    with monkeypatch.context() as patch:
        now = time.monotonic()
        patch.setattr(time, "monotonic", lambda: now + 680)
        assert task.stopping_seconds > 60
    over.set()
    assert not task.waits(20)
    assert isinstance(task.failure, InterruptedError)


def test_one_that_stands_still_is_not_stuck_when_it_is_told_to_stop(task: Starting) -> None:
    task.force()
    time.sleep(0.05)
    assert task.stopping_seconds == 0
    task.start()
    runs(task)
    assert task.stopping_seconds == 0
    ends(task)


def test_a_stop_that_was_meant_for_the_query_before_ends_the_start_alone(task: Starting) -> None:
    """It comes between two looks of a task that is wanted: none but its next start would end it."""
    with task._application.preparing:
        task.start()
        assert task.waits(0.3)
        task.force()
        assert not task.waits(20)
    assert task.failure is None
    assert not task.ran
    again = threading.Thread(target=task._live, daemon=True)
    again.start()
    runs(task)
    task.leave()
    again.join(20)
    assert not again.is_alive()


def test_others_start_while_it_waits_for_a_compaction_before_its_partitions_change(
    task: Starting, rewritten: tuple[list[float], list[Any]]
) -> None:
    waits, answers = rewritten
    answers += [LOCKED, LOCKED, SimpleNamespace(to_json=dict)]
    task.figures.last_error = "before"
    task.start()
    assert task._application.preparing.acquire(timeout=5)
    task._application.preparing.release()
    runs(task)
    assert len(waits) == 3
    assert max(waits) <= 5
    assert task.told == ["REPARTITION"]
    assert task.figures.last_error == "before"
    ends(task)


def test_behind_a_backfill_it_runs_with_the_partitions_that_it_has(
    task: Starting, rewritten: tuple[list[float], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str]()
    monkeypatch.setattr(starting_module, "_REWRITE_WAIT_SECONDS", 0.3)
    rewritten[1].append(LOCKED)
    group: Any = SimpleNamespace(ready=True, topology=None, name="s__1")
    monkeypatch.setattr(task._starting, "group", lambda *_, **__: seen.append(task.figures.state) or group)
    task.figures.last_error = "before"
    task.start()
    runs(task)
    assert len(rewritten[0]) > 1
    assert task.told == ["REPARTITION_REFUSED"]
    # The history says it; who waits for something from here on says for what.
    assert seen == ["starting"]
    assert task.figures.last_error == "before"
    ends(task)


def test_what_a_start_has_waited_for_is_gone_with_it(
    task: Starting, rewritten: tuple[list[float], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten[1].append(LOCKED)
    task.figures.last_error = "before"
    task.start()
    until = time.monotonic() + 20
    while "locked" not in str(task.figures.last_error):
        assert time.monotonic() < until
        time.sleep(0.01)
    ends(task)
    assert task.figures.last_error == "before"


def test_so_are_the_tables_that_it_has_waited_for(task: Starting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting_module, "_QUIET_SECONDS", 0.0)
    hangs, prepared = threading.Event(), threading.Event()

    def prepare(*, wait: bool) -> None:
        if task.figures.last_error != "before":
            hangs.set()
            assert prepared.wait(20)

    group: Any = SimpleNamespace(ready=False, awaited=("t",), waits_in_vain=False, prepare=prepare)
    task.figures.last_error = "before"
    thread = threading.Thread(target=_unwanted, args=(task, group), daemon=True)
    thread.start()
    assert hangs.wait(20)
    assert task.figures.last_error == "waits for the tables of t"
    # Another start has its turn, which ends before this one's comes.
    task._application.preparing = threading.Lock()
    with task._application.preparing:
        prepared.set()
        time.sleep(0.3)
        task.leave()
        thread.join(20)
    assert not thread.is_alive()
    assert task.figures.last_error == "before"


def test_it_can_leave_while_it_waits_for_that(task: Starting, rewritten: tuple[list[float], list[Any]]) -> None:
    rewritten[1].append(LOCKED)
    task.start()
    assert task.waits(0.5)
    assert "locked" in str(task.figures.last_error)
    ends(task)
    assert not task.ran
    assert not task.told


@pytest.fixture
def held(task: Starting, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What the tries to start its query come to; then it starts."""
    errors, start = list[Exception](), task.runner.start

    def answer(**given: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return start(**given)

    monkeypatch.setattr(task.runner, "start", answer)
    monkeypatch.setattr(starting_module, "LOCK_WAIT_SECONDS", 0.2)
    return errors


def test_a_start_that_a_compaction_holds_up_is_tried_again_and_is_no_failure(
    task: Starting, held: list[Exception]
) -> None:
    """It has the locks of a flow that stands still for all of its run."""
    held += [COMMITS, COMMITS, COMMITS]
    task.start()
    assert task.waits(0.3)
    assert len(held) < 3
    assert (task.figures.state, task.figures.last_error) == ("starting", None)
    assert not task.ran
    assert not task._application.preparing.locked()
    assert not task.checkpoint.is_running()
    # It has not begun: one that is told to stop has nothing to stop.
    task.force()
    assert task.stopping_seconds == 0
    runs(task)
    assert not held
    assert not task.told
    ends(task)


def test_so_is_the_one_batch_before_its_partitions_change(
    task: Starting, rewritten: tuple[list[float], list[Any]], held: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten[1].extend([UnfinishedBatchError("f", "s__1", 4, 0)] * 2 + [SimpleNamespace(to_json=dict)])
    held.append(COMMITS)
    task.start()
    runs(task)
    assert task.told == ["REPARTITION"]
    ends(task)


def test_one_that_is_held_up_can_leave(task: Starting, held: list[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting_module, "LOCK_WAIT_SECONDS", 5.0)
    held += [COMMITS] * 9
    task.start()
    assert task.waits(0.3)
    began = time.monotonic()
    ends(task)
    assert time.monotonic() - began < 2
    assert not task.ran


def test_one_that_is_held_up_for_too_long_has_failed(
    task: Starting, held: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "_START_WAIT_SECONDS", 0.3)
    held += [COMMITS] * 9
    task.start()
    assert not task.waits(20)
    assert task.failure is COMMITS
    assert 0 < len(held) < 8


@pytest.mark.slow
def test_what_a_start_has_waited_for_before_it_is_held_up_does_not_count(
    task: Starting, rewritten: tuple[list[float], list[Any]], held: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has waited ten minutes for other partitions beside a long compaction, and runs with those that it has."""
    monkeypatch.setattr(starting_module, "_REWRITE_WAIT_SECONDS", 1.0)
    monkeypatch.setattr(task_module, "_START_WAIT_SECONDS", 1.0)
    rewritten[1].append(LOCKED)
    held += [COMMITS, COMMITS]
    task.start()
    while not task.told:
        assert task.waits(0.01)
    refused = len(rewritten[0])
    runs(task)
    # Nor does each further try ask for them, and wait as long again.
    assert len(rewritten[0]) == refused
    assert task.told == ["REPARTITION_REFUSED"]
    ends(task)
    # The next start does.
    task.want(wanted=True)
    again = threading.Thread(target=task._live, daemon=True)
    again.start()
    until = time.monotonic() + 20
    while len(task.told) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    task.leave()
    again.join(20)
    assert not again.is_alive()
    assert len(rewritten[0]) > refused
    assert task.told == ["REPARTITION_REFUSED"] * 2


def test_one_whose_checkpoint_is_another_hosts_has_failed_at_once(task: Starting, held: list[Exception]) -> None:
    error = OtherHostError("f", "c", "there", "it is there", here="here", hint="")
    held += [error, error]
    task.start()
    assert not task.waits(20)
    assert task.failure is error
    assert len(held) == 1


def test_nor_has_it_failed_for_those_who_follow_lineage(
    task: Starting, held: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()

    class Run(LineageRun):
        def __init__(self, *_: object) -> None:
            self._sending, self._ended, self._group = threading.Lock(), False, None  # type: ignore[assignment]

        def _event(self, kind: str, error: BaseException | None) -> str:
            return kind

    monkeypatch.setenv(openlineage.SWITCH, "1")
    monkeypatch.setattr(openlineage, "find_spec", lambda _: True)
    monkeypatch.setattr(openlineage, "LineageRun", Run)
    monkeypatch.setattr(openlineage, "_client", lambda: SimpleNamespace(emit=told.append))
    monkeypatch.setattr(task_module, "lineage_run", openlineage.lineage_run)
    held += [COMMITS, COMMITS]
    task.start()
    runs(task)
    ends(task)
    assert told == ["START", "ABORT"] * 2 + ["START", "COMPLETE"]


class Changing(Runner):
    """A runner whose start changes windows for good, and comes to something or not."""

    def __init__(self, task: Starting, outcome: Exception | None, *, changes: bool) -> None:
        super().__init__(task.checkpoint, task.streaming)
        self._outcome, self._changes = outcome, changes

    def start(self, **_: Any) -> Query:
        if self._changes:
            self.emptied_windows, self.events_wait = ("w",), 2  # type: ignore[assignment]
        if self._outcome is not None:
            raise self._outcome
        return self._query


CHANGES = ["WINDOWS_ANEW", "EVENTS_WAIT"]


def changing(task: Starting, monkeypatch: pytest.MonkeyPatch, outcome: Exception | None) -> None:
    """Its first start changes windows and comes to `outcome`; further ones find them changed."""
    runners = [Changing(task, outcome, changes=True)]

    def runner(*_: object) -> Runner:
        return runners.pop() if runners else Changing(task, None, changes=False)

    monkeypatch.setattr(task._starting, "runner", runner)
    monkeypatch.setattr(starting_module, "LOCK_WAIT_SECONDS", 0.2)


def test_what_a_start_has_made_of_windows_is_told_once_also_where_it_is_held_up_behind_that(
    task: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing(task, monkeypatch, COMMITS)
    task.start()
    runs(task)
    ends(task)
    assert task.told == CHANGES


def test_so_it_is_where_the_one_batch_before_its_partitions_change_has_changed_them(
    task: Starting, rewritten: tuple[list[float], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten[1].extend([UnfinishedBatchError("f", "s__1", 4, 0), SimpleNamespace(to_json=dict)])
    changing(task, monkeypatch, None)
    task.start()
    runs(task)
    ends(task)
    assert sorted(task.told) == sorted([*CHANGES, "REPARTITION"])


def test_so_it_is_where_the_start_fails(task: Starting, monkeypatch: pytest.MonkeyPatch) -> None:
    changing(task, monkeypatch, InterruptedError())
    task.start()
    assert not task.waits(20)
    assert isinstance(task.failure, InterruptedError)
    assert task.told == CHANGES


def test_a_registry_that_does_not_answer_is_told_later(task: Starting, monkeypatch: pytest.MonkeyPatch) -> None:
    changing(task, monkeypatch, None)
    tell, silent = task._application.registry.tell, [SILENT] * 2

    def blip(*given: Any) -> None:
        if silent:
            raise silent.pop()
        tell(*given)

    monkeypatch.setattr(task._application.registry, "tell", blip)
    task.start()
    assert not task.waits(20)
    assert task.failure is SILENT
    assert not task.told
    again = threading.Thread(target=task._live, daemon=True)
    task.ran = False
    task.streaming.isActive = True
    again.start()
    runs(task)
    task.leave()
    again.join(20)
    assert not again.is_alive()
    assert task.told == CHANGES


def test_a_version_before_that_is_held_up_reads_to_its_end_all_the_same(
    task: Starting, held: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind one that has failed the new version would begin."""
    held += [COMMITS, COMMITS]
    former: Any = task
    former.error = None
    monkeypatch.setattr(task, "run", lambda: FormerQuery.run(former))
    task.start()
    runs(task)
    ends(task)
    assert former.error is None


@pytest.mark.parametrize("where", ["reader", "ahead"])
def test_what_reads_ahead_of_a_start_waits_as_long_as_a_batch(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Nobody waits for it."""
    waits, topology = list[float](), SimpleNamespace(on_channels=lambda: None)

    @contextmanager
    def running(seconds: float) -> Iterator[None]:
        waits.append(seconds)
        yield

    class Ahead:
        def __init__(self, _: object, __: object, options: StreamOptions) -> None:
            waits.append(options.start_wait)
            self.stopping = Stopping()

        def start(self, **_: object) -> None:
            return None

    reader: Any = SimpleNamespace(epoch=None, running=running, spark=None)
    former = SimpleNamespace(checkpoint=reader, is_begun=lambda _: where == "ahead")
    answers = {
        "is_elsewhere": True, "ended_in": None, "state_files": None, "spout_groups": (), "_former": former,
        "_query": None, "channel_is_empty": where == "ahead", "recover": None,
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(former_windows, name, lambda *_, answer=answer: answer)
    group: Any = SimpleNamespace(topology=topology)
    options = StreamOptions(lock_wait_seconds=600.0, start_wait_seconds=5.0)
    own: Any = SimpleNamespace(folder=None, spark=None)
    runner: Any = Ahead(None, None, StreamOptions())
    waits.clear()
    assert former_windows.read_to_the_end(group, own, options, runner, lambda *_: None)
    assert waits == [600.0] * (1 if where == "ahead" else 2)


def test_a_deployed_start_waits_for_seconds_and_its_batches_for_minutes(
    task: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[StreamOptions]()
    monkeypatch.setattr(stream, "StreamRunner", lambda group, checkpoint, options: made.append(options))
    task.share(store=None, registry=SimpleNamespace(leases=None), admission=None)
    nothing: Any = None
    StartOfQuery.runner(task._starting, task.checkpoint, nothing, nothing, print)
    assert made[0].start_wait <= 5
    assert made[0].lock_wait_seconds == 600


@pytest.mark.parametrize(("given", "start"), [(None, 30.0), (0.5, 0.5)])
def test_a_start_waits_as_long_as_it_is_told(
    task: Starting, monkeypatch: pytest.MonkeyPatch, given: float | None, start: float
) -> None:
    waits, topology = list[float](), SimpleNamespace(name="f")
    group: Any = SimpleNamespace(lake=task.lake, spark=None, topology=topology, name="s", windows=None)

    def epochs(*given: Any) -> Any:
        waits.append(given[-1])
        return SimpleNamespace(check=print)

    def note(_: object, wait: float, *__: object, **___: object) -> tuple[str, ...]:
        waits.append(wait)
        return ()

    for name in ("PoisonRows", "Counters"):
        monkeypatch.setattr(stream, name, lambda *_: None)
    monkeypatch.setattr(stream, "Epochs", epochs)
    monkeypatch.setattr(stream, "end_windows", lambda _, *given: note(*given))
    runner = StreamRunner(group, task.checkpoint, StreamOptions(start_wait_seconds=given, version="1"))
    runner._change_windows(lambda: None)
    runner._windows = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setattr(stream, "WindowsChange", lambda _: SimpleNamespace(take_over=note, change=note))
    runner._change_windows(lambda: None)
    monkeypatch.setattr(runner, "read_ahead", lambda _: True)
    monkeypatch.setattr(runner, "_change_windows", _stop)
    with pytest.raises(InterruptedError):
        runner.start(on_fresh="refuse", trigger_seconds=None)
    assert waits == [start] * 4


def _unwanted(task: Starting, group: Any) -> None:
    with pytest.raises(UnwantedError):
        task._starting.wait_for_states(group)


def _stop(_: object) -> None:
    raise InterruptedError
