"""A damaged lake is never read past: the start, reads and `verify` name the file, what is intact, and what to do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.checkpoint.damage import DamagedCheckpointError, make_whole, spark_damages
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
    "source log missing": (beside("spark/sources/0/2"), Path.unlink, (START,)),
    "old listing missing": (beside("spark/sources/0/1"), Path.unlink, (START,)),
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


def take_back(lake: Lake, batch: int) -> None:
    """Make the lake as it was when a batch was planned, and its attempt begun."""
    folder = lake.checkpoint_path("words", "s")
    for number in range(batch, 3):
        gone = [f"commits/{number}", f"commits/.{number}.crc"]
        for name in gone + [f"offsets/{number}", f"offsets/.{number}.crc"] * (number > batch):
            (folder / "spark" / name).unlink()
        (lake.state_path("counts") / "_delta_log" / f"{number + 1:020d}.json").unlink()
    for old in (lake.state_path("counts") / "_delta_log").glob("*checkpoint*"):
        old.unlink()
    records = json.loads((folder / "attempts.json").read_text())
    last = records["s/1"]["2"]
    records["s/1"] = {str(batch - 1): {**last, "state": "committed"}, str(batch): {**last, "state": "processing"}}
    (folder / "attempts.json").write_text(json.dumps(records))
    (folder / "tables.json").unlink()


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
        take_back(lake, 2)
    damage(folder / "spark" / file)
    report = Runtime(words.spark, lake).catch_up(words.topology)
    assert [one.txid for one in report.batches] == batches
    assert lake.state("counts").scan().to_pylist() == [{"word": "w", "c": 3}]
    assert list(damages(lake, words.topology)) == []


def test_a_batch_whose_plan_is_gone_may_take_other_rows(spark: SparkSession, tmp_path: Path) -> None:
    lake, words = Lake(tmp_path / "lake"), Words(spark, tmp_path)
    take_back(lake, 2)
    for log in ("offsets", "sources/0"):
        for file in (lake.checkpoint_path("words", "s") / "spark" / log).glob("*2*"):
            file.unlink()
    early = tmp_path / "in/early.json"
    early.write_text('{"word": "w"}\n' * 2)
    os.utime(early, (1_700_000_001, 1_700_000_001))
    report = Runtime(spark, lake).catch_up(words.topology)
    assert [one.txid for one in report.batches] == [2, 3]
    assert lake.state("counts").scan().to_pylist() == [{"word": "w", "c": 5}]


@pytest.mark.parametrize("damage", [empty, Path.unlink])
@pytest.mark.parametrize(
    ("listing", "planned", "batches"), [(1, 2, [1, 2]), (2, 2, [1]), (1, 0, [1, 2]), (2, 1, [1, 2])]
)
def test_a_batch_whose_listings_have_other_numbers_is_planned_again(
    words: Words, tmp_path: Path, damage: Damage, listing: int, planned: int, batches: list[int]
) -> None:
    """Batch 1 took two listings (a process had died behind the first), or what was listed was not planned yet."""
    lake = words.copy(tmp_path / "lake")
    take_back(lake, 1)
    spark = lake.checkpoint_path("words", "s") / "spark"
    (spark / "offsets/.1.crc").unlink()
    if planned:
        plan = (spark / "offsets/1").read_text()
        (spark / "offsets/1").write_text(plan.replace('{"logOffset":1}', f'{{"logOffset":{planned}}}'))
    else:
        (spark / "offsets/1").unlink()
    damage(spark / f"sources/0/{listing}")
    report = Runtime(words.spark, lake).catch_up(words.topology)
    assert [one.txid for one in report.batches] == batches
    assert lake.state("counts").scan().to_pylist() == [{"word": "w", "c": 3}]
    assert list(damages(lake, words.topology)) == []


def planned(root: Path, *plans: tuple[object, ...], marked: int, logs: tuple[tuple[str, ...], ...]) -> Path:
    """Write Spark's part of a checkpoint: by batch the offsets of its sources, and the files of the sources' logs."""
    spark = root / "spark"
    for folder in ("offsets", "commits", *(f"sources/{index}" for index in range(len(logs)))):
        (spark / folder).mkdir(parents=True)
    (spark / "metadata").write_text("{}")
    (root / "epoch.json").write_text("{}")
    for batch, offsets in enumerate(plans):
        lines = [
            "-" if end is None else f'{{"logOffset":{end}}}' if isinstance(end, int) else str(end) for end in offsets
        ]
        (spark / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *lines]))
    for batch in range(marked + 1):
        (spark / "commits" / str(batch)).write_text("v1\n{}")
    for index, names in enumerate(logs):
        for name in names:
            (spark / "sources" / str(index) / name).write_text("v1\n{}")
    return spark


def left(spark: Path) -> set[str]:
    return {path.relative_to(spark).as_posix() for path in spark.rglob("*/*") if path.is_file()}


KAFKAS = '{"topic":{"0":5}}'
MENDED: dict[str, tuple[str, set[str], set[int]]] = {
    "listings of batch 1": ("sources/0/1", {"offsets/1", "sources/0/1", "sources/0/2", "sources/0/3"}, {1}),
    "the later of them": ("sources/0/2", {"offsets/1", "sources/0/2", "sources/0/3"}, {1}),
    "one that no plan names": ("sources/0/3", {"sources/0/3"}, set()),
    "of a source that has given nothing": ("sources/1/0", {"sources/1/0"}, set()),
    "the plan": ("offsets/1", {"offsets/1"}, {1}),
}


@pytest.mark.parametrize("name", MENDED)
@pytest.mark.parametrize("damage", [empty, Path.unlink])
def test_a_listing_goes_with_the_plan_that_names_it(tmp_path: Path, name: str, damage: Damage) -> None:
    file, gone, anew = MENDED[name]
    logs = (("0", "1", "2", "3"), ("0",), ("0",))
    spark = planned(tmp_path, (0, None, KAFKAS), (2, None, KAFKAS), marked=0, logs=logs)
    there = left(spark)
    damage(spark / file)
    if (spark / file).exists() or file in ("sources/0/1", "sources/0/2"):
        assert make_whole("f", spark, lambda batch: batch < 1) == anew
    assert there - left(spark) == gone
    assert list(spark_damages("f", spark)) == []


DELTA = '{"reservoirId":"t","reservoirVersion":4,"index":-1,"isStartingVersion":false}'


@pytest.mark.parametrize("damage", [empty, cut, Path.unlink])
@pytest.mark.parametrize(
    ("plans", "marked", "starts", "kept"),
    [
        ([(DELTA, None)], -1, ["tridelta_start"], []),
        ([(None, DELTA)], -1, ["tridelta_start1"], []),
        # The second source began with the plan that goes.
        ([(DELTA, None), (DELTA, DELTA)], 0, ["tridelta_start", "tridelta_start1"], ["tridelta_start"]),
    ],
)
def test_where_a_table_began_goes_with_its_first_plan(
    tmp_path: Path, damage: Damage, plans: list[tuple[Any, ...]], marked: int, starts: list[str], kept: list[str]
) -> None:
    """Another plan may begin with another version of the table, which has other files."""
    spark = planned(tmp_path, *plans, marked=marked, logs=())
    for name in starts:
        (spark / name).write_bytes((spark / "offsets" / str(len(plans) - 1)).read_bytes())
    (spark / "tridelta_topics").write_text("{}")
    make_whole("f", spark, lambda batch: batch <= marked)
    assert all((spark / name).exists() for name in starts)
    damage(spark / "offsets" / str(len(plans) - 1))
    make_whole("f", spark, lambda batch: batch <= marked)
    assert sorted(path.name for path in spark.glob("tridelta_*")) == [*kept, "tridelta_topics"]


@pytest.mark.parametrize(("marked", "held"), [(1, 1), (1, 0), (0, 1)])
@pytest.mark.parametrize("file", ["sources/0/1", "sources/0/2"])
@pytest.mark.parametrize("damage", [empty, Path.unlink])
def test_a_listing_of_a_batch_that_is_marked_or_in_a_table_is_refused(
    tmp_path: Path, marked: int, held: int, file: str, damage: Damage
) -> None:
    spark = planned(tmp_path, (0,), (2,), marked=marked, logs=(("0", "1", "2"),))
    damage(spark / file)
    there = left(spark)
    with pytest.raises(DamagedCheckpointError, match=file):
        make_whole("f", spark, lambda batch: batch <= held)
    assert left(spark) == there


def test_a_last_plan_that_was_overwritten_is_named(tmp_path: Path) -> None:
    spark = planned(tmp_path, (0,), (1,), marked=0, logs=(("0", "1"),))
    (spark / "offsets/1").write_bytes(b"v1\n{}\n\xff\xfe")
    assert [damage.file.name for damage in spark_damages("f", spark)] == ["1"]


def test_a_listing_of_an_earlier_batch_and_where_a_topic_began_are_refused(tmp_path: Path) -> None:
    for number, file in enumerate(("sources/0/0", "sources/1/0")):
        spark = planned(tmp_path / str(number), (0, KAFKAS), (1, KAFKAS), marked=0, logs=(("0", "1"), ("0",)))
        empty(spark / file)
        with pytest.raises(DamagedCheckpointError, match=file):
            make_whole("f", spark, lambda batch: batch < 1)


def test_the_tenth_listing_is_a_compact_file(tmp_path: Path) -> None:
    plans = [(number,) for number in range(9)]
    names = tuple(str(number) for number in range(9))
    spark = planned(tmp_path / "torn", *plans, (9,), marked=8, logs=((*names, "9.compact"),))
    empty(spark / "sources/0/9.compact")
    assert make_whole("f", spark, lambda batch: batch < 9) == {9}
    assert max(left(spark)) == "sources/0/8"
    # What it holds may be gone.
    spark = planned(tmp_path / "whole", *plans, (10,), marked=9, logs=(("9.compact", "10"),))
    assert make_whole("f", spark, lambda _: True) == set()
