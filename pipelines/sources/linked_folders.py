"""Links between the folders of a source: Spark follows each, by every way that leads there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

_MOST_MORE = 100_000
"""Folders that links may add to those that there are: Spark lists each, one by one."""


def endless(folder: Path, enters: Callable[[str], bool]) -> str | None:
    """Say what keeps Spark from ever listing a folder to the end; None: nothing does.

    A link to a folder that it lies in leads on to itself, forty times, which is where the kernel gives up: two of them are 2^40
    folders. So is a row of folders each of which two links of the one before lead to. A folder is looked into once here.

    Args:
        folder: what is listed.
        enters: whether Spark looks into a folder of a name.
    """
    base = os.path.realpath(folder)
    below, links = _folders(base, enters)
    ways: dict[str, int] = {}
    try:
        for one in TopologicalSorter(below).static_order():
            ways[one] = 1 + sum(ways[other] for other in below[one])
    except CycleError as error:
        ring: list[str] = error.args[1]
        steps = [links[step] for step in zip(ring[1:], ring, strict=False) if step in links]
        return f"the link {min(steps)} leads back to a folder that it lies in"
    if ways[base] - len(ways) > _MOST_MORE:
        return f"its links lead to {len(ways)} folders in {ways[base]} ways, and each is listed"
    return None


def _folders(base: str, enters: Callable[[str], bool]) -> tuple[dict[str, list[str]], dict[tuple[str, str], str]]:
    """Return of each folder below one those that lie in it or that it has links to, and the links.

    What links lead to elsewhere is left out, but for the folders that this one lies in.
    """
    below: dict[str, list[str]] = {}
    links: dict[tuple[str, str], str] = {}
    left = [base]
    while left:
        one = left.pop()
        if one in below:
            continue
        below[one] = []
        for entry in _entries(one, enters):
            other = _within(base, os.path.realpath(entry.path), enters) if entry.is_symlink() else entry.path
            if other is None:
                continue
            if entry.is_symlink():
                links[one, other] = entry.path
            below[one].append(other)
            left.append(other)
    return below, links


def _within(base: str, target: str, enters: Callable[[str], bool]) -> str | None:
    """Return where a link leads within a folder; None: elsewhere. From a folder that it lies in Spark comes back to it."""
    here, there = Path(base), Path(target)
    if here.is_relative_to(there):
        return base if all(map(enters, here.relative_to(there).parts)) else None
    return target if there.is_relative_to(here) else None


def _entries(folder: str, enters: Callable[[str], bool]) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if enters(entry.name) and _is_folder(entry))
    except OSError:  # whoever may not look into it: Spark says so
        return


def _is_folder(entry: os.DirEntry[str]) -> bool:
    # Of a link to itself an entry raises an error.
    return Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()
