"""The worker process: one Spark application in a supervisor's slot, with the tasks that the registry puts there.

`python -m pipelines.nimbus.processes.worker --supervisor S --port P --life L`; the registry comes from TRIDELTA_REGISTRY, for a
URL may hold a password. It outlives whoever started it. What stops it: an empty slot, SIGTERM (both drain first), and the loss
of a lease, after which it must not live a moment longer.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pipelines import logs
from pipelines.causes import named
from pipelines.errors import TrideltaError
from pipelines.execution.runners.admission import Admission
from pipelines.nimbus import deployed
from pipelines.nimbus.errors import DeployError, LeaseHeldError, RegistryError
from pipelines.nimbus.handover.other_hosts import watch_registry
from pipelines.nimbus.handover.serving import Server
from pipelines.nimbus.processes.back_off import pause_after
from pipelines.nimbus.processes.beats import Beats
from pipelines.nimbus.processes.draining import Draining, goes_on
from pipelines.nimbus.processes.former import FormerVersion
from pipelines.nimbus.processes.imported import ImportedCode
from pipelines.nimbus.processes.life import LEASE_LOST, SPARK_GONE, STUCK, Life, holder_of
from pipelines.nimbus.processes.slot_spark import jvm, kill_jvm, lives, spark_needs_of, spark_of
from pipelines.nimbus.processes.standby import stand_by
from pipelines.nimbus.processes.starting import Application
from pipelines.nimbus.processes.task import LONGEST_BACK_OFF, Key, Task
from pipelines.nimbus.registry.lifecycle import Status
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.records import DeployedFlow
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import WARM, NimbusSettings, registry_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.trident.topology import TridentTopology

logger = logs.logger(__name__)

# Planning a batch keeps a core of the driver busy for half of a small batch's time; the rest is waiting for disks.
_BATCHES_PER_CORE = 2

# How often a flow could not be loaded, and when that is tried again.
_NEVER_FAILED, _NOT_AGAIN = (0, 0.0), (0, math.inf)


class WorkerProcess:
    """Runs the tasks of one slot.

    Args:
        supervisor, port: The slot.
        life: What tells this process from others that had the slot.
        imported: The code of this process, as it was when it was imported.
    """

    def __init__(
        self,
        store: Store,
        settings: NimbusSettings,
        supervisor: str,
        port: int,
        life: str,
        imported: ImportedCode | None = None,
    ) -> None:
        self._store, self._settings, self._imported = store, settings, imported or ImportedCode()
        self._registry, self._places = Registry(store), Places(store)
        self._life, self._slot, self._holder = life, (supervisor, port), holder_of(supervisor, port, life)
        self._tasks: dict[Key, Task] = {}
        self._loaded: dict[int, tuple[DeployedFlow, TridentTopology | TrideltaError]] = {}
        self._failed: dict[int, tuple[int, float]] = {}
        """By flow how often in a row it could not be loaded, and when that is tried again."""
        self._asked = spark_needs_of(())
        """What its Spark was made of; a standby's of what nobody asks for."""
        self._compared: dict[int, DeployedFlow] | None = None
        """By flow what it was when its Spark was last compared with what is asked for; None: a standby's was not yet."""
        self._needs_other_code: set[int] = set()
        """Flows that could not be loaded, after code that is imported here was changed."""
        self._ran: set[int] = set()
        """Flows whose loaded version has run here."""
        self._former: dict[int, FormerVersion] = {}
        """By flow the version before, which has yet to read to its end, or reads."""
        self._supervised_at = time.monotonic()
        self._revisions, self._deployed = dict[int, int](), dict[int, DeployedFlow]()
        """By serial what was seen of all deployed flows, and the flows."""
        self._held: dict[int, int] = {}
        """By flow its new version, which waits for the end of requests."""
        self._server: Server | None = None
        self.ending = threading.Event()
        self._draining = Draining(settings.stop_seconds, self.ending)
        self._beats = Beats(self._registry.leases, self._places, settings, self._slot, self._end_now)

    def run(self, spark: SparkSession | None = None) -> None:
        """Run until the slot is empty, or a signal ends it.

        Args:
            spark: What was up before, of a standby.
        """
        self._beats.take_slot(self._holder)
        # Not before the slot is its own: who finds it taken must not hide the one that has it.
        Life(self._settings, *self._slot).begun(self._life)
        self._beats.start(self._tasks, self._former)
        if spark is None:
            flows = [*self._flows().values()]
            self._asked, self._compared = spark_needs_of(flows), {flow.serial: flow for flow in flows}
            spark = spark_of(self._settings, f"{self._slot[0]}:{self._slot[1]}", flows)
        threading.Thread(target=self._end_with_jvm, name="jvm", daemon=True).start()
        self._application = Application(
            spark,
            self._store,
            self._registry,
            self._holder,
            self._settings.lease_seconds,
            self._settings.home,
            threading.Lock(),
            Admission(_BATCHES_PER_CORE * len(os.sched_getaffinity(0))),
        )
        logger.info("worker up", supervisor=self._slot[0], port=self._slot[1], pid=os.getpid())
        if self._imported.has_changed():
            # A standby, or what took long to start, may be older than an update that is to take what is there now.
            logger.info("worker restarts for changed code")
        else:
            self._serve(spark)
        self._beats.end()
        logger.info("worker ends", supervisor=self._slot[0], port=self._slot[1])

    def _serve(self, spark: SparkSession) -> None:
        """Run what is in the slot, and take requests, until there is nothing left to do."""
        endpoint = self._settings.supervisor_folder(self._slot[0]) / f"{self._slot[1]}.endpoint.json"
        self._server = Server(spark, endpoint)
        self._beats.goes_on("the modules of TRIDELTA_FLOWS")
        self._server.start()
        # The code of TRIDELTA_FLOWS as it is when it is imported.
        self._imported.look()
        while not (self._round(spark) and self._server.end_if_idle()):
            time.sleep(self._settings.beat_seconds / 2)
        self._server.stop()

    # --- a round ----------------------------------------------------------------------------------------------------

    def _round(self, spark: SparkSession) -> bool:
        """Look what is to run. True: there is nothing left to do."""
        self._beats.goes_on("a question to its Spark")
        if not lives(spark):
            self._end_now(SPARK_GONE, "its Spark has died")
        self._beats.goes_on("a look at its flows")
        if self._server is not None and self._server.busy and not self._draining.stuck(self._tasks.values()):
            # Its slot may be empty: it ends with the request, and not before. But for a query that cannot be stopped, whose
            # new place waits for its lease, that may be too late.
            Life(self._settings, *self._slot).mark_busy()
        if self.ending.is_set() and self._server is not None:
            # One more would keep the process, and whatever is to come in its place, waiting.
            self._server.refuse()
        flows: dict[Key, DeployedFlow] = {}
        try:
            flows = self._flows()
            self._follow(flows)
        except RegistryError as error:
            logger.warning("registry does not answer", reason=str(error))
            if not self.ending.is_set():
                return False
            # Whatever the registry would say: all drain.
            for task in self._tasks.values():
                task.leave()
        for key in [key for key, task in self._tasks.items() if not task.is_alive()]:
            self._collect(key)
        if self._server is not None and self._server.busy:
            return False
        if stuck := self._draining.cut_off(self._tasks.values()):
            self._end_now(STUCK, f"{', '.join(stuck)} cannot be stopped")
        if self._tasks:
            return False
        return self.ending.is_set() or not (flows or self._is_warm())

    def _is_warm(self) -> bool:
        """Return whether it is to be up without a flow, for requests: as long as its supervisor is."""
        if self._slot[1] != WARM:
            return False
        try:
            if self._registry.leases.holder(f"supervisor:{self._slot[0]}") is not None:
                self._supervised_at = time.monotonic()
        except RegistryError as error:
            # Nobody knows: as long as that lasts, its patience is what it was.
            logger.warning("registry does not answer", reason=str(error))
        return time.monotonic() - self._supervised_at < self._settings.supervisor_timeout_seconds

    def _flows(self) -> dict[Key, DeployedFlow]:
        """Return the flows that the registry puts into the slot."""
        here = self._places.in_slot(*self._slot)
        self._deployed = {flow.serial: flow for flow in self._registry.flows()}
        flows = {serial: flow for serial, flow in self._deployed.items() if serial in here}
        self._revisions = dict.fromkeys(flows, 0) | self._places.revisions()
        return {(serial, task): flow for serial, flow in flows.items() for task in here[serial]}

    def _follow(self, flows: dict[Key, DeployedFlow]) -> None:
        """Begin, drain and drop tasks."""
        here = {flow.serial: flow for flow in flows.values()}
        held = self._restart_for(list(here.values()))
        waits = self._restart_for_other_spark(here) or self._restart_for_stuck()
        if self._server is not None and not (held or waits or self.ending.is_set()):
            # What it refused requests for has been taken back; in an empty slot it is to end with those that are under way.
            (self._server.take if flows or self._slot[1] == WARM else self._server.refuse)()
        for key, task in self._tasks.items():
            if key in flows:
                if not _rescaled(task, flows[key]) and self._draining.stays(key):
                    # It comes back while it drains: no rebalance of this assignment has drained it.
                    task.revision = self._revisions[key[0]]
                self._steer(task, flows[key], held)
                continue
            has_time = self._draining.has_time(key, self._deployed.get(key[0]), here.values())
            task.leave()
            new = here.get(key[0])
            if not has_time and (new is None or not _outdated(task, new) or self._draining.waits_no_more(new)):
                task.force()
        if not self.ending.is_set():
            for key in flows.keys() - self._tasks.keys():
                if key[0] not in held and not self._is_read(key[0]):
                    self._begin(key, flows[key])
            self._read_former(here)
            self._restart_for_other_code(here)

    def _restart_for(self, flows: list[DeployedFlow]) -> set[int]:
        """End where a flow's new version needs another process. Return the flows whose new version waits for it.

        Python code that was imported stays as it was. A request that is under way is not cut off, and may take hours: until its
        end the flows run on as they are, and no other request is taken.
        """
        others = [
            flow
            for flow in flows
            if flow.serial in self._loaded
            and self._loaded[flow.serial][0].version.number != flow.version.number
            and not deployed.changes_in_place(flow)
        ]

        def tell() -> None:
            for flow in others:
                logger.info("worker restarts for a new version", flow=flow.name, version=flow.version.number)

        if not (others and self._restart(tell)):
            return set()
        new = {flow.serial: flow.version.number for flow in others}
        if new != self._held:
            names = [flow.name for flow in others]
            logger.warning("new version waits for requests that are under way", flows=names)
        self._held = new
        return set(new)

    def _restart_for_other_spark(self, here: Mapping[int, DeployedFlow]) -> bool:
        """End where changed flows ask for another Spark than the one that is up. Return whether requests hold that up."""
        flows = deployed.readable(here.values())
        before = self._compared
        if before is not None:
            # Those that came or went make no difference.
            before = self._compared = {serial: before.get(serial, flow) for serial, flow in here.items()}
        if len(deployed.applications_of(flows)) > 1:
            # One leaves for a slot of its own.
            return False
        asked = spark_needs_of(flows)
        same = before is not None and not asked.needs_other_than(spark_needs_of(before[flow.serial] for flow in flows))
        if same or not asked.needs_other_than(self._asked):
            self._compared = dict(here)
            return False
        names = sorted(flow.name for flow in flows)
        return self._restart(lambda: logger.info("worker restarts for other Spark settings", flows=names))

    def _restart_for_other_code(self, here: Mapping[int, DeployedFlow]) -> None:
        """End where only another process can load what is to run.

        Not while anything else runs: its code may have changed under it, and another process could not load it any more.
        """
        if self._tasks or self._server is None or self._server.busy:
            return
        waiting = sorted(here[serial].name for serial in self._needs_other_code if serial in here)
        if waiting:
            logger.info("worker restarts for changed code", flows=waiting)
            self.ending.set()

    def _restart_for_stuck(self) -> bool:
        """End where a query hangs in Python, in which no thread stops another. Return whether requests hold that up."""
        stuck = self._draining.stuck(self._tasks.values())
        if not stuck:
            return False
        return self._restart(lambda: logger.error("worker restarts for queries that cannot be stopped", queries=stuck))

    def _restart(self, tell: Callable[[], None]) -> bool:
        """End, once no request is under way, and tell why. Return whether one holds that up; no other is taken then."""
        if self._server is None or self.ending.is_set():
            return False
        self._server.refuse()
        if self._server.busy:
            return True
        tell()
        self.ending.set()
        return False

    def _steer(self, task: Task, flow: DeployedFlow, held: set[int]) -> None:
        """Tell a task what its flow's status means for it."""
        query, key = _query_of(flow, task.query.task), (flow.serial, task.query.task)
        if flow.status is Status.REBALANCING and not self._is_read(flow.serial):
            self._draining.rebalanced.add(key)
        elif not task.drains:
            self._draining.rebalanced.discard(key)
        outdated, revision = _outdated(task, flow) and flow.serial not in held, self._revisions[flow.serial]
        if self.ending.is_set() or query is None or flow.scale != task.flow.scale or outdated:
            # It comes again, with another number of partitions, in another process or in another version.
            task.leave()
            # A rebalance without a wait is over before anybody has seen it.
            unseen = _rescaled(task, flow) and not _outdated(task, flow)
            over = unseen and not self._draining.has_time(key, self._deployed.get(key[0]))
            if over or self._draining.waits_no_more(flow):
                task.force()
        else:
            if not task.drains:
                # It was placed again and stays as it is: the next drain has its time.
                task.revision = revision
            task.want(flow.standing.accepting)
        late = task.drains and key in self._draining.rebalanced
        if late and goes_on(flow) and task.revision != revision and not _outdated(task, flow):
            # The flow goes on with another assignment, perhaps in the same slots: the rebalance has waited as long as it was to,
            # also for a start, which may hang.
            task.force()

    def _begin(self, key: Key, flow: DeployedFlow) -> None:
        query = _query_of(flow, key[1])
        if query is None or any(_outdated(task, flow) for task in self._tasks.values()):
            # The version before drains first.
            return
        topology = self._load(flow)
        if isinstance(topology, TrideltaError):
            return
        task = Task(self._application, flow, query, topology)
        task.revision = self._revisions[flow.serial]
        # Until the version before has read to its end, it holds its lease, beats, and stands still.
        task.ahead = self._former.get(flow.serial)
        task.want(flow.standing.accepting)
        self._tasks[key] = task
        task.start()

    def _load(self, flow: DeployedFlow) -> TridentTopology | TrideltaError:
        """Return the flow's topology; why there is none is reported once, and whether that lasts is tried again."""
        loaded = self._loaded.get(flow.serial)
        if loaded is not None and loaded[0].version.number != flow.version.number:
            self._failed[flow.serial] = _NEVER_FAILED
        if loaded is None or time.monotonic() >= self._failed.get(flow.serial, _NOT_AGAIN)[1]:
            made: TridentTopology | TrideltaError
            self._beats.goes_on(f'the load of flow "{flow.name}"')
            try:
                deployed.check_deployed(flow)
                made = deployed.load(flow, self._settings.home / "flows")
                if loaded is not None and flow.serial in self._ran and not isinstance(loaded[1], TrideltaError):
                    self._former[flow.serial] = FormerVersion(self._application, loaded[0], loaded[1])
            except (Exception, SystemExit) as error:
                # Whatever its code and files bring about is this flow's: the others of the process go on.
                problem = f"cannot be loaded: {type(error).__name__}: {str(error)[:200]}"
                made = error if isinstance(error, TrideltaError) else DeployError(flow.name, problem)
                logger.error("flow not loaded", flow=flow.name, reason=str(made))
                self._registry.problem(flow, named(made))
            if not isinstance(made, TrideltaError):
                # It, or a process before, could not load it; what the leader finds it tells again.
                self._registry.problem(flow, None)
            self._beats.goes_on("a look at its flows")
            self._try_again_later(flow.serial, isinstance(made, TrideltaError))
            self._loaded[flow.serial] = loaded = (flow, made)
            self._ran.discard(flow.serial)
        return loaded[1]

    def _try_again_later(self, serial: int, failed: bool) -> None:
        self._needs_other_code.discard(serial)
        if not failed:
            self._failed.pop(serial, None)
            self._imported.look()
            return
        times = self._failed.get(serial, _NEVER_FAILED)[0]
        self._failed[serial] = (times + 1, time.monotonic() + pause_after(times + 1, LONGEST_BACK_OFF))
        if self._imported.has_changed():
            self._needs_other_code.add(serial)

    # --- the version before -----------------------------------------------------------------------------------------

    def _is_read(self, serial: int) -> bool:
        """Return whether the version before of a flow reads, or has just ended: it has the leases of the tasks that are here."""
        former = self._former.get(serial)
        return former is not None and (former.reads or former.over)

    def _read_former(self, here: Mapping[int, DeployedFlow]) -> None:
        """Begin what is to be read of versions before, once none but the tasks that wait for it are here."""
        for serial, former in [*self._former.items()]:
            if former.reads:
                continue
            if serial not in here or (former.over and not former.left):
                del self._former[serial]
                continue
            if former.over:
                # What it has left is for those that come next, of whichever version.
                former = self._former[serial] = former.again()
            tasks = {task.query.group: task for key, task in self._tasks.items() if key[0] == serial}
            # That of a flow that drains, or is inactive, opens no batch either.
            if tasks and all(task.ahead is former and task.wanted for task in tasks.values()):
                former.begin(partial(self._read_to_the_end, former, tasks, *self._loaded[serial]))

    def _read_to_the_end(
        self,
        former: FormerVersion,
        tasks: Mapping[str, Task],
        flow: DeployedFlow,
        new: TridentTopology | TrideltaError,
    ) -> None:
        """Let the queries of the version before read what is in their channels, where others will read on behind it."""
        from pipelines import Lake
        from pipelines.execution.checkpoint.changeover import Changeover

        if isinstance(new, TrideltaError):
            return
        lake = Lake(flow.version.content.definition["lake"])
        problem = "former version not read to its end"
        try:
            before, changeover = Changeover(lake, former.topology), Changeover(lake, new)
            if changeover.moves(before):
                former.read(tasks)
                problem = "events that wait in former windows not counted"
                # Nothing counts them again: a task keeps what the registry does not take.
                next(iter(tasks.values())).events_wait(before.left_waiting(changeover))
        except Exception as error:
            # Perhaps the change is what mends it. Each query finds out when it starts whether it can go on from there.
            logger.error(problem, flow=flow.name, reason=str(error))

    def _collect(self, key: Key) -> None:
        task = self._tasks.pop(key)
        self._draining.forget(key)
        if task.ran:
            self._ran.add(key[0])
        if task.lost is not None:
            self._end_now(LEASE_LOST, str(task.lost))

    # --- its end ----------------------------------------------------------------------------------------------------

    def _end_now(self, code: int, why: str) -> None:
        """End without draining: from now on others may write what this process was writing."""
        logger.error("worker ends at once", reason=why)
        kill_jvm()
        os._exit(code)

    def _end_with_jvm(self) -> None:
        """End when the JVM does, and not with the next look."""
        jvm().wait()
        if not self._beats.ended.is_set():
            self._end_now(SPARK_GONE, "its Spark has died")


def _outdated(task: Task, flow: DeployedFlow) -> bool:
    """Return whether a task runs another version of this flow."""
    return task.flow.serial == flow.serial and task.flow.version.number != flow.version.number


def _rescaled(task: Task, flow: DeployedFlow) -> bool:
    """Return whether a rebalance that is over has given a task's flow another parallelism."""
    return goes_on(flow) and flow.scale != task.flow.scale


def _query_of(flow: DeployedFlow, task: int) -> deployed.DeployedQuery | None:
    """Return a query of a flow by its task; None where its version has none, or cannot be read: the leader tells that."""
    try:
        return next((own for own in deployed.queries_of(flow) if own.task == task), None)
    except Exception:
        return None


def main(arguments: list[str] | None = None) -> None:
    """Run the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--supervisor", required=True)
    parser.add_argument("--port", type=int, default=WARM)
    parser.add_argument(
        "--standby", action="store_true", help="start Spark, and take the slot that standard input names"
    )
    parser.add_argument("--lake", action="append", default=[], help="a lake that a standby must be able to read")
    parser.add_argument("--life", required=True)
    chosen = parser.parse_args(arguments)
    settings = NimbusSettings.from_environment()
    imported = ImportedCode()
    imported.look()
    port, life, spark = chosen.port, chosen.life, None
    if chosen.standby:
        order, spark = stand_by(settings, chosen.supervisor, life, chosen.lake, imported)
        port, life = order.port, order.life
    _log(settings, chosen.supervisor, port)
    watch_registry()
    # Its supervisor has brought the tables to their form.
    store = Store(registry_url(), busy_seconds=settings.lease_seconds / 2)
    worker = WorkerProcess(store, settings, chosen.supervisor, port, life, imported)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.ending.set())
    try:
        worker.run(spark)
    except LeaseHeldError as error:
        logger.error("slot is taken", reason=str(error))
        sys.exit(1)
    except TrideltaError as error:
        logger.error("worker cannot run", reason=str(error), kind=type(error).__name__)
        sys.exit(1)
    finally:
        kill_jvm()
        store.close()
    # Threads of libraries must not keep a drained worker alive.
    os._exit(0)


def _log(settings: NimbusSettings, supervisor: str, port: int) -> None:
    from pipelines.nimbus.telemetry.log_files import configure

    folder = settings.worker_folder(supervisor, port)
    # In every line, whichever thread writes it.
    always = {"supervisor": supervisor, "port": port}
    configure(folder / "worker.jsonl", settings.log_megabytes, settings.log_files, always=always)
    # It logs each exception on its way from a batch back to Spark, a drain's too; ours are logged where they arrive.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)


if __name__ == "__main__":
    main()
