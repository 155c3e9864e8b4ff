"""Every command of the tutorial runs, in order, and prints what the page says.

The commands are those of its `console` blocks, behind `$ `; all run in one shell, in a home of their own. What the page shows is
compared loosely: the lines of a block must come in order, `...` stands for anything, boxes and spaces do not count. In a block
behind `<!-- fails -->` the last command must fail; one behind `<!-- soon -->` is tried until it prints what it should.
What is above the first block, `make setup`, CI has done before.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "tutorial.md"
_BLOCK = re.compile(r"(?:<!-- (?P<mark>\w+) -->\s+)?^```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "@@@ ended with"
SOON_SECONDS = 240.0


@dataclass(frozen=True)
class Command:
    """A command with the output that the page shows; `line` is its line in the page, from 1."""

    line: int
    text: str
    shown: tuple[str, ...]
    fails: bool = False
    soon: bool = False


def commands(page: str) -> list[Command]:
    """The commands of a page, in order."""
    found: list[Command] = []
    for block in _BLOCK.finditer(page):
        first = page.count("\n", 0, block.start("text")) + 1
        lines = block["text"].splitlines()
        starts = [n for n, line in enumerate(lines) if line.startswith("$ ")]
        for at, after in zip(starts, [*starts[1:], len(lines)], strict=True):
            last = after == len(lines)
            marked = block["mark"] if last else None
            shown = tuple(lines[at + 1 : after])
            found.append(Command(first + at, lines[at][2:], shown, marked == "fails", marked == "soon"))
    return found


def plain(text: str) -> str:
    """A line without what is only form: colours, boxes, runs of spaces."""
    return " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\u2500-\u257f]", " ", text).split())


def missing(shown: tuple[str, ...], printed: str) -> str | None:
    """The first line of the page that the output has not, at its place; None if all are there."""
    lines, at = [plain(line) for line in printed.splitlines()], 0
    for line in map(plain, shown):
        if line in ("", "..."):
            continue
        pattern = re.compile(".*?".join(re.escape(part) for part in re.split(r" ?\.\.\. ?", line)))
        at = next((n + 1 for n in range(at, len(lines)) if pattern.search(lines[n])), 0)
        if not at:
            return line
    return None


class Shell:
    """A shell that runs one command after the other, as a person's does."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            text=True,
        )

    def run(self, command: str) -> tuple[str, int]:
        """What a command printed, and its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # A command that reads would take the next ones; one without an end of line would hide the marker.
        self._process.stdin.write(f"{{ {command}\n}} </dev/null; printf '\\n{_END} %s\\n' $?\n")
        self._process.stdin.flush()
        printed: list[str] = []
        for line in self._process.stdout:
            if line.startswith(_END):
                return "".join(printed), int(line.removeprefix(_END))
            printed.append(line)
        raise AssertionError(f"the shell has ended in: {command}\n{''.join(printed)}")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell as the page leaves it behind its first part; what it leaves running is ended with it."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRIDELTA_", "DAGSTER_", "PYTEST"))
    }
    kept.pop("PYTHONPATH", None)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {"HOME": str(tmp_path), "TRIDELTA": str(PROJECT), "PATH": path, "COLUMNS": "160", "NO_COLOR": "1"}
    opened = Shell(kept | given, tmp_path)
    try:
        yield opened
    finally:
        opened.close()
        end_processes_of(tmp_path)


def end_processes_of(home: Path) -> None:
    """End the supervisor and worker of this test, should the page have failed before it does."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == str(home):
                process.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(2400)
def test_the_tutorial_runs(shell: Shell) -> None:
    for command in commands(PAGE.read_text(encoding="utf-8")):
        begun = time.monotonic()
        printed, code = shell.run(command.text)
        while command.soon and missing(command.shown, printed) and time.monotonic() - begun < SOON_SECONDS:
            time.sleep(1)
            printed, code = shell.run(command.text)
        said = f"docs/tutorial.md:{command.line}: $ {command.text}\n{printed}\n"
        assert (code != 0) == command.fails, f"{said}exit code {code}"
        lost = missing(command.shown, printed)
        assert lost is None, f"{said}the page says: {lost}"


# --- how it is compared ---------------------------------------------------------------------------------------------


def test_commands_are_found_with_their_output() -> None:
    page = "a\n\n```console\n$ one\nx\n...\n$ two\n```\n\n<!-- fails -->\n\n```console\n$ three\n$ four\n```\n"
    assert commands(page) == [
        Command(4, "one", ("x", "...")),
        Command(7, "two", ()),
        Command(13, "three", ()),
        Command(14, "four", (), fails=True),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "lost"),
    [
        (("a", "c"), "a\nb\nc\n", None),
        (("c", "a"), "a\nb\nc\n", "a"),
        (("│ a │   1 │",), "┃ a ┃ 1 ┃\n", None),
        (("took ... s, ...",), "took 2.5 s, or so", None),
        (("...",), "", None),
        (("a 2",), "a 3", "a 2"),
    ],
)
def test_outputs_are_compared_loosely(shown: tuple[str, ...], printed: str, lost: str | None) -> None:
    assert missing(shown, printed) == lost


def test_the_tutorial_has_what_it_promises() -> None:
    verbs = {command.text.split()[1] for command in commands(PAGE.read_text()) if command.text.startswith("tridelta ")}
    assert verbs >= {
        "new",
        "plan",
        "run",
        "state",
        "query",
        "backfill",
        "verify",
        "submit",
        "status",
        "kill",
        "shutdown",
    }
