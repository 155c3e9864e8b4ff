"""The rows that a persist commits, by the layout of its state.

- rows: the tuples, or the wanted fields of them;
- log: keys and the batch's partial values;
- map: keys and their new values, worked out from what the state held before the batch;
- with an updater: `_op` ("put", "remove", "emit"), keys, values, and the outputs as `_out_<name>` (`updaters.py`).

And the new values of a state after a batch, as a stream (Trident rules 1.2, newValuesStream).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import functions as F

from pipelines.aggregators import ColumnAggregator
from pipelines.aggregators.folds import UNSET, CombinerFold, Fold
from pipelines.errors import FunctionError
from pipelines.graph import nodes
from pipelines.planner.aggregates import (
    arrow,
    by_key,
    chain_of,
    combine_early,
    in_workers,
    inputs_of,
    over_columns,
    partial_fields,
    partial_values,
    partials,
    tuples,
    with_keys,
)
from pipelines.planner.joins import same
from pipelines.planner.passes import Chain, ValuesByKey, WholePass
from pipelines.planner.step import ORDER, TASK, Context, Step, column, columns, hidden
from pipelines.planner.updaters import EMIT, OP, output_column, updated
from pipelines.planner.values import Row, RowsOut, plain_rows
from pipelines.spark.arrow_frame import all_nullable
from pipelines.state.kinds import MAP

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def persisted(step: Step) -> DataFrame:
    """Return the rows to commit, with the slice."""
    node, keys = step.node, step.batch()
    if node.updater is not None:
        return updated(step)
    if not node.aggregations:
        return step.frame.select(*columns(node.inputs), *columns(keys))
    built_in = over_columns(node.aggregations)
    if node.state.layout == MAP or not built_in:
        # A key of a map has one value, in however many slices of a stream's batch it comes. In a bounded run each slice
        # is a batch, and a commit, of its own.
        keys = keys if step.context.slices is not None else []
        stored = stored_values(step)
        rows = _map_in_spark(step, keys, stored) if built_in else _map_in_python(step, keys, stored)
        return rows.select(*columns(node.fields), *columns(keys))
    return _partials_in_spark(step, keys)


def stored_values(step: Step) -> DataFrame | None:
    """Return keys and values of a map state as they were before the batch; None if there is no such state yet."""
    node, context = step.node, step.context
    base = getattr(context, "map_base", None)
    if base is not None:
        frame: DataFrame | None = base(node)
        return frame
    there = step.stored()
    return None if there is None else there[0].frame(step.frame.sparkSession, version=there[1])


def _partials_in_spark(step: Step, keys: list[str]) -> DataFrame:
    return grouped(step, keys, partials(step.node.aggregations))


def grouped(step: Step, keys: list[str], made: Sequence[Column]) -> DataFrame:
    """Return the group's fields, the keys and some aggregates, a row for each group that has tuples."""
    # Not a stream-wide agg(): an empty batch has no partial value to store, only a reader sees the zero.
    by = columns([*step.node.group, *keys])
    if by:
        return step.frame.groupBy(*by).agg(*made)
    return step.frame.groupBy(F.lit(0).alias("_all")).agg(*made).drop("_all")


# --- map states -----------------------------------------------------------------------------------------------------


def _map_in_spark(step: Step, keys: list[str], stored: DataFrame | None) -> DataFrame:
    """Fold built-in aggregators: the batch's partial value and the stored one of each key that the batch touched."""
    node = step.node
    for a in node.aggregations:
        if type(a.aggregator).result is not ColumnAggregator.result:
            raise FunctionError(
                "persistent_aggregate",
                f"at {node.at}: {a.aggregator} cannot be kept in layout map, where a reader sees what is stored",
                hint="use layout log, the default",
            )
    rows = _partials_in_spark(step, keys)
    if stored is None:
        return rows
    outputs = [a.output for a in node.aggregations]
    both = _beside(rows, node.group, stored, node.group, outputs)
    pair = F.array(
        F.struct(*columns(outputs)), F.struct(*(F.col(f"_s{at}").alias(name) for at, name in enumerate(outputs)))
    )
    each = both.select(*columns(node.group), *columns(keys), F.explode(pair).alias("_value"))
    by = [*columns(node.group), *(columns(keys) or [F.lit(0).alias("_all")])]
    # As the column is: a sum of decimals has ten digits more with each fold.
    kinds = {field.name: all_nullable(field.dataType) for field in rows.schema}
    return each.groupBy(*by).agg(
        *(a.aggregator.fold(F.col("_value")[a.output]).cast(kinds[a.output]).alias(a.output) for a in node.aggregations)
    )


def _map_in_python(step: Step, keys: list[str], stored: DataFrame | None) -> DataFrame:
    """Run aggregators written in Python: combiners go on from their stored values, reducers start from them."""
    node = step.node
    group = [*keys, *node.group]
    early = combine_early(node.aggregations)
    frame = (partial_values if early else tuples)(step, group, node.aggregations)
    schema = with_keys(step.frame, group, partial_fields(step.frame, node.aggregations))
    chain = chain_of(step, group, node.aggregations)
    if stored is not None:
        of_group = [f"_k{at}" for at in range(len(keys), len(group))]
        frame = _beside(frame, of_group, stored, node.group, [a.output for a in node.aggregations])
    values = len(node.aggregations) if early else len(inputs_of(node.aggregations))
    run = StatePass(chain, arrow(schema), partial=early, values=values, stored=stored is not None)
    return by_key(frame, len(group)).mapInArrow(in_workers(run), schema)


def _beside(
    frame: DataFrame, keys: Sequence[str], stored: DataFrame, stored_keys: Sequence[str], outputs: Sequence[str]
) -> DataFrame:
    """Return the frame with what the state holds for its keys, as `_s0 ...`, null where it holds nothing; the order last."""
    renamed = stored.select(
        *(column(name).alias(f"_b{at}") for at, name in enumerate(stored_keys)),
        # A value that the flow has new: the table gets its column with the first commit.
        *(
            (column(name) if name in stored.columns else F.lit(None)).alias(f"_s{at}")
            for at, name in enumerate(outputs)
        ),
    )
    shown: list[Column] = [column(name) for name in frame.columns if name != ORDER]
    shown += [F.col(f"_s{at}") for at in range(len(outputs))]
    shown += [F.col(ORDER)] if ORDER in frame.columns else []
    if not keys:
        return frame.join(F.broadcast(renamed), how="left").select(*shown)
    pairs = [(name, f"_b{at}") for at, name in enumerate(keys)]
    return frame.join(renamed, on=same(pairs), how="left").select(*shown)


@dataclass(frozen=True)
class StatePass:
    """The new value of each key. A row is the keys, the values or partial values, and perhaps what is stored.

    A combiner's new value is `combine(stored, batch's)`, or the batch's where nothing is stored; a reducer starts from
    the stored value, or from `init()` (Trident rules 1.3).
    """

    chain: Chain
    schema: pa.Schema
    partial: bool
    values: int
    stored: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folds, groups = self.chain.folds(), ValuesByKey()
        whole = WholePass(self.chain, self.schema, partial=self.partial)
        inputs = [at for _, at, _ in self.chain.aggregators]
        before: dict[Any, Row] = {}
        first = self.chain.keys + self.values
        for batch in batches:
            if self.stored:
                held = plain_rows(batch, range(first, first + len(folds)))
                for (look, key), row in zip(groups.keyed(batch, self.chain.keys), held, strict=True):
                    if look not in before:
                        before[look] = row
                        groups.found[look] = (key, self._start(folds, key, row))
            whole.take(folds, inputs, groups, batch)
        out = RowsOut(self.schema, self.chain.where, self.chain.keys)
        for look, (key, values) in groups.found.items():
            out.add((*key, *self._ended(folds, values, before.get(look))))
            yield from out.full()
        yield from out.rest()

    def _start(self, folds: list[Fold], key: Row, stored: Row) -> list[Any]:
        return [
            UNSET
            if isinstance(fold, CombinerFold)
            else fold.start(self.chain.batch_of(key))
            if value is None
            else value
            for fold, value in zip(folds, stored, strict=True)
        ]

    def _ended(self, folds: list[Fold], values: list[Any], stored: Row | None) -> list[Any]:
        results = []
        for at, (fold, value) in enumerate(zip(folds, values, strict=True)):
            if isinstance(fold, CombinerFold):
                held = None if stored is None else stored[at]
                try:
                    value = fold.aggregator.merge(held, fold.kept(value))
                except Exception as error:
                    raise self.chain.where.error(f"failed to combine {held!r} and {value!r}", error) from error
            results.append(value)
        return results


def read_by(node: nodes.NewValuesNode, graph: nodes.Graph, context: Context) -> tuple[int, ...]:
    """Return the nodes whose frames new values are worked out from.

    That is what leads to the persist: the tuples say which keys were touched, and the state has their values. What an
    updater emitted is the persist's own frame, or was kept since the state was committed.
    """
    persist = cast(nodes.PersistNode, graph[node.parents[0]])
    if persist.updater is None:
        return persist.parents
    return (persist.id,) if _kept(persist, context) is None else ()


def new_values(step: Step) -> DataFrame:
    """Return the keys that the batch touched, with their values as of the batch; of a state of tuples the tuples themselves."""
    persist = cast(nodes.PersistNode, step.parent())
    if persist.updater is not None:
        return _emitted(step)
    if not persist.aggregations:
        names = zip(persist.inputs, step.node.fields, strict=True)
        return step.frame.select(*(column(name).alias(new) for name, new in names), *step.kept)
    return _of_keys(step, persist)


def _of_keys(step: Step, persist: nodes.PersistNode) -> DataFrame:
    keys = step.batch()
    touched = step.frame.select(
        *(column(name).alias(f"_t{at}") for at, name in enumerate(persist.group)),
        *(columns(keys) or [F.lit(0).alias("_all")]),
    ).distinct()
    table, version = step.context.state(persist.state.name)
    state = table.frame(step.frame.sparkSession, version=version).select(*columns(persist.fields))
    if persist.group:
        on = same([(f"_t{at}", name) for at, name in enumerate(persist.group)])
        rows = touched.join(state, on=on, how="inner")
    else:
        rows = touched.crossJoin(F.broadcast(state))
    names = zip(persist.fields, step.node.fields, strict=True)
    rows = rows.select(*(column(name).alias(new) for name, new in names), *columns(keys))
    if TASK in step.needed and not persist.group:
        return rows.withColumn(TASK, F.lit(0))
    return step.with_task(rows, step.node.fields[: len(persist.group)])


def _emitted(step: Step) -> DataFrame:
    rows = _kept(cast(nodes.PersistNode, step.parent()), step.context) if not step.frames else step.frame
    assert rows is not None
    names = [column(output_column(name)).alias(name) for name in step.node.fields]
    return rows.where(F.col(OP) == EMIT).select(*names, *columns(hidden(rows)))


def _kept(persist: nodes.PersistNode, context: Context) -> DataFrame | None:
    ask = getattr(context, "emitted", None)
    return None if ask is None else ask(persist)
