"""Windows that read a channel, and whose operation or key is another than that of the windows that their checkpoint holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.execution.batch.window_conversion import blobs_of
from pipelines.execution.checkpoint.window_state import taken_before
from pipelines.graph import nodes
from pipelines.planner.windows import told_apart
from pipelines.windows.bucket import ArrayBucket, Bucket
from pipelines.windows.signature import SIZE, signature

if TYPE_CHECKING:
    from pipelines.execution.batch.group import BatchGroup
    from pipelines.execution.checkpoint.engine_files import Checkpoint

Chain = tuple[nodes.WindowNode, ...]
"""Windows one behind the other, the first of which reads a channel."""


def chains_of(group: BatchGroup) -> list[Chain]:
    """Return the windows that run in the stream of a group itself."""
    steps = [[node for node in spout.steps if isinstance(node, nodes.WindowNode)] for spout in group.entrance.channels]
    return [tuple(windows) for windows in steps if windows]


def changed_in(group: BatchGroup, checkpoint: Checkpoint) -> list[nodes.WindowNode]:
    """Return the windows of which the checkpoint holds only what another operation, or another key, has left."""
    windows = [node for chain in chains_of(group) for node in reversed(chain)]
    before = taken_before(checkpoint)
    if checkpoint.epoch is None or not checkpoint.has_state or not checkpoint.finished_batches():
        return []
    if all(told_apart(node) in before for node in windows):
        return []
    # Those that are behind more windows than before are the same, and so may be those of an earlier release: the state tells.
    stores = list(blobs_of(group.spark, checkpoint.spark, f"substring(value.blob, 1, {SIZE})"))
    if len(stores) != len(windows):
        return []
    return [node for node, signatures in zip(windows, stores, strict=True) if signatures and not _own(node, signatures)]


def _own(node: nodes.WindowNode, signatures: list[bytes]) -> bool:
    operation, key = node.operation, node.context.partition
    return any(signature(operation, key, form.__name__) in signatures for form in (Bucket, ArrayBucket))
