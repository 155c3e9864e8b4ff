"""A batch whose plan is gone comes again, with whatever rows: a skip, and what quarantine has of it, go with the plan."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import DefinitionError, PoisonBatchError
from pipelines.execution.checkpoint.belonging import CheckpointBehindError, adopt
from pipelines.execution.checkpoint.damage import DamagedCheckpointError
from pipelines.execution.replays.runner import PUT_BACK
from pipelines.execution.runners.claims import SameSources
from pipelines.execution.runners.stream import StreamRunner
from pipelines.execution.verify import damages
from pipelines.maintenance import compact
from pipelines.places.location import on_disk
from pipelines.quality import fail
from pipelines.sources import JsonFiles
from pipelines.state.record import POISON
from pipelines.trident import Count, DeltaState, Sum, TridentTopology
from tests.execution.test_replay_quarantine import SCHEMA, Shop, cut_off, refusing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ALL = Counter({("a", 1): 1, ("a", 7): 1, ("b", 2): 1})


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    """Batch 1 is poison, for its gate refuses a 7."""
    shop = Shop(spark, tmp_path)
    shop.put(("a", 1, "d1"))
    shop.put(("a", 7, "d1"), ("b", 2, "d2"))
    with pytest.raises(PoisonBatchError):
        shop.runtime.catch_up(refusing(shop, 3))
    return shop


def lose(shop: Shop, *, torn: bool = False) -> None:
    """Take Spark's part of the checkpoint back to where batch 1 was not planned: with the power (torn), or by a backup."""
    spark = on_disk(shop.lake.checkpoint_path("shop", "sales")) / "spark"
    for log in ("offsets", "commits", "sources/0"):
        for name in ("1", ".1.crc"):
            (spark / log / name).unlink(missing_ok=True)
    if torn:
        (spark / "offsets/1").write_text("v1\n")
    shop.lake = Lake(shop.lake.root)
    shop.runtime = Runtime(shop.spark, shop.lake)


def arrive_early(shop: Shop, n: int) -> None:
    """A file that Spark takes before those of the lost plan."""
    file = shop.folder / "early.json"
    file.write_text(json.dumps({"k": "a", "n": n, "at": "2026-01-01T00:00:00Z", "day": "d1"}) + "\n")
    os.utime(file, (1_000_000, 1_000_000))
    os.utime(shop.folder / "1.json", (1_000_009, 1_000_009))


@pytest.mark.parametrize(
    "skipped", ["torn", *(pytest.param(at, marks=pytest.mark.exhaustive) for at in ("before", "behind", "drained"))]
)
def test_a_skip_goes_with_the_plan_of_its_batch(shop: Shop, skipped: str) -> None:
    if skipped != "behind":
        shop.runtime.skip(refusing(shop, 3), 1)
    if skipped == "drained":
        shop.runtime.catch_up(refusing(shop, 3))
    lose(shop, torn=skipped == "torn")
    if skipped == "behind":
        shop.runtime.skip(refusing(shop, 3), 1)
    arrive_early(shop, 3)
    with pytest.raises(PoisonBatchError) as poison:
        shop.runtime.catch_up(refusing(shop, 3))
    # The early file was batch 1, and came through; those that were skipped are batch 2 now, and once in quarantine.
    assert poison.value.txid == 2
    assert shop.rows == Counter({("a", 1): 1, ("a", 3): 1})
    assert shop.refused == [("batch", "poison", 2), ("batch", "poison", 7)]
    shop.runtime.skip(refusing(shop, 3), 2)
    shop.runtime.catch_up(refusing(shop, 3))
    assert [one.landed for one in shop.replay(refusing(shop, 9))] == [2]
    assert (shop.rows, shop.refused) == (ALL + Counter({("a", 3): 1}), [])


@pytest.mark.parametrize("fails_again", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_rows_of_a_poison_batch_whose_file_goes_before_it_comes_through_stay(
    spark: SparkSession, tmp_path: Path, fails_again: bool
) -> None:
    """They are in quarantine alone: Spark reads what is left of the plan."""
    shop = Shop(spark, tmp_path)

    def catch_up(most: int) -> None:
        topology = TridentTopology("shop")
        stream = topology.new_stream("sales", JsonFiles(shop.folder, SCHEMA), slice_by="day")
        stream = stream.gate(fail("column_values_to_be_between", column="n", max_value=most, name="most"), name="high")
        stream.partition_persist(DeltaState("rows"), ["k", "n", "at"])
        stream.group_by("k").persistent_aggregate(DeltaState("by_k"), [Count("many"), Sum("n", "total")])
        shop.runtime.catch_up(topology)

    shop.put(("a", 1, "d1"))
    catch_up(3)
    shop.put(("a", 7, "d1"), ("b", 2, "d2"))
    shop.put(("a", 8, "d1"))
    with pytest.raises(PoisonBatchError):
        catch_up(3)
    (shop.folder / "1.json").unlink()
    alone = [("batch", "file_gone", 2), ("batch", "file_gone", 7)]
    if fails_again:
        with pytest.raises(PoisonBatchError):
            catch_up(3)
        assert shop.refused == [*alone, ("batch", "poison", 8)]
    catch_up(9)
    assert (shop.rows, shop.refused) == (Counter({("a", 1): 1, ("a", 8): 1}), alone)


def test_a_poison_batch_whose_plan_is_gone_is_tried_by_the_first_start(shop: Shop) -> None:
    lose(shop)
    assert [one.txid for one in shop.runtime.catch_up(refusing(shop, 9)).batches] == [1]
    assert (shop.rows, shop.refused) == (ALL, [])


@pytest.mark.parametrize("skipped", [pytest.param(False, marks=pytest.mark.exhaustive), True])
@pytest.mark.parametrize("torn", [False, True])
def test_a_batch_before_it_whose_mark_is_gone_too_is_no_hindrance(shop: Shop, skipped: bool, torn: bool) -> None:
    """It was closed, and comes again."""
    if skipped:
        shop.runtime.skip(refusing(shop, 3), 1)
        shop.runtime.catch_up(refusing(shop, 3))
    lose(shop, torn=torn)
    commits = on_disk(shop.lake.checkpoint_path("shop", "sales")) / "spark/commits"
    for name in ("0", ".0.crc"):
        (commits / name).unlink(missing_ok=True)
    if torn:
        (commits / "0").write_text("v1")
    assert [one.txid for one in shop.runtime.catch_up(refusing(shop, 9)).batches] == [0, 1]
    assert (shop.rows, shop.refused) == (ALL, [])


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("by", ["claims", "fields"])
def test_a_start_that_is_refused_forgets_no_attempts(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, lost: bool, by: str
) -> None:
    """Whoever then puts Spark's part back, or the source, has the counts that a replay is compared with."""

    def refuse(_: object) -> None:
        raise DefinitionError("it does not fit")

    attempts = on_disk(shop.lake.checkpoint_path("shop", "sales")) / "attempts.json"
    records = json.loads(attempts.read_bytes())
    records["sales/1"]["1"]["sources"] = {"source": {"rows": 2, "xor": None, "fields": None}}
    kept = json.dumps(records).encode()
    attempts.write_bytes(kept)
    if lost:
        lose(shop)
    with monkeypatch.context() as patch:
        patch.setattr(*(SameSources, "check") if by == "claims" else (StreamRunner, "_check_fields"), refuse)
        with pytest.raises(DefinitionError, match="it does not fit"):
            shop.runtime.catch_up(refusing(shop, 9))
    assert attempts.read_bytes() == kept


def test_a_mark_whose_plan_is_gone_is_named(shop: Shop) -> None:
    """Spark would begin with the batch before it, which is done."""
    shop.runtime.skip(refusing(shop, 3), 1)
    shop.runtime.catch_up(refusing(shop, 3))
    spark = on_disk(shop.lake.checkpoint_path("shop", "sales")) / "spark"
    plan, commits = (spark / "offsets/1").read_bytes(), spark / "commits"
    for name in ("1", ".1.crc"):
        (spark / "offsets" / name).unlink()
    shop.put(("a", 3, "d1"))
    with pytest.raises(DamagedCheckpointError, match="is missing") as damaged:
        shop.runtime.catch_up(refusing(shop, 3))
    assert (damaged.value.file, next(damages(shop.lake, refusing(shop, 3))).args) == (
        spark / "offsets/1", damaged.value.args,
    )  # fmt: skip
    (spark / "offsets/1").write_bytes(plan)
    assert (commits / "1").exists()
    shop.runtime.catch_up(refusing(shop, 3))
    assert shop.rows == Counter({("a", 1): 1, ("a", 3): 1})


@pytest.mark.parametrize("cleaned", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_batch_that_a_replay_has_put_in_is_not_planned_again(shop: Shop, cleaned: bool) -> None:
    """Nor where a compaction has cleaned the commit by which its rows came to quarantine from the log."""
    shop.runtime.skip(refusing(shop, 3), 1)
    shop.runtime.catch_up(refusing(shop, 3))
    assert [one.landed for one in shop.replay(refusing(shop, 9))] == [2]
    for _ in range(3 if cleaned else 0):
        compact(shop.spark, Lake(shop.lake.root), "shop", retention_hours=0)
    if cleaned:
        assert POISON not in {commit.kind for commit in Lake(shop.lake.root).quarantine("shop").history()}
    attempts = shop.lake.checkpoint_path("shop", "sales") / "attempts.json"
    kept = attempts.read_bytes()
    lose(shop)
    for run in (shop.runtime.catch_up, shop.runtime.replay_quarantine):
        with pytest.raises(CheckpointBehindError, match="batch txid 1, which was left out, and replay 1"):
            run(refusing(shop, 9))
    assert (shop.rows, attempts.read_bytes()) == (ALL, kept)
    assert list(adopt(shop.lake, refusing(shop, 9))) == ["sales"]
    shop.runtime.catch_up(refusing(shop, 9))


@pytest.mark.exhaustive
@pytest.mark.parametrize("twice", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_batch_that_a_replay_has_refused_again_is_not_planned_again(shop: Shop, twice: bool) -> None:
    """What a gate refuses of it is a row of that gate in quarantine, and of a state before it; from there it may go on."""
    shop.runtime.skip(refusing(shop, 3), 1)
    shop.runtime.catch_up(refusing(shop, 3))
    (lot,) = shop.replay(shop.flow(1))
    assert (lot.landed, lot.refused) == (0, {"most": 2})
    if twice:
        assert [one.landed for one in shop.replay(shop.flow(9))] == [2]
    held = shop.rows, shop.refused
    lose(shop)
    with pytest.raises(CheckpointBehindError, match="batch txid 1, which was left out, and replay 1"):
        shop.runtime.catch_up(refusing(shop, 9))
    assert (shop.rows, shop.refused) == held


@pytest.mark.parametrize("recorded", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_rows_whose_file_is_gone_with_the_plan_stay_in_quarantine(shop: Shop, recorded: bool) -> None:
    """No batch brings them any more; where their file comes back, one does, so that no replay takes them."""
    shop.runtime.skip(refusing(shop, 3), 1)
    shop.runtime.catch_up(refusing(shop, 3))
    lose(shop)
    arrive_early(shop, 8)
    file = shop.folder / "1.json"
    text = file.read_bytes()
    file.unlink()
    if not recorded:
        # As it was before batch 1.
        on_disk(shop.lake.checkpoint_path("shop", "sales") / "attempts.json").unlink()
    alone = [("batch", "file_gone", 2), ("batch", "file_gone", 7)]
    with pytest.raises(PoisonBatchError):
        shop.runtime.catch_up(refusing(shop, 3))
    assert shop.refused == [*alone, ("batch", "poison", 8)]
    shop.runtime.catch_up(refusing(shop, 9))
    assert (shop.rows, shop.refused) == (Counter({("a", 1): 1, ("a", 8): 1}), alone)
    (lot,) = shop.replay(refusing(shop, 9))
    assert lot.number is None
    assert list(lot.left) == [PUT_BACK]
    file.write_bytes(text)
    shop.runtime.catch_up(refusing(shop, 9))
    assert shop.replay(refusing(shop, 9))[0].number is None
    assert (shop.rows, shop.refused) == (ALL + Counter({("a", 8): 1}), alone)


@pytest.mark.parametrize("torn", [False, True])
def test_a_replay_leaves_a_batch_that_was_skipped_and_whose_plan_is_gone(shop: Shop, torn: bool) -> None:
    shop.runtime.skip(refusing(shop, 3), 1)
    lose(shop, torn=torn)
    (lot,) = shop.replay(refusing(shop, 9))
    assert (lot.number, list(lot.left)) == (
        None, ["its batch 1 waits to be tried again, or to be left out (tridelta skip)"],
    )  # fmt: skip
    shop.runtime.catch_up(refusing(shop, 9))
    assert (shop.rows, shop.refused) == (ALL, [])


@pytest.mark.parametrize("came", [False, True])
def test_a_replay_that_had_committed_nothing_does_not_go_on_with_a_batch_that_comes_again(
    shop: Shop, came: bool
) -> None:
    """It was written down, for its batch had been skipped, and cut off in front of its first commit."""
    shop.runtime.skip(refusing(shop, 3), 1)
    cut_off(shop, refusing(shop, 9), "committing", "rows")
    lose(shop)
    if came:
        shop.runtime.catch_up(refusing(shop, 9))
    report = shop.runtime.replay_quarantine(refusing(shop, 9))
    assert (report.resumed, report.landed) == ((1,), 0)
    shop.runtime.catch_up(refusing(shop, 9))
    assert (shop.rows, shop.refused) == (ALL, [])
    assert shop.replay(refusing(shop, 9)) == []
    assert shop.rows == ALL
