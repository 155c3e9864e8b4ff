"""States as maps for functions: views of tables and of rows, and a map that a function changes. No Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipelines.errors import StateAccessError, TrideltaError
from pipelines.state.literals import KeyValueError
from pipelines.state.table import StateTable
from pipelines.state.views import MapState, StateView, TableView
from tests.maintenance.small_state import SmallState


@pytest.fixture
def sales(tmp_path: Path) -> SmallState:
    state = SmallState(tmp_path)
    state.batch([("d1", "a", 1, 5), ("d1", "a", 1, 7), ("d1", None, 1, 1)])
    state.batch([("d2", "a", 1, 3)])
    return state


def test_a_view_of_a_log_state_folds(sales: SmallState) -> None:
    view = sales.table.view()
    assert (view.keys, view.values) == (("key", "part"), ("count", "sum", "min", "max", "average"))
    assert view.multi_get([("a", 1), ("b", 1), (None, 1), ("a", 1)]) == [
        (3, 15, 3, 7, 5.0),
        None,
        (1, 1, 1, 1, 1.0),
        (3, 15, 3, 7, 5.0),
    ]
    assert sorted(map(repr, view.tuples())) == sorted(
        map(repr, [("a", 1, 3, 15, 3, 7, 5.0), (None, 1, 1, 1, 1, 1, 1.0)])
    )


def test_a_view_stays_at_its_version_and_travels(sales: SmallState) -> None:
    now, first = sales.table.view(), sales.table.view(1)
    sales.batch([("d1", "a", 1, 100)])
    copy = pickle.loads(pickle.dumps(now))
    assert isinstance(copy, TableView)
    assert len(pickle.dumps(now)) < 500
    for view in (now, copy):
        assert view.multi_get([("a", 1)])[0][1] == 15
    assert first.multi_get([("a", 1)])[0][1] == 12
    assert sales.table.view().multi_get([("a", 1)])[0][1] == 115


def test_many_keys_of_several_columns_in_one_read(sales: SmallState) -> None:
    sales.batch([("d1", str(n), n, n) for n in range(200)])
    asked = [(str(n), n) for n in range(300)] + [("0", 1)]
    found = sales.table.view().multi_get(asked)
    assert [value and value[1] for value in found] == [*range(200), *[None] * 101]


def test_more_keys_than_a_query_names(sales: SmallState) -> None:
    sales.batch([("d1", f"k{n}", n % 7, n) for n in range(600)] + [("d1", f"n{n}", None, n) for n in range(600)])
    asked = [(f"k{n}", n % 7) for n in range(0, 900, 3)] + [(f"n{n}", None) for n in range(500, 700)] + [("k1", 2)]
    found = sales.table.view().multi_get(asked)
    assert [value and value[1] for value in found] == [
        *range(0, 600, 3),
        *[None] * 100,
        *range(500, 600),
        *[None] * 101,
    ]
    with pytest.raises(KeyValueError):
        sales.table.view().multi_get([*asked, ("a", "x")])


def test_keys_that_do_not_fit(sales: SmallState) -> None:
    view = sales.table.view()
    for wrong in ("a", ("a",), ("a", 1, 2), 5):
        with pytest.raises(StateAccessError, match=r"tuple of its key columns \(key, part\)"):
            view.multi_get([wrong])
    with pytest.raises(KeyValueError):
        view.multi_get([("a", "x")])
    with pytest.raises(TrideltaError):
        view.get()


def test_the_value_of_a_table_of_someone_else_is_its_one_row(tmp_path: Path) -> None:
    for name, rates in (("none", []), ("one", [1.5]), ("two", [1.5, 2.5])):
        write_deltalake(tmp_path / name, pa.table({"rate": pa.array(rates, pa.float64())}))
    assert StateTable("none", tmp_path / "none").view().get() is None
    assert StateTable("one", tmp_path / "one").view().get() == 1.5
    with pytest.raises(StateAccessError, match="keeps rows"):
        StateTable("two", tmp_path / "two").view().get()


def test_rows_in_memory() -> None:
    view = StateView.of_rows(["url"], ["tweeters"], [("a", ["x", "y"]), {"url": "b", "tweeters": []}, ("a", ["z"])])
    assert view.multi_get([("a",), ("b",), ("c",)]) == [["z"], [], None]
    assert view.tuples() == [("a", ["z"]), ("b", [])]
    total = StateView.of_rows([], ["n"], [(7,)])
    assert (total.get(), StateView.of_rows([], ["n"], []).get()) == (7, None)
    assert pickle.loads(pickle.dumps(view)).tuples() == view.tuples()
    keyed = StateView.of_rows(["x", "y"], ["n"], [(float("nan"), [float("nan")], 1), (2.0, [], 2)])
    for same in (
        keyed,
        pickle.loads(pickle.dumps(keyed)),
        pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(keyed)))),
    ):
        assert same.multi_get([(float("nan"), [float("nan")]), (2, [])]) == [1, 2]


# --- a map that a function changes ----------------------------------------------------------------------------------


@pytest.fixture
def counts() -> MapState:
    return MapState(StateView.of_rows(["k"], ["n"], [("a", 1), ("b", 2), ("c", 3)]))


def test_reads_see_own_changes(counts: MapState) -> None:
    counts.multi_put([("a",), ("d",)], [10, 40])
    counts.multi_remove([("b",), ("nobody",)])
    assert counts.multi_get([("a",), ("b",), ("c",), ("d",)]) == [10, None, 3, 40]
    assert sorted(counts.tuples()) == [("a", 10), ("c", 3), ("d", 40)]
    counts.multi_put([("b",)], [5])
    counts.multi_remove([("d",)])
    assert sorted(counts.tuples()) == [("a", 10), ("b", 5), ("c", 3)]
    assert counts.changes() == [("a", 10, False), ("b", 5, False), ("nobody", None, True), ("d", None, True)]


def test_updates_start_from_what_is_stored(counts: MapState) -> None:
    def plus(amount: int) -> Any:
        return lambda stored: (stored or 0) + amount

    assert counts.multi_update([("a",), ("z",), ("a",)], [plus(1), plus(5), plus(2)]) == [2, 5, 4]
    assert counts.puts == {("a",): (4,), ("z",): (5,)}
    counts.multi_remove([("a",)])
    assert counts.multi_update([("a",)], [plus(1)]) == [1]


def test_a_state_without_keys() -> None:
    state = MapState(StateView.of_rows([], ["n", "m"], []))
    assert state.get() is None
    state.set((1, 2))
    assert state.update(lambda stored: (stored[0] + 1, stored[1])) == (2, 2)
    assert (state.get(), state.changes()) == ((2, 2), [(2, 2, False)])


def _wrong_changes() -> Iterator[Any]:
    yield lambda state: state.multi_put([("a", 1)], [(1, 2)])
    yield lambda state: state.multi_put([("a",)], [1, 2])
    yield lambda state: state.multi_put([("a",)], [7])
    yield lambda state: state.multi_put([("a",)], [(1, 2, 3)])
    yield lambda state: state.multi_update([("a",)], [])
    yield lambda state: state.set((1, 2))


@pytest.mark.parametrize("change", list(_wrong_changes()))
def test_changes_that_do_not_fit(change: Any) -> None:
    with pytest.raises(StateAccessError):
        change(MapState(StateView.of_rows(["k"], ["n", "m"], [])))
