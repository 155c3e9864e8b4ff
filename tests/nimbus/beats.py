"""One beat of a task, for tests of what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.nimbus.registry.leases import Lease
from pipelines.nimbus.registry.placements import Beat, Places
from pipelines.nimbus.registry.records import DeployedFlow


def beat(
    places: Places,
    flow: DeployedFlow,
    task: int,
    slot: tuple[str, int],
    lease: Lease,
    *,
    lease_seconds: float,
    figures: Mapping[str, Any] | None = None,
) -> None:
    """Let a task beat; raises why it was refused."""
    (refused,) = places.beat_together([Beat(flow, task, lease, figures or {})], slot, lease_seconds=lease_seconds)
    if refused is not None:
        raise refused
