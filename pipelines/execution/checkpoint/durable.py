"""A batch that is on the disk before it counts as done: for lakes that are to outlive a loss of power (docs/adr/0036).

Neither delta-rs nor Delta on Spark nor Spark's checkpoint ask the disk for anything: what they have written is whole for every
process, and for half a minute in the memory of the machine alone. A durable lake asks twice per batch: for the plan before
anything of the batch is committed, and for the commits before the batch is closed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.places.location import on_disk
from pipelines.sources.offsets import listings
from pipelines.state.delta_log import adds, commit_file, data_file, log_folder
from pipelines.state.record import BATCH, REPLAY, SLICE

if TYPE_CHECKING:
    from pipelines.execution.checkpoint.engine_files import Checkpoint
    from pipelines.state.table import StateTable


def sync(files: Iterable[Path], root: Path, known: set[Path] | None = None) -> None:
    """Have files on the disk, and their names: their folders, and of a new folder those above it up to the root of the lake.

    Args:
        known: folders whose own names are on the disk.
    """
    known = set() if known is None else known
    folders: dict[Path, None] = {}
    for file in files:
        if _synced(file):
            folders[file.parent] = None
            if file.parent not in known:
                folders.update((parent, None) for parent in file.parents if parent.is_relative_to(root))
    for folder in folders:
        _synced(folder)
    known.update(folders)


def _synced(path: Path) -> bool:
    """Sync a file or folder. Return whether it was there: Spark cleans up beside us."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return True


def commit_files(table: StateTable, since: int, last: int, left_out: Container[int] = ()) -> Iterator[Path]:
    """Yield the files of a table's commits behind a version, up to another: data files, commits, and checkpoints of the log.

    Args:
        left_out: versions whose files are not wanted.
    """
    path = on_disk(table.path)
    log = path / log_folder(path).name
    wanted = [version for version in range(since + 1, last + 1) if version not in left_out]
    written = defaultdict[str, list[Path]](list)
    for file in sorted(log.glob("*.checkpoint*")) if wanted else ():
        written[file.name[:20]].append(file)
    for version in wanted:
        yield from (on_disk(data_file(path, add["path"])) for add in adds(path, version))
        checkpoints = written[f"{version:020d}"]
        yield from checkpoints
        if checkpoints:
            yield log / "_last_checkpoint"
        yield on_disk(commit_file(path, version))


def sync_table(table: StateTable, since: int, root: Path) -> None:
    """Have a table's commits behind a version on the disk."""
    sync(commit_files(table, since, table.version()), root)


def asked_up_to(table: StateTable) -> int:
    """Return the version up to which a table's commits were asked for: who made those behind it may have been killed before.

    A stream asks for all that there are before it closes a batch and begins the next one. No other commit says so much.
    """
    records, later = table.history(), dict[object, int]()
    for commit in reversed(records):
        if (record := commit.record) is None or record.kind != BATCH:
            continue
        if later.setdefault((record.flow, record.epoch, record.group), record.txid) != record.txid:
            return commit.version
    return records[0].version - 1 if records else -1


def sync_rest(table: StateTable, root: Path) -> None:
    """Have those of a table's commits on the disk for which nobody may have asked, however old.

    Batches, slices and replays of long ago were asked for. A compaction that was killed has not asked for what it committed, nor
    for the checkpoint that it wrote of the last version before; those of earlier releases asked for their own alone.
    """
    records, asked = table.history(), asked_up_to(table)
    own = frozenset(
        commit.version for commit in records if commit.kind in (BATCH, SLICE, REPLAY) and commit.version <= asked
    )
    sync(commit_files(table, records[0].version - 1, table.version(), own), root)


def sync_log_checkpoints(table: StateTable, root: Path) -> None:
    """Have all checkpoints of a table's log on the disk, however old: who wrote one may have died before it asked."""
    path = on_disk(table.path)
    log = path / log_folder(path).name
    sync([*log.glob("*.checkpoint*"), log / "_last_checkpoint"], root)


class DurableBatches:
    """The requests of a stream to the disk, batch by batch.

    Args:
        tables: those that it writes; one that does not exist yet may come.
    """

    def __init__(self, checkpoint: Checkpoint, tables: Iterable[StateTable], root: Path) -> None:
        self._checkpoint, self._root = checkpoint, root
        self._done = {table: asked_up_to(table) if table.exists() else -1 for table in tables}
        self._state_seen: dict[Path, int] = {}
        self._folders: set[Path] = set()
        self._begun = False

    def planned(self, batch: int) -> None:
        """Sync the plan of a batch, and Spark's mark of the one before, ahead of every commit.

        A table that knows a batch whose plan is gone would take other rows for known ones.
        """
        spark = on_disk(self._checkpoint.spark)
        sources = [folder for folder in (spark / "sources").glob("*") if folder.name.isdigit()]
        logs = [(spark / "offsets", batch), (spark / "commits", batch - 1)]
        # Listings have numbers of their own.
        logs += [(folder, at) for folder in sources for at in listings(spark, batch, int(folder.name))]
        names = [
            folder / name
            for folder, at in logs
            for name in (str(at), f".{at}.crc", f"{at}.compact", f".{at}.compact.crc")
        ]
        if not self._begun:
            names += [spark.parent / name for name in ("epoch.json", "attempts.json", "tables.json", "start.json")]
            # A source that has a log of its beginning alone has it in its first file.
            names += [folder / name for folder in sources for name in ("0", ".0.crc")]
            names += [spark / "metadata", spark / ".metadata.crc"]
        sync(names, self._root, self._folders)
        self._begun = True

    def committed(self) -> None:
        """Sync what the batch has committed, and the state of its windows, before it is closed."""
        files, last = [*self._state_files()], dict(self._done)
        for table, done in self._done.items():
            last[table] = table.version() if table.exists() else -1
            files += commit_files(table, done, last[table])
        sync(files, self._root, self._folders)
        # What has come meanwhile is left to the next batch.
        self._done = last

    def _state_files(self) -> Iterator[Path]:
        """Yield the files of Spark's state store that are new, or others, since the last look."""
        state = on_disk(self._checkpoint.spark) / "state"
        for folder, _, names in os.walk(state) if state.is_dir() else ():
            for name in names:
                file = Path(folder, name)
                try:
                    changed = file.stat().st_mtime_ns
                except FileNotFoundError:
                    continue
                if self._state_seen.get(file) != changed:
                    self._state_seen[file] = changed
                    yield file
