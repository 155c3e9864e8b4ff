"""The reason in an error of a batch, and the wait after it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

import tenacity

from pipelines.causes import PYTHON_WORKER, Cause, causes, lost_task, raised_in_worker, shortened
from pipelines.errors import DiskFullError, TrideltaError
from pipelines.places.store import StoreError

# The class of `pipelines.planner.values`, as a traceback names it: what user code could not import.
_LACKING = "pipelines.planner.values.LackingModuleError"
_NO_MODULE = re.compile(r"No module named '([\w.]+)'(?:; [^\n]*)?")
_LACKED = re.compile(r"([\w.]+): ")
_OF_WORKER = re.compile(rf"(?:RuntimeError|{re.escape(_LACKING)}): ")

# Classes that say of the operating system's error no more than that and a path; none has a text of a record's.
_JAVA_DISK = {
    "java.io.IOException",
    "java.io.FileNotFoundException",
    "java.nio.file.FileSystemException",
    "org.apache.hadoop.fs.FSError",
    "org.apache.hadoop.util.DiskChecker$DiskOutOfSpaceException",
    "org.apache.spark.memory.SparkOutOfMemoryError",
    "org.rocksdb.RocksDBException",
}
_JAVA_FULL = re.compile(r"(?:^|[:(] ?)No space left on device\)?\.?(?: SQLSTATE: \w+)?$")
# delta-rs has one class for most that fails in it, and quotes what a row says; the system's error it gives last, as it is.
_RUST_DISK = re.compile(r"(?:_internal|deltalake)\b.*|builtins\.OSError")
_RUST_FULL = re.compile(r"(?:^|: )No space left on device \(os error 28\)$")

_UNREAD_FILE = re.compile(r"\[FAILED_READ_FILE\b")
_LOST_RECORDS = re.compile(r"\[KAFKA_DATA_LOSS\b")
# What a value does to Spark's own code. Of a worker that is gone, a program that does not start, or files that cannot be opened
# there are other classes, and `SparkException` for all that Spark has no other for.
_JAVA_VALUE = re.compile(
    r"java\.lang\.(?:Arithmetic|NumberFormat|IllegalArgument|UnsupportedOperation|\w*IndexOutOfBounds|NegativeArraySize"
    r"|NullPointer|ClassCast)Exception|java\.time\.[\w.]+Exception|java\.util\.NoSuchElementException"
)
# A record that its broker cannot give as it was. Of the second class is much else, such as a consumer that does not start.
_DAMAGED_RECORD = re.compile(
    r"org\.apache\.kafka\.common\.(?:InvalidRecord|errors\.(?:CorruptRecord|RecordDeserialization))Exception:"
    r"|org\.apache\.kafka\.common\.KafkaException: "
    r"(?:Received exception when fetching the next record|Record (?:batch )?for partition|Encountered corrupt message)"
)
# With more memory, rights or files at once, with the mount, the network or a native library back, the same rows come through.
_JAVA_OUTSIDE = re.compile(
    r"java\.lang\.(?:OutOfMemory|StackOverflow|\w+Link|NoClassDefFound|ExceptionInInitializer)Error"
    r"|org\.xerial\.snappy\.SnappyError|org\.apache\.spark\.memory\.SparkOutOfMemoryError"
    r"|java\.lang\.InterruptedException|java\.io\.InterruptedIOException|java\.nio\.channels\.\w+"
    r"|java\.nio\.file\.(?:AccessDenied|FileSystem)Exception|org\.apache\.hadoop\.fs\.FSError"
    r"|java\.net\.\w*(?:Socket|Connect|Route|Host)\w*Exception|javax\.net\..+|org\.apache\.hadoop\.(?:net|security)\..+"
)
_JAVA_IO = re.compile(r"java\.io\.\w+")
# Of a file that is gone, or has become another thing: what the system says of all other faults is none of the file's.
_OF_FILE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
_SYSTEM_SAYS = re.compile(
    rf"(?:^|[:(] ?)(?:{'|'.join(re.escape(os.strerror(code)) for code in sorted({*errno.errorcode} - _OF_FILE))})\)?$"
)

# What the clients of stores raise.
_JAVA_STORE = re.compile(
    r"software\.amazon\.awssdk\..+|org\.apache\.hadoop\.fs\.s3a\..+"
    r"|org\.apache\.hadoop\.(?:security\.AccessControl|ipc\.(?:Standby|Retriable)|hdfs\.(?:\w+\.)*(?:SafeMode|BlockMissing))Exception"
)
# What they say of one file, with a store's answer behind it: it is gone, shorter, or another one by now.
_JAVA_FILE = re.compile(
    r"java\.io\.FileNotFoundException|software\.amazon\.awssdk\..*\.NoSuchKeyException"
    r"|org\.apache\.hadoop\.fs\.s3a\.(?:RemoteFileChanged|RangeNotSatisfiableEOF)Exception"
)
_JAVA_NET = re.compile(r"java\.net\.(?:Connect|NoRouteToHost|SocketTimeout)Exception")
_OF_HADOOP = re.compile(r"(?:Call From|No Route to Host from) ")
# delta-rs puts what a store says behind the names of its layers, and what a row says behind other words.
_RUST_QUERY = "builtins.Exception"  # of a query there is no other class
_RUST_STORE = re.compile(
    r"(?:(?:External|Parquet|Object Store|Kernel|Arrow|Generic|Generic DeltaTable) error(?:: | -> )|External: "
    r"|Error interacting with object store: |Failed to parse parquet: |Failed to fetch metadata for file \S+: )*"
    r"(?:Generic (?:S3|Hdfs\w*|HDFS) error\b|The operation lacked (?:the necessary privileges|valid authentication) )"
)
_OURS = f"{StoreError.__module__}.{StoreError.__qualname__}"

# Attempts wait 0.5, 1, 2 ... seconds, at most 30: long enough for a passing fault, short beside a batch's trigger.
_BACK_OFF = tenacity.wait_exponential(multiplier=0.5, max=30)


def back_off(tries: int) -> float:
    """Return seconds to wait behind so many tries."""
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.attempt_number = tries
    return _BACK_OFF(state)


def reason_of(error: BaseException) -> str:
    """Return one line of an error: for Python errors in a worker the user's own, for Spark's the first line.

    For one of which py4j says only which call failed, it is the first line of what that comes from.
    """
    text = str(error) or repr(error)
    for line in text.splitlines():
        of_worker = _OF_WORKER.match(line)
        if of_worker:
            return shortened(line[of_worker.end() :].strip())
    if text.startswith("An error occurred while calling "):
        text = next((cause.text for cause in reversed(causes(error)) if cause.text.strip()), text)
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", shortened(text.strip().splitlines()[0]))


def is_of_rows(error: BaseException) -> bool:
    """Return whether Spark cannot work out some rows, as an error says that is not the lake's: the same rows fail again.

    PySpark has no name for much of what a task fails with, such as a file that is torn. So it has none for a JVM that is gone,
    a job that was cancelled, an executor or a worker that died, a result that is too large, or a mount that fails, which say
    nothing of the rows.
    """
    from py4j.protocol import Py4JJavaError

    # By name, for the protocol runs without Spark.
    if isinstance(error, LookupError) or any(kind.__name__ == "PySparkException" for kind in type(error).__mro__):
        return True
    chain = causes(error) if isinstance(error, Py4JJavaError) else []
    if any(_is_of_system(cause) for cause in chain):
        return False
    return any(_is_unread(cause, chain[at + 1 :]) or _failed_by_value(cause) for at, cause in enumerate(chain))


def comes_of_rows(error: BaseException) -> bool:
    """Return whether an error is of rows (`is_of_rows`), and neither of a disk, a store nor a module that a worker lacks."""
    return is_of_rows(error) and lake_fault(error, "", "") is None and missing_module(error, "") is None


def _is_of_system(cause: Cause) -> bool:
    if _JAVA_OUTSIDE.fullmatch(cause.type):
        return True
    return _JAVA_IO.fullmatch(cause.type) is not None and _SYSTEM_SAYS.search(cause.text) is not None


def _is_unread(cause: Cause, behind: Sequence[Cause]) -> bool:
    """Return whether a file or records cannot be read; of a file, what is behind says why, if this JVM has the class."""
    if not cause.type.startswith("org.apache.spark."):
        return False
    return (bool(behind) and _UNREAD_FILE.match(cause.text) is not None) or _LOST_RECORDS.match(cause.text) is not None


def _failed_by_value(cause: Cause) -> bool:
    """Return whether a value has ended a task, or a record that is damaged."""
    task = lost_task(cause.text) if cause.type == "org.apache.spark.SparkException" else None
    if task is None:
        return False
    return (
        _JAVA_VALUE.fullmatch(task.type) is not None or _DAMAGED_RECORD.match(f"{task.type}: {task.text}") is not None
    )


class MissingModuleError(TrideltaError):
    """A Python worker lacks a module that a function needs: no row is at fault, and none goes to quarantine."""

    def __init__(self, flow: str, module: str) -> None:
        self.flow, self.module = flow, module
        super().__init__(
            f'flow "{flow}": a Python worker of Spark has no module {module}; the batch was not committed',
            hint="install it where Spark's executors run; a module of flows is sent to them if TRIDELTA_FLOWS names it. "
            "Then run the flow again",
        )


def missing_module(error: BaseException, flow: str) -> MissingModuleError | None:
    """Return a MissingModuleError if that is what the error comes from."""
    for cause in causes(error):
        raised = raised_in_worker(cause.text) if cause.type == PYTHON_WORKER else None
        module = _missing(raised) if raised else None
        if module is not None:
            return MissingModuleError(flow, module)
    return None


def _missing(raised: Cause) -> str | None:
    """Return the module that a Python worker lacks."""
    if raised.type == _LACKING:
        lacked = _LACKED.match(raised.text)
        return lacked[1] if lacked else None
    if raised.type != ModuleNotFoundError.__name__:
        return None
    # Where user code tried to import something and went on, another error comes last.
    alone = _NO_MODULE.fullmatch(raised.text)
    *_, last = raised.text.splitlines() or [""]
    behind = _LACKED.match(last.removeprefix(f"{_LACKING}: ")) if last.startswith(_LACKING) else None
    return alone[1] if alone else behind[1] if behind else None


def disk_full(error: BaseException, path: str, doing: str) -> DiskFullError | None:
    """Return a DiskFullError if that is what the error comes from."""
    return DiskFullError(path, doing) if any(_is_full(cause) for cause in causes(error)) else None


def _is_full(cause: Cause) -> bool:
    if cause.errno == errno.ENOSPC:
        return True
    if cause.type in _JAVA_DISK:
        return _JAVA_FULL.search(cause.text) is not None
    return _RUST_DISK.fullmatch(cause.type) is not None and _RUST_FULL.search(cause.text) is not None


def store_fault(error: BaseException, path: str, doing: str) -> StoreError | None:
    """Return a StoreError if a store that refuses, or does not answer, is what the error comes from."""
    chain = list(causes(error))
    fault = next((cause for cause in chain if _is_of_store(cause)), None)
    if fault is None or any(_JAVA_FILE.fullmatch(cause.type) for cause in chain):
        return None
    said = " ".join(fault.text.split("\n")[0].split())[:300] or fault.type
    return StoreError(
        path,
        f"a store failed while {doing}: {said}; the batch was not committed",
        hint="see whether the store answers, and look at its credentials and policies (AWS_*, HADOOP_USER_NAME); then run the "
        "flow again: it continues with this batch",
    )


def _is_of_store(cause: Cause) -> bool:
    if _JAVA_NET.fullmatch(cause.type):
        # Of Hadoop's own calls; a user's function may call others.
        return _OF_HADOOP.match(cause.text) is not None
    if cause.type == _RUST_QUERY or _RUST_DISK.fullmatch(cause.type):
        return _RUST_STORE.match(cause.text) is not None
    return cause.type == _OURS or _JAVA_STORE.fullmatch(cause.type) is not None


def lake_fault(error: BaseException, path: str, doing: str) -> DiskFullError | StoreError | None:
    """Return what the error comes from if that is where the lake or a source lies: nothing is wrong with the rows."""
    return disk_full(error, path, doing) or store_fault(error, path, doing)
