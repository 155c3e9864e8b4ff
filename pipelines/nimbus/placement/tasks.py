"""Task ids, the number of workers, and which task goes to which worker (Nimbus rules 4, 5.2 and 5.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from pipelines.errors import AssignmentError, NotEnoughNodesError
from pipelines.nimbus.placement.model import Component, Demand, Worker
from pipelines.nimbus.placement.packing import Draft

MANY_WORKERS = 10
"""From so many workers on, the master has one of its own (Nimbus rules 5.2)."""


def worker_count(demand: Demand) -> tuple[int, bool]:
    """How many workers a flow gets, and whether its master has one of them for itself (Nimbus rules 5.2).

    The master is no part of the count unless it stands alone. A flow of a master only has one worker.
    """
    masters = sum(one.tasks for one in demand.components if one.kind == "master")
    tasks = sum(one.tasks for one in demand.components) - masters
    count = tasks if demand.workers is None else min(demand.workers, tasks)
    alone = demand.single_master if demand.single_master is not None else count >= MANY_WORKERS
    if alone and masters:
        return count + masters, True
    return (count or min(masters, 1)), False


def number_tasks(components: Sequence[Component], old: Mapping[int, str] | None = None) -> dict[int, str]:
    """The component of each task id (Nimbus rules 4).

    Ids start at 1: bolts in the order of their ids, then spouts, those of a component adjacent. Beside an old numbering
    tasks keep their ids, new ones follow the highest, and a component that shrinks loses its highest ones.
    """
    ordered = sorted(components, key=lambda one: (one.kind == "spout", one.id))
    before: dict[str, list[int]] = {}
    for task in sorted(old or {}):
        before.setdefault((old or {})[task], []).append(task)
    following = max(old or {0: ""}) + 1
    found: dict[int, str] = {}
    for one in ordered:
        kept = before.get(one.id, [])[: one.tasks]
        new = range(following, following + one.tasks - len(kept))
        following += len(new)
        found.update(dict.fromkeys([*kept, *new], one.id))
    return found


class TaskPlacing:
    """Gives the tasks of one flow to its placed workers.

    Args:
        demand: The flow.
        names: The component of each task.
        drafts: The workers, in slots; some may hold tasks already (user-defined, or kept where they were).
        standing: Workers that stay as they are. They get nothing, but what they hold counts for their hosts.
    """

    def __init__(
        self, demand: Demand, names: Mapping[int, str], drafts: Sequence[Draft], standing: Iterable[Worker] = ()
    ) -> None:
        self._demand, self._names, self._drafts = demand, names, list(drafts)
        self._components = {one.id: one for one in demand.components}
        self._related = related(demand.components)
        self._on_worker: dict[Draft, dict[str, int]] = {one: {} for one in drafts}
        self._on_node: dict[str, dict[str, int]] = {one.node: {} for one in drafts}
        self._node_total: Counter[str] = Counter()
        for worker in standing:
            self._count(worker.host, None, (names[task] for task in worker.tasks))
        for draft in drafts:
            self._count(draft.node, draft, (names[task] for task in draft.tasks))

    def _count(self, node: str, draft: Draft | None, components: Iterable[str]) -> None:
        held = [self._on_node.setdefault(node, {})] + ([self._on_worker[draft]] if draft else [])
        for name in components:
            self._node_total[node] += 1
            for counts in held:
                counts[name] = counts.get(name, 0) + 1

    def keep(self, places: Mapping[int, tuple[str, int]], tasks: Iterable[int]) -> list[int]:
        """Leave tasks in the slots that they had, where there is a worker (Nimbus rules 5.4.6); returns the others.

        Two tasks that must stand on different nodes by now and stand on one do not both stay.
        """
        at = {one.slot: one for one in self._drafts}
        others = []
        for task in sorted(tasks):
            draft, name = at.get(places.get(task, ("", 0))), self._names[task]
            if draft is None or (self._components[name].different_nodes and self._on_node[draft.node].get(name)):
                others.append(task)
            else:
                self._push(task, draft)
        return others

    def master_alone(self, tasks: Sequence[int], places: Mapping[int, tuple[str, int]]) -> list[int]:
        """Give each of the master's tasks a worker that holds nothing else; returns the tasks that remain.

        Its worker is the one that it had, else an empty one on the host with most workers (Nimbus rules 5.4.2).
        """
        masters = [task for task in tasks if self._components[self._names[task]].kind == "master"]
        for task in masters:
            hosts = Counter(one.node for one in self._drafts)
            free = [one for one in self._drafts if not one.tasks]
            if not free:
                raise AssignmentError(
                    self._demand.flow, "there's no enough workers for the assignment of topology master"
                )
            chosen = min(free, key=lambda one: (one.slot != places.get(task), -hosts[one.node]))
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
        one = self._components[name]
        return 0 if one.different_nodes else 2 if one.system else 1

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
        if len(candidates) == 1:
            return candidates[0]
        return min(candidates, key=self._ranking(component))

    def _elsewhere(self, component: Component, drafts: Sequence[Draft]) -> list[Draft]:
        """Workers on hosts without this component. (If those of the pool have it, a full worker may take one more.)"""
        return [one for one in drafts if component.id not in self._on_node[one.node]]

    def _ranking(self, component: Component) -> Callable[[Draft], tuple[int, ...]]:
        """The three selectors: same component, all tasks, related tasks; the worker's, then its host's (5.4.4).

        Ties go to the worker that was placed first; the original took them in the order of a hash table.
        """
        name = component.id
        others = () if component.system else self._related[name]

        def rank(one: Draft) -> tuple[int, ...]:
            here, near = self._on_worker[one], self._on_node[one.node]
            few = (here.get(name, 0), near.get(name, 0), len(one.tasks), self._node_total[one.node])
            if not others:
                return few
            return (*few, -sum([here.get(on, 0) for on in others]), -sum([near.get(on, 0) for on in others]))

        return rank


class Pool:
    """The workers that may still get tasks, so that loads stay even (Nimbus rules 5.4.1, 5.4.5, 5.4.6)."""

    def __init__(self, drafts: Sequence[Draft], tasks: int) -> None:
        self.workers = list(drafts)
        total = tasks + sum(len(one.tasks) for one in drafts)
        while self.workers:
            self._average, self._left = divmod(total, len(self.workers))
            full = [one for one in self.workers if one.tasks and self._full(one)]
            if not full:
                break
            for one in full:
                self.workers.remove(one)
                total -= len(one.tasks)

    def _full(self, one: Draft) -> bool:
        return len(one.tasks) > self._average or (self._left <= 0 and len(one.tasks) == self._average)

    def grown(self, draft: Draft) -> None:
        """A worker has got a task: it leaves if it is full, and with the last odd one all that have the average."""
        if draft not in self.workers or not self._full(draft):
            return
        self.workers = [one for one in self.workers if one is not draft]
        self._left -= len(draft.tasks) - self._average
        if self._left <= 0 and self._average > 0:
            self.workers = [one for one in self.workers if len(one.tasks) < self._average]


def related(components: Sequence[Component]) -> dict[str, frozenset[str]]:
    """The components near to each: what a bolt reads; the bolts that read a spout (Nimbus rules 5.4.4)."""
    readers: dict[str, set[str]] = {one.id: set() for one in components}
    for one in components:
        for read in one.inputs:
            if one.kind != "spout" and read in readers:
                readers[read].add(one.id)
    return {one.id: frozenset(readers[one.id] if one.kind == "spout" else one.inputs) for one in components}
