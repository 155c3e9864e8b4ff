"""Runs that are forked from a process that has loaded all: they end, they can be cancelled, and their death is seen."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import dagster as dg
import psutil
import pytest
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.launcher.base import LaunchRunContext, WorkerStatus
from dagster._core.storage.dagster_run import DagsterRun

from ops.launcher import preloaded_runs, run_launcher
from ops.launcher.preloaded_runs import PreloadedRuns
from ops.launcher.run_launcher import CANCEL_TAG, PROCESS_TAG, PreloadedRunLauncher
from ops.web import ui
from pipelines.catalog import FlowSettings
from pipelines.execution.checkpoint.ownership import host_name
from pipelines.processes import ProcessIdentity
from tests.ops.launched_jobs import launched

PATIENCE = 120.0


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    home = ui.prepare_home(FlowSettings(tmp_path_factory.mktemp("launcher")))
    with dg.DagsterInstance.from_config(str(home)) as made:
        yield made


def _config(does: str) -> dict[str, object]:
    return {"ops": {"work": {"config": {"does": does}}}}


def _launch(instance: dg.DagsterInstance, does: str) -> str:
    run = instance.create_run_for_job(
        launched, run_config=_config(does), job_code_origin=dg.reconstructable(launched).get_python_origin()
    )
    # No workspace: the usual way would be refused.
    instance.run_launcher.launch_run(LaunchRunContext(run, None))
    return run.run_id


def _run(instance: dg.DagsterInstance, run_id: str) -> DagsterRun:
    found = instance.get_run_by_id(run_id)
    assert found is not None
    return found


def _until(reached: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def _ended(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    _until(lambda: _run(instance, run_id).is_finished, lambda: _run(instance, run_id))
    return _run(instance, run_id).status


def _server(instance: dg.DagsterInstance) -> int:
    launcher = instance.run_launcher
    assert isinstance(launcher, PreloadedRunLauncher)
    assert launcher._server is not None
    return launcher._server.pid


def _said(instance: dg.DagsterInstance, run_id: str) -> str:
    return "\n".join(one.user_message or one.message for one in instance.all_logs(run_id))


@pytest.mark.slow
def test_a_run_is_forked(instance: dg.DagsterInstance) -> None:
    run_id = _launch(instance, "end")
    assert _ended(instance, run_id) == dg.DagsterRunStatus.SUCCESS
    assert f"parent {_server(instance)}" in _said(instance, run_id)
    failed = _launch(instance, "fail")
    assert _ended(instance, failed) == dg.DagsterRunStatus.FAILURE
    assert f"parent {_server(instance)}" in _said(instance, failed), "one process for all runs"
    assert "unexpectedly" not in _said(instance, failed), "the run has told so itself"


@pytest.mark.slow
def test_a_run_is_cancelled(instance: dg.DagsterInstance) -> None:
    run_id = _launch(instance, "go_on")
    _until(lambda: "parent" in _said(instance, run_id), lambda: _said(instance, run_id))
    assert instance.run_launcher.check_run_worker_health(_run(instance, run_id)).status == WorkerStatus.RUNNING
    assert instance.run_launcher.terminate(run_id)
    assert _ended(instance, run_id) == dg.DagsterRunStatus.CANCELED
    assert not instance.run_launcher.terminate(run_id), "it is over"


@pytest.mark.slow
def test_a_run_is_cancelled_from_another_host(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """No signal gets there, and whether its process lives is not known here: unless the host is declared lost."""
    run_id = _launch(instance, "go_on")
    _until(lambda: "parent" in _said(instance, run_id), lambda: _said(instance, run_id))
    monkeypatch.setenv("TRIDELTA_GONE_HOSTS", host_name())
    monkeypatch.setenv("TRIDELTA_HOST", "elsewhere")
    here = _run(instance, run_id)
    assert instance.run_launcher.check_run_worker_health(here).status == WorkerStatus.NOT_FOUND
    monkeypatch.delenv("TRIDELTA_GONE_HOSTS")
    assert instance.run_launcher.check_run_worker_health(here).status == WorkerStatus.RUNNING
    assert instance.run_launcher.terminate(run_id)
    assert _ended(instance, run_id) == dg.DagsterRunStatus.CANCELED


@pytest.mark.slow
def test_a_run_that_dies_has_failed(instance: dg.DagsterInstance) -> None:
    run_id = _launch(instance, "die")
    assert _ended(instance, run_id) == dg.DagsterRunStatus.FAILURE
    assert "terminated by signal 9" in _said(instance, run_id)
    assert instance.run_launcher.check_run_worker_health(_run(instance, run_id)).status == WorkerStatus.NOT_FOUND


@pytest.mark.slow
def test_a_dead_server_is_replaced_and_its_runs_go_on(instance: dg.DagsterInstance) -> None:
    going_on = _launch(instance, "go_on")
    first = _server(instance)
    os.kill(first, signal.SIGKILL)
    _until(lambda: psutil.Process(first).status() == psutil.STATUS_ZOMBIE, lambda: first)
    assert _ended(instance, _launch(instance, "end")) == dg.DagsterRunStatus.SUCCESS
    assert _server(instance) != first
    assert not _run(instance, going_on).is_finished
    _until(lambda: "parent" in _said(instance, going_on), lambda: _said(instance, going_on))
    assert instance.run_launcher.terminate(going_on)
    assert _ended(instance, going_on) == dg.DagsterRunStatus.CANCELED


@pytest.mark.slow
def test_a_server_that_hangs_is_replaced(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    _ended(instance, _launch(instance, "end"))
    first = _server(instance)
    os.kill(first, signal.SIGSTOP)
    monkeypatch.setattr(run_launcher, "ANSWER_SECONDS", 0.2)
    answers = iter([0.2, 60.0])
    line_of = run_launcher._line_of
    monkeypatch.setattr(
        run_launcher,
        "_line_of",
        lambda server, seconds: line_of(server, next(answers) if seconds == 0.2 else seconds),
    )
    assert _ended(instance, _launch(instance, "end")) == dg.DagsterRunStatus.SUCCESS
    assert _server(instance) != first
    assert not psutil.pid_exists(first) or psutil.Process(first).status() == psutil.STATUS_ZOMBIE


def test_no_process_left_to_fork_is_told_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    runs = PreloadedRuns(asked, answer)

    def none_left(_: object) -> int:
        raise BlockingIOError(11, "no process left")

    monkeypatch.setattr(runs, "_fork", none_left)
    os.write(ask, b'{"run_id": "one"}\n')
    assert runs._read()
    assert "no process left" in json.loads(os.read(answered, 1000))["failed"]
    os.close(answered)
    os.write(ask, b'{"run_id": "two"}\n')
    assert runs._read(), "that nobody reads the answer ends nothing"
    for one in (asked, ask, answer):
        os.close(one)


def test_code_that_has_changed_is_not_run_from_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preloaded_runs, "PROJECT", tmp_path)
    file = tmp_path / "loaded.py"
    file.write_text("first")
    module = ModuleType("loaded")
    module.__file__ = str(file)
    monkeypatch.setitem(preloaded_runs.sys.modules, "loaded", module)
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    runs = PreloadedRuns(asked, answer)
    monkeypatch.setattr(runs, "_fork", lambda request: 42)
    os.write(ask, b'{"run_id": "one"}\n')
    assert runs._read()
    assert json.loads(os.read(answered, 1000)) == {"pid": 42}
    os.utime(file, (1, 1))
    os.write(ask, b'{"run_id": "two"}\n')
    assert not runs._read(), "the process ends"
    assert json.loads(os.read(answered, 1000)) == {"outdated": str(file)}
    for one in (asked, ask, answered, answer):
        os.close(one)


def test_the_tag_is_one_that_dagster_hides() -> None:
    from dagster._core.storage.tags import HIDDEN_TAG_PREFIX

    assert PROCESS_TAG.startswith(HIDDEN_TAG_PREFIX)


def _repeated(instance: dg.DagsterInstance, tags: dict[str, str]) -> DagsterRun:
    """A run that Dagster has made of an earlier one: it has all tags of that."""
    started = dg.DagsterRunStatus.STARTED
    return instance.create_run_for_job(launched, run_config=_config("end"), tags=tags, status=started)


@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_a_run_that_repeats_another_has_not_its_process(instance: dg.DagsterInstance, host: str) -> None:
    gone = {"host": host_name() if host == "here" else host, **ProcessIdentity(1, 1, "another boot").to_json()}
    run = _repeated(instance, {PROCESS_TAG: json.dumps({"run": "the one before", **gone})})
    assert instance.run_launcher.check_run_worker_health(run).status == WorkerStatus.RUNNING
    assert not instance.run_launcher.terminate(run.run_id), "Dagster's own way, which finds none"
    assert CANCEL_TAG not in _run(instance, run.run_id).tags


def test_a_run_whose_process_is_gone_is_not_being_cancelled(instance: dg.DagsterInstance) -> None:
    run = _repeated(instance, {})
    about = {"run": run.run_id, "host": host_name(), **ProcessIdentity(1, 1, "another boot").to_json()}
    instance.add_run_tags(run.run_id, {PROCESS_TAG: json.dumps(about)})
    run = _run(instance, run.run_id)
    assert instance.run_launcher.check_run_worker_health(run).status == WorkerStatus.NOT_FOUND
    assert not instance.run_launcher.terminate(run.run_id)
    assert _run(instance, run.run_id).status == dg.DagsterRunStatus.STARTED


def test_a_run_that_repeats_a_cancelled_one_goes_on(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _repeated(instance, {CANCEL_TAG: "the one before"})
    asked: list[str] = []

    def look(run_id: str) -> DagsterRun:
        asked.append(run_id)
        if len(asked) == 3:
            instance.add_run_tags(run_id, {CANCEL_TAG: run_id})
        return _run(instance, run_id)

    interrupted: list[int] = []
    monkeypatch.setattr(preloaded_runs, "_HEEDS_EVERY", 0.0)
    monkeypatch.setattr(preloaded_runs.os, "kill", lambda pid, _: interrupted.append(pid))
    preloaded_runs._heed_other_hosts(cast("dg.DagsterInstance", SimpleNamespace(get_run_by_id=look)), run.run_id)
    assert (interrupted, len(asked)) == ([os.getpid()], 3)


@pytest.mark.parametrize(
    ("named", "forked"), [("assets/mine.py", False), ("resources.py", False), ("flows/mine.py", True)]
)
def test_a_location_with_modules_of_our_names_is_not_forked(
    tmp_path: Path, instance: dg.DagsterInstance, named: str, forked: bool
) -> None:
    """They would be ours: the process that is forked has them loaded."""
    (tmp_path / named).parent.mkdir(exist_ok=True)
    (tmp_path / named).touch()
    origin = dg.reconstructable(launched).get_python_origin()
    pointer = ModuleCodePointer("mydefs", "defs", str(tmp_path))
    elsewhere = origin.repository_origin._replace(code_pointer=pointer)
    run = instance.create_run_for_job(
        launched, run_config=_config("x"), job_code_origin=origin._replace(repository_origin=elsewhere)
    )
    assert isinstance(instance.run_launcher, PreloadedRunLauncher)
    assert instance.run_launcher._takes(run) == forked
