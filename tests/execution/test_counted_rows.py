"""Whether a state counts a row that was refused is told by the commits, whatever their clocks said. No Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pipelines.execution.replays.counted import HALF_MADE, Counted, Row
from pipelines.state.kinds import LOG, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.record import BATCH, SLICE, BatchRecord
from pipelines.state.schema import SLICE_COLUMN
from tests.execution.test_quarantine_of_groups import Quarantine
from tests.state.small_kinds import APP, ARROW, FLOW, SmallTable

HOUR = 3_600_000


def step(table: Path, by: int) -> None:
    """Have the last commit of a table say another time."""
    log = max((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] += by
    log.write_text("\n".join(json.dumps(action, separators=(",", ":")) for action in actions))


class Tables:
    """A state and the quarantine of its flow, with what backfills of day d5 commit there."""

    def __init__(self, root: Path) -> None:
        self.root, self.quarantine = root, Quarantine(root)
        self.state = SmallTable(root, LOG, TRANSACTIONAL, sliced=True)

    def record(self, backfill: str | None, group: str | None = None, txid: int = -1) -> BatchRecord:
        return BatchRecord(kind=SLICE, flow=FLOW, epoch=1, slice="d5", group=group, backfill=backfill, txid=txid)

    def refuse(self, backfill: str | None, clock: int = 0) -> None:
        rows = self.quarantine.rows("buys", "r", slice_="d5")
        self.quarantine.writer.replace_slice(rows, self.record(backfill, "buys"), among="true")
        step(self.root / "quarantine" / "shop", clock)

    def batch(self, txid: int) -> None:
        rows = pa.Table.from_pylist([{"word": "a", "n": 1}], schema=ARROW)
        batch = BatchRecord(kind=BATCH, flow=FLOW, epoch=1, txid=txid)
        self.state.writer.commit_batch(rows.append_column(SLICE_COLUMN, pa.array(["d5"])), batch, APP, known=False)

    def count(self, backfill: str | None, clock: int = 0, txid: int = -1) -> None:
        rows = pa.Table.from_pylist([{"word": "a", "n": 1}], schema=ARROW)
        rows = rows.append_column(SLICE_COLUMN, pa.array(["d5"]))
        self.state.writer.replace_slice(rows, self.record(backfill, txid=txid))
        step(self.root / "states" / "counts", clock)

    def left(self, txid: int = -1) -> dict[int, str]:
        checkpoint: Any = SimpleNamespace(folder=SimpleNamespace(name="buys"), epoch=None)
        lake = Lake(self.root)
        judge = Counted(lake.quarantine("shop"), {"counts": lake.state("counts")}, checkpoint, drops=True)
        return dict(judge.judge([Row(0, txid, "d5", "d5", "f", False)]).left)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def test_a_state_that_was_replaced_before_by_a_clock_ahead(tables: Tables) -> None:
    tables.refuse("one")
    tables.count("one", clock=HOUR)
    tables.refuse("two")
    assert list(tables.left().values()) == [
        'the backfill that rejected it did not replace slice "d5" of state "counts"'
    ]


def test_a_state_that_an_earlier_release_has_replaced_before_by_a_clock_ahead(tables: Tables) -> None:
    tables.count(None, clock=HOUR)
    tables.refuse("two")
    assert tables.left()


def test_a_state_that_another_process_replaces_while_the_one_that_refuses_stands_still(tables: Tables) -> None:
    """It wakes and commits into quarantine, where the other one had nothing to put; the state refuses it."""
    tables.count("other")
    tables.refuse("late", clock=-HOUR)
    assert tables.left()


def test_a_state_that_was_replaced_behind_quarantine_by_a_clock_that_was_put_back(tables: Tables) -> None:
    tables.refuse("one", clock=HOUR)
    tables.count("one")
    assert tables.left() == {}


@pytest.mark.parametrize(("clock", "known"), [(0, True), (HOUR, False)])
def test_of_an_earlier_release_the_times_are_compared(tables: Tables, clock: int, known: bool) -> None:
    tables.refuse(None, clock)
    tables.count(None)
    assert (tables.left() == {}) is known


def test_what_a_batch_refuses_behind_a_backfill_is_in_none_of_its_slices(tables: Tables) -> None:
    tables.refuse("one")
    tables.batch(0)
    assert tables.left(txid=0) == {}
    tables.count("one", txid=0)
    tables.batch(1)
    assert tables.left(txid=1) == {}
    assert tables.left(txid=0) == {0: HALF_MADE}


def test_a_state_that_was_added_behind_a_batch_and_filled_may_count_what_it_refused(tables: Tables) -> None:
    """A backfill that has filled it and was cut off before quarantine: it knows no batch to compare with."""
    tables.refuse("one")
    assert tables.left(txid=3) == {}
    tables.count("two")
    tables.batch(4)
    assert tables.left(txid=3) == {0: HALF_MADE}
    assert tables.left(txid=4) == {}
