"""An application as the leader sees it in one round: the slots in use, where its flows run, and what is planned for it.

The planner knows tasks by numbers of its own, one application at a time (`Ids`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipelines.nimbus.deployed import component_id, demand_of, queries_of
from pipelines.nimbus.placement.model import Assignment, Kind, Supervisor, Worker
from pipelines.nimbus.registry.records import AssignmentRecord, DeployedFlow, SupervisorBeat, WorkerRecord

Slot = tuple[str, int]


class UsedSlots:
    """The slots in use, kept up to date in one round of the leader. Asking costs nothing for hosts where nothing has changed.

    Args:
        records: The assignments at the round's begin, by the flow's serial.
        now: Seconds since 1970.
    """

    def __init__(self, beats: Sequence[SupervisorBeat], records: Mapping[int, AssignmentRecord], now: float) -> None:
        self._beats, self._now = {beat.supervisor: beat for beat in beats}, now
        self._of_flow = {
            serial: frozenset((worker.supervisor, worker.port) for worker in record.workers)
            for serial, record in records.items()
        }
        self._flows_in = Counter(slot for slots in self._of_flow.values() for slot in slots)
        self._ports: dict[str, set[int]] = {}
        for supervisor, port in self._flows_in:
            self._ports.setdefault(supervisor, set()).add(port)
        self._made: dict[str, Supervisor] = {}

    def supervisors(self) -> list[Supervisor]:
        """Return the supervisors in the planner's form, with the slots that all flows hold."""
        for name in self._beats.keys() - self._made.keys():
            self._made[name] = self._supervisor(self._beats[name])
        return [self._made[name] for name in self._beats]

    def place(self, serial: int, slots: Iterable[Slot]) -> None:
        """Record that a flow holds these slots from now on, and no others."""
        before, after = self._of_flow.get(serial, frozenset()), frozenset(slots)
        self._of_flow[serial] = after
        self._flows_in.update(after - before)
        self._flows_in.subtract(before - after)
        for supervisor, port in before ^ after:
            ports = self._ports.setdefault(supervisor, set())
            (ports.add if self._flows_in[supervisor, port] > 0 else ports.discard)(port)
            self._made.pop(supervisor, None)

    def _supervisor(self, beat: SupervisorBeat) -> Supervisor:
        return Supervisor(
            beat.supervisor,
            beat.ports,
            used=sorted(self._ports.get(beat.supervisor, ())),
            host=beat.host,
            silent_seconds=max(0.0, self._now - beat.beat_at),
        )


@dataclass(frozen=True)
class Look:
    """The registry's contents as the leader sees them in one round.

    Attributes:
        flows: By application, those that need places.
        application: That of each flow, killed ones too.
        records: Assignments at the round's begin, by serial.
        dead: Dead tasks by serial.
        used: Slots, those that were given in this round too.
    """

    alive: frozenset[str]
    flows: Mapping[str, list[DeployedFlow]]
    application: Mapping[int, str]
    records: Mapping[int, AssignmentRecord]
    dead: Mapping[int, set[int]]
    used: UsedSlots

    def stays(self, flow: DeployedFlow) -> bool:
        """Return whether a flow that is not placed now goes on in its place."""
        return flow.serial in self.records and not self.dead[flow.serial]


class Ids:
    """The planner's numbers for the tasks of the flows of an application, and back.

    Args:
        records: By serial where a flow ran so far: its tasks have the numbers of the version that this was made for.
    """

    def __init__(self, members: Sequence[DeployedFlow], records: Mapping[int, AssignmentRecord]) -> None:
        self.serials = [flow.serial for flow in members]
        # The serial of a component's flow, and its task in the current version.
        self.of_component = {
            component_id(flow.name, query.group): (flow.serial, query.task)
            for flow in members
            for query in queries_of(flow)
        }
        self.names = dict(enumerate(sorted(self.of_component), start=1))
        numbers = {name: number for number, name in self.names.items()}
        self._planned = {
            (flow.serial, task): numbers.get(component_id(flow.name, group), 0)
            for flow in members
            if flow.serial in records
            for task, group in records[flow.serial].queries.items()
        }

    def planned(self, serial: int, task: int) -> int:
        """Return the planner's number of a task that has a place; 0: its query is gone."""
        return self._planned.get((serial, task), 0)


@dataclass(frozen=True)
class Plan:
    """The planned assignment of an application, and the numbers of its tasks there."""

    kind: Kind
    ids: Ids
    made: Assignment

    def slots(self) -> dict[int, dict[Slot, list[int]]]:
        """Return the tasks of each flow that has any, by slot."""
        slots: dict[int, dict[Slot, list[int]]] = {}
        for worker in self.made.workers:
            for planned in worker.tasks:
                serial, task = self.ids.of_component[self.made.components[planned]]
                slots.setdefault(serial, {}).setdefault(worker.slot, []).append(task)
        return slots


def kind_due(members: list[DeployedFlow], look: Look) -> Kind | None:
    """Return the kind of planning that is due; None if there is nothing to plan."""
    if any(flow.scratch for flow in members):
        return "REBALANCE"
    if any(flow.serial not in look.records for flow in members):
        # Those that are placed stay where they are.
        return "REBALANCE" if any(flow.serial in look.records for flow in members) else "NEW"
    return "MONITOR" if any(look.dead.get(flow.serial) for flow in members) else None


def avoided(listed: Sequence[str], members: Iterable[DeployedFlow], look: Look, kind: Kind) -> list[str]:
    """Return the hosts to leave out: not one where a flow lives that nobody has asked to place again (rule 2.1.4).

    MONITOR leaves alone what lives, wherever it is.

    Args:
        listed: The hosts on the blacklist.
    """
    if kind == "MONITOR" or not listed:
        return [*listed]
    standing = {
        worker.supervisor
        for flow in members
        if not flow.scratch and flow.serial in look.records
        for worker in look.records[flow.serial].workers
        if not look.dead[flow.serial].issuperset(worker.tasks)
    }
    stands_on = {supervisor.host for supervisor in look.used.supervisors() if supervisor.id in standing}
    return [host for host in listed if host not in stands_on]


def left_alone(members: Iterable[DeployedFlow], look: Look, ids: Ids) -> list[int]:
    """Return tasks that beat although their supervisor is dead (Nimbus rules 5.1.4)."""
    return [
        ids.planned(flow.serial, task)
        for flow in members
        if flow.serial in look.records
        for worker in look.records[flow.serial].workers
        for task in worker.tasks
        if worker.supervisor not in look.alive and task not in look.dead.get(flow.serial, ())
    ]


def resized(members: Iterable[DeployedFlow], old: Assignment | None) -> bool:
    """Return whether another number of workers is asked for: then tasks that stand have to move.

    Tasks of a user-defined worker, the first that names them, are never on more than one.
    """
    asked = demand_of("", list(members))
    users = {name: n for n, worker in reversed([*enumerate(asked.user_workers)]) for name in worker.components}
    most = min(asked.workers or 1, len({users.get(component.id, component.id) for component in asked.components}))
    # Slots whose queries are all gone may be given up, or taken by new ones.
    return old is not None and not sum(bool(worker.tasks) for worker in old.workers) <= most <= len(old.workers)


def places_of(application: str, members: Iterable[DeployedFlow], look: Look) -> dict[int, list[WorkerRecord]]:
    """Return the workers of an application so far, by flow.

    A flow whose new version runs in another application leaves the slots that it shared with the former one's flows, and joins
    the others of its application where these are.
    """
    others = {
        (worker.supervisor, worker.port)
        for serial, record in look.records.items()
        if look.application.get(serial, application) != application
        for worker in record.workers
    }
    places = {
        flow.serial: [on for on in look.records[flow.serial].workers if (on.supervisor, on.port) not in others]
        for flow in members
        if flow.serial in look.records
    }
    standing = {flow.serial for flow in members if not flow.scratch}
    slots = {(on.supervisor, on.port) for serial in standing for on in places.get(serial, ())}
    for flow in members:
        own = {(on.supervisor, on.port) for on in places.get(flow.serial, ())}
        if slots and own.isdisjoint(slots) and len(slots | own) > max(member.workers for member in members):
            places[flow.serial] = []
    return places


def assignment_before(application: str, places: Mapping[int, Iterable[WorkerRecord]], ids: Ids) -> Assignment | None:
    """Return the application's assignment so far; None if none of its flows has one.

    A worker whose queries are all gone has no tasks: its slot is still the application's.
    """
    tasks: dict[tuple[str, int], list[int]] = {}
    for serial, workers_of_flow in places.items():
        for worker in workers_of_flow:
            planned = (ids.planned(serial, task) for task in worker.tasks)
            tasks.setdefault((worker.supervisor, worker.port), []).extend(filter(None, planned))
    if not tasks:
        return None
    workers = tuple(Worker(supervisor, port, tuple(task_ids)) for (supervisor, port), task_ids in sorted(tasks.items()))
    return Assignment(application, workers, {task: ids.names[task] for worker in workers for task in worker.tasks})
