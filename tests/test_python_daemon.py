"""The daemon that Spark forks its Python workers from: what it has imported, and that no thread is lost in a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipelines.spark.python_daemon import NEEDED, SINGLE_THREADED


@pytest.mark.slow
def test_its_imports_start_no_thread() -> None:
    code = "import importlib, os, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    code += "; print(*os.listdir('/proc/self/task'))"
    told = subprocess.run(
        [sys.executable, "-c", code, *NEEDED],
        env=os.environ | SINGLE_THREADED,
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(told.stdout.split()) == 1


def test_workers_are_forks_of_it_and_import_nothing(spark: SparkSession) -> None:
    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text("utf-8").replace("\0", " ")
        there = all(name in sys.modules for name in NEEDED)
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"parent": [parent] * batch.num_rows, "there": [there] * batch.num_rows})

    (row,) = spark.range(1).mapInArrow(seen, "parent string, there boolean").collect()
    assert "pipelines.spark.python_daemon" in row.parent
    assert row.there
