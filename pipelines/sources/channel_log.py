"""How a stream reads a channel so that each batch is whole commits, in their order.

Delta's source counts files. A commit into a channel is one file, so a limit cuts between commits. Where that is not so (a
commit of an earlier release, a checkpoint that stands within one), or where a new reader finds files that were rewritten since,
whose times say nothing of their rows, a batch takes all that is there: an event's order names its txid. No Spark here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_BEGINNING = -1
"""Delta's index in an offset that stands between two commits."""


def options(path: Path, offset: Mapping[str, Any] | None, limits: Mapping[str, str]) -> dict[str, str]:
    """The options of a stream over a channel.

    Args:
        path: the channel's table.
        offset: where the reader's last planned batch ends; None: it begins anew.
        limits: how much a batch takes where files are commits.
    """
    log = path / "_delta_log"
    if offset is None:
        commits = _commits(log, 0)
        if not commits or not all(one.kept for one in commits):
            return {}
        start = {"startingVersion": "0"}
        return {**start, **limits} if all(one.files <= 1 for one in commits) else start
    if offset.get("isStartingVersion") or offset["index"] != _BEGINNING:
        return {}
    return dict(limits) if all(one.files <= 1 for one in _commits(log, int(offset["reservoirVersion"]))) else {}


def last_offset(checkpoint: Path, table_id: str) -> dict[str, Any] | None:
    """Where the last batch that Spark has planned ends in a table; None: it has planned none, or none with that table."""
    offsets = checkpoint / "offsets"
    numbers = [int(one.name) for one in offsets.iterdir() if one.name.isdigit()] if offsets.is_dir() else []
    for line in (offsets / str(max(numbers))).read_text("utf-8").splitlines() if numbers else ():
        offset = json.loads(line) if line.startswith("{") else {}
        if offset.get("reservoirId") == table_id:
            return dict(offset)
    return None


class _Commit:
    """A commit: how many files of new rows, and whether every file of before is still there behind it."""

    def __init__(self, text: str) -> None:
        self.files, self.kept = 0, True
        for line in text.splitlines():
            if line.startswith('{"remove"'):
                self.kept = False
            elif line.startswith('{"add"'):
                self.files += bool(json.loads(line)["add"].get("dataChange", True))


def _commits(log: Path, first: int) -> list[_Commit]:
    """The commits from a version on; none if that one is not there any more."""
    found: list[_Commit] = []
    while (file := log / f"{first + len(found):020d}.json").exists():
        found.append(_Commit(file.read_text("utf-8")))
    return found
