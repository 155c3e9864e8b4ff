"""The start of Spark's JVM, with its settings in a file (a command line is for all users of a host to see); its names, kept."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView
from pyspark.java_gateway import launch_gateway

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


def launched(settings: Iterable[tuple[str, str]]) -> Any:
    """Return the gateway to a JVM started with these settings.

    pyspark by itself makes `--conf NAME=VALUE` of each. The file is this user's alone, and gone when the JVM has read it.
    """
    before = os.environ.get(_ARGUMENTS)
    # A folder for it, which is made for this user alone whatever the umask.
    with tempfile.TemporaryDirectory(prefix="tridelta-") as folder:
        file = Path(folder) / "spark.properties"
        file.write_text(properties(settings), encoding="ascii")
        file.chmod(0o600)
        # Defaults of the installation hold beside a file only if that is said.
        ours = f"--properties-file {shlex.quote(str(file))} --load-spark-defaults"
        os.environ[_ARGUMENTS] = f"{ours} {before or 'pyspark-shell'}"
        try:
            return launch_gateway(None, {"stderr": subprocess.PIPE})
        finally:
            if before is None:
                del os.environ[_ARGUMENTS]
            else:
                os.environ[_ARGUMENTS] = before


def properties(settings: Iterable[tuple[str, str]]) -> str:
    """Write settings as Java reads them from a file of properties."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings)


def _escaped(text: str) -> str:
    return "".join(
        character if character.isalnum() and character.isascii() else _unicode(character) for character in text
    )


def _unicode(character: str) -> str:
    r"""Write `\uXXXX`, two of them past the first plane: Java takes that anywhere, be it a blank, a `=` or a line break."""
    if character in "._-/,+@":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def keep_names(jvm: JVMView) -> None:
    """Let a view of the JVM keep the classes, packages and static methods that it is asked for.

    py4j asks the JVM for a class each time that it is named, and pyspark names one in nearly every call. For `PythonUtils` the
    JVM looks for `java.lang.PythonUtils` first, in each of Spark's 300 jars: a third of its time between two small batches.
    """
    if type(jvm) is JVMView:
        jvm.__class__ = _View


class _View(JVMView):
    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))


class _Package(JavaPackage):
    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))


class _Class(JavaClass):
    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))


def _kept(owner: object, name: str, answer: Any) -> Any:
    """Keep an answer as the owner's attribute, which is found before `__getattr__` is asked."""
    kind = type(answer)
    if kind is JavaClass:
        answer.__class__ = _Class
    elif kind is JavaPackage:
        # What is no class now is one after `java_import`; only packages have small letters.
        if not name[:1].islower():
            return answer
        answer.__class__ = _Package
    elif kind is not JavaMember:
        # The value of a static field, which may change.
        return answer
    owner.__dict__[name] = answer
    return answer
