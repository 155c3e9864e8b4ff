"""A batch that comes again, for Spark's mark of it is lost or older, while files of it are gone by then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import PoisonBatchError
from pipelines.places.location import on_disk
from pipelines.quality import drop
from pipelines.sources import JsonFiles
from pipelines.state.kinds import OPAQUE, TRANSACTIONAL
from pipelines.trident import Count, DeltaState, TridentTopology

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class _Killed(BaseException):
    """Stands for a process that dies."""


def flow(folder: Path, *kinds: str) -> TridentTopology:
    """A state per kind, whose gate refuses a row of each file."""
    topology = TridentTopology("shop")
    stream = topology.new_stream("sales", JsonFiles(folder, "k string, n bigint"))
    stream = stream.gate(drop("column_values_to_be_between", column="n", max_value=3), name="sane")
    for kind in kinds:
        stream.group_by("k").persistent_aggregate(DeltaState(kind, kind), [Count("many")])
    return topology


def put(folder: Path, name: str, *numbers: int) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{json.dumps({'k': name, 'n': n})}\n" for n in numbers or (1, 2, 9)))
    return folder / name


def held(lake: Lake, *kinds: str) -> list[dict[str, int]]:
    return [{row["k"]: row["many"] for row in lake.state(kind).scan().to_pylist()} for kind in kinds]


@pytest.mark.parametrize("way", ["copy", "kill"])
@pytest.mark.parametrize("moment", ["state", pytest.param("quarantine", marks=pytest.mark.exhaustive), "closed"])
@pytest.mark.parametrize(
    "kinds", [(OPAQUE,), pytest.param((OPAQUE, TRANSACTIONAL), marks=pytest.mark.exhaustive)], ids="-".join
)
def test_states_keep_a_batch_whose_files_are_gone_when_it_comes_again(
    spark: SparkSession, tmp_path: Path, kinds: tuple[str, ...], moment: str, way: str
) -> None:
    """Nobody brings these rows again."""
    lake, folder = Lake(tmp_path / "lake"), tmp_path / "in"
    put(folder, "a")
    Runtime(spark, lake).catch_up(flow(folder, *kinds))
    at = {"state": ("committed", kinds[-1]), "quarantine": ("committed", "quarantine"), "closed": ("closed", "")}[
        moment
    ]

    def die(moment: str, state: str, txid: int) -> None:
        if (moment, state) == at:
            raise _Killed

    gone = put(folder, "b")
    with pytest.raises(_Killed):
        Runtime(spark, lake, listeners=[die]).catch_up(flow(folder, *kinds))
    checkpoint = on_disk(lake.checkpoint_path("shop", "sales"))
    if way == "copy":
        # Finished meanwhile, and then the copy of before is put back.
        shutil.copytree(checkpoint, tmp_path / "copy")
        Runtime(spark, lake).catch_up(flow(folder, *kinds))
        shutil.rmtree(checkpoint)
        shutil.copytree(tmp_path / "copy", checkpoint)
    gone.unlink()
    lake = Lake(lake.root)
    runtime = Runtime(spark, lake)
    if TRANSACTIONAL in kinds:
        # The same rows are demanded of the source; without them the batch is left out.
        with pytest.raises(PoisonBatchError, match="rows but received"):
            runtime.catch_up(flow(folder, *kinds))
        runtime.skip(flow(folder, *kinds), 1)
    put(folder, "c")
    runtime.catch_up(flow(folder, *kinds))
    assert held(lake, *kinds) == [{"a": 2, "b": 2, "c": 2}] * len(kinds)
    refused = [json.loads(row["row"])["k"] for row in lake.quarantine("shop").scan().to_pylist()]
    # Cut off before quarantine had it, and finished by nobody, the refused row is gone with its file.
    assert sorted(refused) == (["a", "c"] if (moment, way) == ("state", "kill") else ["a", "b", "c"])


@pytest.mark.parametrize("odd", ["b#1", pytest.param("b?1", marks=pytest.mark.exhaustive), "b%20c"])
def test_a_file_that_is_there_comes_again_whatever_its_name(spark: SparkSession, tmp_path: Path, odd: str) -> None:
    """Such a file passed for one that is gone: the state kept what came first, and quarantine got what came last."""
    lake, folder = Lake(tmp_path / "lake"), tmp_path / "in"
    put(folder, "a")
    Runtime(spark, lake).catch_up(flow(folder, OPAQUE))

    def die(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", OPAQUE):
            raise _Killed

    put(folder, odd)
    with pytest.raises(_Killed):
        Runtime(spark, lake, listeners=[die]).catch_up(flow(folder, OPAQUE))
    put(folder, odd, 1, 8, 9)
    Runtime(spark, lake).catch_up(flow(folder, OPAQUE))
    assert held(lake, OPAQUE) == [{"a": 2, odd: 1}]
    refused = [(row["k"], row["n"]) for row in map(json.loads, lake.quarantine("shop").scan()["row"].to_pylist())]
    assert sorted(refused) == [("a", 9), (odd, 8), (odd, 9)]


@pytest.mark.parametrize(("gone", "there"), [("b%20c", "b c"), ("b#1", "b"), ("b c", "b%20c")])
def test_a_file_that_is_gone_is_missed_beside_one_of_nearly_its_name(tmp_path: Path, gone: str, there: str) -> None:
    source = JsonFiles(tmp_path, "k string, n bigint")
    keys = {str(put(tmp_path, name)) for name in (gone, there)}
    assert source.absent(keys) == frozenset()
    (tmp_path / gone).unlink()
    assert source.absent(keys) == {str(tmp_path / gone)}
    assert source.gone({(tmp_path / name).as_uri() for name in (gone, there)}) == {(tmp_path / gone).as_uri()}
