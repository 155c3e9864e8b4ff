"""Trident's aggregators over the tuples of aligned and session windows."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

from pipelines.aggregators import ColumnAggregator, Sum
from pipelines.aggregators.exact import TotalError, fits
from pipelines.aggregators.folds import Running
from pipelines.aggregators.sum import in_topology
from pipelines.aggregators.window import Accumulator, EventAggregator, Rows, State, Types, undivided
from pipelines.graph.fields import distinct
from pipelines.windows.aggregate import crossed


@dataclass(frozen=True)
class TupleChain(EventAggregator):
    """A chain of Trident's aggregators (Trident rules 1.4) as one aggregator of event windows: their rows are crossed.

    Args:
        aggregations: `pipelines.graph.nodes.Aggregation`, one or more.
    """

    aggregations: tuple[Any, ...]

    def accumulator(self) -> Accumulator:
        return _Chain(self.aggregations)

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        return output_types(self.aggregations, types)

    @property
    def result_fields(self) -> tuple[str, ...]:
        return tuple(name for aggregation in self.aggregations for name in aggregation.outputs)

    @property
    def reads(self) -> tuple[str, ...]:
        return distinct(name for aggregation in self.aggregations for name in aggregation.inputs)

    @property
    def named(self) -> str:
        return self.result_fields[0]

    def check(self) -> None:
        """Find nothing: the stream has checked it at its line."""

    def __str__(self) -> str:
        return ", ".join(str(aggregation.aggregator) for aggregation in self.aggregations)


def output_types(aggregations: tuple[Any, ...], known: Types) -> list[tuple[str, str | None]]:
    """Return the outputs of aggregations and their Spark SQL types, from those of the inputs where these decide."""
    types: list[tuple[str, str | None]] = []
    for aggregation in aggregations:
        aggregator = copy.copy(aggregation.aggregator)
        if isinstance(aggregator, ColumnAggregator):
            aggregator.field, aggregator.output = next(iter(aggregation.inputs), None), aggregation.output
            types += cast(EventAggregator, aggregator).result_types(undivided(known))
        elif aggregation.types:
            types += zip(aggregation.outputs, aggregation.types, strict=True)
        else:
            types += ((o, known.get(i)) for o, i in zip(aggregation.outputs, aggregation.inputs, strict=True))
    return types


def column_types(aggregations: Iterable[Any], known: Types) -> dict[str, str | None]:
    """Return the types of the outputs where Spark's own aggregates make them, not windows."""
    chain = tuple(aggregations)
    sums = {aggregation.output for aggregation in chain if isinstance(aggregation.aggregator, Sum)}
    return {name: in_topology(kind) if name in sums else kind for name, kind in output_types(chain, known)}


class _Chain(Accumulator):
    """The aggregators at work. A user's own start when the window is emitted: their state need not be plain data."""

    fields = ()

    def __init__(self, aggregations: tuple[Any, ...]) -> None:
        self._aggregations = aggregations
        self._last: int | None = None
        self.clear()

    def clear(self) -> None:
        self._running: dict[int, Running] = {}
        self._tuples: dict[int, list[tuple[Any, ...]]] = {}
        for n, aggregation in enumerate(self._aggregations):
            if isinstance(aggregation.aggregator, ColumnAggregator):
                self._running[n] = _running(aggregation, None)
            else:
                self._tuples[n] = []

    def added(self, event: Mapping[str, Any]) -> None:
        self._last = getattr(event, "timestamp", None)
        for n, aggregation in enumerate(self._aggregations):
            values = tuple(map(event.get, aggregation.inputs))
            if n in self._running:
                self._running[n].add(values)
            else:
                self._tuples[n].append(values)

    def evicted(self, event: Mapping[str, Any]) -> None:
        raise NotImplementedError("no tuple leaves an aligned or session window before its end")

    def aggregate(self) -> Rows:
        """Return the crossed rows; `init(batch)` of an aggregator gets the time of the last tuple, in ms."""
        rows = []
        for n, aggregation in enumerate(self._aggregations):
            running = self._running.get(n) or _running(aggregation, self._last)
            for values in self._tuples.get(n, ()):
                running.add(values)
            rows.append([dict(zip(aggregation.outputs, row, strict=True)) for row in running.complete()])
        return Rows(crossed(rows))

    def check_total(self, items: Sequence[Mapping[str, Any]] | None = None) -> None:
        for n, running in self._running.items():
            if type(self._aggregations[n].aggregator) is Sum and not fits(running.state):
                raise TotalError(self._aggregations[n].inputs[0], decimal=isinstance(running.state, Decimal))

    def save(self) -> State:
        return [self._last, {n: running.state for n, running in self._running.items()}, self._tuples]

    def restore(self, state: State) -> None:
        self._last, partials, tuples = state
        for n, partial in partials.items():
            self._running[n].go_on_from(partial)
        self._tuples = {n: [tuple(values) for values in kept] for n, kept in tuples.items()}


def _running(aggregation: Any, batch: Any) -> Running:
    return Running(aggregation.aggregator, len(aggregation.inputs), len(aggregation.outputs), batch)
