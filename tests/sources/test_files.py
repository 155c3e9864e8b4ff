"""Sources of files: a stream and a bounded read see the same rows, each once, whatever the files are called."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from pipelines.errors import MissingPathError, SourceError
from pipelines.sources import CsvFiles, FileSource, FixedBatches, JsonFiles, ParquetFiles
from pipelines.sources.base import file_key
from pipelines.sources.folder import passed_over

SCHEMA = "k string, n bigint"
Rows = Sequence[tuple[str, int]]
ODD_NAMES = (
    "a b", "a+b", "a%20b", "100%", "é", "日本", "a#b", "a?b", "axb", "a[1]", "a1", "a*", "{a,b}", "a", "a&b=c", "a'b",
)  # fmt: skip


def put_json(file: Path, rows: Rows) -> None:
    file.write_text("".join(json.dumps({"k": k, "n": n}) + "\n" for k, n in rows), encoding="utf-8")


def put_csv(file: Path, rows: Rows) -> None:
    file.write_text("k,n\n" + "".join(f"{k},{n}\n" for k, n in rows), encoding="utf-8")


def put_parquet(file: Path, rows: Rows) -> None:
    pq.write_table(pa.table({"k": [k for k, _ in rows], "n": [n for _, n in rows]}), file)


FORMATS: Mapping[str, tuple[type[FileSource], Callable[[Path, Rows], None]]] = {
    "json": (JsonFiles, put_json),
    "csv": (CsvFiles, put_csv),
    "parquet": (ParquetFiles, put_parquet),
}


def lay_out(folder: Path, put: Callable[[Path, Rows], None], names: Sequence[str], first: int = 0) -> None:
    """File number i holds two rows of its own and is a second younger than the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names, start=first):
        file = folder / name
        put(file, [(f"r{number}", number), (f"s{number}", number)])
        os.utime(file, (1_000_000_000 + number, 1_000_000_000 + number))


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row)[:-1] for row in frame.collect())


class Streamed:
    """What a stream over a source delivered: the rows of each batch, and the files that its positions name."""

    def __init__(self, spark: SparkSession, source: FileSource, checkpoint: Path) -> None:
        self.spark, self.source, self.checkpoint = spark, source, checkpoint
        self.batches: list[list[tuple[Any, ...]]] = []
        self.files: list[frozenset[str]] = []

    def run(self) -> Streamed:
        def on_batch(frame: DataFrame, batch_id: int) -> None:
            files = self.source.positions(self.checkpoint, batch_id, batch_id)
            frame = self.source.of_batch(frame, files)
            assert {file_key(row["_file"]) for row in frame.select("_file").collect()} <= files
            self.batches.append(collected(frame))
            self.files.append(files)

        writer = self.source.stream(self.spark).writeStream.foreachBatch(on_batch)
        writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start().awaitTermination()
        return self

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(row for batch in self.batches for row in batch)


@pytest.mark.parametrize("kind", FORMATS)
def test_stream_and_bounded_read_see_the_same_rows(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    make, put = FORMATS[kind]
    lay_out(tmp_path / "in", put, [f"{n}.{kind}" for n in range(5)])
    source = make(tmp_path / "in", SCHEMA, max_files_per_batch=2)
    source.check("s", spark)
    streamed = Streamed(spark, source, tmp_path / "checkpoint").run()
    frame, positions = source.bounded(spark)
    assert [len(files) for files in streamed.files] == [2, 2, 1]
    assert streamed.rows == collected(frame)
    assert len(streamed.rows) == 10
    assert frozenset().union(*streamed.files) == {file_key(file) for file in positions}
    assert frame.columns == ["k", "n", "_corrupt", "_file"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.exhaustive), 3, 100])
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_file_counts_once_whatever_it_is_called(spark: SparkSession, tmp_path: Path, size: int, kind: str) -> None:
    """Spark takes names with ? * [ ] { } for patterns and reads the other files of the batch twice."""
    make, put = FORMATS[kind]
    lay_out(tmp_path / "in", put, [f"{name}.{kind}" for name in ODD_NAMES])
    source = make(tmp_path / "in", SCHEMA, max_files_per_batch=size)
    source.check("s", spark)
    streamed = Streamed(spark, source, tmp_path / "checkpoint").run()
    assert len(streamed.batches) == -(-len(ODD_NAMES) // size)
    frame, positions = source.bounded(spark)
    assert streamed.rows == collected(frame) == sorted(set(streamed.rows))
    assert len(streamed.rows) == 2 * len(ODD_NAMES)
    there = {str(file) for file in (tmp_path / "in").iterdir()}
    assert frozenset().union(*streamed.files) == {file_key(file) for file in positions} == there


@pytest.mark.parametrize("name", ["a b", "a%20b", "é+", "what?", "[x]{y}*"])
def test_a_folder_of_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    lay_out(tmp_path / name, put_json, ["a.json", "b.json"])
    source = JsonFiles(tmp_path / name, SCHEMA)
    source.check("s", spark)
    streamed = Streamed(spark, source, tmp_path / "checkpoint").run()
    frame, positions = source.bounded(spark)
    assert streamed.rows == collected(frame)
    assert len(streamed.rows) == 4
    assert streamed.files == [{file_key(file) for file in positions}]
    source.check_same("s", spark, tmp_path / "checkpoint", 0)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_positions_across_the_compaction_of_the_log(spark: SparkSession, tmp_path: Path) -> None:
    """Spark folds its list of files into one at every tenth batch."""
    lay_out(tmp_path / "in", put_json, [f"{n:02}.json" for n in range(23)])
    source, checkpoint = JsonFiles(tmp_path / "in", SCHEMA, max_files_per_batch=1), tmp_path / "checkpoint"
    streamed = Streamed(spark, source, checkpoint).run()
    assert sorted(p.name for p in (checkpoint / "sources" / "0").glob("*.compact")) == ["19.compact", "9.compact"]
    expected = [frozenset({str(tmp_path / "in" / f"{n:02}.json")}) for n in range(23)]
    assert streamed.files == expected
    assert [source.positions(checkpoint, n, n) for n in range(23)] == expected
    for first, last in ((0, 22), (0, 8), (0, 9), (0, 10), (9, 9), (10, 19), (19, 21), (5, 4), (0, -1)):
        assert source.positions(checkpoint, first, last) == frozenset().union(*expected[first : last + 1])


def test_a_listing_without_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """A process that dies between Spark's list of new files and its plan of the batch: the next takes two lists."""
    lay_out(tmp_path / "in", put_json, ["a.json", "b.json"])
    source, checkpoint = JsonFiles(tmp_path / "in", SCHEMA, max_files_per_batch=1), tmp_path / "checkpoint"
    Streamed(spark, source, checkpoint).run()
    for file in ("offsets/1", "offsets/.1.crc", "commits/1", "commits/.1.crc"):
        (checkpoint / file).unlink()
    lay_out(tmp_path / "in", put_json, ["c.json", "d.json"], first=2)
    again = Streamed(spark, source, checkpoint).run()
    assert [sorted(Path(file).name for file in files) for files in again.files] == [["b.json", "c.json"], ["d.json"]]
    assert len(source.positions(checkpoint, 0, 2)) == 4


def test_a_file_that_comes_late_with_an_old_time_counts(spark: SparkSession, tmp_path: Path) -> None:
    lay_out(tmp_path / "in", put_json, ["new.json"])
    source, checkpoint = JsonFiles(tmp_path / "in", SCHEMA), tmp_path / "checkpoint"
    Streamed(spark, source, checkpoint).run()
    lay_out(tmp_path / "in", put_json, ["old.json"], first=-86_400 * 90)
    assert len(Streamed(spark, source, checkpoint).run().rows) == 2


def test_a_file_from_a_clock_far_ahead_hides_none(spark: SparkSession, tmp_path: Path) -> None:
    lay_out(tmp_path / "in", put_json, ["ahead.json"], first=4_700_000_000)
    source, checkpoint = JsonFiles(tmp_path / "in", SCHEMA), tmp_path / "checkpoint"
    Streamed(spark, source, checkpoint).run()
    for name, first in (("now.json", 0), ("oldest.json", -1_000_000_000)):
        lay_out(tmp_path / "in", put_json, [name], first=first)
        assert len(Streamed(spark, source, checkpoint).run().rows) == 2, name


def test_bytes_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    lay_out(tmp_path / "in", put_json, [f"{n}.json" for n in range(4)])
    size = (tmp_path / "in" / "0.json").stat().st_size
    source = JsonFiles(tmp_path / "in", SCHEMA, max_bytes_per_batch=2 * size)
    assert [len(files) for files in Streamed(spark, source, tmp_path / "checkpoint").run().files] == [2, 2]


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_being_put_into_hdfs_is_passed_over(tmp_path: Path, form: str) -> None:
    """`hdfs dfs -put` writes it under this name, torn until it is whole."""
    kind, put = FORMATS[form]
    (tmp_path / f"a.{form}._COPYING_").write_bytes(b"P")
    (tmp_path / "day=1._COPYING_").mkdir()
    (tmp_path / "day=1._COPYING_" / f"a.{form}").write_bytes(b"P")
    put(tmp_path / f"b.{form}", [("b", 1)])
    source = kind(tmp_path, SCHEMA)
    source.check("s", None)  # type: ignore[arg-type]
    assert source._seen == ([tmp_path / f"b.{form}"], None)
    source.check_first("s")


def test_spark_passes_over_what_we_pass_over(spark: SparkSession, tmp_path: Path) -> None:
    names = [
        "a.json",
        "_a",
        ".a",
        "_metadata",
        "_common_metadata.json",
        "_a=1.json",
        ".a=1",
        "b._COPYING_",
        "_COPYING_",
    ]
    names += ["c._COPYING_.json", "d_", "_e=f._COPYING_"]
    lay_out(tmp_path / "in", put_json, names)
    source = JsonFiles(tmp_path / "in", SCHEMA)
    rows = Streamed(spark, source, tmp_path / "checkpoint").run().rows
    assert rows == collected(source.bounded(spark)[0])
    read = {names[row[1]] for row in rows}
    assert (
        read == {name for name in names if not passed_over(name)} == {"a.json", "_a=1.json", "c._COPYING_.json", "d_"}
    )
    source.check("s", spark)
    assert {file.name for file in source._seen[0]} == read


def test_files_that_begin_with_a_dot_or_an_underscore_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    lay_out(tmp_path / "in", put_json, ["a.json", ".b.json", "_c.json"])
    source = JsonFiles(tmp_path / "in", SCHEMA)
    assert Streamed(spark, source, tmp_path / "checkpoint").run().rows == collected(source.bounded(spark)[0])
    assert len(source.bounded(spark)[1]) == 1


def test_what_spark_does_not_read_is_not_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    """A folder that Spark writes into, with an archive beside the files."""
    lay_out(tmp_path / "in", put_json, ["m.json"])
    for folder in ("_temporary/0", ".hidden", "archive"):
        (tmp_path / "in" / folder).mkdir(parents=True)
        (tmp_path / "in" / folder / "a:1.json").write_text('{"other": 1}\n')
    source = JsonFiles(tmp_path / "in", SCHEMA)
    source.check("s", spark)
    source.check_first("s")
    assert Streamed(spark, source, tmp_path / "checkpoint").run().rows == collected(source.bounded(spark)[0])
    assert len(source.bounded(spark)[1]) == 1


def test_fixed_batches_are_files_too(spark: SparkSession, tmp_path: Path) -> None:
    source = FixedBatches(SCHEMA, [[("a", 1), ("b", None)], [], [{"k": "c"}]]).prepare("s", tmp_path / "spool")
    source.check("s", spark)
    streamed = Streamed(spark, source, tmp_path / "checkpoint").run()
    assert streamed.batches == [[("a", 1, None), ("b", None, None)], [], [("c", None, None)]]
    assert [len(files) for files in streamed.files] == [1, 1, 1]


def test_a_colon_in_a_name_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lay_out(tmp_path / "in", put_json, ["a.json", "2013-01-01T10:00.json"])
    source = JsonFiles(tmp_path / "in", SCHEMA)
    source.check("s", spark)
    with pytest.raises(SourceError, match="colon") as caught:
        source.check_first("s")
    assert caught.value.hint == "rename the file"


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Spark's listing leaves the file out."""
    lay_out(tmp_path / "in", put_json, ["a.json", os.fsdecode(b"\xff.json")])
    with pytest.raises(SourceError, match=r"not UTF-8: .*\\udcff\.json'") as caught:
        JsonFiles(tmp_path / "in", SCHEMA).check("s", None)  # type: ignore[arg-type]
    assert caught.value.hint == "rename the file"


def test_files_that_a_filter_leaves_out_are_not_looked_at(tmp_path: Path) -> None:
    lay_out(tmp_path, put_json, ["a.json", "b:c.json"])
    put_csv(tmp_path / "d.csv", [("d", 1)])

    def check(**glob: str) -> None:
        source = CsvFiles(tmp_path, SCHEMA, **glob)
        source.check("s", None)  # type: ignore[arg-type]
        source.check_first("s")

    for glob in ("*.csv", "[c-e].{txt,csv}", "{d,e}.{txt,c{s,}v}"):
        check(pathGlobFilter=glob)
    with pytest.raises(SourceError, match="colon"):
        check(pathglobfilter="*.{csv,json}")


def test_a_url_of_a_folder_is_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    lay_out(folder, put_json, ["a.json"])
    for url in (f"file://{tmp_path}/a%20b", f"file:{tmp_path}/c/../a%20b/"):
        source = JsonFiles(url, SCHEMA)
        source.check("s", None)  # type: ignore[arg-type]
        source.check_first("s")
        assert source.path == str(folder)


def test_no_folder(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(MissingPathError) as caught:
        JsonFiles(tmp_path / "in", SCHEMA).check("s", spark)
    assert (caught.value.source, caught.value.path) == ("s", str(tmp_path / "in"))


def test_a_colon_in_a_name_that_comes_later_is_one_refused_record(spark: SparkSession, tmp_path: Path) -> None:
    lay_out(tmp_path / "in", put_json, ["a.json", "x:y.json", "z.json"])
    source, checkpoint, rows = JsonFiles(tmp_path / "in", SCHEMA), tmp_path / "checkpoint", []

    def on_batch(frame: DataFrame, batch_id: int) -> None:
        rows.extend(source.of_batch(frame, source.positions(checkpoint, batch_id, batch_id)).collect())

    writer = source.stream(spark).writeStream.foreachBatch(on_batch).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(row["k"] for row in rows if row["_corrupt"] is None) == ["r0", "r2", "s0", "s2"]
    (refused,) = (row for row in rows if row["_corrupt"] is not None)
    assert "x:y.json: a colon in its name" in refused["_corrupt"]
    assert file_key(refused["_file"]) == str(tmp_path / "in" / "x:y.json")
