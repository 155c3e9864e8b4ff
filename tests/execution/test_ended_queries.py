"""Nothing is left in memory of a query that has ended, however it ended: a worker runs for months and starts many."""

from __future__ import annotations

import gc
import json
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import PoisonBatchError
from pipelines.execution.runners.spark_callback import SparkCallback
from pipelines.execution.runners.stream import StreamRunner
from pipelines.quality import fail
from pipelines.sources import JsonFiles
from pipelines.trident import DeltaState, TridentTopology

pytestmark = pytest.mark.slow


def left(spark: SparkSession) -> int:
    """The runners in memory, once both garbage collectors have done their part."""
    spark._jvm.System.gc()  # type: ignore[union-attr]
    gc.collect()
    return sum(isinstance(known, StreamRunner) for known in gc.get_objects())


def open_files(spark: SparkSession) -> int:
    """Open files and sockets of the JVM; it may open some of its own for good."""
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.parametrize("least", [0, 10], ids=["comes through", "fails"])
def test_no_runner_is_kept(spark: SparkSession, tmp_path: Path, least: int) -> None:
    topology = TridentTopology("rows")
    rows = topology.new_stream("in", JsonFiles(tmp_path / "in", "n bigint"))
    sound = rows.gate(fail("column_values_to_be_between", column="n", min_value=least), name="least")
    sound.partition_persist(DeltaState("kept"))
    (tmp_path / "in").mkdir()
    runners, threads, files = left(spark), threading.active_count(), open_files(spark)
    for number in range(4):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"n": number}) + "\n")
        runtime = Runtime(spark, Lake(tmp_path / "lake"), max_attempts=1)
        if least:
            with pytest.raises(PoisonBatchError):
                runtime.catch_up(topology)
        else:
            runtime.catch_up(topology)
        del runtime
    until = time.monotonic() + 60
    # Four queries that each kept one would be four more. Py4J keeps a thread per connection of the JVM's pool, which grows by
    # how many calls there once were at a time, so in a process that has just started it may still grow.
    while left(spark) > runners or threading.active_count() >= threads + 4 or open_files(spark) >= files + 3:
        seen = f"{left(spark)} runners are left, {threading.active_count()} threads, {open_files(spark)} files"
        assert time.monotonic() < until, f"{seen}; before there were {runners}, {threads} and {files}"
        time.sleep(0.2)


def test_a_batch_that_comes_behind_the_end_is_not_taken_for_done(spark: SparkSession) -> None:
    callback = SparkCallback(lambda frame, batch_id: None)
    callback.release()
    with pytest.raises(RuntimeError, match="the runner of this query has ended"):
        callback(spark.range(1), 0)
