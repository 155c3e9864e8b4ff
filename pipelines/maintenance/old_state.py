"""Old versions of the windows' state in Spark's checkpoints.

Spark deletes them itself, in a thread that wakes once a minute: a query that only ever runs for seconds, as in scheduled
catch-ups, keeps them all. Of such a query the old versions are deleted here, while it does not run, as Spark would: the last
`versions` stay, and of the SST files that versions share all that a version which stays names. No Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import LockedError
from pipelines.execution.checkpoint.copy import Marker
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.state_snapshot import VERSION, description
from pipelines.graph.fields import is_name
from pipelines.maintenance.tidied import Tidied

if TYPE_CHECKING:
    from pipelines.state.lake import Lake

_SHARED = ("SSTs", "logs")
# What the last batch left and what it began with: Spark may want to run it again.
_LEAST = 2


def tidy_state(lake: Lake, versions: float | None, *, dry_run: bool = False) -> Tidied:
    """Delete the old state of all queries that do not run.

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
    return Tidied("state of windows", "versions", before, removed, size, note=note)


def prune(partition: Path, versions: int, *, dry_run: bool = False) -> tuple[int, int]:
    """Delete the old versions of one state store. Returns how many, and their bytes with those of what they alone named.

    The oldest version that stays begins with a snapshot, for the ones after it may be changes to it. A store with a file in
    a form that is not known is left as it is.
    """
    found = _versions(partition)
    if len(found) <= versions:
        return 0, 0
    wanted = sorted(found)[-versions]
    snapshots = [version for version, files in found.items() if any(one.suffix == ".zip" for one in files)]
    first = max((version for version in snapshots if version <= wanted), default=None)
    if first is None:
        return 0, 0
    needed: set[str] = set()
    for version, files in found.items():
        for file in files if version >= first else ():
            named = _named_by(file)
            if named is None:
                return 0, 0
            needed |= named
    old = [version for version in found if version < first]
    # Versions before what they name: cut off in between, files are left that no version names.
    doomed = [file for version in sorted(old) for file in found[version]]
    if old:
        doomed += [file for file in _shared(partition) if file.name not in needed]
    size = sum(_delete(file, dry_run) for file in doomed)
    return len(old), size


def _checkpoints(lake: Lake) -> Iterator[Checkpoint]:
    for folder in sorted((lake.root / "checkpoints").glob("*/*")):
        if is_name(folder.parent.name) and (folder / "spark" / "state").is_dir():
            yield Checkpoint(folder.parent.name, folder)


def _partitions(checkpoint: Checkpoint) -> Iterator[Path]:
    """`state/<operator>/<partition>`, and below it named stores, as joins have them."""
    for folder in sorted((checkpoint.spark / "state").glob("[0-9]*/[0-9]*")):
        yield folder
        yield from (one for one in sorted(folder.iterdir()) if one.is_dir() and one.name not in (*_SHARED, "_metadata"))


def _versions(partition: Path) -> dict[int, list[Path]]:
    found: dict[int, list[Path]] = {}
    for file in partition.iterdir():
        if match := VERSION.match(file.name):
            found.setdefault(int(match[1]), []).append(file)
    return found


def _shared(partition: Path) -> Iterator[Path]:
    for folder in (partition / name for name in _SHARED):
        if folder.is_dir():
            yield from (file for file in folder.iterdir() if not file.name.startswith("."))


def _named_by(file: Path) -> set[str] | None:
    """The shared files that a version needs; None: it is in no form that is known."""
    if file.suffix == ".changelog":
        return set()
    described = description(file)
    if described is None:
        return None
    try:
        return {
            one[key]
            for files, key in (("sstFiles", "dfsSstFileName"), ("logFiles", "dfsLogFileName"))
            for one in described.get(files) or ()
        }
    except (KeyError, TypeError):
        return None


def _delete(file: Path, dry_run: bool) -> int:
    size = 0
    for one in (file, file.with_name(f".{file.name}.crc")):
        if one.exists():
            size += one.stat().st_size
            if not dry_run:
                one.unlink(missing_ok=True)
    return size
