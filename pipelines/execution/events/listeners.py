"""Listeners: told what a run does while it does it."""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    """Called around each commit, in the process and thread that commits."""

    def __call__(self, moment: str, state: str, txid: int) -> None:
        """Take notice.

        Args:
            moment: `committing` (all is computed, nothing written), `committed` (the Delta commit is there), and for a
                whole batch, with an empty `state`, `opened` and `closed` (Spark's own commit comes after).
            state: the state's name, or `quarantine`.
            txid: the batch; for a backfill the last batch that it covers.
        """
