"""A deployment of its own for a test: supervisors and workers as real processes, files that come in, and what must come out."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from pipelines import Lake
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.nimbus import Nimbus
from pipelines.nimbus.processes.life import Life
from pipelines.nimbus.status import TaskStatus
from pipelines.places.location import Place
from tests.nimbus.deployed_flows import write
from tests.nimbus.undisturbed import TABLES, differences

PROJECT = Path(__file__).resolve().parents[2]

SHORT = {
    "PORTS": "6900,6901",
    "BEAT_SECONDS": "0.5",
    # On two busy cores a process that starts others may not come to its turn for seconds.
    "LEASE_SECONDS": "12",
    "TASK_TIMEOUT_SECONDS": "20",
    "TASK_LAUNCH_SECONDS": "60",
    "SUPERVISOR_TIMEOUT_SECONDS": "20",
    "MONITOR_SECONDS": "1",
    "STOP_SECONDS": "30",
    "BACK_OFF_SECONDS": "1",
    "WORKER_MEMORY_MB": "1024",
    # One more Spark for the two cores of a test; what it does has tests of its own.
    "STANDBY": "0",
}
"""Nimbus' settings in tests: what takes half a minute in earnest takes seconds here."""

PATIENCE = 300.0
"""Seconds that a test waits at most for anything: a machine may be very busy."""


class Deployment:
    """Nimbus with a home of its own, in this process and in others. Use it in `with`: at the end nothing of it is left.

    Args:
        home: Its folder.
        registry: URL of the registry; by default a SQLite file in the home.
        supervisors: Their ids. Several on this machine are as good as several hosts.
        flows: The module of the flows.
        lake, data: Where these are; by default in the home.
        environment: More variables for supervisors and workers.
        settings: Nimbus' settings that are not those of `SHORT`, by the names of their variables.
    """

    def __init__(
        self,
        home: Path,
        *,
        registry: str | None = None,
        supervisors: Sequence[str] = ("one",),
        flows: str = "tests.nimbus.deployed_flows",
        lake: Place | None = None,
        data: Place | None = None,
        environment: dict[str, str] | None = None,
        **settings: object,
    ) -> None:
        self.home, self._names = home.absolute(), tuple(supervisors)
        self._lake = lake or self.home / "lake"
        self.data: Place = data or self.home / "data"
        chosen = SHORT | {name.upper(): str(value) for name, value in settings.items()}
        self.environment = {
            "TRIDELTA_HOME": str(self.home),
            "TRIDELTA_LAKE": str(lake or ""),
            "TRIDELTA_FLOWS": flows,
            "PYTHONPATH": str(PROJECT),
            "TRIDELTA_REGISTRY": registry or f"sqlite:///{self.home}/nimbus/registry.db",
            # The first compiler only: workers start fast here, and never run long enough for the optimising one.
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
            **{f"TRIDELTA_NIMBUS_{name}": value for name, value in chosen.items()},
            **(environment or {}),
        }
        self.files: dict[str, int] = {}
        """How many files each source has been given."""
        self.fed: tuple[str, ...] = ()
        """Flows that a test feeds; for tests that share a deployment."""
        self._supervisors: dict[str, subprocess.Popen[bytes]] = {}
        self._before: dict[str, str | None] = {}
        self._feeding = threading.Lock()

    def __enter__(self) -> Deployment:
        self._before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            self.nimbus = Nimbus.from_environment()
            for name in self._names:
                self.start_supervisor(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            sys.stderr.write(self.told())
        try:
            if hasattr(self, "nimbus"):
                self.nimbus.close()
            end_all(self.home, self._supervisors.values())
        finally:
            for name, value in self._before.items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)

    # --- what goes in, what comes out -------------------------------------------------------------------------------

    @property
    def lake(self) -> Lake:
        return Lake(self._lake)

    def feed(self, *flows: str, files: int = 1) -> None:
        """Give each of the flows so many more files."""
        with self._feeding:
            for flow in flows:
                for _ in range(files):
                    number = self.files.get(flow, 0)
                    write(self.data / flow, number)
                    self.files[flow] = number + 1

    @contextlib.contextmanager
    def feeding(self, *flows: str, every: float = 2.0, slower: float = 1.5) -> Iterator[None]:
        """Files keep coming, `slower` each time: how many batches a test makes must not grow with what a start takes."""

        def keep(ended: threading.Event) -> None:
            seconds = every
            while not ended.wait(seconds):
                self.feed(*flows)
                seconds *= slower

        with meanwhile(keep):
            yield

    def differences(self, *flows: str) -> list[str]:
        """In what the tables differ now from an undisturbed run over the same files."""
        return [line for flow in flows or self.files for line in differences(self.lake, flow, range(self.files[flow]))]

    def settles(self, *flows: str, seconds: float = PATIENCE) -> None:
        """All rows come in, and each once."""
        wait_for(lambda: not self.differences(*flows), seconds, lambda: "\n".join(self.differences(*flows)), every=0.7)

    def ends_well(self, *flows: str) -> None:
        """All rows are in; drained, every query has finished what it has begun, and the tables are the same."""
        chosen = flows or tuple(self.files)
        self.settles(*chosen)
        for flow in chosen:
            if self.nimbus.flow(flow).status == "ACTIVE":
                self.nimbus.deactivate(flow)
        for flow in chosen:
            self.nimbus.wait(flow, until="stopped", seconds=PATIENCE)
            self.is_drained(flow)
        assert self.differences(*chosen) == []

    def is_drained(self, flow: str) -> None:
        """No batch of the flow is begun and not finished; its commits came in order, each once."""
        for task in self.nimbus.flow(flow).tasks:
            own = Checkpoint(flow, self.lake.checkpoint_path(flow, task.group))
            epoch, done = own.epoch, own.finished_batches()
            assert epoch is not None
            # Spark may have planned one more, before it heard that the query drains; nothing of it has been opened.
            opened = own.attempts().get(f"{task.group}/{epoch.number}")
            begun = [txid for txid in opened if txid >= epoch.txid(done)]
            assert begun == [], f"{flow}/{task.group} stands at {done} batches, and has begun {begun}"
        for table in TABLES.get(flow, ()):
            txids = [commit.txid or 0 for commit in self.lake.state(table).commits.batches()]
            assert txids == sorted(set(txids)), f"{table}: commits of txids {txids}"

    # --- flows ------------------------------------------------------------------------------------------------------

    def submit(self, *flows: str, trigger_seconds: float = 0.3, **more: Any) -> None:
        """Deploy flows, each with a first file."""
        for flow in flows:
            if not self.files.get(flow):
                self.feed(flow)
            self.nimbus.submit(flow, trigger_seconds=trigger_seconds, **more)

    def runs(self, *flows: str) -> None:
        """Wait until they run."""
        for flow in flows:
            self.nimbus.wait(flow, until="running", seconds=PATIENCE)

    def next_batch(self, flow: str, pid: int | None = None) -> None:
        """Feed a flow and wait for a batch of it; by another process than `pid` if one is given."""
        before = self.batches(flow)
        self.feed(flow)

        def come() -> bool:
            now = self.nimbus.flow(flow)
            # A place without a beat tells neither batch nor process: what Spark has marked as done tells.
            return self.batches(flow) > before and all(task.pid not in (None, pid) for task in now.tasks)

        wait_for(come, PATIENCE, lambda: f"{self.batches(flow)} batches, {before} before; {self.nimbus.flow(flow)}")

    def batches(self, flow: str) -> int:
        """How many batches all queries of a flow have finished."""
        groups = [task.group for task in self.nimbus.flow(flow).tasks]
        return sum(Checkpoint(flow, self.lake.checkpoint_path(flow, one)).finished_batches() for one in groups)

    def task(self, flow: str, number: int = 1) -> TaskStatus:
        """A query of a flow."""
        return self.nimbus.flow(flow).tasks[number - 1]

    # --- processes --------------------------------------------------------------------------------------------------

    def start_supervisor(self, name: str, **environment: str) -> None:
        """Start one; its workers outlive it."""
        folder = self.home / "out"
        folder.mkdir(exist_ok=True)
        with (folder / f"{name}.out").open("ab") as out:
            self._supervisors[name] = subprocess.Popen(
                [sys.executable, "-m", "pipelines.nimbus.processes.supervisor", "--id", name],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=PROJECT,
                env=os.environ | self.environment | environment,
            )

    def supervisor(self, name: str = "one") -> psutil.Process:
        """A supervisor's process."""
        return psutil.Process(self._supervisors[name].pid)

    def die(self) -> None:
        """SIGKILL for all of it at once, as when a host goes down."""
        end_all(self.home, self._supervisors.values())

    def kill_supervisor(self, name: str = "one") -> None:
        """SIGKILL, for it alone."""
        self._supervisors[name].kill()
        self._supervisors[name].wait()

    def worker(self, supervisor: str = "one", port: int = 6900) -> psutil.Process | None:
        """A slot's worker process."""
        record = Life(self.nimbus.settings, supervisor, port).read()
        return record.process() if record else None

    def worker_of(self, flow: str, task: int = 1) -> psutil.Process:
        """The worker that runs a query."""
        pid = wait_for(lambda: self.task(flow, task).pid, PATIENCE, lambda: f"{flow} has no worker")
        return psutil.Process(int(str(pid)))

    def log(self, supervisor: str = "one") -> list[dict[str, Any]]:
        """What the workers of a supervisor have logged, slot by slot."""
        folders = [self.nimbus.settings.worker_folder(supervisor, port) for port in self.nimbus.settings.ports]
        files = [folder / "worker.jsonl" for folder in folders if (folder / "worker.jsonl").is_file()]
        return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]

    def told(self) -> str:
        """What all processes have said, for a test that has failed."""
        found = []
        for file in sorted([*self.home.glob("nimbus/**/*.jsonl"), *self.home.glob("nimbus/**/*.out")]):
            found += [f"--- {file}", *file.read_text("utf-8", errors="replace").splitlines()[-40:]]
        return "\n".join(found) + "\n"


@contextlib.contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run work in a thread beside the block, whose end the event tells it."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def resident_mb(home: Path) -> float:
    """Return the resident memory of all processes of a home, in MB."""
    total = 0
    for one in processes_of(home):
        with contextlib.suppress(psutil.Error):
            total += one.memory_info().rss
    return total / 1024**2


def jvm_of(worker: psutil.Process) -> psutil.Process:
    """The JVM of a worker."""
    found = wait_for(
        lambda: next((c for c in worker.children() if "java" in c.name()), None), PATIENCE, lambda: "no JVM"
    )
    assert isinstance(found, psutil.Process)
    return found


def wait_for(look: Callable[[], object], seconds: float, seen: Callable[[], str], every: float = 0.2) -> object:
    """The first answer that is not empty; looked for `every` so many seconds.

    Raises:
        AssertionError: None came in time; with what is seen then.
    """
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, f"not within {seconds:g} s: {seen()}"
        time.sleep(every)
    return found


def end_all(home: Path, supervisors: Any = ()) -> None:
    """SIGKILL for every process of a home; supervisors first, for they start workers."""
    for supervisor in supervisors:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(supervisor.pid, signal.SIGKILL)
        supervisor.wait()
    for _ in range(5):
        left = processes_of(home)
        if not left:
            return
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left, timeout=5)
    raise AssertionError(f"processes of {home} cannot be ended: {processes_of(home)}")


def processes_of(home: Path) -> list[psutil.Process]:
    """Processes that were started for a home: the variable is handed on from supervisor to worker to JVM."""
    found, tests = [], _of_the_tests()
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = one.pid not in tests and one.environ().get("TRIDELTA_HOME") == str(home)
            if ours and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def _of_the_tests() -> set[int]:
    """This process and its Spark, which all tests of the run share: it may have been started while a home was set."""
    own = psutil.Process()
    ours = {own.pid}
    for child in own.children():
        # One that has ended, and that nobody has waited for yet, has no command line.
        with contextlib.suppress(psutil.Error):
            if "pyspark-shell" in child.cmdline():
                ours |= {child.pid, *(one.pid for one in child.children(recursive=True))}
    return ours
