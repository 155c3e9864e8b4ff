"""Leases under every order of what two holders do: freeze, wake up late, renew, give back, and write.

The model is a dictionary; the lease keeper is the real one. The thing that must not break: whatever is written under the
lease comes from one holder at a time, in the order of the tokens.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pipelines.nimbus.errors import LeaseHeldError, RegistryLeaseLostError
from pipelines.nimbus.processes.beats import Beats
from pipelines.nimbus.registry.leases import Lease, Leases
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings

NAME = "flights/main"
SECONDS = 10.0
_numbers = itertools.count()
HOLDERS = st.sampled_from(["one", "two"])
TIMES = st.sampled_from([0.0, 0.5, 3.0, 9.999, 10.0, 25.0])


class TwoHolders(RuleBasedStateMachine):
    """Two processes and one lease.

    Each holds the `Lease` values it was ever given, since a frozen process may wake up with any of them. Their clocks
    differ by `skew`: one host's clock is ahead.
    """

    skew = 0.0
    make: Callable[[], Store]

    def __init__(self) -> None:
        super().__init__()
        self.now, self.store = 1000.0, type(self).make()
        self.leases = {
            "one": Leases(self.store, clock=lambda: self.now),
            "two": Leases(self.store, clock=lambda: self.now + self.skew),
        }
        self.name = f"{NAME}/{next(_numbers)}"  # all cases share a database, and a name's tokens never start over
        self.hands: dict[str, list[Lease]] = {"one": [], "two": []}
        self.tokens: list[int] = []
        self.writes: list[int] = []
        self.live: Lease | None = None

    def seen_by(self, holder: str) -> float:
        return self.now + (self.skew if holder == "two" else 0.0)

    @rule(seconds=TIMES)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(holder=HOLDERS)
    def take(self, holder: str) -> None:
        if self.live is not None and self.live.expires_at > self.seen_by(holder):
            with pytest.raises(LeaseHeldError) as caught:
                self.leases[holder].take(self.name, holder, SECONDS)
            assert (caught.value.other, caught.value.holder) == (self.live.holder, holder)
            assert caught.value.seconds == pytest.approx(self.live.expires_at - self.seen_by(holder))
            return
        lease = self.leases[holder].take(self.name, holder, SECONDS)
        assert lease.expires_at == self.seen_by(holder) + SECONDS
        self.live = lease
        self.tokens.append(lease.token)
        self.hands[holder].append(lease)

    @precondition(lambda self: any(self.hands.values()))
    @rule(data=st.data(), seconds=st.sampled_from([0.5, SECONDS]))
    def renew(self, data: st.DataObject, seconds: float) -> None:
        holder, lease = self.any_lease(data)
        if not self.holds(holder, lease):
            with pytest.raises(RegistryLeaseLostError) as caught:
                self.leases[holder].renew(lease, seconds)
            assert (caught.value.token, caught.value.seen_token) == (lease.token, self.tokens[-1])
            return
        assert self.live is not None
        longer = self.leases[holder].renew(lease, seconds)
        assert longer.token == lease.token
        now = self.seen_by(holder)
        is_ahead = self.live.expires_at > now + 2 * seconds
        assert longer.expires_at == (now + seconds if is_ahead else max(self.live.expires_at, now + seconds))
        self.live = longer

    @precondition(lambda self: any(self.hands.values()))
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """A holder, perhaps just woken up, writes under what it has in hand."""
        holder, lease = self.any_lease(data)
        try:
            with self.store.write() as connection:
                self.leases[holder].guard(connection, lease)
                self.writes.append(lease.token)
        except RegistryLeaseLostError:
            assert not self.holds(holder, lease)
            return
        assert self.holds(holder, lease)

    @precondition(lambda self: any(self.hands.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holder, lease = self.any_lease(data)
        given = self.leases[holder].release(lease)
        assert given == (self.live is not None and self.live.token == lease.token)
        if given:
            self.live = None

    @invariant()
    def tokens_only_grow(self) -> None:
        assert self.tokens == list(range(1, len(self.tokens) + 1))

    @invariant()
    def writes_come_in_the_order_of_the_tokens(self) -> None:
        assert self.writes == sorted(self.writes)

    @invariant()
    def at_most_one_holds(self) -> None:
        holding = []
        for holder, hands in self.hands.items():
            for lease in hands:
                try:
                    self.leases[holder].check(lease)
                except RegistryLeaseLostError:
                    continue
                holding.append(lease.token)
        assert len(holding) <= 1
        assert not holding or holding == self.tokens[-1:]

    def any_lease(self, data: st.DataObject) -> tuple[str, Lease]:
        every = [(holder, lease) for holder, hands in self.hands.items() for lease in hands]
        return data.draw(st.sampled_from(every))

    def holds(self, holder: str, lease: Lease) -> bool:
        live = self.live
        return live is not None and live.token == lease.token and live.expires_at > self.seen_by(holder)


@pytest.mark.slow
@pytest.mark.parametrize("skew", [0.0, 4.0, -4.0, 60.0])
def test_two_holders_never_hold_or_write_at_once(skew: float) -> None:
    """Also where one host's clock is ahead, by more than a lease even: then leases change hands early, no more."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.migrated(f"sqlite:///{folder}/registry.db")
        case = type("TwoHoldersCase", (TwoHolders,), {"skew": skew, "make": staticmethod(lambda: store)})
        run_state_machine_as_test(case, settings=settings(max_examples=25, stateful_step_count=25))
        store.close()


def test_a_lease_that_a_clock_far_ahead_has_taken_is_of_its_length_again_once_it_is_renewed(tmp_path: Path) -> None:
    now = 4600.0
    keeper = Leases(Store.migrated(f"sqlite:///{tmp_path}/registry.db"), clock=lambda: now)
    lease = keeper.take(NAME, "one", SECONDS)
    now = 1000.0
    lease = keeper.renew(lease, SECONDS)
    assert lease.expires_at == 1010.0
    now = 1011.0
    assert keeper.take(NAME, "two", SECONDS).token == lease.token + 1
    with pytest.raises(RegistryLeaseLostError):
        keeper.renew(lease, SECONDS)


def test_beats_go_on_behind_an_error_that_nobody_foresaw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.migrated(f"sqlite:///{tmp_path}/registry.db")
    settings = replace(NimbusSettings.from_environment(), beat_seconds=0.05)
    ends: list[str] = []
    beats = Beats(Leases(store), Places(store), settings, ("s1", 1), lambda code, why: ends.append(why))
    measured = beats._memory_bytes
    told: list[int] = []

    def fails_once() -> int:
        told.append(1)
        if len(told) == 1:
            raise OSError("too many open files")
        return measured()

    monkeypatch.setattr(beats, "_memory_bytes", fails_once)
    beats.take_slot("one")
    beats.start({}, {})
    try:
        until = time.monotonic() + 30
        while len(told) < 3:
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        beats.end()
    assert not ends
