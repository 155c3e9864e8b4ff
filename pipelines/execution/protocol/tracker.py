"""The batch tracker: a plain state machine that says when a batch is whole (rules R1-R7 and B1-B10).

A runner feeds it real counts; it holds no rows, runs no Spark and does no I/O but through the attempt store.
Delayed acks (B7) have no counterpart: what a report sets off happens when it is made.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pipelines.errors import AccountingError
from pipelines.execution.protocol.coordinator import (
    AttemptStore,
    Batch,
    BatchState,
    Coordinator,
    Ignored,
    OrderError,
    Outcome,
    ProtocolError,
    RowCount,
)


class HashError(AccountingError):
    """The counts agree but the hashes of the rows do not: rows were lost and others doubled or changed."""

    def __init__(self, stage: str, batch: Batch, expected: RowCount, received: RowCount) -> None:
        super().__init__(stage, batch.txid, batch.attempt, expected.rows, received.rows)
        self.expected_xor, self.received_xor = expected.xor, received.xor
        self.args = (
            f"stage {stage} of batch {batch}: {received.rows} rows as expected, but not the same ones: "
            f"hash {expected.xor} expected, {received.xor} received",
        )


@dataclass(frozen=True)
class Stage:
    """A stage of the plan as the batch protocol sees it, within one batch group.

    Attributes:
        name: Unique within its group. The same name in two groups is two stages (B10).
        upstream: The stages that it receives from; none makes it a source.
        commits: It writes one table, and waits for the commit signal. A bolt with two states is two such stages.
        tasks: How many reports of each kind make it whole (B3). The engine's stages have one (ADR 125).
        lazy: Its counts come out of the commit's own Spark job, so the commit signal does not wait for them.
        transactional: For a source: a replay must deliver the same rows. False for an opaque one.
        fields: For a source: what of a row is hashed, as a digest.
    """

    name: str
    upstream: tuple[str, ...] = ()
    commits: bool = False
    tasks: int = 1
    lazy: bool = False
    transactional: bool = True
    fields: str | None = None
    group: str = "main"


@dataclass
class _StageCounts:
    """The counts of one stage in one attempt."""

    reports: int = 0
    expected: RowCount = field(default_factory=RowCount)
    receipts: int = 0
    received: RowCount = field(default_factory=RowCount)
    sent: Counter[str] = field(default_factory=Counter)
    written: bool = False
    finished: bool = False


@dataclass
class _OpenBatch:
    """One live attempt: the progress of each of its stages, and the rotation in which it was last touched."""

    batch: Batch
    stages: dict[str, _StageCounts]
    touched: int
    signalled: bool = False


class _GroupStages:
    """The stages of one group and what follows from their order."""

    def __init__(self, group: str, stages: list[Stage]) -> None:
        self.stages: dict[str, Stage] = {}
        self.consumers: dict[str, tuple[str, ...]] = {}
        self.before_commit: set[str] = set()
        for stage in stages:
            if stage.name in self.stages:
                raise ValueError(f'group "{group}" has two stages named "{stage.name}"')
            for parent in stage.upstream:
                if parent not in self.stages:
                    raise ValueError(f'stage "{stage.name}": its upstream "{parent}" must come before it')
                self.consumers[parent] += (stage.name,)
            if stage.tasks < 1:
                raise ValueError(f'stage "{stage.name}" needs at least one task')
            self.stages[stage.name], self.consumers[stage.name] = stage, ()
            if not stage.commits and not stage.lazy and self.before_commit.issuperset(stage.upstream):
                self.before_commit.add(stage.name)

    def reports_due(self, stage: Stage) -> int:
        """Return how many reports a stage waits for: one per task of every upstream stage (B3)."""
        return sum(self.stages[parent].tasks for parent in stage.upstream)


class BatchTracker:
    """Coordinates the batches of one flow and accounts for every row of them.

    Args:
        stages: All stages, each after its upstream.
        attempts: Where attempts and positions survive a restart.
        max_attempts: After that many failed attempts a txid is POISON. An attempt that never ended counts as failed.
        max_active: How many txids of a group may be active at once (R2). The engine has one (ADR 125).
        first_txid: The first txid of a fresh group.
        idle_seconds: The time-out of B9. The default is twenty times the original's 30 s: a Spark stage reports when
            it is whole, where a bolt reports each tuple.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        stages: Iterable[Stage],
        *,
        attempts: AttemptStore,
        max_attempts: int = 3,
        max_active: int = 1,
        first_txid: int = 0,
        idle_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        by_group: dict[str, list[Stage]] = {}
        for stage in stages:
            by_group.setdefault(stage.group, []).append(stage)
        if not by_group:
            raise ValueError("a tracker needs at least one stage")
        self._plans = {group: _GroupStages(group, members) for group, members in by_group.items()}
        self._coordinators = {
            group: Coordinator(group, attempts, max_active=max_active, max_attempts=max_attempts, first_txid=first_txid)
            for group in by_group
        }
        self._ledgers: dict[tuple[str, int], _OpenBatch] = {}
        self._idle_seconds, self._clock = idle_seconds, clock
        self._rotation, self._rotated_at = 0, clock()

    def group(self, name: str | None = None) -> Coordinator:
        """Return the coordinator of a group (position, active, due, next_commit, state, record); the only one by default."""
        if name is None and len(self._coordinators) > 1:
            raise ProtocolError(f"name the batch group: {', '.join(self._coordinators)}")
        known = next(iter(self._coordinators)) if name is None else name
        if known not in self._coordinators:
            raise ProtocolError(f'no batch group "{known}"; there are: {", ".join(self._coordinators)}')
        return self._coordinators[known]

    def state(self, txid: int, group: str | None = None) -> BatchState:
        """Return where a txid stands. Look here before `open`: POISON stops the flow, SKIPPED is drained."""
        return self.group(group).state(txid)

    def open(self, txid: int, group: str | None = None, *, plan: str | None = None) -> Batch:
        """Start the next attempt at a txid; it is stored before this returns (R3), an older one is discarded (B2).

        Args:
            txid: The txid.
            group: Its batch group.
            plan: The digest of its plan; None: as before.

        Raises:
            RefusedError: The txid is POISON or SKIPPED.
            OrderError: It is not its turn.
        """
        coordinator = self.group(group)
        try:
            batch = coordinator.open(txid, plan)
        finally:
            self._sweep(coordinator)
        stages = self._plans[batch.group].stages
        ledger = _OpenBatch(batch, {name: _StageCounts() for name in stages}, self._rotation)
        self._ledgers[batch.group, txid] = ledger
        self._ack(ledger)
        return batch

    def emitted(
        self, batch: Batch | None, stage: str, rows: int, *, xor: int | None = None, to: str | None = None
    ) -> bool:
        """Take the report of one task of a stage: what it emitted to every consumer, or to the one named (B4, B6).

        A source reports here what it delivered; a transactional one must deliver the same again on a replay.

        Returns:
            False if the attempt is not live (B2) or there is no batch (B1): nothing changed.

        Raises:
            AccountingError: The numbers do not agree; the attempt has failed.
        """
        ledger = self._live(batch)
        if ledger is None:
            return False
        plan, spec, progress = self._find(ledger, stage)
        targets = plan.consumers[stage] if to is None else (to,)
        if to is not None and (not spec.upstream or to not in plan.consumers[stage]):
            raise ProtocolError(f'stage "{stage}" emits to all of {plan.consumers[stage]}, not to "{to}" alone')
        count = self._count(rows, xor)
        ways = targets if spec.upstream else (stage, *targets)
        for way in ways:
            self._once(ledger, f"{stage} to {way}", progress.sent[way], spec.tasks)
        progress.sent.update(ways)
        for target in targets:
            ledger.stages[target].reports += 1
            ledger.stages[target].expected += count
        if not spec.upstream:
            progress.received += count
        self._settle(ledger, stage, *targets)
        return True

    def received(self, batch: Batch | None, stage: str, rows: int, *, xor: int | None = None) -> bool:
        """Take the report of one task of a stage: what it received (B4). Return and raise as `emitted`."""
        ledger = self._live(batch)
        if ledger is None:
            return False
        _, spec, progress = self._find(ledger, stage)
        if not spec.upstream:
            raise ProtocolError(f'stage "{stage}" is a source: it reports what it emitted')
        self._once(ledger, stage, progress.receipts, spec.tasks)
        progress.receipts += 1
        progress.received += self._count(rows, xor)
        self._settle(ledger, stage)
        return True

    def commit_signal(self, batch: Batch) -> bool:
        """Let the committing stages write, after comparing what they have already received (R1, B5).

        Returns:
            False if the attempt is not live.

        Raises:
            OrderError: An earlier txid is not committed, or a stage before the commit is not finished.
            AccountingError: As `emitted`.
        """
        ledger = self._live(batch)
        if ledger is None or not self.group(batch.group).commit(batch):
            return False
        ledger.signalled = True
        self._settle(ledger, *(s.name for s in self._plans[batch.group].stages.values() if s.commits))
        return True

    def committed(self, batch: Batch, stage: str, *, emitted: int, committed: int) -> bool:
        """Take the report of a stage that has written its table: as many rows as it emitted, or the attempt fails.

        Where a replay finds the txid in the table already, `committed` is what the table's batch record says.
        Returns and raises as `emitted`.
        """
        ledger = self._live(batch)
        if ledger is None:
            return False
        _, spec, progress = self._find(ledger, stage)
        if not spec.commits:
            raise ProtocolError(f'stage "{stage}" does not commit')
        if not ledger.signalled:
            raise OrderError(f'stage "{stage}" committed batch {batch} without the commit signal')
        self._once(ledger, f"{stage} to its table", int(progress.written), 1)
        self._compare(ledger, stage, self._count(emitted, None), self._count(committed, None))
        progress.written = True
        self._settle(ledger, stage)
        return True

    def close(self, batch: Batch) -> bool:
        """Close a batch that is whole: the position moves on (R4). Return False if the attempt is not live.

        Raises:
            OrderError: It has no commit signal, or a stage has not finished; the attempt is still live.
        """
        ledger = self._live(batch)
        if ledger is None:
            return False
        unfinished = [name for name, progress in ledger.stages.items() if not progress.finished]
        if unfinished:
            raise OrderError(f"batch {batch} cannot close: not finished: {', '.join(unfinished)}")
        closed = self.group(batch.group).close(batch)
        self._sweep(self.group(batch.group))
        return closed

    def fail(self, batch: Batch, reason: str | BaseException, *, in_windows: bool = False) -> Outcome:
        """End an attempt that failed; what it reports from now on is ignored (R5, B8).

        Call it for an AccountingError too: the outcome of an attempt that has failed already is reported again.

        Args:
            in_windows: whether it failed in the windows of the query, before there was anything to commit.
        """
        text = str(reason) or type(reason).__name__
        outcome = self.group(batch.group).fail(batch, text, in_windows=in_windows)
        self._sweep(self.group(batch.group))
        return outcome

    def withdraw(self, batch: Batch, reason: str) -> None:
        """End an attempt at no cost to the batch: what failed is not the batch's."""
        self.group(batch.group).withdraw(batch, reason)
        self._sweep(self.group(batch.group))

    def tick(self) -> list[Outcome]:
        """Drop the attempts that were idle for one to two time-outs, as failures (B9).

        Spark has one batch in flight and its own time-outs, so only the conformance tests of the rules call this (ADR 125).

        A batch that only waits for an earlier one to commit is not idle.
        """
        if self._clock() - self._rotated_at <= self._idle_seconds:
            return []
        self._rotation, self._rotated_at = self._rotation + 1, self._clock()
        for (group, txid), ledger in self._ledgers.items():
            coordinator = self.group(group)
            if coordinator.state(txid) is BatchState.PROCESSED and coordinator.next_commit() != ledger.batch:
                ledger.touched = self._rotation
        idle = [ledger.batch for ledger in self._ledgers.values() if self._rotation - ledger.touched >= 2]
        outcomes = [self.fail(batch, f"idle for over {self._idle_seconds:g} s") for batch in idle]
        return [outcome for outcome in outcomes if not isinstance(outcome, Ignored)]

    def skip(self, txid: int, group: str | None = None) -> None:
        """Leave a poison batch out, so that the next may come."""
        self.group(group).skip(txid)

    def keep_from_windows(self, txid: int, group: str | None = None) -> None:
        """Record of a poison or skipped batch that its rows are not to reach the windows of the query."""
        self.group(group).keep_from_windows(txid)

    def kept_from_windows(self, group: str | None = None) -> frozenset[int]:
        """Return the skipped txids whose rows the windows do not see."""
        return self.group(group).kept_from_windows

    def retry(self, txid: int, group: str | None = None, *, accept_source: bool = False) -> None:
        """Allow a poison batch `max_attempts` more tries, after the flow or the data was corrected.

        Args:
            txid: The poison txid.
            group: Its batch group.
            accept_source: Take what the sources deliver now, even if earlier attempts got other rows.
        """
        self.group(group).retry(txid, accept_source=accept_source)

    def deactivate(self) -> None:
        """Open no more batches; those that are open go on to their commit (R6).

        The engine drains its queries instead: only the conformance tests of the rules call this (ADR 125).
        """
        for coordinator in self._coordinators.values():
            coordinator.accepting = False

    def activate(self) -> None:
        """Open batches again after `deactivate`."""
        for coordinator in self._coordinators.values():
            coordinator.accepting = True

    def _live(self, batch: Batch | None) -> _OpenBatch | None:
        ledger = self._ledgers.get((batch.group, batch.txid)) if batch else None
        if ledger is None or ledger.batch != batch:
            return None
        ledger.touched = self._rotation
        return ledger

    def _find(self, ledger: _OpenBatch, stage: str) -> tuple[_GroupStages, Stage, _StageCounts]:
        plan = self._plans[ledger.batch.group]
        if stage not in plan.stages:
            raise ProtocolError(f'no stage "{stage}" in group {ledger.batch.group}; it has: {", ".join(plan.stages)}')
        return plan, plan.stages[stage], ledger.stages[stage]

    @staticmethod
    def _count(rows: int, xor: int | None) -> RowCount:
        if rows < 0:
            raise ValueError(f"a number of rows cannot be {rows}")
        return RowCount(rows, xor)

    @staticmethod
    def _once(ledger: _OpenBatch, what: str, so_far: int, tasks: int) -> None:
        if so_far >= tasks:
            raise ProtocolError(f"batch {ledger.batch}: {what} reported more than {tasks} time(s)")

    def _settle(self, ledger: _OpenBatch, *stages: str) -> None:
        """Finish those of the stages that are whole, then ack the batch if nothing before the commit is left (B5)."""
        for stage in stages:
            plan, spec, progress = self._find(ledger, stage)
            if progress.finished or (spec.commits and not ledger.signalled):
                continue
            if spec.upstream:
                whole = progress.reports == plan.reports_due(spec) and progress.receipts == spec.tasks
                if whole:
                    self._compare(ledger, stage, progress.expected, progress.received)
            else:
                whole = progress.sent[stage] == spec.tasks
                if whole and spec.transactional:
                    now = replace(progress.received, fields=spec.fields)
                    earlier = self.group(ledger.batch.group).delivered(ledger.batch, stage, now)
                    self._compare(ledger, stage, earlier or now, now)
            progress.finished = whole and (progress.written or not spec.commits)
        self._ack(ledger)

    def _compare(self, ledger: _OpenBatch, stage: str, expected: RowCount, received: RowCount) -> None:
        if expected.agrees_with(received):
            return
        batch = ledger.batch
        error = (
            HashError(stage, batch, expected, received)
            if expected.rows == received.rows
            else AccountingError(stage, batch.txid, batch.attempt, expected.rows, received.rows)
        )
        self.fail(batch, error)
        raise error

    def _ack(self, ledger: _OpenBatch) -> None:
        if all(ledger.stages[name].finished for name in self._plans[ledger.batch.group].before_commit):
            self.group(ledger.batch.group).processed(ledger.batch)

    def _sweep(self, coordinator: Coordinator) -> None:
        """Forget what stages know of attempts that are no longer live (B2)."""
        self._ledgers = {
            key: ledger
            for key, ledger in self._ledgers.items()
            if key[0] != coordinator.group or coordinator.is_live(ledger.batch)
        }
