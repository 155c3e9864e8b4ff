"""Attempts that nothing outlives, for tests of the tracker."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.execution.protocol.coordinator import AttemptRecord


class MemoryAttemptStore:
    """An `AttemptStore` that lives as long as its object."""

    def __init__(self) -> None:
        self.records: dict[str, dict[int, AttemptRecord]] = {}

    def get(self, group: str) -> Mapping[int, AttemptRecord]:
        return dict(self.records.get(group, {}))

    def put(self, group: str, txid: int, record: AttemptRecord) -> None:
        self.records.setdefault(group, {})[txid] = record

    def forget(self, group: str, before: int) -> None:
        for txid in [t for t in self.records.get(group, {}) if t < before]:
            del self.records[group][txid]
