"""The batch tracker beyond the original's rules."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from pipelines.errors import AccountingError
from pipelines.execution.protocol.coordinator import (
    GONE,
    AttemptRecord,
    Batch,
    BatchState,
    OrderError,
    Poison,
    ProtocolError,
    RefusedError,
    Retry,
    RowCount,
)
from pipelines.execution.protocol.tracker import BatchTracker, HashError, Stage
from tests.execution.memory_attempts import MemoryAttemptStore

FLIGHTS = (Stage("flights"), Stage("delays", upstream=("flights",), commits=True))


def make(*stages: Stage, store: MemoryAttemptStore | None = None, max_attempts: int = 3) -> BatchTracker:
    attempts = MemoryAttemptStore() if store is None else store
    return BatchTracker(stages or FLIGHTS, attempts=attempts, max_attempts=max_attempts)


def run(tracker: BatchTracker, txid: int, rows: int = 842) -> Batch:
    batch = tracker.open(txid)
    tracker.emitted(batch, "flights", rows)
    tracker.received(batch, "delays", rows)
    tracker.commit_signal(batch)
    tracker.committed(batch, "delays", emitted=10, committed=10)
    tracker.close(batch)
    return batch


def poison(tracker: BatchTracker, txid: int) -> None:
    for _ in range(3):
        tracker.fail(tracker.open(txid), "bad")
    assert tracker.state(txid) is BatchState.POISON


def test_a_batch_goes_from_open_to_close() -> None:
    tracker = make()
    assert [str(run(tracker, t)) for t in (0, 1, 5)] == ["0:0", "1:0", "5:0"], "a repartition leaves a gap"
    assert tracker.group().position == 6


def test_a_batch_is_poison_after_max_attempts() -> None:
    tracker = make()
    outcomes = [tracker.fail(tracker.open(0), f"reason {i}") for i in range(3)]
    assert [type(o) for o in outcomes] == [Retry, Retry, Poison]
    assert outcomes[2] == Poison(Batch("main", 0, 2), tries=3, reason="reason 2")
    with pytest.raises(RefusedError) as caught:
        tracker.open(0)
    assert caught.value.state is BatchState.POISON
    assert caught.value.record.reason == "reason 2"
    with pytest.raises(OrderError, match="batch 0 is poison"):
        tracker.open(1)
    assert tracker.group().due() == []


def test_attempts_that_never_ended_make_a_batch_poison_too() -> None:
    store = MemoryAttemptStore()
    for attempt in range(3):
        assert make(store=store).open(0).attempt == attempt
    tracker = make(store=store)
    with pytest.raises(RefusedError, match="attempt 2 never ended"):
        tracker.open(0)
    assert make(store=store).state(0) is BatchState.POISON


def test_what_fails_outside_a_batch_costs_no_try() -> None:
    tracker = make()
    for _ in range(5):
        batch = tracker.open(0)
        tracker.withdraw(batch, "the disk is full")
        assert tracker.state(0) is BatchState.FAILED
        tracker.withdraw(batch, "told twice")
    assert [type(tracker.fail(tracker.open(0), "bad")) for _ in range(3)] == [Retry, Retry, Poison]


def test_opening_a_live_batch_again_costs_a_try() -> None:
    tracker = make(max_attempts=2)
    assert [tracker.open(0).attempt, tracker.open(0).attempt] == [0, 1]
    with pytest.raises(RefusedError, match="replaced by a new attempt"):
        tracker.open(0)
    assert tracker.group().active == ()


def test_skip_is_the_way_past_a_poison_batch() -> None:
    store = MemoryAttemptStore()
    tracker = make(store=store)
    poison(tracker, 0)
    tracker.skip(0)
    for one in (tracker, make(store=store)):
        assert one.state(0) is BatchState.SKIPPED
        assert one.group().due() == [1]
    with pytest.raises(RefusedError) as caught:
        tracker.open(0)
    assert caught.value.state is BatchState.SKIPPED
    run(tracker, 1)


def test_what_is_recorded_of_a_batch_is_of_its_plan() -> None:
    """Behind a batch that is planned no other one is: those that were there are gone."""
    store = MemoryAttemptStore()
    tracker = make(store=store, max_attempts=1)
    run(tracker, 0)
    for txid in (1, 2):
        tracker.fail(tracker.open(txid, plan=f"plan {txid}"), "bad")
        tracker.skip(txid)
    tracker.emitted(tracker.open(3, plan="plan 3"), "flights", 842)
    group = (tracker := make(store=store, max_attempts=1)).group()
    assert [group.planned_otherwise(txid, f"plan {txid}") for txid in (1, 2, 3)] == [[2, 3], [3], []]
    assert group.planned_otherwise(1, "another") == [1, 2, 3]
    group.plan_again(1, "another")
    assert (tracker.state(1), group.planned_otherwise(1, "another")) == (BatchState.FAILED, [2, 3])
    for txid in (2, 3):
        group.plan_again(txid)
    assert (group.planned_otherwise(1, "another"), group.record(3)) == (
        [], AttemptRecord(0, 0, BatchState.FAILED, plan=GONE),
    )  # fmt: skip
    assert store.get("main") == {txid: group.record(txid) for txid in range(4)}
    # Batch 3 may bring other rows; attempts go on.
    assert [str(run(tracker, txid, 841)) for txid in (1, 2, 3)] == ["1:1", "2:1", "3:1"]


@pytest.mark.parametrize("state", [BatchState.PROCESSING, BatchState.POISON, BatchState.SKIPPED])
@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("plan", ["gone", None])
def test_a_closed_batch_comes_again_with_the_plans_behind_it_gone(
    state: BatchState, taken: bool, plan: str | None
) -> None:
    """Spark has lost its mark and the plan of the next batch. Of one that a repartition took there is no record."""
    store = MemoryAttemptStore()
    tracker = make(store=store, max_attempts=1)
    again = run(tracker, 0).txid + taken
    batch = tracker.open(again + 1, plan=plan)
    if state is not BatchState.PROCESSING:
        tracker.fail(batch, "bad")
    if state is BatchState.SKIPPED:
        tracker.skip(batch.txid)
    group = (tracker := make(store=store, max_attempts=1)).group()
    group.lose_plans(again + 1)  # as a start does
    for other in group.planned_otherwise(again, f"plan {again}"):
        group.plan_again(other)
    assert str(run(tracker, again)) == ("1:0" if taken else "0:1")
    # Cut off behind that, it comes once more.
    tracker = make(store=store, max_attempts=1)
    assert str(run(tracker, again)) == ("1:1" if taken else "0:2")
    assert str(run(tracker, again + 1, 841)) == f"{again + 1}:1"
    with pytest.raises(OrderError, match="it is committed"):
        tracker.open(again)


def test_records_of_earlier_releases_do_not_name_their_plan() -> None:
    tracker = make()
    poison(tracker, 0)
    group = tracker.group()
    assert group.planned_otherwise(0, "any") == []
    group.lose_plans(1)
    assert group.planned_otherwise(0, "any") == []
    group.lose_plans(0)
    assert (group.planned_otherwise(0, "any"), tracker.state(0)) == ([0], BatchState.POISON)
    tracker.retry(0)
    tracker.fail(tracker.open(0), "bad")
    assert group.planned_otherwise(0, "any") == [0]


@pytest.mark.parametrize("verb", ["skip", "retry"])
def test_only_a_poison_batch_is_skipped_or_retried(verb: str) -> None:
    tracker = make()
    tracker.fail(tracker.open(0), "x")
    for txid in (0, 1):
        with pytest.raises(ProtocolError, match=f"cannot {verb} batch {txid}"):
            getattr(tracker, verb)(txid)


def test_retry_gives_a_poison_batch_new_tries_and_higher_attempts() -> None:
    tracker = make()
    poison(tracker, 0)
    tracker.retry(0)
    assert [tracker.fail(tracker.open(0), "bad").batch.attempt for _ in range(3)] == [3, 4, 5]
    assert tracker.state(0) is BatchState.POISON


@pytest.mark.parametrize("restarted", [False, True])
def test_a_replay_must_deliver_the_same_rows(restarted: bool) -> None:
    store = MemoryAttemptStore()
    tracker = make(store=store)
    tracker.emitted(tracker.open(0), "flights", 842)
    tracker = make(store=store) if restarted else tracker
    with pytest.raises(AccountingError) as caught:
        tracker.emitted(tracker.open(0), "flights", 841)
    error = caught.value
    assert (error.stage, error.attempt, error.expected, error.received) == ("flights", 1, 842, 841)


def test_a_committed_batch_that_spark_replays_must_deliver_the_same_rows() -> None:
    store = MemoryAttemptStore()
    run(make(store=store), 0)
    assert run(make(store=store), 0).attempt == 1
    with pytest.raises(AccountingError):
        run(make(store=store), 0, rows=841)


def test_replays_of_a_committed_batch_do_not_use_up_its_tries() -> None:
    store = MemoryAttemptStore()
    assert [run(make(store=store), 0).attempt for _ in range(5)] == [0, 1, 2, 3, 4]
    tracker = make(store=store)
    batch = tracker.open(0)
    assert tracker.fail(batch, "x") == Retry(batch, tries=1, reason="x")


def test_an_opaque_source_may_deliver_other_rows() -> None:
    tracker = make(Stage("flights", transactional=False), FLIGHTS[1])
    tracker.emitted(tracker.open(0), "flights", 842)
    assert run(tracker, 0, rows=7).attempt == 1
    assert tracker.state(0) is BatchState.COMMITTED


def test_the_operator_may_accept_what_a_source_delivers_now() -> None:
    tracker = make()
    tracker.emitted(tracker.open(0), "flights", 842)
    for _ in range(2):
        with pytest.raises(AccountingError):
            run(tracker, 0, rows=7)
    tracker.retry(0)
    with pytest.raises(AccountingError):
        run(tracker, 0, rows=7)
    tracker.fail(tracker.open(0), "x")
    tracker.fail(tracker.open(0), "x")
    tracker.retry(0, accept_source=True)
    run(tracker, 0, rows=7)


def test_a_table_must_commit_what_its_stage_emitted() -> None:
    tracker = make()
    batch = tracker.open(0)
    tracker.emitted(batch, "flights", 842)
    tracker.received(batch, "delays", 842)
    tracker.commit_signal(batch)
    with pytest.raises(AccountingError) as caught:
        tracker.committed(batch, "delays", emitted=10, committed=9)
    assert (caught.value.expected, caught.value.received) == (10, 9)


def test_hashes_are_compared_where_both_sides_have_them() -> None:
    stages = (Stage("flights", tasks=2), Stage("delays", upstream=("flights",)))
    tracker = make(*stages)
    batch = tracker.open(0)
    tracker.emitted(batch, "flights", 1, xor=0b0110)
    tracker.emitted(batch, "flights", 1, xor=0b0011)
    with pytest.raises(HashError, match="2 rows as expected, but not the same ones: hash 5 expected, 4 received"):
        tracker.received(batch, "delays", 2, xor=0b0100)
    other = make(*stages)
    batch = other.open(0)
    other.emitted(batch, "flights", 1, xor=0b0110)
    other.emitted(batch, "flights", 1)
    assert other.received(batch, "delays", 2, xor=0b0100)


@pytest.mark.parametrize(("before", "now", "compare"), [("ab", "ab", True), ("ab", "ba", False), (None, "ba", False)])
def test_hashes_of_other_fields_are_not_compared(before: str | None, now: str, compare: bool) -> None:
    store = MemoryAttemptStore()
    tracker = BatchTracker([Stage("flights", fields=before)], attempts=store)
    tracker.emitted(tracker.open(0), "flights", 3, xor=0b0101)
    kept = store.records["main"][0].to_json()
    if before is None:
        del kept["sources"]["flights"]["fields"]  # of an earlier release
    store.put("main", 0, AttemptRecord.from_json(json.loads(json.dumps(kept))))
    tracker = BatchTracker([Stage("flights", fields=now)], attempts=store, max_attempts=4)
    with pytest.raises(HashError) if compare else nullcontext():
        tracker.emitted(tracker.open(0), "flights", 3, xor=0b1010)
    with pytest.raises(AccountingError, match="2"):
        tracker.emitted(tracker.open(0), "flights", 2, xor=0b1010)
    with pytest.raises(HashError):  # once only
        tracker.emitted(tracker.open(0), "flights", 3, xor=0b1111)


def test_lazy_stages_report_after_the_commit_signal() -> None:
    tracker = make(Stage("flights", lazy=True), Stage("b-0", upstream=("flights",)), Stage("b-1", ("b-0",), True))
    batch = tracker.open(0)
    assert tracker.commit_signal(batch)
    tracker.committed(batch, "b-1", emitted=3, committed=3)
    tracker.emitted(batch, "flights", 842)
    tracker.received(batch, "b-0", 842)
    tracker.emitted(batch, "b-0", 800)
    with pytest.raises(OrderError, match="not finished: b-1"):
        tracker.close(batch)
    tracker.received(batch, "b-1", 800)
    assert tracker.close(batch)


@pytest.mark.parametrize(
    ("stages", "text"),
    [
        ([], "at least one stage"),
        ([Stage("a"), Stage("a")], 'two stages named "a"'),
        ([Stage("a", upstream=("b",)), Stage("b")], 'its upstream "b" must come before it'),
        ([Stage("a", tasks=0)], "at least one task"),
    ],
)
def test_stages_that_make_no_plan(stages: list[Stage], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        BatchTracker(stages, attempts=MemoryAttemptStore())


def test_what_a_runner_must_not_do() -> None:
    tracker = make()
    batch = tracker.open(0)
    with pytest.raises(ProtocolError, match='no stage "x" in group main; it has: flights, delays'):
        tracker.received(batch, "x", 1)
    with pytest.raises(ProtocolError, match="is a source"):
        tracker.received(batch, "flights", 1)
    with pytest.raises(ProtocolError, match="does not commit"):
        tracker.committed(batch, "flights", emitted=1, committed=1)
    with pytest.raises(ProtocolError, match="emits to all"):
        tracker.emitted(batch, "flights", 1, to="delays")
    with pytest.raises(ValueError, match="cannot be -1"):
        tracker.emitted(batch, "flights", -1)
    with pytest.raises(ProtocolError, match='no batch group "x"'):
        tracker.open(0, "x")
    assert tracker.group().is_live(batch)


def test_a_record_survives_json() -> None:
    record = AttemptRecord(2, 1, BatchState.FAILED, {"a": RowCount(3, None), "b": RowCount(1, 7)}, "x")
    assert AttemptRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
