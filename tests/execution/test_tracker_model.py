"""A model test of the whole batch tracker against a naive reference: any interleaving, restarts included."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipelines.errors import AccountingError
from pipelines.execution.protocol.coordinator import (
    AttemptRecord,
    Batch,
    Ignored,
    OrderError,
    Poison,
    ProtocolError,
    RefusedError,
    Retry,
)
from pipelines.execution.protocol.tracker import BatchTracker, Stage
from tests.execution.memory_attempts import MemoryAttemptStore

IDLE, MAX_ACTIVE, MAX_ATTEMPTS = 10, 3, 3
GROUPS = ("bg0", "bg1")


class JsonStore(MemoryAttemptStore):
    """Keeps only text, as a store on disk does."""

    def get(self, group: str) -> Mapping[int, AttemptRecord]:
        return {t: AttemptRecord.from_json(json.loads(text)) for t, text in super().get(group).items()}  # type: ignore[arg-type]

    def put(self, group: str, txid: int, record: AttemptRecord) -> None:
        super().put(group, txid, json.dumps(record.to_json()))  # type: ignore[arg-type]


@dataclass
class Try:
    """What the reference knows of a txid; `log` is all that its live attempt reported."""

    attempt: int = -1
    tries: int = 0
    status: str = "failed"
    source: int | None = None
    log: list[tuple[str, int, int]] = field(default_factory=list)

    def of(self, kind: str) -> list[int]:
        return [rows for k, rows, _ in self.log if k == kind]

    def faults(self) -> list[tuple[int, int]]:
        """Recomputed from the log: each (expected, received) that does not agree. s -> two tasks of m -> c commits."""
        s, sm, m, mc, c = (self.of(k) for k in ("emit s", "receive m", "emit m", "receive c", "commit"))
        pairs = [(self.source, s[0])] if s and self.source is not None else []
        pairs += [(sum(s), sum(sm))] if s and len(sm) == 2 else []
        pairs += [(sum(m), sum(mc))] if len(m) == 2 and mc and self.of("signal") else []
        pairs += [(emitted, done) for kind, emitted, done in self.log if kind == "commit"] if c else []
        return [(a, b) for a, b in pairs if a != b]

    @property
    def processed(self) -> bool:
        return bool(self.of("emit s")) and len(self.of("receive m")) == 2

    @property
    def whole(self) -> bool:
        return self.processed and len(self.of("emit m")) == 2 and bool(self.of("receive c") and self.of("commit"))


LIMITS = {"emit s": 1, "receive m": 2, "emit m": 2, "receive c": 1}


class Protocol(RuleBasedStateMachine):
    """Two groups that share stage names, three active batches each; any interleaving, restarts included."""

    groups = st.sampled_from(GROUPS)
    picks = st.tuples(st.sampled_from(["live", "live", "live", "any"]), st.integers(0, 5))
    few = st.sampled_from([1, 1, 1, 2])

    def __init__(self) -> None:
        super().__init__()
        self.store, self.now, self.rotated = JsonStore(), 0, 0
        self.model: dict[str, dict[int, Try]] = {g: {} for g in GROUPS}
        self.recent: set[Batch] = set()  # the RotatingMap(2) of the original
        self.older: set[Batch] = set()
        self.accepting = True
        self.issued: list[Batch] = []
        self.start()

    def start(self) -> None:
        stages = [
            stage
            for g in GROUPS
            for stage in (Stage("s", group=g), Stage("m", ("s",), tasks=2, group=g), Stage("c", ("m",), True, group=g))
        ]
        self.tracker = BatchTracker(
            stages,
            attempts=self.store,
            max_attempts=MAX_ATTEMPTS,
            max_active=MAX_ACTIVE,
            idle_seconds=IDLE,
            clock=lambda: float(self.now),
        )

    def live(self, batch: Batch) -> Try | None:
        known = self.model[batch.group].get(batch.txid)
        return known if known and known.status == "live" and known.attempt == batch.attempt else None

    def touch(self, batch: Batch) -> Try | None:
        one = self.live(batch)
        if one:
            self.older.discard(batch)
            self.recent.add(batch)
        return one

    def pick(self, pick: tuple[str, int]) -> Batch:
        """A live batch where there is one, or any that was ever issued, stale ones included."""
        live = [b for b in self.issued if self.live(b)] if pick[0] == "live" else []
        known = live or self.issued or [Batch("bg0", 0, 99)]
        return known[-1 - pick[1] % len(known)]

    def lose(self, group: str, txid: int) -> None:
        """R5."""
        tries = self.model[group]
        tries[txid].status = "failed" if tries[txid].tries < MAX_ATTEMPTS else "poison"
        for t, one in tries.items():
            if t > txid and one.status == "live":
                one.status, one.tries = "failed", one.tries - 1

    def refusal(self, group: str, txid: int) -> type[ProtocolError] | None:
        tries = self.model[group]
        status = tries[txid].status if txid in tries else "new"
        if self.accepting and status in ("poison", "skipped"):
            return RefusedError
        blocked = any(t < txid and one.status in ("failed", "poison") for t, one in tries.items())
        passed = bool(tries) and txid < max(tries) and status in ("new", "done")
        full = status != "live" and sum(one.status == "live" for one in tries.values()) == MAX_ACTIVE
        return OrderError if not self.accepting or blocked or passed or full else None

    @rule(group=groups, steps=st.lists(st.sampled_from(["open", "open", "reports", "finish"]), min_size=1, max_size=8))
    def go_on(self, group: str, steps: list[str]) -> None:
        """A spell in which nothing goes wrong: so that commits are reached."""
        for step in steps:
            waiting = [t for t, o in self.model[group].items() if o.status in ("failed", "poison")]
            known = self.model[group]
            if step == "open":
                self.open_txid(group, min(waiting, default=max(known, default=-1) + 1))
            elif step == "reports":
                self.reports(("live", len(self.issued)))
            else:
                self.finish(group)

    @rule(group=groups, ahead=st.sampled_from([0, 0, 0, 1, 1, 2, -1]))
    def open(self, group: str, ahead: int) -> None:
        tries = self.model[group]
        unfinished = [t for t, one in tries.items() if one.status not in ("done", "skipped")]
        self.open_txid(group, max(0, min(unfinished, default=max(tries, default=-1) + 1) + ahead))

    def open_txid(self, group: str, txid: int) -> None:
        tries = self.model[group]
        error = self.refusal(group, txid)
        if error is None:
            one = tries.get(txid) or Try()
            if one.status == "live":
                self.lose(group, txid)
            if one.tries >= MAX_ATTEMPTS:
                one.status, error = "poison", RefusedError
        if error:
            with pytest.raises(error):
                self.tracker.open(txid, group)
            return
        tries[txid] = Try(one.attempt + 1, one.tries + 1, "live", one.source)
        batch = self.tracker.open(txid, group)
        assert batch == Batch(group, txid, one.attempt + 1)
        assert self.store.get(group)[txid].attempt == batch.attempt
        self.touch(batch)
        self.issued.append(batch)

    def check(self, batch: Batch, one: Try, call: object) -> None:
        """The call fails the attempt if, and only if, the whole log now has a fault."""
        faults = one.faults()
        if not faults:
            if one.of("emit s"):
                one.source = one.of("emit s")[0]
            assert call() is True  # type: ignore[operator]
            return
        if one.source is None and one.of("emit s"):
            one.source = one.of("emit s")[0]
        self.lose(batch.group, batch.txid)
        with pytest.raises(AccountingError) as caught:
            call()  # type: ignore[operator]
        assert (caught.value.expected, caught.value.received) in faults
        outcome = self.tracker.fail(batch, caught.value)
        assert isinstance(outcome, Poison if one.status == "poison" else Retry)

    @rule(pick=picks, kind=st.sampled_from(sorted(LIMITS)), rows=few)
    def report(self, pick: tuple[str, int], kind: str, rows: int) -> None:
        batch = self.pick(pick)
        self.send(batch, kind, rows)

    def send(self, batch: Batch, kind: str, rows: int) -> None:
        verb, stage = kind.split()
        method = self.tracker.emitted if verb == "emit" else self.tracker.received
        one = self.touch(batch)
        if one is None:
            assert method(batch, stage, rows) is False
        elif len(one.of(kind)) == LIMITS[kind]:
            with pytest.raises(ProtocolError):
                method(batch, stage, rows)
        else:
            one.log.append((kind, rows, 0))
            self.check(batch, one, lambda: method(batch, stage, rows))

    @rule(pick=picks)
    def reports(self, pick: tuple[str, int]) -> None:
        """Every report of a batch that has none yet, with the right numbers."""
        batch = self.pick(pick)
        one = self.live(batch)
        if one and not one.log:
            rows = one.source or 1
            for kind, count in (("emit s", rows), ("receive m", rows), ("receive m", 0), ("emit m", 1), ("emit m", 0)):
                self.send(batch, kind, count)
            self.send(batch, "receive c", 1)

    @rule(pick=picks)
    def signal(self, pick: tuple[str, int]) -> None:
        batch = self.pick(pick)
        one = self.touch(batch)
        if one is None:
            assert self.tracker.commit_signal(batch) is False
            return
        earlier = [t for t, o in self.model[batch.group].items() if t < batch.txid and o.status == "live"]
        if earlier or not one.processed:
            with pytest.raises(OrderError):
                self.tracker.commit_signal(batch)
            return
        one.log.append(("signal", 0, 0))
        self.check(batch, one, lambda: self.tracker.commit_signal(batch))

    @rule(pick=picks, emitted=few, committed=few)
    def commit(self, pick: tuple[str, int], emitted: int, committed: int) -> None:
        batch = self.pick(pick)

        def call() -> bool:
            return self.tracker.committed(batch, "c", emitted=emitted, committed=committed)

        one = self.touch(batch)
        if one is None:
            assert call() is False
        elif not one.of("signal") or one.of("commit"):
            with pytest.raises(ProtocolError):
                call()
        else:
            one.log.append(("commit", emitted, committed))
            self.check(batch, one, call)

    @rule(pick=picks)
    def close(self, pick: tuple[str, int]) -> None:
        batch = self.pick(pick)
        one = self.touch(batch)
        if one and not one.whole:
            with pytest.raises(OrderError):
                self.tracker.close(batch)
            return
        assert self.tracker.close(batch) is bool(one)
        if one:
            one.status, one.tries = "done", 0

    def finish(self, group: str) -> None:
        """Takes the first live batch to its end, if all its stages have reported."""
        batch = next(iter(self.tracker.group(group).active), None)
        one = self.live(batch) if batch else None
        if batch is None or one is None or not (one.processed and len(one.of("emit m")) == 2 and one.of("receive c")):
            return
        self.touch(batch)
        if not one.of("signal"):
            one.log.append(("signal", 0, 0))
            self.check(batch, one, lambda: self.tracker.commit_signal(batch))
        if one.status == "live" and not one.of("commit"):
            one.log.append(("commit", 1, 1))
            self.check(batch, one, lambda: self.tracker.committed(batch, "c", emitted=1, committed=1))
        if one.status == "live":
            assert self.tracker.close(batch)
            one.status, one.tries = "done", 0

    @rule(pick=picks)
    def fail(self, pick: tuple[str, int]) -> None:
        batch = self.pick(pick)
        one = self.live(batch)
        if one:
            self.lose(batch.group, batch.txid)
        outcome = self.tracker.fail(batch, "x")
        if one:
            assert isinstance(outcome, Poison if one.status == "poison" else Retry)
        elif (later := self.model[batch.group].get(batch.txid)) and later.attempt != batch.attempt:
            assert outcome == Ignored(batch)

    @rule(seconds=st.integers(1, 15))
    def tick(self, seconds: int) -> None:
        self.now += seconds
        dropped: set[Batch] = set()
        if self.now - self.rotated > IDLE:
            self.rotated, dropped = self.now, {b for b in self.older if self.live(b)}
            self.older, self.recent = self.recent, set()
            for batch in (dropped | self.older).copy():
                one = self.live(batch)
                first = min(t for t, o in self.model[batch.group].items() if o.status == "live") if one else 0
                if one and one.processed and batch.txid > first:
                    dropped.discard(batch)
                    self.older.discard(batch)
                    self.recent.add(batch)
        expected = []
        for batch in sorted(dropped, key=lambda b: (b.group, b.txid)):
            if self.live(batch):
                expected.append(batch)
                self.lose(batch.group, batch.txid)
        assert sorted((o.batch for o in self.tracker.tick()), key=lambda b: (b.group, b.txid)) == expected

    @rule(how=st.sampled_from(["restart", "deactivate", "activate", "activate"]))
    def disturb(self, how: str) -> None:
        if how != "restart":
            self.accepting = how == "activate"
            getattr(self.tracker, how)()
            return
        for tries in self.model.values():
            for one in tries.values():
                one.status = "failed" if one.status == "live" else one.status
        self.rotated, self.accepting = self.now, True
        self.recent, self.older = set(), set()
        self.start()

    @rule(group=groups, how=st.sampled_from(["skip", "retry", "accept"]))
    @precondition(lambda self: any(o.status == "poison" for tries in self.model.values() for o in tries.values()))
    def settle_poison(self, group: str, how: str) -> None:
        for txid, one in self.model[group].items():
            if one.status == "poison":
                if how == "skip":
                    self.tracker.skip(txid, group)
                    one.status = "skipped"
                else:
                    self.tracker.retry(txid, group, accept_source=how == "accept")
                    one.status, one.tries = "failed", 0
                    one.source = None if how == "accept" else one.source

    @invariant()
    def the_same_batches_are_live(self) -> None:
        for group in GROUPS:
            live = [Batch(group, t, o.attempt) for t, o in sorted(self.model[group].items()) if o.status == "live"]
            assert list(self.tracker.group(group).active) == live

    @invariant()
    def the_same_states(self) -> None:
        names = {"done": "committed", "live": None}
        for group in GROUPS:
            newest = max((t for t, o in self.model[group].items() if o.status == "done"), default=-1)
            for txid, one in self.model[group].items():
                if txid >= newest and (expected := names.get(one.status, one.status)):
                    assert self.tracker.state(txid, group) == expected

    @invariant()
    def commits_are_in_order(self) -> None:
        """Nothing below a committed txid is left to do, and at most the first live batch may commit."""
        for tries in self.model.values():
            done = max((t for t, o in tries.items() if o.status == "done"), default=-1)
            assert all(o.status in ("done", "skipped") for t, o in tries.items() if t < done)
            signalled = [t for t, o in tries.items() if o.status == "live" and o.of("signal")]
            assert len(signalled) <= 1

    @invariant()
    def no_attempt_is_issued_twice(self) -> None:
        assert len(set(self.issued)) == len(self.issued)


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
