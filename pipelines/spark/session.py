"""The one Spark session of a process: classic, local by default, with Delta, quiet, and started from an archive."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import importlib
import os
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from pipelines.bounds import own_master, required_master
from pipelines.errors import JarsError, TrideltaError
from pipelines.places.location import HDFS, S3, asked_for
from pipelines.printable import printable
from pipelines.spark.callback_secret import ask_for_secret
from pipelines.spark.jar_sets import JarSet
from pipelines.spark.jars import DELTA, KAFKA, cache_folder, set_paths
from pipelines.spark.java import Java, find_java
from pipelines.spark.jvm_launch import keep_names, launched
from pipelines.spark.s3_jars import S3_JARS, s3_settings

SPARK_HOME = Path(pyspark.__file__).parent
LOG_SETTINGS = Path(__file__).parent / "log4j2.properties"
GIGABYTE = 1024**3
_LINKED, _LOOPBACK = "spark-home-", "127.0.0.1"

# The optimising compiler starts on a method after ten times as many calls as by default. A loop over rows has those within a
# second; what a start and a plan run a few thousand times is left to the quick compiler. This saves five of the 28 CPU
# seconds of a process that counts the words of two million lines; the speed of a warm process is the same.
LATE_OPTIMISING = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
# What a session and a flow import sooner or later, and slowly (pandas for one: py4j's converters ask for it at the first
# call). The JVM takes a second to come up: these come meanwhile.
_NEEDED_SOON = ("pyspark.testing.utils", "deltalake", "pipelines.execution.runtime")

_lock = threading.Lock()


def spark_session(
    app: str = "tridelta", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the Spark session of this process; the first call starts it, later calls return the same one.

    Args:
        app: The application's name in Spark.
        master: Where Spark runs; by default TRIDELTA_SPARK_MASTER, else `local[*]`.
        conf: Spark settings that replace or add to Tridelta's own. `spark.driver.extraJavaOptions` is added to ours.

    It reads and writes S3 if a place there was named before (`Lake("s3://...")`, `JsonFiles("s3a://...")`).

    Raises:
        JavaError: there is no Java 17 or 21.
        JarsError: Delta's jars are not in the project's cache.
        TrideltaError: a session runs already, with another master or other values of the settings asked for.
    """
    with _lock:
        # Not the active one first: `createDataFrame` of any other session, say of a flow's own, makes that the active one.
        running = SparkSession._instantiatedSession or SparkSession.getActiveSession()
        if running is not None and running._jsc.sc() is not None and not running._jsc.sc().isStopped():
            _refuse_other(running, master, conf or {})
            return running
        chosen = master or own_master()
        return _start(app, required_master("master" if master else "TRIDELTA_SPARK_MASTER", chosen), dict(conf or {}))


def settings(master: str, *, java: Java, cache: Path) -> dict[str, str]:
    """Return Tridelta's Spark settings, each with its reason."""
    jars = [str(path) for path in set_paths(DELTA, cache)]
    chosen = {
        "spark.master": master,
        # Delta's client for Spark Connect is a preview, and foreachBatch under Connect mixes up sessions.
        "spark.api.mode": "classic",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # On the class path and not in spark.jars: only classes of the application's own loader go into the archive.
        "spark.driver.extraClassPath": os.pathsep.join(jars),
        # A path without a scheme is of this host. Hadoop's own configuration would make it one of HDFS, and delta-rs not.
        "spark.hadoop.fs.defaultFS": "file:///",
        # A slice is a date; it must not depend on the machine's time zone.
        "spark.sql.session.timeZone": "UTC",
        # Repartitioning a checkpoint works on RocksDB alone, and ruins one that has Spark's default store.
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        **_task_counts(master),
        # It would run every stage of a micro-batch as a job of its own, to choose among plans of a few thousand rows.
        "spark.sql.adaptive.enabled": "false",
        # Each operation on a column would tell the JVM its line of Python, in eight calls: a third of those of a small batch.
        # The engine's own errors name the operation's line.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Dagster shows what there is to see; a server on a port per session would only collide with the next one.
        "spark.ui.enabled": "false",
        # Every execution's plan is written out for that page all the same; this form is the quickest.
        "spark.sql.ui.explainMode": "simple",
        "spark.ui.showConsoleProgress": "false",
        # Never the working directory. Only a table saved without a path would go there, and Tridelta's all have one.
        "spark.sql.warehouse.dir": (cache / "warehouse").as_uri(),
        "spark.driver.memory": f"{driver_memory() // 1024**2}m",
        "spark.driver.extraJavaOptions": java_options(java, cache),
    }
    if is_local(master):
        return chosen | _local_settings()
    return chosen | {"spark.jars": ",".join([*jars, *map(str, _if_there(KAFKA, cache))])}


def _task_counts(master: str) -> dict[str, str]:
    return {
        # One task a core: a micro-batch is small, and Spark's 200 tasks would be nothing but their own overhead.
        "spark.sql.shuffle.partitions": str(cores(master)),
        # Delta's default of 50 is for logs of millions of files; here the tasks would cost more than their work.
        "spark.databricks.delta.snapshotPartitions": "2",
        # Spark cuts input for one task a core, of whole files where it can: five equal files on two cores are three files
        # and two, and a core waits. Four tasks a core balance; pieces stay at 4 MB or more, so small batches are as before.
        "spark.sql.files.minPartitionNum": str(4 * cores(master)),
    }


def _local_settings() -> dict[str, str]:
    # All of a local Spark is in this process: nothing needs to be reached from outside, or with the network down.
    # And files of a checkpoint are local: written and renamed by the JVM itself. Spark's default asks Hadoop's FileContext,
    # which without native Hadoop forks `readlink` and `chmod` for each file (a log write took 46 ms in place of 11 ms).
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Each user of this host reaches the driver's ports there, which make objects of what they are sent. The secret that
        # Spark makes is known to its own process alone.
        "spark.authenticate": "true",
        # A worker begins in 0.1 s in place of one or two.
        "spark.python.daemon.module": "pipelines.spark.python_daemon",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }


def java_options(java: Java, cache: Path) -> str:
    """Return the JVM's options: a collector without threads of its own, the class-data archive if it exists, silence."""
    options = [
        # Heaps here are small and cores few; the parallel collectors' threads compete with the batch itself. Also what
        # the archive was made with.
        "-XX:+UseSerialGC",
        *LATE_OPTIMISING,
        # Room for compiled code, address space only. Several streams in one application fill the quick compiler's 48 MB in
        # minutes; then the JVM stops compiling, and fails to link: an Arrow result is waited for without end.
        "-XX:ReservedCodeCacheSize=512m",
        f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
        # An archive that does not fit (another class path, a patched Java) is left out; the JVM need not print that.
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
    ]
    archive = archive_path(java, cache)
    if archive.is_file():
        options += [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto"]
    return " ".join(options)


def archive_path(java: Java, cache: Path) -> Path:
    """Return where the class-data archive of this Java, this Spark and these jars lies, or would lie."""
    parts = [java.version, str(java.home.resolve()), pyspark.__version__, str(_linked_home(cache))]
    parts += [f"{path}:{path.stat().st_size}" for path in set_paths(DELTA, cache)]
    return cache / f"spark-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:12]}.jsa"


def spark_home(cache: Path) -> Path:
    """Return the SPARK_HOME of a local Spark: pyspark's own, by links in the cache, without `python/lib/pyspark.zip`.

    Spark puts that file first on the path of each Python worker. It holds no compiled code, so each start of a worker would
    compile pyspark again: 1.6 s in place of 0.4 s, and past Spark's limit of 10 s on a busy machine. Without it the workers
    import the pyspark of `sys.executable`, which is the same one. Where the cache can't be written it is pyspark's own.
    """
    home = _linked_home(cache)
    if not home.is_dir():
        making = home.with_name(f"{home.name}.{os.getpid()}")
        try:
            making.mkdir(parents=True, exist_ok=True)
            for entry in SPARK_HOME.iterdir():
                if entry.name != "python":
                    (making / entry.name).symlink_to(entry)
            making.rename(home)
        except OSError:
            shutil.rmtree(making, ignore_errors=True)
    return home if home.is_dir() else SPARK_HOME


def _linked_home(cache: Path) -> Path:
    """Return the folder of links: one per pyspark, since environments may share a cache."""
    return cache / f"{_LINKED}{hashlib.sha256(f'{SPARK_HOME}{pyspark.__version__}'.encode()).hexdigest()[:12]}"


def is_local(master: str) -> bool:
    """Check whether driver and executor are one process."""
    return master == "local" or master.startswith("local[")


def cores(master: str) -> int:
    """Count how many tasks run at once: the number in `local[n]`, else this machine's cores."""
    inside = master.removeprefix("local[").split("]")[0].split(",")[0] if is_local(master) else "*"
    if inside.isdigit():
        return int(inside)
    return 1 if inside == "local" else len(os.sched_getaffinity(0))


def driver_memory() -> int:
    """Return bytes of heap: a quarter of the memory that this process may use, at least 1 GB and at most 8 GB.

    A quarter, for a deployed worker and a catch-up run may be up at once, beside Python workers, RocksDB's memory (not
    part of the heap) and Dagster's processes (0.7 GB). 1 GB is Spark's own default; above 8 GB the serial collector's
    full collections would stall a batch for seconds. `conf={"spark.driver.memory": ...}` overrides it.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        memory = min(memory, int(text))
    return max(GIGABYTE, min(memory // 4, 8 * GIGABYTE))


def _start(app: str, master: str, conf: dict[str, str]) -> SparkSession:
    """Check what Spark needs, prepare the environment and start."""
    java, cache = find_java(), cache_folder()
    chosen = settings(master, java=java, cache=cache)
    extra = conf.pop("spark.driver.extraJavaOptions", "")
    chosen["spark.driver.extraJavaOptions"] = f"{chosen['spark.driver.extraJavaOptions']} {extra}".strip()
    on_s3 = asked_for(S3)
    jars = _if_there(S3_JARS, cache) if on_s3 else []
    chosen |= s3_settings() if on_s3 else {}
    if not is_local(master):
        chosen |= _of_cluster(chosen, jars, conf)
    if master == "yarn":
        chosen |= _of_yarn()
    if asked_for(HDFS):
        # On HDFS that of Spark's own renames without a gap, and forks nothing.
        chosen.pop("spark.sql.streaming.checkpointFileManagerClass", None)
    chosen |= {"spark.app.name": app, **conf}
    _prepare_environment(java, [*_if_there(KAFKA, cache), *jars], home=spark_home(cache) if is_local(master) else None)
    spark_conf = SparkConf(loadDefaults=False).setAll(list(chosen.items()))
    if SparkContext._gateway is None:
        threading.Thread(target=_import_ahead, name="import-ahead").start()
        gateway = launched(chosen.items())
        threading.Thread(target=_pass_on, args=(gateway.proc.stderr,), name="spark-stderr", daemon=True).start()
        SparkContext._ensure_initialized(gateway=gateway)
        keep_names(SparkContext._jvm)
        ask_for_secret(gateway)
    return SparkSession.builder.config(conf=spark_conf).getOrCreate()


def _of_cluster(chosen: Mapping[str, str], jars: Sequence[Path], conf: dict[str, str]) -> dict[str, str]:
    """Return settings by a cluster's own size; a user's jars are added to ours."""
    own = conf.pop("spark.jars", "")
    settings = {"spark.jars": ",".join(filter(None, [chosen["spark.jars"], *map(str, jars), own]))}
    most = conf.get("spark.cores.max", "")
    if most.isdigit():
        settings |= {"spark.sql.shuffle.partitions": most, "spark.sql.files.minPartitionNum": str(4 * int(most))}
    return settings


def _of_yarn() -> dict[str, str]:
    """Return where YARN's containers find what is sent along: in the file system of Hadoop's own configuration.

    Raises:
        TrideltaError: that cannot be read, or this user has no name.
    """
    for folder in filter(None, (os.environ.get("HADOOP_CONF_DIR"), os.environ.get("YARN_CONF_DIR"))):
        file = Path(folder) / "core-site.xml"
        if file.is_file():
            # The host's own configuration, which Spark trusts as well.
            try:
                entries = ElementTree.parse(file).iter("property")  # noqa: S314
            except ElementTree.ParseError as error:
                raise TrideltaError(f"{file}: it is no XML: {error}", hint="correct it, or HADOOP_CONF_DIR") from None
            named = {entry.findtext("name"): entry.findtext("value") for entry in entries}
            if shared := named.get("fs.defaultFS"):
                return {"spark.yarn.stagingDir": f"{shared.rstrip('/')}/user/{_user_of_hadoop()}"}
    return {}


def _user_of_hadoop() -> str:
    try:
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (KeyError, OSError):
        problem = f"YARN needs a folder of this user's, and this user has no name here (id {os.getuid()})"
        raise TrideltaError(problem, hint="name Hadoop's user in HADOOP_USER_NAME") from None


def _if_there(sets: Sequence[JarSet], cache: Path) -> list[Path]:
    """Return Kafka's or S3's jars, or none: without them all but sources and lakes there works, and those say what is missing."""
    try:
        return set_paths(sets, cache)
    except JarsError:
        return []


def _import_ahead() -> None:
    """Import on the side; an import that fails fails again, with its error, where it is needed."""
    for name in _NEEDED_SOON:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _prepare_environment(java: Java, jars: list[Path], *, home: Path | None) -> None:
    """Set what Spark reads from the environment before the JVM starts.

    Args:
        jars: at the end of the class path.
        home: a local Spark's SPARK_HOME.
    """
    os.environ["JAVA_HOME"] = str(java.home)
    # A JVM that only writes the command line of the real one.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    # At the end of the class path: the archive fits as long as the path only grows there, and a flow without Kafka never
    # opens its jars. `spark.driver.extraClassPath` comes first in the path.
    path = [entry for entry in os.environ.get("SPARK_DIST_CLASSPATH", "").split(os.pathsep) if entry]
    path += [jar for jar in map(str, jars) if jar not in path]
    if path:
        os.environ["SPARK_DIST_CLASSPATH"] = os.pathsep.join(path)
    if home is not None:
        # Another Spark on this machine, or another Python for the workers, fails late and in words nobody understands.
        os.environ |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    else:
        if Path(os.environ.get("SPARK_HOME", "")).name.startswith(_LINKED):
            # From a process with a local Spark that started this one: YARN needs what is left out there, and executors on
            # other hosts do not reach a driver on the loopback.
            os.environ["SPARK_HOME"] = str(SPARK_HOME)
            if os.environ.get("SPARK_LOCAL_IP") == _LOOPBACK:
                del os.environ["SPARK_LOCAL_IP"]
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        # Nor do Python workers take modules from the working directory where this process doesn't.
        os.environ["PYTHONSAFEPATH"] = "1"
    # These would turn the session into a Connect session.
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        os.environ.pop(name, None)


# What Spark prints at every start, and of every start of a query with windows, each line with an empty one behind it.
_CHATTER = (b"Using incubator modules: jdk.incubator.vector", b"Streaming TransformWithStateInPandas Python worker")


def _pass_on(stream: IO[bytes]) -> None:
    """Pass the JVM's error output on, without lines that mean nothing to anybody."""
    left_out = False
    held: list[bytes] = []
    for line in stream:
        if held or line.startswith(b"Traceback (most recent call last)"):
            held.append(line)
            if line.startswith((b" ", b"Traceback")):
                continue
            # A Python worker that waits for work when the JVM ends finds the end of its stream, and says so at length.
            idle = line.startswith(b"EOFError") and any(b"daemon.py" in held_line for held_line in held)
            _write([] if idle else held)
            held = []
            continue
        if any(chatter in line for chatter in _CHATTER) or (left_out and not line.strip()):
            left_out = True
            continue
        left_out = False
        _write([line])
    _write(held)


def _write(lines: list[bytes]) -> None:
    for line in lines:
        sys.stderr.write(printable(line.decode(errors="replace")))
    if lines:
        sys.stderr.flush()


def _refuse_other(running: SparkSession, master: str | None, conf: Mapping[str, str]) -> None:
    """Raise if the running session is not the one asked for."""
    wanted = {"spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension", **conf}
    wanted.pop("spark.driver.extraJavaOptions", None)
    if master:
        wanted["spark.master"] = master
    for name, value in wanted.items():
        present = running.conf.get(name, None)
        if present != value:
            raise TrideltaError(
                f"this process has a Spark session already, with {name}={present}; asked for: {value}",
                hint="ask for it in the first call of spark_session, or in a process of its own",
            )
