"""Another number of partitions for windows behind a channel, with lake and checkpoints on a store; cut off anywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.checkpoint import copy as copying
from pipelines.execution.checkpoint.copy import COPIED, COPYING, MARKER, REPARTITIONED, VERIFIED, CopyError, recover
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.maintenance.old_files import remove_old_copies_there
from pipelines.maintenance.repartition import RepartitionReport, partitions_of, repartition
from pipelines.places.location import Location
from tests.places.test_lake_on_s3 import pairs, put_events

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Of each key the numbers 0, 1, 1, 2, 3, 3, two at a time; the 4 of the last file waits for another one.
SUMS = [(key, total) for key in "ab" for total in (1, 3, 6)]


class CutOffError(BaseException):
    """The process dies here: what is on the store stays as it is."""


def run(spark: SparkSession, lake: Lake, place: Location, *numbers: int) -> None:
    for number in numbers:
        put_events(place / "in", number)
        # Windows keep the partitions that they have.
        Runtime(spark, lake).catch_up(pairs(place / "in", "channels"), partitions=2)


def held(lake: Lake) -> list[tuple[str, int]]:
    return sorted((row["key"], row["sum"]) for row in lake.state("sums").scan().to_pylist())


def files(checkpoint: Checkpoint) -> dict[str, bytes]:
    assert isinstance(checkpoint.spark, Location)
    return {file.key: file.read_bytes() for file in checkpoint.spark.rglob("*") if file.is_file()}


def changed(
    spark: SparkSession, lake: Lake, to: int, progress: Callable[[str], None] | None = None
) -> RepartitionReport:
    own = of(lake)
    with own.running(30):
        return repartition(spark, own, to, copies=lake.root / "copies", progress=progress)


def of(lake: Lake) -> Checkpoint:
    return Checkpoint("pairs", lake.checkpoint_path("pairs", "sold__1"))


@pytest.mark.exhaustive
def test_windows_there_get_other_partitions_and_sum_on(reaching: SparkSession, place: Location) -> None:
    lake = Lake(place / "lake")
    run(reaching, lake, place, 0, 1, 2)
    before = files(of(lake))

    def fail(phase: str) -> None:
        if phase == REPARTITIONED:
            raise OSError("no luck")

    report = changed(reaching, lake, 3, fail)
    assert (report.rolled_back, report.reason, partitions_of(of(lake))) == (True, "no luck", 2)
    assert files(of(lake)) == before
    report = changed(reaching, lake, 3)
    assert (report.after, report.rolled_back, report.rows["0/default/clocks"]) == (3, False, 32), report.reason
    run(reaching, lake, place, 3, 4)
    assert partitions_of(of(lake)) == 3
    assert held(lake) == SUMS
    root = place / "lake"
    assert remove_old_copies_there(lake, root, 7.0).removed == 0
    assert remove_old_copies_there(lake, root, 7.0, now=4e9).removed == 2
    assert not list((root / "copies").rglob("*"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("moment", [COPYING, COPIED, REPARTITIONED, VERIFIED])
def test_cut_off_at_each_phase_the_next_start_mends_it(reaching: SparkSession, place: Location, moment: str) -> None:
    lake = Lake(place / "lake")
    run(reaching, lake, place, 0, 1, 2)
    before = files(of(lake))

    def die(phase: str) -> None:
        if phase == moment:
            raise CutOffError

    with pytest.raises(CutOffError):
        changed(reaching, lake, 3, die)
    own = of(lake)
    if moment != COPYING:
        assert (own.folder / MARKER).exists()
        # A copy that is still needed stays, however old it is.
        assert remove_old_copies_there(lake, place / "lake", 0.0, now=4e9).removed == 0
    with own.running(30):
        recover(own, lake.root / "copies")
    assert not (own.folder / MARKER).exists()
    assert partitions_of(own) == (3 if moment == VERIFIED else 2)
    if moment != VERIFIED:
        assert files(own) == before
    run(reaching, lake, place, 3)
    assert held(lake) == SUMS


@pytest.mark.exhaustive
def test_a_copy_there_that_has_changed_never_comes_back(
    reaching: SparkSession, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(place / "lake")
    run(reaching, lake, place, 0, 1, 2)

    def die(phase: str) -> None:
        if phase == REPARTITIONED:
            raise CutOffError

    with pytest.raises(CutOffError):
        changed(reaching, lake, 3, die)
    own, copies = of(lake), place / "lake" / "copies"
    # Cut off on the way back: done again from the copy.
    with monkeypatch.context() as patch, own.running(30):
        patch.setattr(copying, "_copy_objects", lambda *_: (_ for _ in ()).throw(ConnectionAbortedError()))
        with pytest.raises(ConnectionAbortedError):
            recover(own, copies)
    state = next(file for file in copies.rglob("*.zip"))
    data = state.read_bytes()
    state.write_bytes(data + b".")
    with own.running(30), pytest.raises(CopyError, match="has changed"):
        recover(own, copies)
    state.write_bytes(data)
    with own.running(30):
        assert recover(own, copies) is not None
    run(reaching, lake, place, 3)
    assert held(lake) == SUMS
