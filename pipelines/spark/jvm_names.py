"""Keep what the JVM has said of its names.

py4j asks the JVM for a class each time that it is named, and pyspark names one in nearly every call. For `PythonUtils` the JVM
looks for `java.lang.PythonUtils` first, in each of Spark's 300 jars: a third of its time between two small batches.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView


def keep_names(jvm: JVMView) -> None:
    """Let a view of the JVM keep the classes, packages and static methods that it is asked for."""
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
