"""Links between the folders of a source: Spark follows each, by every way that leads there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

_MOST_MORE = 100_000
"""Folders that links may add to those of the source: Spark lists each, one by one. So many are walked here in some seconds."""


def endless(folder: Path, lists: Callable[[str], bool]) -> str | None:
    """Say what keeps Spark from ever listing a folder to the end; None: nothing does.

    A link to a folder that it lies in leads on to itself, forty times, which is where the kernel gives up: two of them are 2^40
    folders. So is a row of folders each of which two links of the one before lead to. A folder is looked into once here, be it in
    the source or elsewhere.

    Args:
        folder: what is listed.
        lists: whether Spark lists a folder of a name; it lists more than it takes files from.
    """
    base = os.path.realpath(folder)
    below, links, own = _folders(base, lists)
    # Beyond it none are counted: they double from folder to folder, to numbers that fill the memory.
    most = own + _MOST_MORE + 1
    ways: dict[str, int] = {}
    try:
        for one in TopologicalSorter(below).static_order():
            ways[one] = min(most, 1 + sum(ways[other] for other in below.get(one, ())))
    except CycleError as error:
        ring: list[str] = error.args[1]
        steps = [links[step] for step in zip(ring[1:], ring, strict=False) if step in links]
        return f"the link {min(steps)} leads back to a folder that it lies in"
    if len(below) - own > _MOST_MORE:
        return f"its links lead to more than {_MOST_MORE} folders elsewhere, and each is listed"
    if ways[base] - own > _MOST_MORE:
        return f"its links lead to {len(ways)} folders in more than {_MOST_MORE} ways, and each is listed"
    return None


def _folders(base: str, lists: Callable[[str], bool]) -> tuple[dict[str, list[str]], dict[tuple[str, str], str], int]:
    """Return of each folder below one those that lie in it or that it has links to, the links, and how many lie below it.

    The folders elsewhere are the last to be looked into: no more of them than may be.
    """
    below: dict[str, list[str]] = {}
    links: dict[tuple[str, str], str] = {}
    left, elsewhere, own = [base], list[str](), 0
    while left or (elsewhere and len(below) - own <= _MOST_MORE):
        one = left.pop() if left else elsewhere.pop()
        if one in below:
            continue
        below[one] = []
        own += _lies_in(base, one)
        for entry in _entries(one, lists):
            other = entry.path
            if entry.is_symlink():
                other = _target(base, os.path.realpath(entry.path), lists)
                links[one, other] = entry.path
            below[one].append(other)
            (left if _lies_in(base, other) else elsewhere).append(other)
    return below, links, own


def _target(base: str, target: str, lists: Callable[[str], bool]) -> str:
    """Return where a link leads: from a folder that the source lies in Spark comes back to the source."""
    here, there = Path(base), Path(target)
    if here.is_relative_to(there) and all(map(lists, here.relative_to(there).parts)):
        return base
    return target


def _lies_in(base: str, folder: str) -> bool:
    return f"{folder}/".startswith(f"{base.rstrip('/')}/")


def _entries(folder: str, lists: Callable[[str], bool]) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if lists(entry.name) and _is_folder(entry))
    except OSError:  # whoever may not look into it: Spark says so
        return


def _is_folder(entry: os.DirEntry[str]) -> bool:
    # Of a link to itself an entry raises an error.
    return Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()
