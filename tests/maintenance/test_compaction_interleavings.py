"""Batches, replaced slices and compactions in any order: reads always equal a plain model."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipelines.errors import ReadPointError
from pipelines.maintenance import compact
from pipelines.state.record import GENERATION
from tests.maintenance.small_state import FLOW, SmallState
from tests.tiers import EXHAUSTIVE

pytestmark = pytest.mark.slow

SLICES = ("2024-01-01", "it's", "50% off/x", "a=b?", "a b")
ROWS = st.lists(
    st.tuples(
        st.sampled_from(SLICES),
        st.sampled_from(("a", 'say "hi"', "it's", "", "*", None)),
        st.sampled_from((0, 1, None)),
        st.integers(-100, 100),
    ),
    max_size=6,
)


class Interleavings(RuleBasedStateMachine):
    """One table; every rule is a commit that a deployment makes."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.state = SmallState(Path(self.folder.name))
        self.vacuumed = False

    @rule(rows=ROWS, gap=st.sampled_from((1, 1, 1, 20, GENERATION - 1, GENERATION)))
    def batch(self, rows: list, gap: int) -> None:
        self.state.batch(rows, gap)

    @rule(rows=ROWS, slice_=st.sampled_from(SLICES))
    def backfill(self, rows: list, slice_: str) -> None:
        self.state.replace(slice_, rows, claims=(f"file:/{slice_}",))

    @rule(open_generations=st.sampled_from((None, 0, 1, 1, 2)), hours=st.sampled_from((168.0, 168.0, 0.0)))
    def compaction(self, open_generations: int | None, hours: float) -> None:
        claims = self.state.table.commits.claims()
        report = compact(None, self.state.lake, FLOW, retention_hours=hours, open_generations=open_generations)
        self.vacuumed |= hours == 0
        assert self.state.table.commits.claims() == claims
        again = compact(None, self.state.lake, FLOW, retention_hours=hours, open_generations=open_generations)
        assert again.tables[0].slices_folded == 0
        assert not again.tables[0].rolled_up
        assert again.total.rows_before == report.total.rows_after

    @precondition(lambda self: self.state.txid > 100 and not self.vacuumed)
    @rule()
    def fresh_start(self) -> None:
        self.state.reset()

    @invariant()
    def reads_equal_the_model(self) -> None:
        assert self.state.scanned() == self.state.expected()
        assert self.state.got() == self.state.expected()

    @invariant()
    def the_past_stays(self) -> None:
        for txid, expected in list(self.state.by_txid.items())[-4:]:
            try:
                assert self.state.scanned(txid=txid) == expected
            except ReadPointError:
                assert self.vacuumed

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


def drawn(examples: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.timeout(300)
class TestInterleavings(Interleavings.TestCase):
    settings = drawn(10)


@EXHAUSTIVE
@pytest.mark.timeout(900)
class TestManyInterleavings(Interleavings.TestCase):
    settings = drawn(60)
