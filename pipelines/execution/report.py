"""Reports of runs: typed, JSON-able."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


class Report:
    """A dataclass that is plain data in JSON."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload]  # its classes are dataclasses


@dataclass(frozen=True)
class StateCommit:
    """One Delta commit into one state. `rows` are rows written to the table, `seconds` from plan to commit."""

    state: str
    version: int
    rows: int
    seconds: float
    replayed: bool = False


@dataclass(frozen=True)
class BatchReport:
    """One batch of a stream.

    `received` rows came from the source; `quarantined` of them went to quarantine (malformed records and dropped rows);
    `gates` holds each gate's result as JSON (`GateResult.to_json()`); `counters` what user functions counted.
    """

    flow: str
    group: str
    txid: int
    attempt: int
    received: int
    quarantined: int
    commits: tuple[StateCommit, ...]
    seconds: float
    gates: tuple[Mapping[str, Any], ...] = ()
    skipped: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SliceReport:
    """One slice of a backfill. `error` is None if it was replaced in every state; else nothing or only some states were."""

    flow: str
    slice: str
    received: int
    quarantined: int
    commits: tuple[StateCommit, ...]
    seconds: float
    gates: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class RunReport(Report):
    """A catch-up: the batches that it ran, in txid order a batch group."""

    flow: str
    batches: tuple[BatchReport, ...]
    seconds: float

    @property
    def received(self) -> int:
        return sum(batch.received for batch in self.batches)

    @property
    def quarantined(self) -> int:
        return sum(batch.quarantined for batch in self.batches)


@dataclass(frozen=True)
class BackfillReport(Report):
    """A backfill: one report a slice, in the order asked for."""

    flow: str
    slices: tuple[SliceReport, ...] = field(default=())
    seconds: float = 0.0

    @property
    def failed(self) -> tuple[SliceReport, ...]:
        return tuple(report for report in self.slices if report.error)
