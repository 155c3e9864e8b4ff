"""What a replayed txid does, by kind and layout (docs/architecture.md#state-tables; Trident rules 6). No Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipelines.errors import BehindStateError, DuplicateKeyError
from pipelines.state.kinds import LOG, MAP, NON_TRANSACTIONAL, OPAQUE, ROWS, TRANSACTIONAL
from pipelines.state.record import SLICE, BatchRecord
from pipelines.state.schema import StateSchema
from tests.state.small_kinds import APP, FLOW, SmallTable, record

LAYOUTS = (LOG, MAP, ROWS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_transactional_a_known_txid_is_skipped(tmp_path: Path, layout: str) -> None:
    state = SmallTable(tmp_path, layout, TRANSACTIONAL)
    version = state.commit(0, ("a", 1), ("b", 2))
    assert state.writer.skips(True)
    assert not state.writer.skips(False)
    assert state.commit(0, ("a", 100), known=True) == version
    assert state.held() == [("a", 1), ("b", 2)]
    assert state.base(0) == state.held()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opaque_a_known_txid_is_replaced_in_one_commit(tmp_path: Path, layout: str) -> None:
    state = SmallTable(tmp_path, layout, OPAQUE)
    state.commit(0, ("a", 1), ("b", 2))
    before = state.held()
    first = state.commit(1, ("b", 3), ("c", 4))
    assert state.writer.committed(APP) == 1
    assert state.base(1) == before
    again = state.commit(1, ("d", 9), ("b", 7), known=True)
    assert again == first + 1
    expected = {
        LOG: [("a", 1), ("b", 9), ("d", 9)],
        MAP: [("a", 1), ("b", 7), ("d", 9)],
        ROWS: [("a", 1), ("b", 2), ("b", 7), ("d", 9)],
    }
    assert state.held() == expected[layout]
    assert state.base(1) == before
    assert state.held(txid=1) == state.held()
    assert state.held(version=first) != state.held()
    state.commit(1, known=True)
    assert state.held() == before
    assert state.writer.committed(APP) == 1
    state.commit(2, ("a", 5))
    assert (state.base(2), state.table.last_txid()) == (before, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_engines_columns_are_never_those_of_the_rows(tmp_path: Path, layout: str) -> None:
    state = SmallTable(tmp_path, layout, TRANSACTIONAL)
    state.commit(0, ("a", 1))
    rows = pa.table({"word": ["b"], "n": [2], "_txid": [77], "_gen": [99]})
    if layout == MAP:
        rows = rows.append_column("_removed", pa.array([False]))
    state.writer.commit_batch(rows, record(1), APP, known=False)
    stored = state.table.stored("word = 'b'").to_pylist()[0]
    assert (stored["_txid"], stored.get("_gen", 0)) == (1, 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_non_transactional_is_applied_again(tmp_path: Path, layout: str) -> None:
    state = SmallTable(tmp_path, layout, NON_TRANSACTIONAL)
    state.commit(0, ("a", 1))
    assert state.writer.committed(APP) == 0
    state.commit(0, ("a", 2), known=True)
    expected = {LOG: [("a", 3)], MAP: [("a", 2)], ROWS: [("a", 1), ("a", 2)]}
    assert state.held() == expected[layout]
    assert [commit.txid for commit in state.table.commits.batches()] == [0, 0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_opaque_state_refuses_a_batch_behind_its_own(tmp_path: Path, layout: str) -> None:
    state = SmallTable(tmp_path, layout, OPAQUE)
    state.commit(7, ("a", 1))
    with pytest.raises(BehindStateError, match=r"Current batch \(6\) is behind state's batch \(7\)") as caught:
        state.commit(6, ("a", 2), known=True)
    assert (caught.value.txid, caught.value.state_txid, caught.value.state) == (6, 7, "counts")


@pytest.mark.parametrize("layout", [LOG, ROWS])
def test_a_replay_leaves_backfilled_rows_of_the_same_generation(tmp_path: Path, layout: str) -> None:
    state = SmallTable(tmp_path, layout, OPAQUE, sliced=True)
    state.commit(3, ("a", 1))
    rows = pa.table({"word": ["z"], "n": [50]})
    one = BatchRecord(kind=SLICE, flow=FLOW, epoch=1, txid=3, slice="d1")
    state.writer.replace_slice(rows.append_column("_slice", pa.array(["d1"])), one)
    state.commit(3, ("a", 2), known=True)
    assert state.held() == [("a", 2), ("z", 50)]


def test_a_replay_leaves_a_map_that_was_replaced_whole(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, MAP, OPAQUE)
    state.commit(3, ("a", 1), ("b", 2))
    rows = pa.table({"word": ["a", "z", "y"], "n": [10, 50, 0], "_removed": [False, False, True]})
    state.writer.replace_map(rows, BatchRecord(kind=SLICE, flow=FLOW, epoch=1, txid=3, slice="all"))
    assert state.held() == state.base(3) == [("a", 10), ("z", 50)]
    state.commit(3, ("a", 11), known=True)
    assert state.held() == [("a", 11), ("z", 50)]
    assert state.base(3) == [("a", 10), ("z", 50)]


# --- map states -----------------------------------------------------------------------------------------------------


def test_map_rows_are_put_updated_and_removed(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, MAP, TRANSACTIONAL)
    state.commit(0, ("a", 1), ("b", 2), (None, 3), ("it's", 4))
    version = state.commit(1, (None, 30), ("b", None), ("it's", 40), ("nobody", None), ("new", 5))
    assert state.held() == [("a", 1), ("it's", 40), ("new", 5), (None, 30)]
    assert state.held(txid=0) == [("a", 1), ("b", 2), ("it's", 4), (None, 3)]
    asked = [{"word": word} for word in ("new", "b", None)]
    assert state.table.get(asked) == [{"word": "new", "n": 5}, {"word": None, "n": 30}]
    assert state.table.get([{"word": "b"}], txid=0) == [{"word": "b", "n": 2}]
    assert (state.table.version(), state.table.count(), state.table.last_txid()) == (version, 4, 1)
    last = state.table.history()[-1]
    assert (last.kind, last.txid, last.rows, last.written) == ("batch", 1, 5, 5)
    assert DeltaTable(state.table.path).metadata().partition_columns == []


@pytest.mark.parametrize("kind", [TRANSACTIONAL, OPAQUE])
def test_a_batch_that_changes_no_row_is_known_all_the_same(tmp_path: Path, kind: str) -> None:
    state = SmallTable(tmp_path, MAP, kind)
    state.commit(0, ("nobody", None))
    state.commit(1)
    assert (state.writer.committed(APP), state.table.last_txid(), state.held(txid=0)) == (1, 1, [])
    assert [(c.rows, c.written) for c in state.table.commits.batches()] == [(1, None), (0, None)]


def test_map_state_without_keys(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, MAP, OPAQUE, keys=())
    assert state.table.get() == []
    state.commit(0, ("x", 1))
    state.commit(1, ("y", 2))
    assert state.table.get() == [{"word": "y", "n": 2}]
    assert (state.table.view().get(), state.table.view(before=1).get()) == (("y", 2), ("x", 1))
    with pytest.raises(DuplicateKeyError):
        state.commit(2, ("y", 2), ("z", 3))


def test_map_opaque_removals_are_undone_too(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, MAP, OPAQUE)
    state.commit(0, ("a", 1), ("b", 2), ("c", 3))
    before = state.held()
    state.commit(1, ("a", None), ("c", 30), ("d", 4))
    assert state.held() == [("b", 2), ("c", 30), ("d", 4)]
    assert state.table.get([{"word": "a"}]) == []
    assert state.table.view().multi_get([("a",), ("c",)]) == [None, 30]
    assert state.table.view(before=1).multi_get([("a",), ("c",), ("d",)]) == [1, 3, None]
    state.commit(1, ("b", None), ("d", None), known=True)
    assert state.held() == [("a", 1), ("c", 3)]
    assert state.base(1) == before
    state.commit(2, ("b", 5))
    assert state.base(2) == [("a", 1), ("c", 3)]
    assert state.held() == [("a", 1), ("b", 5), ("c", 3)]
    state.commit(2, known=True)
    assert state.held() == [("a", 1), ("c", 3)]


def test_one_key_set_twice_in_a_batch_is_refused(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, MAP, TRANSACTIONAL)
    with pytest.raises(DuplicateKeyError, match="partition_by") as caught:
        state.commit(0, ("a", 1), (None, 2), (None, 3))
    assert caught.value.key == (None,)
    assert state.table.last_txid() is None


def test_tables_from_before_kinds_are_transactional() -> None:
    text = '{"layout": "rows", "flow": "shop", "columns": [["word", "string"]]}'
    assert StateSchema.model_validate_json(text).kind == TRANSACTIONAL
