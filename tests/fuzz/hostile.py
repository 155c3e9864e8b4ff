"""Inputs that nobody would give on purpose: values, and mutations of what is right. The seed says which."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

WORDS = (
    "", " ", "\n", "\t", "\0", "\x1b[31m", "²", "日" * 40, "\u202e", "a" * 3000, "'", '"', "`", "\\", "--", "/*",
    "*/", ";", "$(id)", "%s",
    "{}", "[]", "[[", "{{", "nan", "inf", "-inf", "1e400", "-1", "0", "1", "2013-13-45", "2013-02-30", "null", "~",
    "true", "yes", "!!python/x",
    "&a", "*a", "<<: *a", "../..", "/etc/passwd", "/dev/null", "file:///x", "http://u:p@h:x/", "sqlite://", "C:\\",
    "9" * 30, "0x1F", "1_000", "é",
    "NULL", "SELECT 1", "reflect('java.lang.System','exit')", "=", "==", "a=b", "a:b", "a: b", "- a", "# a", "|",
    ">", "@", "%",
)  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -5, 3, 7,
    2**31, 2**63, 2**64, 10**30, 0.5, -0.5, 1e308, float("nan"), float("inf"), "", "a", "q0", "1", "nan",
    [], [1], ["a"], [1, "a"], [None], [[]], [{}], {}, {"a": 1}, {"components": {"q0": 1}}, {"components": 5},
    {1: 2}, (1,), "x" * 5000,
    [{"components": {"q0": 1}}], [{"components": {"q0": -1}}], {"busy": 0.9}, {"spark.a": "b"}, {"by_k": ["k"]},
    "local[2]", "refuse",
)  # fmt: skip


def drawn(kind: str, number: int) -> random.Random:
    """The dice of an input."""
    return random.Random(f"{kind} {number}")


def damaged_text(dice: random.Random, text: str) -> str:
    """A text with one to three places changed: a line gone, doubled, moved in or out, a word replaced, a piece cut out."""
    for _ in range(dice.randint(1, 3)):
        lines = text.split("\n")
        at = dice.randrange(len(lines))
        match dice.randrange(7):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[dice.randrange(len(lines))])
            case 2:
                lines[at] = " " * dice.randint(0, 9) + lines[at].lstrip()
            case 3:
                lines[at] = _word_replaced(dice, lines[at])
            case 4:
                cut = dice.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:cut] + dice.choice(WORDS) + lines[at][cut:]
            case 5:
                first = dice.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:first] + lines[at][first + dice.randint(1, 9) :]
            case _:
                lines[at] = f"{lines[at].partition(':')[0]}: {dice.choice(WORDS)}"
        text = "\n".join(lines)
    return text


def _word_replaced(dice: random.Random, line: str) -> str:
    words = line.split(" ")
    words[dice.randrange(len(words))] = dice.choice(WORDS)
    return " ".join(words)


def damaged_arguments(dice: random.Random, arguments: Sequence[str]) -> list[str]:
    """Arguments with one or two changed, gone, doubled or new. The command stays."""
    command, *found = arguments
    for _ in range(dice.randint(1, 2)):
        at = dice.randrange(len(found) + 1)
        match dice.randrange(5):
            case 0 if found:
                del found[at % len(found)]
            case 1 if found:
                found.insert(at, dice.choice(found))
            case 2 if found:
                name, equals, _ = found[at % len(found)].partition("=")
                found[at % len(found)] = f"{name}{equals}{dice.choice(WORDS)}"
            case 3 if found:
                found[at % len(found)] = dice.choice(WORDS)
            case _:
                found.insert(at, dice.choice(WORDS))
    return [command, *found]


def damaged_bytes(dice: random.Random, data: bytes) -> bytes:
    """A file as a fault leaves it: cut off, empty, zeros, junk, a part of it gone. Never other figures in the same form, which
    nobody could tell.
    """
    at = dice.randrange(len(data)) if data else 0
    match dice.randrange(6):
        case 0:
            return data[:at]
        case 1:
            return b""
        case 2:
            return b"\0" * len(data)
        case 3:
            return dice.randbytes(max(1, len(data)))
        case 4:
            return data[at:]
        case _:
            return b"\xff\xfe" + data
