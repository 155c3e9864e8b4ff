"""The supervisor: one process a host that beats, leads if nobody else does, and keeps the workers of its slots running.

`tridelta supervisor` or `python -m pipelines.nimbus.processes.supervisor`. It needs no Spark. Workers outlive it, and the next
one finds them by their files.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines import logs
from pipelines.bounds import own_master, shown
from pipelines.errors import TrideltaError
from pipelines.execution.checkpoint.ownership import host_name
from pipelines.nimbus.errors import LeaseHeldError, RegistryError, RegistryLeaseLostError, SettingError
from pipelines.nimbus.processes.back_off import pause_after
from pipelines.nimbus.processes.leader import Leader
from pipelines.nimbus.processes.life import SUPERVISOR, Life, LifeRecord, end, holder_of, may_live
from pipelines.nimbus.processes.standby import Standby
from pipelines.nimbus.registry.leases import Lease
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import PREFIX, WARM, NimbusSettings, registry_url
from pipelines.private import private_folder, private_opener
from pipelines.processes import ProcessIdentity

if TYPE_CHECKING:
    from pipelines.nimbus.telemetry.metrics import MetricsServer

logger = logs.logger(__name__)

_LAST_THREADS_SECONDS = 2.0
_RECOVERED_SECONDS = 60.0
# A supervisor's own lease, at least; where beats are seldom, as long as three of them. Who finds it held waits so long for
# a dead one.
_OWN_LEASE_SECONDS = 10.0
# So long a supervisor that starts waits for a registry that does not answer.
_REGISTRY_SECONDS = 60.0


@dataclass
class Slot:
    """A slot and the worker process in it.

    Attributes:
        record: The last process that had it.
        started_at: When it was started, on the monotonic clock; 0 for one that was found.
        failures: How often in a row it has died.
        again_at: Not to be started before, on the monotonic clock.
        touched, heard_at, beats: The last beat seen in its file, when it was seen (monotonic clock), and how many were.
        marked, busy_at: The last mark of a request under way that was seen, and when (monotonic clock).
        empty_since: Since when there is nothing to run, on the monotonic clock; None while there is, a request too.
    """

    port: int
    record: LifeRecord | None = None
    started_at: float = 0.0
    failures: int = 0
    again_at: float = 0.0
    touched: int = 0
    heard_at: float = 0.0
    beats: int = 0
    marked: int = 0
    busy_at: float = 0.0
    empty_since: float | None = None


class SupervisorProcess:
    """Keeps the slots of a host.

    Args:
        name: Its id in the registry; by default the host's name.
        command: The command of a worker, from supervisor, port and life.
        standby: The command of a standby, from supervisor, life and lakes.
    """

    def __init__(
        self,
        store: Store,
        settings: NimbusSettings,
        name: str | None = None,
        *,
        command: Callable[[str, int, str], list[str]] | None = None,
        standby: Callable[[str, str, Sequence[str]], list[str]] | None = None,
    ) -> None:
        self._store, self._settings, self._command = store, settings, command or worker_command
        self.name = chosen_name(name)
        self._registry, self._places = Registry(store), Places(store)
        self._holder = f"supervisor:{self.name}:{uuid.uuid4().hex[:8]}"
        self._leader = Leader(store, settings, self._holder)
        self._slots = {port: Slot(port) for port in settings.ports}
        # Not a slot of the registry's: what is up there takes requests, and no flow is placed in it.
        self._kept = [*self._slots.values(), *([Slot(WARM)] if settings.warm else [])]
        self._children: list[subprocess.Popen[bytes]] = []
        self._started_at = time.time()
        self._own: Lease | None = None
        self.ending, self._rung = threading.Event(), threading.Event()
        # Who has workers of his own says what stands by for them.
        chosen = command is None or standby is not None
        start = partial(_detached, store=store, settings=settings, stdin=subprocess.PIPE)
        self._standby = Standby(settings, self.name, start, standby) if chosen and keeps_standby(settings) else None

    def run(self) -> None:
        """Run until `ending` is set, or another supervisor has its name."""
        self._begin()
        logger.info("supervisor up", supervisor=self.name, ports=list(self._slots), pid=os.getpid())
        while not self.ending.is_set():
            began = time.monotonic()
            if not self.look():
                break
            self._rung.wait(max(0.05, self._settings.beat_seconds - (time.monotonic() - began)))
            self._rung.clear()
        self.end()

    def stop(self) -> None:
        """Let `run` come to its end, at once."""
        self.ending.set()
        self._rung.set()

    def stand_in(self) -> bool:
        """Supervise this host for a caller that calls `look`. Returns False if another supervisor of its name runs."""
        try:
            if self._own is None:
                self.take_name()
        except LeaseHeldError:
            return False
        self.find_workers()
        return True

    @property
    def empties(self) -> bool:
        """Check whether a worker has nothing to run any more and has not ended yet."""
        return any(slot.record is not None and slot.empty_since is not None for slot in self._kept)

    def end(self) -> None:
        """Give its leases back. Workers that have something to run go on; its standby ends."""
        if self._standby is not None:
            self._standby.end()
        try:
            self._leader.resign()
            if self._own is not None:
                self._registry.leases.release(self._own)
        except RegistryError as error:
            logger.warning("leases not given back: they run out", reason=str(error))
        logger.info("supervisor ends; its workers stay", supervisor=self.name)

    def _begin(self) -> None:
        """Take its name and find its workers; it waits for a registry that does not answer."""
        seen: Lease | None = None
        while not self.ending.is_set():
            try:
                if self._own is None:
                    seen = seen or self._held_from_afar()
                    try:
                        self.take_name()
                    except LeaseHeldError:
                        # A container that begins with an empty home cannot tell whether its former life is dead.
                        if seen is None or self._held_from_afar() not in (None, seen):
                            raise
                        if self._is_written_here():
                            # By now its holder has said here who it is, as one that has started in the same moment: it is
                            # judged by that, and if it lives, this one is the one too many.
                            seen = None
                        else:
                            self.ending.wait(1.0)
                        continue
                self.find_workers()
                return
            except RegistryError as error:
                logger.warning("registry does not answer", reason=str(error))
                for slot in self._kept:
                    # One of them, frozen, may be what keeps it locked.
                    slot.record = Life(self._settings, self.name, slot.port).read()
                    self._watch(slot)
                self.ending.wait(1.0)

    def look(self) -> bool:
        """Do one round: beat, lead, look after each slot. A registry that does not answer is asked again in the next one.

        Returns:
            False once another supervisor has its name: then it touches no slot.
        """
        for slot in self._kept:
            # First, and without the registry: a frozen worker may be what keeps it locked.
            self._watch(slot)
        try:
            if not self._renew_own():
                return False
            self._places.beat_supervisor(self.name, host_name(), tuple(self._slots), started_at=self._started_at)
            self._alone(self._leader.tick, "leading")
            for slot in self._kept:
                self._alone(partial(self._keep, slot), f"slot {slot.port}")
            self._alone(self._keep_standby, "standby")
        except RegistryError as error:
            logger.warning("registry does not answer", reason=str(error))
        except Exception:
            logger.exception("a round failed; it is tried again")
        # A slot has yet to learn with which code its worker has ended.
        asked = {slot.record.pid for slot in self._kept if slot.record is not None}
        self._children = [child for child in self._children if child.poll() is None or child.pid in asked]
        return True

    def _alone(self, work: Callable[[], None], what: str) -> None:
        """Do a part of a round. What nobody foresaw there ends neither the other parts nor this process, which starts workers."""
        try:
            work()
        except RegistryError:
            raise
        except Exception:
            logger.exception("a part of the round failed; it is tried again", part=what)

    def stop_workers(self) -> None:
        """Tell the workers to drain and end, and wait for them as long as a worker may take."""
        end([slot.record for slot in self._kept if slot.record and slot.record.process()], self._settings.stop_seconds)

    # --- itself -----------------------------------------------------------------------------------------------------

    def take_name(self) -> None:
        name = f"supervisor:{self.name}"
        held = self._registry.leases.holder(name)
        if held is not None and not may_live(self._settings, self.name, held.holder):
            # It died on this very host: nobody needs to wait for its lease to run out.
            self._registry.leases.release_all(held.holder)
        self._own = self._taken()
        Life(self._settings, self.name, SUPERVISOR).begun(self._holder)

    def _taken(self) -> Lease:
        """Return the lease of its name, taken now or by a call whose answer was lost."""
        name = f"supervisor:{self.name}"
        try:
            return self._registry.leases.take(name, self._holder, self._own_seconds)
        except LeaseHeldError:
            held = self._registry.leases.holder(name)
            if held is None or held.holder != self._holder:
                raise
            return held

    def _held_from_afar(self) -> Lease | None:
        """Return the name's lease where nothing is written here of its holder: only its renewals show that one lives."""
        return None if self._is_written_here() else self._registry.leases.holder(f"supervisor:{self.name}")

    def _is_written_here(self) -> bool:
        return Life(self._settings, self.name, SUPERVISOR).read() is not None

    @property
    def _own_seconds(self) -> float:
        return max(_OWN_LEASE_SECONDS, 3 * self._settings.beat_seconds)

    def _renew_own(self) -> bool:
        """Return whether the name is still its own."""
        if self._own is None:
            return False
        try:
            self._own = self._registry.leases.renew(self._own, self._own_seconds)
        except RegistryLeaseLostError:
            # It was frozen, or the clock has jumped. If another has come up meanwhile, this one is the one too many.
            try:
                self._own = self._taken()
            except LeaseHeldError as error:
                logger.error("another supervisor of this name runs", reason=str(error))
                self._own = None
                for slot in self._kept:
                    # It is the other's: what is known of it here is old.
                    slot.record = None
                return False
        return True

    def find_workers(self) -> None:
        """Find the workers of an earlier supervisor: live ones go on, and what dead ones held is free."""
        for slot in self._kept:
            slot.record = Life(self._settings, self.name, slot.port).read()
            if slot.record is None:
                continue
            if slot.record.process() is None:
                self._buried(slot)
            else:
                slot.heard_at = time.monotonic()
                self._ring_at_end(slot.record.pid)
                logger.info("worker found", port=slot.port, pid=slot.record.pid)

    # --- a slot -----------------------------------------------------------------------------------------------------

    def _keep(self, slot: Slot) -> None:
        """Bring one slot to what the registry says of it."""
        here = bool(self._places.in_slot(self.name, slot.port)) or slot.port == WARM
        written = Life(self._settings, self.name, slot.port).read()
        alive = slot.record is not None and slot.record.process() is not None
        if written is not None and (slot.record is None or written.life == slot.record.life):
            slot.record, alive = written, written.process() is not None
        elif written is not None and not alive and written.process() is not None:
            # A worker of an earlier supervisor's got up late and has the slot: its own found it taken.
            slot.record, alive, slot.heard_at = written, True, time.monotonic()
            self._ring_at_end(written.pid)
            logger.info("worker found", port=slot.port, pid=written.pid)
        if slot.record is not None and not alive:
            self._died(slot, wanted=here)
        elif alive and not here:
            self._end_empty(slot)
        if here:
            slot.empty_since = None
        if slot.record is None and here and time.monotonic() >= slot.again_at:
            self._start(slot)

    def _watch(self, slot: Slot) -> None:
        """Kill a process that is there and does nothing any more (stopped, swapped out, deadlocked)."""
        if slot.record is None:
            return
        touched = Life(self._settings, self.name, slot.port).touched()
        now = time.monotonic()
        if touched != slot.touched:
            slot.beats = slot.beats + 1 if slot.touched else 0
            slot.touched, slot.heard_at = touched, now
        # It touches its file with each beat; before the first one it has the time of a launch.
        patience = self._settings.lease_seconds if slot.beats else self._settings.task_launch_seconds
        if now - slot.heard_at > patience and slot.record.process() is not None:
            self._kill(slot, f"it has not beaten for {now - slot.heard_at:.0f} s")

    def _start(self, slot: Slot) -> None:
        life = uuid.uuid4().hex[:12]
        private_folder(self._settings.home / "logs")
        child = self._taken_by_standby(slot, life)
        if child is None:
            out = self._settings.worker_folder(self.name, slot.port) / "worker.out"
            child = _detached(self._command(self.name, slot.port, life), out, self._store, self._settings)
            self._children.append(child)
            self._ring_at_end(child.pid)
        slot.record = LifeRecord(life, ProcessIdentity.of(child.pid))
        slot.started_at = slot.heard_at = time.monotonic()
        slot.touched = slot.beats = 0
        logger.info("worker started", port=slot.port, pid=child.pid)
        # It takes a while to write a file of its own, and a shutdown must find it.
        Life(self._settings, self.name, slot.port).starting(life, slot.record.identity)

    def _ring_at_end(self, pid: int) -> None:
        """Look at once when a process ends, and not with the next beat."""
        if not hasattr(os, "pidfd_open"):
            return

        def wait() -> None:
            with suppress(OSError):
                file = os.pidfd_open(pid)
                try:
                    select.select([file], [], [])
                finally:
                    os.close(file)
            self._rung.set()

        threading.Thread(target=wait, name=f"end of {pid}", daemon=True).start()

    # --- the standby ------------------------------------------------------------------------------------------------

    def _keep_standby(self) -> None:
        """Have a standby where there is something to stand in for, once all workers have got up."""
        used = [slot for slot in self._kept if slot.record is not None]
        if self._standby is None or not used or any(slot.beats < 2 for slot in used):
            return
        child = self._standby.keep(self._registry.flows, max(slot.started_at for slot in used))
        if child is not None:
            self._children.append(child)
            self._ring_at_end(child.pid)

    def _taken_by_standby(self, slot: Slot, life: str) -> subprocess.Popen[bytes] | None:
        if self._standby is None:
            return None
        here = self._places.in_slot(self.name, slot.port)
        flows = [flow for flow in self._registry.flows() if flow.serial in here]
        try:
            child = self._standby.take(slot.port, life, flows)
        except Exception:
            # Whatever a flow's definition holds: the slot gets a worker all the same.
            logger.exception("standby not taken", port=slot.port)
            return None
        if child is not None:
            logger.info("standby takes a slot", port=slot.port, pid=child.pid)
        return child

    def _died(self, slot: Slot, *, wanted: bool) -> None:
        """Free its leases and its slot; it is started again, sooner or later."""
        assert slot.record is not None
        code = next((_code_of(child) for child in self._children if child.pid == slot.record.pid), None)
        lived = time.monotonic() - slot.started_at
        pid = slot.record.pid
        self._buried(slot)
        if not wanted or code == 0:
            slot.failures, slot.again_at = 0, 0.0
            logger.info("worker ended", port=slot.port, pid=pid)
            return
        slot.failures = 1 if lived > _RECOVERED_SECONDS else slot.failures + 1
        pause = 0.0 if slot.failures == 1 else pause_after(slot.failures - 1, self._settings.back_off_seconds)
        slot.again_at = time.monotonic() + pause
        logger.warning("worker died", port=slot.port, pid=pid, code=code, again_in_seconds=pause)
        self._tell_flows(slot, {"supervisor": self.name, "port": slot.port, "code": code})

    def _buried(self, slot: Slot) -> None:
        assert slot.record is not None
        # Its JVM may have outlived it, for a moment or, frozen, for ever.
        slot.record.kill()
        self._registry.leases.release_all(holder_of(self.name, slot.port, slot.record.life))
        Life(self._settings, self.name, slot.port).forget(slot.record.life)
        slot.record = None

    def _end_empty(self, slot: Slot) -> None:
        """Kill a worker that has nothing to run, not even a request, and does not end by itself after a while."""
        marked = Life(self._settings, self.name, slot.port).marked_busy()
        if marked != slot.marked:
            slot.marked, slot.busy_at = marked, time.monotonic()
        # It marks with each of its rounds, none of which takes longer than its lease lasts.
        if marked and time.monotonic() - slot.busy_at <= self._settings.lease_seconds:
            slot.empty_since = None
            return
        slot.empty_since = slot.empty_since or time.monotonic()
        if time.monotonic() - slot.empty_since > self._settings.stop_seconds:
            self._kill(slot, "its slot is empty and it has not ended")

    def _kill(self, slot: Slot, why: str) -> None:
        assert slot.record is not None
        logger.warning("worker killed", port=slot.port, pid=slot.record.pid, reason=why)
        slot.record.kill()

    def _tell_flows(self, slot: Slot, detail: dict[str, object]) -> None:
        here = self._places.in_slot(self.name, slot.port)
        for flow in self._registry.flows():
            if flow.serial in here:
                self._registry.tell(flow, "WORKER_DIED", detail)


def _code_of(child: subprocess.Popen[bytes]) -> int | None:
    # The process counts as dead once its main thread has ended; its code is there when the others have, too.
    with suppress(subprocess.TimeoutExpired):
        return child.wait(_LAST_THREADS_SECONDS)
    return None


def chosen_name(name: str | None) -> str:
    """Return a supervisor's name: the one asked for, else that of the host. Its files lie in a folder of that name.

    Raises:
        SettingError: The name cannot be a folder's, or would be read as another's.
    """
    if name is None:
        return default_name()
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or not name.strip("."):
        raise SettingError(f"a supervisor cannot be called {shown(name)}", hint="take letters, digits and _ . -")
    return name


def default_name() -> str:
    """Return the host's name, as far as a name can hold it."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", host_name())


def worker_command(supervisor: str, port: int, life: str) -> list[str]:
    """Return the command of a worker. It names no registry: a URL may hold a password, and commands are for all to see."""
    command = [sys.executable, "-P", "-m", "pipelines.nimbus.processes.worker", "--supervisor", supervisor]
    return [*command, "--port", str(port), "--life", life]


def worker_environment(store: Store, settings: NimbusSettings) -> dict[str, str]:
    """Return the environment in which workers, and supervisors on demand, find the same registry and files."""
    chosen = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    texts = {
        PREFIX + name.upper(): ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in chosen.items()
    }
    url = store.engine.url.render_as_string(hide_password=False)
    return os.environ | texts | {"TRIDELTA_REGISTRY": url, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}


def keeps_standby(settings: NimbusSettings) -> bool:
    """Return whether a supervisor has a standby: one of a cluster would hold its cores."""
    return settings.standby and own_master().startswith("local")


def _detached(
    command: list[str], out: Path, store: Store, settings: NimbusSettings, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a process that Ctrl-C in a terminal does not reach; what it prints goes to a file.

    Args:
        stdin: Its standard input. Unless this is a pipe, the end of this process does not reach it either.
    """
    private_folder(out.parent)
    with open(out, "ab", opener=private_opener) as printed:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=worker_environment(store, settings),
        )


def start_detached(store: Store, settings: NimbusSettings) -> int:
    """Start a supervisor that outlives this process. Returns its pid."""
    private_folder(settings.home / "supervisors")
    out = settings.supervisor_folder(default_name()) / "supervisor.out"
    child = _detached([sys.executable, "-P", "-m", "pipelines.nimbus.processes.supervisor"], out, store, settings)
    # Nobody here waits for it; it is not to stay as a zombie either.
    threading.Thread(target=child.wait, name="supervisor", daemon=True).start()
    return child.pid


def run(
    *,
    ports: Sequence[int] | None = None,
    name: str | None = None,
    metrics_port: int | None = None,
    stop_workers: bool = False,
) -> None:
    """Run a supervisor in the foreground, until SIGTERM or SIGINT.

    Args:
        ports: Its slots; by default those of the settings.
        name: Its id; by default the host's name.
        metrics_port: Where it answers Prometheus on 127.0.0.1; 0: nowhere.
        stop_workers: Whether its workers are drained with it. They go on otherwise.
    """
    settings = NimbusSettings.from_environment(ports=tuple(ports) if ports else None, metrics_port=metrics_port)
    store = open_registry(settings)
    supervisor = SupervisorProcess(store, settings, name)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    served = _serve_metrics(store, settings)
    try:
        supervisor.run()
        if stop_workers:
            supervisor.stop_workers()
    finally:
        if served is not None:
            served.close()
        store.close()


def open_registry(settings: NimbusSettings) -> Store:
    """Open the registry for a supervisor; after a start of the whole host its database may be up a moment later."""
    until = time.monotonic() + _REGISTRY_SECONDS
    while True:
        try:
            # Not to wait long for a lock: it may be one of its own workers, frozen, that keeps it.
            return Store.migrated(registry_url(), busy_seconds=settings.lease_seconds / 4)
        except RegistryError as error:
            if not error.problem.startswith("does not answer") or time.monotonic() > until:
                raise
            logger.warning("registry does not answer", reason=str(error))
            time.sleep(1.0)


def _serve_metrics(store: Store, settings: NimbusSettings) -> MetricsServer | None:
    if not settings.metrics_port:
        return None
    from pipelines.nimbus.cluster import Cluster
    from pipelines.nimbus.telemetry.metrics import serve

    return serve(Cluster(store, settings), settings.metrics_port)


def main(arguments: list[str] | None = None) -> None:
    """Do as `run`, with a log file of its own (`python -m pipelines.nimbus.processes.supervisor`)."""
    from pipelines.nimbus.telemetry.log_files import configure

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--id", default=None)
    chosen = parser.parse_args(arguments)
    settings = NimbusSettings.from_environment()
    try:
        folder = settings.supervisor_folder(chosen_name(chosen.id))
    except SettingError as error:
        sys.exit(str(error))
    configure(Path(folder) / "supervisor.jsonl", settings.log_megabytes, settings.log_files)
    try:
        run(name=chosen.id)
    except TrideltaError as error:
        logger.error("supervisor cannot run", reason=str(error), kind=type(error).__name__)
        sys.exit(1)


if __name__ == "__main__":
    main()
