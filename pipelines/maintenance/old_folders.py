"""Whole folders that nobody needs any more: copies of checkpoints, replaced checkpoints, folders of dead bounded runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.execution.checkpoint.copy import Marker
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.runners import spool
from pipelines.maintenance.tidied import Tidied

if TYPE_CHECKING:
    from pipelines.state.lake import Lake

_DAY = 86_400.0
_GONE = ".gone"


def tidy_copies(lake: Lake, days: float | None, *, dry_run: bool = False, now: float | None = None) -> Tidied:
    """Copies of checkpoints, made by repartitions.

    Of each query the newest whole one stays for `days`, the others go. One that a repartition under way still needs is
    never touched, nor one that is still being made.
    """
    folders = _whole(lake.root / "copies", "*/*/*", dry_run)
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


def _made_at(copy: Path) -> float:
    described = copy / "copy.json"
    return (described if described.exists() else copy).stat().st_mtime


def tidy_replaced(lake: Lake, days: float | None, *, dry_run: bool = False, now: float | None = None) -> Tidied:
    """Checkpoints that a changed definition has put aside (`Checkpoint.begin_at`). Nothing reads them again."""
    folders = _whole(lake.root / "replaced", "*/*.replaced", dry_run)
    oldest = (time.time() if now is None else now) - (days or 0.0) * _DAY
    gone = [one for one in folders if days is not None and _touched(one) < oldest]
    return _removed("replaced checkpoints", folders, gone, dry_run)


def _touched(folder: Path) -> float:
    """When a folder was last changed, or renamed."""
    found = folder.stat()
    return max(found.st_mtime, found.st_ctime)


def tidy_spool(lake: Lake, *, dry_run: bool = False) -> Tidied:
    """Folders of bounded runs whose processes are dead."""
    folders = sorted(folder for folder in (lake.root / "spool").glob("*/bounded-*") if folder.is_dir())
    left = spool.left_behind(lake.root)
    size = sum(map(size_of, left))
    removed = len(left) if dry_run else sum(spool.remove(folder) for folder in left)
    return Tidied("folders of bounded runs", "folders", len(folders), removed, size)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder, or of a file. What goes meanwhile does not count."""
    total = 0
    for path in (folder, *folder.rglob("*")):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _whole(root: Path, pattern: str, dry_run: bool) -> list[Path]:
    """The folders of a pattern. What an earlier round was about to remove when it was cut off goes now."""
    for cut_off in root.glob(f"{pattern.rpartition('/')[0]}/.*{_GONE}") if not dry_run else ():
        shutil.rmtree(cut_off, ignore_errors=True)
    return sorted(one for one in root.glob(pattern) if one.is_dir() and not one.name.endswith(_GONE))


def _removed(what: str, folders: Sequence[Path], gone: Iterable[Path], dry_run: bool) -> Tidied:
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
    return Tidied(what, "folders", len(folders), removed, size, note=note)
