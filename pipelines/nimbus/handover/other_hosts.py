"""The hosts of deployed flows' queries, for runs of this host: a query that another host runs keeps them off."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from pipelines.execution.checkpoint.ownership import ask_of_leases
from pipelines.nimbus.settings import registry_exists, registry_url

if TYPE_CHECKING:
    from pipelines.nimbus.registry.store import Store


def watch_registry() -> None:
    """Let the runs of this process ask the registry. A registry in a file is of one host: it is asked only where a checkpoint
    belongs to another one.
    """
    ask_of_leases(elsewhere, always=not registry_url().startswith("sqlite"))


def elsewhere(flow: str, host: str) -> str | None:
    """Return, in words, which query of a flow another host runs; None if there is none."""
    from pipelines.nimbus.registry.store import Store

    url = registry_url()
    if not registry_exists(url):
        return None
    with closing(Store(url)) as store:
        return query_elsewhere(store, flow, host)


def query_elsewhere(store: Store, flow: str, host: str, *, now: float | None = None) -> str | None:
    """Return the same, from a registry that is open."""
    from sqlalchemy import select

    from pipelines.nimbus.registry.tables import leases, supervisors

    at = time.time() if now is None else now
    held = select(leases.c.name, leases.c.holder).where(
        leases.c.name.startswith(f"task:{flow}/", autoescape=True),
        leases.c.held.is_(True),
        leases.c.expires_at > at,
    )
    with store.read() as connection:
        holders = connection.execute(held.order_by(leases.c.name)).all()
        hosts = {row.supervisor: row.host for row in connection.execute(select(supervisors))} if holders else {}
    for name, holder in holders:
        supervisor, port, _ = f"{holder}::".split(":", 2)
        where = hosts.get(supervisor)
        if where is not None and where != host:
            query = name.removeprefix(f"task:{flow}/")
            return f'its query "{query}" runs on host {where} (supervisor {supervisor}, slot {port})'
    return None
