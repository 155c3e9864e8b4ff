"""The attempts of deployed flows' batches: an `AttemptStore` for the batch tracker, in the registry and beside the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete

from pipelines.execution.protocol.coordinator import AttemptRecord, AttemptStore
from pipelines.nimbus.registry.leases import Lease, Leases
from pipelines.nimbus.registry.store import Store, upsert
from pipelines.nimbus.registry.tables import attempts


class FencedAttempts:
    """The attempts of a checkpoint that a worker runs under a lease.

    The checkpoint's own file is what counts: catch-up runs use it too, while no worker does. Each record goes into the
    registry first, under the lease: a worker that has lost it opens and closes no batch any more.

    Args:
        own: The checkpoint's store.
        store, leases: The registry's database and its leases.
        lease: The writer's lease; its token counts, so it need not be replaced when it is renewed.
        prefix: Put before the group's name in the registry, which knows all flows.
    """

    def __init__(self, own: AttemptStore, store: Store, leases: Leases, lease: Lease, prefix: str) -> None:
        self._own, self._store, self._leases, self._lease, self._prefix = own, store, leases, lease, prefix
        self._forgotten: dict[str, int] = {}

    def get(self, group: str) -> Mapping[int, AttemptRecord]:
        """Return every record of the group, by txid."""
        return self._own.get(group)

    def put(self, group: str, txid: int, record: AttemptRecord) -> None:
        """Write or replace one record.

        Raises:
            LeaseLostError: Another worker runs this flow by now.
        """
        with self._store.write() as connection:
            self._leases.guard(connection, self._lease)
            row = {"batch_group": self._prefix + group, "txid": txid, "record": record.to_json()}
            upsert(connection, attempts, row)
        self._own.put(group, txid, record)

    def forget(self, group: str, before: int) -> None:
        """Remove the records of all txids lower than `before`; in the registry a hundred at a time. Raises as `put`."""
        self._own.forget(group, before)
        if before - self._forgotten.get(group, 0) >= 100:
            old = (attempts.c.batch_group == self._prefix + group, attempts.c.txid < before)
            with self._store.write() as connection:
                self._leases.guard(connection, self._lease)
                connection.execute(delete(attempts).where(*old))
            self._forgotten[group] = before
