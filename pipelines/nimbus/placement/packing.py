"""Put the workers of a flow into slots, and its tasks into the workers (Nimbus rules 4, 5.2 to 5.4)."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.errors import AssignmentError, NotEnoughNodesError
from pipelines.nimbus.placement.model import SUPERVISOR_TIMEOUT_SECONDS, Component, Demand, Supervisor, Worker

Slot = tuple[str, int]


@dataclass(eq=False)
class Draft:
    """A worker that is being planned: where it wants to be, where it was, where it is put, and its tasks so far."""

    host: str = ""
    wanted: Slot | None = None
    before: Slot | None = None
    port: int | None = None
    tasks: list[int] = field(default_factory=list)
    slot: Slot | None = None
    node: str = ""


class Slots:
    """The free slots of all supervisors that are alive (Nimbus rules 5.1.1, 5.1.4)."""

    def __init__(self, supervisors: Iterable[Supervisor], timeout_seconds: float = SUPERVISOR_TIMEOUT_SECONDS) -> None:
        alive = (supervisor for supervisor in supervisors if supervisor.silent_seconds <= timeout_seconds)
        self.supervisors = {supervisor.id: supervisor for supervisor in alive}
        self.free = {
            supervisor.id: sorted(set(supervisor.ports) - set(supervisor.used))
            for supervisor in self.supervisors.values()
        }
        self._changes: list[tuple[Slot, bool]] = []

    def take(self, slot: Slot) -> None:
        """Make a slot used, if there is such a free one."""
        if slot[1] in self.free.get(slot[0], ()):
            self.free[slot[0]].remove(slot[1])
            self._changes.append((slot, True))

    def give(self, slot: Slot) -> None:
        """Make a slot free, if its supervisor is alive and has it."""
        supervisor = self.supervisors.get(slot[0])
        if supervisor is not None and slot[1] in supervisor.ports and slot[1] not in self.free[supervisor.id]:
            insort(self.free[supervisor.id], slot[1])
            self._changes.append((slot, False))

    def has(self, slot: Slot) -> bool:
        return slot[1] in self.free.get(slot[0], ())

    def used(self, supervisor: Supervisor) -> int:
        return len(supervisor.ports) - len(self.free[supervisor.id])

    def open(self, hosts: Collection[str], closed: Collection[str]) -> list[Supervisor]:
        """Return the supervisors that a flow may use: on `hosts` if there are any, and not on closed ones."""
        if not hosts and not closed:
            return list(self.supervisors.values())
        return [
            supervisor
            for supervisor in self.supervisors.values()
            if (not hosts or supervisor.host in hosts or supervisor.id in hosts)
            and not (closed and (supervisor.host in closed or supervisor.id in closed))
        ]

    def undo(self) -> None:
        """Take back every change since the last `settle`."""
        while self._changes:
            slot, taken = self._changes.pop()
            if taken:
                insort(self.free[slot[0]], slot[1])
            else:
                self.free[slot[0]].remove(slot[1])

    def settle(self) -> None:
        """Let the changes so far stand."""
        self._changes.clear()

    def count(self, supervisors: Iterable[Supervisor]) -> int:
        return sum([len(self.free[supervisor.id]) for supervisor in supervisors])

    def by_free(self, supervisors: Iterable[Supervisor]) -> list[Supervisor]:
        """Sort supervisors by free slots, most first; ties in the order of their ids."""
        ranked = sorted([(-len(self.free[supervisor.id]), supervisor.id) for supervisor in supervisors])
        return [self.supervisors[name] for _, name in ranked]

    def put(self, draft: Draft, supervisor: Supervisor, port: int | None = None) -> None:
        """Put a worker on a supervisor with a free slot: on the port if it is free, else on the lowest free one."""
        free = self.free[supervisor.id]
        chosen = port if port is not None and port in free else free[0]
        draft.slot, draft.node = (supervisor.id, chosen), supervisor.host
        self.take(draft.slot)


def place(
    slots: Slots, drafts: Sequence[Draft], supervisors: Sequence[Supervisor], apart: Collection[str] = ()
) -> None:
    """Put every draft that has none into a free slot of these supervisors; there are enough of them (Nimbus rules 5.3.4).

    `apart` are hosts that the first blank workers need: one each, before the round over all. They are there where tasks
    must stand on different nodes.
    """
    blank = [draft for draft in drafts if draft.slot is None]
    for host in list(apart)[: len(blank)]:
        chosen = next(
            (supervisor for supervisor in supervisors if supervisor.host == host and slots.free[supervisor.id]), None
        )
        if chosen is not None:
            slots.put(blank.pop(0), chosen)
    _round(slots, blank, supervisors, len(drafts))


def place_wanted(slots: Slots, drafts: Sequence[Draft], supervisors: Sequence[Supervisor]) -> None:
    """Place workers that want a host: wanted ports before any other, so that no worker takes another's.

    One whose wish cannot be followed stays where it was.
    """
    first = not any(draft.wanted or draft.before for draft in drafts)
    by_id = {} if first else {supervisor.id: supervisor for supervisor in supervisors}
    for draft in drafts:
        _return(slots, draft, draft.wanted, by_id)
    named = [draft for draft in drafts if draft.slot is None and draft.host]
    for exact in (True, False):
        for draft in named:
            here = (
                supervisor
                for supervisor in supervisors
                if draft.host in (supervisor.host, supervisor.id) and slots.free[supervisor.id]
            )
            chosen = next(
                (supervisor for supervisor in here if not exact or slots.has((supervisor.id, draft.port or -1))), None
            )
            if draft.slot is None and chosen is not None:
                slots.put(draft, chosen, draft.port)
        for draft in drafts:
            at = by_id.get(draft.before[0]) if draft.before else None
            if at is not None and (not exact or draft.host in (at.host, at.id)):
                _return(slots, draft, draft.before, by_id)


def _return(slots: Slots, draft: Draft, slot: Slot | None, by_id: Mapping[str, Supervisor]) -> None:
    """Put a worker that has no slot yet into this one, if it is free."""
    if draft.slot is None and slot is not None and slot[0] in by_id and slots.has(slot):
        slots.put(draft, by_id[slot[0]], slot[1])


def _round(slots: Slots, blank: Sequence[Draft], supervisors: Sequence[Supervisor], workers: int) -> None:
    """Round robin by free ports, descending, over those below the theoretical load; then over those that reached it.

    The original divided by the number of supervisors with a free slot, which is zero when user-defined workers have
    taken all of them (Nimbus rules 5.3.6): then there is no one left to place here.
    """
    if not blank:
        return
    pool = [supervisor for supervisor in slots.by_free(supervisors) if slots.free[supervisor.id]]
    theory = (sum([slots.used(supervisor) for supervisor in pool]) + workers) // len(pool) + 1
    waiting = list(reversed(blank))
    full: list[Supervisor] = []
    _deal(slots, waiting, pool, theory, full)
    _deal(slots, waiting, slots.by_free(full), None, [])


def _deal(
    slots: Slots, waiting: list[Draft], pool: list[Supervisor], limit: int | None, full: list[Supervisor]
) -> None:
    at = 0
    while waiting and pool:
        at %= len(pool)
        supervisor = pool[at]
        if limit is not None and slots.used(supervisor) >= limit:
            full.append(pool.pop(at))
            continue
        draft = waiting.pop()
        slots.put(draft, supervisor, draft.port)
        if slots.free[supervisor.id]:
            at += 1
        else:
            pool.pop(at)


MANY_WORKERS = 10
"""From so many workers on, the master has one of its own (Nimbus rules 5.2)."""


def worker_count(demand: Demand) -> tuple[int, bool]:
    """Return how many workers a flow gets, and whether its master has one of them for itself (Nimbus rules 5.2).

    The master is no part of the count unless it stands alone. A flow of a master only has one worker.
    """
    masters = sum(component.tasks for component in demand.components if component.kind == "master")
    tasks = sum(component.tasks for component in demand.components) - masters
    count = tasks if demand.workers is None else min(demand.workers, tasks)
    alone = demand.single_master if demand.single_master is not None else count >= MANY_WORKERS
    if alone and masters:
        return count + masters, True
    return (count or min(masters, 1)), False


def number_tasks(components: Sequence[Component], old: Mapping[int, str] | None = None) -> dict[int, str]:
    """Return the component of each task id (Nimbus rules 4).

    Ids start at 1: bolts in the order of their ids, then spouts, those of a component adjacent. Beside an old numbering
    tasks keep their ids, new ones follow the highest, and a component that shrinks loses its highest ones.
    """
    ordered = sorted(components, key=lambda item: (item.kind == "spout", item.id))
    before: dict[str, list[int]] = {}
    for task in sorted(old or {}):
        before.setdefault((old or {})[task], []).append(task)
    following = max(old or {0: ""}) + 1
    numbering: dict[int, str] = {}
    for component in ordered:
        kept = before.get(component.id, [])[: component.tasks]
        new = range(following, following + component.tasks - len(kept))
        following += len(new)
        numbering.update(dict.fromkeys([*kept, *new], component.id))
    return numbering


class TaskPlacing:
    """Gives the tasks of one flow to its placed workers.

    Args:
        names: The component of each task.
        drafts: The workers, in slots; some may hold tasks already (user-defined, or kept where they were). Of tasks that
            must stand on different nodes one per node stays, if there is one that was there; others are `taken_out`.
        standing: Workers that stay as they are. They get nothing, but what they hold counts for their hosts.
        places: The slots that tasks had, if they stay there.
    """

    def __init__(
        self,
        demand: Demand,
        names: Mapping[int, str],
        drafts: Sequence[Draft],
        standing: Iterable[Worker],
        places: Mapping[int, tuple[str, int]],
    ) -> None:
        self._demand, self._names, self._drafts = demand, names, list(drafts)
        self._components = {component.id: component for component in demand.components}
        self._related = related(demand.components)
        self._on_worker: dict[Draft, dict[str, int]] = {draft: {} for draft in drafts}
        self._on_node: dict[str, dict[str, int]] = {draft.node: {} for draft in drafts}
        self._node_total: Counter[str] = Counter()
        for worker in standing:
            self._count(worker.host, None, (names[task] for task in worker.tasks))
        self._places = places
        self.taken_out: list[int] = []
        for draft in drafts:
            held, draft.tasks = draft.tasks, []
            for task in sorted(held, key=lambda task: places.get(task) != draft.slot):
                if self._crowds(task, draft):
                    self.taken_out.append(task)
                else:
                    self._push(task, draft)

    def _crowds(self, task: int, draft: Draft) -> bool:
        """Return whether a task must not stand on this node, as one of its component does (Nimbus rules 5.4.3)."""
        name = self._names[task]
        return self._components[name].different_nodes and self._on_node[draft.node].get(name, 0) > 0

    def _count(self, node: str, draft: Draft | None, components: Iterable[str]) -> None:
        held = [self._on_node.setdefault(node, {})] + ([self._on_worker[draft]] if draft else [])
        for name in components:
            self._node_total[node] += 1
            for counts in held:
                counts[name] = counts.get(name, 0) + 1

    def keep(self, tasks: Iterable[int]) -> list[int]:
        """Leave tasks in the slots that they had, where there is a worker (Nimbus rules 5.4.6); returns the others.

        Two tasks that must stand on different nodes by now and stand on one do not both stay.
        """
        at = {draft.slot: draft for draft in self._drafts}
        others = []
        for task in sorted(tasks):
            draft = at.get(self._places.get(task, ("", 0)))
            if draft is None or self._crowds(task, draft):
                others.append(task)
            else:
                self._push(task, draft)
        return others

    def master_alone(self, tasks: Sequence[int]) -> list[int]:
        """Give each of the master's tasks a worker that holds nothing else; returns the tasks that remain.

        Its worker is the one that it had, else an empty one on the host with most workers (Nimbus rules 5.4.2).
        """
        masters = [task for task in tasks if self._components[self._names[task]].kind == "master"]
        for task in masters:
            hosts = Counter(draft.node for draft in self._drafts)
            free = [draft for draft in self._drafts if not draft.tasks]
            if not free:
                raise AssignmentError(
                    self._demand.flow, "there's no enough workers for the assignment of topology master"
                )
            chosen = min(free, key=lambda draft: (draft.slot != self._places.get(task), -hosts[draft.node]))
            self._push(task, chosen)
            self._drafts.remove(chosen)
        return [task for task in tasks if task not in masters]

    def place(self, tasks: Iterable[int]) -> None:
        """Place tasks: those on different nodes, then normal ones, then system components (Nimbus rules 5.4.3)."""
        ordered = sorted(tasks, key=lambda task: (self._turn(self._names[task]), task))
        self._pool = Pool(self._drafts, len(ordered))
        for task in ordered:
            draft = self._choose(self._components[self._names[task]])
            self._push(task, draft)
            self._pool.grown(draft)

    def _turn(self, name: str) -> int:
        component = self._components[name]
        return 0 if component.different_nodes else 2 if component.system else 1

    def _push(self, task: int, draft: Draft) -> None:
        draft.tasks.append(task)
        self._count(draft.node, draft, [self._names[task]])

    def _choose(self, component: Component) -> Draft:
        candidates = self._pool.workers
        if component.different_nodes:
            candidates = self._elsewhere(component, self._pool.workers) or self._elsewhere(component, self._drafts)
            if not candidates:
                raise NotEnoughNodesError(
                    self._demand.flow,
                    f"there's no enough supervisor for making component: {component.id} 's tasks on different node",
                )
        if not candidates:
            raise AssignmentError(self._demand.flow, f"no worker is left for component: {component.id}")
        if len(candidates) == 1:
            return candidates[0]
        return min(candidates, key=self._ranking(component))

    def _elsewhere(self, component: Component, drafts: Sequence[Draft]) -> list[Draft]:
        """Return workers on hosts without this component. (If those of the pool have it, a full worker may take one more.)"""
        return [draft for draft in drafts if component.id not in self._on_node[draft.node]]

    def _ranking(self, component: Component) -> Callable[[Draft], tuple[int, ...]]:
        """Rank by the three selectors: same component, all tasks, related tasks; the worker's, then its host's (5.4.4).

        Ties go to the worker that was placed first; the original took them in the order of a hash table.
        """
        name = component.id
        others = () if component.system else self._related[name]

        def rank(draft: Draft) -> tuple[int, ...]:
            here, near = self._on_worker[draft], self._on_node[draft.node]
            few = (here.get(name, 0), near.get(name, 0), len(draft.tasks), self._node_total[draft.node])
            if not others:
                return few
            return (*few, -sum([here.get(on, 0) for on in others]), -sum([near.get(on, 0) for on in others]))

        return rank


class Pool:
    """The workers that may still get tasks, so that loads stay even (Nimbus rules 5.4.1, 5.4.5, 5.4.6)."""

    def __init__(self, drafts: Sequence[Draft], tasks: int) -> None:
        self.workers = list(drafts)
        total = tasks + sum(len(draft.tasks) for draft in drafts)
        while self.workers:
            self._average, self._left = divmod(total, len(self.workers))
            full = [draft for draft in self.workers if draft.tasks and self._full(draft)]
            if not full:
                break
            for worker in full:
                self.workers.remove(worker)
                total -= len(worker.tasks)

    def _full(self, draft: Draft) -> bool:
        return len(draft.tasks) > self._average or (self._left <= 0 and len(draft.tasks) == self._average)

    def grown(self, draft: Draft) -> None:
        """Take a worker with a new task out if it is full, and with the last odd one all that have the average."""
        if draft not in self.workers or not self._full(draft):
            return
        self.workers = [worker for worker in self.workers if worker is not draft]
        self._left -= len(draft.tasks) - self._average
        if self._left <= 0 and self._average > 0:
            self.workers = [worker for worker in self.workers if len(worker.tasks) < self._average]


def related(components: Sequence[Component]) -> dict[str, frozenset[str]]:
    """Return the components near to each: what a bolt reads; the bolts that read a spout (Nimbus rules 5.4.4)."""
    readers: dict[str, set[str]] = {component.id: set() for component in components}
    for reader in components:
        for read in reader.inputs:
            if reader.kind != "spout" and read in readers:
                readers[read].add(reader.id)
    return {
        component.id: frozenset(readers[component.id] if component.kind == "spout" else component.inputs)
        for component in components
    }
