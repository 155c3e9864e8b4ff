"""The plan of a fold: decided from the table's partitions alone, without Spark and without reading a row."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa
from deltalake import DeltaTable

from pipelines.state.record import generation
from pipelines.state.schema import GEN, ROLL_UP, SLICE_COLUMN, UNSLICED

# The size of a data file to aim for: so large that a scan is not opening files, so small that cores share a table.
TARGET_FILE_BYTES = 96 * 1024 * 1024


@dataclass(frozen=True)
class Part:
    """A partition of a state table: one slice's files of one generation."""

    slice: str | None
    gen: int
    files: int
    bytes: int
    rows: int


@dataclass(frozen=True)
class Closed:
    """The generations that a compaction may rewrite.

    Attributes:
        before: rows with a lower `_gen` are rewritten; the stream only ever appends to this generation and later ones,
            or stands still meanwhile.
        gen: the generation that rewritten rows get. Lower than that of any batch to come, so that a roll-up of this
            generation never hides one.
        open: lower generations that are open all the same: quarantine has several writers, each with txids of its own.
    """

    before: int
    gen: int
    open: frozenset[int] = frozenset()

    def has(self, gen: int) -> bool:
        """Return whether a generation is closed."""
        return gen < self.before and gen not in self.open

    @property
    def settled(self) -> int:
        """Return the generation below which no writer is, nor comes to be: one that is far behind goes on, too."""
        return min(self.before, *self.open) if self.open else self.before


def closed_generations(last_txid: int | None, open_generations: int) -> Closed:
    """Return the generations that are closed, seen from the table's own last commit.

    The table's own, because states of one batch group commit one after the other. A batch that is being tried again has
    the txid after the last one: at the edge (last 63, next 64) that is the next generation, and 63's still counts as
    open.

    Args:
        last_txid: the last txid that a stream committed to this table, None for none.
        open_generations: how many generations, the last txid's included, stay as they are. 0 takes all that is
            committed: only for a flow whose stream stands still.
    """
    current = 0 if last_txid is None else generation(last_txid)
    before = current + 1 - open_generations
    return Closed(before, min(before, current) - 1)


@dataclass(frozen=True)
class FoldPlan:
    """The rewrite of one commit of a compaction.

    Attributes:
        slices: slices whose closed rows become one row per key.
        rolls_up: whether a roll-up over all slices is written in the same commit.
        since: generation of the roll-up that is there; the new one is that and the generations since.
        by: the keys to sort by before all others.
    """

    closed: Closed
    slices: tuple[str, ...]
    rolls_up: bool
    since: int | None
    rows: int
    bytes: int
    by: tuple[str, ...] = ()

    @property
    def work(self) -> bool:
        return bool(self.slices) or self.rolls_up


def parts_of(table: DeltaTable) -> list[Part]:
    """Return the partitions of an open version, from its log. A map state, which has none, is one part."""
    actions = pa.table(table.get_add_actions(flatten=True))
    if SLICE_COLUMN not in table.metadata().partition_columns:
        size, rows = (sum(actions[name].to_pylist()) for name in ("size_bytes", "num_records"))
        return [Part(UNSLICED, -1, actions.num_rows, size, rows)] if actions.num_rows else []
    actions = actions.select([f"partition.{SLICE_COLUMN}", f"partition.{GEN}", "size_bytes", "num_records"])
    sums: dict[tuple[str | None, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for slice_, gen, size, rows in zip(*(column.to_pylist() for column in actions.columns), strict=True):
        total = sums[slice_, int(gen)]
        total[0], total[1], total[2] = total[0] + 1, total[1] + size, total[2] + (rows or 0)
    return [Part(slice_, gen, *sums[slice_, gen]) for slice_, gen in sorted(sums, key=lambda k: (k[0] or "", k[1]))]


def plan_fold(
    parts: Iterable[Part], closed: Closed, by: tuple[str, ...] = (), *, rewrite_all: bool = False
) -> FoldPlan:
    """Return what a log state needs.

    Args:
        closed: which of them may be rewritten.
        by: the keys to sort by before all others.
        rewrite_all: rewrite all that is closed, however it lies.

    A slice is folded if its closed rows lie in more than one generation or in many small files. With more than one
    slice there is a roll-up; it is made again when there are closed generations that it does not cover. One that lies in
    an open generation covers all that is closed.
    """
    parts = list(parts)
    inside = [part for part in parts if part.gen < closed.before]
    if any(part.slice is None for part in inside):
        # Delta keeps an empty slice name as null, which no condition finds again. The engine writes none; leave such alone.
        return FoldPlan(closed, (), False, None, 0, 0)
    by_slice: dict[str, list[Part]] = defaultdict(list)
    for part in inside:
        by_slice[str(part.slice)].append(part)
    by_slice.pop(ROLL_UP, None)
    # An earlier compaction may have closed more generations, so the roll-up is looked for in all of them.
    since = max((part.gen for part in parts if part.slice == ROLL_UP), default=None)
    old = [part for part in inside if part.slice == ROLL_UP and part.gen == since]
    new = [part for part in inside if part.slice != ROLL_UP and (since is None or part.gen > since)]
    rolls_up = bool(new or rewrite_all) and (bool(old) or (since is None and len(by_slice) > 1))
    if since is not None and not rolls_up:
        # Nothing closed is newer than the roll-up, and what it covers must not come to lie behind it.
        closed = replace(closed, gen=min(closed.gen, since))
    # What a new roll-up covers has to lie in its generation or before.
    late = {part.slice for part in new if rolls_up and part.gen > closed.gen}
    slices = tuple(name for name, own in by_slice.items() if rewrite_all or name in late or _is_loose(own))
    read = [part for name in slices for part in by_slice[name]] + ([*old, *new] if rolls_up else [])
    rows, size = sum(part.rows for part in read), sum(part.bytes for part in read)
    return FoldPlan(closed, slices, rolls_up, since, rows, size, by)


def _is_loose(parts: list[Part]) -> bool:
    """Return whether a slice is worth folding. A folded one has about as many files as its size needs, in one generation."""
    files, size = sum(part.files for part in parts), sum(part.bytes for part in parts)
    return len(parts) > 1 or files > 2 * math.ceil(size / TARGET_FILE_BYTES)
