"""The inputs of a bounded run: channels of its own, and slices of other flows' tables, for which a slice waits.

Each bounded run has a folder for its channels, with a lock that shows that the run lives.
"""

from __future__ import annotations

import shlex
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from pipelines.errors import TrideltaError
from pipelines.execution.report import SliceReport
from pipelines.places.location import Location, Place
from pipelines.private import FOLDER_MODE
from pipelines.sources.base import place_of
from pipelines.sources.delta import DeltaTableSource
from pipelines.state.slices import made_slices
from pipelines.state.table import StateTable

if TYPE_CHECKING:
    from pipelines.graph import nodes


class UpstreamSliceError(TrideltaError):
    """A slice was not computed: a table that it is computed from does not hold that slice, or holds one that failed.

    Attributes:
        flow: the flow whose slice it is.
        table: the table of the other flow.
        upstream: the other flow.
        seen: what was seen of the slice there.
    """

    def __init__(self, flow: str, slice_: str, table: str, upstream: str, seen: str) -> None:
        self.flow, self.slice, self.table, self.upstream, self.seen = flow, slice_, table, upstream, seen
        quoted = shlex.quote(slice_)
        super().__init__(
            f'flow "{flow}": slice {slice_} was not computed: it reads "{table}" of the flow "{upstream}", and {seen}',
            hint=f"make it there first: tridelta backfill {upstream} --from {quoted} --to {quoted}; then this one again",
        )


@dataclass(frozen=True)
class UpstreamTable:
    """A sliced table that a flow reads as a source.

    Attributes:
        flow: the flow that writes it.
        made: the slices that it holds.
    """

    name: str
    flow: str
    made: frozenset[str]

    def missing(self, flow: str, slice_: str) -> UpstreamSliceError:
        """Return the error that it does not hold a slice, with what it holds."""
        held = f"it holds {len(self.made)} others, {min(self.made)} to {max(self.made)}" if self.made else "it has none"
        return UpstreamSliceError(flow, slice_, self.name, self.flow, f"that slice is not there ({held})")


def upstream_tables(spouts: Iterable[nodes.SpoutNode]) -> tuple[UpstreamTable, ...]:
    """Return the sliced tables of the lake among the sources of some spouts."""
    tables = []
    for table in _read(spouts):
        made = made_slices(table)
        if made is not None and table.is_state():
            tables.append(UpstreamTable(table.name, table.declared.flow, made))
    return tuple(tables)


def versions_read(spouts: Iterable[nodes.SpoutNode]) -> dict[str, tuple[int, str]]:
    """Return the versions and ids of these tables, by name, before anything of them is read: what is read is no older."""
    return {table.name: table.last for table in _read(spouts) if table.is_state() and table.declared.sliced}


def _read(spouts: Iterable[nodes.SpoutNode]) -> list[StateTable]:
    sources = [spout.source.inner for spout in spouts]
    return [
        StateTable(place_of(source.path).name, place_of(source.path))
        for source in sources
        if isinstance(source, DeltaTableSource)
    ]


def refused(flow: str, spouts: Iterable[nodes.SpoutNode], slices: Sequence[str]) -> dict[str, SliceReport]:
    """Report as failed the slices that a table does not hold from which they are computed."""
    tables = upstream_tables(spouts)
    reports = {}
    for slice_ in slices:
        missing = [str(table.missing(flow, slice_)) for table in tables if slice_ not in table.made]
        if missing:
            reports[slice_] = SliceReport(
                flow=flow, slice=slice_, received=0, quarantined=0, commits=(), seconds=0.0, error="; ".join(missing)
            )
    return reports


RUN_PREFIX, _LOCK = "bounded-", ".lock"
# Without a lock it is of an earlier release, or its run died before it had one: longer than any run takes.
_OLD_SECONDS = 86_400.0


@contextmanager
def bounded_folder(lake_root: Place, flow: str, mode: int = FOLDER_MODE) -> Iterator[Place]:
    """Make a folder for the channels of one bounded run, and remove it when the block ends."""
    if isinstance(lake_root, Location):
        place = lake_root / "spool" / flow / f"{RUN_PREFIX}{uuid.uuid4().hex}"
        try:
            yield place
        finally:
            for file in list(place.rglob("*")):
                file.unlink(missing_ok=True)
        return
    parent = lake_root / "spool" / flow
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"{RUN_PREFIX}{uuid.uuid4().hex}"
    # The lock first: a folder without one looks like what a killed run has left.
    with FileLock(_lock_of(folder)):
        folder.mkdir(mode=mode)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            _lock_of(folder).unlink(missing_ok=True)


def left_behind(lake_root: Path) -> list[Path]:
    """Return the folders whose runs are dead."""
    return [folder for folder in sorted((lake_root / "spool").glob(f"*/{RUN_PREFIX}*")) if _is_left(folder)]


def remove_folder(folder: Path) -> bool:
    """Remove a folder that was left behind. False: a run has it."""
    if not _is_left(folder):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    _lock_of(folder).unlink(missing_ok=True)
    return not folder.exists()


def _is_left(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    lock = _lock_of(folder)
    if not lock.exists():
        return time.time() - folder.stat().st_mtime > _OLD_SECONDS
    try:
        with FileLock(lock, timeout=0):
            return True
    except Timeout:
        return False


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _LOCK)
