"""The assignment planner: supervisors, a flow and its old assignment -> its assignment (Nimbus rules 5).

A pure function, by JStorm's rules with its faults fixed. Who wants to know why a task stands where it does reads the rules
beside `assignment_slots` (where workers go) and `assignment_tasks` (which tasks they get).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipelines.errors import AssignmentError, NotEnoughNodesError
from pipelines.nimbus.placement.model import SUPERVISOR_TIMEOUT_SECONDS, Assignment, Demand, Kind, Supervisor
from pipelines.nimbus.placement.packing import Slots
from pipelines.nimbus.placement.planning import KINDS, Planning, Settings


@dataclass(frozen=True)
class Plan:
    """The assignments of several flows, by name, and why others got none."""

    assignments: Mapping[str, Assignment]
    refused: Mapping[str, AssignmentError]


def plan_assignment(
    supervisors: Iterable[Supervisor],
    demand: Demand,
    *,
    kind: Kind = "NEW",
    old: Assignment | None = None,
    dead: Collection[int] = (),
    alive: Collection[int] = (),
    reassign: bool = False,
    reserve: int = 0,
    blacklist: Sequence[str] = (),
    local: bool = False,
    now: float = 0.0,
    supervisor_timeout_seconds: float = SUPERVISOR_TIMEOUT_SECONDS,
) -> Assignment:
    """Place the tasks of one flow.

    Args:
        supervisors: All supervisors with their slots; one that is not among them, or silent for too long, is dead.
        demand: The flow.
        kind: NEW places all; REBALANCE follows a changed demand, MONITOR places dead tasks again. Both begin with `old`,
            without which they are NEW.
        old: The flow's assignment so far. For NEW it is the one of an earlier life, of use to `use_old_assignment` only.
        dead: Tasks that do not beat any more. All tasks of their workers, and those of dead supervisors, are dead too.
        alive: Tasks that beat although their supervisor is dead: their workers are left alone.
        reassign: REBALANCE may move every task; else tasks stay in their slots and only new ones are placed.
        reserve: Slots of the cluster to leave free.
        blacklist: Hosts to leave out, as long as the others have enough slots.
        local: One worker holds all.
        now: The time, in seconds, for `Assignment.started`.
        supervisor_timeout_seconds: How long a supervisor may be silent.

    Raises:
        NotEnoughWorkersError: Too few slots are free.
        NotEnoughNodesError: Tasks that must stand on different nodes have too few.
        AssignmentError: No supervisor is alive; the master finds no worker of its own; there is no such kind.
    """
    slots = Slots(supervisors, supervisor_timeout_seconds)
    settings = Settings(kind, reassign, reserve, tuple(blacklist), local=local, now=now)
    return _planned(slots, demand, old, settings, frozenset(dead), frozenset(alive))


def plan_flows(
    supervisors: Iterable[Supervisor],
    demands: Iterable[Demand],
    *,
    kind: Kind = "NEW",
    old: Mapping[str, Assignment] | None = None,
    dead: Mapping[str, Collection[int]] | None = None,
    alive: Mapping[str, Collection[int]] | None = None,
    reassign: bool = False,
    reserve: int = 0,
    blacklist: Sequence[str] = (),
    now: float = 0.0,
    supervisor_timeout_seconds: float = SUPERVISOR_TIMEOUT_SECONDS,
) -> Plan:
    """Place many flows on one cluster, one after the other; no slot goes to two of them.

    Flows without an old assignment are NEW. Hosts that a flow names as its own (`Demand.hosts`) take no flow that does not
    name them. A flow that cannot be placed is refused; the others are planned all the same.
    """
    before = dict(old or {})
    asked = list(demands)
    slots = Slots(supervisors, supervisor_timeout_seconds)
    if kind != "NEW":
        for assignment in before.values():
            for worker in assignment.workers:
                slots.take(worker.slot)
    settings = Settings(kind, reassign, reserve, tuple(blacklist), now=now)
    isolated = frozenset(host for demand in asked for host in demand.hosts)
    assignments: dict[str, Assignment] = {}
    refused: dict[str, AssignmentError] = {}
    for demand in asked:
        own = replace(settings, closed=isolated.difference(demand.hosts))
        gone, beating = (frozenset((of or {}).get(demand.flow, ())) for of in (dead, alive))
        try:
            assignments[demand.flow] = _planned(slots, demand, before.get(demand.flow), own, gone, beating)
        except AssignmentError as error:
            refused[demand.flow] = error
    return Plan(assignments, refused)


def _planned(
    slots: Slots,
    demand: Demand,
    old: Assignment | None,
    settings: Settings,
    dead: frozenset[int],
    alive: frozenset[int],
) -> Assignment:
    """Plan one flow; the slots it gets are taken, and as they were if it cannot be placed."""
    if settings.kind not in KINDS:
        raise AssignmentError(demand.flow, f"Invalid assign type {settings.kind}", f"kinds are {', '.join(KINDS)}")
    if old is None:
        settings = replace(settings, kind="NEW")
    slots.settle()
    try:
        return Planning(slots, demand, old, settings, dead, alive).plan()
    except AssignmentError as error:
        slots.undo()
        if not isinstance(error, NotEnoughNodesError) or settings.kind != "REBALANCE" or settings.reassign:
            raise
    # Tasks in their old slots leave others no node: then they need to move.
    return _planned(slots, demand, old, replace(settings, reassign=True), dead, alive)
