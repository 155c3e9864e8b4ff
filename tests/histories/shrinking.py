"""Making a program that shows a difference as short as it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.histories.programs import Operation, Program

Shows = Callable[[Program], bool]
"""Whether a program still shows the difference."""


def shrink(program: Program, shows: Shows, *, tries: int = 60) -> Program:
    """A program with fewer operations, rows and states that still shows it; at most so many tries."""
    left = [tries]

    def still(candidate: Program) -> bool:
        left[0] -= 1
        return left[0] >= 0 and shows(candidate)

    program = _fewer_operations(program, still)
    changed = True
    while changed and left[0] > 0:
        changed = False
        for candidate in _simpler(program):
            if left[0] > 0 and still(candidate):
                program, changed = candidate, True
                break
    return program


def _fewer_operations(program: Program, still: Shows) -> Program:
    """Leave out halves, then quarters, then single operations, as long as the difference stays."""
    size = max(1, len(program.operations) // 2)
    while True:
        start = len(program.operations) - size
        while start >= 0 and len(program.operations) > 1:
            kept = program.operations[:start] + program.operations[start + size :]
            candidate = Program(program.shape, kept)
            if kept and still(candidate):
                program = candidate
            start -= size
        if size == 1:
            return program
        size //= 2


def _simpler(program: Program) -> Iterator[Program]:
    """Programs that are simpler in one thing."""
    for stream, states in program.shape.get("streams", {}).items():
        if len(program.shape["streams"]) > 1 and stream != next(iter(program.shape["streams"])):
            yield Program({**program.shape, "streams": _without(program.shape["streams"], stream)}, program.operations)
        for number in range(len(states) - 1):
            fewer = {**program.shape["streams"], stream: states[:number] + states[number + 1 :]}
            yield Program({**program.shape, "streams": fewer}, program.operations)
    for number, (name, given) in enumerate(program.operations):
        for simpler in _arguments(given):
            operations = (*program.operations[:number], (name, simpler), *program.operations[number + 1 :])
            yield Program(program.shape, operations)


def _arguments(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, value in given.items():
        if isinstance(value, list) and value:
            for number in range(len(value)):
                if name != "slices" or len(value) > 1:
                    yield {**given, name: value[:number] + value[number + 1 :]}
        elif name in ("late", "max_batches", "partitions", "hours", "open_generations", "beside"):
            yield _without(given, name)


def _without(given: dict[str, Any], name: str) -> dict[str, Any]:
    return {other: value for other, value in given.items() if other != name}


__all__ = ["Operation", "shrink"]
