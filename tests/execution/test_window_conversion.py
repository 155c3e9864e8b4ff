"""Windows that ran over a channel go over into the batch of their source, with all that they hold."""

from __future__ import annotations

import contextlib
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import StateSchemaError
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.window_begin import Begun, WindowPlaceError
from pipelines.execution.checkpoint.window_files import WindowFiles
from pipelines.execution.checkpoint.window_state import WindowFieldError
from pipelines.execution.verify import verify
from pipelines.flowmix import Count, Flow, Policy, Sum
from pipelines.flowmix.compile import topology_of
from pipelines.sources import FixedBatches, JsonFiles
from tests.execution.test_windows_in_batch import BATCHES, LATE, SCHEMA, SMALL, Contents, contents, events, two_streams

pytestmark = pytest.mark.slow
EXHAUSTIVE = pytest.mark.exhaustive

MORE = [*BATCHES[:3], [*events(60, 75), *LATE], events(75, 90)]


def chain(windows: str) -> Flow:
    """Return windows behind windows: sums in arrays, then a sort one by one, then a count in arrays."""
    return (
        Flow("chain", windows=windows)
        .stream("readings", FixedBatches(SCHEMA, MORE), delay=2)
        .filter("v != 5")
        .partition("k")
        .aggregate(Sum("v", "sum"), trigger=Policy.count(3), evict=Policy.count(6))
        .partition("k")
        .sort("sum desc", top_n=2, trigger=Policy.count(2))
        .partition()
        .aggregate(Count(output="n"), Sum("sum", "total"), trigger=Policy.count(3), evict=Policy.count(5))
        .persist("totals")
        .build()
    )


def spans(windows: str, size: int = 8) -> Flow:
    return (
        Flow("spans", windows=windows)
        .stream("readings", FixedBatches(SCHEMA, MORE), delay=3)
        .partition("k")
        .aligned(Sum("v", "sum"), Count(output="n"), every=4, size=size)
        .persist("spans")
        .build()
    )


FLOWS = {
    "chain": (chain, ("totals", "late_chain_readings")),
    "spans": (spans, ("spans", "late_spans_readings")),
    "two_streams": (two_streams, SMALL),
}


@EXHAUSTIVE
@pytest.mark.parametrize(("name", "batches"), [(name, batches) for name in FLOWS for batches in (1, 2, 3)])
def test_they_go_on_as_if_they_had_stayed(spark: SparkSession, tmp_path: Path, name: str, batches: int) -> None:
    make, tables = FLOWS[name]
    found: list[Any] = []
    for places in (["channels", "channels"], ["channels", "batch"]):
        lake = Lake(tmp_path / places[1])
        runtime = Runtime(spark, lake)
        runtime.catch_up(make(places[0]), max_batches=batches)
        runtime.catch_up(make(places[1]), max_batches=1)
        assert not verify(spark, lake, topology_of(make(places[1]))).faults
        report = runtime.catch_up(make(places[1]))
        found.append(contents(lake, tables))
        groups = {batch.group for batch in report.batches}
    assert found[0] == found[1]
    assert all(found[0].values())
    assert not any(group.startswith("readings__") for group in groups)


@EXHAUSTIVE
def test_a_checkpoint_of_a_release_that_had_channels_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Three batches of `chain` by 76497dc, on two partitions; a lake's path stands in Spark's own files."""
    with tarfile.open(Path(__file__).parent / "windows_on_a_channel_76497dc.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    for file in (tmp_path / "lake").rglob("*"):
        if file.is_file() and b"@LAKE@" in (data := file.read_bytes()):
            file.write_bytes(data.replace(b"@LAKE@", str(tmp_path / "lake").encode()))
    old, new = Lake(tmp_path / "lake"), Lake(tmp_path / "new")
    report = Runtime(spark, old).catch_up(chain("batch"))
    assert [(batch.group, batch.received) for batch in report.batches] == [("readings", 16), ("readings", 15)]
    Runtime(spark, new).catch_up(chain("channels"))
    assert contents(old, FLOWS["chain"][1]) == contents(new, FLOWS["chain"][1])


@pytest.fixture(scope="module")
def stayed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
    """Return a lake with two batches over a channel, to copy, and what its tables hold behind all batches."""
    root = tmp_path_factory.mktemp("stayed")
    Runtime(spark, Lake(root / "before")).catch_up(spans("channels"), max_batches=2)
    # Spark knows the files of a source by their whole paths, so what goes on is a copy beside it with the same name.
    shutil.copytree(root / "before", root / "saved")
    Runtime(spark, Lake(root / "before")).catch_up(spans("channels"))
    return root, contents(Lake(root / "before"), FLOWS["spans"][1])


@pytest.fixture
def lake(stayed: tuple[Path, Contents]) -> Lake:
    root, _ = stayed
    shutil.rmtree(root / "before")
    shutil.copytree(root / "saved", root / "before")
    return Lake(root / "before")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "moment", ["aside", *(pytest.param(moment, marks=EXHAUSTIVE) for moment in ("begun", "state", "epoch"))]
)
def test_cut_off_anywhere_it_is_done_once(
    spark: SparkSession, lake: Lake, stayed: tuple[Path, Contents], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    where, name = {
        "state": (WindowFiles, "begin"),
        "epoch": (Checkpoint, "begin"),
        "begun": (Begun, "write"),
        "aside": (Checkpoint, "begin_at"),
    }[moment]

    def cut_off(*_: Any, **__: Any) -> None:
        raise ConnectionAbortedError

    with monkeypatch.context() as patch:
        patch.setattr(where, name, cut_off)
        with pytest.raises(ConnectionAbortedError):
            Runtime(spark, lake).catch_up(spans("batch"))
    if moment != "aside":
        # Nothing has happened yet that keeps the windows from their channel.
        Runtime(spark, lake).catch_up(spans("channels"), max_batches=1)
    Runtime(spark, lake).catch_up(spans("batch"))
    assert contents(lake, FLOWS["spans"][1]) == stayed[1]
    assert not (lake.checkpoint_path("spans", "readings__1") / "spark").exists()


@EXHAUSTIVE
def test_another_operation_is_refused_and_stays(spark: SparkSession, lake: Lake, stayed: tuple[Path, Contents]) -> None:
    runtime = Runtime(spark, lake)
    with pytest.raises(WindowPlaceError, match="is another operation than on its channel"):
        runtime.catch_up(spans("batch", size=12))
    runtime.catch_up(spans("channels"))
    assert contents(lake, FLOWS["spans"][1]) == stayed[1]


@EXHAUSTIVE
@pytest.mark.parametrize("query", ["readings", "readings__1"])
def test_what_was_begun_on_channels_is_finished_there(
    spark: SparkSession, lake: Lake, stayed: tuple[Path, Contents], query: str
) -> None:
    """A batch that tables hold, and that Spark has not marked as done; the other query stays behind it, too."""
    runtime = Runtime(spark, lake)

    def die(moment: str, state: str, txid: int) -> None:
        if moment == "committed" and state == {"readings": "spans__readings__readings", "readings__1": "spans"}[query]:
            raise ConnectionAbortedError

    with pytest.raises(Exception, match="ConnectionAborted"):
        Runtime(spark, lake, listeners=[die], max_attempts=1).catch_up(spans("channels"), max_batches=1)
    runtime.catch_up(spans("batch"))
    assert contents(lake, FLOWS["spans"][1]) == stayed[1]


@EXHAUSTIVE
def test_one_that_never_began_to_read_its_channel(spark: SparkSession, tmp_path: Path) -> None:
    lakes = []
    for first in (None, "spans__readings__readings"):
        lake = Lake(tmp_path / str(first))
        lakes.append(lake)

        def die(moment: str, state: str, txid: int, at: str | None = first) -> None:
            if (moment, state) == ("committed", at):
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            Runtime(spark, lake, listeners=[die]).catch_up(spans("channels"))
        Runtime(spark, Lake(lake.root)).catch_up(spans("batch"))
    assert contents(lakes[0], FLOWS["spans"][1]) == contents(lakes[1], FLOWS["spans"][1])


@EXHAUSTIVE
def test_all_windows_of_a_flow_go_over_or_none(spark: SparkSession, tmp_path: Path) -> None:
    def two(windows: str) -> Flow:
        flow = Flow("two", windows=windows)
        once = {"trigger": Policy.count(3), "evict": Policy.count(3)}
        first = flow.stream("a", FixedBatches(SCHEMA, MORE), delay=2).partition("k")
        second = (
            first.aggregate(Sum("v", "sum"), **once).persist("of_a").output().stream("b", FixedBatches(SCHEMA, MORE))
        )
        sums = second.partition("k").aggregate(Sum("v", "sum"), **once).persist("of_b")
        return sums.aggregate(Count(output="n"), **once).persist("of_sums").build()

    lake, beside = Lake(tmp_path / "lake"), Lake(tmp_path / "beside")
    Runtime(spark, lake).catch_up(two("channels"), max_batches=2)
    with pytest.raises(WindowPlaceError, match=r'its query "b"(?s:.)*behind a table'):
        Runtime(spark, lake).catch_up(two("batch"))
    assert not list((lake.root / "checkpoints").rglob("begun-*"))
    for each in (lake, beside):
        Runtime(spark, each).catch_up(two("channels"))
    tables = ("of_a", "of_b", "of_sums")
    assert contents(lake, tables) == contents(beside, tables)


@EXHAUSTIVE
def test_older_checkpoints_are_not_taken_over_once_more(
    spark: SparkSession, lake: Lake, stayed: tuple[Path, Contents]
) -> None:
    checkpoints, saved = lake.root / "checkpoints", stayed[0] / "saved" / "checkpoints"
    Runtime(spark, lake).catch_up(spans("batch"), max_batches=1)
    shutil.copytree(checkpoints, stayed[0] / "newest")
    shutil.rmtree(checkpoints)
    shutil.copytree(saved, checkpoints)
    with pytest.raises(WindowPlaceError, match="its checkpoint is older"):
        Runtime(spark, lake).catch_up(spans("batch"))
    shutil.rmtree(checkpoints)
    shutil.move(stayed[0] / "newest", checkpoints)
    Runtime(spark, lake).catch_up(spans("batch"))
    assert contents(lake, FLOWS["spans"][1]) == stayed[1]


@EXHAUSTIVE
def test_a_field_of_another_type_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """What the windows hold of it would be read as another type: the places and the types do not change at once."""

    def sums(windows: str, kind: str) -> Flow:
        source = JsonFiles(tmp_path / "in", f"k string, v {kind}, timestamp bigint", max_files_per_batch=1)
        stream = Flow("typed", windows=windows).stream("readings", source, timestamp="timestamp").partition("k")
        pair = Policy.count(2)
        return stream.aggregate(Sum("v", "sum"), trigger=pair, evict=pair).persist("sums").build()

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"k": "a", "v": 1, "timestamp": 1000}\n')
    runtime = Runtime(spark, Lake(tmp_path / "lake"))
    # Its windows are known from the second start on.
    for _ in range(2):
        runtime.catch_up(sums("channels", "int"))
    # The table of late events holds the field, too, and is looked at first.
    with pytest.raises((WindowFieldError, StateSchemaError)):
        runtime.catch_up(sums("batch", "bigint"))
    assert not list((tmp_path / "lake").rglob("begun-*"))
    runtime.catch_up(sums("batch", "int"))
    assert list((tmp_path / "lake").rglob("begun-*"))
