"""States of the reference engine: dicts and lists in place of tables. A batch runs once, so a state's kind is of no account."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipelines.aggregators import CombinerAggregator
from pipelines.aggregators.calls import emitted
from pipelines.errors import DuplicateKeyError
from pipelines.graph import nodes
from pipelines.planner.plain import Row, Table, freeze, in_order
from pipelines.planner.plain.aggregation import aggregate_types, running
from pipelines.planner.plain.partitions import by_hash
from pipelines.state.kinds import LOG
from pipelines.state.views import MapState, StateView

Rows = list[dict[str, Any]]


class State(Protocol):
    """A state that a batch commits into."""

    def commit(self, table: Table, tasks: int, batch: int) -> Table:
        """Take in a batch; gives what `new_values_stream` shows: the keys that it touched, with their new values."""

    def rows(self) -> Rows:
        """Return what a reader sees: by key, None first; rows in commit order."""

    def view(self) -> StateView:
        """Return what a function sees."""

    def types(self) -> dict[str, str | None]:
        """Return the types of the columns, as far as they are known."""


def state_of(node: nodes.PersistNode) -> State:
    """Return an empty state for what a node persists."""
    if node.updater is not None:
        return UpdatedState(node)
    return AggregateState(node) if node.aggregations else RowsState(node)


class _Keyed(ABC):
    """A state that holds a row per key."""

    node: nodes.PersistNode

    @abstractmethod
    def _held(self) -> list[Row]:
        """Return all rows: keys, then values."""

    def rows(self) -> Rows:
        return in_order((dict(zip(self.node.fields, row, strict=True)) for row in self._held()), self.node.group)

    def view(self) -> StateView:
        keys = len(self.node.group)
        return StateView.of_rows(self.node.fields[:keys], self.node.fields[keys:], self._held())


@dataclass
class AggregateState(_Keyed):
    """A persistent aggregate: by key, the key's fields and the folded values, unfinished."""

    node: nodes.PersistNode
    values: dict[Any, tuple[Row, list[Any]]] = field(default_factory=dict)
    known: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.node.group and self.node.state.layout == LOG:
            # A log that is not keyed has its zero from the start: a reader never sees nothing.
            self.values[()] = (), [a.aggregator.zero() for a in self.node.aggregations]

    def commit(self, table: Table, tasks: int, batch: int) -> Table:
        self.known = aggregate_types(table, self.node.group, self.node.aggregations)
        touched = []
        stored = {frozen: values for frozen, (_, values) in self.values.items()}
        chains = running(table, self.node.group, self.node.aggregations, batch, stored) if table.rows else ()
        for key, chain in chains:
            new = [link.state for link in chain]
            self.values[freeze(key)] = key, new
            touched.append(self._row(key, new))
        shown = Table(self.node.fields, self.known, tuple(touched))
        return by_hash(shown, self.node.group, tasks) if self.node.group else shown

    def _held(self) -> list[Row]:
        return [self._row(*entry) for entry in self.values.values()]

    def types(self) -> dict[str, str | None]:
        return dict(zip(self.node.fields, self.known, strict=False))

    def _row(self, key: Row, values: list[Any]) -> Row:
        finished = (
            a.aggregator.finish(value) if isinstance(a.aggregator, CombinerAggregator) else value
            for a, value in zip(self.node.aggregations, values, strict=True)
        )
        return (*key, *finished)


@dataclass
class RowsState:
    """A state that keeps the tuples themselves, commit after commit."""

    node: nodes.PersistNode
    commits: list[Rows] = field(default_factory=list)
    known: tuple[str | None, ...] = ()

    def commit(self, table: Table, tasks: int, batch: int) -> Table:
        kept = table.select(self.node.fields)
        self.known = kept.types
        self.commits.append(in_order(kept.dicts(), self.node.fields))
        return kept

    def rows(self) -> Rows:
        """Return rows in commit order, and within a commit (where Spark keeps no order) by value."""
        return [row for commit in self.commits for row in commit]

    def view(self) -> StateView:
        return _Tuples(self.node.fields, [tuple(row.values()) for row in self.rows()])

    def types(self) -> dict[str, str | None]:
        return dict(zip(self.node.fields, self.known, strict=False))


@dataclass
class UpdatedState(_Keyed):
    """A state that a user's updater writes. Each task's updater sees what the state held before the batch."""

    node: nodes.PersistNode
    held: dict[Row, Row] = field(default_factory=dict)

    def commit(self, table: Table, tasks: int, batch: int) -> Table:
        inputs, before = table.select(self.node.inputs), self.view()
        made, numbers, changed = list[Row](), list[int](), dict[Row, Row | None]()
        for task, part in enumerate(inputs.by_task(tasks)):
            if not part.rows:
                continue
            state = MapState(before)
            given = self.node.updater.update_state(state, list(part.rows))
            if self.node.outputs:
                rows = emitted(self.node.label, given, len(self.node.outputs))
                made += rows
                numbers += [task] * len(rows)
            elif given is not None:
                list(given)  # a generator's body runs as it is read
            self._take(changed, {**state.puts, **dict.fromkeys(state.removed)})
        for key, values in changed.items():
            if values is None:
                self.held.pop(key, None)
            else:
                self.held[key] = values
        shown = Table(self.node.outputs, self.node.types, tuple(made))
        return shown.dealt(numbers if tasks > 1 else None)

    def _take(self, changed: dict[Row, Row | None], new: dict[Row, Row | None]) -> None:
        for key, values in new.items():
            if key in changed:
                raise DuplicateKeyError(list(key))
            changed[key] = values

    def _held(self) -> list[Row]:
        return [(*key, *values) for key, values in self.held.items()]

    def types(self) -> dict[str, str | None]:
        return dict((*self.node.updater.key_columns, *self.node.updater.value_columns))


class _Tuples(StateView):
    """Rows without keys, repeated ones too."""

    def __init__(self, fields: Sequence[str], rows: list[Row]) -> None:
        self.keys, self.values, self._rows = (), tuple(fields), rows

    def tuples(self) -> list[Row]:
        return self._rows

    def _find(self, keys: Sequence[Any]) -> dict[Any, Row]:
        """Nothing is kept by key."""
        return {}
