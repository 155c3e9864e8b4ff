"""The coordinator of one batch group: which attempt of which txid is live, and who may commit (rules R1-R7).

The rule numbers are those of the Trident rules that tests/conformance follows. Throttling and `isReady` of R2 are
Spark's: its trigger and its sources decide when a batch comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, NoReturn, Protocol

from pipelines.errors import BatchError

GONE = ""
"""In place of a plan's digest: the plan is gone, whichever it was."""


class BatchState(StrEnum):
    """The state of a txid."""

    NEW = "new"  # never opened
    PROCESSING = "processing"  # an attempt is live
    PROCESSED = "processed"  # all stages before the commit have finished; it waits for its turn
    COMMITTING = "committing"  # the commit signal is given
    COMMITTED = "committed"
    FAILED = "failed"  # no attempt is live; it is to be opened again
    POISON = "poison"  # failed `max_attempts` times; `skip` or `retry` is the operator's choice
    SKIPPED = "skipped"  # left out by the operator; the runner drains it and goes on


@dataclass(frozen=True)
class Batch:
    """One attempt at one txid of one batch group. A value: it may go stale, then its reports are ignored."""

    group: str
    txid: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.txid}:{self.attempt}"


@dataclass(frozen=True)
class RowCount:
    """A number of rows and the XOR of their hashes; `xor` is None where nobody computed it.

    `fields` says what was hashed: hashes of other fields do not compare. It is None in what earlier releases have kept.
    """

    rows: int = 0
    xor: int | None = 0
    fields: str | None = None

    def __add__(self, other: RowCount) -> RowCount:
        unknown = self.xor is None or other.xor is None
        return RowCount(self.rows + other.rows, None if unknown else (self.xor or 0) ^ (other.xor or 0))

    def agrees_with(self, other: RowCount) -> bool:
        """Return whether the rows are as many, and their hashes the same where both sides have them."""
        compares = self.fields == other.fields and self.xor is not None and other.xor is not None
        return self.rows == other.rows and (not compares or self.xor == other.xor)


@dataclass(frozen=True)
class AttemptRecord:
    """The record that a store keeps of a txid.

    Attributes:
        attempt: The number of the latest attempt. It only grows, through restarts and replays too.
        tries: Attempts that count towards `max_attempts`: not those withdrawn because an earlier txid failed.
        state: PROCESSING, FAILED, COMMITTED, POISON or SKIPPED. PROCESSING after a restart: the attempt never ended.
        sources: What each transactional source delivered, to compare a replay with.
        in_windows: Whether it failed in the windows of the query, before there was anything to commit. Who skips the txid
            then leaves its rows out of the windows.
        plan: The digest of the plan whose rows came to it. What is recorded says nothing of the rows of another plan. None:
            not known, in what earlier releases have kept.
    """

    attempt: int
    tries: int = 0
    state: BatchState = BatchState.PROCESSING
    sources: Mapping[str, RowCount] = field(default_factory=dict)
    reason: str = ""
    in_windows: bool = False
    plan: str | None = None

    @property
    def done(self) -> bool:
        """Return whether nothing remains to do for this txid."""
        return self.state in (BatchState.COMMITTED, BatchState.SKIPPED)

    @property
    def plan_lost(self) -> bool:
        """Return whether nothing is left of its plan but the number of attempts: its rows may have come with a batch before."""
        return self.plan == GONE and self.state is BatchState.FAILED and not self.tries

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a store that keeps JSON."""
        return asdict(replace(self, sources=dict(self.sources))) | {"state": str(self.state)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> AttemptRecord:
        """Return the inverse of `to_json`."""
        sources = {name: RowCount(**count) for name, count in values["sources"].items()}
        return cls(**{**values, "sources": sources, "state": BatchState(values["state"])})


class AttemptStore(Protocol):
    """A store in which attempts survive a restart. `put` must be durable when it returns; one tracker writes to a group."""

    def get(self, group: str) -> Mapping[int, AttemptRecord]:
        """Return every record of the group, by txid."""

    def put(self, group: str, txid: int, record: AttemptRecord) -> None:
        """Write or replace one record."""

    def forget(self, group: str, before: int) -> None:
        """Remove the records of all txids lower than `before`."""


@dataclass(frozen=True)
class _Failed:
    """An attempt that failed, with its tries so far and the later ones that were withdrawn."""

    batch: Batch
    tries: int
    reason: str
    withdrawn: tuple[Batch, ...] = ()


class Retry(_Failed):
    """Open the txid again (after a back-off that grows with `tries`), then those withdrawn."""


class Poison(_Failed):
    """The attempt was the last one allowed; the flow stops here."""


@dataclass(frozen=True)
class Ignored:
    """The failure was reported for an attempt that is not live; nothing changed (R6)."""

    batch: Batch


Outcome = Retry | Poison | Ignored


class ProtocolError(BatchError):
    """The runner broke the batch protocol: a fault in the engine, not in the data."""


class OrderError(ProtocolError):
    """A batch was opened, committed or closed before its turn."""


class RefusedError(ProtocolError):
    """`open` of a txid that is POISON or SKIPPED; `record` says why."""

    def __init__(self, group: str, txid: int, record: AttemptRecord) -> None:
        self.group, self.txid, self.record, self.state = group, txid, record, record.state
        super().__init__(f"batch {txid} of {group} is {record.state}: {record.reason}")


class Coordinator:
    """R1-R7 for one batch group.

    Args:
        group: The batch group's name; a new epoch of a checkpoint needs a new name.
        attempts: Where attempts and the position survive a restart. Read once, here (R7).
        max_active: How many txids may be active at once. Spark has one micro-batch in flight.
        max_attempts: After that many failed attempts a txid is POISON.
        first_txid: Where a fresh group starts: 0 as in Spark; the original has 1.
    """

    def __init__(
        self, group: str, attempts: AttemptStore, *, max_active: int = 1, max_attempts: int = 3, first_txid: int = 0
    ) -> None:
        if max_active < 1 or max_attempts < 1:
            raise ValueError("max_active and max_attempts must be at least 1")
        self.group, self.accepting = group, True
        self._store, self._max_active, self._max_attempts = attempts, max_active, max_attempts
        self._first = first_txid
        self._records = dict(attempts.get(group))
        self._active: dict[int, tuple[Batch, BatchState]] = {}
        self._outcomes: dict[int, Retry | Poison] = {}

    @property
    def position(self) -> int:
        """Return `currTransaction` (R4, R7): the lowest txid that is not done."""
        waiting = self._waiting()
        if waiting or self._active:
            return min([*waiting, *self._active])
        return max(self._records, default=self._first - 1) + 1

    @property
    def active(self) -> tuple[Batch, ...]:
        """Return the live attempts, in txid order."""
        return tuple(batch for batch, _ in self._active.values())

    def state(self, txid: int) -> BatchState:
        """Return where a txid stands; one that an earlier life of the process left unfinished is FAILED."""
        if txid in self._active:
            return self._active[txid][1]
        record = self._records.get(txid)
        if record is None:
            return BatchState.NEW if txid >= self.position else BatchState.COMMITTED
        return BatchState.FAILED if record.state is BatchState.PROCESSING else record.state

    def record(self, txid: int) -> AttemptRecord | None:
        """Return the stored record of a txid, None if it has none (any more)."""
        return self._records.get(txid)

    def is_live(self, batch: Batch) -> bool:
        """Return whether this very attempt is active."""
        return batch.txid in self._active and self._active[batch.txid][0] == batch

    def due(self) -> list[int]:
        """Return the txids to open now, failed ones first; none while deactivated or behind a poison batch (R2).

        Spark decides when a batch comes: only the conformance tests of the rules call this (ADR 125).
        """
        waiting = self._waiting()
        if not self.accepting or any(self._records[t].state is BatchState.POISON for t in waiting):
            return []
        following = max([self._first - 1, *self._records]) + 1
        fresh = range(following, following + self._max_active)
        return [*waiting, *fresh][: self._max_active - len(self._active)]

    def open(self, txid: int, plan: str | None = None) -> Batch:
        """Start an attempt, stored + 1 or else 0, and store it before returning (R3).

        Opening a live txid again fails that attempt first (R5). The latest committed txid may be opened again too:
        Spark replays it if the process died before Spark's own commit.

        Args:
            plan: the digest of its plan; None: as before.
        """
        self._check_turn(txid)
        live = self._active.get(txid)
        if live:
            self.fail(live[0], "replaced by a new attempt")
        earlier = self._records.get(txid)
        if earlier is None:
            record = AttemptRecord(attempt=0, tries=1, plan=plan)
        else:
            self._check_budget(txid, earlier)
            record = replace(
                earlier,
                attempt=earlier.attempt + 1,
                tries=earlier.tries + 1,
                state=BatchState.PROCESSING,
                reason="",
                in_windows=False,
                plan=earlier.plan if plan is None else plan,
            )
        self._put(txid, record)
        batch = Batch(self.group, txid, record.attempt)
        self._active[txid] = (batch, BatchState.PROCESSING)
        self._outcomes.pop(txid, None)
        return batch

    def processed(self, batch: Batch) -> None:
        """Note that the batch tree is acked; a stale ack is ignored (R6)."""
        if self.is_live(batch) and self.state(batch.txid) is BatchState.PROCESSING:
            self._active[batch.txid] = (batch, BatchState.PROCESSED)

    def next_commit(self) -> Batch | None:
        """Return the one batch that may commit now: the lowest active txid, if it is processed (R1)."""
        for batch, state in self._active.values():
            return batch if state is BatchState.PROCESSED else None
        return None

    def commit(self, batch: Batch) -> bool:
        """Give the commit signal (R1). Return False for a stale attempt.

        Raises:
            OrderError: An earlier txid is not committed, or the batch is not processed.
        """
        if not self.is_live(batch):
            return False
        if self.state(batch.txid) is not BatchState.COMMITTING and self.next_commit() != batch:
            lowest = self.active[0]
            why = "has unfinished stages" if lowest == batch else f"must wait for batch {lowest}"
            raise OrderError(f"batch {batch} of {self.group} cannot commit: it {why}")
        self._active[batch.txid] = (batch, BatchState.COMMITTING)
        return True

    def close(self, batch: Batch) -> bool:
        """Ack the commit: the position moves on (R4). Return False for a stale attempt.

        The record stays until a later txid is closed, so that a replay of this one gets a higher attempt.
        """
        if not self.is_live(batch):
            return False
        if self.state(batch.txid) is not BatchState.COMMITTING:
            raise OrderError(f"batch {batch} of {self.group} cannot close: it has no commit signal")
        record = replace(self._records[batch.txid], state=BatchState.COMMITTED, tries=0)
        self._put(batch.txid, record)
        del self._active[batch.txid]
        self._store.forget(self.group, batch.txid)
        self._records = {txid: kept for txid, kept in self._records.items() if txid >= batch.txid}
        return True

    def fail(self, batch: Batch, reason: str, *, in_windows: bool = False) -> Outcome:
        """End the attempt and withdraw all later active txids, which are opened again at no cost to them (R5).

        A stale failure changes nothing (LATENT a); a second failure of the same attempt gets the first one's outcome.
        """
        if not self.is_live(batch):
            known = self._outcomes.get(batch.txid)
            return known if known and known.batch == batch else Ignored(batch)
        record = self._records[batch.txid]
        last = record.tries >= self._max_attempts
        state = BatchState.POISON if last else BatchState.FAILED
        self._put(batch.txid, replace(record, state=state, reason=reason, in_windows=in_windows))
        del self._active[batch.txid]
        later = tuple(b for b in self.active if b.txid > batch.txid)
        for other in later:
            self._withdraw(other, f"withdrawn: batch {batch} failed")
        outcome = (Poison if last else Retry)(batch, record.tries, reason, later)
        self._outcomes[batch.txid] = outcome
        return outcome

    def withdraw(self, batch: Batch, reason: str) -> None:
        """End an attempt, and all later active ones, at no cost to them."""
        for other in (b for b in self.active if b.txid >= batch.txid and self.is_live(batch)):
            self._withdraw(other, reason if other == batch else f"withdrawn: batch {batch} was")

    def delivered(self, batch: Batch, source: str, count: RowCount) -> RowCount | None:
        """Keep what a transactional source delivered. Return what an earlier attempt got if that differs, else None."""
        record = self._records[batch.txid]
        earlier = record.sources.get(source)
        if earlier is not None and not earlier.agrees_with(count):
            return earlier
        # What is of other fields is compared by its count once.
        if earlier is None or earlier.fields != count.fields:
            self._put(batch.txid, replace(record, sources={**record.sources, source: count}))
        return None

    def skip(self, txid: int) -> None:
        """Leave a poison txid out: the position moves past it."""
        self._put(txid, replace(self._poison(txid, "skip"), state=BatchState.SKIPPED))

    def keep_from_windows(self, txid: int) -> None:
        """Record of a poison or skipped txid that its rows are not to reach the windows of the query."""
        self._put(txid, replace(self._records[txid], in_windows=True))

    @property
    def kept_from_windows(self) -> frozenset[int]:
        """Return the skipped txids whose rows the windows do not see."""
        return frozenset(t for t, r in self._records.items() if r.state is BatchState.SKIPPED and r.in_windows)

    def retry(self, txid: int, *, accept_source: bool = False) -> None:
        """Allow a poison txid `max_attempts` more tries; `accept_source` forgets what its sources delivered before."""
        record = self._poison(txid, "retry")
        sources = {} if accept_source else record.sources
        self._put(txid, replace(record, state=BatchState.FAILED, tries=0, sources=sources))

    def recall(self, txid: int) -> None:
        """Record of a txid whose record is lost that it was tried, by a plan that is gone."""
        self._put(txid, AttemptRecord(0, 1, BatchState.FAILED, reason="its record was lost", plan=GONE))

    def planned_otherwise(self, txid: int, plan: str) -> list[int]:
        """Return of a txid that comes by a plan, and of those behind it, which of them are recorded of other plans.

        Plans come one behind the other: of what is behind it none is there. What is committed is not asked.
        """

        def is_of_another(t: int, record: AttemptRecord) -> bool:
            return record.plan not in (plan, None) if t == txid else t > txid and not record.plan_lost

        open_ones = {t: r for t, r in self._records.items() if r.state is not BatchState.COMMITTED}
        return sorted(t for t, r in open_ones.items() if t not in self._active and is_of_another(t, r))

    def confirm(self, txid: int) -> None:
        """Write the record of a txid as it is, which the store refuses where another process has taken the group."""
        self._put(txid, self._records[txid])

    def plan_again(self, txid: int, plan: str = GONE) -> None:
        """Let a txid come by another plan, as if it were new: it may bring other rows than those that failed or were left out.

        The number of its attempts goes on.
        """
        known = self._records[txid]
        self._put(txid, AttemptRecord(known.attempt, state=BatchState.FAILED, reason=known.reason, plan=plan))

    def lose_plans(self, since: int) -> None:
        """Record of the txids from one on that their plans are gone, where it is not known which they were."""
        for txid, record in list(self._records.items()):
            if txid >= since and record.plan is None:
                # A try, as it has had: quarantine may have rows of it.
                self._put(txid, replace(record, tries=max(record.tries, 1), plan=GONE))

    def _waiting(self) -> list[int]:
        return sorted(t for t, r in self._records.items() if not r.done and t not in self._active)

    def _put(self, txid: int, record: AttemptRecord) -> None:
        self._store.put(self.group, txid, record)
        self._records[txid] = record

    def _withdraw(self, batch: Batch, reason: str) -> None:
        record = self._records[batch.txid]
        self._put(batch.txid, replace(record, state=BatchState.FAILED, tries=record.tries - 1, reason=reason))
        del self._active[batch.txid]

    def _poison(self, txid: int, verb: str) -> AttemptRecord:
        if self.state(txid) is not BatchState.POISON:
            raise ProtocolError(f"cannot {verb} batch {txid} of {self.group}: it is {self.state(txid)}, not poison")
        return self._records[txid]

    def _check_budget(self, txid: int, record: AttemptRecord) -> None:
        exhausted = record.tries >= self._max_attempts and not record.done
        if exhausted and record.state is not BatchState.POISON:
            reason = record.reason or f"attempt {record.attempt} never ended: its process stopped"
            record = replace(record, state=BatchState.POISON, reason=reason)
            self._put(txid, record)
        if record.state in (BatchState.POISON, BatchState.SKIPPED):
            raise RefusedError(self.group, txid, record)

    def _check_turn(self, txid: int) -> None:
        def refuse(why: str) -> NoReturn:
            raise OrderError(f"cannot open batch {txid} of {self.group}: {why}")

        known = self._records.get(txid)
        # What would come again may never do so: a batch before has its rows, a repartition its number. Behind a batch it is no
        # sign that Spark has marked that one: the mark may be gone, too.
        planned = [t for t, record in self._records.items() if not record.plan_lost]
        highest = max([self._first - 1, *planned])
        earlier = [t for t in self._waiting() if t < txid and t in planned]
        if not self.accepting:
            refuse("the group is deactivated")
        if known and known.state in (BatchState.POISON, BatchState.SKIPPED):
            raise RefusedError(self.group, txid, known)
        if earlier:
            refuse(f"batch {earlier[0]} is {self.state(earlier[0])} and comes first")
        if txid < highest and (known is None or known.done):
            refuse(f"it is committed, and so are or will be later ones up to {highest}")
        if txid < self._first:
            refuse(f"the first txid is {self._first}")
        if txid not in self._active and len(self._active) >= self._max_active:
            refuse(f"{self._max_active} active already")
