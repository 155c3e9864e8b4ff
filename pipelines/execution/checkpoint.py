"""What the engine keeps beside Spark's own checkpoint: the epoch, stored attempts, locks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipelines.errors import LockedError
from pipelines.execution.coordinator import AttemptRecord, BatchState
from pipelines.execution.ownership import claim
from pipelines.sources.events import Start

REFUSE, CONTINUE, RESET = "refuse", "continue", "reset"
"""What to do with states that hold batches when the checkpoint is fresh (`on_fresh_checkpoint`)."""

# Between two batches a stream holds no lock for some tens of milliseconds (Spark's commit and planning): poll faster.
_POLL_SECONDS = 0.01


_COMMIT_LOCK = "commit.lock"


@dataclass(frozen=True)
class Epoch:
    """One life of a checkpoint: its number, and the txid of Spark's batch 0 in it."""

    number: int
    first_txid: int

    def txid(self, batch_id: int) -> int:
        return self.first_txid + batch_id


class Checkpoint:
    """The folder of one batch group of a flow: Spark's checkpoint in `spark/`, the engine's files beside it."""

    def __init__(self, flow: str, folder: Path) -> None:
        self.flow, self.folder = flow, folder
        self.spark = folder / "spark"

    @property
    def epoch(self) -> Epoch | None:
        """The epoch of this checkpoint, or None if it is fresh (Spark's part gone counts as fresh)."""
        file = self.folder / "epoch.json"
        if not file.exists() or not (self.spark / "metadata").exists():
            return None
        return Epoch(**json.loads(file.read_text(encoding="utf-8")))

    def begin(self, epoch: Epoch) -> Epoch:
        """Start a fresh epoch."""
        write_json(self.folder / "epoch.json", asdict(epoch))
        (self.folder / "attempts.json").unlink(missing_ok=True)
        return epoch

    @property
    def start(self) -> Start | None:
        """Where the channels are read on from, if this checkpoint took the place of another one."""
        found = self._start_file
        return Start(found["channels"], found["clock"]) if found else None

    @property
    def begins_anew(self) -> bool:
        """Whether it is fresh on purpose (`begin_at`), and not because Spark's part was lost."""
        return self.epoch is None and bool(self._start_file) and self._start_file["behind"] == self._last_epoch

    def begin_at(self, start: Start, aside: Path | None = None) -> None:
        """Begin anew at `start`, with the next run. Cut off in between, the old checkpoint goes on as before.

        Args:
            start: what it leaves out the old checkpoint has behind itself.
            aside: where Spark's part of the old one goes; None: there is none.
        """
        write_json(self.folder / "start.json", {**asdict(start), "behind": self._last_epoch})
        if aside is not None:
            aside.parent.mkdir(parents=True, exist_ok=True)
            self.spark.rename(aside)

    @property
    def _start_file(self) -> dict[str, Any]:
        file = self.folder / "start.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    @property
    def _last_epoch(self) -> int | None:
        file = self.folder / "epoch.json"
        return json.loads(file.read_text(encoding="utf-8"))["number"] if file.exists() else None

    @property
    def partitions(self) -> int | None:
        """The number of shuffle partitions that this query runs with; None: nobody has said one."""
        file = self.folder / "partitions.json"
        return int(json.loads(file.read_text(encoding="utf-8"))["partitions"]) if file.exists() else None

    def set_partitions(self, number: int) -> None:
        """Say with how many shuffle partitions the next runs are. The partitions of windows stay (`repartition`)."""
        if number != self.partitions:
            write_json(self.folder / "partitions.json", {"partitions": number})

    @property
    def has_state(self) -> bool:
        """Whether Spark keeps state for the query: windows run in it."""
        state = self.spark / "state"
        return state.is_dir() and any(one.name.isdigit() for one in state.iterdir())

    def attempts(self) -> StoredAttempts:
        return StoredAttempts(self.folder / "attempts.json")

    def last_batch(self) -> int:
        """The highest batch id that Spark has planned (its offset log), -1 for none."""
        offsets = self.spark / "offsets"
        return max((int(p.name) for p in offsets.iterdir() if p.name.isdigit()), default=-1) if offsets.is_dir() else -1

    def finished_batches(self) -> int:
        """How many batches Spark has marked as done in this epoch."""
        commits = self.spark / "commits"
        return (
            max((int(p.name) for p in commits.iterdir() if p.name.isdigit()), default=-1) + 1 if commits.is_dir() else 0
        )

    @contextmanager
    def running(self, wait_seconds: float) -> Iterator[None]:
        """One query a checkpoint, in any process."""
        with self._locked("run.lock", wait_seconds):
            yield

    @contextmanager
    def committing(self, wait_seconds: float) -> Iterator[None]:
        """Held by a stream for each of its batches, and by a backfill while it replaces slices."""
        with self._locked(_COMMIT_LOCK, wait_seconds):
            yield

    @contextmanager
    def rewriting(self, wait_seconds: float) -> Iterator[None]:
        """Held by a backfill or a compaction: what rewrites committed rows does so alone."""
        with self._locked("rewrite.lock", wait_seconds):
            yield

    @contextmanager
    def _locked(self, name: str, wait_seconds: float) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / name, timeout=wait_seconds, poll_interval=_POLL_SECONDS)
        try:
            lock.acquire()
        except Timeout:
            raise LockedError(self.flow, str(self.folder / name), wait_seconds) from None
        try:
            # The lock keeps out processes of this host; those of others are kept out by name.
            claim(self.flow, self.folder, begins=name != _COMMIT_LOCK)
            yield
        finally:
            lock.release()


class StoredAttempts:
    """The `AttemptStore` of a checkpoint: one small JSON file, replaced and synced before any work of the attempt."""

    def __init__(self, file: Path) -> None:
        self._file = file
        found: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        # What the last run meant to forget with its next put: else each short run would leave a record for good.
        self._records = {group: _since_committed(records) for group, records in found.items()}

    def get(self, group: str) -> Mapping[int, AttemptRecord]:
        return {int(txid): AttemptRecord.from_json(one) for txid, one in self._records.get(group, {}).items()}

    def put(self, group: str, txid: int, record: AttemptRecord) -> None:
        self._records.setdefault(group, {})[str(txid)] = record.to_json()
        write_json(self._file, self._records)

    def forget(self, group: str, before: int) -> None:
        # Not written by itself: the next put does, and a record too many does no harm.
        kept = {txid: one for txid, one in self._records.get(group, {}).items() if int(txid) >= before}
        self._records[group] = kept


def _since_committed(records: dict[str, Any]) -> dict[str, Any]:
    """The records from the last committed txid on: batches commit in order, so nothing asks for those before it."""
    last = max((int(txid) for txid, one in records.items() if one["state"] == BatchState.COMMITTED), default=0)
    return {txid: one for txid, one in records.items() if int(txid) >= last}


def write_json(file: Path, value: Any, *, mode: int = 0o666) -> None:
    """Write a small file so that a crash leaves the old or the new one, whole; with what `mode` and the umask allow."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with os.fdopen(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode), "w", encoding="utf-8") as out:
        json.dump(value, out)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
