"""What surrounds a run fails: no Java, a full disk, a process that dies thrice. And what is printed then."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from pipelines import Lake, Runtime
from pipelines.errors import DiskFullError, PoisonBatchError, UnknownStateError
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.protocol.coordinator import AttemptRecord, BatchState
from pipelines.sources import FixedBatches, JsonFiles
from pipelines.trident import Count, DeltaState, TridentTopology

PROJECT = Path(__file__).resolve().parents[1]


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, with the project on its path."""
    path = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


# --- no Java --------------------------------------------------------------------------------------------------------


def test_no_java(tmp_path: Path) -> None:
    """JAVA_HOME and PATH hold none. A system folder of Javas is left out of the search, should this machine have one."""
    code = f"""
        import pipelines.spark.java as java
        from pathlib import Path
        from pipelines import spark_session
        from pipelines.errors import JavaError
        java.find_java.__defaults__ = (Path({str(tmp_path)!r}),)
        try:
            spark_session()
        except JavaError as error:
            print(error)
    """
    done = python(code, PATH=str(tmp_path), JAVA_HOME="")
    assert (done.returncode, done.stderr) == (0, "")
    fact, following = done.stdout.strip().splitlines()
    assert fact == "Spark needs Java 17 or 21, and found none in JAVA_HOME, PATH or /usr/lib/jvm"
    assert "apt-get install openjdk-17-jre-headless" in following


# --- what is printed ------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.slow
def test_no_stack_trace_before_our_message(tmp_path: Path) -> None:
    """Of a function that raises: in a stream, in a backfill, in a stream that is told to stop after one batch."""
    (tmp_path / "in").mkdir()
    for n in range(3):
        (tmp_path / "in" / f"{n}.json").write_text(f'{{"n":{n},"day":"d"}}\n')
        os.utime(tmp_path / "in" / f"{n}.json", (n, n))
    code = f"""
        from pipelines import Lake, Runtime, spark_session
        from pipelines.errors import TrideltaError
        from pipelines.sources import JsonFiles
        from pipelines.trident import Count, DeltaState, TridentTopology

        def odd(n):
            if n == 1:
                raise ValueError("no ones")
            yield n

        def topology(name):
            made = TridentTopology(name)
            source = JsonFiles({str(tmp_path / "in")!r}, "n bigint, day string", max_files_per_batch=1)
            stream = made.new_stream("rows", source, slice_by="day").each("n", odd, "m bigint")
            stream.group_by("m").persistent_aggregate(DeltaState(f"by_{{name}}"), [Count("rows")])
            return made

        runtime = Runtime(spark_session(), Lake({str(tmp_path / "lake")!r}), max_attempts=2)
        print("ran", len(runtime.catch_up(topology("a"), max_batches=1).batches))
        for run in (runtime.catch_up, lambda flow: runtime.backfill(flow, ["d"])):
            try:
                run(topology("b"))
            except TrideltaError as error:
                print("said", error)
    """
    done = python(code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("ran 1") == 1
    assert done.stdout.count("no ones") >= 2
    assert done.stdout.count("said ") == 2
    for noise in ("\tat ", "Traceback", "ERROR", "Exception"):
        assert noise not in done.stderr, done.stderr[:3000]


# --- a full disk ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tridelta-test", str(folder)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this test mounts a small file system, which is not permitted here: {error}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def hashes(source: FixedBatches | JsonFiles) -> TridentTopology:
    """Rows that no compression makes small."""
    topology = TridentTopology("hashes")
    stream = topology.new_stream("numbers", source)
    stream = stream.each("n", _hashed, "hash")
    stream.partition_persist(DeltaState("rows"))
    stream.aggregate([Count("rows")]).partition_persist(DeltaState("totals"))
    return topology


def _hashed(n: Column) -> Column:
    return F.concat(F.sha2(n.cast("string"), 512), F.sha2((n + 1_000_000).cast("string"), 512))


@pytest.mark.slow
def test_a_full_disk(spark: SparkSession, tmp_path: Path, small_disk: Path) -> None:
    """The run stops with one sentence, as often as it is started; with more room it completes, each row once."""
    per_file, files = 6_000, 12
    (tmp_path / "in").mkdir()
    for number in range(files):
        lines = (f'{{"n":{n}}}\n' for n in range(number * per_file, (number + 1) * per_file))
        (tmp_path / "in" / f"{number:02}.json").write_text("".join(lines))
    topology = hashes(JsonFiles(tmp_path / "in", "n bigint", max_files_per_batch=1))
    lake = Lake(small_disk / "lake")
    runtime = Runtime(spark, lake)
    for _ in range(4):
        with pytest.raises(DiskFullError) as caught:
            runtime.catch_up(topology)
        assert caught.value.path.startswith(str(small_disk))
        assert len(str(caught.value).splitlines()) == 2
        assert "make room" in caught.value.hint
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    runtime.catch_up(topology)
    assert sorted(lake.state("rows").scan()["n"].to_pylist()) == list(range(per_file * files))
    assert lake.state("totals").scan()["rows"].to_pylist() == [per_file] * files
    for name in ("rows", "totals"):
        assert [c.txid for c in lake.state(name).commits.batches()] == list(range(files))
    with pytest.raises(UnknownStateError):
        lake.quarantine("hashes")


# --- a process that dies in each attempt ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_process_that_died_in_every_attempt(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever ends the process three times over the same batch is poison; started again the batch may try again."""
    lake = Lake(tmp_path / "lake")
    topology = TridentTopology("deaths")
    stream = topology.new_stream("rows", FixedBatches("k string", [[("a",)], [("b",)]]))
    stream.group_by("k").persistent_aggregate(DeltaState("by_k"), [Count("rows")])
    runtime = Runtime(spark, lake)
    runtime.catch_up(topology, max_batches=1)
    checkpoint = Checkpoint("deaths", lake.checkpoint_path("deaths", "rows"))
    died = AttemptRecord(attempt=2, tries=3, state=BatchState.PROCESSING)
    checkpoint.attempts().put("rows/1", 1, died)
    with pytest.raises(PoisonBatchError, match="its process stopped") as caught:
        runtime.catch_up(topology)
    assert (caught.value.txid, caught.value.attempts) == (1, 3)
    assert [row["row"] for row in lake.quarantine("deaths").scan().to_pylist()] == ['{"k":"b"}']
    runtime.catch_up(topology)
    assert lake.state("by_k").scan().num_rows == 2
    assert lake.quarantine("deaths").scan().num_rows == 0
