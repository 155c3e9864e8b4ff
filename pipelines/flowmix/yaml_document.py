"""A YAML document with the lines of its parts: read with the safe loader, within limits that hold before it is built."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipelines.ddl import SURROGATE
from pipelines.errors import FlowFileError

MOST_BYTES = 256_000
MOST_PARTS = 20_000
"""An alias counts as often as it is used, so that a small file cannot grow without end."""
DEEPEST = 60
LONGEST_NUMBER = 100
"""Characters of what is no text (a number, a date): YAML's numbers take time by the square of their length."""


def content_of(path: Path) -> bytes:
    """Return the bytes of a flow's file.

    Raises:
        FlowFileError: if it is no ordinary file (a pipe would be waited for, a device has no end), or too large.
        OSError: it cannot be read.
    """
    # Without waiting for the other end of a pipe.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise FlowFileError(path, [(1, "", "is no ordinary file")])
        with os.fdopen(number, "rb", closefd=False) as file:
            content = file.read(MOST_BYTES + 1)
    finally:
        os.close(number)
    if len(content) > MOST_BYTES:
        raise FlowFileError(path, [(1, "", f"is larger than {MOST_BYTES:,} bytes")])
    return content


class Document:
    """One file's content, and where each part of it stands.

    Raises:
        FlowFileError: if it cannot be read, is no YAML, holds a tag, a key twice, or more than the limits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = content_of(path).decode("utf-8")
        except OSError as error:
            raise FlowFileError(path, [(1, "", f"cannot be read: {error.strerror}")]) from None
        except UnicodeDecodeError:
            raise FlowFileError(path, [(1, "", "is not UTF-8 text")]) from None
        try:
            self._check_depth(text)
            self._root = yaml.compose(text, Loader=yaml.SafeLoader)
            self._check_parts()
            self.content: Any = yaml.load(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
            problem = getattr(error, "problem", None) or str(error)
            begun, context = getattr(error, "context_mark", None), getattr(error, "context", None)
            if begun and context and (mark is None or begun.line != mark.line):
                problem += f", {context} that begins on line {begun.line + 1}"
            raise FlowFileError(path, [(mark.line + 1 if mark else 1, "", f"is no YAML: {problem}")]) from None
        # A date like 2013-13-45, a time too far.
        except (ArithmeticError, ValueError) as error:
            raise FlowFileError(path, [(1, "", f"holds a value that cannot be read: {error}")]) from None

    def locate(self, steps: Sequence[int | str]) -> tuple[int, str]:
        """Return the line (from 1) and the path of a part: `(7, "streams[0].operations[2].filter")`.

        Steps that are no part of the document are passed over.
        """
        node, line, path = self._root, 1, ""
        for step in steps:
            if isinstance(node, yaml.MappingNode):
                entry = next((pair for pair in node.value if pair[0].value == str(step)), None)
                if entry is not None:
                    line, node = entry[0].start_mark.line + 1, entry[1]
                    path += f".{step}" if path else str(step)
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line, path = node.start_mark.line + 1, f"{path}[{step}]"
        return line, path

    def _check_depth(self, text: str) -> None:
        """Check depth and tags by the parser's events, which need no calls within calls, as all that follows does."""
        depth = 0
        for number, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
            if getattr(event, "tag", None) is not None:
                raise FlowFileError(self.path, [(event.start_mark.line + 1, "", f"holds a tag: {event.tag[:60]!r}")])
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST or number > 2 * MOST_PARTS:
                line = event.start_mark.line + 1
                raise FlowFileError(self.path, [(line, "", "holds too many parts, or too deep ones")])

    def _check_parts(self) -> None:
        if self._root is None:
            raise FlowFileError(self.path, [(1, "", "is empty")])
        for number, (node, depth) in enumerate(_nodes(self._root, 0)):
            line = node.start_mark.line + 1
            if number > MOST_PARTS or depth > DEEPEST:
                raise FlowFileError(self.path, [(line, "", "holds too many parts, or too deep ones")])
            if isinstance(node, yaml.ScalarNode) and SURROGATE.search(node.value):
                raise FlowFileError(self.path, [(line, "", "holds half a character: a surrogate")])
            if isinstance(node, yaml.ScalarNode) and not node.tag.endswith(":str") and len(node.value) > LONGEST_NUMBER:
                raise FlowFileError(self.path, [(line, "", "holds a number of more digits than any has")])
            if isinstance(node, yaml.MappingNode):
                keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
                if len(set(keys)) < len(keys):
                    twice = next(key for n, key in enumerate(keys) if key in keys[:n])
                    raise FlowFileError(self.path, [(line, "", f'has the key "{twice}" twice')])
                if len(keys) < len(node.value):
                    raise FlowFileError(self.path, [(line, "", "has a key that is no text")])


def _nodes(node: yaml.Node, depth: int) -> Iterator[tuple[yaml.Node, int]]:
    yield node, depth
    if depth > DEEPEST:
        return
    inside = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        inside = [part for pair in node.value for part in pair]
    for child in inside:
        yield from _nodes(child, depth + 1)
