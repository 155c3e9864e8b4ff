"""A batch is left out of the batch group that is meant: txids are a group's own. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.errors import DefinitionError, PoisonBatchError
from pipelines.execution.batch.poison import NoPoisonBatchError, SeveralPoisonBatchesError, skip
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.execution.protocol.coordinator import BatchState, Coordinator
from pipelines.sources import FixedBatches
from pipelines.state.lake import Lake
from pipelines.trident import DeltaState, TridentTopology

POISON, COMMITTED, SKIPPED = BatchState.POISON, BatchState.COMMITTED, BatchState.SKIPPED


def shop() -> TridentTopology:
    """`buys` and `sells` are queries of their own; `left` and `right` meet, so that they are one."""
    topology = TridentTopology("shop")
    streams = {}
    for name in ("buys", "sells", "left", "right"):
        streams[name] = topology.new_stream(name, FixedBatches("day string, v bigint", [[("d1", 1)]]))
    for name in ("buys", "sells"):
        streams[name].partition_persist(DeltaState(f"{name}_rows"))
    topology.merge(streams["left"], streams["right"]).partition_persist(DeltaState("both"))
    return topology


def coordinator(lake: Lake, group: str) -> Coordinator:
    checkpoint = Checkpoint("shop", lake.checkpoint_path("shop", group))
    return Coordinator(f"{group}/1", checkpoint.attempts())


def begin(lake: Lake, group: str, *states: BatchState) -> None:
    """Let the batches of a group end in these states."""
    checkpoint = Checkpoint("shop", lake.checkpoint_path("shop", group))
    checkpoint.begin(Epoch(1, 0))
    checkpoint.spark.mkdir(parents=True)
    (checkpoint.spark / "metadata").write_text("{}")
    running = coordinator(lake, group)
    for txid, state in enumerate(states):
        while running.state(txid) is not state:
            batch = running.open(txid)
            if state is COMMITTED:
                running.processed(batch)
                running.commit(batch)
                running.close(batch)
            else:
                running.fail(batch, "boom")


def states(lake: Lake, *groups: str) -> list[BatchState]:
    """Return where batch 0 of each group stands."""
    return [coordinator(lake, group).state(0) for group in groups]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake where batch 0 of two groups is poison."""
    lake = Lake(tmp_path)
    begin(lake, "buys", POISON)
    begin(lake, "sells", POISON)
    return lake


def test_a_txid_that_is_poison_twice_is_skipped_by_its_stream(lake: Lake) -> None:
    with pytest.raises(SeveralPoisonBatchesError, match="batch 0 of buys, batch 0 of sells") as caught:
        skip(lake, shop(), 0)
    assert "--stream" in caught.value.hint
    assert states(lake, "buys", "sells") == [POISON, POISON]
    assert skip(lake, shop(), 0, stream="sells") == "sells"
    assert states(lake, "buys", "sells") == [POISON, SKIPPED]
    assert skip(lake, shop(), 0) == "buys"


def test_a_batch_that_the_flow_tries_again_may_be_meant_too(lake: Lake) -> None:
    coordinator(lake, "sells").retry(0)
    with pytest.raises(SeveralPoisonBatchesError):
        skip(lake, shop(), 0)


def test_a_first_attempt_under_way_is_not_meant(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    begin(lake, "buys")
    coordinator(lake, "buys").open(0)
    begin(lake, "sells", POISON)
    assert skip(lake, shop(), 0) == "sells"


def test_an_unknown_stream(lake: Lake) -> None:
    with pytest.raises(DefinitionError, match=r'no stream "sell".*buys, sells, left, right'):
        skip(lake, shop(), 0, stream="sell")
    with pytest.raises(NoPoisonBatchError, match="batch 5"):
        skip(lake, shop(), 5, stream="sells")


@pytest.mark.parametrize("named", ["left", "right", "left__right"])
def test_a_group_of_two_streams(tmp_path: Path, named: str) -> None:
    lake = Lake(tmp_path)
    begin(lake, "left__right", COMMITTED, POISON)
    assert skip(lake, shop(), 1, stream=named) == "left__right"


def test_what_stops_a_flow_names_the_stream() -> None:
    error = PoisonBatchError("shop", 7, 3, "boom", "there", stream="sells")
    assert 'batch 7 of "sells" failed 3 times' in str(error)
    assert error.hint.endswith("tridelta skip shop 7 --stream sells")
