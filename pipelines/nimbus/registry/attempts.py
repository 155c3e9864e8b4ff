"""The attempts of deployed flows' batches: an `AttemptStore` for the batch tracker, in the registry and beside the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, select

from pipelines.execution.protocol.coordinator import AttemptRecord, AttemptStore
from pipelines.nimbus.registry.leases import Lease, Leases
from pipelines.nimbus.registry.store import Store, upsert
from pipelines.nimbus.registry.tables import attempts


class RegistryAttempts:
    """Attempts that survive the worker, the host and its disk.

    Args:
        store: The database.
        leases: The registry's leases.
        lease: The writer's lease; its token counts, so it need not be replaced when it is renewed. Once it is lost,
            every write is refused.
    """

    def __init__(self, store: Store, leases: Leases, lease: Lease) -> None:
        self._store, self._leases, self.lease = store, leases, lease

    def get(self, group: str) -> Mapping[int, AttemptRecord]:
        """Return every record of the group, by txid."""
        query = select(attempts).where(attempts.c.batch_group == group).order_by(attempts.c.txid)
        with self._store.read() as connection:
            return {row.txid: AttemptRecord.from_json(row.record) for row in connection.execute(query)}

    def put(self, group: str, txid: int, record: AttemptRecord) -> None:
        """Write or replace one record.

        Raises:
            LeaseLostError: Another worker runs this flow by now.
        """
        with self._store.write() as connection:
            self._leases.guard(connection, self.lease)
            upsert(connection, attempts, {"batch_group": group, "txid": txid, "record": record.to_json()})

    def forget(self, group: str, before: int) -> None:
        """Remove the records of all txids lower than `before`. Raises as `put`."""
        with self._store.write() as connection:
            self._leases.guard(connection, self.lease)
            connection.execute(delete(attempts).where(attempts.c.batch_group == group, attempts.c.txid < before))


class FencedAttempts:
    """The attempts of a checkpoint that a worker runs under a lease.

    The checkpoint's own file is what counts: catch-up runs use it too, while no worker does. Each record goes into the
    registry first, under the lease: a worker that has lost it opens and closes no batch any more.

    Args:
        own: The checkpoint's store.
        registry: The registry's.
        prefix: Put before the group's name in the registry, which knows all flows.
    """

    def __init__(self, own: AttemptStore, registry: RegistryAttempts, prefix: str) -> None:
        self._own, self._registry, self._prefix = own, registry, prefix
        self._forgotten: dict[str, int] = {}

    def get(self, group: str) -> Mapping[int, AttemptRecord]:
        """Return every record of the group, by txid."""
        return self._own.get(group)

    def put(self, group: str, txid: int, record: AttemptRecord) -> None:
        """Write or replace one record."""
        self._registry.put(self._prefix + group, txid, record)
        self._own.put(group, txid, record)

    def forget(self, group: str, before: int) -> None:
        """Remove the records of all txids lower than `before`; in the registry a hundred at a time."""
        self._own.forget(group, before)
        if before - self._forgotten.get(group, 0) >= 100:
            self._registry.forget(self._prefix + group, before)
            self._forgotten[group] = before
