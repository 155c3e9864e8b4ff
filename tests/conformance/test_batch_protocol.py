"""The batch protocol, rule by rule: R1-R7 of the coordinator, B1-B10 of the bolts, and their faults that are fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from pipelines.errors import AccountingError
from pipelines.execution.protocol.coordinator import (
    AttemptRecord,
    Batch,
    BatchState,
    Ignored,
    OrderError,
    ProtocolError,
    Retry,
)
from pipelines.execution.protocol.tracker import BatchTracker, Stage
from tests.execution.memory_attempts import MemoryAttemptStore

STAGES = (Stage("spout"), Stage("b-0", upstream=("spout",), commits=True))


def make(
    *stages: Stage,
    store: MemoryAttemptStore | None = None,
    max_active: int = 1,
    max_attempts: int = 3,
    clock: Callable[[], float] = lambda: 0.0,
) -> BatchTracker:
    """A tracker whose first txid is the original's 1."""
    return BatchTracker(
        stages or STAGES,
        attempts=MemoryAttemptStore() if store is None else store,
        max_active=max_active,
        max_attempts=max_attempts,
        first_txid=1,
        idle_seconds=30,
        clock=clock,
    )


def ack(tracker: BatchTracker, batch: Batch, rows: int = 5) -> None:
    """All that comes before the commit."""
    assert tracker.emitted(batch, "spout", rows)
    assert tracker.received(batch, "b-0", rows)


def commit(tracker: BatchTracker, batch: Batch, rows: int = 5) -> None:
    assert tracker.commit_signal(batch)
    assert tracker.committed(batch, "b-0", emitted=rows, committed=rows)
    assert tracker.close(batch)


def run(tracker: BatchTracker, txid: int) -> Batch:
    batch = tracker.open(txid)
    ack(tracker, batch)
    commit(tracker, batch)
    return batch


# --- the coordinator


def test_r1_no_commit_out_of_turn_and_no_fourth_batch() -> None:
    """Max 3; 1, 2, 3 active, 2 acked => no commit for 2, no batch for 4."""
    tracker = make(max_active=3)
    first, second, third = (tracker.open(t) for t in (1, 2, 3))
    ack(tracker, second)
    assert tracker.state(2) is BatchState.PROCESSED
    assert tracker.group().next_commit() is None
    assert tracker.group().due() == []
    with pytest.raises(OrderError, match="must wait for batch 1:0"):
        tracker.commit_signal(second)
    with pytest.raises(OrderError, match="3 active already"):
        tracker.open(4)
    assert tracker.group().active == (first, second, third)


def test_r1_commits_follow_the_txids_whatever_the_order_of_acks() -> None:
    tracker = make(max_active=3)
    batches = [tracker.open(t) for t in (1, 2, 3)]
    for batch in reversed(batches):
        ack(tracker, batch)
    for batch in batches:
        assert tracker.group().next_commit() == batch
        commit(tracker, batch)
    assert tracker.group().position == 4


def test_r1_no_commit_before_the_batch_is_processed() -> None:
    tracker = make()
    batch = tracker.open(1)
    with pytest.raises(OrderError, match="unfinished stages"):
        tracker.commit_signal(batch)
    assert tracker.state(1) is BatchState.PROCESSING


def test_r2_as_many_batches_as_allowed_are_due() -> None:
    tracker = make(max_active=3)
    assert tracker.group().due() == [1, 2, 3]
    first = tracker.open(1)
    assert tracker.group().due() == [2, 3]
    ack(tracker, first)
    assert tracker.group().due() == [2, 3], "a processed batch is still active"
    commit(tracker, first)
    assert tracker.group().due() == [2, 3, 4]


def test_r2_one_batch_by_default() -> None:
    tracker = make()
    tracker.open(1)
    assert tracker.group().due() == []


def test_r3_attempts_start_at_0_and_grow_by_1() -> None:
    tracker = make()
    first = tracker.open(1)
    assert (first.attempt, str(first)) == (0, "1:0")
    tracker.fail(first, "x")
    assert str(tracker.open(1)) == "1:1"


def test_r3_the_attempt_is_stored_before_the_batch_is_opened() -> None:
    class Down(MemoryAttemptStore):
        down = False

        def put(self, group: str, txid: int, record: AttemptRecord) -> None:
            if self.down:
                raise OSError("no space left")
            super().put(group, txid, record)

    store = Down()
    tracker = make(store=store)
    tracker.fail(tracker.open(1), "x")
    store.down = True
    with pytest.raises(OSError, match="no space"):
        tracker.open(1)
    assert tracker.state(1) is BatchState.FAILED
    store.down = False
    assert tracker.open(1).attempt == 1
    assert store.get("main")[1].attempt == 1


def test_r4_a_commit_moves_the_stored_position() -> None:
    store = MemoryAttemptStore()
    tracker = make(store=store)
    run(tracker, 1)
    assert tracker.group().position == 2
    assert store.get("main")[1].state is BatchState.COMMITTED
    run(tracker, 2)
    assert list(store.get("main")) == [2], "older records are forgotten"
    assert tracker.group().record(1) is None


def test_r5_a_failed_txid_takes_all_later_ones_with_it() -> None:
    tracker = make(max_active=3)
    first, second, third = (tracker.open(t) for t in (1, 2, 3))
    ack(tracker, third)
    outcome = tracker.fail(second, "lost")
    assert outcome == Retry(second, tries=1, reason="lost", withdrawn=(third,))
    assert tracker.group().active == (first,), "an earlier one continues"
    assert tracker.group().due() == [2, 3]
    with pytest.raises(OrderError, match="batch 2 is failed and comes first"):
        tracker.open(3)
    assert [str(tracker.open(t)) for t in (2, 3)] == ["2:1", "3:1"]
    ack(tracker, first)
    commit(tracker, first)


def test_r5_a_withdrawn_batch_loses_no_try() -> None:
    tracker = make(max_active=2, max_attempts=3)
    for _ in range(2):
        first, second = tracker.open(1), tracker.open(2)
        assert isinstance(tracker.fail(first, "x"), Retry)
    run(tracker, 1)
    second = tracker.open(2)
    assert second.attempt == 2
    assert tracker.fail(second, "y") == Retry(second, tries=1, reason="y")


def test_r6_a_stale_ack_changes_nothing() -> None:
    tracker = make()
    old = tracker.open(1)
    tracker.fail(old, "x")
    live = tracker.open(1)
    tracker.group().processed(old)
    assert not tracker.emitted(old, "spout", 5)
    assert not tracker.received(old, "b-0", 5)
    assert not tracker.commit_signal(old)
    assert not tracker.committed(old, "b-0", emitted=5, committed=5)
    assert not tracker.close(old)
    assert tracker.state(1) is BatchState.PROCESSING
    ack(tracker, live)
    commit(tracker, live)


def test_r6_deactivate_stops_new_batches_but_not_commits() -> None:
    tracker = make(max_active=2)
    first = tracker.open(1)
    tracker.deactivate()
    assert tracker.group().due() == []
    with pytest.raises(OrderError, match="deactivated"):
        tracker.open(2)
    ack(tracker, first)
    commit(tracker, first)
    tracker.activate()
    assert tracker.group().due() == [2, 3]


def test_r7_a_restart_goes_on_at_the_highest_stored_position() -> None:
    store = MemoryAttemptStore()
    for txid in (4, 6, 5):
        store.put("main", txid, AttemptRecord(attempt=0, state=BatchState.COMMITTED))
    tracker = make(store=store)
    assert tracker.group().position == 7
    assert tracker.group().due() == [7]
    assert make().group().position == 1


def test_latent_a_a_stale_fail_does_not_forget_the_live_attempt() -> None:
    tracker = make(max_active=2)
    old = tracker.open(1)
    tracker.fail(old, "x")
    live, later = tracker.open(1), tracker.open(2)
    assert tracker.fail(Batch("main", 1, 7), "never opened") == Ignored(Batch("main", 1, 7))
    assert tracker.fail(old, "late") == Ignored(old)
    assert tracker.group().active == (live, later)


def test_latent_b_attempts_survive_a_restart_with_one_active_batch() -> None:
    store = MemoryAttemptStore()
    run(make(store=store), 1)
    tracker = make(store=store)
    tracker.fail(tracker.open(2), "x")
    assert make(store=store).open(2).attempt == 1, "after a failure"
    assert make(store=store).open(2).attempt == 2, "after a crash"


# --- the bolts


def test_b1_what_belongs_to_no_batch_is_not_accounted() -> None:
    tracker = make()
    assert not tracker.emitted(None, "spout", 5)
    assert not tracker.received(None, "b-0", 7)
    assert tracker.group().active == ()


def test_b2_a_higher_attempt_discards_what_the_lower_one_reported() -> None:
    tracker = make()
    old = tracker.open(1)
    tracker.emitted(old, "spout", 5)
    live = tracker.open(1)
    assert live.attempt == 1
    assert not tracker.received(old, "b-0", 5), "a lower attempt is ignored"
    ack(tracker, live)
    commit(tracker, live)


@pytest.mark.parametrize(
    ("upstream", "reports"),
    [((Stage("spout"),), 1), ((Stage("spout", tasks=3),), 3), ((Stage("a", tasks=2), Stage("b", tasks=3)), 5)],
)
def test_b3_one_report_a_task_of_every_upstream_stage(upstream: tuple[Stage, ...], reports: int) -> None:
    names = tuple(s.name for s in upstream)
    tracker = make(*upstream, Stage("b-0", upstream=names), Stage("b-1", upstream=("b-0",), commits=True))
    batch = tracker.open(1)
    tracker.received(batch, "b-0", 2 * reports)
    for stage in upstream:
        for _ in range(stage.tasks):
            assert tracker.state(1) is BatchState.PROCESSING
            tracker.emitted(batch, stage.name, 2)
    assert tracker.state(1) is BatchState.PROCESSED


def test_b3_a_report_too_many_is_refused() -> None:
    tracker = make()
    batch = tracker.open(1)
    tracker.emitted(batch, "spout", 5)
    with pytest.raises(ProtocolError, match="more than 1 time"):
        tracker.emitted(batch, "spout", 5)
    tracker.received(batch, "b-0", 5)
    commit(tracker, batch)


def test_b4_reports_add_up() -> None:
    tracker = make(Stage("spout", tasks=2), Stage("b-0", upstream=("spout",), commits=True, tasks=2))
    batch = tracker.open(1)
    assert tracker.emitted(batch, "spout", 4)
    assert tracker.received(batch, "b-0", 1)
    assert tracker.emitted(batch, "spout", 3)
    assert tracker.received(batch, "b-0", 6)
    commit(tracker, batch)


@pytest.mark.parametrize("received", [0, 4, 6])
def test_b5_a_mismatch_fails_the_attempt_with_both_numbers(received: int) -> None:
    tracker = make(Stage("spout"), Stage("b-0", upstream=("spout",)))
    batch = tracker.open(1)
    tracker.emitted(batch, "spout", 5)
    with pytest.raises(AccountingError) as caught:
        tracker.received(batch, "b-0", received)
    error = caught.value
    assert (error.stage, error.txid, error.attempt, error.expected, error.received) == ("b-0", 1, 0, 5, received)
    assert tracker.state(1) is BatchState.FAILED
    assert tracker.fail(batch, error) == Retry(batch, tries=1, reason=str(error))


def test_b5_a_committing_stage_compares_at_the_commit_signal_before_it_writes() -> None:
    tracker = make()
    batch = tracker.open(1)
    tracker.emitted(batch, "spout", 5)
    tracker.received(batch, "b-0", 4)
    assert tracker.state(1) is BatchState.PROCESSED
    with pytest.raises(AccountingError):
        tracker.commit_signal(batch)
    assert not tracker.committed(batch, "b-0", emitted=4, committed=4)


def test_b5_a_committing_stage_waits_for_the_signal() -> None:
    tracker = make()
    batch = tracker.open(1)
    ack(tracker, batch)
    with pytest.raises(OrderError, match="without the commit signal"):
        tracker.committed(batch, "b-0", emitted=5, committed=5)
    commit(tracker, batch)


def test_b5_the_order_of_reports_does_not_matter() -> None:
    tracker = make()
    batch = tracker.open(1)
    tracker.received(batch, "b-0", 5)
    tracker.emitted(batch, "spout", 5)
    commit(tracker, batch)
    assert tracker.state(1) is BatchState.COMMITTED


def test_b6_each_consumer_is_told_its_own_number() -> None:
    tracker = make(
        Stage("spout"),
        Stage("b-0", upstream=("spout",)),
        Stage("left", upstream=("b-0",), commits=True),
        Stage("right", upstream=("b-0",), commits=True),
    )
    batch = tracker.open(1)
    tracker.emitted(batch, "spout", 5)
    tracker.received(batch, "b-0", 5)
    tracker.emitted(batch, "b-0", 9, to="left")
    tracker.emitted(batch, "b-0", 0, to="right")
    tracker.received(batch, "left", 9)
    tracker.received(batch, "right", 0)
    tracker.commit_signal(batch)
    tracker.committed(batch, "left", emitted=3, committed=3)
    with pytest.raises(OrderError, match="not finished: right"):
        tracker.close(batch)
    tracker.committed(batch, "right", emitted=0, committed=0)
    assert tracker.close(batch)


def test_b6_a_stage_behind_a_commit_finishes_during_the_commit() -> None:
    tracker = make(*STAGES, Stage("values", upstream=("b-0",)))
    batch = tracker.open(1)
    ack(tracker, batch)
    assert tracker.state(1) is BatchState.PROCESSED
    tracker.commit_signal(batch)
    tracker.committed(batch, "b-0", emitted=2, committed=2)
    tracker.emitted(batch, "b-0", 2)
    with pytest.raises(OrderError, match="not finished: values"):
        tracker.close(batch)
    tracker.received(batch, "values", 2)
    assert tracker.close(batch)


def test_b8_an_exception_fails_the_batch_and_its_later_reports_are_ignored() -> None:
    tracker = make()
    batch = tracker.open(1)
    tracker.emitted(batch, "spout", 5)
    assert tracker.fail(batch, ValueError("bad row")) == Retry(batch, tries=1, reason="bad row")
    assert not tracker.received(batch, "b-0", 5)
    assert not tracker.commit_signal(batch)
    assert tracker.state(1) is BatchState.FAILED


@pytest.mark.parametrize(("opened_at", "dropped_at"), [(0, 62), (30, 62), (31, 93), (60, 93)])
def test_b9_an_idle_batch_is_dropped_after_one_to_two_rotations(opened_at: int, dropped_at: int) -> None:
    """Time-out 30 s, a tick a second: rotations at 31, 62, 93."""
    now = 0.0
    tracker = make(clock=lambda: now)
    for now in range(200):
        outcomes = tracker.tick()
        if outcomes:
            assert outcomes == [Retry(Batch("main", 1, 0), tries=1, reason="idle for over 30 s")]
            break
        if now == opened_at:
            tracker.open(1)
    assert now == dropped_at
    assert tracker.open(1).attempt == 1


def test_b9_a_batch_that_reports_or_waits_for_its_turn_is_not_idle() -> None:
    now = 0.0
    tracker = make(
        Stage("spout", tasks=9), Stage("b-0", upstream=("spout",), commits=True), max_active=2, clock=lambda: now
    )
    first, second = tracker.open(1), tracker.open(2)
    for _ in range(9):
        tracker.emitted(second, "spout", 1)
    for i in range(9):
        now = 31.0 * i
        assert tracker.tick() == []
        tracker.emitted(first, "spout", 1)
    assert tracker.group().active == (first, second)


def test_b10_two_batch_groups_do_not_mix_in_one_bolt() -> None:
    """Two spouts share a state: both groups have a txid 1 in the bolt b-0."""
    groups: Mapping[str, int] = {"bg0": 5, "bg1": 8}
    tracker = make(
        *(Stage(f"spout-{g}", group=g) for g in groups),
        *(Stage("b-0", upstream=(f"spout-{g}",), commits=True, group=g) for g in groups),
    )
    batches = {g: tracker.open(1, g) for g in groups}
    for g, rows in groups.items():
        tracker.emitted(batches[g], f"spout-{g}", rows)
    for g, rows in groups.items():
        tracker.received(batches[g], "b-0", rows)
    tracker.fail(batches["bg0"], "x")
    commit(tracker, batches["bg1"], rows=8)
    assert tracker.state(1, "bg0") is BatchState.FAILED
    assert (tracker.group("bg0").position, tracker.group("bg1").position) == (1, 2)
    with pytest.raises(ProtocolError, match="name the batch group"):
        tracker.open(1)
