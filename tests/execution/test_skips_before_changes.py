"""Windows on channels are changed behind a batch that was left out, or that stops the flow: its rows count as was said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import ChangeoverError, PoisonBatchError
from pipelines.execution.batch.poison import skip
from pipelines.execution.checkpoint.changeover import Changeover
from pipelines.execution.checkpoint.engine_files import CONTINUE
from pipelines.flowmix import Count, Flow, Policy, Sum
from pipelines.flowmix.compile import as_topology, topology_of
from pipelines.sources import FixedBatches
from tests.execution.test_skip_behind_windows import SCHEMA, Faulty, quarantined, sums

pytestmark = pytest.mark.slow

QUERY = "events__1"
BATCHES: list[Any] = [[("a", 1, 0)], [("a", 12, 9), ("a", 13, 10)], [("a", 2, 11)], [("a", 4, 99)]]


def flow(mended: Path, count: int, *, windows: int = 1, delay: int = 0, batches: list[Any] = BATCHES) -> Flow:
    """Return a flow whose first window fails at the second batch. A second one counts what the first has made."""
    stream: Any = Flow("changed", windows="channels").stream(
        "events", FixedBatches(SCHEMA, batches[:count]), delay=delay
    )
    once = {"trigger": Policy.count(1), "evict": Policy.count(99)}
    stream = stream.partition("k").aggregate(Faulty(str(mended)), **once)
    if windows == 2:
        stream = stream.partition("k").aggregate(Sum("sum", "sum"), Count("n"), **once)
    return stream.persist("sums").output().build()


def changed(spark: SparkSession, lake: Lake, to: Flow) -> list[str]:
    """Change the flow as `tridelta watch --once` does. Returns the queries that began again."""
    topology = as_topology(to)
    on_fresh, anew = Changeover(lake, topology).make()
    assert on_fresh == CONTINUE
    Runtime(spark, lake, max_attempts=1).catch_up(topology, on_fresh_checkpoint=on_fresh)
    return anew


def poisoned(spark: SparkSession, lake: Lake, to: Flow) -> int:
    with pytest.raises(PoisonBatchError) as poison:
        Runtime(spark, lake, max_attempts=1).catch_up(to)
    return poison.value.txid


@pytest.mark.exhaustive
def test_a_skipped_batch_is_left_out_before_windows_on_channels_change(spark: SparkSession, tmp_path: Path) -> None:
    lake, mended = Lake(tmp_path / "lake"), tmp_path / "never"
    Runtime(spark, lake).catch_up(flow(mended, 1))
    txid = poisoned(spark, lake, flow(mended, 2))
    skip(lake, topology_of(flow(mended, 2)), txid, stream=QUERY)
    with pytest.raises(ChangeoverError, match="was skipped, and the former definition has not gone on behind it"):
        changed(spark, lake, flow(mended, 3, windows=2))
    # What the refusal says.
    Runtime(spark, lake, max_attempts=1).catch_up(flow(mended, 3))
    assert changed(spark, lake, flow(mended, 4, windows=2)) == [QUERY]
    # The windows begin empty.
    assert sums(lake) == [1, 3, 4]
    assert quarantined(lake, "changed") == [(txid, 12), (txid, 13)]


@pytest.mark.exhaustive
def test_a_poison_batch_that_comes_again_under_another_txid_leaves_quarantine(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Batch 1 was left out, so that no table holds its txid, and batch 2 gets another one."""
    lake, mended = Lake(tmp_path / "lake"), tmp_path / "mended"
    batches: list[Any] = [[("a", 1, 0)], [("a", 13, 9)], [("a", 13, 10)]]
    Runtime(spark, lake).catch_up(flow(mended, 1, batches=batches))
    assert poisoned(spark, lake, flow(mended, 2, batches=batches)) == 1
    skip(lake, topology_of(flow(mended, 2, batches=batches)), 1, stream=QUERY)
    assert poisoned(spark, lake, flow(mended, 3, batches=batches)) == 2
    assert quarantined(lake, "changed") == [(1, 13), (2, 13)]
    mended.touch()
    assert changed(spark, lake, flow(mended, 3, windows=2, batches=batches)) == [QUERY]
    assert sums(lake) == [1, 13]
    assert (2, 13) not in quarantined(lake, "changed")


@pytest.mark.exhaustive
def test_what_was_kept_from_the_windows_comes_into_none_that_begin(spark: SparkSession, tmp_path: Path) -> None:
    """Beyond the watermark events come again, for they wait in the windows: those of a batch that was left out do not."""
    lake, mended = Lake(tmp_path / "lake"), tmp_path / "never"
    left_out: Any = [("a", 13, 9_000), ("a", 5, 20_000)]
    batches: list[Any] = [[("a", 1, 0)], left_out, [("a", 2, 21_000)], [("a", 4, 99_000)]]
    Runtime(spark, lake).catch_up(flow(mended, 1, delay=5, batches=batches))
    txid = poisoned(spark, lake, flow(mended, 2, delay=5, batches=batches))
    skip(lake, topology_of(flow(mended, 2, delay=5, batches=batches)), txid, stream=QUERY)
    Runtime(spark, lake, max_attempts=1).catch_up(flow(mended, 3, delay=5, batches=batches))
    assert sums(lake) == [1]
    assert changed(spark, lake, flow(mended, 4, windows=2, delay=5, batches=batches)) == [QUERY]
    assert sums(lake) == [1, 2]
    assert quarantined(lake, "changed") == [(txid, 5), (txid, 13)]
