"""Processes that die while they repartition: the next start finds the old checkpoint or the new one, never half of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.checkpoint.copy import COPIED, COPYING, MARKER, REPARTITIONED, ROLLING_BACK, VERIFIED, Marker
from pipelines.maintenance.repartition import partitions_of, recover
from tests.crash.lives import Kill, one_life
from tests.maintenance.repartition_case import COUNTED, changed, checkpoint, contents, flow, run
from tests.tiers import EXHAUSTIVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[object, ...]]]:
    lake = Lake(tmp_path_factory.mktemp("undisturbed"))
    Runtime(spark, lake).catch_up(flow())
    return contents(lake)


def killed(lake: Lake, partitions: int, kill: Kill) -> str | None:
    """A life that ends while it repartitions. Returns the phase that its marker names."""
    plan = {"home": str(lake.root), "group": COUNTED, "partitions": partitions, "kill": kill}
    one_life("tests.maintenance.repartition_case", plan)
    marker = Marker.of(checkpoint(lake, COUNTED))
    return marker.phase if marker else None


EXPECTED = {
    COPYING: ("dropped", 2),
    COPIED: ("rolled_back", 2),
    REPARTITIONED: ("rolled_back", 2),
    VERIFIED: ("finished", 5),
}


@pytest.mark.parametrize(
    "phases", [pytest.param((REPARTITIONED,), id="one"), pytest.param(tuple(EXPECTED), id="all", marks=EXHAUSTIVE)]
)
def test_killed_at_each_phase(
    spark: SparkSession, tmp_path: Path, undisturbed: dict[str, list[tuple[object, ...]]], phases: tuple[str, ...]
) -> None:
    lake = Lake(tmp_path)
    run(spark, lake, max_batches=2)
    own = checkpoint(lake, COUNTED)
    for phase in phases:
        action, partitions = EXPECTED[phase]
        assert killed(lake, 5, {"phase": phase}) == phase
        with own.running(5):
            found = recover(own, lake.root / "copies")
        assert found is not None
        assert (found.phase, found.action, found.partitions) == (phase, action, partitions)
        assert partitions_of(own) == partitions
        assert not (own.folder / MARKER).exists()
        run(spark, lake, max_batches=1)
    run(spark, lake)
    assert contents(lake) == undisturbed


@pytest.mark.exhaustive
def test_killed_while_spark_is_at_work_and_while_it_is_rolled_back(
    spark: SparkSession, tmp_path: Path, undisturbed: dict[str, list[tuple[object, ...]]]
) -> None:
    lake, chance = Lake(tmp_path), random.Random(11)
    run(spark, lake, max_batches=2)
    own = checkpoint(lake, COUNTED)
    for number in range(5):
        # Spark takes a second or two; what starts next is a run that knows nothing of all this, or the same once more.
        killed(lake, 3 + number, {"phase": COPIED, "after": chance.uniform(0.1, 1.5)})
        if number % 2:
            changed(spark, lake, COUNTED, 3 + number)
        else:
            run(spark, lake, max_batches=1)
        assert not (own.folder / MARKER).exists()
        assert (partitions_of(own) or 0) in {2, *range(3, 4 + number)}
    run(spark, lake)
    assert contents(lake) == undisturbed


@pytest.mark.exhaustive
def test_a_roll_back_that_is_cut_off_is_done_again(
    spark: SparkSession, tmp_path: Path, undisturbed: dict[str, list[tuple[object, ...]]]
) -> None:
    lake = Lake(tmp_path)
    run(spark, lake, max_batches=2)
    own = checkpoint(lake, COUNTED)

    def fail(phase: str) -> None:
        if phase == REPARTITIONED:
            raise OSError("no luck")
        if phase == ROLLING_BACK:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        changed(spark, lake, COUNTED, 5, fail)
    marker = Marker.of(own)
    assert marker is not None
    # As a process leaves it that dies between its two steps.
    marker.at(ROLLING_BACK, own, "no luck")
    for file in sorted(own.spark.rglob("*"))[::2]:
        if file.is_file():
            file.unlink()
    (own.folder / "spark.restoring").mkdir()
    run(spark, lake)
    assert partitions_of(own) == 2
    assert contents(lake) == undisturbed
