"""The records of a flow's replays, which let a killed one be finished and a checkpoint that was put back be known. No Spark here.

Beside the quarantine, two files per replay: `<flow>.replays/<number>.json` and the rows as `<number>.parquet`. A replay is
written down before its first commit and marked as done behind its last.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch, write_json
from pipelines.execution.protocol.coordinator import BatchState
from pipelines.execution.report import Report
from pipelines.places.location import Location, Place, put_whole
from pipelines.state.quarantine import GROUP, NAME, is_poison
from pipelines.state.record import POISON, RESET
from pipelines.state.schema import TXID
from pipelines.state.turns import LateWriterError

if TYPE_CHECKING:
    from pipelines.state.table import StateTable


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
        refused: rows that were rejected again, by what rejected them.
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

    def begin(self, record: Record, rows: pa.Table) -> None:
        """Write a replay down: its rows first, so that a record without rows is never there."""
        written = io.BytesIO()
        pq.write_table(rows, written)
        _put_new(record, self._rows(record.number), written.getvalue())
        _put_new(record, self.folder / f"{record.number}.json", json.dumps(record.to_json()).encode())

    def finish(self, record: Record, landed: int, refused: Mapping[str, int], left: str | None = None) -> None:
        """Mark it as done, or as given up."""
        done = replace(record, finished=datetime.now(UTC).isoformat(), landed=landed, refused=dict(refused), left=left)
        write_json(self.folder / f"{record.number}.json", done.to_json())

    def rows(self, record: Record) -> pa.Table:
        """Return the rows of a replay, as quarantine held them, with `number`."""
        return pq.read_table(io.BytesIO(self._rows(record.number).read_bytes()))

    def forget(self, before: datetime, *, rejected: bool = False) -> int:
        """Remove the records of replays that were finished before a time. Return how many.

        Args:
            rejected: whether quarantine holds any rows. Those of a replay that was given up can be among them, however old it
                is, and its record alone says that no replay may take them.
        """
        # The last one stays: its number is the highest that was given.
        old = [
            record
            for record in self.all()[:-1]
            if record.finished
            and datetime.fromisoformat(record.finished) < before
            and not (rejected and record.left is not None)
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


def app_id(flow: str, table: str) -> str:
    """Return the transaction id of replays in a table."""
    return f"{flow}/{table}/replay"


@dataclass(frozen=True)
class PutIn:
    """A poison batch whose rows a replay has taken, with a commit in a state."""

    txid: int
    replay: int
    state: str


def put_in_since(
    checkpoint: Checkpoint, epoch: Epoch, quarantine: StateTable, tables: Iterable[StateTable]
) -> PutIn | None:
    """Return a batch that a checkpoint would try again though a replay has taken its rows; None: there is none.

    A replay takes what was left out, or what Spark has marked: the checkpoint was put back, or its attempts are lost. What
    gates rejected of it has gone on as theirs, in states before them and by further replays, which nobody tells from the batch.
    """
    group, replays = checkpoint.folder.name, Records(quarantine.path)
    # A stream, and replays, may be running. One that begins from here on takes what is left out, or marked, behind what is read.
    last = replays.last
    # That a batch is left out holds for the rows of its plan: by another one they come again, with others.
    skipped = {
        txid: checkpoint.has_plan_of(txid - epoch.first_txid, record)
        for txid, record in checkpoint.attempts().get(f"{group}/{epoch.number}").items()
        if record.state is BatchState.SKIPPED
    }
    # Behind the attempts and plans: a stream forgets them once their batches are marked.
    done = epoch.txid(checkpoint.finished_batches())
    history = quarantine.history() if quarantine.exists() else []
    kept = {
        commit.txid: commit.version
        for commit in history
        if commit.kind == POISON and (commit.group, commit.epoch) == (group, epoch.number) and commit.txid is not None
    }
    again = {txid: version for txid, version in kept.items() if txid >= done and not skipped.get(txid)}
    # That one was skipped is known for longer than the log tells when its rows came to quarantine. Behind a reset txids may
    # come again, whose replays are of a former life.
    reset = max(
        (commit.version for commit in history if commit.kind == RESET and commit.group in (None, group)), default=0
    )
    again |= {txid: reset for txid, planned in skipped.items() if txid >= done and txid not in kept and not planned}
    # Those that were given up without a commit have done nothing.
    for replay in replays.all() if again else ():
        behind = {txid for txid, version in again.items() if replay.versions[NAME] >= version}
        did_something = replay.finished is None or replay.left or replay.landed or replay.refused
        if replay.number > last or not behind or not is_poison(replay.stage) or not did_something:
            continue
        rows = replays.rows(replay).select([TXID, GROUP]).to_pylist()
        taken = {row[TXID] for row in rows if row[GROUP] == group and row[TXID] in behind}
        for table in tables if taken else ():
            number = table.opened().transaction_version(app_id(checkpoint.flow, table.name)) if table.exists() else None
            if number is not None and number >= replay.number and table.name in replay.versions:
                return PutIn(min(taken), replay.number, table.name)
    return None
