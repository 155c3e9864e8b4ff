"""The places of deployed flows, and who is alive: assignments, the beats of supervisors and tasks.

A part of the registry, over the same database. A task beats under its lease, so that a worker which lost it hears so at
its next beat, and its beat cannot pass for its successor's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Row, Select, Table, and_, delete, insert, select, update

from pipelines.nimbus.errors import NotAliveError, RegistryLeaseLostError
from pipelines.nimbus.registry.leases import Lease, Leases
from pipelines.nimbus.registry.records import (
    AssignmentRecord,
    DeployedFlow,
    SupervisorBeat,
    TaskBeat,
    WorkerRecord,
    query_of_task,
)
from pipelines.nimbus.registry.store import Store, upsert
from pipelines.nimbus.registry.tables import assignments, beats, flows, supervisors, versions, workers


@dataclass(frozen=True)
class Placing:
    """A place for a flow: where it is to run.

    Attributes:
        flow: As the planner saw it.
        slots: (supervisor, port) to the ids of its tasks.
        kind: NEW, REBALANCE or MONITOR.
    """

    flow: DeployedFlow
    slots: Mapping[tuple[str, int], Iterable[int]]
    kind: str


@dataclass(frozen=True)
class Beat:
    """A task that lives.

    Attributes:
        flow, task: Which.
        lease: Under which it runs.
    """

    flow: DeployedFlow
    task: int
    lease: Lease
    figures: Mapping[str, Any]


# An assignment, with the queries of the version that it was made for.
_HEADS = select(assignments, versions.c.definition["queries"].label("queries")).outerjoin_from(
    assignments, versions, and_(versions.c.flow == assignments.c.flow, versions.c.number == assignments.c.version)
)


class Places:
    """Assignments and beats.

    Args:
        clock: Seconds since 1970.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock, self._leases = store, clock, Leases(store, clock=clock)

    # --- assignments

    def assign_all(self, placed: Sequence[Placing], *, under: Lease | None = None) -> dict[int, AssignmentRecord]:
        """Replace the assignments of several flows in one transaction.

        A task that stays in its slot keeps its start time and its beat; one that moves, or is another query than the task of
        its number was, gets a new start time and has no beat; with kind NEW all begin now (Nimbus rules 5.1.7).

        Args:
            placed: The flows as the planner saw them, with their places.
            under: The caller's lease on leadership.

        Returns:
            The new assignments by the flows' serials; those of flows that were removed meanwhile are not among them.

        Raises:
            ValueError: A task is in two slots.
        """
        # In one order, as `beat_together`: each locks the rows of several flows.
        in_order = sorted(placed, key=lambda plan: plan.flow.serial)
        checked = [(plan, _checked(plan.flow, plan.slots)) for plan in in_order]
        made: dict[int, AssignmentRecord] = {}
        with self._store.write() as connection:
            if under is not None:
                self._leases.guard(connection, under)
            for placing, slots in checked:
                if (record := self._assigned(connection, placing.flow, slots, placing.kind)) is not None:
                    made[placing.flow.serial] = record
        return made

    def _assigned(
        self, connection: Connection, flow: DeployedFlow, placed: Mapping[tuple[str, int], list[int]], kind: str
    ) -> AssignmentRecord | None:
        row = connection.execute(select(flows).where(flows.c.serial == flow.serial).with_for_update()).one_or_none()
        if row is None or row.removed_at is not None:
            return None
        self._put(connection, flow, self._read(connection, flow.serial), placed, kind)
        # An update or a rebalance may have asked for another assignment since the planner looked. What MONITOR places again
        # beside such a wish does not meet it.
        looked = (flow.scratch, flow.version.number, flow.scale.to_json())
        if kind != "MONITOR" and looked == (row.scratch, row.version, row.scale):
            connection.execute(update(flows).where(flows.c.serial == flow.serial).values(scratch=False))
        return self._read(connection, flow.serial)

    def assignment(self, flow: DeployedFlow) -> AssignmentRecord | None:
        """Return a flow's assignment; None before the first, and once it was removed."""
        with self._store.read() as connection:
            alive = select(flows.c.serial).where(flows.c.serial == flow.serial, flows.c.removed_at.is_(None))
            return self._read(connection, flow.serial) if connection.scalar(alive) is not None else None

    def assignments(self, statuses: Collection[str] = ()) -> dict[int, AssignmentRecord]:
        """Return the assignments of all deployed flows, or those of some statuses, by serial."""
        heads = _of_statuses(_HEADS.join(flows, flows.c.serial == assignments.c.flow), statuses)
        slots = _of_statuses(_deployed(workers), statuses)
        records: dict[int, list[WorkerRecord]] = {}
        with self._store.read() as connection:
            for row in connection.execute(slots.order_by(workers.c.supervisor, workers.c.port)):
                records.setdefault(row.flow, []).append(_worker(row))
            return {
                row.flow: _record(row, records.get(row.flow, ()))
                for row in connection.execute(heads.where(flows.c.removed_at.is_(None)))
            }

    def revisions(self) -> dict[int, int]:
        """Return the revision of each deployed flow's assignment, by serial."""
        query = _deployed(assignments, assignments.c.flow, assignments.c.revision)
        with self._store.read() as connection:
            return {row.flow: row.revision for row in connection.execute(query)}

    def last_assignment(self, name: str) -> AssignmentRecord | None:
        """Return the latest assignment of any flow of this name, removed ones too (Nimbus rules 5.1.2: the backup)."""
        query = (
            select(flows.c.serial)
            .join(assignments, assignments.c.flow == flows.c.serial)
            .where(flows.c.name == name)
            .order_by(flows.c.serial.desc())
            .limit(1)
        )
        with self._store.read() as connection:
            serial = connection.scalar(query)
            return None if serial is None else self._read(connection, serial)

    def in_slot(self, supervisor: str, port: int) -> dict[int, tuple[int, ...]]:
        """Return what a slot's worker is to run: the serial of each deployed flow there, with its tasks."""
        query = _deployed(workers).where(workers.c.supervisor == supervisor, workers.c.port == port)
        with self._store.read() as connection:
            return {row.flow: tuple(row.tasks) for row in connection.execute(query)}

    def used_slots(self) -> dict[tuple[str, int], list[str]]:
        """Return the names of the deployed flows that run in each (supervisor, port)."""
        query = _deployed(workers, workers.c.supervisor, workers.c.port, flows.c.name)
        query = query.order_by(workers.c.supervisor, workers.c.port, flows.c.name)
        used: dict[tuple[str, int], list[str]] = {}
        with self._store.read() as connection:
            for row in connection.execute(query):
                used.setdefault((row.supervisor, row.port), []).append(row.name)
        return used

    # --- beats

    def beat_supervisor(self, supervisor: str, host: str, ports: Sequence[int], *, started_at: float) -> None:
        """Record that a supervisor lives and which slots it offers."""
        values = {"host": host, "ports": list(ports), "started_at": started_at, "beat_at": self._clock()}
        with self._store.write() as connection:
            upsert(connection, supervisors, {"supervisor": supervisor, **values})

    def blacklist(self, hosts: Iterable[str], *, under: Lease) -> None:
        """Record which hosts the leader leaves out from now on."""
        with self._store.write() as connection:
            self._leases.guard(connection, under)
            connection.execute(update(supervisors).values(blacklisted=supervisors.c.host.in_(list(hosts))))

    def supervisors(self) -> list[SupervisorBeat]:
        """Return all supervisors, silent ones too, by id."""
        query = select(supervisors).order_by(supervisors.c.supervisor)
        with self._store.read() as connection:
            return [
                SupervisorBeat(
                    row.supervisor, row.host, tuple(row.ports), row.started_at, row.beat_at, bool(row.blacklisted)
                )
                for row in connection.execute(query)
            ]

    def beat_together(
        self, beaten: Sequence[Beat], slot: tuple[str, int], *, lease_seconds: float
    ) -> list[RegistryLeaseLostError | NotAliveError | None]:
        """Record that tasks of one slot live and how far they are, and prolong their leases, in one transaction.

        Returns:
            Per beat why it was refused, else None; the others hold all the same. RegistryLeaseLostError: the task runs
            elsewhere by now, or its lease ran out: stop it at once. NotAliveError: the flow was removed: stop it.
        """
        refused = dict[int, RegistryLeaseLostError | NotAliveError | None]()
        with self._store.write() as connection:
            for number, beat in sorted(enumerate(beaten), key=lambda numbered: numbered[1].flow.serial):
                refused[number] = self._tried(connection, beat, slot, lease_seconds)
        return [refused[number] for number in range(len(beaten))]

    def _tried(
        self, connection: Connection, beat: Beat, slot: tuple[str, int], lease_seconds: float
    ) -> RegistryLeaseLostError | NotAliveError | None:
        # Nothing of a beat that is refused may stay.
        savepoint = connection.begin_nested()
        try:
            self._beat(connection, beat, slot, lease_seconds)
        except (RegistryLeaseLostError, NotAliveError) as error:
            savepoint.rollback()
            return error
        savepoint.commit()
        return None

    def _beat(self, connection: Connection, beat: Beat, slot: tuple[str, int], lease_seconds: float) -> None:
        self._leases.renew_in(connection, beat.lease, lease_seconds)
        alive = select(flows.c.serial).where(flows.c.serial == beat.flow.serial, flows.c.removed_at.is_(None))
        # The lock keeps a removal from passing between this look and the beat.
        if connection.scalar(alive.with_for_update(read=True)) is None:
            raise NotAliveError(beat.flow.name)
        values = {"supervisor": slot[0], "port": slot[1], "token": beat.lease.token, "figures": dict(beat.figures)}
        upsert(connection, beats, {"flow": beat.flow.serial, "task": beat.task, "beat_at": self._clock(), **values})

    def beats(self, flow: DeployedFlow) -> dict[int, TaskBeat]:
        """Return the last beat of every task of a flow that has beaten."""
        query = select(beats).where(beats.c.flow == flow.serial).order_by(beats.c.task)
        with self._store.read() as connection:
            return {row.task: _task_beat(row) for row in connection.execute(query)}

    def beats_of_all(self, statuses: Collection[str] = ()) -> dict[int, dict[int, TaskBeat]]:
        """Return the same for every deployed flow, or those of some statuses, by serial, with one query."""
        task_beats: dict[int, dict[int, TaskBeat]] = {}
        query = _of_statuses(_deployed(beats), statuses).order_by(beats.c.task)
        with self._store.read() as connection:
            for row in connection.execute(query):
                task_beats.setdefault(row.flow, {})[row.task] = _task_beat(row)
        return task_beats

    def all_beats(self) -> dict[int, dict[int, float]]:
        """Return when each task of every deployed flow last beat: by serial and task."""
        query = _deployed(beats, beats.c.flow, beats.c.task, beats.c.beat_at)
        times: dict[int, dict[int, float]] = {}
        with self._store.read() as connection:
            for row in connection.execute(query):
                times.setdefault(row.flow, {})[row.task] = row.beat_at
        return times

    def _put(
        self,
        connection: Connection,
        flow: DeployedFlow,
        old: AssignmentRecord | None,
        placed: Mapping[tuple[str, int], list[int]],
        kind: str,
    ) -> None:
        now = self._clock()
        queries = query_of_task(flow.version.content.definition.get("queries"))
        kept = {
            (worker.supervisor, worker.port, task): at
            for worker in (old.workers if old and kind != "NEW" else ())
            for task, at in worker.started_at.items()
            if old and old.queries.get(task) == queries.get(task)
        }
        rows, stays = [], set()
        for (supervisor, port), tasks in placed.items():
            started = {task: kept.get((supervisor, port, task), now) for task in tasks}
            stays |= {task for task in tasks if (supervisor, port, task) in kept}
            times = {str(task): at for task, at in started.items()}
            rows.append(
                {"flow": flow.serial, "supervisor": supervisor, "port": port, "tasks": tasks, "started_at": times}
            )
        connection.execute(delete(workers).where(workers.c.flow == flow.serial))
        if rows:
            connection.execute(insert(workers), rows)
        connection.execute(delete(beats).where(beats.c.flow == flow.serial, beats.c.task.not_in(stays)))
        made = {"kind": kind, "version": flow.version.number, "made_at": now}
        revision = old.revision + 1 if old else 1
        upsert(connection, assignments, {"flow": flow.serial, "revision": revision, **made})

    @staticmethod
    def _read(connection: Connection, serial: int) -> AssignmentRecord | None:
        head = connection.execute(_HEADS.where(assignments.c.flow == serial)).one_or_none()
        if head is None:
            return None
        query = select(workers).where(workers.c.flow == serial).order_by(workers.c.supervisor, workers.c.port)
        return _record(head, [_worker(row) for row in connection.execute(query)])


def dead_of(
    assignment: AssignmentRecord | None,
    beat_at: Mapping[int, float],
    *,
    now: float,
    timeout_seconds: float,
    launch_seconds: float,
) -> set[int]:
    """Return the tasks of a flow that are to be placed again (Nimbus rules 5.1.3).

    A task is dead when its last beat is older than `timeout_seconds`, or when it has never beaten in its slot and was put
    there more than `launch_seconds` ago. All tasks of its worker are dead with it: they are one process.

    Args:
        beat_at: Task to its last beat, in seconds since 1970.
        now: The same clock's time.
        timeout_seconds, launch_seconds: See above.
    """
    dead: set[int] = set()
    for worker in assignment.workers if assignment else ():
        silent = any(now - beat_at[task] > timeout_seconds for task in worker.tasks if task in beat_at)
        unborn = any(now - worker.started_at[task] > launch_seconds for task in worker.tasks if task not in beat_at)
        if silent or unborn:
            dead.update(worker.tasks)
    return dead


def _checked(flow: DeployedFlow, slots: Mapping[tuple[str, int], Iterable[int]]) -> dict[tuple[str, int], list[int]]:
    placed = {slot: sorted(tasks) for slot, tasks in slots.items()}
    every = [task for tasks in placed.values() for task in tasks]
    if len(every) != len(set(every)):
        raise ValueError(f'flow "{flow.name}": a task is assigned twice: {sorted(every)}')
    return placed


def _deployed(table: Table, *columns: Column[Any]) -> Select[Any]:
    """Return the query of a table's rows (or some columns) of deployed flows."""
    chosen = select(*(columns or (table,)))
    return chosen.join_from(table, flows, flows.c.serial == table.c.flow).where(flows.c.removed_at.is_(None))


def _of_statuses(query: Select[Any], statuses: Collection[str]) -> Select[Any]:
    """Return a query over flows, of those in some statuses alone; none named: of all."""
    return query.where(flows.c.status.in_(statuses)) if statuses else query


def _task_beat(row: Row[Any]) -> TaskBeat:
    return TaskBeat(row.task, row.supervisor, row.port, row.token, row.beat_at, row.figures)


def _record(row: Row[Any], workers: Sequence[WorkerRecord]) -> AssignmentRecord:
    return AssignmentRecord(
        row.revision, row.kind, row.version, row.made_at, tuple(workers), query_of_task(row.queries)
    )


def _worker(row: Row[Any]) -> WorkerRecord:
    started = {int(task): at for task, at in row.started_at.items()}
    return WorkerRecord(row.supervisor, row.port, tuple(row.tasks), started)
