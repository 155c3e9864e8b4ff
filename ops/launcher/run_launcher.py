"""A run launcher whose runs begin at once: they are forked from a process that has loaded Dagster and this project.

Dagster's own launcher starts a Python for each run, which imports Dagster and the project again: over a second, of a run
that hands its batch to a warm worker the greater part. `dagster.yaml` names this launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import logs
from pipelines.execution.checkpoint.ownership import gone_hosts, host_name
from pipelines.processes import ProcessIdentity
from resources.dagster_internals import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus, serialize_value

if TYPE_CHECKING:
    import psutil
    from dagster import DagsterRun

    from resources.dagster_internals import LaunchRunContext

logger = logs.logger(__name__)

PROCESS_TAG = ".dagster/tridelta_process"
"""A run's process: JSON of `run`, `host` and of its identity (so that a process id used again is not taken for it).
Dagster hides tags that begin so. It copies them when a run is executed again: a tag with the id of another run says nothing."""

CANCEL_TAG = ".dagster/tridelta_cancel"
"""Asks the process of a run to end, from another host: it looks for the tag with the run's id (`ops.launcher.preloaded_runs`)."""

LOAD_SECONDS = 120.0
"""So long the process may take to load; it needs seconds."""

ANSWER_SECONDS = 30.0
"""So long it may take to fork; it needs milliseconds. Every launch waits for it, so one that is stopped must not keep them."""

# delta-rs has an allocator with a thread of its own, which a forked process would be without.
_NO_THREADS = {"_RJEM_MALLOC_CONF": "background_thread:false"}


class PreloadedRunLauncher(DefaultRunLauncher):
    """Dagster's launcher of runs on this machine, with a process that is forked for each run.

    The process is started at the first launch and belongs to the one that launches (Dagster's daemon). A run goes the usual
    way, to the code location's server, where its code is of another Python, and where the process does not answer.
    """

    def __init__(self, inst_data: Any = None) -> None:
        super().__init__(inst_data)
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start the run's process.

        Raises:
            DagsterLaunchFailedError: The usual way has failed too.
        """
        run = context.dagster_run
        pid = self._fork(run) if self._takes(run) else None
        if pid is None:
            super().launch_run(context)
            return
        self._run_ids.add(run.run_id)
        identity = ProcessIdentity.of(pid)
        # A run that is over already has no process that anybody would ask for.
        if identity.process() is not None:
            about = {"run": run.run_id, "host": host_name(), **identity.to_json()}
            self._instance.add_run_tags(run.run_id, {PROCESS_TAG: json.dumps(about)})

    def terminate(self, run_id: str) -> bool:
        """Interrupt a run: it ends as soon as what it has begun is whole. False if there is no such process any more.

        A run on another host, of a Dagster with one database for several hosts, is asked through that.
        """
        run = self._instance.get_run_by_id(run_id) if self.has_instance else None
        if run is None or run.is_finished:
            return False
        if (about := _about(run)) is None:
            return bool(super().terminate(run_id))
        if about["host"] not in (host_name(), *gone_hosts()):
            self._instance.report_run_canceling(run)
            self._instance.add_run_tags(run_id, {CANCEL_TAG: run_id})
            return True
        process = _of(run)
        if process is None:
            self._instance.report_engine_event("The run's process is not there any more.", run, cls=self.__class__)
            return False
        self._instance.report_run_canceling(run)
        # As Dagster's own does it within the process: the run takes an interrupt for the wish to end.
        process.send_signal(signal.SIGINT)
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Check whether the process of a run lives; a run in the code location's server is watched there.

        Of another host nothing is known, unless it is declared gone (TRIDELTA_GONE_HOSTS).
        """
        about = _about(run)
        if about is None or about["host"] not in (host_name(), *gone_hosts()):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        if _of(run) is None:
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "its process is not there any more")
        return CheckRunHealthResult(WorkerStatus.RUNNING)

    def dispose(self) -> None:
        """Let the process end when its runs have ended; nobody waits for that."""
        with self._lock:
            self._give_up()
        super().dispose()

    # --- the process --------------------------------------------------------------------------------------------------

    def _takes(self, run: DagsterRun) -> bool:
        origin = run.job_code_origin
        return (
            origin is not None
            and origin.repository_origin.executable_path == sys.executable
            and not origin.repository_origin.container_image
            and not _hides_ours(origin.repository_origin.code_pointer)
        )

    def _fork(self, run: DagsterRun) -> int | None:
        """Return the run's process id; None if it must go the usual way."""
        request = {"run_id": run.run_id, "instance": serialize_value(self._instance.get_ref())}
        with self._lock:
            # A second time where the process was loaded before a file changed, or has been killed. A run that was forked by
            # one just before it died would be ignored by Dagster the second time: it has begun.
            for _ in range(2):
                try:
                    answer = self._ask(request)
                except TimeoutError as error:
                    answer = {"hangs": str(error)}
                    if self._server is not None:
                        # Its runs go on; what watches over them is `check_run_worker_health`.
                        self._server.kill()
                except (OSError, ValueError) as error:
                    answer = {"ended": str(error)}
                if "pid" in answer:
                    return int(answer["pid"])
                logger.info("runs are forked from a new process", **answer)
                self._give_up()
        return None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask for a fork. Raises TimeoutError if the process does not answer, ValueError or another OSError if it has ended."""
        server = self._server or self._start()
        assert server.stdin is not None
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        return _line_of(server, ANSWER_SECONDS)

    def _start(self) -> subprocess.Popen[bytes]:
        self._server = subprocess.Popen(
            [sys.executable, "-P", "-m", "ops.launcher.preloaded_runs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | _NO_THREADS,
        )
        if not _line_of(self._server, LOAD_SECONDS)["loaded"]:
            raise ValueError("not loaded")
        return self._server

    def _give_up(self) -> None:
        """Close its input: it ends after its runs."""
        server, self._server = self._server, None
        for end in (server.stdin, server.stdout) if server else ():
            with contextlib.suppress(OSError):
                assert end is not None
                end.close()


def _line_of(server: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    """Read the next line of a process. Raises TimeoutError if it says nothing for so long."""
    assert server.stdout is not None
    # Nothing is left in the reader's own buffer: a line is written at once, and only when it is asked for.
    if not select.select([server.stdout], [], [], seconds)[0]:
        raise TimeoutError(f"process {server.pid} has not answered for {seconds:g} s")
    answer: dict[str, Any] = json.loads(server.stdout.readline())
    return answer


def _about(run: DagsterRun) -> dict[str, Any] | None:
    """Return what its tag says of a run's process; None if it has none, or only that of the run which it repeats."""
    about: dict[str, Any] = json.loads(run.tags.get(PROCESS_TAG, "{}"))
    # A run that an earlier release has begun does not name itself.
    return about if about and ("run" not in about or about["run"] == run.run_id) else None


def _of(run: DagsterRun) -> psutil.Process | None:
    """Return the process of a run, if it is on this machine and lives."""
    about = _about(run)
    return ProcessIdentity.read(about).process() if about and about["host"] == host_name() else None


def _hides_ours(pointer: object) -> bool:
    """Return whether a code location has modules of its own under the names of ours that a forked process has loaded."""
    folder = getattr(pointer, "working_directory", None)
    if folder is None or Path(folder).resolve() == Path(__file__).resolve().parents[2]:
        return False
    ours = ("assets", "ops", "pipelines", "resources")
    return any((Path(folder) / name).is_dir() or (Path(folder) / f"{name}.py").is_file() for name in ours)
