"""A copy of Spark's checkpoint, the marker of a repartition that is under way, and the way back from it.

The marker `repartition.json` lies beside Spark's part of a checkpoint for as long as that part may be half-made. Every start of
a query asks for it first (`recover`), so that no query ever begins on such a checkpoint. A copy lies where the checkpoint does,
on a disk or on a store. No Spark here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipelines import logs
from pipelines.errors import TrideltaError
from pipelines.execution.checkpoint.damage import read_own
from pipelines.execution.checkpoint.engine_files import MARKER, Checkpoint, write_json
from pipelines.places.lease import LeaseLostError
from pipelines.places.location import Location, Place, on_disk

logger = logs.logger(__name__)

COPYING, COPIED, REPARTITIONED, VERIFIED, ROLLING_BACK = (
    "copying",  # the checkpoint is as it was
    "copied",  # the copy is whole and on the disk; Spark may be at work on the checkpoint
    "repartitioned",  # Spark says that it is done; nobody has looked
    "verified",  # the state is the same one; only the marker has to go
    "rolling_back",  # the copy is on its way back
)
DROPPED, ROLLED_BACK, FINISHED = "dropped", "rolled_back", "finished"

_BLOCK = 1024 * 1024
# A compaction that reads the offsets of this checkpoint holds the lock for that long at most, as it does for others.
_WAIT_SECONDS = 600.0

Manifest = Mapping[str, tuple[int, str]]
"""The files of a copy: bytes and BLAKE2b, by path below the checkpoint."""


class CopyError(TrideltaError):
    """A copy of a checkpoint is not what it was when it was made."""

    def __init__(self, flow: str, group: str, copy: Place, problem: str) -> None:
        self.flow, self.group, self.copy, self.problem = flow, group, copy, problem
        super().__init__(
            f'flow "{flow}", query "{group}": the copy of its checkpoint at {copy} is damaged: {problem}',
            hint="the query does not start. Bring the copy back from a backup of the disk, or remove the checkpoint and "
            'run the flow with on_fresh_checkpoint="reset"',
        )


@dataclass(frozen=True)
class Marker:
    """A repartition that is under way.

    Attributes:
        before: partitions before; `after`: those wanted.
    """

    phase: str
    copy: str
    before: int
    after: int
    reason: str = ""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Marker | None:
        """Return the marker of a checkpoint; nearly always there is none."""
        return read_own(checkpoint.flow, checkpoint.folder / MARKER, lambda fields: cls(**fields))

    def write(self, checkpoint: Checkpoint, before: Marker | None = None) -> Marker:
        """Write it in the place of the one before.

        Raises:
            LeaseLostError: another process has begun or removed one.
        """
        checkpoint.still_held()
        file = checkpoint.folder / MARKER
        if not isinstance(file, Location):
            write_json(file, asdict(self))
            _sync_folder(checkpoint.folder)
        elif not self._swapped(file, before):
            raise LeaseLostError(checkpoint.flow, str(file), "another process has written or removed it")
        return self

    def _swapped(self, file: Location, before: Marker | None) -> bool:
        """Return whether it has taken its place: a put that comes late must not mark the next run's checkpoint."""
        data = json.dumps(asdict(self)).encode()
        if before is None:
            return file.store.put_if_absent(file.key, data) is not None
        try:
            seen = file.store.read(file.key)
        except FileNotFoundError:
            return False
        same = Marker(**json.loads(seen.data)) == before
        return same and file.store.compare_and_swap(file.key, data, seen.tag) is not None

    def at(self, phase: str, checkpoint: Checkpoint, reason: str = "") -> Marker:
        """Return the marker at a later phase, written."""
        return replace(self, phase=phase, reason=reason or self.reason).write(checkpoint, self)

    @staticmethod
    def remove(checkpoint: Checkpoint) -> None:
        checkpoint.still_held()
        (checkpoint.folder / MARKER).unlink()


@dataclass(frozen=True)
class Recovered:
    """The remains of a repartition that was cut off.

    Attributes:
        action: `dropped` (nothing had been changed), `rolled_back` (the copy is back), `finished` (it was done).
    """

    phase: str
    action: str
    partitions: int
    reason: str


def recover(checkpoint: Checkpoint, copies: Place | None = None) -> Recovered | None:
    """Finish or undo a repartition that was cut off. To be called, with `running` held, before every start of a query.

    Args:
        checkpoint: of the query; the caller holds `checkpoint.running`.
        copies: where the copies are now, if that is another place than when they were made.

    Returns:
        What was found; None, after one look for a file, if there was nothing.
    """
    marker = Marker.of(checkpoint)
    if marker is None:
        return None
    folder = _copy_folder(checkpoint, marker, copies)
    if marker.phase == COPYING:
        remove_tree(folder)
        outcome = Recovered(marker.phase, DROPPED, marker.before, "it was cut off before anything was changed")
    elif marker.phase == VERIFIED:
        outcome = Recovered(marker.phase, FINISHED, marker.after, "it was cut off when all was done")
        checkpoint.set_partitions(marker.after)
    else:
        reason = marker.reason or f"it was cut off when it was {marker.phase}"
        with checkpoint.rewriting(_WAIT_SECONDS, half_made=True):
            roll_back(checkpoint, marker, folder, reason)
        return _logged(checkpoint, Recovered(marker.phase, ROLLED_BACK, marker.before, reason))
    Marker.remove(checkpoint)
    return _logged(checkpoint, outcome)


def roll_back(checkpoint: Checkpoint, marker: Marker, folder: Place, reason: str) -> None:
    """Put the copy in the place of Spark's checkpoint. Cut off at any point it can be called again.

    Raises:
        CopyError: the copy is damaged; the checkpoint stays as it is, and so does the marker.
        LeaseLostError: another process may run the query.
    """
    manifest = check_copy(checkpoint, folder)
    marker.at(ROLLING_BACK, checkpoint, reason)
    if isinstance(checkpoint.spark, Location):
        # Nothing is renamed there: until the marker has gone nobody reads it.
        remove_tree(checkpoint.spark, checkpoint.still_held)
        _copy_objects(folder / "spark", checkpoint.spark, manifest, checkpoint.still_held)
    else:
        _put_back(on_disk(folder / "spark"), checkpoint.spark, manifest)
        _sync_folder(checkpoint.folder)
    Marker.remove(checkpoint)


def _put_back(copy: Path, spark: Path, manifest: Manifest) -> None:
    restoring = spark.with_name("spark.restoring")
    # Both first: on a full disk there is no room for the two of them and the copy.
    for made in (restoring, spark):
        if made.exists():
            shutil.rmtree(made)
    _copy_files(copy, restoring, manifest)
    os.sync()
    restoring.rename(spark)


def make_copy(checkpoint: Checkpoint, folder: Place, about: Mapping[str, Any]) -> int:
    """Copy Spark's checkpoint into `folder/spark`, with `folder/copy.json` about it. Return its bytes.

    Everything is on the disk when this returns, by one call for all the files: a checkpoint has thousands of small ones.
    """
    if isinstance(checkpoint.spark, Location):
        manifest = _copy_objects(checkpoint.spark, folder / "spark")
    else:
        manifest = _copy_files(checkpoint.spark, on_disk(folder / "spark"))
        os.sync()
    size = sum(size for size, _ in manifest.values())
    write_json(folder / "copy.json", {**about, "bytes": size, "files": manifest})
    _sync_folder(folder)
    return size


def check_copy(checkpoint: Checkpoint, folder: Place) -> Manifest:
    """Return the files of a copy, each of which is what it was."""

    def damaged(problem: str) -> CopyError:
        return CopyError(checkpoint.flow, checkpoint.folder.name, folder, problem)

    try:
        manifest = json.loads((folder / "copy.json").read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError) as error:
        raise damaged(f"copy.json: {error}") from None
    files = _files(folder / "spark")
    if missing := sorted(set(manifest) - set(files)):
        raise damaged(f"{len(missing)} of {len(manifest)} files are missing, {missing[0]} for one")
    for name, (size, digest) in manifest.items():
        if _read(files[name]) != (size, digest):
            raise damaged(f"{name} has changed")
    return {name: (size, digest) for name, (size, digest) in manifest.items()}


def _copy_folder(checkpoint: Checkpoint, marker: Marker, copies: Place | None) -> Place:
    made = Location.of(marker.copy) if isinstance(checkpoint.folder, Location) else Path(marker.copy)
    if made.is_dir() or copies is None:
        return made
    return copies / checkpoint.flow / checkpoint.folder.name / made.name


def _logged(checkpoint: Checkpoint, outcome: Recovered) -> Recovered:
    logger.warning(
        "repartition was cut off",
        flow=checkpoint.flow,
        group=checkpoint.folder.name,
        phase=outcome.phase,
        now=outcome.action,
    )
    return outcome


# --- files ----------------------------------------------------------------------------------------------------------


def _files(folder: Place) -> dict[str, Place]:
    """Return all files below a folder, by their paths from it."""
    if isinstance(folder, Location):
        return {place.relative_to(folder).as_posix(): place for place in folder.rglob("*")}
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def remove_tree(folder: Place, still_held: Callable[[], None] = lambda: None) -> None:
    """Remove a folder and all that is in it, if it is there; on a store each file only while it is held."""
    if isinstance(folder, Location):
        for entry in list(folder.store.entries(folder.key)):
            still_held()
            folder.store.delete(entry.key)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_objects(
    source: Place, target: Place, only: Manifest | None = None, still_held: Callable[[], None] = lambda: None
) -> dict[str, tuple[int, str]]:
    """Copy all files of a folder (or those of a manifest) on a store, each while it is held. Return what was read of each."""
    copied = {}
    for name in list(only) if only is not None else _files(source):
        data = (source / name).read_bytes()
        still_held()
        (target / name).write_bytes(data)
        copied[name] = (len(data), hashlib.blake2b(data, digest_size=16).hexdigest())
    return copied


def _read(file: Place) -> tuple[int, str]:
    """Return the size of a file, and the hash of its bytes."""
    if isinstance(file, Location):
        data = file.read_bytes()
        return len(data), hashlib.blake2b(data, digest_size=16).hexdigest()
    return file.stat().st_size, _digest(file)


def _copy_files(source: Path, target: Path, only: Manifest | None = None) -> dict[str, tuple[int, str]]:
    """Copy all files of a folder (or those of a manifest), empty folders too. Return what was read of each."""
    target.mkdir(parents=True)
    for folder in sorted(path for path in source.rglob("*") if path.is_dir()):
        (target / folder.relative_to(source)).mkdir()
    names = list(only) if only is not None else _files(source)
    copied = {}
    for name in names:
        with (target / name).open("wb") as out:
            digest = _digest(source / name, out.write)
            copied[name] = (out.tell(), digest)
    return copied


def _digest(file: Path, also: Callable[[bytes], object] = lambda block: None) -> str:
    made = hashlib.blake2b(digest_size=16)
    with file.open("rb") as blocks:
        while block := blocks.read(_BLOCK):
            made.update(block)
            also(block)
    return made.hexdigest()


def _sync_folder(folder: Place) -> None:
    """Sync a folder: a rename is on the disk once its folder is. A store keeps what it has taken."""
    if isinstance(folder, Location):
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
