"""Executors of a cluster: they get the package, and are asked before the first batch whether they can work with it.

What fails only inside a batch would be tried again, and at last put good rows into quarantine: a missing module, another Python,
a folder that this host alone has. So each application asks its executors once per lake.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from pipelines import logs
from pipelines.errors import TrideltaError
from pipelines.execution.protocol.failures import reason_of
from pipelines.execution.runners.bounded_inputs import bounded_folder
from pipelines.places.location import Place
from pipelines.spark.jars import cache_folder
from pipelines.spark.session import is_local

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logs.logger(__name__)

ANSWER_SECONDS = 120.0
"""How long executors are waited for: a cluster starts them within seconds, and one without free cores never does."""

_LOADED = ("pipelines.windows", "pipelines.flowmix", "pipelines.trident", "pipelines.aggregators")
"""What batches load in Python workers, and with it what these import."""

_asked: set[tuple[str, str]] = set()

_FLOWS = "TRIDELTA_FLOWS"
"""The setting that names modules with flows (`pipelines.catalog.MODULES`, which execution does not import)."""


class ExecutorError(TrideltaError):
    """The executors of a cluster cannot do the work; nothing was begun.

    Attributes:
        master: the cluster.
        problem: in a sentence.
    """

    def __init__(self, master: str, problem: str, hint: str) -> None:
        self.master, self.problem = master, problem
        super().__init__(f"the executors of {master} cannot run this: {problem}", hint=hint)


def check_executors(spark: SparkSession, lake: Place) -> None:
    """Send a cluster's executors the package, and see that they can work; once per application and lake.

    Args:
        spark: a session; nothing is asked of a local one.
        lake: the lake's root, which they must see.
    """
    context = spark.sparkContext
    key = (str(context.applicationId), str(lake))
    if is_local(str(context.master)) or key in _asked:
        return
    _send_code(context)
    # Housekeeping removes what a killed run leaves there. Executors may be another user, whom the lake's own modes admit.
    with bounded_folder(lake, ".probe", mode=0o777) as folder:
        probe = folder / "probe"
        probe.write_bytes(b"tridelta\n")
        _within(context, ANSWER_SECONDS, lambda: _ask(spark, lake, probe))
    _asked.add(key)


def _ask(spark: SparkSession, lake: Place, probe: Place) -> None:
    context, master = spark.sparkContext, str(spark.sparkContext.master)
    wanted, path = _LOADED, str(probe) if isinstance(probe, Path) else ""
    number = 2 * max(context.defaultParallelism, 1)

    # Inside, so that it travels whole: a function of a module is looked for in that module, which may be what is missing.
    def answer(_: object) -> Iterator[tuple[str, str, bool]]:
        import os
        import socket

        missing = ""
        for name in wanted:
            try:
                __import__(name)
            except ImportError as error:
                missing = missing or str(error)
        yield socket.gethostname(), missing, path == "" or os.path.exists(path)  # noqa: PTH110

    try:
        answers = context.parallelize(range(number), number).mapPartitions(answer).distinct().collect()
    except Exception as error:
        if "PYTHON_VERSION_MISMATCH" in str(error) or "different version" in str(error):
            here = f"{sys.version_info[0]}.{sys.version_info[1]}"
            hint = "name the right one in PYSPARK_PYTHON, as the executors' hosts have it"
            raise ExecutorError(master, f"they run another Python than this one ({here})", hint) from error
        raise ExecutorError(master, _last_line(error), "see the executors' logs") from error
    for host, missing, sees in answers:
        if missing:
            hint = "install what this host has (pip install -r requirements.lock) on theirs, too"
            raise ExecutorError(master, f"on {host}: {missing}", hint)
        if not sees:
            hint = "mount the lake on all hosts under the same path, or put it on S3 (TRIDELTA_LAKE)"
            raise ExecutorError(master, f"{host} does not see the lake {lake}", hint)
    try:
        spark.read.text(str(probe)).collect()
    except Exception as error:
        problem = f"they do not read {lake}: {reason_of(error)}"
        raise ExecutorError(master, problem, "see docs/object-stores.md") from error


def _last_line(error: BaseException) -> str:
    """Return what a Python worker's traceback ends with, else the first line of Spark's error."""
    ends = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*$", str(error), re.MULTILINE)
    return str(ends[-1]) if ends else reason_of(error)


def _within(context: SparkContext, seconds: float, work: Callable[[], None]) -> None:
    """Wait for Spark, which by itself would wait for an executor without end."""
    group = f"executors-{uuid4().hex}"

    def asked() -> None:
        context.setJobGroup(group, "can the executors work", interruptOnCancel=True)
        work()

    pool = ThreadPoolExecutor(1, thread_name_prefix="executors")
    done = pool.submit(asked)
    try:
        done.result(seconds)
    except TimeoutError:
        context.cancelJobGroup(group)
        hint = (
            "free cores there, or limit other applications (spark.cores.max); TRIDELTA_SPARK_MASTER names the cluster"
        )
        raise ExecutorError(str(context.master), f"none has answered for {seconds:g} seconds", hint) from None
    finally:
        pool.shutdown(wait=False)


# --- the code -------------------------------------------------------------------------------------------------------


def _send_code(context: SparkContext) -> None:
    archive = code_archive()
    before = list(sys.path)
    context.addPyFile(str(archive))
    # Spark puts it first here, too, where the code has its files: what is imported later would come from the archive.
    sys.path[:] = before
    logger.info("package sent to executors", archive=archive.name)


def code_archive(cache: Path | None = None) -> Path:
    """Return an archive of the package, and of the modules that TRIDELTA_FLOWS names, as they are now.

    Its name is its content's digest: it is made once.
    """
    # Each is read once: what an installation replaces meanwhile is not archived under the digest of what was there.
    files = {name: file.read_bytes() for name, file in sorted(set(_sources()))}
    digest = hashlib.blake2b(digest_size=8)
    for name, data in files.items():
        digest.update(name.encode() + b"\0" + data)
    archive = (cache or cache_folder()) / f"code-{digest.hexdigest()}.zip"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        draft = archive.with_name(f".{archive.name}.{uuid4().hex}")
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as out:
            for name, data in files.items():
                out.writestr(name, data)
        draft.replace(archive)
    return archive


def _sources() -> Iterator[tuple[str, Path]]:
    """Yield the files of the package and of the flows' modules, with their names in the archive."""
    named = filter(None, (part.strip() for part in os.environ.get(_FLOWS, "").split(",")))
    for top in {"pipelines", *(module.partition(".")[0] for module in named)}:
        found = importlib.util.find_spec(top)
        if found is None:
            continue
        if found.submodule_search_locations is None:
            if found.origin and found.origin.endswith(".py"):
                yield Path(found.origin).name, Path(found.origin)
            continue
        for folder in map(Path, found.submodule_search_locations):
            for file in folder.rglob("*.py"):
                if "__pycache__" not in file.parts:
                    yield f"{top}/{file.relative_to(folder).as_posix()}", file
