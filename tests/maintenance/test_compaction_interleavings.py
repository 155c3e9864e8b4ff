"""Batches, replaced slices, compactions and RESTOREs in any order: reads, and what a new process knows, equal a plain model."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipelines.errors import ReadPointError
from pipelines.maintenance import compact, retention
from pipelines.maintenance.clustering import recluster
from pipelines.maintenance.plan import parts_of
from pipelines.state import writer
from pipelines.state.lake import Lake
from pipelines.state.record import GENERATION
from pipelines.state.schema import ROLL_UP
from pipelines.state.table import StateTable
from tests.maintenance.small_state import FLOW, STATE, Moment, Row, SmallState
from tests.tiers import EXHAUSTIVE, tier

pytestmark = pytest.mark.slow

SLICES = ("2024-01-01", "it's", "50% off/x", "a=b?", "a b", "2024-01-02", "2024-01-03", "2024-01-04")
KEYS = ("a", 'say "hi"', "it's", "", "*", None)
PARTS = (0, 1, None)
ROWS = st.lists(
    st.tuples(st.sampled_from(SLICES), st.sampled_from(KEYS), st.sampled_from(PARTS), st.integers(-100, 100)),
    max_size=6,
)
# Those of several generations, so that compactions which leave one or two of them open find different ones closed.
GAPS = (1, 1, 20, GENERATION - 1, GENERATION, 2 * GENERATION, 3 * GENERATION)
OPEN = (None, 0, 0, 1, 1, 2, 3)
HOURS = (168.0, 0.0)
ORDERS: tuple[tuple[str, ...], ...] = ((), ("part",))
PICKS = st.integers(0, 99)


class Interleavings(RuleBasedStateMachine):
    """One table; every rule is a commit that a deployment makes."""

    @initialize(rows=ROWS)
    def start(self, rows: list) -> None:
        self.folder = tempfile.TemporaryDirectory()
        with mock.patch.dict(writer._CONFIGURATION, {"delta.checkpointInterval": "3"}):
            self.state = SmallState(Path(self.folder.name))
        self.vacuumed = False
        self.moments: dict[int, Moment] = {}
        # Several slices: with one there is no roll-up.
        self.state.batch([*rows, *((slice_, key, 0, 1) for slice_ in SLICES[:5] for key in ("a", "b", "c"))])

    @rule(rows=ROWS, gap=st.sampled_from(GAPS))
    def batch(self, rows: list, gap: int) -> None:
        self.state.batch(rows, gap)

    @rule(rows=ROWS, slice_=st.sampled_from(SLICES), file=st.sampled_from("ABC"))
    def backfill(self, rows: list, slice_: str, file: str) -> None:
        self.state.replace(slice_, rows, claims=(f"file:/{slice_}/{file}",))

    @rule(open_generations=st.sampled_from(OPEN), hours=st.sampled_from(HOURS))
    def compaction(self, open_generations: int | None, hours: float) -> None:
        report = compact(None, self.state.lake, FLOW, retention_hours=hours, open_generations=open_generations)
        self._no_longer_kept(self.state.table.version() if hours == 0 else 0)
        again = compact(None, self.state.lake, FLOW, retention_hours=hours, open_generations=open_generations)
        assert again.tables[0].slices_folded == 0
        assert not again.tables[0].rolled_up
        assert again.total.rows_before == report.total.rows_after

    @rule(by=st.sampled_from(ORDERS), open_generations=st.sampled_from(OPEN))
    def another_order(self, by: tuple[str, ...], open_generations: int | None) -> None:
        recluster(None, self.state.lake, STATE, by, open_generations=open_generations)

    @rule(pick=PICKS, gap=st.sampled_from(GAPS))
    def many_files_and_a_batch_without_rows(self, pick: int, gap: int) -> None:
        parts = [part for part in parts_of(DeltaTable(str(self.state.table.path))) if part.rows > 2]
        parts = [part for part in parts if part.slice != ROLL_UP]
        if parts:
            part = parts[pick % len(parts)]
            self.state.in_many_files(str(part.slice), part.gen)
        self.state.batch([], gap)

    @precondition(lambda self: self.moments)
    @rule(pick=PICKS)
    def cleanup(self, pick: int) -> None:
        """What a compaction does to the log when a version has come to be the oldest that is kept."""
        kept = sorted(self.moments)[pick % len(self.moments)]
        retention.clean_log(self._fresh(), retention.Bound(kept, 168))
        self._no_longer_kept(kept)

    @precondition(lambda self: len(self.moments) > 1)
    @rule(pick=PICKS)
    def restore(self, pick: int) -> None:
        version = sorted(self.moments)[pick % (len(self.moments) - 1)]
        self.state.restore(version, self.moments[version])

    @precondition(lambda self: self.state.txid > 100 and not self.vacuumed)
    @rule()
    def fresh_start(self) -> None:
        self.state.reset()

    @invariant()
    def reads_equal_the_model(self) -> None:
        assert self.state.scanned() == self.state.expected()
        assert self.state.got() == self.state.expected()

    @invariant()
    def another_process_knows_what_counts(self) -> None:
        """It has the log alone, as far as that was not cleaned."""
        fresh = self._fresh()
        assert fresh.last_txid() == (None if self.state.txid < 0 else self.state.txid)
        assert fresh.commits.claims() == self.state.claims == self.state.table.commits.claims()
        self.moments[fresh.version()] = self.state.moment()

    @invariant()
    def the_past_stays(self) -> None:
        for txid, expected in list(self.state.by_txid.items())[-4:]:
            try:
                assert self.state.scanned(txid=txid) == expected
            except ReadPointError:
                assert self.vacuumed

    def _fresh(self) -> StateTable:
        return Lake(self.state.lake.root).state(STATE)

    def _no_longer_kept(self, before: int) -> None:
        self.vacuumed |= before > 0
        self.moments = {version: moment for version, moment in self.moments.items() if version >= before}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


class _Drawn:
    """A history of which each step is as likely as any other, whatever came before: Hypothesis repeats itself."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.steps: list[str] = []
        self.of = Interleavings()
        self.of.start(self.rows())

    def rows(self) -> list[Row]:
        """Return rows of one or two slices, so that those of others stay in older generations."""
        draw = self.draw
        slices = draw.sample(SLICES, draw.choice((1, 1, 2)))
        return [
            (draw.choice(slices), draw.choice(KEYS), draw.choice(PARTS), draw.randint(-100, 100))
            for _ in range(draw.choice((0, 1, 2, 6)))
        ]

    def step(self) -> None:
        draw, of = self.draw, self.of
        pick, gap, open_generations = draw.randrange(100), draw.choice(GAPS), draw.choice((*OPEN, 2, 3))
        steps: dict[str, Callable[[], object]] = {
            "batch": lambda: of.batch(self.rows(), gap),
            "backfill": lambda: of.backfill(self.rows(), draw.choice(SLICES), draw.choice("ABC")),
            "compaction": lambda: of.compaction(open_generations, draw.choice(HOURS)),
            "another order": lambda: of.another_order(draw.choice(ORDERS), open_generations),
            "many files": lambda: of.many_files_and_a_batch_without_rows(pick, gap),
            "cleanup": lambda: of.cleanup(pick),
            "restore": lambda: of.restore(pick) if len(of.moments) > 1 else None,
        }
        # A roll-up of all that there is, and what may come to it.
        after = draw.choice(("compaction", "another order", "many files"))
        for name in draw.choice([*([name] for name in steps), ["batch"], ["all", after], ["all", after, "compaction"]]):
            self.steps.append(f"{name} {gap} {open_generations} {pick}")
            of.compaction(0, 168.0) if name == "all" else steps[name]()
            of.another_process_knows_what_counts()
            of.reads_equal_the_model()
        of.the_past_stays()


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=tier(seed < 1)) for seed in range(60)])
def test_a_drawn_history(seed: int) -> None:
    drawn = _Drawn(seed)
    try:
        for _ in range(20):
            drawn.step()
    except Exception:
        print("\n".join(drawn.steps))
        raise
    finally:
        drawn.of.teardown()


def drawn(examples: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.timeout(300)
class TestInterleavings(Interleavings.TestCase):
    settings = drawn(5)


@EXHAUSTIVE
@pytest.mark.timeout(900)
class TestManyInterleavings(Interleavings.TestCase):
    settings = drawn(60)
