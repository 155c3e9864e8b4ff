"""Leases: who may do a thing that two must never do at once (lead, run a query on a checkpoint).

A lease has a holder, an expiry and a token that only grows. Expiry lets another take over from a holder that is dead or
frozen; the token fences the frozen one off when it wakes up: whatever it writes under its old token is refused, in the
same transaction as the write. So clocks only decide how soon a lease changes hands, never whether two may write.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select, update

from pipelines.nimbus.errors import LeaseHeldError, RegistryLeaseLostError
from pipelines.nimbus.registry.store import Store, insert_missing
from pipelines.nimbus.registry.tables import leases

LEASE = "nimbus"
"""The name of the lease under which one supervisor leads."""

PRUNED = "pruned"
"""A row that nobody takes: its token is the largest of those whose rows are gone."""


@dataclass(frozen=True)
class Lease:
    """A holder's lease. A value: it may have gone stale; `Leases.check` finds out.

    Attributes:
        holder: Who holds it: unique to a process, so that a restarted one is another holder.
        token: Larger than every token that was given out for this name before.
        expires_at: When it runs out, in seconds of the registry's clock.
    """

    name: str
    holder: str
    token: int
    expires_at: float


_AHEAD = 2
"""A lease that ends so many times its length from now was taken by another clock: no two lengths of one lease differ so much."""


class Leases:
    """The leases of one registry.

    Args:
        clock: Seconds; all processes of a registry should agree on them within a fraction of a lease.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock

    def take(self, name: str, holder: str, seconds: float) -> Lease:
        """Take a lease that is free or has run out.

        Raises:
            LeaseHeldError: It is held, be it by a holder of the same name: that may be an earlier life, still running.
            ValueError: `seconds` is not above 0, or a name is empty.
        """
        _check(name, holder, seconds)
        with self._store.write() as connection:
            row = self._own_row(connection, name)
            # After the lock: waiting for it may have taken longer than the lease that was in the way.
            now = self._clock()
            if row.held and row.expires_at > now:
                raise LeaseHeldError(name, holder, row.holder, row.expires_at - now)
            # A name that is new may be one that is gone.
            known = row.token or connection.scalar(select(leases.c.token).where(leases.c.name == PRUNED)) or 0
            lease = Lease(name, holder, known + 1, now + seconds)
            self._put(connection, lease, held=True, taken_at=now)
        return lease

    def renew(self, lease: Lease, seconds: float) -> Lease:
        """Prolong a lease under its token; it becomes shorter only where a clock that was far ahead has been put back."""
        _check(lease.name, lease.holder, seconds)
        with self._store.write() as connection:
            return self.renew_in(connection, lease, seconds)

    def renew_in(self, connection: Connection, lease: Lease, seconds: float) -> Lease:
        """Renew within a transaction of the caller's."""
        row = self.guard(connection, lease)
        now = self._clock()
        # Else nobody could take it for as long as the clock was ahead, though its holder, which lives, has the right time since.
        is_ahead = row.expires_at > now + _AHEAD * seconds
        expires_at = now + seconds if is_ahead else max(row.expires_at, now + seconds)
        renewed = Lease(lease.name, lease.holder, lease.token, expires_at)
        self._put(connection, renewed, held=True, taken_at=row.taken_at)
        return renewed

    def release(self, lease: Lease) -> bool:
        """Give a lease back, so that the next holder need not wait. False if it was no longer held."""
        with self._store.write() as connection:
            row = self._locked(connection, lease.name)
            if row is None or not row.held or row.token != lease.token:
                return False
            self._put(connection, lease, held=False, taken_at=row.taken_at)
        return True

    def release_all(self, holder: str) -> int:
        """Give back all leases of a holder that is known to be dead. Returns how many."""
        with self._store.write() as connection:
            held = update(leases).where(leases.c.holder == holder, leases.c.held.is_(True)).values(held=False)
            return connection.execute(held).rowcount

    def check(self, lease: Lease) -> None:
        """Check that the holder still has it, right now.

        The answer is old as soon as it is given: a write to the registry must be guarded in its own transaction, and a
        write elsewhere must carry the token.
        """
        with self._store.read() as connection:
            self._judge(lease, connection.execute(select(leases).where(leases.c.name == lease.name)).one_or_none())

    def guard(self, connection: Connection, lease: Lease) -> Row[Any]:
        """Let a writing transaction go on only under a live lease, which stays locked until the transaction ends.

        Raises:
            RegistryLeaseLostError: The holder no longer has it; the transaction is to be given up.
        """
        return self._judge(lease, self._locked(connection, lease.name))

    def holder(self, name: str) -> Lease | None:
        """Return who holds it now; None if it is free."""
        with self._store.read() as connection:
            row = connection.execute(select(leases).where(leases.c.name == name)).one_or_none()
        if row is None or not row.held or row.expires_at <= self._clock():
            return None
        return Lease(row.name, row.holder, row.token, row.expires_at)

    def _judge(self, lease: Lease, row: Row[Any] | None) -> Row[Any]:
        if (
            row is None
            or row.token != lease.token
            or row.holder != lease.holder
            or not row.held
            or row.expires_at <= self._clock()
        ):
            seen = (row.holder, row.token) if row is not None else (None, 0)
            raise RegistryLeaseLostError(lease.name, lease.holder, lease.token, seen_holder=seen[0], seen_token=seen[1])
        return row

    def _own_row(self, connection: Connection, name: str) -> Row[Any]:
        """Return the row of a name, locked; one that is new has the token 0, which is never given out."""
        while True:
            blank = {"name": name, "token": 0, "taken_at": 0.0, "expires_at": 0.0, "held": False}
            insert_missing(connection, leases, blank)
            # It may be pruned between the two.
            if (row := self._locked(connection, name)) is not None:
                return row

    @staticmethod
    def _locked(connection: Connection, name: str) -> Row[Any] | None:
        return connection.execute(select(leases).where(leases.c.name == name).with_for_update()).one_or_none()

    @staticmethod
    def _put(connection: Connection, lease: Lease, *, held: bool, taken_at: float) -> None:
        connection.execute(
            update(leases)
            .where(leases.c.name == lease.name)
            .values(token=lease.token, holder=lease.holder, taken_at=taken_at, expires_at=lease.expires_at, held=held)
        )


def _check(name: str, holder: str, seconds: float) -> None:
    if not name or not holder or name == PRUNED:
        raise ValueError("a lease needs a name and a holder")
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"a lease lasts more than 0 seconds, not {seconds}")
