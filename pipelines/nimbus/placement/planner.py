"""The assignment planner: supervisors, a flow and its old assignment -> its assignment (Nimbus rules 5). A pure function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from pipelines.errors import AssignmentError, NotEnoughNodesError, NotEnoughWorkersError
from pipelines.nimbus.placement.model import (
    SUPERVISOR_TIMEOUT_SECONDS,
    Assignment,
    Demand,
    Kind,
    Supervisor,
    UserWorker,
    Worker,
    in_order,
)
from pipelines.nimbus.placement.packing import (
    Draft,
    Slots,
    TaskPlacing,
    number_tasks,
    place,
    place_wanted,
    worker_count,
)

KINDS = get_args(Kind)


@dataclass(frozen=True)
class Settings:
    """The planner's options beside the flow; see `plan_assignment`. `closed` hosts are never used."""

    kind: Kind
    reassign: bool = False
    reserve: int = 0
    blacklist: tuple[str, ...] = ()
    closed: frozenset[str] = frozenset()
    local: bool = False
    now: float = 0.0


class Planning:
    """Plans a flow once; takes the slots that it gives to the flow."""

    def __init__(
        self,
        slots: Slots,
        demand: Demand,
        old: Assignment | None,
        settings: Settings,
        dead: frozenset[int],
        alive: frozenset[int],
    ) -> None:
        self._slots, self._demand, self._settings = slots, demand, settings
        self._old = old or Assignment(demand.flow, (), {})
        self._going_on = settings.kind != "NEW"
        self._names = number_tasks(demand.components, self._old.components if self._going_on else None)
        self._notes: list[str] = []
        self._released: list[str] = []
        self._gone = self._dead_workers(dead, alive) if self._going_on else []
        self._standing = [
            replace(worker, tasks=kept)
            for worker in self._stays()
            if (kept := tuple(task for task in worker.tasks if task in self._names))
        ]
        held = {task for worker in self._standing for task in worker.tasks}
        self._need = [task for task in self._names if task not in held]
        self._keeping = settings.kind == "REBALANCE" and not settings.reassign

    def plan(self) -> Assignment:
        if not self._slots.supervisors:
            raise AssignmentError(
                self._demand.flow, f"Failed to make assignment {self._demand.flow}, due to no alive supervisor"
            )
        total, alone = (1, False) if self._settings.local else worker_count(self._demand)
        count = total - len(self._standing)
        if not self._need:
            self._notes.append("Don't need assign worker, all workers are fine")
            self._free_own()
            return self._assignment([])
        # The original found all workers fine as soon as as many stood as were wanted, dead tasks or not.
        count = max(count, 1)
        supervisors = self._room(count)
        drafts = self._workers(count, supervisors)
        place_wanted(self._slots, drafts, supervisors)
        place(self._slots, drafts, supervisors, self._apart(drafts, supervisors))
        self._give_tasks(drafts, alone and count > 1)
        for draft in drafts:
            if draft.slot and not draft.tasks:
                self._slots.give(draft.slot)
        return self._assignment(drafts)

    # --- what stands

    def _dead_workers(self, dead: frozenset[int], alive: frozenset[int]) -> list[Worker]:
        """Return workers with a dead task; if the master is dead only its own, as nobody can tell of others (rule 5.1.3)."""
        masters = {component.id for component in self._demand.components if component.kind == "master"}
        silent = {
            task
            for worker in self._old.workers
            if worker.supervisor not in self._slots.supervisors
            for task in worker.tasks
            if task not in alive
        }
        if of_masters := {task for task in dead if self._old.components.get(task) in masters}:
            dead = frozenset(of_masters)
        return [worker for worker in self._old.workers if not (silent | dead).isdisjoint(worker.tasks)]

    def _stays(self) -> list[Worker]:
        """Return workers to leave alone: alive ones of dead supervisors; for MONITOR all that are alive (5.1.4, 5.1.5)."""
        if not self._going_on:
            return []
        lives = [worker for worker in self._old.workers if worker not in self._gone]
        if self._settings.kind == "MONITOR":
            return lives
        return [worker for worker in lives if worker.supervisor not in self._slots.supervisors]

    # --- slots

    def _free_own(self) -> None:
        """Free a rebalanced flow's own slots; keep a watched flow's slots used (rule 5.1.4)."""
        for worker in self._old.workers if self._going_on else ():
            if self._settings.kind == "REBALANCE":
                self._slots.give(worker.slot)
            else:
                self._slots.take(worker.slot)
        for worker in self._standing:
            self._slots.take(worker.slot)

    def _room(self, count: int) -> list[Supervisor]:
        """Return the supervisors to use. They have `count` free slots and the reserve (rules 5.3.1, 2.6).

        A dead worker's slot serves again only where there is no other: its process may not be gone yet. (The original never
        used it again, so that a full cluster could not replace a worker.) Blacklisted hosts are released one by one, by
        name, when the others have too few slots.
        """
        self._free_own()
        closed = set(self._settings.closed) | set(self._settings.blacklist)
        wanted = count + self._settings.reserve
        supervisors = self._slots.open(self._demand.hosts, closed)
        usable = {supervisor.id for supervisor in supervisors}
        for worker in self._gone if self._settings.kind == "MONITOR" else ():
            short = self._slots.count(supervisors) < wanted
            if worker.supervisor in usable and (short or self._demand.use_old_assignment):
                self._slots.give(worker.slot)
        for host in sorted(set(self._settings.blacklist) - self._settings.closed):
            if self._slots.count(supervisors) >= wanted:
                break
            closed.discard(host)
            more = self._slots.open(self._demand.hosts, closed)
            if len(more) > len(supervisors):
                supervisors = more
                self._released.append(host)
        available = self._slots.count(supervisors)
        if available < wanted:
            hosts, up = self._demand.hosts, (supervisor.host for supervisor in self._slots.supervisors.values())
            raise NotEnoughWorkersError(self._demand.flow, count, available, self._settings.reserve, tuple(hosts), up)
        return supervisors

    # --- workers

    def _workers(self, count: int, supervisors: list[Supervisor]) -> list[Draft]:
        """Return user-defined workers, old ones and blank ones (rules 5.3.2, 5.3.3)."""
        drafts = self._user_defined(count)
        taken = {task for draft in drafts for task in draft.tasks}
        usable = {supervisor.id for supervisor in supervisors}
        if self._demand.use_old_assignment:
            self._where_they_were(drafts, usable)
            drafts += self._as_before(count - len(drafts), taken, usable)
        elif self._keeping:
            drafts += self._old_slots(count - len(drafts), taken, self._where_they_were(drafts, usable))
        return drafts + [Draft() for _ in range(count - len(drafts))]

    def _user_defined(self, count: int) -> list[Draft]:
        """Give each the first tasks of its components that no earlier one took; it counts if all are to be placed."""
        need = set(self._need)
        wanted, running = self._not_unstopped()
        free: dict[str, list[int]] = {}
        for task in sorted(self._names.keys() - running):
            free.setdefault(self._names[task], []).append(task)
        drafts = []
        for worker in wanted:
            tasks: list[int] = []
            for name, number in worker.components.items():
                tasks += free.get(name, [])[:number]
                free[name] = free.get(name, [])[number:]
            if tasks and need.issuperset(tasks):
                drafts.append(Draft(host=worker.host, port=worker.port, tasks=tasks))
        if len(drafts) > count:
            self._notes.append(f"{len(drafts)} user-defined workers are too many for {count}: none is followed")
            return []
        return drafts

    def _not_unstopped(self) -> tuple[list[UserWorker], set[int]]:
        """Return the user-defined workers without those that run on dead supervisors, and the tasks of these (5.3.2)."""
        unstopped = [worker for worker in self._standing if worker.supervisor not in self._slots.supervisors]
        others, running = [], set[int]()
        for wanted in self._demand.user_workers:
            for worker in unstopped:
                there = wanted.host in ("", worker.host, worker.supervisor) and wanted.port in (None, worker.port)
                if there and Counter(self._names[task] for task in worker.tasks) == Counter(wanted.components):
                    unstopped.remove(worker)
                    running |= {*worker.tasks}
                    break
            else:
                others.append(wanted)
        return others, running

    def _as_before(self, count: int, taken: set[int], usable: set[str]) -> list[Draft]:
        """Return old workers with their tasks, if all are to be placed and are still tasks of the same components.

        One whose slot is gone comes up anywhere: not with tasks that must stand on different nodes.
        """
        need, drafts = set(self._need) - taken, []
        apart = {component.id for component in self._demand.components if component.different_nodes}
        for worker in self._old.workers:
            tasks = [task for task in worker.tasks if task in self._names]
            there = worker.supervisor in usable and self._slots.has(worker.slot)
            if not there and not apart.isdisjoint(self._names[task] for task in tasks):
                continue
            same = all(self._names[task] == self._old.components.get(task) for task in tasks)
            if tasks and same and need.issuperset(tasks):
                drafts.append(Draft(wanted=worker.slot, host=worker.host, tasks=tasks))
        if len(drafts) > count:
            self._notes.append(f"{len(drafts)} old workers are too many for {count}: none is followed")
            return []
        return drafts

    def _where_they_were(self, drafts: list[Draft], usable: set[str]) -> list[Worker]:
        """Let user-defined workers come up where most of their tasks were; returns the old workers in other free slots.

        It is what a worker wants if it meets the user's wish, and else where it stays if the wish cannot be followed.
        """
        old = [worker for worker in self._old.workers if worker.supervisor in usable and self._slots.has(worker.slot)]

        def common(worker: Worker, draft: Draft) -> int:
            return sum(self._names[task] == self._old.components.get(task) for task in {*worker.tasks} & {*draft.tasks})

        for wished in (True, False):
            for draft in drafts:
                fits = [
                    worker
                    for worker in old
                    if (not wished or not draft.host or draft.host in (worker.host, worker.supervisor))
                    and (not wished or not draft.host or draft.port in (None, worker.port))
                    and common(worker, draft)
                ]
                if not fits or draft.wanted:
                    continue
                best = max(
                    fits,
                    key=lambda worker: (
                        common(worker, draft),
                        draft.host in (worker.host, worker.supervisor),
                        -len({*worker.tasks} - {*draft.tasks}),
                    ),
                )
                draft.wanted, draft.before = (best.slot, None) if wished else (None, best.slot)
                old.remove(best)
        return old

    def _old_slots(self, count: int, taken: set[int], old: list[Worker]) -> list[Draft]:
        """Return slots of old workers, those with most tasks first, on supervisors that may be used.

        The original took slots of dead supervisors too (rule 5.5), and as many as the flow has workers even beside
        user-defined ones, which then were "too many".
        """
        masters = {component.id for component in self._demand.components if component.kind == "master"}

        def weight(worker: Worker) -> tuple[bool, int]:
            left = [self._names[task] for task in worker.tasks if task in self._names and task not in taken]
            return not masters.isdisjoint(left), len(left)

        best_first = sorted(old, key=weight, reverse=True)[:count]
        return [Draft(wanted=worker.slot, host=worker.host) for worker in best_first]

    def _apart(self, drafts: list[Draft], supervisors: list[Supervisor]) -> list[str]:
        """Return hosts that blank workers must go to, so that tasks on different nodes find as many nodes as there are."""
        if not any(part.different_nodes for part in self._demand.components):
            return []
        wanting = Counter(self._names[task] for task in self._need)
        chosen = {draft.node for draft in drafts if draft.slot}
        targets: list[str] = []
        for component in self._demand.components:
            if not component.different_nodes or not wanting[component.id]:
                continue
            has = {on.host for on in self._standing if any(self._names[task] == component.id for task in on.tasks)}
            missing = wanting[component.id] - len(chosen - has)
            others = list(dict.fromkeys(on.host for on in self._slots.by_free(supervisors) if self._slots.free[on.id]))
            others = [host for host in others if host not in has | chosen][: max(missing, 0)]
            targets = max(targets, others, key=len)
        return targets

    # --- tasks

    def _give_tasks(self, drafts: list[Draft], alone: bool) -> None:
        places = self._old.places() if self._keeping else {}
        placing = TaskPlacing(self._demand, self._names, drafts, self._standing, places)
        if names := ", ".join(dict.fromkeys(self._names[task] for task in placing.taken_out)):
            self._notes.append(
                f"tasks of {names} go to different nodes, not where a user-defined or an old worker had them"
            )
        given = {task for draft in drafts for task in draft.tasks}
        tasks = [task for task in self._need if task not in given]
        if alone:
            tasks = placing.master_alone(tasks)
        if self._keeping:
            tasks = placing.keep(tasks)
        placing.place(tasks)

    def _assignment(self, drafts: list[Draft]) -> Assignment:
        """Return the result. A task that did not change its slot keeps the time of its start (rule 5.1.7)."""
        made = [
            Worker(draft.slot[0], draft.slot[1], tuple(draft.tasks), draft.node)
            for draft in drafts
            if draft.slot and draft.tasks
        ]
        new = Assignment(self._demand.flow, in_order([*self._standing, *made]), self._names)
        before, after = self._old.places() if self._going_on else {}, new.places()
        moved = frozenset(task for task, slot in after.items() if before.get(task) != slot)
        now = self._settings.now
        started = {task: now if task in moved else self._old.started.get(task, now) for task in sorted(after)}
        return replace(new, started=started, moved=moved, released=tuple(self._released), notes=tuple(self._notes))


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
        reserve: Slots of the cluster to leave free (rules 5.3.1); Nimbus leaves none (ADR 125).
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
