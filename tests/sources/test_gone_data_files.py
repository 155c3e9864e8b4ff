"""A data file of a Delta source that is gone before it was read: lost rows, and no fault of the rows that could be skipped."""

from __future__ import annotations

import pytest

from pipelines.errors import LostRowsError
from pipelines.sources import DeltaTableSource
from tests.execution.test_failures import OfCallError

SPARK, NOT_FOUND = "org.apache.spark.SparkException", "java.io.FileNotFoundException"
WAITED = (SPARK, "Exception thrown in awaitResult: ")
HINT = (
    "It is possible the underlying files have been updated.\nYou can explicitly invalidate the cache. SQLSTATE: KD001"
)


def unread(file: str) -> tuple[str, str]:
    said = f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file {file}. File does not exist. {HINT}"
    return SPARK, said


def fault(path: str, *chain: tuple[str, str]) -> LostRowsError | None:
    found = DeltaTableSource(path, "n bigint").fault("s", OfCallError(WAITED, *chain))
    assert found is None or isinstance(found, LostRowsError)
    return found


@pytest.mark.parametrize(
    ("path", "file", "said"),
    [
        ("/data/t", "file:///data/t/day=1/F.parquet", "File file:/data/t/day=1/F.parquet does not exist"),
        ("/a b/t", "file:///a%20b/t/F.parquet", "File file:/a b/t/F.parquet does not exist"),
        ("s3://bucket/t", "s3a://bucket/t/F.parquet", "No such file or directory: s3a://bucket/t/F.parquet"),
        (
            "s3://bucket/t",
            "s3a://bucket/t/F.parquet",
            "open s3a://bucket/t/F.parquet at 0 on s3a://bucket/t: NoSuchKey",
        ),
        ("hdfs://name:8020/t", "hdfs://name:8020/t/F.parquet", "File does not exist: /t/F.parquet"),
    ],
)
def test_a_data_file_that_is_gone(path: str, file: str, said: str) -> None:
    found = fault(path, unread(file), (NOT_FOUND, said))
    assert found
    assert found.lost.endswith("F.parquet is gone")
    # Where Spark says nothing around it; HDFS alone does not name itself.
    alone = fault(path, (NOT_FOUND, said))
    assert (alone is None) == path.startswith("hdfs")
    assert alone is None or alone.lost == found.lost


@pytest.mark.parametrize("path", ["/data/t", "/data/t/F", "/other", "s3://bucket/t", "hdfs://name:8020/data/t2"])
def test_a_file_of_another_table(path: str) -> None:
    file = "/data/t2/F.parquet"
    assert fault(path, unread(f"file://{file}"), (NOT_FOUND, f"File file:{file} does not exist")) is None


@pytest.mark.parametrize(
    "chain",
    [
        (("java.lang.RuntimeException", unread("file:///data/t/F.parquet")[1]),),
        ((SPARK, f"a record says {unread('file:///data/t/F.parquet')[1]}"),),
        (("java.io.IOException", "File file:/data/t/F.parquet does not exist"),),
    ],
)
def test_what_says_nothing_of_a_file(chain: tuple[tuple[str, str], ...]) -> None:
    assert fault("/data/t", *chain) is None
