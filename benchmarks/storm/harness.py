"""Builds and runs the word count of Storm Trident: Maven fetches Storm from Maven Central, javac compiles, java runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from pipelines.spark.jars import cache_folder

HERE = Path(__file__).parent
# Storm's own start script opens these to it.
OPENED = ("java.lang", "java.util", "java.nio", "java.net", "java.util.concurrent")
BATCH_LINES = 50_000
HEAP = "2g"
LIMIT_SECONDS = 900


@dataclass(frozen=True)
class Passes:
    """What a run gave: seconds of each pass, and seconds from the start of its process to the first pass's last commit."""

    pass_seconds: tuple[float, ...]
    from_start_seconds: float


def missing_tools() -> str:
    """What this machine lacks to run Storm, in words; empty if nothing."""
    wanted = {"mvn": "Maven (mvn)", "javac": "a Java compiler (javac)", "java": "Java (java)"}
    lacking = [words for name, words in wanted.items() if shutil.which(name) is None]
    if not lacking:
        return ""
    return (
        f"word_count is left out: it needs {' and '.join(lacking)} on the PATH to build and run Storm. "
        "On Debian and Ubuntu: apt-get install maven openjdk-17-jdk-headless"
    )


def class_path() -> str:
    """Storm's jars and the compiled topology; fetched and compiled at the first call.

    Raises:
        RuntimeError: Maven or the compiler failed, with what they said.
    """
    built = cache_folder() / "storm"
    built.mkdir(parents=True, exist_ok=True)
    listed = built / "class-path.txt"
    pom = HERE / "pom.xml"
    if not listed.is_file() or listed.stat().st_mtime < pom.stat().st_mtime:
        fetched = built / "fetched.txt"
        _tool("mvn", "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={fetched}")
        fetched.replace(listed)
    jars = listed.read_text().strip()
    sources = sorted(str(path) for path in (HERE / "src").rglob("*.java"))
    _tool("javac", "-nowarn", "-proc:none", "-d", str(built / "classes"), "-cp", jars, *sources)
    return f"{built / 'classes'}{os.pathsep}{jars}"


def _tool(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-2000:]}")


def run(jars: str, folder: Path, lines: int, passes: int, counts: Path, work: Path) -> Passes:
    """Count the words of a folder in a fresh JVM; the last pass's counts go to the file `counts`.

    Raises:
        RuntimeError: Storm did not come to an end.
    """
    command = ["java", *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in (*OPENED, "sun.nio.ch"))]
    command += [f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseParallelGC", f"-Djava.io.tmpdir={work}"]
    command += [f"-Dlog4j.configurationFile={HERE / 'log4j2.xml'}", "-cp", jars, "bench.WordCount"]
    tasks = str(len(os.sched_getaffinity(0)))
    command += [str(folder), str(lines), str(BATCH_LINES), tasks, str(passes), str(counts)]
    return finished(command, work)


def finished(command: list[str], folder: Path) -> Passes:
    """Run a process that prints a line `RESULT {json}`, and take the times from it.

    Raises:
        RuntimeError: it did not print one.
    """
    started = time.time()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    told = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not told:
        raise RuntimeError(f"{command[0]} gave no result:\n{(done.stdout + done.stderr)[-2000:]}")
    result = json.loads(told[-1])
    return Passes(tuple(result["pass_seconds"]), result["first_committed"] - started)
