"""The standby: a process with a Spark that is up and has run a small flow, and takes the slot of a worker that is gone.

Most of what a restart takes is the start of Spark and a first batch. A supervisor keeps one such process; when a worker dies, or
ends for a new version, the standby gets the order to take its slot, and another one is started later. It knows no flow, has
imported no module of TRIDELTA_FLOWS, and asks the registry for nothing before its order. If what it has imported, such as
the catalog's own flows, has changed by then, it leaves the slot to another process. The order comes on its standard input.
It ends with that: nobody has to look for the standby of a supervisor that is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines import logs
from pipelines.bounds import own_master
from pipelines.errors import TrideltaError
from pipelines.nimbus.processes.back_off import pause_after
from pipelines.nimbus.processes.imported import ImportedCode
from pipelines.nimbus.processes.life import SPARK_GONE, STANDBY, Life, LifeRecord
from pipelines.nimbus.processes.slot_spark import jvm, kill_jvm, most_partitions, spark_of
from pipelines.places.location import Location
from pipelines.private import private_folder, private_opener
from pipelines.processes import ProcessIdentity
from pipelines.surroundings import any_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.nimbus.registry.records import DeployedFlow
    from pipelines.nimbus.settings import NimbusSettings

logger = logs.logger(__name__)

# What has just been started has the processors for itself: so long after the last start of a worker none is started here.
_CALM_SECONDS = 10.0
# So long it is waited for the end of one that was killed; one that hangs in the kernel does not end by that.
_KILLED_SECONDS = 2.0


def fits(flows: Iterable[DeployedFlow]) -> bool:
    """Return whether flows run in a Spark application of the host's common settings."""
    own = own_master()
    for flow in flows:
        if flow.settings.get("master") or flow.settings.get("spark"):
            return False
        most = most_partitions([flow])
        if most and (own != "local[*]" or most > len(os.sched_getaffinity(0))):
            return False
    return True


def schemes_of(lakes: Iterable[str]) -> frozenset[str]:
    """Return on which kinds of stores lakes lie; a session reads those alone that were named before it started."""
    return frozenset(
        place.scheme for lake in lakes if lake and isinstance(place := any_folder(lake, "the lake"), Location)
    )


class Standby:
    """A supervisor's standby.

    Args:
        start: Starts a process of a supervisor from a command and the file of its output; its standard input is a pipe.
        command: The command of a standby, from supervisor, life and lakes.
    """

    def __init__(
        self,
        settings: NimbusSettings,
        supervisor: str,
        start: Callable[[list[str], Path], subprocess.Popen[bytes]],
        command: Callable[[str, str, Sequence[str]], list[str]] | None = None,
    ) -> None:
        self._settings, self._supervisor = settings, supervisor
        self._start_process, self._command = start, command or standby_command
        self._life_file = Life(settings, supervisor, STANDBY)
        self._child: subprocess.Popen[bytes] | None = None
        self._life = ""
        self._schemes: frozenset[str] = frozenset()
        self._touched, self._heard_at = 0.0, 0.0
        """The time of its last beat that was seen, and when it was seen; 0: it is not up yet."""
        self._failures, self._again_at = 0, 0.0

    @property
    def is_up(self) -> bool:
        """Return whether it has reported that it is ready, and beats."""
        self._listen()
        record = self._life_file.read()
        return self._child is not None and record is not None and record.life == self._life and not self._is_silent

    def _listen(self) -> None:
        # Both of one file: that of an earlier supervisor's standby, which gets up late, is no beat of this one.
        record = self._life_file.read()
        if record is not None and record.life == self._life and record.seen != self._touched:
            self._touched, self._heard_at = record.seen, time.monotonic()

    @property
    def _is_silent(self) -> bool:
        patience = self._settings.lease_seconds if self._touched else self._settings.task_launch_seconds
        return time.monotonic() - self._heard_at > patience

    def keep(self, flows: Callable[[], Sequence[DeployedFlow]], last_start: float) -> subprocess.Popen[bytes] | None:
        """Do a round: see that it lives, and start it if there is none. Returns the process that was started.

        Args:
            flows: Gives all that are deployed: their lakes must be within its reach.
            last_start: When a worker was started last, on the monotonic clock.
        """
        self._listen()
        killed = self._child is not None and self._is_silent
        if self._child is not None and killed:
            logger.warning("standby killed", pid=self._child.pid, reason="it does not beat")
            # Its JVM, too, which may stand still as well.
            LifeRecord(self._life, ProcessIdentity.of(self._child.pid)).kill()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_KILLED_SECONDS)
        if self._child is not None and (killed or self._child.poll() is not None):
            self._failures += 1
            pause = pause_after(self._failures, self._settings.back_off_seconds)
            logger.warning("standby ended", pid=self._child.pid, code=self._child.returncode, again_in_seconds=pause)
            self._again_at = time.monotonic() + pause
            self._forget()
        if self._child is not None or time.monotonic() < max(self._again_at, last_start + _CALM_SECONDS):
            return None
        lakes = sorted({str(flow.version.content.definition["lake"]) for flow in flows()})
        self._life, self._schemes = uuid.uuid4().hex[:12], schemes_of(lakes)
        self._life_file.forget()
        out = self._settings.supervisor_folder(self._supervisor) / "standby.out"
        self._child = self._start_process(self._command(self._supervisor, self._life, lakes), out)
        self._touched, self._heard_at = 0.0, time.monotonic()
        logger.info("standby started", pid=self._child.pid)
        return self._child

    def take(self, port: int, life: str, flows: Sequence[DeployedFlow]) -> subprocess.Popen[bytes] | None:
        """Give it to a slot. Returns its process; None: there is none, or its Spark is not what the slot's flows ask for.

        Args:
            port, life: The arguments of a worker there.
            flows: Those that run in the slot.
        """
        lakes = [str(flow.version.content.definition["lake"]) for flow in flows]
        if not self.is_up or not fits(flows) or not schemes_of(lakes) <= self._schemes:
            return None
        child = self._child
        assert child is not None
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps({"port": port, "life": life}).encode() + b"\n")
            child.stdin.close()
        except OSError:
            # It has died in this moment, which the next round sees.
            return None
        self._failures = 0
        self._forget()
        return child

    def end(self) -> None:
        """Let it end: with its supervisor it has nothing left to wait for."""
        if self._child is not None and self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.close()

    def _forget(self) -> None:
        self.end()
        self._child = None
        self._life_file.forget()


def standby_command(supervisor: str, life: str, lakes: Sequence[str]) -> list[str]:
    """Return the command of a standby."""
    command = [sys.executable, "-P", "-m", "pipelines.nimbus.processes.worker", "--supervisor", supervisor]
    return [*command, "--standby", *(part for lake in lakes for part in ("--lake", lake)), "--life", life]


# --- the process ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlotOrder:
    """The order to a standby: the slot that it takes, and the life under which it does.

    Attributes:
        port, life: As the command of a worker names them.
    """

    port: int
    life: str


def stand_by(
    settings: NimbusSettings, supervisor: str, life: str, lakes: Sequence[str], imported: ImportedCode
) -> tuple[SlotOrder, SparkSession]:
    """Have Spark up, and wait for an order; what is printed from then on goes to the slot's file."""
    from pipelines.nimbus.telemetry.log_files import configure

    take_back = configure(settings.supervisor_folder(supervisor) / "standby.jsonl", settings.log_megabytes, 1)
    try:
        spark = spark_of(settings, f"{supervisor} standby", lakes=lakes)
        warm_up(spark)
        imported.look()
        ordered = threading.Event()
        threading.Thread(target=_end_with_jvm, args=(ordered,), name="jvm", daemon=True).start()
        logger.info("standby up", supervisor=supervisor, pid=os.getpid())
        order = wait_for_order(settings, supervisor, life)
        ordered.set()
    except TrideltaError as error:
        logger.error("standby cannot run", reason=str(error), kind=type(error).__name__)
        kill_jvm()
        sys.exit(1)
    if order is None:
        kill_jvm()
        os._exit(0)
    take_back()
    folder = settings.worker_folder(supervisor, order.port)
    private_folder(folder)
    with open(folder / "worker.out", "ab", opener=private_opener) as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    return order, spark


def _end_with_jvm(ordered: threading.Event) -> None:
    jvm().wait()
    if not ordered.is_set():
        os._exit(SPARK_GONE)


def wait_for_order(settings: NimbusSettings, supervisor: str, life: str) -> SlotOrder | None:
    """Beat until the supervisor tells what to do. None: it is gone."""
    file, ordered = Life(settings, supervisor, STANDBY), threading.Event()
    file.begun(life)

    def beat() -> None:
        while not ordered.wait(settings.beat_seconds):
            written = file.read()
            if written is not None and written.life != life:
                # A standby of an earlier supervisor's got up late, and ends. That there is none means that this one is taken.
                with suppress(OSError):
                    file.begun(life)
            file.touch()

    threading.Thread(target=beat, name="standby", daemon=True).start()
    line = sys.stdin.readline()
    ordered.set()
    if not line.endswith("\n"):
        return None
    order = json.loads(line)
    return SlotOrder(int(order["port"]), str(order["life"]))


def warm_up(spark: SparkSession) -> None:
    """Run a small flow over two files, in folders that go afterwards: classes are loaded, code is compiled, Python is forked."""
    from pipelines import Lake, Runtime
    from pipelines.execution.events.openlineage import SWITCH
    from pipelines.sources import JsonFiles
    from pipelines.trident import Count, DeltaState, RowFunction, Sum, TridentTopology

    # Nobody's lineage knows of it.
    switch = os.environ.pop(SWITCH, None)
    try:
        with tempfile.TemporaryDirectory(prefix="tridelta-standby-", ignore_cleanup_errors=True) as folder:
            source = Path(folder, "in")
            source.mkdir()
            topology = TridentTopology("standby")
            rows = topology.new_stream("rows", JsonFiles(source, "k string, n bigint", max_files_per_batch=1))
            rows = rows.each("n", RowFunction(_next, ("bigint",)), "next")
            rows.partition_persist(DeltaState("rows"))
            rows.group_by("k").persistent_aggregate(DeltaState("sums"), [Count("rows"), Sum("n", "sum")])
            for number in range(2):
                (source / f"{number}.json").write_text('{"k": "a", "n": 1}\n')
                Runtime(spark, Lake(Path(folder, "lake"))).catch_up(topology)
    finally:
        if switch is not None:
            os.environ[SWITCH] = switch


def _next(n: int) -> int:
    return n + 1
