"""Delta's, Kafka's and S3's jars: resolved once into the project's cache, then passed to the sessions from there.

Only the jars that the engine loads are kept. Their sizes and digests are fixed here together with the versions, so that a
torn or altered download is noticed before Spark meets it. Without Delta's there is no session; without the others everything
but a Kafka source, or a lake on S3, works.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyspark
from filelock import FileLock

from pipelines.errors import JarsError, TrideltaError
from pipelines.spark.jar_sets import Jar, JarSet
from pipelines.spark.java import find_java
from pipelines.spark.s3_jars import S3_JARS

VERSION = "4.4.0"


def _delta(artifact: str, size: int, sha256: str) -> Jar:
    return Jar("io.delta", artifact, VERSION, size, sha256)


JARS = (
    _delta("delta-spark_4.2_2.13", 9515916, "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"),
    _delta("delta-storage", 113863, "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
    _delta("delta-kernel-api", 2838619, "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"),
    _delta("delta-kernel-defaults", 227185, "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"),
)
DELTA = (
    JarSet(
        "Delta",
        JARS,
        # Everything that delta-spark names beyond the four: Spark brings it along, or only Unity Catalog needs it.
        ("io.delta:delta-kernel-unitycatalog", "io.unitycatalog:*", "org.*:*", "com.*:*", "jakarta.*:*", "javax.*:*"),
    ),
)

_SPARK_KAFKA = "spark-sql-kafka-0-10_2.13"
_SPARK_TOKENS = "spark-token-provider-kafka-0-10_2.13"
_SPARK_BRINGS = ("org.scala-lang*:*", "com.*:*", "at.*:*", "org.slf4j:*", "org.xerial.snappy:*", "org.apache.hadoop:*")
KAFKA = (
    JarSet(
        "Kafka",
        (
            Jar("org.apache.spark", _SPARK_KAFKA, "4.2.0", 494879,
                "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"),
            Jar("org.apache.kafka", "kafka-clients", "3.9.2", 9220052,
                "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8"),
            Jar("org.apache.commons", "commons-pool2", "2.13.1", 156457,
                "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f"),
        ),
        (*_SPARK_BRINGS, f"org.apache.spark:{_SPARK_TOKENS}"),
    ),
    # Maven Central has this one up to 4.0.0 only. All that the others call in it is there; of Spark 4.2 it misses two names
    # for log lines about delegation tokens, so those (Kerberos) do not work, and nothing else needs them. A run of its own:
    # beside the others the resolver would insist on 4.2.0.
    JarSet(
        "Kafka",
        (
            Jar("org.apache.spark", _SPARK_TOKENS, "4.0.0", 64975,
                "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767"),
        ),
        (*_SPARK_BRINGS, "org.apache.kafka:*"),
    ),
)  # fmt: skip


def cache_folder() -> Path:
    """Return the project's cache: TRIDELTA_CACHE, or `.cache` beside the engine's package."""
    chosen = os.environ.get("TRIDELTA_CACHE")
    return Path(chosen).expanduser().resolve() if chosen else Path(__file__).resolve().parents[2] / ".cache"


def set_paths(sets: Sequence[JarSet], cache: Path | None = None) -> list[Path]:
    """Return the jars of some sets in the cache, in class-path order. Checks names and sizes only: each session start asks."""
    folder = (cache or cache_folder()) / "jars"
    jars = [jar for jar_set in sets for jar in jar_set.jars]
    wrong = [problem for jar in jars if (problem := _problem(folder, jar))]
    if wrong:
        raise JarsError(str(folder), wrong, sets[0].name)
    return [folder / jar.file_name for jar in jars]


def resolve(cache: Path | None = None, sets: Sequence[JarSet] = DELTA) -> bool:
    """Bring missing or torn jars into the cache; return False if all were there already."""
    cache = cache or cache_folder()
    (cache / "jars").mkdir(parents=True, exist_ok=True)
    # Two first starts at once (a test run beside the demo) would write into the same files.
    with FileLock(cache / "jars.lock"):
        fetched = [_resolve(cache, jar_set) for jar_set in sets]
    return any(fetched)


def _resolve(cache: Path, jar_set: JarSet) -> bool:
    folder = cache / "jars"
    if not any(_problem(folder, jar, thorough=True) for jar in jar_set.jars):
        return False
    with tempfile.TemporaryDirectory(dir=cache, prefix="ivy-") as work:
        _run_ivy(Path(work), jar_set)
        fetched = Path(work) / "jars"
        wrong = [problem for jar in jar_set.jars if (problem := _problem(fetched, jar, thorough=True))]
        if wrong:
            raise JarsError(str(folder), wrong, jar_set.name)
        for jar in jar_set.jars:
            (fetched / jar.file_name).replace(folder / jar.file_name)
    return True


def _run_ivy(work: Path, jar_set: JarSet) -> None:
    log = work.parent / "jars.log"
    problem = fetch(work, [jar.package for jar in jar_set.jars], jar_set.excluded, log)
    if problem:
        raise JarsError(str(work.parent / "jars"), [problem], jar_set.name)


def _problem(folder: Path, jar: Jar, *, thorough: bool = False) -> str:
    """Say what is wrong with a jar in a folder; empty if nothing is."""
    path = folder / jar.file_name
    if not path.is_file():
        return jar.file_name
    size = path.stat().st_size
    if size != jar.size:
        return f"{jar.file_name} (torn: {size} of {jar.size} bytes)"
    if thorough and hashlib.sha256(path.read_bytes()).hexdigest() != jar.sha256:
        return f"{jar.file_name} (its content is not that of version {jar.version})"
    return ""


def fetch(work: Path, packages: Sequence[str], excluded: Sequence[str], log: Path) -> str:
    """Let Spark's own Ivy fetch jars: it honours the user's mirrors, proxies and Ivy settings.

    Args:
        work: An empty folder; the jars come to lie in `jars` below it.
        packages: What to fetch with all that it needs, as `group:artifact:version`.
        excluded: What to leave out, as `group:artifact` with `*`.
        log: Where the resolver's output goes if it fails.

    Returns:
        What went wrong, in words; empty if nothing did.
    """
    script = work / "nothing.py"
    script.write_text("")
    spark_home = Path(pyspark.__file__).parent
    command = [
        str(spark_home / "bin" / "spark-submit"),
        *("--conf", f"spark.jars.ivy={work}"),
        *("--packages", ",".join(packages)),
        *("--exclude-packages", ",".join(excluded)),
        str(script),
    ]
    environment = os.environ | {
        "SPARK_HOME": str(spark_home),
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        # A laptop off the net, or a container, often cannot resolve its own host name.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    log.write_text(done.stdout + done.stderr)
    return f"they could not be fetched (the resolver's output is in {log})"


def main() -> int:
    """Run `python -m pipelines.spark.jars`: fill the cache; without Kafka's jars, or S3's, it says so and goes on."""
    try:
        if resolve():
            print(f"Delta {VERSION}: {len(JARS)} jars in {cache_folder() / 'jars'}")
    except TrideltaError as error:
        print(error, file=sys.stderr)
        return 1
    for sets, lost in ((KAFKA, "Sources of Kafka"), (S3_JARS, "Lakes and sources on S3")):
        try:
            if resolve(sets=sets):
                print(f"{sets[0].name}: {sum(len(one.jars) for one in sets)} jars in {cache_folder() / 'jars'}")
        except TrideltaError as error:
            print(f"{lost} will not work, all else will. {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
