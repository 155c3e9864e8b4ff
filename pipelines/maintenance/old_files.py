"""Remove old files: copies of checkpoints, replaced checkpoints, folders of dead bounded runs, state of windows, logs.

No Spark here.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pipelines.errors import LockedError
from pipelines.execution.checkpoint.copy import Marker
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.window_state import VERSION, description
from pipelines.execution.runners.bounded_inputs import left_behind, remove_folder
from pipelines.graph.fields import is_name
from pipelines.maintenance.housekeeping_report import HousekeepingItem
from pipelines.places.location import Location, on_disk
from pipelines.places.store import Entry

if TYPE_CHECKING:
    from pipelines.state.lake import Lake

_DAY = 86_400.0
_GONE = ".gone"

DEAD_RUN_DAYS = 7.0
"""After that a bounded run on a store, which no lock shows to live, has put nothing into its channels: it was killed."""


def remove_old_copies(
    lake: Lake, days: float | None, *, dry_run: bool = False, now: float | None = None
) -> HousekeepingItem:
    """Remove old copies of checkpoints, made by repartitions.

    The newest whole copy of each query stays for `days`, the others go. One that a repartition under way still needs is
    never touched, nor one that is still being made.
    """
    folders = _whole(lake.folder / "copies", "*/*/*", dry_run)
    gone: list[Path] = []
    for query in sorted({folder.parent for folder in folders}) if days is not None else ():
        own = [folder for folder in folders if folder.parent == query]
        gone += _old_copies(lake, query, own, days or 0.0, time.time() if now is None else now)
    return _removed("copies of checkpoints", folders, gone, dry_run)


def _old_copies(lake: Lake, query: Path, copies: Sequence[Path], days: float, now: float) -> list[Path]:
    marker = Marker.of(Checkpoint(query.parent.name, lake.checkpoint_path(query.parent.name, query.name)))
    needed = Path(marker.copy).name if marker else None
    whole = sorted((copy for copy in copies if (copy / "copy.json").exists()), key=_made_at)
    newest = whole[-1] if whole else None
    gone = []
    for copy in copies:
        # A folder without its description is being made, or was when its process died: after a day it is the latter.
        keep = days if copy == newest else 0.0 if copy in whole else max(days, 1.0)
        if copy.name != needed and now - _made_at(copy) > keep * _DAY:
            gone.append(copy)
    return gone


def remove_old_copies_there(
    lake: Lake, root: Location, days: float | None, *, dry_run: bool = False, now: float | None = None
) -> HousekeepingItem:
    """Remove copies of checkpoints on a store `days` after they were made; never one that a repartition still needs."""
    copies = StoreFolders("copies of checkpoints", root / "copies", "*/*/*")

    def is_needed(flow: str, group: str, copy: str) -> bool:
        marker = Marker.of(Checkpoint(flow, lake.checkpoint_path(flow, group)))
        return marker is not None and marker.copy.rstrip("/").endswith(f"/{copy}")

    return remove_old_objects(copies, days, dry_run=dry_run, now=now, is_needed=is_needed)


def _made_at(copy: Path) -> float:
    described = copy / "copy.json"
    return (described if described.exists() else copy).stat().st_mtime


def remove_replaced(
    lake: Lake, days: float | None, *, dry_run: bool = False, now: float | None = None
) -> HousekeepingItem:
    """Remove checkpoints that a changed definition has put aside (`Checkpoint.begin_at`). Nothing reads them again."""
    folders = _whole(lake.folder / "replaced", "*/*.replaced", dry_run)
    oldest = (time.time() if now is None else now) - (days or 0.0) * _DAY
    gone = [folder for folder in folders if days is not None and _touched(folder) < oldest]
    return _removed("replaced checkpoints", folders, gone, dry_run)


def _touched(folder: Path) -> float:
    """Return when a folder was last changed, or renamed."""
    seen = folder.stat()
    return max(seen.st_mtime, seen.st_ctime)


def remove_dead_runs(lake: Lake, *, dry_run: bool = False) -> HousekeepingItem:
    """Remove folders of bounded runs whose processes are dead."""
    folders = sorted(folder for folder in (lake.folder / "spool").glob("*/bounded-*") if folder.is_dir())
    left = left_behind(lake.folder)
    size = sum(map(size_of, left))
    removed = len(left) if dry_run else sum(remove_folder(folder) for folder in left)
    return HousekeepingItem("folders of bounded runs", "folders", len(folders), removed, size)


@dataclass(frozen=True)
class StoreFolders:
    """Folders of a store that go with their age.

    Attributes:
        what: They are, for people.
        pattern: Of their names below `root`, such as `*/*.replaced`.
    """

    what: str
    root: Location
    pattern: str

    def entries(self) -> dict[tuple[str, ...], list[Entry]]:
        """Return what is in each of them, by its names."""
        wanted = PurePosixPath(self.pattern)
        folders: dict[tuple[str, ...], list[Entry]] = {}
        for entry in self.root.store.entries(self.root.key):
            *names, _ = entry.key.removeprefix(f"{self.root.key}/").split("/")
            folder = PurePosixPath(*names[: len(wanted.parts)])
            if len(folder.parts) == len(wanted.parts) and folder.match(self.pattern):
                folders.setdefault(folder.parts, []).append(entry)
        return folders


def remove_old_objects(
    wanted: StoreFolders,
    days: float | None,
    *,
    dry_run: bool = False,
    now: float | None = None,
    is_needed: Callable[..., bool] = lambda *names: False,
) -> HousekeepingItem:
    """Remove folders of a store of which no object was put for some days. What is in none of them stays.

    Args:
        days: None: they stay.
        is_needed: By these names; such a folder stays.
        now: Seconds since 1970; the store's time without it.
    """
    folders, root = wanted.entries(), wanted.root
    at = root.store.clock(root.key) if now is None and folders else now or 0.0
    gone = [
        entries
        for names, entries in folders.items()
        if days is not None and at - max(entry.modified for entry in entries) >= days * _DAY and not is_needed(*names)
    ]
    for entry in (entry for entries in gone if not dry_run for entry in entries):
        root.store.delete(entry.key)
    size = sum(entry.size for entries in gone for entry in entries)
    return HousekeepingItem(wanted.what, "folders", len(folders), len(gone), size)


def size_of(folder: Path) -> int:
    """Return bytes of all files below a folder, or of a file. What goes meanwhile does not count."""
    total = 0
    for path in (folder, *folder.rglob("*")):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _whole(root: Path, pattern: str, dry_run: bool) -> list[Path]:
    """Return the folders of a pattern. What an earlier round was about to remove when it was cut off goes now."""
    for cut_off in root.glob(f"{pattern.rpartition('/')[0]}/.*{_GONE}") if not dry_run else ():
        shutil.rmtree(cut_off, ignore_errors=True)
    return sorted(folder for folder in root.glob(pattern) if folder.is_dir() and not folder.name.endswith(_GONE))


def _removed(what: str, folders: Sequence[Path], gone: Iterable[Path], dry_run: bool) -> HousekeepingItem:
    removed, size, note = 0, 0, ""
    for folder in gone:
        weight = size_of(folder)
        if not dry_run:
            # Renamed first: cut off in the middle, nobody takes a part of it for the whole.
            doomed = folder.with_name(f".{folder.name}{_GONE}")
            try:
                folder.rename(doomed)
                shutil.rmtree(doomed)
            except OSError as error:
                note = f"not all could be removed: {error}"
                continue
        removed, size = removed + 1, size + weight
    return HousekeepingItem(what, "folders", len(folders), removed, size, note=note)


_SHARED = ("SSTs", "logs")
# What the last batch left and what it began with: Spark may want to run it again.
_LEAST = 2


def remove_old_state(lake: Lake, versions: float | None, *, dry_run: bool = False) -> HousekeepingItem:
    """Delete the old state of all queries that do not run.

    Spark deletes old versions itself, in a thread that wakes once a minute: a query that only ever runs for seconds, as in
    scheduled catch-ups, keeps them all. The old versions of such a query are deleted here, while it does not run, as Spark
    would: the last `versions` stay, and of the SST files that versions share all that a version which stays names.

    Args:
        versions: so many stay, two at least; None: all.
    """
    before = removed = size = 0
    running = []
    for checkpoint in _checkpoints(lake) if versions is not None else ():
        partitions = list(_partitions(checkpoint))
        before += sum(len(_versions(partition)) for partition in partitions)
        if not any(len(_versions(partition)) > (versions or 0) for partition in partitions):
            continue
        try:
            # A repartition that was cut off comes first: the next start sees to it.
            with checkpoint.running(0):
                for partition in partitions if Marker.of(checkpoint) is None else ():
                    count, weight = prune(partition, max(_LEAST, int(versions or 0)), dry_run=dry_run)
                    removed, size = removed + count, size + weight
        except LockedError:
            # Spark looks once a minute, so some more than asked for are as it should be.
            many = any(len(_versions(partition)) > 2 * (versions or 0) for partition in partitions)
            running += [] if not many else [f"{checkpoint.flow}/{checkpoint.folder.name}"]
    note = f"{', '.join(running)} runs: Spark sees to it" if running else ""
    return HousekeepingItem("state of windows", "versions", before, removed, size, note=note)


def prune(partition: Path, versions: int, *, dry_run: bool = False) -> tuple[int, int]:
    """Delete the old versions of one state store. Return how many, and their bytes with those of what they alone named.

    The oldest version that stays begins with a snapshot, for the ones after it may be changes to it. A store with a file in
    a form that is not known is left as it is.
    """
    by_version = _versions(partition)
    if len(by_version) <= versions:
        return 0, 0
    wanted = sorted(by_version)[-versions]
    snapshots = [version for version, files in by_version.items() if any(file.suffix == ".zip" for file in files)]
    first = max((version for version in snapshots if version <= wanted), default=None)
    if first is None:
        return 0, 0
    needed: set[str] = set()
    for version, files in by_version.items():
        for file in files if version >= first else ():
            named = _named_by(file)
            if named is None:
                return 0, 0
            needed |= named
    old = [version for version in by_version if version < first]
    # Versions before what they name: cut off in between, files are left that no version names.
    doomed = [file for version in sorted(old) for file in by_version[version]]
    if old:
        doomed += [file for file in _shared(partition) if file.name not in needed]
    size = sum(_delete(file, dry_run) for file in doomed)
    return len(old), size


def _checkpoints(lake: Lake) -> Iterator[Checkpoint]:
    for folder in sorted((lake.folder / "checkpoints").glob("*/*")):
        if is_name(folder.parent.name) and (folder / "spark" / "state").is_dir():
            yield Checkpoint(folder.parent.name, folder)


def _partitions(checkpoint: Checkpoint) -> Iterator[Path]:
    """Yield `state/<operator>/<partition>`, and below it named stores, as joins have them."""
    for folder in sorted((on_disk(checkpoint.spark) / "state").glob("[0-9]*/[0-9]*")):
        yield folder
        yield from (
            store for store in sorted(folder.iterdir()) if store.is_dir() and store.name not in (*_SHARED, "_metadata")
        )


def _versions(partition: Path) -> dict[int, list[Path]]:
    by_version: dict[int, list[Path]] = {}
    for file in partition.iterdir():
        if match := VERSION.match(file.name):
            by_version.setdefault(int(match[1]), []).append(file)
    return by_version


def _shared(partition: Path) -> Iterator[Path]:
    for folder in (partition / name for name in _SHARED):
        if folder.is_dir():
            yield from (file for file in folder.iterdir() if not file.name.startswith("."))


def _named_by(file: Path) -> set[str] | None:
    """Return the shared files that a version needs; None: it is in no form that is known."""
    if file.suffix == ".changelog":
        return set()
    described = description(file)
    if described is None:
        return None
    try:
        return {
            shared[key]
            for files, key in (("sstFiles", "dfsSstFileName"), ("logFiles", "dfsLogFileName"))
            for shared in described.get(files) or ()
        }
    except (KeyError, TypeError):
        return None


def _delete(file: Path, dry_run: bool) -> int:
    size = 0
    for path in (file, file.with_name(f".{file.name}.crc")):
        if path.exists():
            size += path.stat().st_size
            if not dry_run:
                path.unlink(missing_ok=True)
    return size


_LOG = re.compile(r"\.(jsonl|out)(\.\d+)?$")
_TURNED_OVER = re.compile(r"\.\d+$")


@dataclass(frozen=True)
class _Log:
    path: Path
    changed: float
    size: int
    key: tuple[int, int]

    def may_go(self, now: float) -> bool:
        """Return whether no process of another host, which is not seen from here, can have it open."""
        return bool(_TURNED_OVER.search(self.path.name)) or now - self.changed > _DAY


def remove_old_logs(
    nimbus_home: Path,
    days: float | None,
    megabytes: float | None,
    *,
    dry_run: bool = False,
    now: float | None = None,
) -> HousekeepingItem:
    """Remove logs under `<home>/nimbus/logs` and `<home>/nimbus/supervisors`: old ones, then the oldest until the rest fits.

    A file that a process has open is never removed.

    Args:
        nimbus_home: `<home>/nimbus`.
        days: how long a log stays after its last line; None: for good.
        megabytes: how much all of them may take; None: any.
    """
    now = time.time() if now is None else now
    logs = _logs(nimbus_home)
    wanted = _to_go([log for log in logs if log.may_go(now)], sum(log.size for log in logs), days, megabytes, now)
    held = open_files() if wanted else set()
    gone = [log for log in wanted if log.key not in held]
    note = "some are open: a process still writes them" if len(gone) < len(wanted) else ""
    for log in gone if not dry_run else ():
        log.path.unlink(missing_ok=True)
    return HousekeepingItem("worker logs", "files", len(logs), len(gone), sum(log.size for log in gone), note=note)


def open_files() -> set[tuple[int, int]]:
    """Return the files that a process of this machine has open, as device and inode, as far as one may look."""
    import psutil

    keys = set()
    for process in psutil.process_iter():
        try:
            opened = process.open_files()
        except (psutil.Error, OSError):
            continue
        for file in opened:
            try:
                seen = Path(file.path).stat()
            except OSError:
                continue
            keys.add((seen.st_dev, seen.st_ino))
    return keys


def _logs(nimbus_home: Path) -> list[_Log]:
    logs = []
    for folder in (nimbus_home / "logs", nimbus_home / "supervisors"):
        for path in sorted(folder.rglob("*")):
            try:
                seen = path.lstat()
            except OSError:
                continue  # turned over in this moment
            if _LOG.search(path.name) and path.is_file() and not path.is_symlink():
                logs.append(_Log(path, seen.st_mtime, seen.st_size, (seen.st_dev, seen.st_ino)))
    return logs


def _to_go(logs: Iterable[_Log], total: int, days: float | None, megabytes: float | None, now: float) -> list[_Log]:
    """Return those that are too old, and the oldest of the others until all fits."""
    gone = []
    for candidate in sorted(logs, key=lambda log: log.changed):
        too_old = days is not None and now - candidate.changed > days * _DAY
        too_much = megabytes is not None and total > megabytes * 1_000_000
        if too_old or too_much:
            gone.append(candidate)
            total -= candidate.size
    return gone
