"""The engine's files beside Spark's own checkpoint: the epoch, stored attempts, locks."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from filelock import FileLock, Timeout

from pipelines.errors import HalfMadeCheckpointError, LockedError
from pipelines.execution.checkpoint.damage import parsed, read_own
from pipelines.execution.checkpoint.ownership import claim
from pipelines.execution.protocol.coordinator import AttemptRecord, BatchState
from pipelines.places.lease import FileLease, LeaseLostError, held
from pipelines.places.location import Location, Place, on_disk, put_whole
from pipelines.sources.channels import Start
from pipelines.sources.offsets import last_number
from pipelines.state.turns import LateWriterError
from pipelines.surroundings import accessing

T = TypeVar("T")

REFUSE, CONTINUE, RESET, BEGIN = "refuse", "continue", "reset", "begin"
"""What to do with states that hold batches when the checkpoint is fresh (`on_fresh_checkpoint`)."""

TABLES = "tables.json"
"""Beside the checkpoint: which tables it belongs with (`pipelines.execution.checkpoint.belonging`)."""

MARKER = "repartition.json"
"""Beside the checkpoint, while Spark's part of it may be half-made (`pipelines.execution.checkpoint.copy`)."""

# Between two batches a stream holds no lock for some tens of milliseconds (Spark's commit and planning): poll faster.
_POLL_SECONDS = 0.01

_RUN_LOCK, _COMMIT_LOCK = "run.lock", "commit.lock"
_METADATA = "metadata"
"""The file of Spark's by which a folder is a checkpoint."""


@dataclass(frozen=True)
class Epoch:
    """One life of a checkpoint: its number, and the txid that Spark's batch 0 has, or would have, in it."""

    number: int
    first_txid: int
    first_batch: int = 0
    """Spark's first batch in it: an epoch may begin in the middle of Spark's checkpoint."""

    def txid(self, batch_id: int) -> int:
        return self.first_txid + batch_id

    def scope(self, group: str) -> str:
        """Return the tracker's name of a batch group: in a new epoch it is a new one."""
        return f"{group}/{self.number}"

    def checked(self) -> Epoch:
        """Return the epoch itself, its values being numbers."""
        if not all(type(value) is int for value in (self.number, self.first_txid, self.first_batch)):
            raise TypeError("its values are not numbers")
        return self


class Checkpoint:
    """The folder of one batch group of a flow: Spark's checkpoint in `spark/`, the engine's files beside it."""

    def __init__(self, flow: str, folder: Place) -> None:
        self.flow, self.folder = flow, folder
        self.spark = folder / "spark"
        self._leases: list[FileLease] = []

    @property
    def epoch(self) -> Epoch | None:
        """Return the epoch of this checkpoint, or None if it is fresh (Spark's part gone counts as fresh)."""
        if not (self.spark / _METADATA).exists():
            return None
        return self._read("epoch.json", lambda fields: Epoch(**fields).checked())

    def begin(self, epoch: Epoch, *, same_tables: bool = False) -> Epoch:
        """Start a fresh epoch.

        Args:
            same_tables: what was noted of the tables still holds, for Spark's part goes on.

        Raises:
            LeaseLostError: another process has the checkpoint.
        """
        attempts = self.folder / "attempts.json"
        # Before it is seen that the lease is held: behind that a put may take longer than a lease lasts.
        tag = attempts.store.tag(attempts.key) if isinstance(attempts, Location) else None
        self.still_held()
        if not same_tables:
            (self.folder / TABLES).unlink(missing_ok=True)
            self.finish_putting_aside()
        if self.starts_over:
            # First: cut off before its first batch, wherever, it is to begin anew once more.
            self._write_start(begun=epoch.number)
        self.write("epoch.json", asdict(epoch))
        if not isinstance(attempts, Location):
            attempts.unlink(missing_ok=True)
        elif tag is not None and attempts.store.compare_and_swap(attempts.key, b"{}", tag) is None:
            # Not deleted: they may be those of the run that has begun the epoch meanwhile.
            raise LeaseLostError(self.flow, str(attempts), "another process has written it")
        return epoch

    @property
    def start(self) -> Start | None:
        """Return where the channels are read on from, if this checkpoint took the place of another one."""
        fields = self._start_file
        return Start(fields["channels"], fields["clock"], fields["left_out"]) if fields else None

    @property
    def starts_over(self) -> bool:
        """Return whether it is fresh on purpose (`begin_at`), and not because Spark's part was lost."""
        if self.epoch is not None or not (fields := self._start_file):
            return False
        last = self.last_epoch
        # The one that has begun since has brought nothing either, until `goes_on`.
        return bool(fields["behind"] == last or (last is not None and fields["begun"] >= last))

    def goes_on(self) -> None:
        """Say before its first batch that Spark's part, if it is gone from now on, is not gone on purpose."""
        fields = self._start_file
        # Epochs count from 1. What was cut off in `begin_at`, or is of earlier releases, may name the one that runs.
        if fields and (fields["behind"], fields["begun"]) != (0, 0):
            self._write_start(behind=0, begun=0)

    def _write_start(self, **changed: int) -> None:
        fields = {**self._start_file, **changed}
        own = {name: value for name, value in fields.items() if value or name in ("channels", "clock", "behind")}
        self.write("start.json", own)

    @property
    def comes_again(self) -> list[int]:
        """Return the txids of the epoch before `begin_at` whose rows come again with the next epoch, under whichever txids."""
        return list(self._start_file.get("again", ())) if self.starts_over else []

    def begin_at(self, start: Start, aside: Place | None = None) -> None:
        """Begin again at `start`, with the next run. Cut off in between, the old checkpoint goes on as before.

        Args:
            start: what it leaves out the old checkpoint has behind itself.
            aside: where Spark's part of the old one goes; None: there is none.
        """
        more = {"left_out": start.left_out, "again": self.unfinished()}
        fields = {"channels": start.channels, "clock": start.clock, "behind": self.last_epoch}
        self.write("start.json", fields | {name: value for name, value in more.items() if value})
        if isinstance(aside, Location) and isinstance(self.spark, Location):
            # Nothing is renamed there. Without its metadata, which goes first, a checkpoint is none.
            for entry in self.spark.store.entries(self.spark.key):
                self.spark.store.copy(entry.key, f"{aside.key}{entry.key.removeprefix(self.spark.key)}")
            self.still_held()
            (self.spark / _METADATA).unlink(missing_ok=True)
            self.finish_putting_aside()
        elif isinstance(aside, Path):
            aside.parent.mkdir(parents=True, exist_ok=True)
            on_disk(self.spark).rename(aside)

    def finish_putting_aside(self) -> None:
        """Remove what is left of Spark's part on a store, where another run was cut off in `begin_at`: it was copied before."""
        if isinstance(self.spark, Location) and not (self.spark / _METADATA).exists():
            for entry in self.spark.store.entries(self.spark.key):
                self.still_held()
                self.spark.store.delete(entry.key)

    @property
    def _start_file(self) -> dict[str, Any]:
        return self._read("start.json", _checked_start) or {}

    @property
    def last_epoch(self) -> int | None:
        """Return the number of the last epoch, also where Spark's part is gone."""
        epoch = self._read("epoch.json", lambda fields: Epoch(**fields).checked())
        return epoch.number if epoch else None

    def check_epoch(self) -> None:
        """Refuse a damaged `epoch.json`."""
        self._read("epoch.json", lambda fields: Epoch(**fields).checked())

    def _read(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """Return one of the engine's files, None if there is none."""
        return read_own(self.flow, self.folder / name, parse)

    def write(self, name: str, value: Any) -> None:
        """Write one of the engine's files, while the leases are held."""
        self.still_held()
        write_json(self.folder / name, value)

    @property
    def partitions(self) -> int | None:
        """Return the number of shuffle partitions that this query runs with; None: nobody has said one."""
        return self._read("partitions.json", lambda fields: int(fields["partitions"]))

    def set_partitions(self, number: int) -> None:
        """Say with how many shuffle partitions the next runs are. The partitions of windows stay (`repartition`)."""
        if number != self.partitions:
            self.write("partitions.json", {"partitions": number})

    @property
    def has_state(self) -> bool:
        """Return whether Spark keeps state for the query: windows run in it."""
        state = self.spark / "state"
        return state.is_dir() and any(path.name.isdigit() for path in state.iterdir())

    def attempts(self) -> StoredAttempts:
        return StoredAttempts(self.folder / "attempts.json", self.flow)

    def last_batch(self) -> int:
        """Return the highest batch id that Spark has planned (its offset log), -1 for none."""
        return last_number(self.spark / "offsets")

    def finished_batches(self) -> int:
        """Return how many batches Spark has marked as done in this epoch."""
        return last_number(self.spark / "commits") + 1

    def is_finished(self, batch: int) -> bool:
        """Return whether Spark has marked a batch (by its own id) as done."""
        return (self.spark / "commits" / str(batch)).exists()

    def committed_txid(self) -> int | None:
        """Return the last txid of this epoch that is in every table of the query for good, None if none is.

        One that Spark has not marked comes again, and so into a table that has lost it. A mark alone does not say it: a batch
        that was left out is marked too, and one that a repartition took.
        """
        epoch, done = self.epoch, self.finished_batches()
        if epoch is None:
            return None
        if (self.folder / "attempts.json").exists():
            closed = self.closed_txid()
            return None if closed is None or done <= epoch.first_batch else min(closed, epoch.txid(done - 1))
        marked = (batch for batch in range(done - 1, epoch.first_batch - 1, -1) if self._took_rows(batch))
        batch = next(marked, None)
        return None if batch is None else epoch.txid(batch)

    def closed_txid(self) -> int | None:
        """Return the last txid of this epoch that the engine has closed: that is stored before Spark marks it."""
        epoch = self.epoch
        records = self.attempts().get(epoch.scope(self.folder.name)) if epoch is not None else {}
        return max((txid for txid, record in records.items() if record.state is BatchState.COMMITTED), default=None)

    def _took_rows(self, batch: int) -> bool:
        """Return whether a marked batch was one of the query: a repartition takes a batch that repeats the offsets before it."""
        if not (self.spark / "commits" / str(batch)).exists():
            return False
        earlier = (number for number in range(batch - 1, -1, -1) if (self.spark / "commits" / str(number)).exists())
        before = next(earlier, None)
        return before is None or self._offsets(before) != self._offsets(batch)

    def _offsets(self, batch: int) -> list[str]:
        """Return the sources' lines of a batch in Spark's offset log; none if the file is gone."""
        file = self.spark / "offsets" / str(batch)
        return file.read_text(encoding="utf-8").split("\n")[2:] if file.exists() else [str(batch)]

    def plan(self, batch: int) -> str | None:
        """Return the digest of a batch's entry in Spark's offset log, which holds the time of its planning; None: no entry."""
        try:
            return hashlib.blake2b((self.spark / "offsets" / str(batch)).read_bytes(), digest_size=8).hexdigest()
        except FileNotFoundError:
            return None

    def has_plan_of(self, batch: int, record: AttemptRecord) -> bool:
        """Return whether the plan of a batch is there that a record is of; those of earlier releases do not say which it was."""
        plan = self.plan(batch)
        return plan is not None and record.plan in (None, plan)

    def unmarked(self) -> dict[int, AttemptRecord]:
        """Return what is recorded of batches of this epoch that Spark has not marked as done, by txid, with a plan or without."""
        epoch = self.epoch
        if epoch is None:
            return {}
        records, done = self.attempts().get(epoch.scope(self.folder.name)), epoch.txid(self.finished_batches())
        return {txid: record for txid, record in records.items() if txid >= done}

    def unfinished(self) -> list[int]:
        """Return the txids that were begun or planned and neither finished nor left out."""
        epoch, done = self.epoch, self.finished_batches()
        if epoch is None:
            return []
        records = self.unmarked()
        begun = {txid for txid, record in records.items() if record.state is not BatchState.SKIPPED}
        is_planned = self.last_batch() >= done and epoch.txid(done) not in records
        return sorted(begun | ({epoch.txid(done)} if is_planned else set()))

    def planned_at(self, batch: int) -> datetime | None:
        """Return when Spark has planned a batch; None: its offset log does not say."""
        with suppress(FileNotFoundError, ValueError, LookupError):
            said = (self.spark / "offsets" / str(batch)).read_text(encoding="utf-8").split("\n")[1]
            return datetime.fromtimestamp(json.loads(said)["batchTimestampMs"] / 1000, UTC)
        return None

    @contextmanager
    def running(self, wait_seconds: float) -> Iterator[None]:
        """Hold the lock of the query: one query per checkpoint, in any process."""
        with self._locked(_RUN_LOCK, wait_seconds):
            yield

    def still_held(self) -> None:
        """See that no lease is lost by which this process holds it: before each step of what would harm the next run."""
        for lease in self._leases:
            lease.check()

    def is_running(self) -> bool:
        """Return whether a query holds this checkpoint, in any process."""
        try:
            with self.running(0):
                return False
        except LockedError:
            return True

    @contextmanager
    def committing(self, wait_seconds: float) -> Iterator[None]:
        """Hold the commit lock: a stream does for each of its batches, a backfill while it replaces slices."""
        with self._locked(_COMMIT_LOCK, wait_seconds):
            yield

    @contextmanager
    def rewriting(self, wait_seconds: float, *, half_made: bool = False) -> Iterator[None]:
        """Hold the rewrite lock: a backfill or a compaction, for what rewrites committed rows does so alone.

        Args:
            half_made: for who mends a half-made checkpoint. To others one would say that nothing was counted.
        """
        with self._locked("rewrite.lock", wait_seconds):
            if not half_made and (self.folder / MARKER).exists():
                raise HalfMadeCheckpointError(self.flow, self.folder.name)
            yield

    @contextmanager
    def _locked(self, name: str, wait_seconds: float) -> Iterator[None]:
        if isinstance(self.folder, Location):
            with self._leased(self.folder / name, wait_seconds):
                yield
            return
        with accessing(str(self.folder)):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / name, timeout=wait_seconds, poll_interval=_POLL_SECONDS)
            try:
                lock.acquire()
            except Timeout:
                raise LockedError(self.flow, str(self.folder / name), wait_seconds) from None
        try:
            with accessing(str(self.folder)):
                # The lock keeps out processes of this host; those of others are kept out by name.
                claim(self.flow, self.folder, begins=name != _COMMIT_LOCK)
            yield
        finally:
            lock.release()

    @contextmanager
    def _leased(self, file: Location, wait_seconds: float) -> Iterator[None]:
        """Hold a lease in place of a lock: another host has no part in locks of files, and a store has none."""
        self.still_held()
        with held(file, self.flow, wait_seconds) as lease:
            self._leases.append(lease)
            try:
                yield
            finally:
                self._leases.remove(lease)


class StoredAttempts:
    """The `AttemptStore` of a checkpoint: one small JSON file, replaced and synced before any work of the attempt."""

    def __init__(self, file: Place, flow: str = "") -> None:
        self._file, self._flow = file, flow
        data, self._tag = _read_with_tag(file)
        attempts = {} if data is None else parsed(flow, file, data, _checked_attempts)
        # What the last run meant to forget with its next put: else each short run would leave a record for good.
        self._records = {group: _since_committed(records) for group, records in attempts.items() if records}
        # A group without records, as releases before this one read it: no other run puts the same bytes.
        self._run = f"run/{uuid4().hex}"
        self._unanswered: list[bytes] = []

    def get(self, group: str) -> Mapping[int, AttemptRecord]:
        return {int(txid): AttemptRecord.from_json(record) for txid, record in self._records.get(group, {}).items()}

    def put(self, group: str, txid: int, record: AttemptRecord) -> None:
        self._records.setdefault(group, {})[str(txid)] = record.to_json()
        if isinstance(self._file, Location):
            self._swap(self._file)
            return
        if _identity(self._file) != self._tag:
            # Locks keep others out on one host; this one stood still on another, and its batches are done.
            raise LateWriterError(self._flow, f"batch {txid}", f"another process has written {self._file}")
        write_json(self._file, self._records)
        self._tag = _identity(self._file)

    def is_overtaken(self) -> bool:
        """Return whether another process has written the file: this one stood still, and the other goes on in its place."""
        file = self._file
        if not isinstance(file, Location):
            return self._tag != _identity(file)
        return self._tag != file.store.tag(file.key) and self._put_before(file) is None

    def _swap(self, file: Location) -> None:
        """Replace what this run has read or put: one that has lost its lease must not write over the next one's."""
        data = json.dumps({**self._records, self._run: {}}).encode()
        store, known = file.store, self._tag
        self._unanswered.append(data)
        tag = store.compare_and_swap(file.key, data, known) if known else store.put_if_absent(file.key, data)
        if tag is None and (own := self._put_before(file)) is not None:
            tag = store.compare_and_swap(file.key, data, own)
        if tag is None:
            raise LeaseLostError(self._flow, str(file), "another process has written it")
        self._tag, self._unanswered = tag, []

    def _put_before(self, file: Location) -> str | None:
        """Return the tag of the file if this run has put it: the store has kept it and did not say so. Else None."""
        try:
            seen = file.store.read(file.key)
        except FileNotFoundError:
            return None
        return seen.tag if seen.data in self._unanswered else None

    def forget(self, group: str, before: int) -> None:
        # Not written by itself: the next put does, and a record too many does no harm.
        kept = {txid: record for txid, record in self._records.get(group, {}).items() if int(txid) >= before}
        self._records[group] = kept


def _read_with_tag(file: Place) -> tuple[bytes | None, Any]:
    """Return a file's content with what tells this very content from the next one; none if there is no file."""
    try:
        if isinstance(file, Location):
            stored = file.store.read(file.key)
            return stored.data, stored.tag
        with file.open("rb") as opened:
            return opened.read(), _told_by(os.fstat(opened.fileno()))
    except FileNotFoundError:
        return None, None


def _identity(file: Path) -> tuple[int, int, int] | None:
    """Return what tells a file from the one that replaces it; None: there is none."""
    try:
        return _told_by(file.stat())
    except FileNotFoundError:
        return None


def _told_by(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _checked_start(fields: Any) -> dict[str, Any]:
    Start({str(name): int(txid) for name, txid in fields["channels"].items()}, fields["clock"])
    left_out = {str(name): [int(txid) for txid in txids] for name, txids in fields.get("left_out", {}).items()}
    again = [int(txid) for txid in fields.get("again", ())]
    behind, begun = (None if fields["behind"] is None else int(fields["behind"])), int(fields.get("begun", 0))
    return {**fields, "behind": behind, "begun": begun, "left_out": left_out, "again": again}


def _checked_attempts(attempts: Any) -> dict[str, dict[str, Any]]:
    for records in attempts.values():
        for txid, record in records.items():
            int(txid), AttemptRecord.from_json(record)
    return dict(attempts)


def _since_committed(records: dict[str, Any]) -> dict[str, Any]:
    """Return the records from the last committed txid on: batches commit in order, so nothing asks for those before it."""
    last = max((int(txid) for txid, record in records.items() if record["state"] == BatchState.COMMITTED), default=0)
    return {txid: record for txid, record in records.items() if int(txid) >= last}


def write_json(file: Place, value: Any, *, mode: int = 0o666) -> None:
    """Write a small file so that a crash leaves the old or the new one, whole; with what `mode` and the umask allow."""
    put_whole(file, json.dumps(value).encode(), mode=mode)
