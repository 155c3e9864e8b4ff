"""What a file holds that Spark ends its read for: its batch is poison, and once it is skipped the flow goes on behind it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import PoisonBatchError
from pipelines.execution.batch.poison import skip
from pipelines.sources import CsvFiles, ParquetFiles
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
