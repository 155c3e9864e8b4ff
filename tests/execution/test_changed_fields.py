"""Fields of a source that are moved, added or widened while a batch is half made: the batch is finished, each row counts once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, TridentTopology

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BEFORE = "k string, n int"


def flow(folder: Path, fields: str) -> TridentTopology:
    topology = TridentTopology("shop")
    stream = topology.new_stream("sales", JsonFiles(folder, fields))
    stream.partition_persist(DeltaState("rows"), ["k"])
    stream.group_by("k").persistent_aggregate(DeltaState("counts"), Count(), "c")
    return topology


def stop_behind_rows(moment: str, name: str, txid: int) -> None:
    if (moment, name) == ("committed", "rows"):
        raise KeyboardInterrupt


def stop_before_spark_knows(report: Any) -> None:
    raise KeyboardInterrupt


def as_earlier_releases_wrote(lake: Lake) -> None:
    log = max((lake.state_path("rows") / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for info in (action["commitInfo"] for action in actions if "commitInfo" in action):
        said = json.loads(info["userMetadata"])
        said.pop("fields")
        info["userMetadata"] = json.dumps(said)
    log.write_text("\n".join(map(json.dumps, actions)))  # delta-rs ends no line behind the last


@pytest.mark.parametrize("after", ["n int, k string", "k string, m int, n int", "k string, n bigint"])
def test_a_half_made_batch_is_finished_with_other_fields(spark: SparkSession, tmp_path: Path, after: str) -> None:
    check(spark, tmp_path, after, listeners=(stop_behind_rows,))


def test_a_batch_that_spark_does_not_know_is_taken_once_with_other_fields(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path, "n int, k string", progress=stop_before_spark_knows)


def test_a_half_made_batch_of_an_earlier_release_is_finished(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path, "n int, k string", listeners=(stop_behind_rows,), earlier=True)


def check(
    spark: SparkSession, root: Path, after: str, *, listeners: Any = (), progress: Any = None, earlier: bool = False
) -> None:
    folder, lake = root / "in", Lake(root / "lake")
    folder.mkdir()
    rows = [{"k": "a", "n": 1, "m": 5}, {"k": "b", "n": 2, "m": 6}, {"k": "a", "n": 3, "m": 7}]
    (folder / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(KeyboardInterrupt):
        Runtime(spark, lake, listeners=listeners).catch_up(flow(folder, BEFORE), progress=progress)
    if earlier:
        as_earlier_releases_wrote(lake)

    (batch,) = Runtime(spark, Lake(lake.root)).catch_up(flow(folder, after)).batches

    assert (batch.txid, batch.attempt, batch.received) == (0, 1, 3)
    assert sorted(row["k"] for row in lake.state("rows").scan().to_pylist()) == ["a", "a", "b"]
    assert sorted((row["k"], row["c"]) for row in lake.state("counts").scan().to_pylist()) == [("a", 2), ("b", 1)]
    assert not lake.quarantine_path("shop").exists()
