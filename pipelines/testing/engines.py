"""One call that runs given batches through a topology on any of the three engines."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from pipelines.errors import BatchError, DefinitionError, UnknownQueryError, nearest
from pipelines.graph import nodes
from pipelines.graph.plain_values import plain_list
from pipelines.planner.plain import in_order, plain
from pipelines.sources import FixedBatches
from pipelines.sources.fixed import BATCH_NUMBER
from pipelines.state.schema import SLICE_COLUMN, TXID, UNSLICED
from pipelines.testing.reference import Batch, ReferenceEngine, States
from pipelines.testing.spark_step import fresh_lake, session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from pipelines.execution.runtime import Runtime
    from pipelines.state.lake import Lake
    from pipelines.trident import TridentTopology

Engine = Literal["reference", "bounded", "stream", "batch"]


def run_topology(
    topology: TridentTopology,
    batches: Mapping[str, Sequence[Batch]],
    engine: Engine = "reference",
    spark: SparkSession | None = None,
) -> States:
    """Return every state of a topology after the given batches.

    The batches stand in for the topology's sources, which are not read; the topology itself is not changed. Slices that it
    names (`slice_by`) are left out: an operation per batch works per batch, where in a real stream it works per batch and slice.

    - `reference`: plain Python, one batch after the other;
    - `stream`: a real stream, a micro-batch per batch, into a lake of its own that is removed afterwards;
    - `bounded`: a real bounded run (a backfill) in which each batch is a slice: what an operation does per batch it does per
      slice, so the results are those of the other engines. But what stands behind a window is one batch, as in `run_bounded`:
      there an aggregate without a state, `min_by`, a join, a check of a whole batch see all results of all windows at once.
      `batch`, its name in `run_flow`, is the same.

    Args:
        topology: what to run.
        batches: by the name of a stream its batches, each a list of tuples (in the order of the source's fields) or of
            dicts. A stream that is not named gets none.
        engine: which engine.
        spark: the session; None: the active one, else the process's own (`spark_session()`), which is started where there is
            none and ends with the process. The reference engine asks for it only if an expression needs Spark.

    Returns:
        By the state's name its rows as dicts, the same for every engine but for that one batch: keyed states by key, None
        first; a state without keys as its one row; states of rows in commit order, and within a commit by value; those behind
        windows, whose results have batches of their own, by value alone. Timestamps are without time zone, in UTC.

    Raises:
        DefinitionError: for an engine or a stream that there is not.
        BatchError: if a batch fails; the reference engine raises what a function or gate raised itself.
    """
    _check(topology, batches, engine)
    if engine == "reference":
        reference = ReferenceEngine(topology, spark)
        reference.run(batches)
        return {name: _behind_windows(topology, name, rows) for name, rows in reference.states.items()}
    with fresh_lake() as lake:
        _, given = _run(topology, batches, engine, spark, lake)
        states = [node for node in given.persists if not isinstance(node, nodes.ChannelNode)]
        return {n.state.name: _behind_windows(given, n.state.name, _rows(lake, n)) for n in states}


def query_topology(
    topology: TridentTopology,
    batches: Mapping[str, Sequence[Batch]],
    query: str,
    arguments: Batch,
    engine: Engine = "reference",
    spark: SparkSession | None = None,
) -> list[dict[str, Any]]:
    """Return the rows that answer a query after the given batches; the arguments and errors are those of `run_topology`.

    Args:
        query: the name of the query stream.
        arguments: the query's tuples, of its schema.

    Raises:
        UnknownQueryError: if the topology has no such query stream.
    """
    _check(topology, batches, engine)
    if engine == "reference":
        reference = ReferenceEngine(topology, spark)
        reference.run(batches)
        return reference.query(query, arguments)
    with fresh_lake() as lake:
        runtime, given = _run(topology, batches, engine, spark, lake)
        if query not in given.queries:
            raise UnknownQueryError(given.name, query, tuple(given.queries))
        rows = FixedBatches(given.queries[query].schema, [arguments]).batches[0]
        return [{name: plain(value) for name, value in row.items()} for row in runtime.query(given, query, rows)]


def with_batches(
    topology: TridentTopology, batches: Mapping[str, Sequence[Batch]], *, slices: bool = False
) -> TridentTopology:
    """Return a copy of a topology whose sources give fixed batches, with `slices` each batch a slice, else unsliced."""
    twin = copy.copy(topology)
    twin.graph = nodes.Graph()
    for node in topology.graph:
        if isinstance(node, nodes.SpoutNode) and not isinstance(node, nodes.ChannelSpoutNode):
            source = FixedBatches(node.source.schema, batches.get(node.stream, ()))
            source.max_parallelism = node.source.max_parallelism
            node = replace(node, source=source, slice_by=BATCH_NUMBER if slices else None)
        twin.graph.put(node)
    return twin


def _check(topology: TridentTopology, batches: Mapping[str, Sequence[Batch]], engine: str) -> None:
    if engine not in get_args(Engine):
        raise DefinitionError(f'no engine "{engine}"; there are: {", ".join(get_args(Engine))}')
    known = [node.stream for node in topology.spouts if not isinstance(node, nodes.ChannelSpoutNode)]
    for name in batches:
        if name not in known:
            raise DefinitionError(
                f'topology "{topology.name}" has no stream "{name}"; it has: {", ".join(known) or "none"}'
                f"{nearest(name, known)}"
            )


def _run(
    topology: TridentTopology,
    batches: Mapping[str, Sequence[Batch]],
    engine: Engine,
    spark: SparkSession | None,
    lake: Lake,
) -> tuple[Runtime, TridentTopology]:
    from pipelines.execution.batch.group import BatchGroup
    from pipelines.execution.protocol.groups import spout_groups
    from pipelines.execution.runtime import Runtime

    given = with_batches(topology, batches, slices=engine != "stream")
    runtime = Runtime(session(spark), lake)
    if engine == "stream":
        runtime.catch_up(given)
    else:
        for spouts in spout_groups(given):
            if any(isinstance(spout, nodes.ChannelSpoutNode) for spout in spouts):
                # Windows reach across slices, so what stands behind them is one bounded batch.
                runtime._bounded(BatchGroup(runtime.spark, lake, given, spouts), [UNSLICED], None)
                continue
            numbers = [f"{number:08d}" for number in range(max(len(spout.source.batches) for spout in spouts))]
            for failed in runtime.backfill(given, numbers, stream=spouts[0].stream).failed:
                raise BatchError(f"the bounded run failed: {failed.error}")
    return runtime, given


def _behind_windows(topology: TridentTopology, name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a state's rows, by value alone if they come from windows, whose batches are their own."""
    node = topology.holder_of(name)
    assert isinstance(node, nodes.PersistNode)
    windowed = any(isinstance(ancestor, nodes.ChannelSpoutNode) for ancestor in topology.graph.ancestors(node.id))
    return in_order(rows, node.fields) if windowed and not node.aggregations and node.updater is None else rows


def _rows(lake: Lake, node: nodes.PersistNode) -> list[dict[str, Any]]:
    """Return a state's rows in the order that `run_topology` states."""
    table = lake.state(node.state.name)
    if node.aggregations or node.updater is not None:
        return in_order(_plain(table.scan()), node.group)
    slices = [f"{SLICE_COLUMN} = '{commit.slice}'" for commit in table.history() if commit.slice is not None]
    txids = sorted({commit.txid for commit in table.history() if commit.txid is not None})
    parts = [table.scan(where=where) for where in slices or [f"{TXID} = {txid}" for txid in txids]] or [table.scan()]
    return [row for part in parts for row in in_order(_plain(part), node.fields)]


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    values = zip(*map(plain_list, rows.columns), strict=True)
    return [dict(zip(rows.column_names, row, strict=True)) for row in values]
