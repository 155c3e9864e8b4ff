"""The part of aggregators written in Python that runs in Spark's workers: one pass over a partition's rows. No Spark here.

A row's columns are the keys (hidden columns, then group fields), then the values; last may be `_seed`, which is true for a
row that only says that its batch and task are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import pyarrow as pa

from pipelines.aggregators.average import Average
from pipelines.aggregators.folds import AddedFold, CombinerFold, Fold, fold_of
from pipelines.aggregators.ordering import freeze
from pipelines.aggregators.sum import Sum
from pipelines.planner.values import Row, RowsOut, Where, freezes, plain_columns, plain_rows

# Keys for which a worker holds partial values before it hands them on.
_HELD_KEYS = 100_000


@dataclass(frozen=True)
class Chain:
    """The aggregators of one operation, as they travel to the workers.

    Attributes:
        keys: how many leading columns are keys.
        aggregators: of each: the aggregator, the positions of its inputs among the values, the number of its outputs.
        batch_at: which key is the batch's id, or None: then it is `batch`.
        numbered: whether that key is a number in a text.
        seeded: whether the last column is `_seed`.
        all_tasks: which key is the task, and how many there are, if a slice that has tuples must show all of them.
    """

    where: Where
    keys: int
    aggregators: tuple[tuple[Any, tuple[int, ...], int], ...]
    batch: Any = None
    batch_at: int | None = None
    seeded: bool = False
    all_tasks: tuple[int, int] | None = None
    numbered: bool = False

    def folds(self) -> list[Fold]:
        return [
            AddedFold(aggregator, len(inputs))
            if isinstance(aggregator, Sum | Average)
            else fold_of(aggregator, len(inputs), outputs)
            for aggregator, inputs, outputs in self.aggregators
        ]

    def batch_of(self, key: Row) -> Any:
        if self.batch_at is None:
            return self.batch
        return int(key[self.batch_at]) if self.numbered else key[self.batch_at]

    def crossed(self, key: Row, groups: Iterable[Sequence[Row]]) -> Iterator[Row]:
        """Yield the cross product of what each aggregator gave, the last varying fastest (Trident rules 1.4)."""
        for rows in product(*groups):
            yield (*key, *chain.from_iterable(rows))


class ValuesByKey:
    """Values by key. Keys that Spark groups together are one."""

    def __init__(self) -> None:
        self.found: dict[Any, tuple[Row, list[Any]]] = {}
        self._freeze: bool | None = None

    def keyed(self, batch: pa.RecordBatch, count: int) -> Iterator[tuple[Any, Row]]:
        """Return for each row its key, to look up and to show."""
        if self._freeze is None:
            self._freeze = any(freezes(batch.schema.field(at).type) for at in range(count))
        keys = plain_rows(batch, range(count))
        return ((freeze(key), key) for key in keys) if self._freeze else ((key, key) for key in keys)

    def value(self, look: Any, key: Row, start: Callable[[Row], list[Any]]) -> list[Any]:
        """Return the values of a key, made by `start` the first time."""
        held = self.found.get(look)
        if held is None:
            held = self.found[look] = (key, start(key))
        return held[1]

    def in_all_tasks(self, all_tasks: tuple[int, int] | None) -> Iterator[Row]:
        """Yield the keys of all tasks of the slices that are there; `all_tasks` as of a `Chain`."""
        if all_tasks is None:
            return
        at, count = all_tasks
        for key, _ in list(self.found.values()):
            yield from ((*key[:at], task, *key[at + 1 :]) for task in range(count))


@dataclass(frozen=True)
class PartialPass:
    """Before the shuffle: the tuples of each key as partial values of combiners."""

    chain: Chain
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folds, groups = self.chain.folds(), ValuesByKey()
        inputs = [at for _, at, _ in self.chain.aggregators]
        for batch in batches:
            _add_all(self.chain, folds, inputs, groups, batch)
            if len(groups.found) > _HELD_KEYS:
                yield from self._out(folds, groups)
        yield from self._out(folds, groups)

    def _out(self, folds: list[Fold], groups: ValuesByKey) -> Iterator[pa.RecordBatch]:
        out = RowsOut(self.schema, self.chain.where, self.chain.keys)
        for key, values in groups.found.values():
            out.add((*key, *values))
        groups.found.clear()
        yield from out.rest()


@dataclass(frozen=True)
class WholePass:
    """After the shuffle: all tuples, or all partial values, of each key as its rows.

    Attributes:
        partial: whether the values are partial values, one a combiner.
    """

    chain: Chain
    schema: pa.Schema
    partial: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chain, folds, groups = self.chain, self.chain.folds(), ValuesByKey()
        out = RowsOut(self.schema, chain.where, chain.keys)
        early = len(folds) == 1 and folds[0].rows_early
        inputs = [at for _, at, _ in chain.aggregators]
        for batch in batches:
            self.take(folds, inputs, groups, batch, out if early else None)
            yield from out.full()
        for key in groups.in_all_tasks(chain.all_tasks):
            _started(chain, folds, groups, key, key)
        for key, values in groups.found.values():
            for row in self._rows(folds, key, values):
                out.add(row)
            yield from out.full()
        yield from out.rest()

    def take(
        self,
        folds: list[Fold],
        inputs: Sequence[Sequence[int]],
        groups: ValuesByKey,
        batch: pa.RecordBatch,
        out: RowsOut | None = None,
    ) -> None:
        """Take in a batch; rows that come before the end go to `out`."""
        if self.partial:
            _merge_all(self.chain, folds, groups, batch)
        else:
            _add_all(self.chain, folds, inputs, groups, batch, out)

    def _rows(self, folds: list[Fold], key: Row, values: list[Any]) -> list[Row]:
        try:
            rows = [fold.rows(value) for fold, value in zip(folds, values, strict=True)]
            return list(self.chain.crossed(key, rows))
        except Exception as error:
            of = f"the group {key!r}" if key else "the batch"
            raise self.chain.where.error(f"failed at the end of {of}", error) from error


def _add_all(
    chain: Chain,
    folds: list[Fold],
    inputs: Sequence[Sequence[int]],
    groups: ValuesByKey,
    batch: pa.RecordBatch,
    out: RowsOut | None = None,
) -> None:
    """Take in a batch's tuples; rows that come early go to `out`."""
    used = sorted({at for places in inputs for at in places})
    columns = dict(zip(used, plain_columns(batch, [chain.keys + at for at in used]), strict=True))
    rows = [list(zip(*(columns[at] for at in places), strict=True)) if places else None for places in inputs]
    seeds = _seeds(chain, batch)
    for number, (look, key) in enumerate(groups.keyed(batch, chain.keys)):
        values = _started(chain, folds, groups, look, key)
        if seeds is not None and seeds[number]:
            continue
        for at, fold in enumerate(folds):
            own = rows[at]
            row = own[number] if own is not None else ()
            try:
                values[at] = fold.add(values[at], row)
            except Exception as error:
                raise chain.where.failed(row, error) from error
        if out is not None:
            for made in folds[0].early(values[0]):
                out.add((*key, *made))


def _merge_all(chain: Chain, folds: list[Fold], groups: ValuesByKey, batch: pa.RecordBatch) -> None:
    """Take in a batch's partial values."""
    partials = plain_rows(batch, range(chain.keys, chain.keys + len(folds)))
    seeds = _seeds(chain, batch)
    for number, ((look, key), row) in enumerate(zip(groups.keyed(batch, chain.keys), partials, strict=True)):
        values = _started(chain, folds, groups, look, key)
        if seeds is not None and seeds[number]:
            continue
        for at, fold in enumerate(folds):
            assert isinstance(fold, CombinerFold)
            try:
                values[at] = fold.merge(values[at], row[at])
            except Exception as error:
                raise chain.where.error(f"failed to combine {values[at]!r} and {row[at]!r}", error) from error


def _started(chain: Chain, folds: list[Fold], groups: ValuesByKey, look: Any, key: Row) -> list[Any]:
    held = groups.found.get(look)
    if held is not None:
        return held[1]
    try:
        values = [fold.start(chain.batch_of(key)) for fold in folds]
    except Exception as error:
        raise chain.where.error("failed in init()", error) from error
    groups.found[look] = (key, values)
    return values


def _seeds(chain: Chain, batch: pa.RecordBatch) -> list[Any] | None:
    return batch.column(batch.num_columns - 1).to_pylist() if chain.seeded else None
