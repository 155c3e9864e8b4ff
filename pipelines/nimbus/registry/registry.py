"""The registry: which flows are deployed, in which version and status. It is the place of the original's ZooKeeper.

Every call is one transaction. A call with `under` is refused, in that transaction, when the lease is no longer held: so a
nimbus that lost its leadership while it was frozen changes nothing when it wakes up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from pipelines.causes import shortened
from pipelines.nimbus.errors import AlreadyAliveError, NotAliveError, NoTransitionError, VersionError
from pipelines.nimbus.registry import lifecycle
from pipelines.nimbus.registry.leases import Lease, Leases
from pipelines.nimbus.registry.lifecycle import Action, FlowEvent, Request, Standing, Status, Transition
from pipelines.nimbus.registry.records import (
    Content,
    DeployedFlow,
    Happened,
    Version,
    check_content,
    check_first,
    check_name,
    merged,
    standing_columns,
    standing_of,
    version_of,
)
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.registry.tables import beats, events, flows, versions

PLACING_SETTINGS = ("application", "isolated", "master", "spark", "hosts", "user_workers", "use_old_assignment")
"""The settings that decide where a flow's tasks run."""


@dataclass(frozen=True)
class _Change:
    """A new version of a flow: the event that makes it, its content, the version before it, and the one that it copies."""

    event: str
    content: Content
    before: int | None
    said: Request = field(default_factory=Request)
    copy_of: int | None = None


class Registry:
    """Deployed flows, their versions and statuses.

    Args:
        clock: Seconds since 1970.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self.leases = Leases(store, clock=clock)
        self._store, self._clock = store, clock

    # --- versions

    def submit(self, name: str, content: Content, *, status: Status = Status.ACTIVE) -> DeployedFlow:
        """Deploy a flow as version 1 (Nimbus rules 1.2).

        Raises:
            AlreadyAliveError: A flow of this name is deployed; a killed one counts until it is removed.
        """
        check_name(name)
        check_first(name, status)
        check_content(name, content)
        try:
            with self._store.write() as connection:
                alive = self._alive(connection, name)
                if alive is not None:
                    raise AlreadyAliveError(name, alive.status)
                return self._insert(connection, name, content, status)
        except IntegrityError as error:
            # Another process has submitted it between the look and the insert (PostgreSQL).
            raise AlreadyAliveError(name, Status.ACTIVE) from error

    def update(
        self, name: str, content: Content, *, seen: DeployedFlow | None = None, said: Request | None = None
    ) -> DeployedFlow:
        """Give a flow a new version; what rebalances have set stays, but for what is said and components that are gone.

        Args:
            seen: The flow whose version the content goes on from; None: it goes on from none.
            said: The part of the content that was asked for now.

        Raises:
            VersionError: Another version, or another submission of the name, has come since it was seen.
        """
        with self._store.write() as connection:
            row = self._changeable(connection, name, "UPDATE", seen)
            check_content(name, content)
            return self._new_version(connection, row, _Change("UPDATE", content, row.version, said=said or Request()))

    def roll_back(self, name: str, to: int | None = None, *, seen: DeployedFlow | None = None) -> DeployedFlow:
        """Make an earlier version's content the current one, as a new version: history is only added to.

        Without `to` it is the one before the current; called again, the one before that.

        Args:
            seen: The flow whose version is to be taken back; None: whichever is current.

        Raises:
            VersionError: There is no such version, or none before the current one; or as `update`.
        """
        with self._store.write() as connection:
            row = self._changeable(connection, name, "ROLL_BACK", seen)
            current = self._version(connection, row, row.version)
            target = current.before if to is None else to
            if target is None:
                raise VersionError(name, row.version, "there is none before it", row.version)
            version = self._version(connection, row, target)
            change = _Change("ROLL_BACK", version.content, version.before, copy_of=version.number)
            return self._new_version(connection, row, change)

    def versions(self, name: str) -> list[Version]:
        """Return every version of a deployed flow, the oldest first."""
        with self._store.read() as connection:
            row = self._found(connection, name)
            query = select(versions).where(versions.c.flow == row.serial).order_by(versions.c.number)
            return [version_of(version_row) for version_row in connection.execute(query)]

    # --- statuses

    def activate(self, name: str) -> DeployedFlow:
        """Set ACTIVE; a flow that has this status keeps it. Raises as `kill`."""
        return self._send(name, FlowEvent.ACTIVATE)

    def deactivate(self, name: str) -> DeployedFlow:
        """Set INACTIVE; a flow that has this status keeps it. Raises as `kill`."""
        return self._send(name, FlowEvent.INACTIVATE)

    def kill(self, name: str, *, wait_seconds: float | None = None) -> DeployedFlow:
        """Set KILLED at once; assignment and all stay until the delay is over (`fire`). Killed again: a new delay."""
        return self._send(name, FlowEvent.KILL, wait_seconds=wait_seconds)

    def rebalance(
        self, name: str, request: Request | None = None, *, wait_seconds: float | None = None
    ) -> DeployedFlow:
        """Set REBALANCING at once; the request is applied and the flow placed again when the delay is over (`fire`)."""
        return self._send(name, FlowEvent.REBALANCE, wait_seconds=wait_seconds, request=request)

    def fire(
        self, only: DeployedFlow | None = None, *, most: int | None = None, under: Lease | None = None
    ) -> list[tuple[DeployedFlow, Transition]]:
        """Apply what has come due: apply rebalances, remove killed flows.

        A flow whose step says REASSIGN is to be assigned from scratch; `scratch` stays until that is done.

        Args:
            only: What has come due of one flow; None: of all, in one transaction.
            most: Of how many at most; None: of all. If there are fewer, no other has come due.
            under: The caller's lease on leadership.

        Returns:
            The flows as they stand now, each with its step, those due first in front.
        """
        fired = []
        with self._write(under) as connection:
            now = self._clock()
            due = select(flows).where(
                flows.c.removed_at.is_(None), flows.c.due_event.is_not(None), flows.c.due_at <= now
            )
            due = (due if only is None else due.where(flows.c.serial == only.serial)).limit(most)
            # In the order in which beats and assignments lock flows, too: else each may wait for the other.
            rows = connection.execute(due.order_by(flows.c.serial).with_for_update()).all()
            for row in sorted(rows, key=lambda row: (row.due_at, row.serial)):
                standing = standing_of(row)
                step = lifecycle.fire(standing, now=now)
                if step is not None and standing.due is not None:
                    fired.append((self._apply(connection, row, standing.due.event, step), step))
        return fired

    def gain_leadership(self, *, under: Lease | None = None) -> list[DeployedFlow]:
        """Tell every flow that another nimbus leads: a rebalance or kill under way waits its delay again."""
        with self._write(under) as connection:
            now = self._clock()
            alive = select(flows).where(flows.c.removed_at.is_(None)).order_by(flows.c.serial).with_for_update()
            rows = connection.execute(alive).all()
            steps = [(row, lifecycle.step(standing_of(row), FlowEvent.GAIN_LEADERSHIP, now=now)) for row in rows]
            return [self._apply(connection, row, FlowEvent.GAIN_LEADERSHIP, step) for row, step in steps]

    # --- what is reported

    def hurry(self, flow: DeployedFlow, *, under: Lease | None = None) -> bool:
        """Let a rebalance or kill go on at once: all queries of the flow have drained, there is nothing to wait for."""
        with self._write(under) as connection:
            changed = connection.execute(
                update(flows)
                .where(
                    flows.c.serial == flow.serial,
                    flows.c.status.in_((Status.REBALANCING, Status.KILLED)),
                    flows.c.due_at > self._clock(),
                )
                .values(due_at=self._clock())
            )
            return changed.rowcount > 0

    def tell(self, flow: DeployedFlow, event: str, detail: Mapping[str, Any], *, under: Lease | None = None) -> None:
        """Add a line to a flow's history that changes nothing: `detail` is plain JSON. Its texts are kept shortened."""
        with self._write(under) as connection:
            line = {"flow": flow.serial, "at": self._clock(), "event": event, "from_status": flow.status}
            kept = {name: shortened(value) if isinstance(value, str) else value for name, value in detail.items()}
            values = {**line, "to_status": flow.status, "version": flow.version.number, "detail": kept}
            connection.execute(insert(events).values(**values))

    def problem(self, flow: DeployedFlow, problem: str | None, *, under: Lease | None = None) -> None:
        """Record why a flow has no place; None: it has one. A new problem is a line in its history.

        None takes back the problem that was seen: not another that has come since.
        """
        problem = None if problem is None else shortened(problem)
        if flow.problem == problem:
            return
        with self._write(under) as connection:
            row = update(flows).where(flows.c.serial == flow.serial)
            row = row.where(flows.c.problem == flow.problem) if problem is None else row
            connection.execute(row.values(problem=problem))
        if problem is not None:
            self.tell(flow, "PROBLEM", {"problem": problem}, under=under)

    # --- reading

    def flow(self, name: str) -> DeployedFlow:
        """Return a deployed flow."""
        with self._store.read() as connection:
            return self._read(connection, self._found(connection, name))

    def flows(self) -> list[DeployedFlow]:
        """Return every deployed flow, by name."""
        with self._store.read() as connection:
            rows = connection.execute(select(flows).where(flows.c.removed_at.is_(None)).order_by(flows.c.name)).all()
            # All versions by one query: the leader asks for the flows twice a second, and they may be thousands.
            current = and_(versions.c.flow == flows.c.serial, versions.c.number == flows.c.version)
            query = select(versions).join(flows, current).where(flows.c.removed_at.is_(None))
            by_serial = {row.flow: version_of(row) for row in connection.execute(query)}
            return [_flow_of(row, by_serial[row.serial]) for row in rows]

    def history(self, name: str) -> list[Happened]:
        """Return what happened to the flows of this name, removed ones too, the oldest first."""
        query = (
            select(events)
            .join(flows, flows.c.serial == events.c.flow)
            .where(flows.c.name == name)
            .order_by(events.c.serial)
        )
        with self._store.read() as connection:
            rows = connection.execute(query).all()
        return [
            Happened(row.at, row.event, _status(row.from_status), _status(row.to_status), row.version, row.detail or {})
            for row in rows
        ]

    # --- inside a transaction

    @contextmanager
    def _write(self, under: Lease | None) -> Iterator[Connection]:
        with self._store.write() as connection:
            if under is not None:
                self.leases.guard(connection, under)
            yield connection

    def _send(
        self, name: str, event: FlowEvent, *, wait_seconds: float | None = None, request: Request | None = None
    ) -> DeployedFlow:
        with self._store.write() as connection:
            row = self._found(connection, name, lock=True)
            seen = self._read(connection, row)
            if request is not None:
                request = lifecycle.check_request(name, request, seen.version.content.components)
            step = lifecycle.step(
                seen.standing,
                event,
                now=self._clock(),
                wait_seconds=wait_seconds,
                message_timeout_seconds=seen.settings.get("message_timeout_seconds"),
                request=request,
            )
            return self._apply(connection, row, event, step)

    def _apply(self, connection: Connection, row: Row[Any], event: FlowEvent, step: Transition) -> DeployedFlow:
        """Write a step's outcome."""
        changes: dict[str, Any] = standing_columns(step.standing) if step.standing else {"due_at": None}
        if step.action is Action.REASSIGN and step.request is not None:
            changes |= {"scale": _scaled(self._read(connection, row), step.request).to_json(), "scratch": True}
        if step.action is Action.REMOVE:
            # The assignment stays as the flow's last one: a new submission of the name may use it again.
            changes = {"removed_at": self._clock(), "due_event": None, "due_at": None}
            connection.execute(delete(beats).where(beats.c.flow == row.serial))
        connection.execute(update(flows).where(flows.c.serial == row.serial).values(**changes))
        if step.standing is None or step.standing != standing_of(row):
            self._log(connection, row, event, step.standing.status if step.standing else None)
        return self._again(connection, row.serial)

    def _log(self, connection: Connection, row: Row[Any], event: str, to: Status | None) -> None:
        line = {"flow": row.serial, "at": self._clock(), "event": str(event), "from_status": row.status}
        connection.execute(insert(events).values(**line, to_status=to, version=row.version))

    def _insert(self, connection: Connection, name: str, content: Content, status: Status) -> DeployedFlow:
        now = self._clock()
        values = {"name": name, "submitted_at": now, "version": 1, "scale": Request().to_json(), "scratch": False}
        made = connection.execute(insert(flows).values(**values, **standing_columns(Standing("", status))))
        serial = int(made.inserted_primary_key[0])  # type: ignore[index]
        self._insert_version(connection, serial, 1, content)
        line = {"flow": serial, "at": now, "event": "SUBMIT", "to_status": status.value, "version": 1}
        connection.execute(insert(events).values(**line))
        return self._again(connection, serial)

    def _new_version(self, connection: Connection, row: Row[Any], change: _Change) -> DeployedFlow:
        highest = connection.scalar(select(func.max(versions.c.number)).where(versions.c.flow == row.serial)) or 0
        self._insert_version(
            connection, row.serial, highest + 1, change.content, before=change.before, copy_of=change.copy_of
        )
        former = self._read(connection, row)
        new = former.with_content(change.content, change.said)
        changes = {
            "version": highest + 1,
            "scale": new.scale.to_json(),
            "scratch": row.scratch or _placed_by(former) != _placed_by(new),
            # That of the version before. What still holds is found out again.
            "problem": None,
        }
        connection.execute(update(flows).where(flows.c.serial == row.serial).values(**changes))
        flow = self._again(connection, row.serial)
        line = {"flow": row.serial, "at": self._clock(), "event": change.event, "from_status": row.status}
        connection.execute(insert(events).values(**line, to_status=row.status, version=highest + 1))
        return flow

    def _insert_version(
        self,
        connection: Connection,
        serial: int,
        number: int,
        content: Content,
        *,
        before: int | None = None,
        copy_of: int | None = None,
    ) -> None:
        parts = {
            "definition": dict(content.definition),
            "settings": dict(content.settings),
            "components": dict(content.components),
            "workers": content.workers,
        }
        place = {"flow": serial, "number": number, "before": before, "copy_of": copy_of}
        connection.execute(insert(versions).values(**place, **parts, created_at=self._clock()))

    def _changeable(self, connection: Connection, name: str, event: str, seen: DeployedFlow | None = None) -> Row[Any]:
        """Return a flow that may have a new version: still of the submission and version that were seen, if any were."""
        row = self._found(connection, name, lock=True)
        if row.status not in (Status.ACTIVE, Status.INACTIVE):
            raise NoTransitionError(event, row.status, standing_of(row).flow)
        if seen is not None and (row.serial, row.version) != (seen.serial, seen.version.number):
            problem = "another has taken its place" if row.serial == seen.serial else "the flow was submitted again"
            raise VersionError(name, seen.version.number, problem, row.version)
        return row

    @staticmethod
    def _alive(connection: Connection, name: str, *, lock: bool = False) -> Row[Any] | None:
        query = select(flows).where(flows.c.name == name, flows.c.removed_at.is_(None))
        return connection.execute(query.with_for_update() if lock else query).one_or_none()

    def _found(self, connection: Connection, name: str, *, lock: bool = False) -> Row[Any]:
        row = self._alive(connection, name, lock=lock)
        if row is None:
            alive = select(flows.c.name).where(flows.c.removed_at.is_(None)).order_by(flows.c.name)
            raise NotAliveError(name, connection.scalars(alive).all())
        return row

    def _again(self, connection: Connection, serial: int) -> DeployedFlow:
        return self._read(connection, connection.execute(select(flows).where(flows.c.serial == serial)).one())

    def _read(self, connection: Connection, row: Row[Any]) -> DeployedFlow:
        return _flow_of(row, self._version(connection, row, row.version))

    @staticmethod
    def _version(connection: Connection, row: Row[Any], number: int) -> Version:
        query = select(versions).where(versions.c.flow == row.serial, versions.c.number == number)
        version_row = connection.execute(query).one_or_none()
        if version_row is None:
            raise VersionError(row.name, number, "there is no such version", row.version)
        return version_of(version_row)


def _flow_of(row: Row[Any], version: Version) -> DeployedFlow:
    return DeployedFlow(
        row.serial,
        row.name,
        row.submitted_at,
        standing_of(row),
        version,
        Request.from_json(row.scale),
        row.scratch,
        row.removed_at,
        row.problem,
    )


def _placed_by(flow: DeployedFlow) -> object:
    """Return what a flow's assignment follows from; None for a version that another release wrote, and that is no such record."""
    content = flow.version.content
    try:
        settings = {name: flow.settings.get(name) for name in PLACING_SETTINGS}
        return content.components, flow.scale.parallelism, flow.workers, content.definition.get("queries"), settings
    except (AttributeError, TypeError):
        return None


def _status(value: str | None) -> Status | None:
    return Status(value) if value else None


def _scaled(flow: DeployedFlow, request: Request) -> Request:
    """Merge a further rebalance into what holds: the later word wins."""
    scale, both = flow.scale, merged(flow.settings, request.settings)
    # A table is kept whole, as every release reads it: in place of the version's.
    settings = {**scale.settings, **{name: both[name] for name in request.settings}}
    parallelism: Mapping[str, int] = {**scale.parallelism, **request.parallelism}
    return Request(request.workers or scale.workers, parallelism, settings)
