"""The properties of every commit of delta-rs: the batch record, the transaction id, and what follows it."""

from __future__ import annotations

from collections.abc import Mapping

from deltalake import CommitProperties, PostCommitHookProperties, Transaction

from pipelines.state.record import UNCHANGED, BatchRecord

HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""Checkpoints of the log as its interval says; the log itself is cleaned by the compaction job alone."""


def properties(
    record: BatchRecord, transactions: Mapping[str, int] | None = None, *, unchanged: bool = False
) -> CommitProperties:
    """Return the record as `userMetadata`, and transaction ids with their versions.

    Args:
        transactions: what the commit carries: Delta refuses it if another commit of one of these ids has come meanwhile.
        unchanged: the commit stands for a MERGE that changed nothing, so Delta's counts say nothing of it.
    """
    carried = [Transaction(name, version) for name, version in (transactions or {}).items()] or None
    metadata = {"userMetadata": record.dump()} | ({UNCHANGED: "true"} if unchanged else {})
    return CommitProperties(custom_metadata=metadata, app_transactions=carried)
