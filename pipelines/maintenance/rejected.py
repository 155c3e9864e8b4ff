"""Quarantine: for how long rejected rows stay.

A row names the batch that rejected it, and that batch's commit says when. The commits are cleaned from the log long before
the rows are old, so what they say is written down beside the table, a line per day and run of txids. All batch groups of a flow
write one quarantine, each with txids of its own: of a txid the latest commit counts, so a row may stay longer than it should,
and never goes before its time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.execution.checkpoint.engine_files import write_json
from pipelines.execution.checkpoint.replay_records import Records
from pipelines.places.location import Place
from pipelines.state.literals import literal
from pipelines.state.maintenance_commits import delete_rows
from pipelines.state.record import COMPACTION, REPLAY, RESET, SLICE, BatchRecord, CommitRecord
from pipelines.state.schema import SLICE_COLUMN, TXID

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from pipelines.state.table import StateTable

# Between txids so far apart another batch group may have its own; nearer ones make one line.
_GAP = 1000


@dataclass(frozen=True)
class TxidSpan:
    """Txids that were committed on one day, the last of them at `until` (seconds since 1970)."""

    first: int
    last: int
    until: float

    @property
    def day(self) -> int:
        return int(self.until // 86_400)


@dataclass(frozen=True)
class Ages:
    """The times at which the rows of a quarantine were rejected.

    Attributes:
        spans: of batches.
        slices: of backfills: by slice when it was last replaced, in seconds since 1970.
    """

    spans: tuple[TxidSpan, ...] = ()
    slices: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, table: StateTable) -> Ages:
        """Return what was written down, and what the log says beyond."""
        file = ages_file(table)
        saved = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"spans": [], "slices": {}}
        return cls(tuple(TxidSpan(**span) for span in saved["spans"]), saved["slices"]).with_commits(table.history())

    def save(self, table: StateTable) -> None:
        """Write it down, before the log is cleaned."""
        write_json(ages_file(table), {"spans": [asdict(span) for span in self.spans], "slices": self.slices})

    def with_commits(self, commits: Iterable[CommitRecord]) -> Ages:
        """Return the same with some commits, oldest first."""
        spans, slices = list(self.spans), dict(self.slices)
        for commit in commits:
            if commit.kind == RESET and commit.group is None:
                spans, slices = [], {}
            elif commit.kind == SLICE and commit.slice is not None:
                slices[commit.slice] = commit.time.timestamp()
            elif commit.kind not in (COMPACTION, REPLAY, RESET) and (commit.txid or 0) >= 0 and commit.txid is not None:
                spans.append(TxidSpan(commit.txid, commit.txid, commit.time.timestamp()))
        return Ages(tuple(_joined(spans)), slices)

    def since(self, oldest: float) -> Ages:
        """Return what is not older."""
        slices = {name: at for name, at in self.slices.items() if at >= oldest}
        return Ages(tuple(span for span in self.spans if span.until >= oldest), slices)

    def older(self, oldest: float) -> str | None:
        """Return the rows that are older, as a condition; None: there are none."""
        young = [span for span in self.spans if span.until >= oldest]
        gone = [
            piece for span in self.spans if span.until < oldest for piece in _without((span.first, span.last), young)
        ]
        terms = [f"({TXID} BETWEEN {first} AND {last})" for first, last in sorted(set(gone))]
        names = [literal(SLICE_COLUMN, name, pa.string()) for name, at in sorted(self.slices.items()) if at < oldest]
        if names:
            terms.append(f"({TXID} < 0 AND {SLICE_COLUMN} IN ({', '.join(names)}))")
        return " OR ".join(terms) or None


def ages_file(table: StateTable) -> Place:
    """Return the file beside the table: what is no table's is not in its folder."""
    return table.path.with_name(f"{table.path.name}.ages.json")


def old_rows(table: StateTable, days: float, now: datetime | None = None) -> str | None:
    """Return the rows that were rejected more than `days` ago, as a condition; None: there are none, as far as one can say."""
    return Ages.of(table).older(_oldest(days, now))


def let_go(
    table: StateTable, opened: DeltaTable, days: float | None, record: BatchRecord, now: datetime | None = None
) -> int:
    """Delete the rows that were rejected more than `days` ago (None: none), and write down when the others were.

    The records of replays go with the same age; those of replays that were given up stay while there is any row.

    Between two batches of the flow's streams. Killed at any point, the next run takes it up.

    Args:
        opened: as of `delete_rows`.

    Returns:
        How many there were.
    """
    ages = Ages.of(table)
    rows = 0
    if days is not None:
        oldest = _oldest(days, now)
        where = ages.older(oldest)
        record = record.model_copy(update={"let_go": True})
        rows = delete_rows(table, opened, where, record) if where else 0
        ages = ages.since(oldest)
        Records(table.path).forget(datetime.fromtimestamp(oldest, UTC), rejected=table.count() > 0)
    ages.save(table)
    return rows


def _oldest(days: float, now: datetime | None) -> float:
    return ((now or datetime.now(UTC)) - timedelta(days=days)).timestamp()


def _joined(spans: Iterable[TxidSpan]) -> list[TxidSpan]:
    """Join spans of one day that touch, or nearly."""
    by_day: dict[int, list[TxidSpan]] = defaultdict(list)
    for span in spans:
        by_day[span.day].append(span)
    joined: list[TxidSpan] = []
    for _, own in sorted(by_day.items()):
        own.sort(key=lambda span: span.first)
        held = own[0]
        for span in own[1:]:
            if span.first <= held.last + _GAP:
                held = TxidSpan(held.first, max(held.last, span.last), max(held.until, span.until))
            else:
                joined.append(held)
                held = span
        joined.append(held)
    return joined


def _without(piece: tuple[int, int], young: Sequence[TxidSpan]) -> list[tuple[int, int]]:
    """Return what is left of some txids without those of younger spans."""
    left = [piece]
    for span in young:
        left = [
            part
            for first, last in left
            for part in ((first, min(last, span.first - 1)), (max(first, span.last + 1), last))
            if part[0] <= part[1]
        ]
    return left
