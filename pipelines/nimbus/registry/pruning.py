"""Records that the registry need not keep: flows removed long ago, silent supervisors, overlong history, old versions, leases of
names that do not return.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, false, func, or_, select, update
from sqlalchemy.engine import make_url

from pipelines.maintenance.housekeeping_report import HousekeepingItem, Retention
from pipelines.nimbus.registry.leases import PRUNED
from pipelines.nimbus.registry.store import Store, insert_missing
from pipelines.nimbus.registry.tables import assignments, beats, events, flows, leases, supervisors, versions

VERSIONS_A_FLOW = 100
"""Versions that a flow keeps: each failed trial of a watched file adds two, with the whole text."""

_DAY = 86_400.0
# Below so much free space in its file a SQLite database is not worth a rewrite.
_LEAST_FREE_BYTES, _LEAST_FREE_PART = 1_000_000, 0.25


@dataclass(frozen=True)
class Pruned:
    """The records of one kind that were removed."""

    what: str
    before: int
    removed: int


def prune(
    store: Store,
    *,
    days: float | None,
    events_a_flow: int | None,
    versions_a_flow: int | None = None,
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
) -> list[Pruned]:
    """Delete what is old, in one transaction; safe beside supervisors, workers and a leader.

    Args:
        days: how long removed flows stay, with their versions and history, supervisors and tasks that are silent, and leases
            that have run out; None: for good.
        events_a_flow: how many lines of history a flow keeps, the newest; None: all.
        versions_a_flow: how many versions a flow keeps, the newest; and as many to which rollbacks lead, one after the other, and
            the one that its places were made for. None: all.
        dry_run: only count.
    """
    oldest = None if days is None else clock() - days * _DAY
    with store.read() if dry_run else store.write() as connection:
        pruned = []
        if oldest is not None:
            pruned.append(_go(connection, flows, "removed flows", flows.c.removed_at < oldest, dry_run))
            pruned.append(_go(connection, supervisors, "supervisors", supervisors.c.beat_at < oldest, dry_run))
            pruned.append(_go(connection, beats, "beats", beats.c.beat_at < oldest, dry_run))
            pruned.append(_old_leases(connection, oldest, dry_run))
        if events_a_flow is not None:
            pruned.append(_go(connection, events, "history", _beyond(connection, events_a_flow), dry_run))
        if versions_a_flow is not None:
            pruned.append(_old_versions(connection, versions_a_flow, dry_run))
    return pruned


def remove_old_records(store: Store, kept: Retention, dry_run: bool) -> HousekeepingItem:
    """Remove what the registry need not remember, in a round of housekeeping; with `dry_run` only count it."""
    lines = None if kept.flow_events is None else int(kept.flow_events)
    # Who keeps all history keeps what it tells of.
    most = None if lines is None else VERSIONS_A_FLOW
    parts = prune(store, days=kept.flow_days, events_a_flow=lines, versions_a_flow=most, dry_run=dry_run)
    before, removed = sum(part.before for part in parts), sum(part.removed for part in parts)
    return HousekeepingItem("registry", "records", before, removed, shrink(store, dry_run=dry_run))


def shrink(store: Store, *, dry_run: bool = False) -> int:
    """Give a SQLite file's free pages back to the disk, where they are worth it. Returns the bytes.

    PostgreSQL does that itself. A database that others are busy with is left as it is.
    """
    url = make_url(store.engine.url)
    if url.get_backend_name() != "sqlite":
        return 0
    file = Path(str(url.database))
    raw = store.engine.raw_connection()
    try:
        driver = raw.driver_connection
        assert driver is not None
        ((free,), (pages,), (size,)) = (
            driver.execute(f"PRAGMA {name}").fetchone() for name in ("freelist_count", "page_count", "page_size")
        )
        if free * size < max(_LEAST_FREE_BYTES, _LEAST_FREE_PART * pages * size):
            return 0
        if dry_run:
            return int(free * size)
        before = file.stat().st_size
        driver.execute("VACUUM")
        driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return max(0, before - file.stat().st_size)
    except _busy():
        return 0
    finally:
        raw.close()


def _busy() -> type[Exception]:
    from sqlite3 import OperationalError

    return OperationalError


def _go(connection: Connection, table: Table, what: str, where: ColumnElement[bool], dry_run: bool) -> Pruned:
    before = connection.scalar(select(func.count()).select_from(table)) or 0
    doomed = connection.scalar(select(func.count()).select_from(table).where(where)) or 0
    if doomed and not dry_run:
        connection.execute(delete(table).where(where))
    return Pruned(what, before, doomed)


def _beyond(connection: Connection, events_a_flow: int) -> ColumnElement[bool]:
    """Return the lines of history that come before the newest so many of their flow."""
    counts = select(events.c.flow).group_by(events.c.flow).having(func.count() > events_a_flow)
    terms = []
    for flow in connection.scalars(counts).all():
        newest = select(events.c.serial).where(events.c.flow == flow).order_by(events.c.serial.desc())
        last = connection.scalar(newest.offset(events_a_flow).limit(1))
        terms.append(and_(events.c.flow == flow, events.c.serial <= last))
    return or_(false(), *terms)


def _old_leases(connection: Connection, oldest: float, dry_run: bool) -> Pruned:
    """Remove leases that ran out long ago: a container has another name each time.

    The token of a name must not start over: those that come again begin behind the largest that is gone.
    """
    named = or_(*(leases.c.name.startswith(kind) for kind in ("supervisor:", "slot:", "task:")))
    where = and_(named, leases.c.expires_at < oldest)
    largest = connection.scalar(select(func.max(leases.c.token)).where(where))
    if largest is not None and not dry_run:
        mark = {"name": PRUNED, "token": 0, "taken_at": 0.0, "expires_at": 0.0, "held": False}
        insert_missing(connection, leases, mark)
        grown = update(leases).where(leases.c.name == PRUNED, leases.c.token < largest)
        connection.execute(grown.values(token=largest))
    return _go(connection, leases, "leases", where, dry_run)


def _old_versions(connection: Connection, versions_a_flow: int, dry_run: bool) -> Pruned:
    """Remove versions that nobody needs, of each flow that has too many."""
    before = connection.scalar(select(func.count()).select_from(versions)) or 0
    many = select(versions.c.flow).group_by(versions.c.flow).having(func.count() > versions_a_flow)
    removed = 0
    for flow in connection.scalars(many).all():
        where = _unneeded(connection, flow, versions_a_flow)
        removed += connection.scalar(select(func.count()).select_from(versions).where(where)) or 0
        if not dry_run:
            connection.execute(delete(versions).where(where))
    return Pruned("versions", before, removed)


def _unneeded(connection: Connection, flow: int, versions_a_flow: int) -> ColumnElement[bool]:
    """Return the versions of a flow that are neither among its newest nor needed."""
    query = (
        select(versions.c.number, versions.c.before).where(versions.c.flow == flow).order_by(versions.c.number.desc())
    )
    led = {row.number: row.before for row in connection.execute(query)}
    current = connection.scalar(select(flows.c.version).where(flows.c.serial == flow))
    # Its queries tell which task is which.
    placed = connection.scalar(select(assignments.c.version).where(assignments.c.flow == flow))
    needed, number = {current, placed}, current
    for _ in range(max(1, versions_a_flow)):
        number = led.get(number) if number is not None else None
        needed.add(number)
    # Those that come in this moment are larger.
    newest = [*led][:versions_a_flow]
    kept = sorted(one for one in needed if one is not None)
    return and_(versions.c.flow == flow, versions.c.number < min(newest, default=0), versions.c.number.not_in(kept))
