"""What map states store beside a value, so that a replayed batch counts once (Trident rules 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipelines.errors import BehindStateError


@dataclass(frozen=True)
class TransactionalValue:
    """A value and the batch that wrote it; None: written outside any batch."""

    txid: int | None
    value: Any


@dataclass(frozen=True)
class OpaqueValue:
    """A value, the batch that wrote it, and the value before that batch.

    A value written outside any batch has no `curr_txid` and stands before every batch. (In the original it broke the next
    read: LATENT there.)
    """

    curr_txid: int | None
    curr: Any
    prev: Any = None

    def get(self, txid: int | None) -> Any:
        """What `txid` starts from: the value before it, if the txid wrote this one.

        Raises:
            BehindStateError: a later batch wrote it.
        """
        return self.prev if self._is_own(txid) else self.curr

    def update(self, txid: int | None, value: Any) -> OpaqueValue:
        """This with a new value; itself it stays as it is.

        Raises:
            BehindStateError: a later batch wrote it.
        """
        return OpaqueValue(txid, value, self.prev if self._is_own(txid) else self.curr)

    def _is_own(self, txid: int | None) -> bool:
        if txid is None or self.curr_txid is None:
            return False
        if txid < self.curr_txid:
            raise BehindStateError(txid, self.curr_txid)
        return txid == self.curr_txid
