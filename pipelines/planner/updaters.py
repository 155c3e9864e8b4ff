"""State updaters: a user's code that changes a state by key, in the workers (Trident rules 4.3, partitionPersist)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField

from pipelines.aggregators.calls import emitted
from pipelines.planner.aggregates import arrow, by_key, in_workers, with_keys
from pipelines.planner.partitioning import arrival
from pipelines.planner.passes import ValuesByKey
from pipelines.planner.step import ORDER, Step, column, columns, type_of
from pipelines.planner.values import Row, RowsOut, Where, plain_rows
from pipelines.state.schema import SLICE_COLUMN
from pipelines.state.views import MapState, StateView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OP, PUT, REMOVE, EMIT = "_op", "put", "remove", "emit"
"""The column of an updater's frame that says what a row is, and its values."""


def output_column(name: str) -> str:
    """Return where an updater's frame holds an output: keys and values may have the same names."""
    return f"_out_{name}"


def updated(step: Step) -> DataFrame:
    """Return what the updater made of the batch: `_op`, keys, values, outputs, and the hidden columns.

    The slices of a stream's batch come one after the other, in the order of their names, as in a backfill: each sees what those
    before it have changed, and a key has one value in the end. In a bounded run each slice is a pass of its own.
    """
    node = step.node
    tasks = [name for name in step.batch(partitioned=True) if name != SLICE_COLUMN]
    slices = [name for name in step.batch() if step.context.slices is None]
    keys = [*tasks, *step.batch()]
    picked = [column(name).alias(f"_k{at}") for at, name in enumerate(keys)]
    picked += [column(name).alias(f"_v{at}") for at, name in enumerate(node.inputs)]
    order = [*columns(slices), arrival(step.frame), F.monotonically_increasing_id()]
    picked.append(F.struct(*order).alias(ORDER))
    made = [StructField(OP, StringType())]
    made += [
        StructField(name, type_of(kind)) for name, kind in (*node.updater.key_columns, *node.updater.value_columns)
    ]
    made += [
        StructField(output_column(name), type_of(kind)) for name, kind in zip(node.outputs, node.types, strict=True)
    ]
    schema = with_keys(step.frame, keys, made)
    together = len(keys) - len(slices)
    run = UpdatePass(
        where=Where.of(node),
        schema=arrow(schema),
        keys=len(keys),
        together=together,
        inputs=len(node.inputs),
        updater=node.updater,
        view=view_of(step),
        outputs=len(node.outputs),
    )
    rows = by_key(step.frame.select(*picked), together).mapInArrow(in_workers(run), schema)
    return rows.select(
        *columns(name for name in rows.columns if name not in keys), *columns(step.batch(partitioned=True))
    )


def view_of(step: Step) -> StateView:
    """Return what the state held before the batch, to be read in the workers."""
    node, context = step.node, step.context
    ask = getattr(context, "base_view", None)
    view = ask(node) if ask is not None else None
    if view is not None:
        return view
    if there := step.stored():
        return there[0].view(there[1])
    keys = [name for name, _ in node.updater.key_columns]
    return StateView.of_rows(keys, [name for name, _ in node.updater.value_columns], [])


@dataclass(frozen=True)
class UpdatePass:
    """Calls the updater once for each task and slice that has tuples. A row is the keys, then the tuple's inputs.

    Args:
        together: how many of the keys tell apart what changes the state by itself; those behind them come in turn.
    """

    where: Where
    schema: pa.Schema
    keys: int
    together: int
    inputs: int
    updater: Any
    view: StateView
    outputs: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups = ValuesByKey()
        for batch in batches:
            rows = plain_rows(batch, range(self.keys, self.keys + self.inputs))
            for (look, key), row in zip(groups.keyed(batch, self.keys), rows, strict=True):
                groups.value(look, key, lambda _: []).append(row)
        out = RowsOut(self.schema, self.where, self.keys)
        states: dict[Row, tuple[Row, MapState]] = {}
        for key, tuples in groups.found.values():
            own = tuple(key[: self.together])
            state = states[own][1] if own in states else self._state()
            states[own] = key, state
            for row in self._emitted(state, tuples):
                out.add((*key, *row))
            yield from out.full()
        nothing = (None,) * self.outputs
        for key, state in states.values():
            for *change, removed in state.changes():
                out.add((*key, REMOVE if removed else PUT, *change, *nothing))
            yield from out.full()
        yield from out.rest()

    def _state(self) -> MapState:
        # Behind the group's keys and `_op`.
        return MapState(self.view, self.schema.types[self.keys + 1 :][: len(self.view.keys)])

    def _emitted(self, state: MapState, tuples: list[Row]) -> Iterator[Row]:
        try:
            given = self.updater.update_state(state, tuples)
            if not self.outputs:
                # Nobody takes what it emits, as in Trident; a generator's body runs as it is read.
                deque(given if isinstance(given, Iterator) else (), maxlen=0)
                return
            rows = emitted(str(self.updater), given, self.outputs)
        except Exception as error:
            raise self.where.failed_on_all(tuples, error) from error
        empty = (None,) * (len(state.keys) + len(state.values))
        for output in rows:
            yield (EMIT, *empty, *output)
