"""The report of a replay, typed and JSON-able."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipelines.execution.report import Report, StateCommit


@dataclass(frozen=True)
class LotReport:
    """Rows that enter at one place.

    Attributes:
        stage: `source`, `batch`, or the gate that rejected them.
        stream: of a source or a batch its stream.
        rows: selected rows by what rejected them.
        number: of the replay; None: nothing was replayed.
        landed: rows that went through and have left quarantine; filters may have taken them since.
        counted: rows that have left quarantine because a backfill counts them.
        refused: rows that were rejected again, by what rejected them now.
        left: rows that were left as they are, by why.
        commits: into the states.
        hint: what to do about those that were left.
    """

    stage: str
    stream: str | None
    rows: Mapping[str, int]
    number: int | None = None
    landed: int = 0
    counted: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    commits: tuple[StateCommit, ...] = ()
    hint: str = ""

    @property
    def selected(self) -> int:
        return sum(self.rows.values())


@dataclass(frozen=True)
class ReplayReport(Report):
    """A replay: a report a place, in the order of the flow. `resumed`: numbers of replays that were cut off before."""

    flow: str
    lots: tuple[LotReport, ...] = ()
    dry_run: bool = False
    resumed: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def selected(self) -> int:
        return sum(lot.selected for lot in self.lots)

    @property
    def landed(self) -> int:
        return sum(lot.landed for lot in self.lots)

    @property
    def refused(self) -> int:
        return sum(sum(lot.refused.values()) for lot in self.lots)

    @property
    def left(self) -> int:
        return sum(sum(lot.left.values()) for lot in self.lots)
