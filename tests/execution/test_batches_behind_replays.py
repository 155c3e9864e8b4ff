"""A batch that comes again behind a replay of quarantine, for Spark's mark of it is lost. No Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pipelines.execution.batch.former_life import FormerLife
from pipelines.execution.checkpoint.engine_files import Epoch
from pipelines.execution.checkpoint.replay_records import app_id
from pipelines.state.kinds import LOG, MAP, NON_TRANSACTIONAL, OPAQUE, ROWS, TRANSACTIONAL
from pipelines.state.record import REPLAY, BatchRecord
from tests.state.small_kinds import APP, ARROW, FLOW, SmallTable, record


def again(state: SmallTable, txid: int, *rows: tuple[str, int]) -> bool:
    """Let a batch come again; whether the state takes it."""
    sink: Any = SimpleNamespace(name="counts", writer=state.writer, table=state.table)
    group: Any = SimpleNamespace(sinks=[sink])
    former = FormerLife(group, Epoch(1, 0))
    seen, last = state.writer.standing(APP)
    known = former.knows(sink, last, txid)
    if former.skipping({"counts": known}, txid):
        return False
    given = pa.Table.from_pylist([{"word": word, "n": n} for word, n in rows], schema=ARROW)
    state.writer.commit_batch(given, record(txid), APP, known=known, seen=seen)
    return True


def replay(state: SmallTable, number: int, *rows: tuple[str, int]) -> None:
    given = pa.Table.from_pylist([{"word": word, "n": n} for word, n in rows], schema=ARROW)
    said = BatchRecord(kind=REPLAY, flow=FLOW, epoch=1, txid=state.table.last_txid() or 0, replay=number)
    write = state.writer.merge_arrow if state.writer.declared.layout == MAP else state.writer.append_replay
    write(given, said, app_id(FLOW, "counts"), seen=state.table.version())


@pytest.mark.parametrize("layout", [LOG, MAP, ROWS])
@pytest.mark.parametrize("kind", [TRANSACTIONAL, OPAQUE])
def test_what_a_replay_has_put_in_stays(tmp_path: Path, layout: str, kind: str) -> None:
    state = SmallTable(tmp_path, layout, kind)
    state.commit(0, ("a", 1))
    state.commit(2, ("b", 5))
    assert again(state, 2, ("b", 5)) == (kind == OPAQUE)
    # Of a batch 1 that was skipped; a map gets what the key's value is by now.
    replay(state, 1, ("a", 11 if layout == MAP else 10), ("c", 3))
    held = state.held()
    assert not again(SmallTable(tmp_path, layout, kind), 2, ("b", 5))
    assert state.held() == held
    # The next one goes on, and again until a replay has come behind it.
    state = SmallTable(tmp_path, layout, kind)
    for _ in range(2):
        assert again(state, 3, ("d", 7)) or kind == TRANSACTIONAL
    assert state.held() == sorted([*held, ("d", 7)])


def test_a_state_that_counts_again_does_so(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, LOG, NON_TRANSACTIONAL)
    state.commit(2, ("b", 5))
    replay(state, 1, ("c", 3))
    assert again(state, 2, ("b", 5))
    assert state.held() == [("b", 10), ("c", 3)]
