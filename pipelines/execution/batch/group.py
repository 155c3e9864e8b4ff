"""A batch group: spouts whose tuples can meet, and all that their batches lead to. One query, one txid sequence."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from pipelines.errors import DefinitionError, FunctionError, UnknownStateError
from pipelines.execution.batch.accounts import HASH, row_hash
from pipelines.execution.batch.group_sources import GroupSources, said
from pipelines.execution.batch.quarantine import quarantine_writer, rows_of
from pipelines.execution.protocol.groups import group_name, spout_groups
from pipelines.graph import events, nodes
from pipelines.planner.compile import Compiler
from pipelines.planner.repeats import may_differ
from pipelines.quality.compiled import CompiledGate, compile_gate
from pipelines.sources.base import FILE
from pipelines.sources.files import TextFiles
from pipelines.spark.arrow_frame import empty_frame
from pipelines.state.delta_log import has_log
from pipelines.state.kinds import TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.schema import SLICE_COLUMN, StateSchema
from pipelines.state.writer import StateWriter
from pipelines.trident.topology import TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from pipelines.places.location import Place
    from pipelines.quality.results import GateResult
    from pipelines.state.table import StateTable

SAMPLE_SECONDS = 60.0
"""How often a stream reads a batch again to show rows that a gate warned of."""


@dataclass(frozen=True)
class Sink:
    """A state that the group commits: its persist node and its writer."""

    node: nodes.PersistNode
    writer: StateWriter

    @property
    def name(self) -> str:
        return self.node.state.name

    @property
    def table(self) -> StateTable:
        return self.writer.table

    @property
    def is_channel(self) -> bool:
        """Return whether it leads to another query of the flow."""
        return isinstance(self.node, nodes.ChannelNode)

    @property
    def is_late(self) -> bool:
        """Return whether it keeps what comes behind the watermark."""
        return isinstance(self.node, nodes.LatePersistNode)

    def clocks_before(self, txid: int) -> dict[str, int]:
        """Return the watermark of each of a channel's inputs before a batch, in ms."""
        records = [c.record for c in self.table.commits.batches() if c.record and (c.txid or 0) < txid]
        return dict(records[-1].clocks or {}) if records else {}


@dataclass(frozen=True)
class FirstGate:
    """The gate that all rows of a group's only source come to first, whose verdict can be counted with them.

    Each observation ends generated code and copies every row: one does for both.

    Attributes:
        metrics: what counts its verdict; rows that the plan cannot take are not counted.
    """

    compiled: CompiledGate
    metrics: tuple[Column, ...]


class BatchGroup:
    """One batch group of a topology, ready to run.

    Args:
        wait: whether states may be left for later whose plans read what other groups of the topology have yet to make.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        topology: TridentTopology,
        spouts: tuple[nodes.SpoutNode, ...],
        *,
        wait: bool = False,
    ) -> None:
        self.spark, self.lake, self.topology, self.spouts = spark, lake, topology, spouts
        self.name = group_name(spouts)
        self.sources = GroupSources(spouts)
        self.first_gate: FirstGate | None = None
        self._gates: dict[int, tuple[str, CompiledGate]] = {}
        self._differs: dict[int, bool] = {}
        self._sampled: dict[int, float] = {}
        self._check_slices()
        self.reach = {node.id for spout in spouts for node in topology.graph.descendants(spout.id)}
        self._check_kinds()
        self._waiting = [node for node in topology.persists if node.id in self.reach]
        self._awaited: set[Place] = set()
        self.sinks: tuple[Sink, ...] = ()
        if not self._waiting:
            raise DefinitionError(
                f'stream "{self.name}" of flow "{topology.name}" ends in no state, so running it would do nothing',
                hint="end it with persistent_aggregate or partition_persist",
            )
        self.quarantine = quarantine_writer(lake, topology.name)
        self.rejected = rows_of(topology, self.name, [spout.stream for spout in spouts])
        self.prepare(wait=wait)
        self.queries_states = any(
            isinstance(node, nodes.StateQueryNode) or _read_after_commit(node, topology.graph) is not None
            for node in topology.graph
            if node.id in self.reach
        )

        self.windows = tuple(
            node for node in topology.graph if node.id in self.reach and isinstance(node, nodes.BatchWindowNode)
        )
        """The windows that run in the group's batch (docs/adr/0054), one behind the other."""

    @cached_property
    def queried(self) -> frozenset[str]:
        """Return the names of the states that the group asks."""
        return frozenset(_queried(node for node in self.topology.graph if node.id in self.reach))

    @property
    def ready(self) -> bool:
        """Return whether all its states have their tables."""
        return not self._waiting

    @property
    def awaited(self) -> tuple[str, ...]:
        """Return the names of the tables that it waits for."""
        return tuple(sorted(path.name for path in self._awaited))

    @property
    def waits_in_vain(self) -> bool:
        """Return whether it waits for a table that waits for others in a circle, so that no group can make it."""
        return not _never_made(self.topology, self.lake).isdisjoint(self.awaited)

    @property
    def watermarked(self) -> tuple[str, ...]:
        """Return what has a watermark: the channels that the group writes, and the windows that run in its batch."""
        own = [sink.name for sink in self.sinks if sink.is_channel]
        return (*own, *(window.channel for window in self.windows[:1]))

    @cached_property
    def last_gates(self) -> tuple[int, ...]:
        """Return the gates that put rows into quarantine on the way to a state, without those ahead of another such gate."""
        gates = [node.id for node in self._gates_before_states() if node.gate.drops]
        ahead = {node.id for gate in gates for node in self.topology.graph.ancestors(gate) if node.id != gate}
        return tuple(gate for gate in gates if gate not in ahead)

    @cached_property
    def gates(self) -> str:
        """Return a digest of what the gates drop on the way to the states, by which a batch knows the gates that began it."""
        decide = [node.gate.decides for node in self._gates_before_states() if node.gate.decides]
        return _digest(decide)

    def _gates_before_states(self) -> list[nodes.GateNode]:
        graph = self.topology.graph
        ways = {node.id for sink in self.sinks for node in graph.ancestors(sink.node.id)} & self.reach
        return [node for node in graph if node.id in ways and isinstance(node, nodes.GateNode)]

    @cached_property
    def fields(self) -> str:
        """Return a digest of what of the sources' rows is hashed, and how, by which two hashes are known to compare."""
        hashed = []
        for spout in self.spouts:
            fields = self.sources.hashed(spout)
            # Former versions hashed the bytes of a line as they lie there.
            mark = ["text"] if isinstance(spout.source.inner, TextFiles) else []
            hashed.append([row_hash(fields), fields.simpleString(), *mark])
        return _digest(hashed)

    def prepare(self, *, wait: bool = False) -> bool:
        """Make the tables of the states that wait for theirs; tells whether it made any.

        Each persist is compiled on an empty frame: that gives the table's schema and finds every fault before the start.

        Args:
            wait: leave those whose plans read what another group of the topology has yet to make.
        """
        if wait and self._awaited and not any(map(has_log, self._awaited)):
            return False
        channels = [self.lake.channel_path(name) for one in self.sources.channels for name in one.reads]
        self._awaited = {path for path in channels if wait and not has_log(path)}
        if self._awaited:
            return False
        if not self.sinks:
            self.sources.prepare(self.spark, self.lake, self.topology.name)
        empty, made = self._empty(), {sink.node.id: sink for sink in self.sinks}
        while self._waiting:
            makers = self.topology.persists if wait else self._waiting
            later = [node for node in self._waiting if not self._prepare(node, empty, made, makers)]
            if len(later) == len(self._waiting):
                if wait:
                    break
                self._dry(later[0], empty)  # raises: each waits for a state that another one makes
            self._waiting = later
        before, self.sinks = self.sinks, tuple(made[node_id] for node_id in sorted(made))
        return len(before) < len(self.sinks)

    def _empty(self) -> dict[int, DataFrame]:
        """Return a frame without rows per spout."""
        from pyspark.sql.types import StringType

        empty = {}
        for spout in self.spouts:
            schema = self.sources.schema(spout)
            if spout.slice_by is not None:
                self._check_slice(spout, schema)
                schema = schema.add(SLICE_COLUMN, StringType())
            empty[spout.id] = empty_frame(self.spark, schema)
        return empty

    def schema_at(self, node: nodes.Node) -> StructType:
        """Return the fields behind an operation, with their types."""
        compiler = Compiler(self.topology.graph, (node.id,), _Dry(self), self._empty())
        return self._columns(node, compiler.frames()[node.id])

    def _prepare(
        self,
        node: nodes.PersistNode,
        empty: dict[int, DataFrame],
        sinks: dict[int, Sink],
        makers: Sequence[nodes.PersistNode],
    ) -> bool:
        """Make one state ready; False if its plan reads a state whose table one of `makers` has yet to make."""
        try:
            columns = self._columns(node, self._dry(node, empty))
        except UnknownStateError as error:
            if not any(other.state.name == error.state for other in makers if other is not node):
                raise
            self._awaited.add(self.lake.state_path(error.state))
            return False
        table = self.lake.written_by(node)
        sinks[node.id] = Sink(node, StateWriter(table, self._declared(node, columns)))
        sinks[node.id].writer.prepare(columns)
        return True

    @cached_property
    def waves(self) -> tuple[tuple[Sink, ...], ...]:
        """Return the sinks in the order of their commits: one that queries a state of this group, defined before, comes after it.

        A query behind a persist sees the state as of the batch's own txid and its updates (docs/architecture.md#state-tables).
        """
        graph, names = self.topology.graph, {sink.name: sink for sink in self.sinks}
        level: dict[str, int] = {}
        for sink in self.sinks:
            read = [_read_after_commit(node, graph) for node in graph.ancestors(sink.node.id) if node is not sink.node]
            queried = [level[state] for state in read if state in names and names[state].node.id < sink.node.id]
            level[sink.name] = max(queried, default=-1) + 1
        return tuple(
            tuple(sink for sink in self.sinks if level[sink.name] == number) for number in sorted(set(level.values()))
        )

    @property
    def source_stage(self) -> str:
        """Return the name of the sources' stage in the batch protocol; a state may be named like a stream."""
        return f"{self.name} (source)" if any(sink.name == self.name for sink in self.sinks) else self.name

    @property
    def transactional(self) -> bool:
        """Return whether a replay must deliver the same rows: some state would not take others (Trident rules 6)."""
        return any(sink.writer.declared.kind == TRANSACTIONAL for sink in self.sinks)

    def _check_kinds(self) -> None:
        """Check the exactly-once matrix of Trident rules 6: an opaque source needs opaque states."""
        opaque = [spout.stream for spout in self.spouts if not spout.source.transactional]
        persists = [node for node in self.topology.persists if node.id in self.reach]
        wrong = [node.state.name for node in persists if node.state.kind == TRANSACTIONAL]
        if opaque and wrong:
            raise DefinitionError(
                f'flow "{self.topology.name}": a replayed batch of the source of "{opaque[0]}" may have other rows, which '
                f"these transactional states would not take: {', '.join(wrong)}",
                hint="declare them with kind=OPAQUE (exactly once), or NON_TRANSACTIONAL (a replay counts twice)",
            )

    def _check_slices(self) -> None:
        """Check that of streams that meet all have slices, or none: a joined row has one slice."""
        without = [spout.stream for spout in self.spouts if spout.slice_by is None]
        if without and len(without) < len(self.spouts):
            raise DefinitionError(
                f'flow "{self.topology.name}": of the streams that meet ({", ".join(s.stream for s in self.spouts)}) '
                f"these name no slice column: {', '.join(without)}",
                hint="give each of them slice_by=, or none",
            )

    def _check_slice(self, spout: nodes.SpoutNode, schema: StructType) -> None:
        from pyspark.sql.types import StringType, StructField, StructType

        columns = StructType([*schema.fields, StructField(FILE, StringType())])
        try:
            empty_frame(self.spark, columns).select(said(spout.slice_by or ""))
        except AnalysisException as error:
            raise FunctionError("new_stream slice_by", f"at {spout.at}: {str(error).splitlines()[0]}") from None

    def _dry(self, node: nodes.PersistNode, empty: dict[int, DataFrame]) -> DataFrame:
        try:
            return Compiler(self.topology.graph, (node.id,), _Dry(self), empty).frames()[node.id]
        except AnalysisException as error:
            text = str(error).splitlines()[0]
            raise FunctionError(f"the way to state {node.state.name}", f"at {node.at}: {text}") from None

    def _columns(self, node: nodes.Node, frame: DataFrame) -> StructType:
        from pyspark.sql.types import StructType

        by_name = {f.name: f for f in frame.schema.fields}
        return StructType([by_name[name] for name in node.fields])

    def _declared(self, node: nodes.PersistNode, columns: StructType) -> StateSchema:
        named = ((f.name, f.dataType.simpleString()) for f in columns.fields)
        cut = tuple((spout.stream, spout.slice_by) for spout in self.spouts if spout.slice_by)
        return StateSchema.of_node(node, self.topology.name, named, sliced=self.sources.sliced, slice_by=cut)

    def marked(self, source: DataFrame) -> DataFrame:
        """Return the rows of the group's only source with `_slice`, `_hash`, and `_failed` of the first gate.

        Hashed here, and not where they are counted: an observation evaluates its expressions row by row, outside generated code.
        """
        (spout,) = self.spouts
        source = self.sources.with_slice(spout, source)
        self.first_gate = self.first_gate or self._first_gate(spout, source)
        if self.first_gate is not None:
            source = self.first_gate.compiled.annotate(source, unless=F.expr(self.sources.rejected))
        return source.withColumn(HASH, F.expr(row_hash(self.sources.hashed(spout))))

    def _first_gate(self, spout: nodes.SpoutNode, source: DataFrame) -> FirstGate | None:
        children = self.topology.graph.children(spout.id)
        if len(children) != 1 or not isinstance(children[0], nodes.GateNode):
            return None
        names = [*spout.fields, SLICE_COLUMN] if self.sources.sliced else spout.fields
        compiled = self.compiled_gate(children[0], source.select(*(f"`{name}`" for name in names)))
        if not compiled.by_rows_alone:
            return None
        return FirstGate(compiled, tuple(compiled.metrics(unless=F.expr(self.sources.rejected))))

    def compiled_gate(self, node: nodes.GateNode, frame: DataFrame) -> CompiledGate:
        """Return a gate compiled once for its schema: building it costs more than a small batch."""
        schema = frame.schema
        key = json.dumps(schema.jsonValue())
        if node.id not in self._gates or self._gates[node.id][0] != key:
            own = [name for name in node.fields if name not in events.COLUMNS]
            self._gates[node.id] = (key, compile_gate(node.gate, schema, own))
        return self._gates[node.id][1]

    def may_differ(self, node: nodes.Node, frame: DataFrame) -> bool:
        """Return whether the rows at a node may be others when a batch is worked out again. Spark is asked once per node."""
        if node.id not in self._differs:
            self._differs[node.id] = may_differ(frame)
        return self._differs[node.id]

    def may_sample(self, gate: int, result: GateResult) -> bool:
        """Return whether to read a stream's batch again for some of the rows that a gate only warned of.

        It may cost what reading the batch costs, so a stream does it once in a while; dropped rows are in quarantine anyway.
        """
        if not any(check.action == "warn" and check.unexpected for check in result.failed):
            return False
        now = time.monotonic()
        if now - self._sampled.get(gate, float("-inf")) < SAMPLE_SECONDS:
            return False
        self._sampled[gate] = now
        return True


def groups_of(spark: SparkSession, lake: Lake, topology: TridentTopology) -> list[BatchGroup]:
    """Return the batch groups of a topology in the order in which they run, with the tables of all their states.

    Raises:
        UnknownStateError: each of those that are left asks for a state that another one makes.
    """
    groups = [BatchGroup(spark, lake, topology, spouts, wait=True) for spouts in spout_groups(topology)]
    while waiting := [group for group in groups if not group.ready]:
        if not any(group.prepare(wait=True) for group in waiting):
            waiting[0].prepare()
    return groups


def _never_made(topology: TridentTopology, lake: Lake) -> set[str]:
    """Return the states and channels without a table whose plans read one another, so that each waits for another's."""
    graph, persists = topology.graph, topology.persists
    reads = {node.state.name: _tables_read(graph.ancestors(node.id)) for node in persists}
    made = {node.state.name for node in persists if has_log(lake.path_written_by(node))}
    while new := {name for name, read in reads.items() if name not in made and read & reads.keys() <= made}:
        made |= new
    return reads.keys() - made


def _tables_read(way: Sequence[nodes.Node]) -> set[str]:
    return _queried(way).union(*(node.reads for node in way if isinstance(node, nodes.ChannelSpoutNode)))


def _queried(some: Iterable[nodes.Node]) -> set[str]:
    return {node.state for node in some if isinstance(node, nodes.StateQueryNode)}


def _digest(values: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=8).hexdigest()


def _read_after_commit(node: nodes.Node, graph: nodes.Graph) -> str | None:
    """Return the state that a node reads as the batch has left it: a query behind a persist, and new values."""
    if isinstance(node, nodes.StateQueryNode) and node.state_node is not None:
        return node.state if isinstance(graph[node.state_node], nodes.PersistNode) else None
    if isinstance(node, nodes.NewValuesNode):
        persist = graph[node.parents[0]]
        assert isinstance(persist, nodes.PersistNode)
        return persist.state.name if persist.aggregations or persist.updater is not None else None
    return None


class _Dry:
    """The context of a plan that is only analysed."""

    slices: tuple[str, ...] | None = None

    def __init__(self, group: BatchGroup) -> None:
        self._group = group

    def gate(self, node: nodes.GateNode, frame: DataFrame) -> DataFrame:
        compiled = self._group.compiled_gate(node, frame)
        return compiled.kept(compiled.annotate(frame))

    def shared(self, node: nodes.Node, frame: DataFrame) -> DataFrame:
        return frame

    def state(self, name: str, behind: bool = True) -> tuple[StateTable, int | None]:
        return self._group.lake.state(name), None
