"""Reads the JSON lines of workers: turned-over files too, and what is still being written."""

from __future__ import annotations

import heapq
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

LEVELS = ("debug", "info", "warning", "error", "critical")

Line = dict[str, Any]
Files = Sequence[Path] | Callable[[], Sequence[Path]]
_Parse = Callable[[bytes], Line | None]


def generation(file: Path, number: int) -> Path:
    """The file turned over so many times ago; 0: the one that is written."""
    return file if number == 0 else file.with_name(f"{file.name}.{number}")


def read(
    files: Files,
    flow: str | None = None,
    level: str | None = None,
    follow: bool = False,
    *,
    last: int | None = None,
    concerns: Callable[[Path], bool] = lambda _: True,
    poll_seconds: float = 0.3,
) -> Iterator[Line]:
    """The lines of some logs, by time; what is no JSON is left out.

    Args:
        files: The files that are written (`worker.jsonl`); or a function that names them, asked again while following.
        flow: Only lines of this flow, and warnings that name no flow: those of the worker itself.
        level: Only this level and worse.
        follow: Go on with what is written from now on, without end; files that are turned over or new are followed too.
        last: Of what is there already, only so many lines, the last ones.
        concerns: Whether warnings that name no flow count, by file.
        poll_seconds: How often to look for new lines.

    Raises:
        ValueError: There is no such level.
    """
    lowest = _lowest(level)
    parsers = (_parser(flow, lowest, with_own=True), _parser(flow, lowest, with_own=False))

    def tail(file: Path) -> _Tail:
        def parse(text: bytes) -> Line | None:
            # Asked for each line: while following, a flow may come to a slot.
            return parsers[not concerns(file)](text)

        return _Tail(file, parse)

    return _lines(files if callable(files) else lambda: files, tail, follow, last, poll_seconds)


def _lines(
    named: Callable[[], Sequence[Path]],
    made: Callable[[Path], _Tail],
    follow: bool,
    last: int | None,
    poll_seconds: float,
) -> Iterator[Line]:
    tails: dict[Path, _Tail] = {}
    with ExitStack() as stack:

        def news() -> list[Iterator[Line]]:
            for file in named():
                if file not in tails:
                    tails[file] = made(file)
                    stack.callback(tails[file].close)
            return [tail.lines() for tail in tails.values()]

        there = heapq.merge(*news(), key=_when)
        yield from there if last is None else deque(there, maxlen=last)
        while follow:
            time.sleep(poll_seconds)
            # What arrived together is sorted; a line that another log writes later cannot be waited for.
            yield from sorted((line for one in news() for line in one), key=_when)


def _lowest(level: str | None) -> int:
    if level is not None and level.lower() not in LEVELS:
        raise ValueError(f"no such level: {level}; there are: {', '.join(LEVELS)}")
    return LEVELS.index(level.lower()) if level else 0


def _parser(flow: str | None, lowest: int, *, with_own: bool) -> _Parse:
    """Parses a line, if it is one that is asked for."""
    name = json.dumps(flow).encode() if flow is not None else b""

    def parse(text: bytes) -> Line | None:
        # Most lines of a shared worker are of other flows: they need not be parsed.
        if name not in text and b'"flow"' in text:
            return None
        try:
            line = json.loads(text)
        except ValueError:
            return None
        if not isinstance(line, dict) or _rank(line) < lowest:
            return None
        of = line.get("flow")
        own = with_own and of is None and _rank(line) >= LEVELS.index("warning")
        return line if flow is None or of == flow or own else None

    return parse


def _rank(line: Line) -> int:
    level = str(line.get("level"))
    return LEVELS.index(level) if level in LEVELS else LEVELS.index("info")


def _when(line: Line) -> str:
    return str(line.get("timestamp", ""))


class _Tail:
    """One log, and how far it has been read. The file stays open, so that one turned over meanwhile is read to its end."""

    def __init__(self, file: Path, parse: _Parse) -> None:
        self._file, self._parse = file, parse
        self._current: BinaryIO | None = None

    def lines(self) -> Iterator[Line]:
        """What has been written since the last call."""
        newer = self._newer()
        if self._current is not None:
            yield from self._rest(self._current)
        for one in newer:
            self.close()
            self._current = one
            yield from self._rest(one)

    def close(self) -> None:
        """Closes the file."""
        if self._current is not None:
            self._current.close()
            self._current = None

    def _newer(self) -> list[BinaryIO]:
        """The files that were begun after the current one, open, the oldest first."""
        found: dict[tuple[int, int], BinaryIO] = {}
        current = None if self._current is None else _identity(self._current)
        number, missing = 0, 0
        # From the newest to the oldest, the way they move when they are turned over: none slips through. One name is
        # missing for a moment then.
        while missing < 2:
            try:
                one = generation(self._file, number).open("rb")
            except OSError:
                missing += 1
            else:
                missing = 0
                if _identity(one) == current:
                    one.close()
                    break
                found.setdefault(_identity(one), one)
            number += 1
        return list(reversed(found.values()))

    def _rest(self, file: BinaryIO) -> Iterator[Line]:
        while text := file.readline():
            if not text.endswith(b"\n"):
                # Its writer is not done with it: the next look takes all of it.
                file.seek(-len(text), os.SEEK_CUR)
                return
            line = self._parse(text)
            if line is not None:
                yield line


def _identity(file: BinaryIO) -> tuple[int, int]:
    facts = os.fstat(file.fileno())
    return facts.st_dev, facts.st_ino
