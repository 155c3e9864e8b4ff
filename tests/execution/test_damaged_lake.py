"""A damaged lake is never read past: the start, reads and `verify` name the file, what is intact, and what to do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.verify import damages
from pipelines.sources import JsonFiles
from pipelines.state.damage import DamagedError
from pipelines.trident import Count, DeltaState, TridentTopology

pytestmark = pytest.mark.slow

Damage = Callable[[Path], object]


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def cut_behind_a_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")


def other(path: Path) -> None:
    path.write_text('{"something": ["else"]}')


def _log(lake: Path) -> Path:
    return lake / "states/counts/_delta_log"


def last_commit(lake: Path) -> Path:
    return sorted(_log(lake).glob("0*.json"))[-1]


def old_commit(lake: Path) -> Path:
    return sorted(_log(lake).glob("0*.json"))[2]


def checkpoint_of_log(lake: Path) -> Path:
    return next(iter(_log(lake).glob("*.checkpoint.parquet")))


def data_file(lake: Path) -> Path:
    return sorted((lake / "states/counts").rglob("*.parquet"))[-1]


def beside(name: str) -> Callable[[Path], Path]:
    return lambda lake: lake / "checkpoints/words/s" / name


def written(name: str, text: str) -> Callable[[Path], Path]:
    def make(lake: Path) -> Path:
        file = lake / "checkpoints/words/s" / name
        file.write_text(text)
        return file

    return make


START, GET, SCAN = "start", "get", "scan"
EVERYWHERE = (START, GET, SCAN)
CASES: dict[str, tuple[Callable[[Path], Path], Damage, tuple[str, ...]]] = {
    "last commit empty": (last_commit, empty, EVERYWHERE),
    "last commit torn": (last_commit, cut, EVERYWHERE),
    "last commit cut behind a line": (last_commit, cut_behind_a_line, EVERYWHERE),
    "old commit empty": (old_commit, empty, EVERYWHERE),
    "old commit torn": (old_commit, cut, ()),
    "log checkpoint torn": (checkpoint_of_log, cut, EVERYWHERE),
    "log pointer torn": (lambda lake: _log(lake) / "_last_checkpoint", cut, ()),
    "log pointer to nothing": (
        lambda lake: _log(lake) / "_last_checkpoint",
        lambda path: path.write_text('{"version": 99, "size": 1}'),
        EVERYWHERE,
    ),
    "data file missing": (data_file, Path.unlink, (SCAN,)),
    "data file truncated": (data_file, cut, (SCAN,)),
    "data file empty": (data_file, empty, (SCAN,)),
    "epoch empty": (beside("epoch.json"), empty, (START,)),
    "epoch missing": (beside("epoch.json"), Path.unlink, (START,)),
    "epoch wrong": (beside("epoch.json"), other, (START,)),
    "attempts torn": (beside("attempts.json"), cut, (START,)),
    "attempts wrong": (beside("attempts.json"), other, (START,)),
    "tables torn": (beside("tables.json"), cut, (START,)),
    "tables wrong": (beside("tables.json"), other, (START,)),
    "start torn": (written("start.json", '{"channels": {}, "clock": 0'), lambda _: None, (START,)),
    "start wrong": (written("start.json", "{}"), other, (START,)),
    "partitions torn": (written("partitions.json", '{"parti'), lambda _: None, (START,)),
    "partitions wrong": (written("partitions.json", "[]"), lambda _: None, (START,)),
    "repartition torn": (written("repartition.json", '{"phase'), lambda _: None, (START,)),
    "metadata empty": (beside("spark/metadata"), empty, (START,)),
    "metadata missing": (beside("spark/metadata"), Path.unlink, (START,)),
    "finished plan empty": (beside("spark/offsets/2"), empty, (START,)),
    "finished plan torn": (beside("spark/offsets/2"), cut, (START,)),
    "old plan torn": (beside("spark/offsets/0"), cut, ()),
    "old mark empty": (beside("spark/commits/1"), empty, (START,)),
    "source log torn": (beside("spark/sources/0/2"), cut, (START,)),
}


class Words:
    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.root, self.source = root, root / "in"
        self.source.mkdir()
        self.topology = TridentTopology("words")
        stream = self.topology.new_stream("s", JsonFiles(self.source, "word string", max_files_per_batch=1))
        stream.group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "c")
        self.spark = spark
        for number in range(3):
            self.arrive(number)
        Runtime(spark, Lake(root / "lake")).catch_up(self.topology)
        table = DeltaTable(str(root / "lake/states/counts"))
        table.create_checkpoint()

    def arrive(self, number: int) -> None:
        file = self.source / f"{number}.json"
        file.write_text('{"word": "w"}\n')
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))

    def copy(self, to: Path) -> Lake:
        shutil.copytree(self.root / "lake", to)
        return Lake(to)


@pytest.fixture(scope="module")
def words(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Words:
    return Words(spark, tmp_path_factory.mktemp("words"))


def test_a_sound_lake_has_none(words: Words, tmp_path: Path) -> None:
    assert list(damages(words.copy(tmp_path / "lake"), words.topology)) == []


@pytest.mark.parametrize("name", CASES)
def test_each_damage_is_named(words: Words, tmp_path: Path, name: str) -> None:
    find, damage, noticed = CASES[name]
    lake = words.copy(tmp_path / "lake")
    file = find(lake.root)
    damage(file)
    found = [one for one in damages(lake, words.topology) if isinstance(one, DamagedError)]
    assert str(file) in [one.path for one in found]
    assert all(one.problem and one.intact and one.hint for one in found)
    # A batch of the stream may come through before a batch reads a file that is damaged; what notices it must name it.
    work: dict[str, Callable[[], object]] = {
        START: lambda: Runtime(words.spark, Lake(lake.root)).catch_up(words.topology),
        GET: lambda: Lake(lake.root).state("counts").get([{"word": "w"}]),
        SCAN: lambda: Lake(lake.root).state("counts").scan(),
    }
    for where in noticed:
        with pytest.raises(DamagedError) as caught:
            work[where]()
        assert caught.value.path == str(file), where
    if SCAN not in noticed:
        rows = Lake(lake.root).state("counts").scan().to_pylist()
        assert rows == [{"word": "w", "c": 3}]


@pytest.mark.parametrize(
    ("file", "batches"),
    [("commits/2", [2]), ("offsets/2", [2]), ("sources/0/2", [2])],
)
@pytest.mark.parametrize("damage", [empty, cut])
def test_what_a_loss_of_power_leaves_of_the_last_batch_is_mended(
    words: Words, tmp_path: Path, file: str, batches: list[int], damage: Damage
) -> None:
    """A torn mark: the batch comes again. A torn plan of a batch that is in no table: it is planned anew."""
    lake = words.copy(tmp_path / "lake")
    folder = lake.checkpoint_path("words", "s")
    if not file.startswith("commits"):
        # As it was when batch 2 was planned, and its attempt begun.
        for name in ("2", ".2.crc"):
            (folder / "spark/commits" / name).unlink()
        log = lake.state_path("counts") / "_delta_log"
        for old in (*log.glob("*checkpoint*"), log / f"{3:020d}.json"):
            old.unlink()
        records = json.loads((folder / "attempts.json").read_text())
        records["s/1"]["1"] = {**records["s/1"]["2"], "state": "committed"}
        records["s/1"]["2"]["state"] = "processing"
        (folder / "attempts.json").write_text(json.dumps(records))
        (folder / "tables.json").unlink()
    damage(folder / "spark" / file)
    report = Runtime(words.spark, lake).catch_up(words.topology)
    assert [one.txid for one in report.batches] == batches
    assert lake.state("counts").scan().to_pylist() == [{"word": "w", "c": 3}]
    assert list(damages(lake, words.topology)) == []
