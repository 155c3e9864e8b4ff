"""Map states, rule by rule (Trident rules 6; StateTest 1-3 of rules 10), and that they count exactly once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import BehindStateError, TrideltaError
from pipelines.state.kinds import MAP, NON_TRANSACTIONAL, OPAQUE, TRANSACTIONAL
from pipelines.state.views import MapState
from tests.conformance.map_states import (
    SNAPSHOT_KEY,
    CachedBatchReadsMap,
    CachedMap,
    CommittingMap,
    DictMap,
    JsonOpaqueSerializer,
    JsonSerializer,
    JsonTransactionalSerializer,
    LRUMemoryMapState,
    MemoryMapState,
    MicroBatchMap,
    NonTransactionalMap,
    OpaqueMap,
    OpaqueValue,
    SnapshottableMap,
    TransactionalMap,
    TransactionalValue,
)
from tests.state.small_kinds import APP, SmallTable


def plus(amount: int) -> Callable[[Any], int]:
    return lambda stored: amount if stored is None else stored + amount


class Spied:
    """A backing map that tells what it was asked, and that may fail."""

    def __init__(self, **held: Any) -> None:
        self.map = DictMap()
        self.map.multi_put(list(held), list(held.values()))
        self.gets: list[list[Hashable]] = []
        self.puts: list[list[Hashable]] = []
        self.fails = False

    def multi_get(self, keys: Sequence[Hashable]) -> list[Any]:
        self.gets.append(list(keys))
        return self.map.multi_get(keys)

    def multi_put(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        if self.fails:
            raise OSError("disk")
        self.puts.append(list(keys))
        self.map.multi_put(keys, values)


# --- StateTest ------------------------------------------------------------------------------------------------------


def test_statetest_1_opaque_value() -> None:
    value = OpaqueValue(8, "v1", "v0")
    assert [value.get(txid) for txid in (None, 100, 9, 8)] == ["v1", "v1", "v1", "v0"]
    with pytest.raises(BehindStateError, match=r"^Current batch \(7\) is behind state's batch") as caught:
        value.get(7)
    assert (caught.value.txid, caught.value.state_txid) == (7, 8)
    assert value.update(8, "v2") == OpaqueValue(8, "v2", "v0")
    assert value.update(9, "v2") == OpaqueValue(9, "v2", "v1")
    with pytest.raises(BehindStateError):
        value.update(7, "v2")
    assert value == OpaqueValue(8, "v1", "v0")


def one(state: CommittingMap) -> Any:
    return state.multi_get(["a"])[0]


def add(state: CommittingMap, amount: int) -> Any:
    return state.multi_update(["a"], [plus(amount)])[0]


def test_statetest_2_opaque_map() -> None:
    state = OpaqueMap(DictMap())
    state.begin_commit(1)
    assert one(state) is None
    assert (add(state, 1), one(state), add(state, 2), one(state)) == (1, 1, 3, 3)
    state.commit(1)
    state.begin_commit(1)
    assert one(state) is None
    assert add(state, 2) == 2
    state.commit(1)
    state.begin_commit(2)
    assert (one(state), add(state, 3), add(state, 1)) == (2, 5, 6)
    state.commit(2)


def test_statetest_3_transactional_map() -> None:
    state = TransactionalMap(DictMap())
    state.begin_commit(1)
    assert one(state) is None
    assert (add(state, 1), add(state, 2)) == (1, 3)
    state.commit(1)
    state.begin_commit(1)
    assert (one(state), add(state, 1), add(state, 2)) == (3, 3, 3)
    state.commit(1)
    state.begin_commit(2)
    assert (one(state), add(state, 3), add(state, 1)) == (3, 6, 7)
    state.commit(2)


# --- the worked examples --------------------------------------------------------------------------------------------


def test_example_man_dog_apple() -> None:
    backing = DictMap()
    backing.multi_put(
        ["man", "dog", "apple"], [TransactionalValue(1, 3), TransactionalValue(3, 4), TransactionalValue(2, 10)]
    )
    state = TransactionalMap(backing)
    state.begin_commit(3)
    assert state.multi_update(["man", "dog"], [plus(2), plus(1)]) == [5, 4]
    state.commit(3)
    assert dict(backing.held) == {
        "man": TransactionalValue(3, 5),
        "dog": TransactionalValue(3, 4),
        "apple": TransactionalValue(2, 10),
    }


@pytest.mark.parametrize(("txid", "expected"), [(3, OpaqueValue(3, 6, 4)), (2, OpaqueValue(2, 3, 1))])
def test_example_opaque_partial_2(txid: int, expected: OpaqueValue) -> None:
    backing = DictMap()
    backing.multi_put(["k"], [OpaqueValue(2, 4, 1)])
    state = OpaqueMap(backing)
    state.begin_commit(txid)
    assert state.multi_update(["k"], [plus(2)]) == [expected.curr]
    state.commit(txid)
    assert backing.held["k"] == expected


def test_example_opaque_partial_2_in_a_table(tmp_path: Path) -> None:
    """The same in a Delta table of layout map."""
    for txid, known, expected in ((3, False, ("k", 6)), (2, True, ("k", 3))):
        table = SmallTable(tmp_path / str(txid), MAP, OPAQUE)
        table.commit(1, ("k", 1))
        table.commit(2, ("k", 4))
        state = MapState(table.table.view(before=txid))
        state.multi_update([("k",)], [plus(2)])
        table.commit(txid, *(row[:-1] for row in state.changes()), known=known)
        assert table.held() == [expected]
        assert table.base(txid) == [("k", 4 if txid == 3 else 1)]


KINDS: dict[str, Callable[[Any], CommittingMap]] = {
    NON_TRANSACTIONAL: NonTransactionalMap,
    TRANSACTIONAL: TransactionalMap,
    OPAQUE: OpaqueMap,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_layout_map_holds_what_the_model_holds(tmp_path: Path, kind: str) -> None:
    """Updates, replays with the same and with other amounts, and a null key, in a Delta table and in the model."""
    table, model = SmallTable(tmp_path, MAP, kind), KINDS[kind](DictMap())
    for txid, amounts in (
        (1, {"a": 1, "b": 2}),
        (1, {"a": 1, "b": 2}),
        (2, {"a": 3, None: 4}),
        (2, {"a": 5, None: 6}),
        (3, {"b": 1}),
    ):
        keys, updaters = list(amounts), [plus(amount) for amount in amounts.values()]
        known = table.writer.committed(APP) == txid
        state = MapState(table.table.view(before=txid) if kind == OPAQUE else table.table.view())
        state.multi_update([(key,) for key in keys], updaters)
        table.commit(txid, *(row[:-1] for row in state.changes()), known=known)
        model.begin_commit(txid)
        model.multi_update(keys, updaters)
        model.commit(txid)
        assert dict(table.held()) == {
            key: value
            for key, value in zip(("a", "b", None), model.multi_get(["a", "b", None]), strict=True)
            if value is not None
        }


# --- NonTransactionalMap, TransactionalMap, OpaqueMap ---------------------------------------------------------------


def test_non_transactional_straight_through_and_a_replay_counts_twice() -> None:
    backing = Spied(a=1)
    state = NonTransactionalMap(backing)
    for _ in range(2):
        state.begin_commit(7)
        state.multi_update(["a"], [plus(5)])
        state.commit(7)
    state.multi_put(["b"], [3])
    assert (dict(backing.map.held), state.multi_get(["a", "b", "c"])) == ({"a": 11, "b": 3}, [11, 3, None])


def test_transactional_only_changed_keys_are_put() -> None:
    backing = Spied(old=TransactionalValue(1, 10), done=TransactionalValue(2, 20))
    state = TransactionalMap(backing)
    state.begin_commit(2)
    assert state.multi_update(["old", "done", "new"], [plus(1)] * 3) == [11, 20, 1]
    assert backing.puts == [["old", "new"]]
    assert state.multi_update(["done"], [plus(1)]) == [20]
    assert backing.puts == [["old", "new"]]


def test_transactional_put_always_overwrites_with_the_current_txid() -> None:
    backing = Spied(a=TransactionalValue(2, 20))
    state = TransactionalMap(backing)
    state.begin_commit(2)
    state.multi_put(["a"], [5])
    assert backing.map.held["a"] == TransactionalValue(2, 5)
    # Written in this commit, so the update is not skipped.
    assert state.multi_update(["a"], [plus(1)]) == [6]
    state.commit(2)
    assert state.multi_get(["a", "b"]) == [6, None]


def test_opaque_put_is_an_update_with_a_constant() -> None:
    backing = Spied(a=OpaqueValue(1, 10, 5))
    state = OpaqueMap(backing)
    state.begin_commit(2)
    state.multi_put(["a", "b"], [7, 8])
    assert dict(backing.map.held) == {"a": OpaqueValue(2, 7, 10), "b": OpaqueValue(2, 8, None)}
    state.begin_commit(2)
    state.multi_put(["a"], [9])
    assert backing.map.held["a"] == OpaqueValue(2, 9, 10)


def test_opaque_get_in_a_replay_sees_prev_until_the_key_is_rewritten() -> None:
    state = OpaqueMap(Spied(a=OpaqueValue(2, 10, 5), b=OpaqueValue(2, 20, 15)))
    state.begin_commit(2)
    assert state.multi_get(["a", "b"]) == [5, 15]
    state.multi_update(["a"], [plus(1)])
    assert state.multi_get(["a", "b"]) == [6, 15]
    state.commit(2)
    assert state.multi_get(["a", "b"]) == [6, 20]


def test_opaque_behind_raises_on_read_update_and_put() -> None:
    state = OpaqueMap(Spied(a=OpaqueValue(5, 1, 0)))
    state.begin_commit(4)
    for act in (one, lambda state: add(state, 1), lambda state: state.multi_put(["a"], [1])):
        with pytest.raises(BehindStateError):
            act(state)


def test_latent_opaque_survives_an_update_with_a_null_txid() -> None:
    backing = Spied(a=OpaqueValue(3, 10, 5))
    state = OpaqueMap(backing)
    state.begin_commit(None)
    assert (add(state, 1), one(state)) == (11, 11)
    state.commit(None)
    assert backing.map.held["a"] == OpaqueValue(None, 11, 10)
    state.begin_commit(4)
    assert (one(state), add(state, 1)) == (11, 12)
    state.commit(4)
    assert backing.map.held["a"] == OpaqueValue(4, 12, 11)


def test_transactional_with_a_null_txid_is_never_skipped() -> None:
    state = TransactionalMap(Spied(a=TransactionalValue(None, 1)))
    state.begin_commit(None)
    assert (add(state, 1), one(state)) == (2, 2)


@pytest.mark.parametrize("kind", [TransactionalMap, OpaqueMap])
def test_the_read_cache_is_reset_at_begin_and_at_commit(kind: Callable[[Any], CommittingMap]) -> None:
    backing = Spied()
    state = kind(backing)
    state.begin_commit(1)
    add(state, 1)
    state.begin_commit(1)
    assert add(state, 5) == (1 if kind is TransactionalMap else 5)
    add(state, 1)
    state.commit(1)
    stored = backing.map.held["a"]
    assert (stored.txid if kind is TransactionalMap else stored.curr_txid) == 1
    add(state, 1)
    stored = backing.map.held["a"]
    assert (stored.txid if kind is TransactionalMap else stored.curr_txid) is None


# --- backing maps ---------------------------------------------------------------------------------------------------


def test_cached_map_is_an_lru_by_access() -> None:
    backing = Spied(a=1, b=2, c=3)
    cached = CachedMap(backing, 2)
    assert cached.multi_get(["a", "b"]) == [1, 2]
    cached.multi_get(["a"])
    cached.multi_get(["c"])
    assert cached.multi_get(["a", "b"]) == [1, 2]
    # An empty miss list is asked for as well; b went for c, being the one not used for longest.
    assert backing.gets == [["a", "b"], [], ["c"], ["b"]]


def test_cached_map_survives_commits_and_serves_puts() -> None:
    backing = Spied()
    state = TransactionalMap(CachedMap(backing, 10))
    for txid in (1, 2):
        state.begin_commit(txid)
        add(state, 1)
        state.commit(txid)
    assert (one(state), [keys for keys in backing.gets if keys]) == (2, [["a"]])


def test_fixed_a_failing_delegate_leaves_no_dirty_entry() -> None:
    backing = Spied(a=1)
    cached = CachedMap(backing, 10)
    assert cached.multi_get(["a"]) == [1]
    backing.fails = True
    with pytest.raises(OSError, match="disk"):
        cached.multi_put(["a", "b"], [100, 200])
    assert cached.multi_get(["a", "b"]) == [1, None]


def test_cached_batch_reads_map_caches_only_what_this_commit_put() -> None:
    backing = Spied(a=1, b=2)
    reads = CachedBatchReadsMap(backing)
    assert [tuple(read) for read in reads.multi_get(["a", "b"])] == [(1, False), (2, False)]
    reads.multi_put(["a"], [9])
    assert [tuple(read) for read in reads.multi_get(["a", "b"])] == [(9, True), (2, False)]
    assert backing.gets == [["a", "b"]] * 2
    reads.reset()
    assert tuple(reads.multi_get(["a"])[0]) == (9, False)


def test_snapshottable_map_is_one_fixed_key() -> None:
    backing = DictMap()
    state = SnapshottableMap(OpaqueMap(backing), "total")
    state.begin_commit(1)
    assert state.get() is None
    assert (state.update(plus(4)), state.get()) == (4, 4)
    state.commit(1)
    state.begin_commit(2)
    state.set(10)
    state.commit(2)
    assert (state.get(), dict(backing.held)) == (10, {"total": OpaqueValue(2, 10, 4)})


def test_micro_batch_splits_reads_and_writes() -> None:
    backing = Spied()
    state = MicroBatchMap(backing, max_get=2, max_put=3)
    keys = list("abcdefg")
    state.multi_put(keys, list(range(7)))
    assert state.multi_get([*keys, "z"]) == [*range(7), None]
    assert [len(part) for part in backing.puts] == [3, 3, 1]
    assert [len(part) for part in backing.gets] == [2, 2, 2, 2]
    whole = Spied()
    MicroBatchMap(whole).multi_put(keys, list(range(7)))
    MicroBatchMap(whole).multi_get(keys)
    assert (len(whole.puts), len(whole.gets)) == (1, 1)


def test_memory_map_state() -> None:
    state = MemoryMapState()
    state.begin_commit(1)
    state.multi_update([("a", 1), ("b", 2)], [plus(1), plus(2)])
    state.set("whole")
    state.commit(1)
    assert SNAPSHOT_KEY == "$MEMORY-MAP-STATE-GLOBAL$"
    assert (state.get(), sorted(state.tuples())) == ("whole", [("a", 1, 1), ("b", 2, 2)])
    assert state.multi_get([SNAPSHOT_KEY]) == ["whole"]


def test_memory_map_state_removes_now_and_drops_the_key_with_the_next_txid() -> None:
    state = MemoryMapState()
    state.begin_commit(1)
    state.multi_put(["a", "b"], [1, 2])
    state.commit(1)
    state.begin_commit(2)
    state.multi_remove(["a", "nobody"])
    assert state.multi_get(["a", "b"]) == [None, 2]
    state.commit(2)
    assert state.tuples() == [("b", 2)]
    # A replay still finds what was there before it, and may decide otherwise.
    state.begin_commit(2)
    assert state.multi_get(["a"]) == [1]
    state.multi_update(["a"], [plus(5)])
    state.commit(2)
    state.begin_commit(3)
    state.multi_remove(["b"])
    state.commit(3)
    state.begin_commit(4)
    assert sorted(state.tuples()) == [("a", 6)]
    assert state._backing.held.keys() == {"a"}


def test_fixed_a_key_that_is_put_again_after_its_removal_stays() -> None:
    state = MemoryMapState()
    state.begin_commit(1)
    state.multi_put(["a"], [1])
    state.multi_remove(["a"])
    state.multi_put(["a"], [2])
    state.commit(1)
    state.begin_commit(2)
    assert state.multi_get(["a"]) == [2]


def test_lru_memory_map_state_keeps_the_last_used() -> None:
    state = LRUMemoryMapState(2)
    state.begin_commit(1)
    state.multi_put(["a", "b"], [1, 2])
    state.multi_get(["a"])
    state.multi_put(["c"], [3])
    state.commit(1)
    assert state.multi_get(["a", "b", "c"]) == [1, None, 3]


def test_serializers() -> None:
    assert JsonSerializer().serialize({"n": 1}) == b'{"n": 1}'
    assert JsonSerializer().deserialize(b"[1, 2]") == [1, 2]
    pair, triple = JsonTransactionalSerializer(), JsonOpaqueSerializer()
    assert pair.serialize(TransactionalValue(3, 5)) == b"[3, 5]"
    assert pair.deserialize(b"[3, 5]") == TransactionalValue(3, 5)
    assert triple.serialize(OpaqueValue(3, "x")) == b'[3, "x", null]'
    assert triple.deserialize(b'[3, "x", null]') == OpaqueValue(3, "x", None)


# --- exactly once ---------------------------------------------------------------------------------------------------

Amounts = dict[str, int]
AMOUNTS = st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), max_size=3)


def run(state: CommittingMap, attempts: list[list[Amounts]], *, cut: int | None = None) -> None:
    """Each batch's attempts one after another, all but the last cut off before they are done with their keys."""
    for txid, tries in enumerate(attempts, 1):
        for number, amounts in enumerate(tries):
            state.begin_commit(txid)
            keys = sorted(amounts)[: None if number == len(tries) - 1 else cut]
            for key in keys:
                state.multi_update([key], [plus(amounts[key])])
            state.commit(txid)


@given(batches=st.lists(st.tuples(AMOUNTS, st.integers(1, 3)), max_size=6), cut=st.integers(0, 3))
def test_exactly_once_transactional(batches: list[tuple[Amounts, int]], cut: int) -> None:
    """A transactional source carries the same tuples at each attempt, however far the earlier ones came."""
    for state in (TransactionalMap(DictMap()), OpaqueMap(DictMap()), MemoryMapState()):
        run(state, [[amounts] * tries for amounts, tries in batches], cut=cut)
        assert_sums(state, [amounts for amounts, _ in batches])


@given(
    batches=st.lists(
        st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), min_size=1, max_size=3), min_size=1, max_size=6
    )
)
def test_exactly_once_opaque(batches: list[list[list[int]]]) -> None:
    """An opaque source may carry other tuples at each attempt; here of the same keys, which is what OpaqueMap is exact for."""
    attempts = [[dict(zip("abc", amounts, strict=True)) for amounts in tries] for tries in batches]
    state = OpaqueMap(DictMap())
    run(state, attempts)
    assert_sums(state, [tries[-1] for tries in attempts])


def assert_sums(state: CommittingMap, counted: list[Amounts]) -> None:
    sums = {key: sum(amounts.get(key, 0) for amounts in counted) or None for key in "abc"}
    assert dict(zip("abc", state.multi_get(list("abc")), strict=True)) == sums


def test_errors_are_the_engines_own() -> None:
    assert issubclass(BehindStateError, TrideltaError)
