"""Records that the registry need not keep: flows removed long ago, silent supervisors, overlong history."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, false, func, or_, select
from sqlalchemy.engine import make_url

from pipelines.maintenance.housekeeping_report import HousekeepingItem, Retention
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.registry.tables import beats, events, flows, supervisors

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
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
) -> list[Pruned]:
    """Delete what is old, in one transaction; safe beside supervisors, workers and a leader.

    Leases stay: the token of a name must not start over.

    Args:
        days: how long removed flows stay, with their versions and history, and supervisors and tasks that are silent; None:
            for good.
        events_a_flow: how many lines of history a flow keeps, the newest; None: all.
        dry_run: only count.
    """
    oldest = None if days is None else clock() - days * _DAY
    with store.read() if dry_run else store.write() as connection:
        pruned = []
        if oldest is not None:
            pruned.append(_go(connection, flows, "removed flows", flows.c.removed_at < oldest, dry_run))
            pruned.append(_go(connection, supervisors, "supervisors", supervisors.c.beat_at < oldest, dry_run))
            pruned.append(_go(connection, beats, "beats", beats.c.beat_at < oldest, dry_run))
        if events_a_flow is not None:
            pruned.append(_go(connection, events, "history", _beyond(connection, events_a_flow), dry_run))
    return pruned


def remove_old_records(store: Store, kept: Retention, dry_run: bool) -> HousekeepingItem:
    """Remove what the registry need not remember, in a round of housekeeping; with `dry_run` only count it."""
    lines = None if kept.flow_events is None else int(kept.flow_events)
    parts = prune(store, days=kept.flow_days, events_a_flow=lines, dry_run=dry_run)
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
