"""A process that has loaded what every run loads, and is forked for each: `python -m ops.launcher.preloaded_runs`.

`ops.launcher.run_launcher.PreloadedRunLauncher` starts it, writes a line of JSON a run to its standard input
(`{"run_id": ..., "instance": ...}`) and reads one back (`{"pid": ...}`, or `{"outdated": ...}`: the name of a file that has
changed since it was loaded; then the process ends, and another has to be started; or `{"failed": ...}`: why it could not be
forked). It ends when its input is closed and its
runs have ended. A run whose process dies is marked as failed here, within a second.

What a user may change while it is up is not loaded in it: `definitions`, the catalog's package and files of flows are
loaded by each run again.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster import DagsterInstance

PROJECT = Path(__file__).resolve().parents[2]
LOADED = (
    "dagster._cli.api",
    "dagster._core.definitions.repository_definition.repository_data_builder",
    "dagster._core.executor.in_process",
    "dagster._core.instance.factory",
    "dagster._core.storage.event_log.sqlite",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.root",
    "dagster._core.storage.runs.sqlite",
    "dagster._core.storage.schedules.sqlite",
    "ops.flow_definitions",
    "ops.launcher.run_launcher",
    "pipelines.nimbus.handover.warm",
    "pipelines.state.lake",
    "assets.events.plots",
    "sqlglot.dialects.spark",
    "sqlglot.optimizer.annotate_types",
    "upath.implementations.local",
)
"""What is imported before the first run: no part of it starts a thread, reads a catalog or a setting."""

# How often the ends of runs are looked for while nothing is asked, in seconds: as Dagster's own code server does.
_LOOKS_EVERY = 1.0
# How often a run looks whether another host asks for its end, in seconds: a look is one query.
_HEEDS_EVERY = 2.0


def sources(modules: Iterable[Any]) -> dict[Path, float]:
    """Return the project's files among loaded modules, and when they were changed last (seconds since 1970)."""
    times = {}
    for module in modules:
        name = getattr(module, "__file__", None)
        if name and (file := Path(name)).is_relative_to(PROJECT) and "site-packages" not in file.parts:
            times[file] = _changed(file)
    return times


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


class PreloadedRuns:
    """Forks a process a run.

    Args:
        asked: File descriptor of the requests.
        answers: File descriptor of the answers.
    """

    def __init__(self, asked: int, answers: int) -> None:
        self._asked, self._answers, self._rest = asked, answers, b""
        self._runs: dict[int, dict[str, Any]] = {}
        self._reporters: set[int] = set()
        self._sources = sources(list(sys.modules.values()))

    def serve(self) -> None:
        """Serve until the input is closed and every run has ended."""
        open_ = True
        while open_ or self._runs or self._reporters:
            ready, _, _ = select.select([self._asked] if open_ else [], [], [], _LOOKS_EVERY)
            if ready:
                open_ = self._read()
            self._reap()

    def _read(self) -> bool:
        more = os.read(self._asked, 65_536)
        self._rest += more
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            outdated = next((file for file, seen in self._sources.items() if _changed(file) != seen), None)
            if outdated is not None:
                self._answer({"outdated": str(outdated)})
                return False
            request = json.loads(line)
            try:
                pid = self._fork(request)
            except OSError as error:
                self._answer({"failed": str(error)})
                continue
            self._runs[pid] = request
            self._answer({"pid": pid})
        return bool(more)

    def _answer(self, answer: dict[str, Any]) -> None:
        # Whoever asked may have gone; the runs still have one who waits for them.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._answers, json.dumps(answer).encode() + b"\n")

    def _fork(self, request: dict[str, Any], *, died: int | None = None) -> int:
        """Fork a process that executes the run, or that reports its death. Nothing of the parent's goes on in the child."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.close(self._asked)
            os.close(self._answers)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = run(request) if died is None else report_death(request, died)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # Not sys.exit: what the parent has registered for its own end is not the child's.
            _leave(code)
        raise AssertionError

    def _reap(self) -> None:
        for pid in list(self._runs):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                request = self._runs.pop(pid)
                # A run that has failed exits with 0: it has reported that itself.
                if code := os.waitstatus_to_exitcode(status):
                    self._report(request, code)
        # Not waited for: one that hangs must not keep the next run from being forked.
        self._reporters -= {pid for pid in self._reporters if os.waitpid(pid, os.WNOHANG)[0]}

    def _report(self, request: dict[str, Any], code: int) -> None:
        try:
            self._reporters.add(self._fork(request, died=code))
        except OSError:
            # Dagster's run monitoring finds that the process is not there any more.
            traceback.print_exc()


def _leave(code: int) -> None:
    """End a forked process as Python ends one: wait for threads that are no daemons, then do what was registered for the end."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    os._exit(code)


def run(request: dict[str, Any]) -> int:
    """Do what `dagster api execute_run` does, without loading Dagster first. Returns the exit code."""
    from dagster import DagsterInstance

    from resources.dagster_internals import capture_interrupts, deserialize_value, execute_run_command

    with capture_interrupts(), DagsterInstance.from_ref(deserialize_value(request["instance"])) as instance:  # type: ignore[arg-type]
        threading.Thread(target=_heed_other_hosts, args=(instance, request["run_id"]), daemon=True).start()
        return int(execute_run_command()(request["run_id"], instance, lambda event: None, False))


def _heed_other_hosts(instance: DagsterInstance, run_id: str) -> None:
    """Interrupt this process once somebody on another host has asked for its end, which no signal reaches."""
    from ops.launcher.run_launcher import CANCEL_TAG

    while True:
        time.sleep(_HEEDS_EVERY)
        # A database that does not answer now is asked again; the run itself says that it is not there.
        with contextlib.suppress(Exception):
            run = instance.get_run_by_id(run_id)
            if run is None or run.is_finished:
                return
            if run.tags.get(CANCEL_TAG) == run_id:
                os.kill(os.getpid(), signal.SIGINT)
                return


def report_death(request: dict[str, Any], code: int) -> int:
    """Mark a run as failed whose process has died, with words on how. As Dagster's code server does for runs of its own."""
    from dagster import DagsterInstance

    from resources.dagster_internals import deserialize_value, get_run_crash_explanation

    with DagsterInstance.from_ref(deserialize_value(request["instance"])) as instance:  # type: ignore[arg-type]
        record = instance.get_run_by_id(request["run_id"])
        if record and not record.is_finished:
            said = get_run_crash_explanation(prefix=f"Run execution process for {record.run_id}", exit_code=code)
            instance.report_engine_event(said, record)
            instance.report_run_failed(record)
    return 0


def main() -> None:
    """Load, say so, serve."""
    # Ctrl-C in the terminal of `make ui` is for the runs; this process ends when its input is closed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever prints to standard output must not get between the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    asked = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for name in LOADED:
        importlib.import_module(name)
    runs = PreloadedRuns(asked, answers)
    os.write(answers, b'{"loaded": true}\n')
    runs.serve()


if __name__ == "__main__":
    main()
