"""What every commit of delta-rs carries: the batch record, the transaction id, and what follows it."""

from __future__ import annotations

from deltalake import CommitProperties, PostCommitHookProperties, Transaction

from pipelines.state.record import UNCHANGED, BatchRecord

HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""Checkpoints of the log as its interval says; the log itself is cleaned by the compaction job alone."""


def properties(record: BatchRecord, app_id: str | None, *, unchanged: bool = False) -> CommitProperties:
    """The record as `userMetadata`, and with an application id its transaction id: the txid, or the number of a replay.

    Args:
        unchanged: the commit stands for a MERGE that changed nothing, so Delta's counts say nothing of it.
    """
    version = record.txid if record.replay is None else record.replay
    transactions = [Transaction(app_id, version)] if app_id else None
    metadata = {"userMetadata": record.dump()} | ({UNCHANGED: "true"} if unchanged else {})
    return CommitProperties(custom_metadata=metadata, app_transactions=transactions)
