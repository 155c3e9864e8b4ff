"""A gate that is changed while a batch is half made, and totals that no longer fit: a row is in all states, or in quarantine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import ChangedGateError, PoisonBatchError
from pipelines.quality import drop
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, Sum, TridentTopology

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MOST = 2**63 - 1


class Shop:
    """Rows, counts and totals behind a gate."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.folder, self.lake = spark, root / "in", Lake(root / "lake")
        self.folder.mkdir()

    def put(self, number: int, *values: int) -> None:
        file = self.folder / f"{number}.json"
        file.write_text("".join(json.dumps({"k": "a", "n": n}) + "\n" for n in values))
        os.utime(file, (1_000_000 + number, 1_000_000 + number))

    def flow(self, most: int | None) -> TridentTopology:
        topology = TridentTopology("shop")
        stream = topology.new_stream("sales", JsonFiles(self.folder, "k string, n bigint", max_files_per_batch=1))
        if most is not None:
            stream = stream.gate(drop("column_values_to_be_between", column="n", max_value=most), name="high")
        stream.partition_persist(DeltaState("rows"), ["n"])
        stream.group_by("k").persistent_aggregate(DeltaState("counts"), Count(), "c")
        stream.group_by("k").persistent_aggregate(DeltaState("totals"), Sum("n"), "s")
        return topology

    def catch_up(self, most: int | None, *listeners: Any) -> list[int]:
        return [
            one.txid for one in Runtime(self.spark, self.lake, listeners=listeners).catch_up(self.flow(most)).batches
        ]

    @property
    def held(self) -> tuple[list[int], int, int]:
        """The rows; how many the counts say, and what they add up to."""
        rows = [row["n"] for row in self.lake.state("rows").scan().to_pylist()]
        count, total = (self.lake.state(name).get([{"k": "a"}]) for name in ("counts", "totals"))
        return sorted(rows), count[0]["c"] if count else 0, total[0]["s"] if total else 0

    @property
    def refused(self) -> list[tuple[str, int]]:
        path = self.lake.quarantine_path("shop")
        rows = self.lake.quarantine("shop").scan().to_pylist() if path.exists() else []
        return sorted((row["stage"], json.loads(row["row"])["n"]) for row in rows)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path)


def cut_off(state: str) -> Any:
    def kill(moment: str, name: str, txid: int) -> None:
        if (moment, name) == ("committed", state):
            raise KeyboardInterrupt

    return kill


@pytest.mark.parametrize(("first", "then"), [(3, 9), (9, 3), (None, 3), (3, None)])
def test_a_half_made_batch_is_finished_by_the_gate_that_began_it(
    shop: Shop, first: int | None, then: int | None
) -> None:
    shop.put(0, 1, 7)
    with pytest.raises(KeyboardInterrupt):
        shop.catch_up(first, cut_off("rows"))
    shop.lake = Lake(shop.lake.root)
    with pytest.raises(ChangedGateError, match="batch 0") as caught:
        shop.catch_up(then)
    assert "--max-batches 1" in caught.value.hint
    assert "tridelta skip" in caught.value.hint
    passed = [1] if first == 3 else [1, 7]
    assert shop.catch_up(first) == [0]
    assert shop.held == (passed, len(passed), sum(passed))
    assert shop.refused == ([("high", 7)] if first == 3 else [])
    # The change works behind it; a batch that no table has may be judged by any gate.
    shop.put(1, 8)
    assert shop.catch_up(then) == [1]
    passed += [8] if then in (9, None) else []
    assert shop.held == (passed, len(passed), sum(passed))


def test_a_half_made_batch_of_an_earlier_release_is_finished_by_any_gate(shop: Shop) -> None:
    shop.put(0, 1, 7)
    with pytest.raises(KeyboardInterrupt):
        shop.catch_up(9, cut_off("rows"))
    log = max((shop.lake.state_path("rows") / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for info in (action["commitInfo"] for action in actions if "commitInfo" in action):
        said = json.loads(info["userMetadata"])
        assert said.pop("gates")
        info["userMetadata"] = json.dumps(said)
    log.write_text("\n".join(json.dumps(action, separators=(",", ":")) for action in actions))
    shop.lake = Lake(shop.lake.root)
    assert shop.catch_up(3) == [0]


@pytest.mark.parametrize("way", ["gate", "skip"])
def test_a_total_that_does_not_fit_is_refused_before_any_state_commits(shop: Shop, way: str) -> None:
    shop.put(0, 5)
    shop.put(1, MOST)
    shop.put(2, 6)
    with pytest.raises(PoisonBatchError, match="does not fit"):
        shop.catch_up(MOST)
    assert shop.held == ([5], 1, 5)
    if way == "skip":
        Runtime(shop.spark, shop.lake).skip(shop.flow(MOST), 1)
        assert shop.catch_up(MOST) == [1, 2]
    else:
        assert shop.catch_up(1000) == [1, 2]
    assert shop.held == ([5, 6], 2, 11)
    assert shop.refused == [("batch" if way == "skip" else "high", MOST)]
