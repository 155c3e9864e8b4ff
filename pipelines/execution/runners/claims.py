"""Claims name the data files that a backfill has counted; a stream must read these rows under the same names, or not begin.

A table's files may be rewritten (OPTIMIZE, a compaction of the flow that writes it, a slice replaced there). A stream that runs
reads what was appended, under the first names, from the table's log. One that begins reads the table as it stands. A table may
move: Delta's offsets go by its id, and claims by where its files were.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

from pipelines.errors import LostRowsError, SourceError
from pipelines.places.store import StoreError
from pipelines.sources.base import file_key, place_of
from pipelines.sources.delta import DeltaTableSource
from pipelines.sources.folder import FileSource
from pipelines.sources.offsets import offset_of
from pipelines.state.kinds import MAP
from pipelines.state.schema import NO_SLICE
from pipelines.state.slices import slice_times

if TYPE_CHECKING:
    from pipelines.execution.batch.group import BatchGroup
    from pipelines.execution.checkpoint.engine_files import Checkpoint


class RewrittenSourceError(SourceError):
    """Files of a Delta source have other names than a backfill saw or its stream will see: rows would count twice.

    Attributes:
        source: the stream's name.
        slices: the slices that a backfill has counted; none where the backfill is refused.

    Args:
        folded: a map state that the stream writes: no slice is put into it again.
    """

    def __init__(self, source: str, slices: tuple[str, ...], file: str, folded: str | None = None) -> None:
        self.source, self.slices, self.file = source, slices, file
        if slices:
            # Rows without a slice are in quarantine, and judged again with each backfill.
            real = [slice_ for slice_ in slices if slice_ != NO_SLICE] or ["any"]
            named = ", ".join(real[:10]) + (", ..." if len(real) > 10 else "")
            super().__init__(
                f'source "{source}": files that a backfill has counted were rewritten since, or the table has moved, e.g. '
                f"{file}; the stream would count their rows again",
                hint=f"backfill these slices again, then start the stream: {named}"
                if folded is None
                else f'state "{folded}" is a map, which takes no slice again: put the table back if it has moved, or start over '
                'with a fresh checkpoint and on_fresh_checkpoint="reset"',
            )
        else:
            super().__init__(
                f'source "{source}": files that its stream has yet to read were put together, e.g. {file}; '
                "the stream would count again what a backfill takes from there",
                hint="let the stream catch up without the backfill: it reads those rows by itself",
            )


class SameSources:
    """Refuses a stream whose sources are not those of its claims and its checkpoint.

    Asked at the start and again when the first batch is planned: a file that is there both times is what the batch reads,
    whichever version between them Spark has begun with.
    """

    def __init__(self, group: BatchGroup, checkpoint: Checkpoint) -> None:
        self._group, self._checkpoint = group, checkpoint.spark
        self._claims: list[dict[str, frozenset[str]]] = []
        self._outside: dict[str, list[tuple[str, str]]] = {}
        self._keys: dict[str, list[frozenset[str]]] = {}
        done = checkpoint.finished_batches() - 1
        self._new = [
            (index, name, source)
            for index, name, source in _tables(group)
            if done < 0 or offset_of(self._checkpoint, done, index) is None
        ]

    def check(self) -> None:
        """Compare the claims with the files that the stream will read, and sources with those that the checkpoint is of.

        A first batch may have been planned by a former life: what came since is read under its own name.
        """
        self._group.sources.check_same(self._checkpoint)
        for index, name, source in self._new:
            self._compare(name, source, source.first_version(self._checkpoint, index))

    def check_planned(self, batch_id: int) -> None:
        """Compare the claims with the files that a planned batch begins with, once, and the sources each time."""
        self._group.sources.check_same(self._checkpoint)
        for entry in list(self._new):
            index, name, source = entry
            if offset_of(self._checkpoint, batch_id, index) is not None:
                self._compare(name, source, source.first_version(self._checkpoint, index))
                self._new.remove(entry)

    def check_moved(self, taken: Sequence[frozenset[str]]) -> None:
        """Refuse a batch with files that a backfill has claimed where the table lay before: by no claim they would be left out.

        Args:
            taken: of the batch the files (as `file_key`) of each source.
        """
        tables = list(_tables(self._group))
        outside = self._claimed_outside() if tables else {}
        if not outside:
            return
        for index, name, source in tables:
            folder = f"{file_key(source.folder)}/"
            own = {file.removeprefix(folder) for file in taken[index] if file.startswith(folder)}
            moved: dict[str, list[str]] = {}
            for last in outside.keys() & {file.rpartition("/")[2] for file in own}:
                for slice_, file in outside[last]:
                    here = [f"{folder}{below}" for below in _below(file) if below in own]
                    if here and not self._claimed_too(slice_, file, here):
                        moved.setdefault(slice_, []).append(file)
            if moved:
                slices = tuple(sorted(moved))
                raise RewrittenSourceError(name, slices, min(moved[slices[0]]), _map_of(self._group))

    def _claimed_too(self, slice_: str, file: str, here: list[str]) -> bool:
        """Return whether whatever claims a file in a slice claims others there, too: no rows of these are left to count."""
        if slice_ not in self._keys:
            self._keys[slice_] = [frozenset(map(file_key, claims.get(slice_, ()))) for claims in self._claims]
        return all(files.issuperset(here) for files in self._keys[slice_] if file in files)

    def _claimed_outside(self) -> dict[str, list[tuple[str, str]]]:
        """Return by their last names the claimed files (as `file_key`), with slices, that no source reads.

        Looked for where claims are new.
        """
        claims = _given_claims(self._group)
        if claims != self._claims:
            is_read = _reads(self._group)
            outside: dict[str, list[tuple[str, str]]] = {}
            for slice_, files in _together(claims).items():
                for file in files:
                    if not is_read(file):
                        outside.setdefault(file.rpartition("/")[2], []).append((slice_, file))
            self._claims, self._outside, self._keys = claims, outside, {}
        return self._outside

    def _compare(self, name: str, source: DeltaTableSource, version: int | None) -> None:
        claims = dict(_claims(self._group, source))
        if not claims:
            return
        try:
            there = source.present() if version is None else source.read_from(version)
        except (DeltaError, OSError):
            if version is None:
                raise
            # Planned long ago by a former life, and never run: Spark could not read it, either.
            lost = f"the table's log no longer has version {version}, with which the first batch begins"
            raise LostRowsError(name, lost) from None
        stale = {slice_: sorted(files - there) for slice_, files in claims.items() if files - there}
        stale = stale or _changed_within(self._group, source, claims, version)
        if stale:
            slices = tuple(sorted(stale))
            raise RewrittenSourceError(name, slices, stale[slices[0]][0], _map_of(self._group))


def check_unread(group: BatchGroup, checkpoint: Checkpoint, positions: frozenset[str]) -> None:
    """Refuse a backfill that takes rows from rewritten files which the stream has yet to read under their first names.

    Args:
        positions: what the backfill has read.
    """
    if checkpoint.epoch is None or checkpoint.last_batch() < 0:
        return
    read = {file_key(file) for file in positions}
    for index, name, source in _tables(group):
        done = max(checkpoint.finished_batches() - 1, 0)
        rewritten = sorted(source.rewritten_since(checkpoint.spark, done, index) & read)
        if rewritten:
            raise RewrittenSourceError(name, (), rewritten[0])


def check_tables(group: BatchGroup, checkpoint: Checkpoint) -> None:
    """Refuse a backfill beside a stream that has counted rows of a table which was made again: these are nowhere else.

    Raises:
        LostRowsError
    """
    if checkpoint.epoch is not None:
        for index, name, source in _tables(group):
            source.check_table(name, checkpoint.spark, index)


def _tables(group: BatchGroup) -> Iterator[tuple[int, str, DeltaTableSource]]:
    """Yield the Delta tables among the sources, with their places in Spark's offset log."""
    for index, spout in enumerate(group.spouts):
        source = spout.source.inner
        if isinstance(source, DeltaTableSource):
            yield index, spout.stream, source


def _reads(group: BatchGroup) -> Callable[[str], bool]:
    """Return what tells whether a file (as `file_key`) is one that some source reads: it is not from where a table lay before."""
    inner = [spout.source.inner for spout in group.spouts]
    tables = tuple(f"{file_key(source.folder)}/" for _, _, source in _tables(group))
    folders = [
        (f"{file_key(source.folder)}/", source.reads)
        for source in inner
        if isinstance(source, FileSource) and source.path
    ]

    def is_read(file: str) -> bool:
        # A table may have lain in the folder of a source of files, which does not read it there.
        return file.startswith(tables) or any(
            file.startswith(folder) and reads.takes(Path(file.removeprefix(folder))) for folder, reads in folders
        )

    return is_read


def _claims(group: BatchGroup, source: DeltaTableSource) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield by slice the files of a table (as `file_key`) that backfills of any of the group's tables have claimed."""
    folder = file_key(source.folder) + "/"
    for slice_, files in _together(_given_claims(group)).items():
        own = frozenset(key for key in files if key.startswith(folder))
        if own:
            yield slice_, own


def _map_of(group: BatchGroup) -> str | None:
    """Return a map state that slices are folded into; None: each state takes a slice again."""
    maps = (sink.name for sink in group.sinks if sink.writer.declared.layout == MAP)
    return next(maps, None) if group.sources.sliced else None


def _changed_within(
    group: BatchGroup, source: DeltaTableSource, claims: dict[str, frozenset[str]], version: int | None
) -> dict[str, list[str]]:
    """Return by slice the claimed files of which a deletion vector has taken rows since the slice was made.

    Such a file keeps its name, and a changed row lies in another file, too. Claims do not say which vector a backfill has seen,
    so this goes by the times of commits.
    """
    if not source.takes_vectors(version):
        return {}
    made: dict[str, int] = {}
    for sink in group.sinks:
        for slice_, time in slice_times(sink.table).items():
            made[slice_] = min(int(time.timestamp() * 1000), made.get(slice_, sys.maxsize))
    own = {slice_: made[slice_] for slice_ in claims if slice_ in made}
    vectors = source.vectors_since(min(own.values()), version) if own else {}
    changed = {
        slice_: sorted(file for file in claims[slice_] if vectors.get(file, -1) >= moment)
        for slice_, moment in own.items()
    }
    return {slice_: files for slice_, files in changed.items() if files}


def _given_claims(group: BatchGroup) -> list[dict[str, frozenset[str]]]:
    """Return by slice the files that each of the group's tables claims, as its records have them."""
    claimed = [sink.table.commits.claims() for sink in group.sinks]
    if group.quarantine.table.exists():
        claimed.append(group.quarantine.table.commits.claims(group.name))
    return claimed


def _together(claimed: list[dict[str, frozenset[str]]]) -> dict[str, frozenset[str]]:
    """Return by slice the files (as `file_key`) that any of some tables claims."""
    claims: dict[str, frozenset[str]] = {}
    for slices in claimed:
        for slice_, files in slices.items():
            if files:
                claims[slice_] = claims.get(slice_, frozenset()) | frozenset(map(file_key, files))
    return claims


def _below(file: str) -> Iterator[str]:
    """Yield the names that a file has below each of the folders that it is in."""
    while file:
        _, _, file = file.partition("/")
        if file:
            yield file


def bytes_of(files: frozenset[str]) -> int | None:
    """Return size of a batch's files, or None where one is not to be found."""
    try:
        return sum(place_of(file).stat().st_size for file in files)
    except (OSError, StoreError):
        return None
