"""A fresh checkpoint beside what quarantine has kept of poison batches, and beside what replays have put into states."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import FreshCheckpointError, PoisonBatchError
from pipelines.maintenance import compact
from pipelines.places.location import on_disk
from pipelines.quality import fail
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, Sum, TridentTopology
from tests.execution.test_replay_quarantine import SCHEMA, Shop, failing, refusing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path)


def leave_out(shop: Shop, txid: int) -> None:
    """Skip the batch that the gate refuses, and drain it."""
    with pytest.raises(PoisonBatchError):
        shop.runtime.catch_up(refusing(shop, 3))
    shop.runtime.skip(refusing(shop, 3), txid)
    shop.runtime.catch_up(refusing(shop, 3))


def lose(shop: Shop, part: str = "") -> None:
    """Remove the checkpoint, or a part of it."""
    shutil.rmtree(on_disk(shop.lake.checkpoint_path("shop", "sales")) / part)


@pytest.mark.parametrize("fails", [False, True])
def test_rows_of_a_batch_that_was_left_out_outlive_the_batches_of_the_next_life(shop: Shop, fails: bool) -> None:
    """Their file is gone: quarantine has the only copy."""
    shop.put(("a", 1, "d1"))
    shop.put(("a", 7, "d1"), ("b", 2, "d2"))
    leave_out(shop, 1)
    for file in shop.folder.iterdir():
        file.unlink()
    lose(shop)
    shop.put(("a", 9 if fails else 3, "d1"))
    if fails:
        with pytest.raises(PoisonBatchError) as poison:
            shop.runtime.catch_up(refusing(shop, 3), on_fresh_checkpoint="continue")
        assert poison.value.txid == 2
    else:
        shop.runtime.catch_up(refusing(shop, 3), on_fresh_checkpoint="continue")
    kept = [("batch", "poison", 2), ("batch", "poison", 7)]
    assert shop.refused == kept + [("batch", "poison", 9)] * fails


@pytest.mark.parametrize("part", ["", pytest.param("spark", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("skipped", [False, True])
def test_where_nothing_was_committed_rows_whose_file_is_gone_stay(shop: Shop, part: str, skipped: bool) -> None:
    """The source is read again: those whose file is there leave quarantine."""
    shop.put(("a", 7, "d1"))
    shop.put(("b", 8, "d2"))
    if skipped:
        leave_out_all(shop)
    else:
        with pytest.raises(PoisonBatchError):
            shop.runtime.catch_up(refusing(shop, 3))
    (shop.folder / "0.json").unlink()
    lose(shop, part)
    shop.put(("a", 1, "d1"))
    shop.runtime.catch_up(refusing(shop, 9))
    assert (shop.rows, shop.refused) == (Counter({("a", 1): 1, ("b", 8): 1}), [("batch", "file_gone", 7)])


def leave_out_all(shop: Shop) -> None:
    for txid in range(2):
        with pytest.raises(PoisonBatchError):
            shop.runtime.catch_up(refusing(shop, 3))
        shop.runtime.skip(refusing(shop, 3), txid)
    shop.runtime.catch_up(refusing(shop, 3))


@pytest.mark.parametrize("part", ["", pytest.param("spark", marks=pytest.mark.exhaustive)])
def test_states_that_hold_rows_of_a_replay_alone_are_held(shop: Shop, part: str) -> None:
    """The source still has them: read again without a word, each would count twice."""
    shop.put(("a", 7, "d1"))
    leave_out(shop, 0)
    assert [one.landed for one in shop.replay(refusing(shop, 9))] == [1]
    once = Counter({("a", 7): 1})
    assert (shop.rows, shop.refused) == (once, [])
    for _ in range(3):
        compact(shop.spark, Lake(shop.lake.root), "shop", retention_hours=0)
    shop.lake = Lake(shop.lake.root)
    shop.runtime = Runtime(shop.spark, shop.lake)
    lose(shop, part)
    with pytest.raises(FreshCheckpointError, match="holds rows that a replay of quarantine has put in"):
        shop.runtime.catch_up(refusing(shop, 9))
    assert shop.rows == once
    shop.runtime.catch_up(refusing(shop, 9), on_fresh_checkpoint="reset")
    assert shop.rows == once
    lose(shop, part)
    with pytest.raises(FreshCheckpointError, match="holds batches up to txid 0"):
        shop.runtime.catch_up(refusing(shop, 9))


class _Killed(BaseException):
    """Stands for a process that dies."""


def opaque(shop: Shop, most: int) -> TridentTopology:
    topology = TridentTopology("shop")
    stream = topology.new_stream("sales", JsonFiles(shop.folder, SCHEMA), slice_by="day")
    stream = stream.gate(fail("column_values_to_be_between", column="n", max_value=most), name="high")
    stream.partition_persist(DeltaState("rows", "opaque"), ["k", "n", "at"])
    stream.group_by("k").persistent_aggregate(DeltaState("by_k", "opaque"), [Count("many"), Sum("n", "total")])
    return topology


def test_rows_that_a_replay_has_put_back_outlive_a_batch_that_comes_again(shop: Shop) -> None:
    """They keep the txid of the batch that was left out; no batch of the next life takes it, and their place."""
    shop.put(("a", 7, "d1"), raw=["{"])
    with pytest.raises(PoisonBatchError):
        shop.runtime.catch_up(opaque(shop, 3))
    shop.runtime.skip(opaque(shop, 3), 0)
    assert [one.landed for one in shop.replay(opaque(shop, 9))] == [1]
    for file in shop.folder.iterdir():
        file.unlink()
    lose(shop)
    shop.put(("b", 2, "d2"), raw=["["])

    def die(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", "quarantine"):
            raise _Killed

    with pytest.raises(_Killed):
        Runtime(shop.spark, shop.lake, listeners=[die]).catch_up(opaque(shop, 9), on_fresh_checkpoint="continue")
    txids = [one.txid for one in shop.runtime.catch_up(opaque(shop, 9)).batches]
    assert shop.refused == [("source", "malformed", "["), ("source", "malformed", "{")]
    assert (shop.rows, txids) == (Counter({("a", 7): 1, ("b", 2): 1}), [1])


@pytest.mark.parametrize("then", ["continue", "reset"])
def test_a_quarantine_that_holds_what_replays_have_put_back_is_held(shop: Shop, then: str) -> None:
    """Read again without a word, these rows would be there twice."""
    shop.put(("a", 1, "d1"), raw=["{"])
    with pytest.raises(PoisonBatchError):
        shop.runtime.catch_up(failing(shop, 9, fails=3))
    shop.runtime.skip(failing(shop, 9, fails=3), 0)
    shop.runtime.catch_up(failing(shop, 9, fails=3))
    assert [one.landed for one in shop.replay(failing(shop, 0, fails=0))] == [0]
    put_back = [("high", "most", 1), ("source", "malformed", "{")]
    assert shop.refused == put_back
    lose(shop)
    with pytest.raises(FreshCheckpointError, match="holds rows that a replay of quarantine has put in"):
        shop.runtime.catch_up(failing(shop, 0, fails=0))
    assert shop.refused == put_back
    shop.runtime.catch_up(failing(shop, 0, fails=0), on_fresh_checkpoint=then)
    assert shop.refused == sorted(put_back * (2 if then == "continue" else 1))
