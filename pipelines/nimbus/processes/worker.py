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
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pipelines import logs
from pipelines.bounds import own_master
from pipelines.catalog.flow import FlowSettings
from pipelines.causes import named
from pipelines.errors import TrideltaError
from pipelines.execution.runners.admission import Admission
from pipelines.nimbus import deployed
from pipelines.nimbus.errors import (
    DeployError,
    LeaseHeldError,
    NimbusError,
    NotAliveError,
    RegistryError,
    RegistryLeaseLostError,
)
from pipelines.nimbus.handover.other_hosts import watch_registry
from pipelines.nimbus.handover.serving import Server
from pipelines.nimbus.processes.back_off import pause_after
from pipelines.nimbus.processes.former import FormerVersion
from pipelines.nimbus.processes.imported import ImportedCode
from pipelines.nimbus.processes.life import Life, holder_of
from pipelines.nimbus.processes.standby import Order, wait_for_order, warm_up
from pipelines.nimbus.processes.task import EVENTS_WAIT, LONGEST_BACK_OFF, Application, Task, waiting_reason
from pipelines.nimbus.registry.lifecycle import Status, delay_seconds
from pipelines.nimbus.registry.placements import Beat, Places
from pipelines.nimbus.registry.records import DeployedFlow
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import WARM, NimbusSettings, registry_url
from pipelines.nimbus.status import DRAINING
from pipelines.private import private_folder, private_opener
from pipelines.surroundings import any_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.trident.topology import TridentTopology

logger = logs.logger(__name__)

LEASE_LOST, SPARK_GONE, STUCK = 3, 4, 5
"""Exit codes: the worker had to end at once; its JVM has died; a query does not stop."""

# Planning a batch keeps a core of the driver busy for half of a small batch's time; the rest is waiting for disks.
_BATCHES_PER_CORE = 2

# A beat takes about a millisecond.
_BEATS_TOGETHER = 20

# So long a query may take to stop, and its attempt to be withdrawn, also where a worker has no time to end.
_WITHDRAW_SECONDS = 5.0

# So long a batch that nobody has asked to be stopped may take before a worker that restarts cuts it off: it may only be slow, and
# one that is half done is finished by the gates that began it.
_SLOW_SECONDS = 600.0

# How often a flow could not be loaded, and when that is tried again.
_NEVER_FAILED, _NOT_AGAIN = (0, 0.0), (0, math.inf)

Key = tuple[int, int]
"""A flow's serial and a task of it."""


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
        self._asked = asked_of(())
        """What its Spark was made of; a standby's of what nobody asks for."""
        self._compared: dict[int, DeployedFlow] | None = None
        """By flow what it was when its Spark was last compared with what is asked for; None: a standby's was not yet."""
        self._needs_other_code: set[int] = set()
        """Flows that could not be loaded, after code that is imported here was changed."""
        self._ran: set[int] = set()
        """Flows whose loaded version has run here."""
        self._former: dict[int, FormerVersion] = {}
        """By flow the version before, which has yet to read to its end, or reads."""
        self._renewed_at, self._supervised_at = 0.0, time.monotonic()
        self._revisions, self._deployed = dict[int, int](), dict[int, DeployedFlow]()
        """By serial what was seen of all deployed flows, and the flows."""
        self._leave_by: dict[Key, float] = {}
        """Until when tasks may drain that are not to run here any more."""
        self._rebalanced: set[Key] = set()
        """Tasks that a rebalance drains, or has drained."""
        self._held: dict[int, int] = {}
        """By flow its new version, which waits for the end of requests."""
        self._server: Server | None = None
        self.ending, self._ended = threading.Event(), threading.Event()
        self._ending_since, self._hurried_at = 0.0, 0.0
        """Since when a round has seen that it ends, and that what has not drained is to stop; 0: not yet."""
        self._memory: tuple[float, int] = (0.0, 0)

    def run(self, spark: SparkSession | None = None) -> None:
        """Run until the slot is empty, or a signal ends it.

        Args:
            spark: What was up before, of a standby.
        """
        self._slot_lease = self._registry.leases.take(
            f"slot:{self._slot[0]}:{self._slot[1]}", self._holder, self._settings.lease_seconds
        )
        # Not before the slot is its own: who finds it taken must not hide the one that has it.
        Life(self._settings, *self._slot).begun(self._life)
        threading.Thread(target=self._beats, name="beats", daemon=True).start()
        if spark is None:
            flows = [*self._flows().values()]
            self._asked, self._compared = asked_of(flows), {flow.serial: flow for flow in flows}
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
        self._ended.set()
        try:
            self._registry.leases.release(self._slot_lease)
        except RegistryError as error:
            logger.warning("slot not given back: its lease runs out", reason=str(error))
        logger.info("worker ends", supervisor=self._slot[0], port=self._slot[1])

    def _serve(self, spark: SparkSession) -> None:
        """Run what is in the slot, and take requests, until there is nothing left to do."""
        endpoint = self._settings.supervisor_folder(self._slot[0]) / f"{self._slot[1]}.endpoint.json"
        self._server = Server(spark, endpoint)
        self._server.start()
        # The code of TRIDELTA_FLOWS as it is when it is imported.
        self._imported.look()
        while not (self._round(spark) and self._server.end_if_idle()):
            time.sleep(self._settings.beat_seconds / 2)
        self._server.stop()

    # --- a round ----------------------------------------------------------------------------------------------------

    def _round(self, spark: SparkSession) -> bool:
        """Look what is to run. True: there is nothing left to do."""
        if not _lives(spark):
            self._end_now(SPARK_GONE, "its Spark has died")
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
        self._end_if_stuck()
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
            # What it refused requests for has been taken back.
            self._server.take()
        for key, task in self._tasks.items():
            if key in flows:
                if not _rescaled(task, flows[key]) and self._leave_by.pop(key, None) is not None:
                    # It comes back while it drains: no rebalance of this assignment has drained it.
                    task.revision = self._revisions[key[0]]
                self._steer(task, flows[key], held)
                continue
            has_time = self._has_time(key, here)
            task.leave()
            new = here.get(key[0])
            if not has_time and (new is None or not _outdated(task, new) or self._waits_no_more(new)):
                task.force()
        if not self.ending.is_set():
            for key in flows.keys() - self._tasks.keys():
                if key[0] not in held and not self._is_read(key[0]):
                    self._begin(key, flows[key])
            self._read_former(here)
            self._restart_for_other_code(here)

    def _has_time(self, key: Key, here: Mapping[int, DeployedFlow]) -> bool:
        """Return whether a task that is not to run here any more may drain: its new place waits for its lease.

        A rebalance has drained it for as long as it was to. Whatever else moves it (slots that come late, a flow that joins,
        an update) has not, also where it drains already: for a new version, a restart of its worker, or a deactivation. A kill or
        a rebalance that is under way has its own wait.
        """
        flow = self._deployed.get(key[0])
        if flow is None:
            return False
        if key not in self._leave_by:
            seconds = 0.0 if key in self._rebalanced else _drain_seconds(flow)
            self._leave_by[key] = time.monotonic() + seconds
        if self.ending.is_set() and len(_applications(_readable([flow, *here.values()]))) > 1:
            # Another application has got the slot, and waits for the end of this process.
            self._leave_by[key] = min(self._leave_by[key], time.monotonic() + self._settings.stop_seconds)
        elif not _goes_on(flow):
            # A kill, or another rebalance, has come meanwhile; its end tells.
            return True
        return time.monotonic() < self._leave_by[key]

    def _restart_for(self, flows: list[DeployedFlow]) -> set[int]:
        """End where a flow's new version needs another process. Return the flows whose new version waits for it.

        Python code that was imported stays as it was. A request that is under way is not cut off, and may take hours: until its
        end the flows run on as they are, and no other request is taken.
        """
        others = []
        for flow in flows:
            loaded = self._loaded.get(flow.serial)
            if (
                loaded is not None
                and loaded[0].version.number != flow.version.number
                and not deployed.changes_in_place(flow)
            ):
                others.append(flow)
        if not others or self.ending.is_set() or self._server is None:
            return set()
        self._server.refuse()
        new = {flow.serial: flow.version.number for flow in others}
        if self._server.busy:
            if new != self._held:
                names = [flow.name for flow in others]
                logger.warning("new version waits for requests that are under way", flows=names)
            self._held = new
            return set(new)
        for flow in others:
            logger.info("worker restarts for a new version", flow=flow.name, version=flow.version.number)
        self.ending.set()
        return set()

    def _restart_for_other_spark(self, here: Mapping[int, DeployedFlow]) -> bool:
        """End where changed flows ask for another Spark than the one that is up. Return whether requests hold that up."""
        flows = _readable(here.values())
        before = self._compared
        if before is not None:
            # Those that came or went make no difference.
            before = self._compared = {serial: before.get(serial, flow) for serial, flow in here.items()}
        if len(_applications(flows)) > 1:
            # One leaves for a slot of its own.
            return False
        asked = asked_of(flows)
        same = before is not None and not asked.needs_other_than(asked_of(before[flow.serial] for flow in flows))
        if same or not asked.needs_other_than(self._asked):
            self._compared = dict(here)
            return False
        if self._server is None or self.ending.is_set():
            return False
        self._server.refuse()
        if self._server.busy:
            return True
        logger.info("worker restarts for other Spark settings", flows=sorted(flow.name for flow in flows))
        self.ending.set()
        return False

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
        stuck = self._stuck(self._patience)
        if not stuck or self._server is None or self.ending.is_set():
            return False
        self._server.refuse()
        if self._server.busy:
            return True
        logger.error("worker restarts for queries that cannot be stopped", queries=stuck)
        self.ending.set()
        return False

    def _end_if_stuck(self) -> None:
        """End at once where nothing else is left to drain. What has not drained in time is stopped first."""
        stuck, ends_for = self._stuck(self._patience), self._ends_for()
        if not (self.ending.is_set() and stuck):
            return
        if len(stuck) < len(self._tasks):
            if ends_for <= self._patience:
                return
            self._hurried_at = self._hurried_at or time.monotonic()
            for task in self._tasks.values():
                task.force()
            if time.monotonic() - self._hurried_at <= _WITHDRAW_SECONDS:
                return
        self._end_now(STUCK, f"{', '.join(stuck)} cannot be stopped")

    @property
    def _patience(self) -> float:
        """Return how long a query may take to stop, and those beside one that does not may drain."""
        return max(self._settings.stop_seconds, _WITHDRAW_SECONDS)

    def _waits_no_more(self, flow: DeployedFlow) -> bool:
        """Return whether it ends, and a flow that goes on in another process has had its time to drain: a batch may hang."""
        patience = max(self._patience, _drain_seconds(flow), _SLOW_SECONDS)
        return self._ends_for() > patience and _goes_on(flow)

    def _ends_for(self) -> float:
        """Return for how long its rounds have seen that it ends; 0: it does not."""
        if not self.ending.is_set():
            return 0.0
        self._ending_since = self._ending_since or time.monotonic()
        return time.monotonic() - self._ending_since

    def _stuck(self, seconds: float) -> list[str]:
        """Return the names of the tasks whose queries have been told to stop in mid-batch, and have not for so long."""
        return sorted(task.name for task in self._tasks.values() if task.stopping_seconds > seconds)

    def _steer(self, task: Task, flow: DeployedFlow, held: set[int]) -> None:
        """Tell a task what its flow's status means for it."""
        query, key = _query_of(flow, task.query.task), (flow.serial, task.query.task)
        if flow.status is Status.REBALANCING and not self._is_read(flow.serial):
            self._rebalanced.add(key)
        elif task.figures.state != DRAINING:
            self._rebalanced.discard(key)
        outdated, revision = _outdated(task, flow) and flow.serial not in held, self._revisions[flow.serial]
        if self.ending.is_set() or query is None or flow.scale != task.flow.scale or outdated:
            # It comes again, with another number of partitions, in another process or in another version.
            task.leave()
            # A rebalance without a wait is over before anybody has seen it.
            unseen = _rescaled(task, flow) and not _outdated(task, flow)
            if (unseen and not self._has_time(key, {})) or self._waits_no_more(flow):
                task.force()
        else:
            if task.figures.state != DRAINING:
                # It was placed anew and stays as it is: the next drain has its time.
                task.revision = revision
            task.want(flow.standing.accepting)
        drained = task.figures.state == DRAINING and key in self._rebalanced
        if drained and _goes_on(flow) and task.revision != revision and not _outdated(task, flow):
            # The flow goes on with another assignment: the rebalance has waited as long as it was to.
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
            if tasks and all(task.ahead is former and not task.left for task in tasks.values()):
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

        lake = Lake(flow.version.content.definition["lake"])
        waiting: dict[str, int] = {}
        try:
            if not isinstance(new, TrideltaError):
                before, changeover = Changeover(lake, former.topology), Changeover(lake, new)
                if changeover.moves(before):
                    former.read(tasks)
                    waiting = before.left_waiting(changeover)
            for query, count in waiting.items():
                reason = waiting_reason(query, count)
                logger.warning("events wait", flow=flow.name, reason=reason)
                self._registry.tell(flow, EVENTS_WAIT, {"reason": reason})
        except Exception as error:
            # Perhaps the change is what mends it. Each query finds out when it starts whether it can go on from there.
            logger.error("former version not read to its end", flow=flow.name, reason=str(error))

    def _collect(self, key: Key) -> None:
        task = self._tasks.pop(key)
        self._leave_by.pop(key, None)
        self._rebalanced.discard(key)
        if task.ran:
            self._ran.add(key[0])
        if task.lost is not None:
            self._end_now(LEASE_LOST, str(task.lost))

    # --- beats ------------------------------------------------------------------------------------------------------

    def _beats(self) -> None:
        """Beat in a thread of its own: Spark takes seconds to start, and neither that nor a look may hold up a beat."""
        self._renewed_at = time.monotonic()
        life = Life(self._settings, *self._slot)
        while not self._ended.wait(self._settings.beat_seconds):
            life.touch()
            self._beat()

    def _beat(self) -> None:
        memory = self._memory_bytes()
        try:
            self._slot_lease = self._registry.leases.renew(self._slot_lease, self._settings.lease_seconds)
            self._renewed_at = time.monotonic()
            self._beat_for([task for task in list(self._tasks.values()) if task.lease is not None], memory)
            for former in list(self._former.values()):
                former.renew()
        except RegistryLeaseLostError as error:
            if not self._ended.is_set():
                self._end_now(LEASE_LOST, str(error))
        except RegistryError as error:
            logger.warning("no beat", reason=str(error))
        if time.monotonic() - self._renewed_at > self._settings.lease_seconds:
            self._end_now(LEASE_LOST, f"the registry has not answered for {self._settings.lease_seconds:g} s")

    def _beat_for(self, tasks: Sequence[Task], memory: int) -> None:
        """Beat for tasks: in few transactions, none of them so long that a batch's own would wait."""
        for start in range(0, len(tasks), _BEATS_TOGETHER):
            chosen, beaten = [], []
            for task in tasks[start : start + _BEATS_TOGETHER]:
                # It may be given back in this moment, by the task's own thread.
                if (lease := task.lease) is not None:
                    figures = task.figures.to_json()
                    figures |= {"memory_bytes": memory, "version": task.flow.version.number}
                    chosen.append(task)
                    beaten.append(Beat(task.flow, task.query.task, lease, figures))
            refused = self._places.beat_together(beaten, self._slot, lease_seconds=self._settings.lease_seconds)
            for task, error in zip(chosen, refused, strict=True):
                if isinstance(error, NotAliveError):
                    task.leave()
                    task.force()
                elif error is not None and task.is_alive() and task.lease is not None:
                    # Not given back meanwhile: another has it.
                    raise error

    def _memory_bytes(self) -> int:
        """Return the resident memory of the process and all that it has started; measured every ten seconds."""
        import psutil

        if time.monotonic() - self._memory[0] > 10 or not self._memory[1]:
            own = psutil.Process()
            total = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue
            self._memory = (time.monotonic(), total)
        return self._memory[1]

    def _end_now(self, code: int, why: str) -> None:
        """End without draining: from now on others may write what this process was writing."""
        logger.error("worker ends at once", reason=why)
        kill_jvm()
        os._exit(code)

    def _end_with_jvm(self) -> None:
        """End when the JVM does, and not with the next look."""
        jvm().wait()
        if not self._ended.is_set():
            self._end_now(SPARK_GONE, "its Spark has died")


# --- Spark ----------------------------------------------------------------------------------------------------------


def spark_of(
    settings: NimbusSettings, name: str, flows: Iterable[DeployedFlow] = (), lakes: Iterable[str] = ()
) -> SparkSession:
    """Start the Spark application of some flows.

    Args:
        flows: Those that run in it.
        lakes: Those that others may have.
    """
    from pipelines.private import spark_values
    from pipelines.spark.session import cores, is_local, spark_session

    # If a flow's settings cannot be read, none of its tasks begins; those of other flows still do.
    here = _readable(flows)
    # A session that starts before a place on S3 was named cannot read it.
    own = FlowSettings.from_environment().lake_root
    for root in {own, *lakes, *(flow.version.content.definition["lake"] for flow in here)} - {""}:
        any_folder(root, "the lake")
    asked = asked_of(here)
    master = asked.master
    most = _most_partitions(here)
    if is_local(master) and most > cores(master):
        master = f"local[{most}]"
    conf: dict[str, str] = {
        "spark.driver.memory": f"{settings.worker_memory_mb}m",
        # Queries side by side: none waits until all tasks of another's job are through.
        "spark.scheduler.mode": "FAIR",
        # Spark's own threads may die of it and leave a query waiting for ever; the supervisor starts a dead worker again.
        "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError",
    }
    if asked.cores:
        conf["spark.cores.max"] = str(asked.cores)
    return spark_session(f"tridelta {name}", master=master, conf=conf | spark_values(asked.conf))


@dataclass(frozen=True)
class Asked:
    """The wishes of a slot's flows for Spark.

    Attributes:
        conf: Its settings.
        cores: Of a cluster, unless its settings say so; else 0.
    """

    master: str
    conf: Mapping[str, object]
    cores: int

    def needs_other_than(self, up: Asked) -> bool:
        """Return whether the Spark for what others asked does not do: one with more cores does."""
        return (self.master, self.conf) != (up.master, up.conf) or self.cores > up.cores


def asked_of(flows: Iterable[DeployedFlow]) -> Asked:
    """Return what the flows of a slot ask of Spark."""
    from pipelines.spark.session import is_local

    here = own = _readable(flows)
    if len(_applications(here)) > 1:
        # A flow that has just got Spark settings of its own is still here: it leaves for a slot of its own.
        own = [flow for flow in here if not (flow.settings.get("master") or flow.settings.get("spark"))]
    # One that names another than a flow beside it is told so by the leader, and placed again only when they agree.
    standing = sorted(own, key=lambda flow: (flow.scratch, flow.serial))
    master = next((flow.settings["master"] for flow in standing if flow.settings.get("master")), own_master())
    conf: dict[str, object] = {}
    for flow in own:
        conf |= flow.settings.get("spark", {})
    return Asked(master, conf, 0 if is_local(master) or "spark.cores.max" in conf else _most_partitions(here))


def _applications(flows: Iterable[DeployedFlow]) -> set[str]:
    return {deployed.application_of(flow) for flow in flows}


def _most_partitions(flows: Iterable[DeployedFlow]) -> int:
    return max((query.partitions or 0 for flow in flows for query in deployed.queries_of(flow)), default=0)


def _outdated(task: Task, flow: DeployedFlow) -> bool:
    """Return whether a task runs another version of this flow."""
    return task.flow.serial == flow.serial and task.flow.version.number != flow.version.number


def _rescaled(task: Task, flow: DeployedFlow) -> bool:
    """Return whether a rebalance that is over has given a task's flow another parallelism."""
    return _goes_on(flow) and flow.scale != task.flow.scale


def _goes_on(flow: DeployedFlow) -> bool:
    """Return whether nothing drains a flow for as long as was asked for: neither a rebalance that is not over nor a kill."""
    return flow.status not in (Status.REBALANCING, Status.KILLED)


def _drain_seconds(flow: DeployedFlow) -> float:
    """Return for how long a flow drains if nobody has said it."""
    timeout = flow.settings.get("message_timeout_seconds") if _readable([flow]) else None
    return delay_seconds(None, timeout)


def _query_of(flow: DeployedFlow, task: int) -> deployed.DeployedQuery | None:
    """Return a query of a flow by its task; None where its version has none, or cannot be read: the leader tells that."""
    try:
        return next((own for own in deployed.queries_of(flow) if own.task == task), None)
    except Exception:
        return None


def _readable(flows: Iterable[DeployedFlow]) -> list[DeployedFlow]:
    """Return the flows whose version this release can read."""
    readable = []
    for flow in flows:
        with suppress(NimbusError):
            deployed.check_deployed(flow)
            readable.append(flow)
    return readable


def _lives(spark: SparkSession) -> bool:
    from py4j.protocol import Py4JError

    try:
        return not spark._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def jvm() -> subprocess.Popen[bytes]:
    """Return the process of this process' JVM."""
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] = SparkContext._gateway.proc  # type: ignore[union-attr]
    return process


def kill_jvm() -> None:
    """Kill this process' JVM, so that nothing that it has begun goes on."""
    from pyspark import SparkContext

    if getattr(SparkContext._gateway, "proc", None) is not None:
        jvm().kill()


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
        order, spark = _stand_by(settings, chosen.supervisor, life, chosen.lake, imported)
        port, life = order.port, order.life
    _log(settings, chosen.supervisor, port)
    watch_registry()
    # Its supervisor has brought the tables to their form.
    store = Store(registry_url(), busy_seconds=settings.lease_seconds / 2, migrate=False)
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


def _stand_by(
    settings: NimbusSettings, supervisor: str, life: str, lakes: Sequence[str], imported: ImportedCode
) -> tuple[Order, SparkSession]:
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
