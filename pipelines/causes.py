"""The causes of an error, by their types: a text may hold what a record says, a type cannot.

An error of Spark's has a chain of Java exceptions, whose classes and own messages py4j gives. Where the JVM that asks lacks a
class there is only what Spark says of the lost task; there the class stands before anything that a record can say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipelines.printable import printable

PYTHON_WORKER = "org.apache.spark.api.python.PythonException"
"""An exception in a Python worker: its text is the traceback, with all that the user's function said."""
_DEEPEST = 30
_LOST_TASK = re.compile(
    r"(?:\[\w+\] )?Job aborted due to stage failure: Task \d+ in stage [\d.]+ failed \d+ times?, most recent failure: "
    r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^()\n]*\): ([\w.$]+)(?:: ([^\n]*))?"
)
_BEGINNING = "Traceback (most recent call last):"
_RAISED = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?", re.DOTALL)
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
# What Spark's worker says of a function that it cannot load: the traceback is in the message of another error.
_NOT_LOADED = "pyspark.serializers.SerializationError"


_MOST_TEXT = 2_000


def shortened(text: str) -> str:
    """Return as much of an error's text as is kept and shown: it may quote a whole record, and what no database takes."""
    return printable(text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}...")


def named(error: BaseException) -> str:
    """Return an error's class and text: the class is what the handbook lists it under."""
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class Cause:
    """One exception of a chain.

    Attributes:
        type: its class with its package or module.
        text: its own message.
        errno: of an error of the operating system's in this process.
    """

    type: str
    text: str
    errno: int | None = None


def causes(error: BaseException) -> list[Cause]:
    """List an error and what it comes from, the cause behind its effect."""
    found: list[Cause] = []
    seen: BaseException | None = error
    while seen is not None and len(found) < _DEEPEST:
        thrown = getattr(seen, "java_exception", None) or getattr(seen, "_origin", None)
        found += [_of_python(seen)] if thrown is None else _of_java(thrown)
        # Where Spark's query keeps an error, only its cause is a Java exception.
        kept = getattr(seen, "_cause", None) if thrown is None else None
        before = None if seen.__suppress_context__ else seen.__context__
        seen = seen.__cause__ or (kept if isinstance(kept, BaseException) else before)
    return found


def lost_task(text: str) -> Cause | None:
    """Return the exception that Spark names as the reason of a failed job; None if the text is another."""
    match = _LOST_TASK.match(text)
    return Cause(match[1], match[2] or "") if match else None


def raised_in_worker(text: str) -> Cause | None:
    """Return the exception of a Python worker's traceback, with all that follows as its text.

    Its class stands where the frames end, and only there is it looked for: further lines of its message may look like the
    end of another traceback. Where there are several tracebacks it is the first, whose exception the later ones come from.

    Args:
        text: what a `PYTHON_WORKER` says.
    """
    lines = _SQLSTATE.sub("", text.partition(_BEGINNING)[2]).split("\n")[1:]
    for number, line in enumerate(lines):
        if line[:1] in ("", " "):
            continue
        raised, rest = _RAISED.match(line), "\n".join(lines[number:])
        if raised and raised[1] == _NOT_LOADED and _BEGINNING in rest:
            return raised_in_worker(rest)
        whole = _RAISED.match(rest)
        return Cause(whole[1], (whole[2] or "").rstrip()) if whole else None
    return None


def _of_python(error: BaseException) -> Cause:
    kind, errno = type(error), getattr(error, "errno", None)
    return Cause(f"{kind.__module__}.{kind.__qualname__}", str(error), errno if isinstance(errno, int) else None)


def _of_java(thrown: Any) -> Iterator[Cause]:
    for _ in range(_DEEPEST):
        cause = Cause(thrown.getClass().getName(), thrown.getMessage() or "")
        yield cause
        thrown = thrown.getCause()
        if thrown is None:
            lost = lost_task(cause.text)
            if lost is not None:
                yield lost
            return
