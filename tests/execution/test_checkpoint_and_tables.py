"""A checkpoint and tables that do not belong together are refused at the start, for every kind and layout of state."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from ops.cli import app as command_line
from pipelines import Lake, Runtime
from pipelines.errors import StateBehindError, TrideltaError
from pipelines.execution.checkpoint.belonging import (
    Belonging,
    CheckpointBehindError,
    NotTogetherError,
    OtherCheckpointError,
    TableBehindError,
    adopt,
)
from pipelines.execution.checkpoint.changeover import Changeover
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.runners.bounded import SourceGoneError
from pipelines.flowmix import Flow
from pipelines.flowmix.compile import as_topology
from pipelines.maintenance import compact
from pipelines.maintenance.repartition import repartition
from pipelines.quality import drop
from pipelines.sources import JsonFiles
from pipelines.state.kinds import NON_TRANSACTIONAL, OPAQUE
from pipelines.trident import Count, DeltaState, Sum, TridentTopology

pytestmark = pytest.mark.slow

SCHEMA = "day string, key string, n bigint"
TABLES = (
    "states/log_once",
    "states/log_opaque",
    "states/log_again",
    "states/map_once",
    "states/all_rows",
    "quarantine/kinds",
)


def kinds(folder: Path) -> TridentTopology:
    """A flow with a state of every kind and layout, whose gate refuses a row of every batch."""
    topology = TridentTopology("kinds")
    rows = topology.new_stream("s", JsonFiles(folder, SCHEMA, max_files_per_batch=1), slice_by="day")
    rows = rows.gate(drop("expect_column_values_to_be_between", column="n", min_value=0), name="sane")
    rows.partition_persist(DeltaState("all_rows"))
    keyed = rows.group_by("key")
    keyed.persistent_aggregate(DeltaState("log_once"), Count(), "c")
    keyed.persistent_aggregate(DeltaState("log_opaque", kind=OPAQUE), Count(), "c")
    keyed.persistent_aggregate(DeltaState("log_again", kind=NON_TRANSACTIONAL), Count(), "c")
    keyed.persistent_aggregate(DeltaState("map_once", layout="map"), Sum("n"), "c")
    return topology


def arrive(folder: Path, *numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        file = folder / f"{number:03d}.json"
        rows = [{"day": f"d{number % 2}", "key": "k", "n": 1}, {"day": "d0", "key": "k", "n": -1}]
        file.write_text("\n".join(map(json.dumps, rows)))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


class Lakes:
    """The lake of one flow after two batches, and after four."""

    def __init__(self, spark: SparkSession, root: Path, topology: Callable[[Path], TridentTopology]) -> None:
        self.spark, self.root, self.source = spark, root, root / "in"
        self.topology = topology(self.source)
        arrive(self.source, 0, 1)
        Runtime(spark, Lake(root / "new")).catch_up(self.topology)
        shutil.copytree(root / "new", root / "old")
        arrive(self.source, 2, 3)
        Runtime(spark, Lake(root / "new")).catch_up(self.topology)

    def made_of(self, to: Path, base: str, **parts: str) -> Runtime:
        """A lake of one age with parts of the other."""
        shutil.copytree(self.root / base, to)
        for part, age in parts.items():
            path = part.replace("__in__", "/")
            shutil.rmtree(to / path)
            shutil.copytree(self.root / age / path, to / path)
        return Runtime(self.spark, Lake(to))

    def checkpoint(self, lake: Lake, group: str = "s") -> Checkpoint:
        return Checkpoint(self.topology.name, lake.checkpoint_path(self.topology.name, group))


@pytest.fixture(scope="module")
def lakes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    return Lakes(spark, tmp_path_factory.mktemp("kinds"), kinds)


def refused(runtime: Runtime, lakes: Lakes) -> NotTogetherError:
    """What the start says; it says the same again, and nothing was written meanwhile."""
    before = {path: path.stat().st_mtime_ns for path in runtime.lake.root.rglob("*.json")}
    with pytest.raises(NotTogetherError) as caught:
        runtime.catch_up(lakes.topology)
    with pytest.raises(type(caught.value)):
        Changeover(runtime.lake, lakes.topology).make()
    assert {path: path.stat().st_mtime_ns for path in runtime.lake.root.rglob("*.json")} == before
    assert "on_fresh_checkpoint" in caught.value.hint
    return caught.value


def test_an_older_checkpoint(lakes: Lakes, tmp_path: Path) -> None:
    runtime = lakes.made_of(tmp_path / "lake", "new", checkpoints="old")
    error = refused(runtime, lakes)
    assert isinstance(error, CheckpointBehindError)
    assert (error.flow, error.group, error.table_txid, error.checkpoint_txid) == ("kinds", "s", 3, 1)


@pytest.mark.parametrize("path", TABLES)
def test_one_table_that_is_newer_than_the_checkpoint(lakes: Lakes, tmp_path: Path, path: str) -> None:
    runtime = lakes.made_of(tmp_path / "lake", "old", **{path.replace("/", "__in__"): "new"})
    error = refused(runtime, lakes)
    assert isinstance(error, CheckpointBehindError)
    assert (error.table_txid, error.checkpoint_txid) == (3, 1)


@pytest.mark.parametrize("path", TABLES)
def test_one_table_that_is_older_than_the_checkpoint(lakes: Lakes, tmp_path: Path, path: str) -> None:
    runtime = lakes.made_of(tmp_path / "lake", "new", **{path.replace("/", "__in__"): "old"})
    if path.startswith("quarantine"):
        # Not every batch refuses rows: an older copy is known by its version as of the last start.
        assert Belonging(lakes.checkpoint(runtime.lake), runtime.lake).known()[path].version >= 2
    error = refused(runtime, lakes)
    assert isinstance(error, TableBehindError)
    assert error.state.endswith(path.split("/")[1])


@pytest.mark.parametrize("path", TABLES)
def test_one_table_that_is_gone(lakes: Lakes, tmp_path: Path, path: str) -> None:
    runtime = lakes.made_of(tmp_path / "lake", "new")
    shutil.rmtree(runtime.lake.root / path)
    with pytest.raises(TableBehindError) as caught:
        runtime.catch_up(lakes.topology)
    assert "gone" in caught.value.problem or "created again" in caught.value.problem


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=() if at % 3 == 0 else pytest.mark.exhaustive) for at, path in enumerate(TABLES)]
)
def test_one_table_that_was_taken_back_by_a_restore(lakes: Lakes, tmp_path: Path, path: str) -> None:
    runtime = lakes.made_of(tmp_path / "lake", "new")
    table = DeltaTable(str(runtime.lake.root / path))
    was = table.version()
    table.restore(was - 1)
    error = refused(runtime, lakes)
    assert isinstance(error, TableBehindError)
    assert error.problem == "a RESTORE has undone its txid 3"
    # The way back that the hint names.
    DeltaTable(str(runtime.lake.root / path)).restore(was)
    arrive(lakes.source, 4)
    try:
        assert [one.txid for one in runtime.catch_up(lakes.topology).batches] == [4]
    finally:
        (lakes.source / "004.json").unlink()


def test_another_checkpoint_with_as_many_batches(lakes: Lakes, tmp_path: Path) -> None:
    runtime = lakes.made_of(tmp_path / "lake", "old")
    runtime.catch_up(lakes.topology)  # as the other lake has done, by itself
    shutil.rmtree(runtime.lake.root / "checkpoints")
    shutil.copytree(lakes.root / "new" / "checkpoints", runtime.lake.root / "checkpoints")
    shutil.copy(lakes.root / "old" / "checkpoints/kinds/s/tables.json", runtime.lake.root / "checkpoints/kinds/s")
    assert isinstance(refused(runtime, lakes), OtherCheckpointError)


def test_sparks_part_alone_is_older(lakes: Lakes, tmp_path: Path) -> None:
    runtime = lakes.made_of(tmp_path / "lake", "old", checkpoints__in__kinds="new")
    folder = runtime.lake.root / "checkpoints/kinds/s"
    shutil.rmtree(folder / "spark")
    shutil.copytree(lakes.root / "old" / "checkpoints/kinds/s/spark", folder / "spark")
    error = refused(runtime, lakes)
    assert isinstance(error, CheckpointBehindError)
    assert error.state == "attempts.json"


def test_whatever_else_works_on_the_pair_refuses_it_too(lakes: Lakes, tmp_path: Path) -> None:
    runtime = lakes.made_of(tmp_path / "lake", "new", checkpoints="old")
    lake, checkpoint = runtime.lake, lakes.checkpoint(runtime.lake)

    def repartitioned() -> None:
        with checkpoint.running(1):
            repartition(lakes.spark, checkpoint, 3, copies=lake.root / "copies")

    work: list[Callable[[], object]] = [
        lambda: runtime.backfill(lakes.topology, ["d1"]),
        lambda: runtime.replay_quarantine(lakes.topology),
        lambda: compact(lakes.spark, lake, lakes.topology),
        lambda: compact(None, lake, "kinds"),
        repartitioned,
    ]
    for one in work:
        with pytest.raises((CheckpointBehindError, TrideltaError)) as caught:
            one()
        assert isinstance(caught.value, CheckpointBehindError)


def test_legal_meetings_are_not_refused(lakes: Lakes, tmp_path: Path) -> None:
    """Committed and not marked, planned and not committed, marks and old offsets gone, nothing noted, attempts lost."""
    runtime = lakes.made_of(tmp_path / "lake", "new")
    folder = runtime.lake.root / "checkpoints/kinds/s"
    for name in ("3", ".3.crc"):
        (folder / "spark/commits" / name).unlink()  # killed before Spark's mark
    assert [one.txid for one in runtime.catch_up(lakes.topology).batches] == [3]
    (folder / "tables.json").unlink()  # of an earlier release
    (folder / "attempts.json").unlink()
    for name in ("0", ".0.crc", "1", ".1.crc"):
        (folder / "spark/offsets" / name).unlink()  # Spark cleans up
    assert runtime.catch_up(lakes.topology).batches == ()
    assert set(Belonging(lakes.checkpoint(runtime.lake), runtime.lake).known()) == set(TABLES)
    old = lakes.made_of(tmp_path / "again", "new", states__in__log_once="old")
    (old.lake.root / "checkpoints/kinds/s/tables.json").unlink()
    (old.lake.root / "checkpoints/kinds/s/attempts.json").unlink()
    assert isinstance(refused(old, lakes), TableBehindError)  # by Spark's marks alone


def test_a_lost_table_is_filled_by_a_backfill(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"

    def counts(folder: Path) -> TridentTopology:
        topology = TridentTopology("counts")
        stream = topology.new_stream("s", JsonFiles(folder, SCHEMA, max_files_per_batch=1), slice_by="day")
        stream.group_by("key").persistent_aggregate(DeltaState("only"), Count(), "c")
        return topology

    lakes = Lakes(spark, tmp_path, counts)
    runtime = lakes.made_of(tmp_path / "lake", "new")
    shutil.rmtree(runtime.lake.state_path("only"))
    with pytest.raises(TableBehindError):
        runtime.catch_up(lakes.topology)
    assert not runtime.backfill(lakes.topology, ["d0", "d1"]).failed
    arrive(source, 4)
    runtime.catch_up(lakes.topology)
    assert runtime.lake.state("only").get([{"key": "k"}]) == [{"key": "k", "c": 10}]


def test_adopted_as_they_are(lakes: Lakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = lakes.made_of(tmp_path / "lake", "new", checkpoints="old", states__in__all_rows="old")
    refused(runtime, lakes)
    monkeypatch.setattr(command_line, "opened_lake", lambda: runtime.lake)
    monkeypatch.setattr(command_line, "topology_of", lambda _: lakes.topology)
    told = CliRunner().invoke(command_line.app, ["adopt", "kinds", "--json"])
    assert told.exit_code == 0, told.output
    assert set(json.loads(told.stdout)["adopted"]) == {"s"}
    assert "belong together" in CliRunner().invoke(command_line.app, ["adopt", "kinds"]).output
    assert adopt(runtime.lake, lakes.topology) == {}
    assert [one.txid for one in runtime.catch_up(lakes.topology).batches] == [4, 5]
    assert runtime.lake.state("all_rows").scan().num_rows == 4
    assert runtime.lake.state("log_once").get([{"key": "k"}])[0]["c"] == 6  # two of them twice, as was said
    assert runtime.catch_up(lakes.topology).batches == ()


@pytest.mark.exhaustive
def test_a_backfill_right_behind_adopt_misses_files_that_are_gone(spark: SparkSession, tmp_path: Path) -> None:
    """The epoch that adopt begins has counted nothing yet; the files of the batches before it are counted all the same."""
    source, runtime = tmp_path / "in", Runtime(spark, Lake(tmp_path / "lake"))
    topology = TridentTopology("rows")
    rows = topology.new_stream("s", JsonFiles(source, SCHEMA, max_files_per_batch=1), slice_by="day")
    rows.partition_persist(DeltaState("rows"))
    for number in (0, 2, 4):
        arrive(source, number)
        runtime.catch_up(topology)
    table = DeltaTable(str(runtime.lake.state_path("rows")))
    table.restore(table.version() - 1)
    runtime = Runtime(spark, Lake(tmp_path / "lake"))
    assert set(adopt(runtime.lake, topology)) == {"s"}
    (source / "000.json").unlink()
    with pytest.raises(SourceGoneError):
        runtime.backfill(topology, ["d0"])
    arrive(source, 0)
    assert not runtime.backfill(topology, ["d0"]).failed
    assert runtime.lake.state("rows").scan().num_rows == 6
    arrive(source, 6)
    runtime.catch_up(topology)
    assert runtime.lake.state("rows").scan().num_rows == 8


def test_a_state_of_another_name_in_a_flow_of_one_state(spark: SparkSession, tmp_path: Path) -> None:
    def counts(state: str) -> TridentTopology:
        topology = TridentTopology("counts")
        stream = topology.new_stream("s", JsonFiles(tmp_path / "in", SCHEMA))
        stream.group_by("key").persistent_aggregate(DeltaState(state), Count(), "c")
        return topology

    arrive(tmp_path / "in", 0)
    runtime = Runtime(spark, Lake(tmp_path / "lake"))
    runtime.catch_up(counts("one"))
    with pytest.raises(StateBehindError) as caught:
        runtime.catch_up(counts("other"))
    assert caught.value.state == "other"


@pytest.mark.exhaustive
def test_a_state_that_is_taken_out_of_a_flow_and_put_back(spark: SparkSession, tmp_path: Path) -> None:
    def counts(*states: str) -> TridentTopology:
        topology = TridentTopology("counts")
        stream = topology.new_stream("s", JsonFiles(tmp_path / "in", SCHEMA), slice_by="day")
        for state in states:
            stream.group_by("key").persistent_aggregate(DeltaState(state), Count(), "c")
        return topology

    def kill(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", "two"):
            raise KeyboardInterrupt

    lake = Lake(tmp_path / "lake")
    runtime = Runtime(spark, lake)
    arrive(tmp_path / "in", 0, 1)
    runtime.catch_up(counts("one", "two"))
    arrive(tmp_path / "in", 2)
    runtime.catch_up(counts("one"))
    arrive(tmp_path / "in", 3)
    with pytest.raises(StateBehindError) as caught:
        runtime.catch_up(counts("one", "two"))
    assert caught.value.state == "two"
    # A backfill that is cut off has filled a part of it alone.
    with pytest.raises(KeyboardInterrupt):
        Runtime(spark, lake, listeners=[kill]).backfill(counts("one", "two"), ["d0", "d1"])
    with pytest.raises(StateBehindError):
        runtime.catch_up(counts("one", "two"))
    runtime.backfill(counts("one", "two"), ["d0", "d1"])
    arrive(tmp_path / "in", 4)
    runtime.catch_up(counts("one", "two"))
    assert [lake.state(state).get([{"key": "k"}])[0]["c"] for state in ("one", "two")] == [10, 10]
    assert len(runtime.catch_up(counts("one", "two")).batches) == 0
    # Filled by a backfill alone, and taken out again before a batch has come.
    runtime.backfill(counts("one", "two", "three"), ["d0", "d1"])
    runtime.catch_up(counts("one", "two", "three"))
    arrive(tmp_path / "in", 5)
    runtime.catch_up(counts("one", "two"))
    with pytest.raises(StateBehindError):
        runtime.catch_up(counts("one", "two", "three"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        pytest.param("older checkpoint", CheckpointBehindError, marks=pytest.mark.exhaustive),
        ("restored", TableBehindError),
    ],
)
def test_channels(spark: SparkSession, tmp_path: Path, damage: str, expected: type[NotTogetherError]) -> None:
    def flow(folder: Path) -> TridentTopology:
        stream = Flow("f").stream("s", JsonFiles(folder, SCHEMA, max_files_per_batch=1)).filter("n > 0").to("t")
        return as_topology(stream.stream("t").persist("out").build())

    lakes = Lakes(spark, tmp_path, flow)
    runtime = lakes.made_of(tmp_path / "lake", "new")
    lake = runtime.lake
    if damage == "restored":
        table = DeltaTable(str(lake.channel_path(lake.channels()[0])))
        table.restore(table.version() - 1)
    else:
        shutil.rmtree(lake.root / "checkpoints/f/s")
        shutil.copytree(lakes.root / "old/checkpoints/f/s", lake.root / "checkpoints/f/s")
    error = refused(runtime, lakes)
    assert isinstance(error, expected)
    assert (error.group, error.state) == ("s", lake.channels()[0])
