"""A process's log as JSON lines: written so that a full disk costs lines and nothing else, and read, turned-over files too."""

from __future__ import annotations

import heapq
import json
import logging
import math
import os
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import structlog

from pipelines.logs import FIELDS
from pipelines.private import private_folder, private_opener

LONGEST = 20_000
"""Characters of one value. Spark's errors come with plans of megabytes, which no reader of a log wants whole."""

QUIET = ("py4j", "alembic", "great_expectations", "matplotlib", "urllib3")
"""Libraries that tell at INFO how they work inside: only their warnings are kept."""

__all__ = ["JsonLines", "LogFile", "configure", "read"]


class JsonLines(logging.Formatter):
    """A record as one line of JSON.

    A line has `timestamp` (UTC, ISO 8601, microseconds), `level`, `logger`, `event`, the facts that its writer named (`flow`,
    `group`, `txid`, `attempt` ...), and `exception` as text.

    Args:
        always: Facts that every line has: those of the process.
    """

    def __init__(self, always: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._always = dict(always or {})

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a line, without its end."""
        facts = getattr(record, FIELDS, None)
        if facts is None:
            facts = {**structlog.contextvars.get_contextvars(), "event": record.getMessage()}
        line = {
            "timestamp": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": facts.get("event"),
        }
        line |= {name: value for name, value in (self._always | facts).items() if name not in line}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        return json.dumps(_plain(line), default=_text, allow_nan=False)


class LogFile(logging.Handler):
    """Appends lines to a file and turns it over: `worker.jsonl` becomes `worker.jsonl.1`, that one `.2`, and so on.

    Every line is one write at the file's end, so two processes may share the file: an earlier worker of the slot that wakes
    up late. A line that cannot be written is dropped and counted; the next one that can says how many were lost (ADR 127).

    Args:
        file: The file; its folder is made.
        megabytes: It is turned over before it grows beyond this.
        files: So many turned-over files are kept.
    """

    def __init__(self, file: Path, megabytes: float = 20.0, files: int = 5) -> None:
        super().__init__()
        self.file, self._bytes, self._files = Path(file), int(megabytes * 1_000_000), files
        self._open_file: int | None = None
        self._torn = False
        self.dropped = 0
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; never raise."""
        try:
            line = self.format(record).encode() + b"\n"
            if self.dropped:
                line = self._loss() + line
            self._write(line)
            self.dropped = 0
        except Exception:
            self.dropped += 1

    def close(self) -> None:
        """Close the file."""
        with self.lock or threading.RLock():
            self._let_go()
        super().close()

    def _write(self, line: bytes) -> None:
        descriptor = self._descriptor(len(line))
        if self._torn:
            line = b"\n" + line
        written = os.write(descriptor, line)
        # A disk that has just become full takes a part.
        self._torn = written < len(line)
        if self._torn:
            raise OSError(f"{written} of {len(line)} bytes were written")

    def _descriptor(self, coming: int) -> int:
        """Return the file, open; another one if it was removed, or turned over by this or another process."""
        if self._open_file is not None and not _same(self._open_file, self.file):
            self._let_go()
        if self._open_file is None:
            self._open_file = self._opened()
        size = os.fstat(self._open_file).st_size
        if size and size + coming > self._bytes:
            self._turn_over()
            self._open_file = self._opened()
        return self._open_file

    def _opened(self) -> int:
        private_folder(self.file.parent)
        return private_opener(str(self.file), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)

    def _turn_over(self) -> None:
        self._let_go()
        for number in range(self._files, 0, -1):
            older = generation(self.file, number - 1)
            if older.exists():
                older.replace(generation(self.file, number))
        if self._files == 0:
            self.file.unlink(missing_ok=True)

    def _let_go(self) -> None:
        if self._open_file is not None:
            os.close(self._open_file)
            self._open_file = None

    def _loss(self) -> bytes:
        loss = {"event": "log lines lost", "lines": self.dropped}
        now = {"timestamp": _timestamp(datetime.now(UTC).timestamp()), "level": "warning", "logger": __name__}
        return json.dumps(now | loss).encode() + b"\n"


def configure(
    file: Path,
    megabytes: float = 20.0,
    files: int = 5,
    *,
    always: Mapping[str, Any] | None = None,
) -> Callable[[], None]:
    """Make this process log into a file: its own lines, warnings, and uncaught errors.

    Args:
        file: Where to; see `LogFile`.
        megabytes: The size at which the file is turned over.
        files: How many turned-over files are kept.
        always: Facts that every line has, whichever thread writes it.

    Returns:
        What takes it all back (for tests; a process just ends).
    """
    handler, root = LogFile(file, megabytes, files), logging.getLogger()
    handler.setFormatter(JsonLines(always))
    before = root.level, sys.excepthook, threading.excepthook
    levels = {name: logging.getLogger(name).level for name in QUIET}
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    sys.excepthook, threading.excepthook = _uncaught(before[1]), _uncaught_in_thread(before[2])

    def take_back() -> None:
        sys.excepthook, threading.excepthook = before[1], before[2]
        logging.captureWarnings(False)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        root.setLevel(before[0])
        root.removeHandler(handler)
        handler.close()

    return take_back


def _uncaught(before: Callable[..., Any]) -> Callable[..., None]:
    def hook(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            logging.getLogger(__name__).critical("the process ends by an error", exc_info=(kind, error, at))
        before(kind, error, at)

    return hook


def _uncaught_in_thread(before: Callable[..., Any]) -> Callable[[threading.ExceptHookArgs], None]:
    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
            name = args.thread.name if args.thread else "?"
            error = (args.exc_type, args.exc_value, args.exc_traceback)
            logging.getLogger(__name__).error("thread %s ended by an error", name, exc_info=error)
        before(args)

    return hook


def _same(descriptor: int, file: Path) -> bool:
    try:
        there = file.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino) or not stat.S_ISREG(there.st_mode)


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _plain(value: Any) -> Any:
    """Return a value in JSON's terms, with texts cut."""
    if isinstance(value, str):
        more = len(value) - LONGEST
        return value if more <= 0 else f"{value[:LONGEST]} ... ({more:,} more characters)"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value


def _text(value: Any) -> str:
    try:
        return str(value)[:LONGEST]
    except Exception as error:
        return f"<{type(value).__name__} that cannot be written: {type(error).__name__}>"


LEVELS = ("debug", "info", "warning", "error", "critical")

Line = dict[str, Any]
Files = Sequence[Path] | Callable[[], Sequence[Path]]
_Parse = Callable[[bytes], Line | None]


def generation(file: Path, number: int) -> Path:
    """Return the file turned over so many times ago; 0: the one that is written."""
    return file if number == 0 else file.with_name(f"{file.name}.{number}")


_POLL_SECONDS = 0.3


def read(
    files: Files,
    flow: str | None = None,
    level: str | None = None,
    follow: bool = False,
    *,
    last: int | None = None,
    concerns: Callable[[Path], bool] = lambda _: True,
) -> Iterator[Line]:
    """Read the lines of some logs, by time; what is no JSON is left out.

    Args:
        files: The files that are written (`worker.jsonl`); or a function that names them, asked again while following.
        flow: Only lines of this flow, and warnings that name no flow: those of the worker itself.
        level: Only this level and worse.
        follow: Go on with what is written from now on, without end; files that are turned over or new are followed too.
        last: how many of the existing lines to give, counted from the end.
        concerns: Whether warnings that name no flow count, by file.

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

    return _lines(files if callable(files) else lambda: files, tail, follow, last)


def _lines(
    named: Callable[[], Sequence[Path]], made: Callable[[Path], _Tail], follow: bool, last: int | None
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
            time.sleep(_POLL_SECONDS)
            # What arrived together is sorted; a line that another log writes later cannot be waited for.
            yield from sorted((line for lines in news() for line in lines), key=_when)


def _lowest(level: str | None) -> int:
    if level is not None and level.lower() not in LEVELS:
        raise ValueError(f"no such level: {level}; there are: {', '.join(LEVELS)}")
    return LEVELS.index(level.lower()) if level else 0


def _parser(flow: str | None, lowest: int, *, with_own: bool) -> _Parse:
    """Return a function that parses a line, if it is asked for."""
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
        """Return what has been written since the last call."""
        newer = self._newer()
        if self._current is not None:
            yield from self._rest(self._current)
        for file in newer:
            self.close()
            self._current = file
            yield from self._rest(file)

    def close(self) -> None:
        """Close the file."""
        if self._current is not None:
            self._current.close()
            self._current = None

    def _newer(self) -> list[BinaryIO]:
        """Return the files that were begun after the current one, open, the oldest first."""
        files: dict[tuple[int, int], BinaryIO] = {}
        current = None if self._current is None else _identity(self._current)
        number, missing = 0, 0
        # From the newest to the oldest, the way they move when they are turned over: none slips through. One name is
        # missing for a moment then.
        while missing < 2:
            try:
                file = generation(self._file, number).open("rb")
            except OSError:
                missing += 1
            else:
                missing = 0
                if _identity(file) == current:
                    file.close()
                    break
                files.setdefault(_identity(file), file)
            number += 1
        return list(reversed(files.values()))

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
