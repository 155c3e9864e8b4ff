"""Delta's jars: resolved once into the project's cache, then passed to every session from there.

Only the four jars that the engine loads are kept. Their sizes and digests are fixed here together with the version, so
that a torn or altered download is noticed before Spark meets it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyspark
from filelock import FileLock

from pipelines.errors import JarsError, TrideltaError
from pipelines.java import find_java

GROUP = "io.delta"
VERSION = "4.4.0"
# Everything that delta-spark names beyond the four: Spark brings it along, or only Unity Catalog needs it.
EXCLUDED = ("io.delta:delta-kernel-unitycatalog", "io.unitycatalog:*", "org.*:*", "com.*:*", "jakarta.*:*", "javax.*:*")


@dataclass(frozen=True)
class Jar:
    """One jar as it must lie in the cache."""

    artifact: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The name that Spark's resolver gives it."""
        return f"{GROUP}_{self.artifact}-{VERSION}.jar"


JARS = (
    Jar("delta-spark_4.2_2.13", 9515916, "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"),
    Jar("delta-storage", 113863, "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
    Jar("delta-kernel-api", 2838619, "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"),
    Jar("delta-kernel-defaults", 227185, "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"),
)


def cache_folder() -> Path:
    """The project's cache: TRIDELTA_CACHE, or `.cache` beside the engine's package."""
    chosen = os.environ.get("TRIDELTA_CACHE")
    return Path(chosen).expanduser().resolve() if chosen else Path(__file__).resolve().parent.parent / ".cache"


def jar_paths(cache: Path | None = None) -> list[Path]:
    """The jars in the cache, in class-path order. Looks at names and sizes only: every session start comes by here.

    Raises:
        JarsError: some are missing or torn.
    """
    folder = (cache or cache_folder()) / "jars"
    wrong = [problem for jar in JARS if (problem := _problem(folder, jar))]
    if wrong:
        raise JarsError(str(folder), wrong)
    return [folder / jar.file_name for jar in JARS]


def resolve(cache: Path | None = None) -> bool:
    """Brings missing or torn jars into the cache; False if all were there already.

    Raises:
        JarsError: they could not be fetched, or what was fetched is not what was asked for.
        JavaError: there is no Java to run the resolver on.
    """
    cache = cache or cache_folder()
    folder = cache / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    # Two first starts at once (a test run beside the demo) would write into the same files.
    with FileLock(cache / "jars.lock"):
        if not any(_problem(folder, jar, thorough=True) for jar in JARS):
            return False
        with tempfile.TemporaryDirectory(dir=cache, prefix="ivy-") as work:
            _run_ivy(Path(work), folder)
            fetched = Path(work) / "jars"
            wrong = [problem for jar in JARS if (problem := _problem(fetched, jar, thorough=True))]
            if wrong:
                raise JarsError(str(folder), wrong)
            for jar in JARS:
                (fetched / jar.file_name).replace(folder / jar.file_name)
    return True


def _problem(folder: Path, jar: Jar, *, thorough: bool = False) -> str:
    """What is wrong with a jar in a folder, in words; empty if nothing is."""
    path = folder / jar.file_name
    if not path.is_file():
        return jar.file_name
    size = path.stat().st_size
    if size != jar.size:
        return f"{jar.file_name} (torn: {size} of {jar.size} bytes)"
    if thorough and hashlib.sha256(path.read_bytes()).hexdigest() != jar.sha256:
        return f"{jar.file_name} (its content is not that of version {VERSION})"
    return ""


def _run_ivy(work: Path, folder: Path) -> None:
    """Lets Spark's own Ivy fetch the jars: it honours the user's mirrors, proxies and Ivy settings."""
    script = work / "nothing.py"
    script.write_text("")
    spark_home = Path(pyspark.__file__).parent
    command = [
        str(spark_home / "bin" / "spark-submit"),
        *("--conf", f"spark.jars.ivy={work}"),
        *("--packages", ",".join(f"{GROUP}:{jar.artifact}:{VERSION}" for jar in JARS)),
        *("--exclude-packages", ",".join(EXCLUDED)),
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
    if done.returncode != 0:
        log = folder.parent / "jars.log"
        log.write_text(done.stdout + done.stderr)
        raise JarsError(str(folder), [f"they could not be fetched (the resolver's output is in {log})"])


def main() -> int:
    """`python -m pipelines.jars`: makes sure that the jars are in the cache."""
    try:
        fetched = resolve()
    except TrideltaError as error:
        print(error, file=sys.stderr)
        return 1
    if fetched:
        print(f"Delta {VERSION}: {len(JARS)} jars in {cache_folder() / 'jars'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
