"""The leader: fires what is due, looks for dead tasks, and gives every application its slots.

Any supervisor may lead; the lease `nimbus` says which one does. It loads no user code: a version's content says which queries
a flow has. Placement is the planner's (Nimbus rules 5), an application at a time, and only where something has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from pipelines import logs
from pipelines.causes import named, shortened
from pipelines.errors import AssignmentError
from pipelines.nimbus.deployed import agreeing, application_of, check_deployed, demand_of
from pipelines.nimbus.errors import LeaseHeldError, NimbusError, RegistryError, RegistryLeaseLostError
from pipelines.nimbus.placement.blacklist import Blacklist
from pipelines.nimbus.placement.model import Kind, Supervisor
from pipelines.nimbus.placement.planner import plan_assignment
from pipelines.nimbus.processes.application_plan import (
    Ids,
    Look,
    Plan,
    Slot,
    UsedSlots,
    assignment_before,
    avoided,
    kind_due,
    left_alone,
    places_of,
    resized,
)
from pipelines.nimbus.registry.leases import LEASE, Lease
from pipelines.nimbus.registry.lifecycle import Status, Transition
from pipelines.nimbus.registry.placements import Places, Placing, dead_of
from pipelines.nimbus.registry.pruning import VERSIONS_A_FLOW, prune
from pipelines.nimbus.registry.records import AssignmentRecord, DeployedFlow, SupervisorBeat, TaskBeat
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings
from pipelines.nimbus.status import ASSIGNED, DRAINED, STAYS, UNPLACED

logger = logs.logger(__name__)

# At least; where beats are seldom, as long as three of them.
_LEASE_SECONDS = 15.0
_TIDY_SECONDS = 86_400.0
_EVENTS_A_FLOW = 1000
_FIRED_AT_ONCE = _PLACED_AT_ONCE = 50
"""Flows that are written in one transaction: a commit costs as much as five flows, and nobody should wait long."""
_DRAINS = (Status.REBALANCING, Status.KILLED)


class Leader:
    """Leads, when it can.

    Args:
        holder: Under which it takes the lease.
        clock: Seconds since 1970.
    """

    def __init__(
        self, store: Store, settings: NimbusSettings, holder: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._holder, self._clock = settings, holder, clock
        self._registry, self._places = Registry(store, clock=clock), Places(store, clock=clock)
        self._lease: Lease | None = None
        # The lease under which it led last.
        self._former: Lease | None = None
        self._lease_seconds = max(_LEASE_SECONDS, 3 * settings.beat_seconds)
        self._store, self._tidied_at = store, float("-inf")
        self._watched_at = float("-inf")
        self._seen: tuple[object, ...] = ()
        self._blacklist = Blacklist(round_seconds=max(1, int(settings.monitor_seconds)))
        self._listed: tuple[str, ...] = ()
        self._placed: list[_Placed] = []
        self._checked: dict[int, object] = {}
        self._problems: dict[int, str] = {}
        """By flow the problem that this leader has reported last."""

    def tick(self) -> None:
        """Do one round, if it leads or can."""
        try:
            self._lead(self._held())
        except LeaseHeldError:
            return
        except RegistryLeaseLostError as error:
            logger.warning("leads no longer", reason=str(error))
            self._lease = None

    def _held(self) -> Lease:
        """Return its lease, prolonged or taken. One that has run out while nobody else wanted it is taken again."""
        if self._lease is not None:
            try:
                self._lease = self._registry.leases.renew(self._lease, self._lease_seconds)
            except RegistryLeaseLostError:
                self._lease = None
        if self._lease is None:
            self._lease = self._registry.leases.take(LEASE, self._holder, self._lease_seconds)
            logger.info("leads", holder=self._holder)
        # Each lease has the next token: by it nobody else has led since its own last one, and delays go on.
        if self._former is None or self._lease.token not in (self._former.token, self._former.token + 1):
            self._registry.gain_leadership(under=self._lease)
        self._former = self._lease
        return self._lease

    def resign(self) -> None:
        """Let another lead at once."""
        if self._lease is not None:
            self._registry.leases.release(self._lease)
            self._lease = None

    # --- a round ----------------------------------------------------------------------------------------------------

    def _lead(self, lease: Lease) -> None:
        # What a round that was broken off had placed may be false by now: another may have led since.
        self._placed = []
        flows = self._registry.flows()
        drained = self._drained(flows)
        for flow in drained:
            lease = self._renewed(lease)
            self._registry.hurry(flow, under=lease)
        self._tidy()
        fired, lease = self._fire(flows, frozenset(flow.serial for flow in drained), lease)
        if fired:
            flows = self._registry.flows()
        watching = (
            self._clock() - self._watched_at >= self._settings.monitor_seconds or self._clock() < self._watched_at
        )
        seen = tuple((flow.serial, flow.version.number, flow.scratch, flow.status) for flow in flows)
        # One that waits for places already looks the same after another rebalance.
        if not (watching or fired) and seen == self._seen:
            return
        self._seen = seen
        look = self._look(self._readable(flows, lease), watching, lease)
        for application, members in look.flows.items():
            lease = self._renewed(lease)
            self._place_or_tell(application, members, look, lease)
            if len(self._placed) >= _PLACED_AT_ONCE:
                self._assign(look, lease)
        self._assign(look, lease)

    def _renewed(self, lease: Lease) -> Lease:
        """Return its lease, prolonged if half of it is over: work on thousands of flows takes longer than a lease lasts."""
        if lease.expires_at - self._clock() < self._lease_seconds / 2:
            self._lease = lease = self._registry.leases.renew(lease, self._lease_seconds)
        return lease

    def _fire(self, flows: Sequence[DeployedFlow], hurried: Container[int], lease: Lease) -> tuple[bool, Lease]:
        """Apply what has come due. Return whether anything was, and its lease.

        What nobody foresaw is the problem of its flow alone.

        Args:
            flows: As they were when the round began.
            hurried: The serials of those that have come due since.
        """
        fired: list[tuple[DeployedFlow, Transition]] = []
        with _unforeseen("not fired together") as errors:
            for _ in range(len(flows) // _FIRED_AT_ONCE + 1):
                lease = self._renewed(lease)
                some = self._registry.fire(most=_FIRED_AT_ONCE, under=lease)
                fired += some
                if len(some) < _FIRED_AT_ONCE:
                    break
        if errors:
            for flow in flows:
                due = flow.standing.due
                # The others would cost a transaction each, with every round until that is mended.
                if due is not None and (due.at <= self._clock() or flow.serial in hurried):
                    lease = self._renewed(lease)
                    fired += self._fired_alone(flow, lease)
        for flow, step in fired:
            logger.info("fired", flow=flow.name, status=str(flow.status), action=str(step.action))
        return bool(fired), lease

    def _fired_alone(self, flow: DeployedFlow, lease: Lease) -> list[tuple[DeployedFlow, Transition]]:
        fired: list[tuple[DeployedFlow, Transition]] = []
        with _unforeseen("not fired", flow=flow.name) as errors:
            fired = self._registry.fire(flow, under=lease)
        for error in errors:
            event = flow.standing.due.event if flow.standing.due else "nothing"
            # Not as a problem of placing, which goes with the next place.
            self._registry.problem(flow, f"{event} fails: {_reason_of(error)}", under=lease)
        return fired

    def _tidy(self) -> None:
        """Remove, once a day, what the registry need not keep. Without Dagster nobody else does it."""
        now = time.monotonic()
        if now - self._tidied_at < _TIDY_SECONDS:
            return
        self._tidied_at = now
        removed = prune(
            self._store,
            days=self._settings.retention_days,
            events_a_flow=_EVENTS_A_FLOW,
            versions_a_flow=VERSIONS_A_FLOW,
            clock=self._clock,
        )
        logger.info("registry tidied", **{pruned.what.replace(" ", "_"): pruned.removed for pruned in removed})

    def _drained(self, flows: Iterable[DeployedFlow]) -> list[DeployedFlow]:
        """Return the flows that wait for a rebalance or a kill, and need not: all of their queries have stopped."""
        now = self._clock()
        waiting = [
            flow for flow in flows if flow.status in _DRAINS and flow.standing.due and flow.standing.due.at > now
        ]
        if not waiting:
            return []
        # Of all that drain: a query for each would take longer than a lease lasts, if they are many.
        beats, records = self._places.beats_of_all(_DRAINS), self._places.assignments(_DRAINS)
        return [flow for flow in waiting if _has_drained(flow, beats.get(flow.serial, {}), records.get(flow.serial))]

    def _look(self, flows: list[DeployedFlow], watching: bool, lease: Lease) -> Look:
        supervisors = tuple(self._places.supervisors())
        now = self._clock()
        alive = frozenset(
            beat.supervisor for beat in supervisors if now - beat.beat_at <= self._settings.supervisor_timeout_seconds
        )
        if watching:
            self._watched_at = now
            self._list_hosts(supervisors, alive, lease)
        application = {flow.serial: application_of(flow) for flow in flows}
        members: dict[str, list[DeployedFlow]] = {}
        for flow in flows:
            if flow.status is not Status.KILLED:
                members.setdefault(application[flow.serial], []).append(flow)
        records, beat_at = self._places.assignments(), self._places.all_beats()
        kept = {(beat.supervisor, port) for beat in supervisors if beat.supervisor in alive for port in beat.ports}
        # A process whose flows beat lives. What does not begin in it cannot be loaded, or waits for a lease: another slot, to
        # which all flows of the application would go along, mends neither.
        living = kept & {
            (worker.supervisor, worker.port)
            for serial, record in records.items()
            for worker in record.workers
            for task in worker.tasks
            if now - beat_at.get(serial, {}).get(task, float("-inf")) <= self._settings.task_timeout_seconds
        }
        dead = {
            flow.serial: self._dead(records.get(flow.serial), beat_at.get(flow.serial, {}), kept, living)
            for flow in flows
        }
        return Look(alive, members, application, records, dead, UsedSlots(supervisors, records, now))

    def _list_hosts(self, supervisors: Iterable[SupervisorBeat], alive: Container[str], lease: Lease) -> None:
        """Count which supervisors and slots are missing, and tell which hosts are left out from now on."""
        present = [
            Supervisor(beat.supervisor, beat.ports, host=beat.host) for beat in supervisors if beat.supervisor in alive
        ]
        self._listed = self._blacklist.round(present)
        # By what is written: another may have led before, and its list has ended with it.
        written = {beat.host for beat in supervisors if beat.blacklisted}
        if written != {*self._listed}:
            self._places.blacklist(self._listed, under=lease)
            logger.warning("blacklist", left_out=self._listed, again=sorted(written.difference(self._listed)))

    def _dead(
        self,
        record: AssignmentRecord | None,
        beat_at: Mapping[int, float],
        kept: Container[Slot],
        living: Container[Slot],
    ) -> set[int]:
        """Return silent tasks, to be placed again (Nimbus rules 5.1.3).

        One in a slot that a living supervisor offers is started there again: it has the time of a launch for it. In a process
        that lives none is dead.
        """
        launch, now = self._settings.task_launch_seconds, self._clock()
        timeout = self._settings.task_timeout_seconds
        silent = dead_of(record, beat_at, now=now, timeout_seconds=timeout, launch_seconds=launch)
        if record is None or not silent:
            return set()
        long = dead_of(record, beat_at, now=now, timeout_seconds=launch, launch_seconds=launch)
        return {
            task
            for worker in record.workers
            if (worker.supervisor, worker.port) not in living
            for task in worker.tasks
            if task in (long if (worker.supervisor, worker.port) in kept else silent)
        }

    def _readable(self, flows: list[DeployedFlow], lease: Lease) -> list[DeployedFlow]:
        """Return the flows that this release can place. Any other keeps its places and gets a problem."""
        readable = []
        for flow in flows:
            try:
                if self._checked.get(flow.serial) != _content_of(flow):
                    check_deployed(flow)
                    self._checked[flow.serial] = _content_of(flow)
                readable.append(flow)
            except NimbusError as error:
                self._tell(flow, f"{UNPLACED}{named(error)}", lease)
        return readable

    # --- placing ----------------------------------------------------------------------------------------------------

    def _place_or_tell(self, application: str, members: list[DeployedFlow], look: Look, lease: Lease) -> None:
        """Place an application. What nobody foresaw is the problem of its flows alone; the leader goes on with the others."""
        with _unforeseen("not placed", application=application) as errors:
            self._place(application, members, look, lease)
        for error in errors:
            for flow in members:
                self._refuse(flow, _reason_of(error), look.stays(flow), lease)

    def _place(self, application: str, members: list[DeployedFlow], look: Look, lease: Lease) -> None:
        # Those that stand come first, and then who came first.
        in_order = sorted(members, key=lambda flow: (flow.serial not in look.records, flow.scratch, flow.serial))
        agreed, refused = agreeing(in_order)
        self._place_agreed(application, sorted(agreed, key=lambda flow: flow.serial), look, lease)
        for flow in in_order:
            if flow.serial in refused:
                recovered = self._recover(application, [flow], look)
                self._refuse(flow, named(refused[flow.serial]), flow in recovered or look.stays(flow), lease)

    def _place_agreed(self, application: str, members: list[DeployedFlow], look: Look, lease: Lease) -> None:
        """Place the flows that can share an application."""
        kind = kind_due(members, look)
        if kind is None:
            for flow in members:
                self._take_back(flow, lease)
            return
        draining = any(flow.status is Status.REBALANCING for flow in members)
        if draining and kind != "MONITOR" and all(flow.serial in look.records for flow in members):
            # Whoever shares its application waits for the moment until it has drained; not what is dead.
            self._recover(application, members, look)
            return
        try:
            plan = self._planned(application, members, kind, look)
        except AssignmentError as error:
            recovered = [] if kind == "MONITOR" else self._recover(application, members, look)
            for flow in members:
                self._refuse(flow, named(error), flow in recovered or look.stays(flow), lease)
            return
        written = self._keep(members, plan, look, mends=True)
        for flow in members:
            if flow.serial not in written:
                self._registry.problem(flow, None, under=lease)

    def _planned(
        self, application: str, members: list[DeployedFlow], kind: Kind, look: Look, workers: int | None = None
    ) -> Plan:
        """Plan an application.

        Args:
            workers: How many it is to have; None: as many as its flows ask for.
        """
        ids = Ids(members, look.records)
        old = assignment_before(application, places_of(application, members, look), ids)
        if old is None:
            earlier = self._earlier_lives(members)
            kind, places = "NEW", {serial: record.workers for serial, record in earlier.items()}
            old = assignment_before(application, places, Ids(members, earlier))
        demand = demand_of(application, members)
        made = plan_assignment(
            look.used.supervisors(),
            demand if workers is None else replace(demand, workers=workers),
            kind=kind,
            old=old,
            dead=[ids.planned(serial, task) for serial in ids.serials for task in look.dead.get(serial, ())],
            alive=left_alone(members, look, ids),
            reassign=kind == "REBALANCE" and resized(members, old),
            blacklist=avoided(self._listed, members, look, kind),
            now=self._clock(),
            supervisor_timeout_seconds=self._settings.supervisor_timeout_seconds,
        )
        return Plan(kind, ids, made)

    def _recover(self, application: str, members: Iterable[DeployedFlow], look: Look) -> list[DeployedFlow]:
        """Place what is dead again beside a wish that cannot be met: with as many workers as before. The wish stays.

        Where the wish of one that has a place is in the way of that, too, it is done for the others alone.

        Returns:
            The flows whose dead tasks have places now.
        """
        placed = [flow for flow in members if flow.serial in look.records]
        for some in (placed, [flow for flow in placed if not flow.scratch]):
            if not any(look.dead[flow.serial] for flow in some):
                continue
            before = {(on.supervisor, on.port) for flow in some for on in look.records[flow.serial].workers}
            with suppress(AssignmentError):
                plan = self._planned(application, some, "MONITOR", look, len(before))
                # Also where it is made as if they were new, since their slots are another application's.
                self._keep(some, replace(plan, kind="MONITOR"), look)
                return some
        return []

    def _refuse(self, flow: DeployedFlow, why: str, stays: bool, lease: Lease) -> None:
        self._tell(flow, f"{STAYS if stays else UNPLACED}{why}", lease)

    def _tell(self, flow: DeployedFlow, problem: str, lease: Lease) -> None:
        self._problems[flow.serial] = shortened(problem)
        self._registry.problem(flow, problem, under=lease)

    def _take_back(self, flow: DeployedFlow, lease: Lease) -> None:
        """Clear a problem of placing: the flow has its places. A problem that its worker has reported may not be over."""
        own = self._problems.pop(flow.serial, None)
        if flow.problem is not None and (flow.problem == own or flow.problem.startswith((UNPLACED, STAYS))):
            self._registry.problem(flow, None, under=lease)

    def _earlier_lives(self, members: Iterable[DeployedFlow]) -> dict[int, AssignmentRecord]:
        """Return where flows that ask for it ran when they were deployed last, under their serials of today."""
        asking = (flow for flow in members if flow.settings.get("use_old_assignment"))
        last = ((flow.serial, self._places.last_assignment(flow.name)) for flow in asking)
        return {serial: record for serial, record in last if record is not None}

    def _keep(self, members: Iterable[DeployedFlow], plan: Plan, look: Look, *, mends: bool = False) -> frozenset[int]:
        """Keep what is to be written of a plan.

        Args:
            mends: Whether a flow has no problem once that is written.

        Returns:
            The serials of the flows for which something is to be written.
        """
        slots, written = plan.slots(), set[int]()
        for flow in members:
            record = look.records.get(flow.serial)
            before = {(row.supervisor, row.port): sorted(row.tasks) for row in record.workers} if record else None
            now = {slot: sorted(tasks) for slot, tasks in slots.get(flow.serial, {}).items()}
            if before == now and (plan.kind == "MONITOR" or not flow.scratch):
                continue
            look.used.place(flow.serial, now)
            self._placed.append(_Placed(Placing(flow, now, plan.kind if record else "NEW"), mends))
            written.add(flow.serial)
        for note in plan.made.notes:
            logger.warning("assignment", application=plan.made.flow, note=note)
        return frozenset(written)

    def _assign(self, look: Look, lease: Lease) -> None:
        """Write down what was placed, together; what nobody foresaw there is the problem of its flow alone."""
        placed, self._placed = self._placed, []
        if not placed:
            return
        with _unforeseen("not assigned together") as errors:
            self._write(placed, lease)
        if errors:
            for one in placed:
                self._write_alone(one, look, lease)

    def _write_alone(self, placed: _Placed, look: Look, lease: Lease) -> None:
        flow = placed.placing.flow
        with _unforeseen("not assigned", flow=flow.name) as errors:
            self._write([placed], lease)
        for error in errors:
            self._refuse(flow, _reason_of(error), look.stays(flow), lease)

    def _write(self, placed: Sequence[_Placed], lease: Lease) -> None:
        """Write assignments. A flow that was removed meanwhile has no place."""
        made = self._places.assign_all([one.placing for one in placed], under=lease)
        for one in placed:
            placing, flow = one.placing, one.placing.flow
            if flow.serial not in made:
                continue
            slots = {f"{supervisor}:{port}": tasks for (supervisor, port), tasks in placing.slots.items()}
            logger.info("assigned", flow=flow.name, kind=placing.kind, slots=slots)
            if one.mends:
                self._registry.problem(flow, None, under=lease)


@dataclass(frozen=True)
class _Placed:
    """A place that is to be written.

    Attributes:
        mends: Whether the flow has no problem then; else its wish is still unmet.
    """

    placing: Placing
    mends: bool


@contextmanager
def _unforeseen(what: str, **where: str) -> Iterator[list[Exception]]:
    """Log an error that nobody foresaw, and give it to who goes on behind the body; what the registry refuses ends the round."""
    errors = list[Exception]()
    try:
        yield errors
    except (RegistryError, RegistryLeaseLostError):
        raise
    except Exception as error:
        logger.exception(what, **where)
        errors.append(error)


def _reason_of(error: Exception) -> str:
    """Return what a flow's problem says of an error: of one of the database not the statement, which holds more than is asked."""
    return " ".join(named(getattr(error, "orig", None) or error).split())


def _has_drained(flow: DeployedFlow, beats: Mapping[int, TaskBeat], record: AssignmentRecord | None) -> bool:
    """Return whether all queries of a flow have stopped since its rebalance or kill was asked for."""
    due, wait = flow.standing.due, flow.standing.wait_seconds or 0.0
    since = due.at - wait if due else 0.0
    if flow.status is Status.KILLED:
        # Nobody knows whether a worker that has not beaten yet has begun: a killed flow keeps its places for its time.
        placed = {task for worker in record.workers for task in worker.tasks} if record else set()
        if not beats or not placed <= beats.keys():
            return False
    return all(beat.beat_at > since and _state_of(beat) in (DRAINED, ASSIGNED) for beat in beats.values())


def _state_of(beat: TaskBeat) -> object:
    """Return the state that a task has told; None for figures of another release that have none."""
    return beat.figures.get("state") if isinstance(beat.figures, Mapping) else None


def _content_of(flow: DeployedFlow) -> object:
    """Return the parts of a flow that may change between two rounds."""
    return flow.version.number, flow.scale
