"""Plots of the last batches of a table, for its asset's page.

All of it is recorded anyway: rows, files and bytes in the table's own log, the seconds of a batch by the times at which Spark
began it and marked it as done in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import dagster as dg

from assets.events import plots
from assets.events.plots import Bars
from pipelines.places.location import Place
from pipelines.state.delta_log import actions
from pipelines.state.record import BATCH, COMPACTION, SLICE

if TYPE_CHECKING:
    from assets.view import FlowView
    from pipelines import Lake
    from pipelines.state.record import CommitRecord
    from pipelines.state.table import StateTable

LAST = 40
"""Commits that a plot shows."""


@dataclass(frozen=True)
class Grown:
    """The change of a table's files by one commit, by its log file."""

    files: int
    bytes: int


def grown(table: Place, version: int) -> Grown:
    """Return the files and bytes that a commit added, less those that it took away."""
    files = size = 0
    for name, action in actions(table, version, "add", "remove"):
        sign = 1 if name == "add" else -1
        files, size = files + sign, size + sign * int(action.get("size") or 0)
    return Grown(files, size)


class TablePlots:
    """The plots of one table. It reads each commit once."""

    def __init__(self, view: FlowView, lake: Lake, name: str) -> None:
        self._view, self._lake = view, lake
        self._name = name
        self._writer = view.writers[name]
        self._grown: dict[int, Grown] = {}
        self._sizes: tuple[int, Grown] | None = None

    @cached_property
    def _table(self) -> StateTable:
        # Opened with the first event: before it a run has its batch to begin.
        return self._view.table(self._lake, self._name)

    def metadata(self, seconds: Mapping[int, float] | None = None) -> dict[str, dg.MarkdownMetadataValue]:
        """Return the plots by their titles, for an event of the table.

        Args:
            seconds: By version what commits took, where the caller knows.
        """
        try:
            shown = self._plots(seconds or {})
        except OSError:
            # A compaction has cleaned the log meanwhile; the next event has plots again.
            return {}
        return plots.entries(shown)

    def _plots(self, known: Mapping[int, float]) -> dict[str, Bars]:
        commits = [entry for entry in self._table.history() if entry.kind in (BATCH, SLICE) or _tidies(entry)][-LAST:]
        written = [entry for entry in commits if not _tidies(entry)]
        if not written:
            return {}
        slices = frozenset(at for at, entry in enumerate(written) if entry.kind == SLICE)
        by_txid = {} if len(slices) == len(written) else self._batch_seconds
        seconds = [known.get(entry.version, by_txid.get(entry.txid or 0)) for entry in written]
        batches = partial(Bars, first=_end(written[0]), last=_end(written[-1], short=True), others=slices)
        sizes = self._after(commits)
        tidied = frozenset(at for at, entry in enumerate(commits) if _tidies(entry))
        versions = partial(Bars, first=f"version {commits[0].version}", last=str(commits[-1].version), others=tidied)
        size, unit = plots.in_bytes([entry.bytes for entry in sizes])
        return {
            "rows per batch": batches([entry.rows for entry in written], "rows"),
            "batch seconds": batches(seconds, "seconds"),
            "table size": versions(size, unit),
            "files": versions([entry.files for entry in sizes], "files"),
        }

    def _after(self, commits: Sequence[CommitRecord]) -> list[Grown]:
        """Return files and bytes of the table after each of some commits, up to the last of which all log files exist."""
        first, last = commits[0].version, commits[-1].version
        for version in range(first + 1, last + 1):
            if version not in self._grown:
                self._grown[version] = grown(self._table.path, version)
        at, total = self._total(last)
        totals = {last: total} if at == last else {}
        for version in range(last, first, -1):
            step = self._grown[version]
            total = Grown(total.files - step.files, total.bytes - step.bytes)
            totals[version - 1] = total
        return [totals[commit.version] for commit in commits]

    def _total(self, version: int) -> tuple[int, Grown]:
        """Return the table's files and bytes at a version: counted once, then added up from commit to commit."""
        if self._sizes is None or any(step not in self._grown for step in range(self._sizes[0] + 1, version + 1)):
            import pyarrow as pa
            import pyarrow.compute as pc
            from deltalake import DeltaTable

            added = pa.table(DeltaTable(str(self._table.path), version=version).get_add_actions(flatten=True))
            self._sizes = version, Grown(added.num_rows, int(pc.sum(added["size_bytes"]).as_py() or 0))
        at, total = self._sizes
        for step in range(at + 1, version + 1):
            total = Grown(total.files + self._grown[step].files, total.bytes + self._grown[step].bytes)
        self._sizes = version, total
        return self._sizes

    @cached_property
    def _group(self) -> str | None:
        """Return the batch group that writes the table."""
        groups = self._view.plan.batch_groups
        return next((group.folder for group in groups if self._writer.id in group.nodes and not group.query), None)

    @property
    def _batch_seconds(self) -> dict[int, float]:
        """Return by txid how long the last batches took: from when Spark planned one until it was done."""
        from pipelines.execution.checkpoint.engine_files import Checkpoint

        if self._group is None:
            return {}
        checkpoint = Checkpoint(self._view.name, self._lake.checkpoint_path(self._view.name, self._group))
        epoch, done = checkpoint.epoch, checkpoint.finished_batches()
        if epoch is None:
            return {}
        seconds: dict[int, float] = {}
        for batch in range(max(0, done - LAST), done):
            planned, ended = (checkpoint.spark / part / str(batch) for part in ("offsets", "commits"))
            if planned.exists() and ended.exists():
                seconds[epoch.txid(batch)] = ended.stat().st_mtime - planned.stat().st_mtime
        return seconds


def before_and_after(pairs: Sequence[tuple[float, float]], unit: str, first: str = "", last: str = "") -> Bars:
    """Return pairs of bars, the later one of each in the second colour."""
    return Bars([value for pair in pairs for value in pair], unit, first, last, frozenset(range(1, 2 * len(pairs), 2)))


def _tidies(commit: CommitRecord) -> bool:
    return commit.kind == COMPACTION or commit.operation == "OPTIMIZE"


def _end(commit: CommitRecord, *, short: bool = False) -> str:
    if commit.kind == SLICE:
        return str(commit.slice)
    return str(commit.txid) if short else f"txid {commit.txid}"
