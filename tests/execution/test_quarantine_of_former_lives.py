"""A quarantine that outlives its flow's states: no batch of a fresh checkpoint takes its rows for known."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import FreshCheckpointError
from pipelines.quality import drop
from pipelines.sources import JsonFiles
from pipelines.trident import DeltaState, TridentTopology

pytestmark = pytest.mark.slow


class Shop:
    """A file a batch; rows with an `n` beyond the gate's are refused."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.folder, self.lake = root / "in", Lake(root / "lake")
        self.folder.mkdir()
        self.runtime, self.files = Runtime(spark, self.lake), 0

    def arrive(self, *numbers: int) -> None:
        for n in numbers:
            file = self.folder / f"{self.files:03d}.json"
            file.write_text(json.dumps({"n": n}) + "\n")
            os.utime(file, (1_700_000_000 + self.files,) * 2)
            self.files += 1

    def catch_up(self, most: int, state: str = "rows", on_fresh: str = "refuse") -> None:
        topology = TridentTopology("shop")
        rows = topology.new_stream("sales", JsonFiles(self.folder, "n bigint", max_files_per_batch=1))
        rows = rows.gate(drop("expect_column_values_to_be_between", column="n", max_value=most), name="most")
        rows.partition_persist(DeltaState(state))
        self.runtime.catch_up(topology, on_fresh_checkpoint=on_fresh)

    def held(self, state: str = "rows") -> tuple[list[int], list[int]]:
        refused = self.lake.quarantine("shop").scan().to_pylist()
        return (
            sorted(row["n"] for row in self.lake.state(state).scan().to_pylist()),
            sorted(json.loads(row["row"])["n"] for row in refused),
        )


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path)


def test_a_state_of_another_name_and_a_fresh_checkpoint(shop: Shop) -> None:
    shop.arrive(1, 2, 8)
    shop.catch_up(3)
    assert shop.held() == ([1, 2], [8])
    shutil.rmtree(shop.lake.checkpoint_path("shop", "sales"))
    with pytest.raises(FreshCheckpointError, match="quarantine of shop"):
        shop.catch_up(1, "others")
    shop.catch_up(1, "others", "reset")
    assert shop.held("others") == ([1], [2, 8])


def test_a_checkpoint_and_states_that_were_removed(shop: Shop) -> None:
    shop.arrive(7, 1)
    shop.catch_up(3)
    shutil.rmtree(shop.lake.checkpoint_path("shop", "sales"))
    shutil.rmtree(shop.lake.state_path("rows"))
    for file in shop.folder.iterdir():
        file.unlink()
    shop.arrive(99)
    with pytest.raises(FreshCheckpointError, match="batches up to txid 0 of epoch 1"):
        shop.catch_up(3)
    shop.catch_up(3, on_fresh="continue")
    assert shop.held() == ([], [7, 99])
