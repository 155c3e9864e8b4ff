"""The attempts of deployed flows' batches, in the registry: an `AttemptStore` for the batch tracker."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, select

from pipelines.execution.coordinator import AttemptRecord
from pipelines.nimbus.leases import Lease, Leases
from pipelines.nimbus.store import Store, upsert
from pipelines.nimbus.tables import attempts


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
        """Every record of the group, by txid."""
        query = select(attempts).where(attempts.c.batch_group == group).order_by(attempts.c.txid)
        with self._store.read() as connection:
            return {row.txid: AttemptRecord.from_json(row.record) for row in connection.execute(query)}

    def put(self, group: str, txid: int, record: AttemptRecord) -> None:
        """Writes or replaces one record.

        Raises:
            LeaseLostError: Another worker runs this flow by now.
        """
        with self._store.write() as connection:
            self._leases.guard(connection, self.lease)
            upsert(connection, attempts, {"batch_group": group, "txid": txid, "record": record.to_json()})

    def forget(self, group: str, before: int) -> None:
        """Removes the records of all txids lower than `before`. Raises as `put`."""
        with self._store.write() as connection:
            self._leases.guard(connection, self.lease)
            connection.execute(delete(attempts).where(attempts.c.batch_group == group, attempts.c.txid < before))
