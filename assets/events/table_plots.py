"""Plots of the last batches of a table, for its asset's page.

All of it is recorded anyway: rows, files and bytes in the table's own log, the seconds of a batch by the times at which Spark
began it and marked it as done in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.events import plots
from assets.events.plots import Bars
from pipelines.places.location import Place
from pipelines.state.delta_log import actions
from pipelines.state.record import BATCH, COMPACTION, SLICE, parse_commit

if TYPE_CHECKING:
    from assets.view import FlowView
    from pipelines import Lake

LAST = 40
"""Commits that a plot shows."""

MOST_READ = 5 * LAST
"""Commits that are read for the plots: where others lie between those that they show, they show fewer."""


@dataclass(frozen=True, slots=True)
class Grown:
    """The change of a table's files by one commit, by its log file."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as plots show it. The sensor keeps those of all tables, so it is no more than that.

    Attributes:
        tidies: Whether it only put rows into other files.
    """

    version: int
    kind: str
    txid: int | None
    slice: str | None
    rows: int
    tidies: bool
    grown: Grown

    @property
    def is_shown(self) -> bool:
        """Check whether plots show it."""
        return self.kind in (BATCH, SLICE) or self.tidies


def read_commit(table: Place, version: int) -> Commit:
    """Read a commit's log file; it has grown by the files that it added, less those that it took away."""
    info: dict[str, Any] = {}
    files = size = 0
    for name, action in actions(table, version, "commitInfo", "add", "remove"):
        if name == "commitInfo":
            info = action
            continue
        sign = 1 if name == "add" else -1
        files, size = files + sign, size + sign * int(action.get("size") or 0)
    of = parse_commit(version, info)
    tidies = of.kind == COMPACTION or of.operation == "OPTIMIZE"
    return Commit(version, of.kind, of.txid, of.slice, of.rows, tidies, Grown(files, size))


class TablePlots:
    """The plots of one table. It reads each commit once, and of a long log no more than its end.

    A log keeps a week of commits, and the plots show the last few: the table's history would be read for them commit by commit.
    """

    def __init__(self, view: FlowView, lake: Lake, name: str) -> None:
        self._view, self._lake = view, lake
        self._name = name
        self._writer = view.writers[name]
        # Replaced and never changed: a tick that Dagster has given up may still be drawing beside the next one.
        self._read: dict[int, Commit] = {}
        self._took: dict[int, float] = {}
        self._sizes: tuple[int, Grown] | None = None

    @cached_property
    def _path(self) -> Place:
        return self._view.table(self._lake, self._name).path

    def metadata(self, version: int, seconds: Mapping[int, float] | None = None) -> dict[str, dg.MarkdownMetadataValue]:
        """Return the plots by their titles, for an event of the table.

        Args:
            version: The last one that they show.
            seconds: By version what commits took, where the caller knows.
        """
        try:
            shown = self._plots(version, seconds or {})
        except OSError:
            # A compaction has cleaned the log meanwhile; the next event has plots again.
            return {}
        return plots.entries(shown)

    def _plots(self, version: int, known: Mapping[int, float]) -> dict[str, Bars]:
        read = self._read_back(version)
        commits = [read[at] for at in sorted(read) if read[at].is_shown]
        written = [entry for entry in commits if not entry.tidies]
        if not written:
            return {}
        slices = frozenset(at for at, entry in enumerate(written) if entry.kind == SLICE)
        by_txid = {} if len(slices) == len(written) else self._batch_seconds()
        seconds = [known.get(entry.version, by_txid.get(entry.txid or 0)) for entry in written]
        batches = partial(Bars, first=_end(written[0]), last=_end(written[-1], short=True), others=slices)
        sizes = self._after(commits, read)
        tidied = frozenset(at for at, entry in enumerate(commits) if entry.tidies)
        versions = partial(Bars, first=f"version {commits[0].version}", last=str(commits[-1].version), others=tidied)
        size, unit = plots.in_bytes([entry.bytes for entry in sizes])
        return {
            "rows per batch": batches([entry.rows for entry in written], "rows"),
            "batch seconds": batches(seconds, "seconds"),
            "table size": versions(size, unit),
            "files": versions([entry.files for entry in sizes], "files"),
        }

    def _read_back(self, version: int) -> dict[int, Commit]:
        """Return the commits up to a version, as many as plots need, by version: read from the newest back, one file each."""
        read: dict[int, Commit] = {}
        shown = 0
        for at in range(version, max(version - MOST_READ, -1), -1):
            try:
                read[at] = self._read.get(at) or read_commit(self._path, at)
            except FileNotFoundError:
                break  # the log was cleaned up to here
            shown += read[at].is_shown
            if shown == LAST:
                break
        self._read = read
        return read

    def _after(self, commits: Sequence[Commit], read: Mapping[int, Commit]) -> list[Grown]:
        """Return files and bytes of the table after each of some commits."""
        first, last = commits[0].version, commits[-1].version
        total = self._total(last, read)
        totals = {last: total}
        for version in range(last, first, -1):
            step = read[version].grown
            total = Grown(total.files - step.files, total.bytes - step.bytes)
            totals[version - 1] = total
        return [totals[commit.version] for commit in commits]

    def _total(self, version: int, read: Mapping[int, Commit]) -> Grown:
        """Return the table's files and bytes at a version: counted once, then added up from commit to commit."""
        at, total = self._sizes or (version + 1, Grown(0, 0))
        if at > version or any(step not in read for step in range(at + 1, version + 1)):
            import pyarrow as pa
            import pyarrow.compute as pc
            from deltalake import DeltaTable

            added = pa.table(DeltaTable(str(self._path), version=version).get_add_actions(flatten=True))
            at, total = version, Grown(added.num_rows, int(pc.sum(added["size_bytes"]).as_py() or 0))
        for step in range(at + 1, version + 1):
            grown = read[step].grown
            total = Grown(total.files + grown.files, total.bytes + grown.bytes)
        self._sizes = version, total
        return total

    @cached_property
    def _group(self) -> str | None:
        """Return the batch group that writes the table."""
        groups = self._view.plan.batch_groups
        return next((group.folder for group in groups if self._writer.id in group.nodes and not group.query), None)

    def _batch_seconds(self) -> dict[int, float]:
        """Return by txid how long the last batches took: from when Spark planned one until it was done."""
        from pipelines.execution.checkpoint.engine_files import Checkpoint

        if self._group is None:
            return {}
        checkpoint = Checkpoint(self._view.name, self._lake.checkpoint_path(self._view.name, self._group))
        epoch, done = checkpoint.epoch, checkpoint.finished_batches()
        if epoch is None:
            return {}
        took: dict[int, float] = {}
        for batch in range(max(0, done - LAST), done):
            txid = epoch.txid(batch)
            if txid in self._took:
                took[txid] = self._took[txid]
                continue
            with suppress(FileNotFoundError):
                planned, ended = ((checkpoint.spark / part / str(batch)).stat() for part in ("offsets", "commits"))
                took[txid] = ended.st_mtime - planned.st_mtime
        self._took = took
        return took


def before_and_after(pairs: Sequence[tuple[float, float]], unit: str, first: str = "", last: str = "") -> Bars:
    """Return pairs of bars, the later one of each in the second colour."""
    return Bars([value for pair in pairs for value in pair], unit, first, last, frozenset(range(1, 2 * len(pairs), 2)))


def _end(commit: Commit, *, short: bool = False) -> str:
    if commit.kind == SLICE:
        return str(commit.slice)
    return str(commit.txid) if short else f"txid {commit.txid}"
