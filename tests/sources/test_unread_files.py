"""What a file holds that Spark ends its read for: its batch is poison, and once it is skipped the flow goes on behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import PoisonBatchError, SourceError, SourceSchemaError
from pipelines.execution.batch.poison import skip
from pipelines.sources import CsvFiles, JsonFiles, ParquetFiles
from pipelines.sources.files import _NO_TEXT
from pipelines.trident import DeltaState, TridentTopology


def file_of(folder: Path, number: int) -> Path:
    """Put a file of one row there."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{number}.parquet"
    pq.write_table(pa.table({"n": pa.array([number], pa.int64())}), file)
    return file


@pytest.mark.slow
@pytest.mark.parametrize("gone", [False, True])
def test_a_skipped_batch_whose_file_cannot_be_read_is_left_behind(
    spark: SparkSession, tmp_path: Path, gone: bool
) -> None:
    folder, lake, topology = tmp_path / "in", Lake(tmp_path / "lake"), TridentTopology("kept")
    file_of(folder, 1)
    topology.new_stream("rows", ParquetFiles(folder, "n bigint", max_files_per_batch=1)).partition_persist(
        DeltaState("held")
    )
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(topology)
    torn = folder / "2.parquet"
    torn.write_text("not at all")
    with pytest.raises(PoisonBatchError, match="could not be read"):
        runtime.catch_up(topology)
    if gone:
        torn.unlink()
    skip(lake, topology, 1)
    file_of(folder, 3)
    runtime.catch_up(topology)
    assert sorted(row["n"] for row in lake.state("held").scan().to_pylist()) == [1, 3]


@pytest.mark.slow
def test_a_line_of_too_many_columns_is_one_row_of_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    folder, lake, topology = tmp_path / "in", Lake(tmp_path / "lake"), TridentTopology("kept")
    folder.mkdir()
    line = "a" + "," * 20_481
    (folder / "1.csv").write_text(f"k,n\na,1\n{line}\nb,2\n")
    topology.new_stream("rows", CsvFiles(folder, "k string, n bigint"), slice_by="k").partition_persist(
        DeltaState("held")
    )
    runtime = Runtime(spark, lake, max_attempts=1)
    for run in (lambda: runtime.catch_up(topology), lambda: runtime.backfill(topology, ["a", "b"])):
        run()
        assert sorted(row["n"] for row in lake.state("held").scan().to_pylist()) == [1, 2]
        assert [row["row"] for row in lake.quarantine("kept").scan().to_pylist()] == [line]


def test_a_limit_of_columns_that_is_given_stays(tmp_path: Path) -> None:
    given = {name.lower(): value for name, value in CsvFiles(tmp_path, "k string", MAXCOLUMNS=9).options.items()}
    assert given["maxcolumns"] == 9


def odd_file(folder: Path, of: str) -> Path:
    """Put a Parquet file there in which Spark, or Python, cannot make a table of the columns."""
    file, one = folder / "odd.parquet", pa.array([7], pa.int64())
    tables = {
        "a name that is not UTF-8": pa.table({"n": one, "qqqq": one}),
        "nanoseconds": pa.table({"at": pa.array([1], pa.timestamp("ns"))}),
        "two of a name": pa.table({"x": one, "X": one}),
        "a time of day": pa.table({"at": pa.array([1], pa.time64("us"))}),
    }
    pq.write_table(tables[of], file)
    file.write_bytes(file.read_bytes().replace(b"qqqq", b"q\xe9\xffq"))
    return file


def test_a_name_of_a_column_that_is_not_utf8(tmp_path: Path) -> None:
    file, good = odd_file(tmp_path, "a name that is not UTF-8"), file_of(tmp_path, 1)
    source = ParquetFiles(tmp_path, "n bigint")
    assert source.layouts([str(good), str(file)]) == {None: [str(good)], _NO_TEXT: [str(file)]}
    with pytest.raises(SourceSchemaError, match=r"not a Parquet file .*utf-8"):
        source.check_file("s", file)


@pytest.mark.slow
def test_a_file_of_whose_columns_there_is_no_table_is_one_row_of_quarantine(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In a stream and in a backfill; what lies beside it is read."""
    lake, topology = Lake(tmp_path / "lake"), TridentTopology("kept")
    for folder in (odd := [tmp_path / str(number) for number in range(4)]):
        file_of(folder, 1)
    kinds = ("a name that is not UTF-8", "nanoseconds", "two of a name", "a time of day")
    for number, folder in enumerate(odd):
        stream = topology.new_stream(f"rows{number}", ParquetFiles(folder, "n bigint"), slice_by="n")
        stream.partition_persist(DeltaState(f"held{number}"))
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(topology)
    for folder, of in zip(odd, kinds, strict=True):
        odd_file(folder, of)
        file_of(folder, 2)
    for run in (lambda: runtime.catch_up(topology), lambda: runtime.backfill(topology, ["1", "2"])):
        run()
        for number in range(4):
            assert sorted(row["n"] for row in lake.state(f"held{number}").scan().to_pylist()) == [1, 2]
        found = lake.quarantine("kept").scan().to_pylist()
        assert sorted((row["stream"], row["rule"]) for row in found) == [(f"rows{n}", "not_read") for n in range(4)]


@pytest.mark.slow
def test_nanoseconds_beside_int96_and_many_odd_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow has one type for both. Odd files of one layout are looked at once."""
    lake, topology, folder = Lake(tmp_path / "lake"), TridentTopology("kept"), tmp_path / "in"
    file_of(folder, 1)
    stream = topology.new_stream("rows", ParquetFiles(folder, "n bigint"), slice_by="n")
    stream.partition_persist(DeltaState("held"))
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(topology)
    at = pa.table({"at": pa.array([1_000_000], pa.timestamp("ns"))})
    pq.write_table(at, folder / "a.parquet", use_deprecated_int96_timestamps=True)
    for number in range(5):
        pq.write_table(at, folder / f"b{number}.parquet")
    tried: list[int] = []
    as_json = ParquetFiles._as_json

    def counted(self: ParquetFiles, spark: SparkSession, layout: Any, files: list[str]) -> Any:
        tried.append(len(files))
        return as_json(self, spark, layout, files)

    monkeypatch.setattr(ParquetFiles, "_as_json", counted)
    for run in (lambda: runtime.catch_up(topology), lambda: runtime.backfill(topology, ["1"])):
        run()
        assert sorted(tried[-2:]) == [1, 5]
        found = lake.quarantine("kept").scan().to_pylist()
        assert sorted(row["rule"] for row in found) == [*["not_read"] * 5, "other_fields"]


def test_a_column_cannot_say_which_file_it_is_of(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"_metadata": [{"file_path": "another"}]}), tmp_path / "a.parquet")
    (row,) = ParquetFiles(tmp_path, "n bigint").bounded(spark)[0].collect()
    assert row["_file"].endswith("/a.parquet")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ("x=", "`x=`"),
        pytest.param("=x", "`=x`", marks=pytest.mark.exhaustive),
        pytest.param("x=1", "list #1: x.*in/x=1", marks=pytest.mark.exhaustive),
        ("n=abc", "`n=abc`|list #1: n"),
        pytest.param("plain", "directory structures detected", marks=pytest.mark.exhaustive),
    ],
)
def test_a_folder_that_gives_no_columns_is_named(spark: SparkSession, tmp_path: Path, odd: str, said: str) -> None:
    """At a start, in a backfill, and where it comes in a running stream, which goes on once the folder has another name."""
    folder, lake, topology = tmp_path / "in", Lake(tmp_path / "lake"), TridentTopology("kept")

    def put(name: str, key: str) -> None:
        (folder / name).mkdir(parents=True)
        (folder / name / "a.json").write_text(f'{{"k":"{key}","n":1}}\n')

    class Joined(JsonFiles):
        """A folder into which another one comes behind the start of its stream."""

        comes: Callable[[], None] | None = None

        def stream(self, spark: SparkSession) -> DataFrame:
            frame = super().stream(spark)
            if self.comes:
                self.comes()
            return frame

    source = Joined(folder, "k string, n bigint, day string")
    topology.new_stream("rows", source, slice_by="day").partition_persist(DeltaState("held"))
    runtime = Runtime(spark, lake, max_attempts=1)
    put("day=d1", "a")
    runtime.catch_up(topology)

    def comes() -> None:
        # Of other folders beside it Spark sees no more than that they differ.
        for name in ("day=d2", odd) if odd == "x=1" else (odd,):
            put(name, name)

    Joined.comes = staticmethod(comes)
    with pytest.raises(SourceError, match=said):
        runtime.catch_up(topology)
    Joined.comes = None
    for run in (lambda: runtime.catch_up(topology), lambda: runtime.backfill(topology, ["d1"])):
        with pytest.raises(SourceError, match=said):
            run()
    (folder / odd).rename(folder / "day=d3")
    runtime.catch_up(topology)
    expected = {"a", odd} | ({"day=d2"} if odd == "x=1" else set())
    assert {row["k"] for row in lake.state("held").scan().to_pylist()} == expected
