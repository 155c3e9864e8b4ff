"""What the failure of a batch comes from is told by types: no text of a record's changes what becomes of its batch."""

from __future__ import annotations

import errno
import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.causes import PYTHON_WORKER, causes, lost_task
from pipelines.errors import DiskFullError, PoisonBatchError, UnknownStateError
from pipelines.execution.protocol.failures import (
    disk_full,
    is_of_rows,
    lake_fault,
    missing_module,
    reason_of,
    store_fault,
)
from pipelines.execution.runners.stream import _interval
from pipelines.places.store import StoreError
from pipelines.planner.values import Where
from pipelines.sources import DeltaTableSource, JsonFiles, Kafka
from pipelines.trident import DeltaState, TridentTopology

DISK = "No space left on device"
MODULE = "ModuleNotFoundError: No module named 'json5'"
REFUSED = "The operation lacked the necessary privileges to complete for path t/0.json"
OFFSETS = "org.apache.kafka.clients.consumer.OffsetOutOfRangeException: offsets {t-0=5}"
HOSTILE = (
    DISK,
    f"IOException: {DISK}",
    f"x: {DISK} (os error 28)",
    MODULE,
    f"x\n{MODULE}",
    f"x\n\nTraceback (most recent call last):\n{MODULE}",
    "x\npipelines.planner.failures.LackingModuleError: json5: y",
    OFFSETS,
    f"x\nCaused by: {OFFSETS}",
    "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] gone",
    "x\nCaused by: java.io.FileNotFoundException: File /lake/t/1.parquet does not exist",
    REFUSED,
    "Kernel error -> Generic S3 error",
    "Call From a to b:8020 failed",
    "x\nCaused by: software.amazon.awssdk.services.s3.model.S3Exception: 403",
)
KAFKA = "org.apache.kafka.clients.consumer.OffsetOutOfRangeException"


class Thrown:
    """A Java exception as py4j shows it."""

    def __init__(self, kind: str, text: str | None, cause: Thrown | None = None) -> None:
        self._kind, self._text, self._cause = kind, text, cause

    def getClass(self) -> Thrown:  # noqa: N802
        return self

    def getName(self) -> str:  # noqa: N802
        return self._kind

    def getMessage(self) -> str | None:  # noqa: N802
        return self._text

    def getCause(self) -> Thrown | None:  # noqa: N802
        return self._cause


class OfSparkError(Exception):
    """An error of Spark's, whose own text holds those of all its causes."""

    def __init__(self, *chain: tuple[str, str | None], said: str = "") -> None:
        self._origin: Thrown | None = None
        for kind, text in reversed(chain):
            self._origin = Thrown(kind, text, self._origin)
        super().__init__(said or "\nCaused by: ".join(f"{kind}: {text}" for kind, text in chain))


class OfCallError(Py4JJavaError):
    """An error of Spark's for which PySpark has no name."""

    def __init__(self, *chain: tuple[str, str | None]) -> None:
        Py4JError.__init__(self, "An error occurred while calling o1.collectAsArrowToPython")
        self.java_exception = OfSparkError(*chain)._origin

    __str__ = Exception.__str__


def in_worker(error: BaseException, *, simplified: bool = True) -> OfSparkError:
    """Return an exception of a Python worker's as Spark tells it."""
    try:
        raise error
    except BaseException as raised:
        kept = traceback.format_exception(type(raised), raised, raised.__traceback__, chain=not simplified)
    text = f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: {''.join(kept)} SQLSTATE: 38000"
    return OfSparkError(("org.apache.spark.SparkException", f"Job aborted: {text}"), (PYTHON_WORKER, text))


def of_function(row: tuple[Any, ...], error: Exception) -> RuntimeError:
    """Return what a worker raises for an error of a user's function."""
    try:
        raise Where("each f -> s", "flows.py:7").failed(row, error) from error
    except RuntimeError as raised:
        return raised


def seen_outside(error: BaseException, folder: Path) -> list[object]:
    """Return what the failure would be taken for, beside a fault of its batch."""
    sources = (Kafka("h:1", "t", "v string"), DeltaTableSource("/lake/t", "v string"))
    known = [lake_fault(error, str(folder), "x"), missing_module(error, "f"), *(s.fault("s", error) for s in sources)]
    return [fault for fault in known if fault]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("simplified", [True, False])
def test_a_text_of_a_record_changes_nothing(tmp_path: Path, text: str, simplified: bool) -> None:
    errors = (
        in_worker(of_function((text,), ValueError(f"not a number: {text}")), simplified=simplified),
        in_worker(of_function((text,), ModuleNotFoundError(text)), simplified=simplified),
        in_worker(ValueError(text), simplified=simplified),  # of a function of the user's own for Spark
        OfSparkError(("org.apache.spark.SparkNumberFormatException", f"The value '{text}' cannot be cast")),
        OfSparkError(("org.apache.spark.SparkRuntimeException", text)),  # raise_error(...) in SQL
        OfSparkError(("com.fasterxml.jackson.core.JsonParseException", text)),
        DeltaError(f"Cast error: Cannot cast string '{text}' to value of Int64 type"),
        ValueError(text),
    )
    assert [seen_outside(error, tmp_path) for error in errors] == [[]] * len(errors)


def test_a_full_disk_is_known_by_its_type(tmp_path: Path) -> None:
    full = "Failed to parse parquet: External: Generic LocalFileSystem error: Unable to copy data to file: "
    for error in (
        OSError(errno.ENOSPC, "what the system says"),
        DeltaError(f"{full}{DISK} (os error 28)"),
        OSError(f"Generic LocalFileSystem error: {DISK} (os error 28)"),
        OfSparkError(
            ("org.apache.spark.SparkException", "[TASK_WRITE_FAILED] Task failed while writing rows"),
            ("org.apache.hadoop.fs.FSError", f"java.io.IOException: {DISK}"),
            ("java.io.IOException", DISK),
        ),
        OfSparkError(("java.io.FileNotFoundException", f"/tmp/spark/x ({DISK})")),
        OfSparkError(("java.nio.file.FileSystemException", f"/tmp/x: {DISK}")),
        OfSparkError(("org.rocksdb.RocksDBException", f"While appending to file: /tmp/1.log: {DISK}")),
    ):
        assert isinstance(disk_full(error, str(tmp_path), "it was written"), DiskFullError), error
        behind = RuntimeError("the batch failed")
        behind.__cause__ = error
        assert disk_full(behind, str(tmp_path), "it was written")


def test_a_store_that_fails_is_known_by_its_type() -> None:
    file = "Failed to fetch metadata for file t/part-0.parquet"
    failed = "Generic S3 error: Error performing PUT http://h/b/t in 2ms - Server returned non-2xx status code: 503"
    for error in (
        StoreError("s3://b/x", "the store refuses these credentials", hint="y"),
        OSError(f"Kernel error -> {REFUSED}\n   ↳ Error performing GET"),
        OSError("Generic S3 error\n   ↳ Error performing list request"),
        OSError("The operation lacked valid authentication credentials for path t"),
        DeltaError(f"Failed to parse parquet: External: {failed}"),
        DeltaError(f"Generic DeltaTable error: Parquet error: Parquet error: {file}: Object Store error: {REFUSED}"),
        DeltaError("Generic DeltaTable error: Error interacting with object store: Generic HdfsObjectStore error: x"),
        Exception(f"External error: Parquet error: Parquet error: {file}: Object Store error: {failed}"),
        OfSparkError(
            ("java.nio.file.AccessDeniedException", "s3a://b/x"),
            ("software.amazon.awssdk.services.s3.model.S3Exception", "The provided token has expired."),
        ),
        OfSparkError(("org.apache.hadoop.fs.s3a.AWSClientIOException", None)),
        OfSparkError(("java.net.ConnectException", "Call From a/1.2.3.4 to b:8020 failed on connection exception")),
        OfSparkError(("org.apache.hadoop.security.AccessControlException", "Permission denied: user=x")),
    ):
        behind = RuntimeError("the batch failed")
        behind.__cause__ = error
        for seen in (error, behind):
            assert isinstance(store_fault(seen, "s3a://b/lake", "it was written"), StoreError), error


def test_a_file_of_a_store_that_is_gone_is_the_batch_s_own() -> None:
    for error in (
        OfSparkError(
            ("java.io.FileNotFoundException", "s3a://b/x"),
            ("software.amazon.awssdk.services.s3.model.NoSuchKeyException", "404"),
        ),
        OfSparkError(
            ("org.apache.hadoop.fs.s3a.RemoteFileChangedException", "s3a://b/x"),
            ("software.amazon.awssdk.services.s3.model.S3Exception", "At least one of the pre-conditions did not hold"),
        ),
        OfSparkError(("java.net.ConnectException", "Connection refused")),  # of a function of the user's own
        OSError("Kernel error -> Generic LocalFileSystem error"),
    ):
        assert lake_fault(error, "s3a://b/lake", "it was written") is None, error


def test_what_another_jvm_alone_knows_is_known_by_spark_s_words_about_the_task(tmp_path: Path) -> None:
    said = (
        "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: "
        "Lost task 0.3 in stage 3.0 (TID 9) (10.0.0.7 executor 1): "
    )
    full = OfSparkError(("org.apache.spark.SparkException", f"{said}java.io.IOException: {DISK}\n\tat java.base/x"))
    assert disk_full(full, str(tmp_path), "x")
    hostile = f"{said}{PYTHON_WORKER}: Traceback\n{said}java.io.IOException: {DISK}"
    assert not seen_outside(OfSparkError(("org.apache.spark.SparkException", hostile)), tmp_path)
    assert lost_task(f"x {said}java.io.IOException: {DISK}") is None


def test_rows_that_spark_cannot_work_out_are_known_by_what_ended_their_task() -> None:
    said = "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: "
    said += "Lost task 0.0 in stage 3.0 (TID 9) (host executor driver): "
    spark, waited = (
        "org.apache.spark.SparkException",
        ("org.apache.spark.SparkException", "Exception thrown in awaitResult: "),
    )
    unread = (spark, "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/a.  SQLSTATE: KD001")
    for chain in (
        (waited, unread, ("java.lang.RuntimeException", "file:/a is not a Parquet file")),
        (waited, (spark, f"{said}java.lang.ArithmeticException: long overflow\n\tat java.base/x")),
    ):
        assert is_of_rows(OfCallError(*chain)), chain
    for other in (
        (waited, (spark, "[SPARK_JOB_CANCELLED] Job 5 cancelled because SparkContext was shut down SQLSTATE: XXKDA")),
        (waited, (spark, f"{said}ExecutorLostFailure (executor 1 exited caused by one of the running tasks)")),
        (waited, (spark, f"{said}java.lang.OutOfMemoryError: Java heap space")),
        (waited, unread, ("java.lang.OutOfMemoryError", "Java heap space")),
        (
            waited,
            (spark, "Job aborted due to stage failure: Total size of serialized results of 9 tasks is bigger than x"),
        ),
        (("java.lang.IllegalStateException", f"Cannot call methods on a stopped SparkContext. {unread[1]}"),),
    ):
        assert not is_of_rows(OfCallError(*other)), other
    assert not is_of_rows(Py4JNetworkError("Answer from Java side is empty"))


_JOB = "org.apache.spark.SparkException"
_WAITED = (_JOB, "Exception thrown in awaitResult: ")
_LOST = (
    "Job aborted due to stage failure: Task 0 in stage 6.0 failed 1 times, most recent failure: "
    "Lost task 0.0 in stage 6.0 (TID 6) (10.0.0.7 executor driver): "
)


def of_file(*chain: tuple[str, str | None], hint: str = "NO_HINT") -> OfCallError:
    """Return how PySpark 4.2 tells of a file that Spark cannot read."""
    said = f"[FAILED_READ_FILE.{hint}] Encountered error while reading file file:///in/1.gz.  SQLSTATE: KD001"
    return OfCallError(_WAITED, (_JOB, said), *chain)


def of_task(kind: str, text: str | None, *chain: tuple[str, str | None]) -> OfCallError:
    """Return how PySpark 4.2 tells of a task that failed by what it has no name for."""
    said = f"{_LOST}{kind}{'' if text is None else f': {text}'}\n\tat org.apache.spark.x(Y.scala:1)"
    return OfCallError(_WAITED, (_JOB, said), (kind, text), *chain)


def test_a_file_that_is_torn_or_gone_is_of_the_rows() -> None:
    """As Spark has said it of such files."""
    thrift = "shaded.parquet.org.apache.thrift.protocol.TProtocolException"
    for error in (
        of_file(("java.lang.RuntimeException", "file:/in/1 is not a Parquet file (length is too low: 10)")),
        of_file(("java.io.IOException", "can not read class x.PageHeader: don't know what type: 15"), (thrift, "x")),
        of_file(("java.io.IOException", "could not decode the dictionary for [n]"), ("java.io.IOException", "x")),
        of_file(("java.io.IOException", "gzip stream CRC failure")),
        of_file(("java.io.EOFException", "Unexpected end of input stream")),
        of_file(("com.github.luben.zstd.ZstdIOException", "Unknown frame descriptor")),
        of_file(("org.apache.hadoop.fs.ChecksumException", "Checksum error: file:/in/1 at 0 exp: 1 got: 2")),
        of_file(("java.io.FileNotFoundException", "File file:/in/1 does not exist"), hint="FILE_NOT_EXIST"),
        of_file(("java.io.FileNotFoundException", "/in/1 (No such file or directory)"), hint="FILE_NOT_EXIST"),
        of_file(("java.io.FileNotFoundException", "/in/1 (Is a directory)"), hint="FILE_NOT_EXIST"),
        of_file(
            ("java.io.FileNotFoundException", "File does not exist: /in/1"),  # of HDFS
            ("org.apache.hadoop.ipc.RemoteException", "File does not exist: /in/1"),
            hint="FILE_NOT_EXIST",
        ),
        of_file(
            ("java.io.FileNotFoundException", "No such file or directory: s3a://b/1"),
            ("software.amazon.awssdk.services.s3.model.NoSuchKeyException", "404"),
            hint="FILE_NOT_EXIST",
        ),
        of_task("java.lang.ArithmeticException", "long overflow"),
        of_task(
            "org.apache.kafka.common.KafkaException",
            "Received exception when fetching the next record from t-0. If needed",
        ),
        of_task(
            "org.apache.kafka.common.KafkaException",
            "Encountered corrupt message when fetching offset 3 for topic-partition t-0",
        ),
        of_task("org.apache.kafka.common.KafkaException", "Record for partition t-0 at offset 3 is invalid, cause: x"),
        of_task("org.apache.kafka.common.InvalidRecordException", "Record size is less than 0"),
        of_task("org.apache.kafka.common.errors.CorruptRecordException", "Record is corrupt"),
    ):
        assert is_of_rows(error), causes(error)


def test_what_the_system_a_mount_or_a_worker_fails_with_is_not_of_the_rows() -> None:
    """Nobody but the source has the rows of a skipped batch then; with the cause mended quarantine gets them."""
    crashed = "Python worker exited unexpectedly (crashed). Consider setting 'x' configuration to 'true'"
    none = "error=2, No such file or directory"
    for error in (
        of_task(_JOB, crashed, ("java.io.EOFException", None)),
        of_task("java.io.IOException", f'Cannot run program "/no/python": {none}', ("java.io.IOException", none)),
        of_task("java.io.IOException", "Too many open files"),
        of_task("org.apache.kafka.common.KafkaException", "Failed to construct kafka consumer"),
        of_task(
            "org.apache.kafka.common.KafkaException",
            "Received exception when fetching the next record from t-0. If needed",
            ("org.apache.kafka.common.KafkaException", None),
            ("java.lang.UnsatisfiedLinkError", "/tmp/snappy-1.1.10-libsnappyjava.so: failed to map segment"),
        ),
        of_task("java.lang.StackOverflowError", None),
        of_task("java.lang.IllegalStateException", "Cannot call methods on a stopped SparkContext."),
        of_task("java.nio.file.AccessDeniedException", "/tmp/blockmgr-1/0c"),
        of_file(("java.io.FileNotFoundException", "/in/1 (Too many open files)"), hint="FILE_NOT_EXIST"),
        of_file(("java.io.FileNotFoundException", "/in/1 (Permission denied)"), hint="FILE_NOT_EXIST"),
        of_file(("java.io.FileNotFoundException", "/in/1 (Stale file handle)"), hint="FILE_NOT_EXIST"),
        of_file(("java.nio.file.FileSystemException", "/in/1: Too many open files")),
        of_file(("java.nio.file.FileSystemException", "/in/1: Stale file handle")),
        of_file(("java.nio.file.AccessDeniedException", "/in/1")),
        of_file(("java.io.IOException", "Input/output error")),
        of_file(
            ("org.apache.hadoop.fs.FSError", "java.io.IOException: Input/output error"),
            ("java.io.IOException", "Input/output error"),
        ),
        of_file(("java.io.IOException", "x"), ("java.io.IOException", "Transport endpoint is not connected")),
        of_file(("java.net.SocketException", "Connection reset")),
        of_file(("java.nio.channels.ClosedByInterruptException", None)),
        of_file(),  # of a class that this JVM lacks
    ):
        assert not is_of_rows(error), causes(error)


def test_a_missing_module_is_known_by_its_type() -> None:
    lacking = ModuleNotFoundError("No module named 'json5'", name="json5")
    of_a_function = of_function(("a",), lacking)
    for error in (
        in_worker(lacking),
        in_worker(of_a_function),
        in_worker(of_a_function, simplified=False),
        in_worker(ModuleNotFoundError("No module named 'json5'; 'x' is not a package", name="json5")),
    ):
        known = missing_module(error, "f")
        assert known is not None
        assert known.module == "json5"
    assert reason_of(in_worker(of_a_function)).startswith("json5: each f -> s (defined at flows.py:7) failed on ('a',)")


def test_a_function_that_goes_on_without_a_module_fails_by_its_own_error(tmp_path: Path) -> None:
    error = ValueError("not a number: a")
    error.__context__ = ModuleNotFoundError("No module named 'json5'", name="json5")
    for simplified in (True, False):
        assert not seen_outside(in_worker(error, simplified=simplified), tmp_path)
        assert not seen_outside(in_worker(of_function(("a",), error), simplified=simplified), tmp_path)


def test_what_the_broker_lost_is_known_by_its_type() -> None:
    source, sparks = Kafka("h:1", "t", "v string"), "org.apache.spark.sql.kafka010.KafkaIllegalStateException"
    lost = source.fault("s", OfSparkError(("org.apache.spark.SparkException", "x"), (KAFKA, "offsets {t-0=5}")))
    assert lost is not None
    assert lost.lost == "offsets {t-0=5}"
    told = "[KAFKA_DATA_LOSS.START_OFFSET_RESET] t-0's offset changed. Some data may have been lost because ..."
    lost = source.fault("s", OfSparkError((sparks, told)))
    assert lost is not None
    assert lost.lost == "t-0's offset changed."


def test_a_reason_is_no_whole_record() -> None:
    for text in ("x" * 10**6, f"Traceback\nRuntimeError: {'x' * 10**6}\n"):
        assert reason_of(ValueError(text)) == "x" * 2000 + "..."


def test_a_reason_is_what_java_says_and_not_which_call_failed() -> None:
    said = "An error occurred while calling o2016.getResult."
    chain = (
        ("org.apache.spark.SparkException", "Exception thrown in awaitResult: "),
        ("x.Reads", "a \x1b[31mcolumn\nat y SQLSTATE: 1"),
    )
    error = OfSparkError(*chain, said=said)
    assert reason_of(error) == reason_of(OfSparkError(*chain, ("x.Silent", None), said=said)) == r"a \x1b[31mcolumn"
    assert reason_of(OfSparkError(("x.Long", "x" * 10**6), said=f"{said}\n: x")) == "x" * 2000 + "..."
    assert reason_of(OfSparkError(("x.Silent", None), said=said)) == said


def test_the_causes_of_an_error_without_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert {cause.text for cause in causes(first)} == {"a", "b"}


@pytest.mark.slow
def test_a_batch_whose_records_talk_of_faults_is_poison(spark: SparkSession, tmp_path: Path) -> None:
    """Its rows are in quarantine behind its attempts, and it can be skipped."""
    (tmp_path / "in").mkdir()
    lake = Lake(tmp_path / "lake")

    def number(v: str) -> Iterator[int]:
        yield int(v)

    topology = TridentTopology("talk")
    stream = topology.new_stream("said", JsonFiles(tmp_path / "in", "v string", max_files_per_batch=1))
    stream.each(["v"], number, "n bigint").partition_persist(DeltaState("numbers"))
    for txid, text in enumerate((DISK, MODULE, OFFSETS)):
        (tmp_path / "in" / f"{txid}.json").write_text(f"{json.dumps({'v': text})}\n")
        with pytest.raises(PoisonBatchError) as caught:
            Runtime(spark, lake, max_attempts=2).catch_up(topology)
        assert (caught.value.txid, caught.value.attempts) == (txid, 2)
        Runtime(spark, lake).skip(topology, txid)
    (tmp_path / "in" / "9.json").write_text('{"v":"7"}\n')
    Runtime(spark, lake).catch_up(topology)
    assert lake.state("numbers").scan()["n"].to_pylist() == [7]
    kept = [json.loads(row)["v"] for row in lake.quarantine("talk").scan()["row"].to_pylist()]
    assert sorted(kept) == sorted((DISK, MODULE, OFFSETS))


@pytest.mark.slow
def test_a_batch_that_a_store_refuses_is_not_poison(spark: SparkSession, tmp_path: Path) -> None:
    """However often the flow is started meanwhile: no attempt is counted, and no row goes to quarantine."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"n":7}\n')
    lake, topology = Lake(tmp_path / "lake"), TridentTopology("refused")
    topology.new_stream("said", JsonFiles(tmp_path / "in", "n bigint")).partition_persist(DeltaState("numbers"))

    def refuse(moment: str, state: str, txid: int) -> None:
        if moment == "committing":
            raise OSError(REFUSED)

    for _ in range(3):
        with pytest.raises(StoreError, match="a store failed while batch 0 was written: The operation lacked"):
            Runtime(spark, lake, listeners=[refuse], max_attempts=2).catch_up(topology)
    Runtime(spark, lake).catch_up(topology)
    assert lake.state("numbers").scan()["n"].to_pylist() == [7]
    with pytest.raises(UnknownStateError):
        lake.quarantine("refused")


@pytest.mark.parametrize(("seconds", "interval"), [(5, "5000 milliseconds"), (0.1 + 0.2 + 0.3, "600 milliseconds")])
def test_spark_can_read_the_seconds_between_two_batches(seconds: float, interval: str) -> None:
    """It refused the seventeen digits that a sum may have: the query failed at every start."""
    assert _interval(seconds) == interval
