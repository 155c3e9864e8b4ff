"""A compaction that is killed at a random moment leaves a table that reads as before, and the next one ends the work."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.maintenance import compact
from pipelines.state.lake import Lake
from tests.maintenance.small_state import FLOW, Row, SmallState

SLICES = ("2024-01-01", "2024-01-02", "it's")
_CHILD = """
import sys
from pipelines.maintenance import compact
from pipelines.state.lake import Lake
print("ready", flush=True)
compact(None, Lake(sys.argv[1]), sys.argv[2], retention_hours=0)
print("done", flush=True)
"""


def _rows(chance: random.Random) -> list[Row]:
    keys = ("a", "b", None)
    return [(chance.choice(SLICES), chance.choice(keys), 0, chance.randrange(9)) for _ in range(9)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (2, 3))])
def test_killed_at_random(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    state = SmallState(tmp_path)
    for _ in range(70):
        state.batch(_rows(chance))
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", _CHILD, str(tmp_path), FLOW], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        with child.stdout:
            assert child.stdout.readline() == "ready\n"
            # A whole compaction of this table takes some tenths of a second: most kills fall inside, at any of its steps.
            time.sleep(chance.uniform(0, 0.5))
            child.kill()
            child.wait()
        assert state.scanned() == state.expected()
        fresh = Lake(tmp_path).state("sales")
        assert fresh.get([{"key": "a", "part": 0}]) == [row for row in state.expected() if row["key"] == "a"]
        state.batch(_rows(chance))
        state.replace(SLICES[0], _rows(chance))
        assert state.scanned() == state.expected()
    report = compact(None, state.lake, FLOW)
    assert state.scanned() == state.expected()
    assert report.tables[0].after.files == len(SLICES) + 1
