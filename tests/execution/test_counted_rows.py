"""Whether a state counts a row that a backfill has refused is told by the two commits, whatever their clocks said. No Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pipelines.execution.replays.counted import Counted, Row
from pipelines.state.kinds import LOG, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.record import SLICE, BatchRecord
from pipelines.state.schema import SLICE_COLUMN
from tests.execution.test_quarantine_of_groups import Quarantine
from tests.state.small_kinds import ARROW, FLOW, SmallTable

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

    def record(self, backfill: str | None, group: str | None = None) -> BatchRecord:
        return BatchRecord(kind=SLICE, flow=FLOW, epoch=1, slice="d5", group=group, backfill=backfill)

    def refuse(self, backfill: str | None, clock: int = 0) -> None:
        rows = self.quarantine.rows("buys", "r", slice_="d5")
        self.quarantine.writer.replace_slice(rows, self.record(backfill, "buys"), among="true")
        step(self.root / "quarantine" / "shop", clock)

    def count(self, backfill: str | None, clock: int = 0) -> None:
        rows = pa.Table.from_pylist([{"word": "a", "n": 1}], schema=ARROW)
        rows = rows.append_column(SLICE_COLUMN, pa.array(["d5"]))
        self.state.writer.replace_slice(rows, self.record(backfill))
        step(self.root / "states" / "counts", clock)

    def left(self) -> dict[int, str]:
        checkpoint: Any = SimpleNamespace(folder=SimpleNamespace(name="buys"), epoch=None)
        lake = Lake(self.root)
        judge = Counted(lake.quarantine("shop"), {"counts": lake.state("counts")}, checkpoint, drops=True)
        return dict(judge.judge([Row(0, -1, "d5", "d5", "f", False)]).left)


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
