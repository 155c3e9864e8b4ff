"""State updaters: a user's code that changes a state by key, in the workers (Trident rules 4.3, partitionPersist)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField

from pipelines.aggregators.calls import emitted
from pipelines.planner.failures import Where
from pipelines.planner.partitioning import arrival
from pipelines.planner.passes import Groups
from pipelines.planner.python_aggregation import arrow, by_key, in_workers, with_keys
from pipelines.planner.step import ORDER, Step, column, columns, type_of
from pipelines.planner.values import Row, RowsOut, plain_rows
from pipelines.state.views import MapState, StateView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OP, PUT, REMOVE, EMIT = "_op", "put", "remove", "emit"
"""The column of an updater's frame that says what a row is, and its values."""


def output_column(name: str) -> str:
    """Return where an updater's frame holds an output: keys and values may have the same names."""
    return f"_out_{name}"


def updated(step: Step) -> DataFrame:
    """Return what the updater made of the batch: `_op`, keys, values, outputs, and the hidden columns."""
    node = step.node
    keys = step.batch(partitioned=True)
    picked = [column(name).alias(f"_k{at}") for at, name in enumerate(keys)]
    picked += [column(name).alias(f"_v{at}") for at, name in enumerate(node.inputs)]
    picked.append(F.struct(arrival(step.frame), F.monotonically_increasing_id()).alias(ORDER))
    made = [StructField(OP, StringType())]
    made += [
        StructField(name, type_of(kind)) for name, kind in (*node.updater.key_columns, *node.updater.value_columns)
    ]
    made += [
        StructField(output_column(name), type_of(kind)) for name, kind in zip(node.outputs, node.types, strict=True)
    ]
    schema = with_keys(step.frame, keys, made)
    run = UpdatePass(
        Where.of(node), arrow(schema), len(keys), len(node.inputs), node.updater, view_of(step), len(node.outputs)
    )
    found = by_key(step.frame.select(*picked), len(keys)).mapInArrow(in_workers(run), schema)
    return found.select(*columns(name for name in found.columns if name not in keys), *columns(keys))


def view_of(step: Step) -> StateView:
    """Return what the state held before the batch, to be read in the workers."""
    node, context = step.node, step.context
    ask = getattr(context, "base_view", None)
    found = ask(node) if ask is not None else None
    if found is not None:
        return found
    if there := step.stored():
        return there[0].view(there[1])
    keys = [name for name, _ in node.updater.key_columns]
    return StateView.of_rows(keys, [name for name, _ in node.updater.value_columns], [])


@dataclass(frozen=True)
class UpdatePass:
    """Calls the updater once for each batch and task that has tuples. A row is the keys, then the tuple's inputs."""

    where: Where
    schema: pa.Schema
    keys: int
    inputs: int
    updater: Any
    view: StateView
    outputs: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups = Groups()
        for batch in batches:
            rows = plain_rows(batch, range(self.keys, self.keys + self.inputs))
            for (look, key), row in zip(groups.keyed(batch, self.keys), rows, strict=True):
                groups.value(look, key, lambda _: []).append(row)
        out = RowsOut(self.schema, self.where, self.keys)
        for key, tuples in groups.found.values():
            for row in self._rows(tuples):
                out.add((*key, *row))
            yield from out.full()
        yield from out.rest()

    def _rows(self, tuples: list[Row]) -> Iterator[Row]:
        state = MapState(self.view)
        try:
            rows = emitted(str(self.updater), self.updater.update_state(state, tuples), self.outputs)
        except Exception as error:
            raise self.where.failed_on_all(tuples, error) from error
        nothing = (None,) * self.outputs
        for *row, removed in state.changes():
            yield (REMOVE if removed else PUT, *row, *nothing)
        empty = (None,) * (len(state.keys) + len(state.values))
        for one in rows:
            yield (EMIT, *empty, *one)
