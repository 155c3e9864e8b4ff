"""The partial results of the aggregators of open spans, as columns of Arrow: a row per span."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.aggregators import Average, Count, EventAggregator, Max, Min, Sum
from pipelines.aggregators.exact import TotalError, fsum, shortened
from pipelines.windows.array_values import Values
from pipelines.windows.arrays import Ints
from pipelines.windows.blob import dumps, loads
from pipelines.windows.event import Event, alone
from pipelines.windows.event_rows import events_of

# Sums of ints are kept as high * 2**32 + low, so that none of less than two billion values overflows on the way.
_LOW_BITS: Final = 32
_LOW: Final = (1 << _LOW_BITS) - 1
_SAFE: Final = 2**62
# Ints below are floats too, so that dividing floats is as exact as dividing ints.
_EXACT: Final = 2**53


@dataclass(frozen=True)
class EventsBySpan:
    """The events of a batch by span; every span has one at least.

    Attributes:
        number: of spans.
        of, row: per entry (an event in a span), in the order of arrival: its span, and the event's row in the batch.
        old: per span its row in the state; -1: it was not open before.
    """

    number: int
    of: Ints
    row: Ints
    old: Ints

    @cached_property
    def known(self) -> Ints:
        """Return the spans that were open before."""
        return np.flatnonzero(self.old >= 0)

    @cached_property
    def rows(self) -> Ints:
        """Return the rows of the entries, span by span, each in the order of arrival."""
        return self.row[np.argsort(self.of, kind="stable")]

    @cached_property
    def start(self) -> Ints:
        """Return where the rows of each span begin."""
        counts = np.bincount(self.of, minlength=self.number)
        return np.cumsum(counts) - counts


@dataclass(frozen=True)
class BatchRows:
    """The rows of a batch, and when somebody asks for them its events (`several`: see `WindowContext`)."""

    table: pa.Table
    several: frozenset[str] = frozenset()

    @cached_property
    def events(self) -> list[Event]:
        """Return the rows as events."""
        made = events_of(self.table)
        return [alone(event, self.several) for event in made] if self.several else made


class Partial(ABC):
    """An aggregator over spans.

    Args:
        name: what its columns begin with.
        aggregator: whose values these are.
    """

    def __init__(self, name: str, aggregator: EventAggregator) -> None:
        self._name, self._aggregator = name, aggregator
        self._field = str(getattr(aggregator, "field", None))

    @abstractmethod
    def merged(self, groups: EventsBySpan, batch: BatchRows, state: pa.Table | None) -> dict[str, Any]:
        """Return the columns of the spans of `groups`: what the state has of them, with the events of a batch."""

    @abstractmethod
    def values(self, spans: pa.Table) -> Any:
        """Return what the aggregator gives for each row of such columns."""

    def _old(self, groups: EventsBySpan, state: pa.Table | None, name: str) -> pa.ChunkedArray | None:
        """Return what the state has of the spans that were open before (`EventsBySpan.known`)."""
        if state is None or not len(groups.known):
            return None
        return state[name].take(pa.array(groups.old[groups.known]))

    def _plus(self, numbers: Ints, groups: EventsBySpan, state: pa.Table | None, name: str) -> Ints:
        old = self._old(groups, state, name)
        if old is not None:
            numbers[groups.known] += old.to_numpy()
        return numbers


class _Counted(Partial):
    """A number of events, or of those that have a field."""

    def merged(self, groups: EventsBySpan, batch: BatchRows, state: pa.Table | None) -> dict[str, Any]:
        has_field = getattr(self._aggregator, "field", None) is not None
        return {
            self._name: self._plus(
                counted(groups, batch.table[self._field] if has_field else None), groups, state, self._name
            )
        }

    def values(self, spans: pa.Table) -> Any:
        return spans[self._name]


def counted(groups: EventsBySpan, column: pa.ChunkedArray | None) -> Ints:
    """Return how many entries each span has, those left out whose value is null, or a list of none."""
    of = groups.of
    if column is not None and pa.types.is_list(column.type):
        of = of[pc.greater(pc.list_value_length(column), 0).fill_null(False).to_numpy()[groups.row]]
    elif column is not None and column.null_count:
        of = of[column.is_valid().to_numpy()[groups.row]]
    return np.bincount(of, minlength=groups.number).astype(np.int64)


class _Added(Partial):
    """A sum of ints, or their average."""

    def merged(self, groups: EventsBySpan, batch: BatchRows, state: pa.Table | None) -> dict[str, Any]:
        low, high, count = (f"{self._name}_{part}" for part in ("low", "high", "count"))
        numbers = Values.of(batch.table[self._field]).numbers
        most = max(-int(numbers.min(initial=0)), int(numbers.max(initial=0)))
        numbers = numbers[groups.rows]
        if most * max(len(numbers), 1) < _SAFE:
            total = np.add.reduceat(numbers, groups.start)
            sums = {low: total & _LOW, high: total >> _LOW_BITS}
        else:
            sums = {low: np.add.reduceat(numbers & _LOW, groups.start)}
            sums[high] = np.add.reduceat(numbers >> _LOW_BITS, groups.start)
        made = {name: self._plus(part, groups, state, name) for name, part in sums.items()}
        made[high], made[low] = made[high] + (made[low] >> _LOW_BITS), made[low] & _LOW
        if isinstance(self._aggregator, Average):
            made[count] = self._plus(counted(groups, batch.table[self._field]), groups, state, count)
            return made
        beyond = np.flatnonzero(made[high] != (made[high] << _LOW_BITS) >> _LOW_BITS)
        if len(beyond):
            raise TotalError(str(self._field), int(beyond[0]))
        return made

    def values(self, spans: pa.Table) -> Any:
        low, high = (spans[f"{self._name}_{part}"].to_numpy() for part in ("low", "high"))
        small = bool((np.abs(high) < 1 << (_LOW_BITS - 2)).all())
        total: Any = (high << _LOW_BITS) + low
        if not small:
            total = [(h << _LOW_BITS) + part for h, part in zip(high.tolist(), low.tolist(), strict=True)]
        if not isinstance(self._aggregator, Average):
            return total
        counts = spans[f"{self._name}_count"].to_numpy()
        if small and (not len(total) or int(np.abs(total).max()) < _EXACT):
            return np.divide(total, counts, out=np.zeros(len(counts)), where=counts > 0)
        return [int(t) / n if n else 0.0 for t, n in zip(total, counts.tolist(), strict=True)]


class _FloatsAdded(Partial):
    """A sum of floats, or their average: exact, as a few floats with the same sum, and what is not finite beside them."""

    def merged(self, groups: EventsBySpan, batch: BatchRows, state: pa.Table | None) -> dict[str, Any]:
        values = Values.of(batch.table[self._field])
        # What is null adds nothing.
        numbers = values.numbers[groups.rows].tolist()
        ends = [*groups.start[1:].tolist(), len(numbers)]
        parts = [numbers[a:b] for a, b in zip(groups.start.tolist(), ends, strict=True)]
        old = self._old(groups, state, self._name)
        if old is not None:
            for span, before in zip(groups.known.tolist(), old.to_pylist(), strict=True):
                parts[span] = before + parts[span]
        kind = pa.list_(pa.float64())
        made: dict[str, Any] = {self._name: pa.array([few(part) for part in parts], kind, from_pandas=False)}
        if isinstance(self._aggregator, Average):
            count = f"{self._name}_count"
            made[count] = self._plus(counted(groups, batch.table[self._field]), groups, state, count)
        return made

    def values(self, spans: pa.Table) -> Any:
        sums = [fsum(parts) for parts in spans[self._name].to_pylist()]
        if not isinstance(self._aggregator, Average):
            return sums
        counts = spans[f"{self._name}_count"].to_pylist()
        return [total / count if count else 0.0 for total, count in zip(sums, counts, strict=True)]


def few(values: list[float]) -> list[float]:
    """Return a few floats with exactly the same sum."""
    if len(values) < 2:
        return values
    finite = [value for value in values if value - value == 0.0]
    others = {str(value): value for value in values if value - value != 0.0} if len(finite) < len(values) else {}
    return [*shortened(finite), *others.values()]


class _Extreme(Partial):
    """The least or the greatest value of a field; of equal ones the first."""

    def merged(self, groups: EventsBySpan, batch: BatchRows, state: pa.Table | None) -> dict[str, Any]:
        column = batch.table[self._field]
        old = self._old(groups, state, self._name)
        of, at = groups.of, groups.row
        if old is not None:
            of = np.concatenate([groups.known, of])
            at = np.concatenate([np.arange(len(old)), at + len(old)])
            column = pa.chunked_array([*old.cast(column.type).chunks, *column.chunks], column.type)
        if column.null_count:
            there = column.is_valid().to_numpy()[at]
            of, at = of[there], at[there]
        rank = ranks(column)[at]
        # The least int has no negative.
        order = np.lexsort((~rank if isinstance(self._aggregator, Max) else rank, of))
        first = np.ones(len(order), bool)
        first[1:] = of[order[1:]] != of[order[:-1]]
        best = np.full(groups.number, -1)
        best[of[order[first]]] = at[order[first]]
        return {self._name: column.take(pa.array(best, mask=best < 0))}

    def values(self, spans: pa.Table) -> Any:
        best = spans[self._name]
        return pc.add(best, pa.scalar(0.0, best.type)) if pa.types.is_floating(best.type) else best


def ranks(column: pa.ChunkedArray) -> Ints:
    """Return numbers that are in the order of some values, equal for equal ones; NaN is the greatest. Of nulls any."""
    kind = column.type
    if pa.types.is_signed_integer(kind):
        return Values.of(column).numbers
    if pa.types.is_floating(kind):
        _, found = np.unique(Values.of(column).numbers, return_inverse=True)
        return found
    coded = column.combine_chunks().dictionary_encode()
    place = np.zeros(len(coded.dictionary) + 1, np.int64)
    place[pc.sort_indices(coded.dictionary).to_numpy()] = np.arange(len(coded.dictionary))
    return place[coded.indices.fill_null(len(coded.dictionary)).to_numpy()]


class _Kept(Partial):
    """Any aggregator, event by event; its state is a blob per span."""

    def merged(self, groups: EventsBySpan, batch: BatchRows, state: pa.Table | None) -> dict[str, Any]:
        happened = batch.events
        old = self._old(groups, state, self._name)
        before = {} if old is None else dict(zip(groups.known.tolist(), old.to_pylist(), strict=True))
        at = groups.rows.tolist()
        ends = [*groups.start[1:].tolist(), len(at)]
        blobs = []
        for span, (start, end) in enumerate(zip(groups.start.tolist(), ends, strict=True)):
            accumulator = self._aggregator.accumulator()
            if span in before:
                accumulator.restore(loads(before[span]))
            added = accumulator.added
            for row in at[start:end]:
                added(happened[row])
            try:
                accumulator.check_total()
            except TotalError as error:
                error.number = span
                raise
            blobs.append(dumps(accumulator.save()))
        return {self._name: pa.array(blobs, pa.binary())}

    def values(self, spans: pa.Table) -> list[Any]:
        found = []
        for blob in spans[self._name].to_pylist():
            accumulator = self._aggregator.accumulator()
            accumulator.restore(loads(blob))
            found.append(accumulator.aggregate())
        return found


def partial_of(name: str, aggregator: EventAggregator, types: pa.Schema) -> Partial:
    """Return the columns of an aggregator over fields of some types."""
    return _form_of(aggregator, types)(name, aggregator)


def _form_of(aggregator: EventAggregator, types: pa.Schema) -> type[Partial]:
    made, field = type(aggregator), getattr(aggregator, "field", None)
    if made is Count and (field is None or field in types.names):
        return _Counted
    kind = types.field(field).type if field in types.names else None
    if kind is not None and made in (Sum, Average):
        if pa.types.is_signed_integer(kind):
            return _Added
        return _FloatsAdded if pa.types.is_floating(kind) else _Kept
    if kind is not None and made in (Min, Max) and any(is_one(kind) for is_one in _ORDERED):
        return _Extreme
    return _Kept


_ORDERED: Final = (
    pa.types.is_signed_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_date,
    pa.types.is_timestamp,
)
"""Types whose values Arrow and `aggregators.ordering` put in one order."""
