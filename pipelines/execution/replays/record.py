"""The record of a flow's replays, which lets a killed one be finished, and their report, typed and JSON-able.

Beside the quarantine, two files per replay: `<flow>.replays/<number>.json` and the rows as `<number>.parquet`. A replay is
written down before its first commit and marked as done behind its last.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.execution.checkpoint.engine_files import write_json
from pipelines.execution.replays.selection import Lot
from pipelines.execution.report import Report, StateCommit
from pipelines.places.location import Location, Place, put_whole
from pipelines.state.turns import LateWriterError


@dataclass(frozen=True)
class Record(Report):
    """One replay.

    Attributes:
        number: from 1; the version of its transaction id in each table.
        stage: where its rows enter: `source`, `batch`, or a gate's name.
        stream: of a source or a batch its stream.
        started: ISO time, UTC.
        versions: the version of each table (`quarantine` too) before it.
        left_out: of each state the rows (by number) that it counts already.
        rows: how many.
        finished: when; None: it was cut off.
        landed: rows that went through.
        refused: rows that were refused again, by what refused them.
        left: why it was given up with its rows in quarantine, where no replay takes them again; None: it was not.
        quarantine: Delta's id of the table; None in records of earlier releases.
    """

    number: int
    stage: str
    stream: str | None
    started: str
    versions: Mapping[str, int]
    left_out: Mapping[str, Sequence[int]]
    rows: int
    finished: str | None = None
    landed: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    left: str | None = None
    quarantine: str | None = None


class Records:
    """The replays of one flow.

    Args:
        quarantine: the folder of the flow's quarantine.
    """

    def __init__(self, quarantine: Place) -> None:
        self.folder = quarantine.with_name(f"{quarantine.name}.replays")

    def all(self) -> list[Record]:
        """Return all replays, oldest first."""
        found: Iterable[Place] = self.folder.glob("[0-9]*.json")
        files = sorted(found, key=lambda file: int(file.stem))
        return [Record(**json.loads(file.read_text(encoding="utf-8"))) for file in files]

    @property
    def last(self) -> int:
        """Return the highest number that was given, be it to a replay of which nothing but its rows was written down; 0: none."""
        return max((int(file.stem) for file in self.folder.glob("[0-9]*")), default=0)

    def unfinished(self) -> list[Record]:
        """Return those that were cut off."""
        return [record for record in self.all() if record.finished is None]

    def needed(self) -> dict[str, int]:
        """Return the oldest version of each table (`quarantine` too) that finishing them takes: what came since is asked for."""
        needed: dict[str, int] = {}
        for record in self.unfinished():
            for name, version in record.versions.items():
                needed[name] = min(version, needed.get(name, version))
        return needed

    def begin(self, record: Record, lot: Lot) -> None:
        """Write a replay down: its rows first, so that a record without rows is never there."""
        written = io.BytesIO()
        pq.write_table(lot.rows, written)
        _put_new(record, self._rows(record.number), written.getvalue())
        _put_new(record, self.folder / f"{record.number}.json", json.dumps(record.to_json()).encode())

    def finish(self, record: Record, landed: int, refused: Mapping[str, int], left: str | None = None) -> None:
        """Mark it as done, or as given up."""
        done = replace(record, finished=datetime.now(UTC).isoformat(), landed=landed, refused=dict(refused), left=left)
        write_json(self.folder / f"{record.number}.json", done.to_json())

    def lot(self, record: Record) -> Lot:
        """Return the rows of a replay."""
        return Lot(record.stage, record.stream, self.rows(record))

    def rows(self, record: Record) -> pa.Table:
        """Return the same as a table: as quarantine held them, with `number`."""
        return pq.read_table(io.BytesIO(self._rows(record.number).read_bytes()))

    def forget(self, before: datetime) -> int:
        """Remove the records of replays that were finished before a time. Return how many."""
        # The last one stays: its number is the highest that was given.
        old = [
            record for record in self.all()[:-1] if record.finished and datetime.fromisoformat(record.finished) < before
        ]
        for record in old:
            (self.folder / f"{record.number}.json").unlink(missing_ok=True)
            self._rows(record.number).unlink(missing_ok=True)
        self._forget_rows_alone(before)
        return len(old)

    def _forget_rows_alone(self, before: datetime) -> None:
        """Remove the rows of replays that were cut off before their record was written; numbers behind the last stay given."""
        known = {record.number for record in self.all()}
        files: list[Place] = [*self.folder.glob("[0-9]*.parquet")]
        for file in files:
            alone = int(file.stem) not in known and int(file.stem) < max(known, default=0)
            if alone and file.stat().st_mtime < before.timestamp():
                file.unlink(missing_ok=True)

    def _rows(self, number: int) -> Place:
        return self.folder / f"{number}.parquet"


def _put_new(record: Record, file: Place, data: bytes) -> None:
    """Put a file where there is none; that an earlier try has put the same is no fault."""
    if isinstance(file, Location):
        put = file.store.put_if_absent(file.key, data) is not None
    elif put := not file.exists():
        put_whole(file, data)
    if not put and file.read_bytes() != data:
        flow = file.parent.name.removesuffix(".replays")
        raise LateWriterError(f"quarantine of {flow}", f"replay {record.number}", "another process has begun it")


@dataclass(frozen=True)
class LotReport:
    """Rows that enter at one place.

    Attributes:
        stage: `source`, `batch`, or the gate that refused them.
        stream: of a source or a batch its stream.
        rows: selected rows by what refused them.
        number: of the replay; None: nothing was replayed.
        landed: rows that went through and have left quarantine; filters may have taken them since.
        counted: rows that have left quarantine because a backfill counts them.
        refused: rows that were refused again, by what refused them now.
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
