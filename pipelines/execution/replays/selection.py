"""Select quarantined rows for a replay, and group them by the place where they enter the flow again. No Spark here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.bounds import TXID as TXID_LIMIT
from pipelines.bounds import shown
from pipelines.errors import DefinitionError, TrideltaError, nearest
from pipelines.execution.protocol.groups import spout_groups
from pipelines.graph import nodes
from pipelines.graph.nodes import GateNode
from pipelines.state.literals import literal
from pipelines.state.quarantine import BATCH, COLUMNS, NO_TIME, SOURCE
from pipelines.state.schema import ENGINE_COLUMNS, GEN, TXID

if TYPE_CHECKING:
    from pipelines.state.table import StateTable
    from pipelines.trident.topology import TridentTopology

NUMBER = "number"
"""bigint: a row's number in its replay, from 0."""
STORED = (*(name for name, _ in COLUMNS), *ENGINE_COLUMNS)
BACKFILLS = "backfills"
ROWS_AT_ONCE = 500_000
"""Rows a replay: it goes through the driver. A larger lot is several of them."""


@dataclass(frozen=True)
class Selection:
    """A selection of quarantined rows; by default all.

    Attributes:
        gates: rejected by these gates.
        spouts: rejected at the source of these streams, or in a poison batch of them.
        first: rejected by this txid or a later one; what a backfill has rejected has txid -1.
        last: rejected by this txid or an earlier one.
        reasons: rejected by one of these rules: a check's name, `malformed`, `other_fields`, `far_time`, `not_read`, `no_slice`,
            `bad_slice`, `no_time`, `poison`, `waiting` or `file_gone`.
    """

    gates: tuple[str, ...] = ()
    spouts: tuple[str, ...] = ()
    first: int | None = None
    last: int | None = None
    reasons: tuple[str, ...] = ()

    def where(self) -> str:
        """Return the rows, as SQL over the stored columns; those of other spouts are still among them (`lots`)."""
        terms = ["true"]
        if self.gates or self.spouts:
            stages = [*self.gates, *((SOURCE, BATCH) if self.spouts else ())]
            terms.append(f"stage IN ({', '.join(_text(stage) for stage in stages)})")
        if self.first is not None:
            terms.append(f"{TXID} >= {int(self.first)}")
        if self.last is not None:
            terms.append(f"{TXID} <= {int(self.last)}")
        if self.reasons:
            # A row may violate several checks, whose names then stand side by side.
            held = [f"strpos(concat(', ', rule, ', '), {_text(f', {reason}, ')}) > 0" for reason in self.reasons]
            terms.append(f"({' OR '.join(held)})")
        return " AND ".join(terms)

    def takes(self, stage: str, stream: str | None) -> bool:
        """Return whether rows of a stage and stream are meant."""
        if not self.gates and not self.spouts:
            return True
        return stream in self.spouts if stage in (SOURCE, BATCH) else stage in self.gates


@dataclass(frozen=True)
class Lot:
    """Quarantined rows that enter the flow at one place.

    Attributes:
        stage: `source`, `batch`, or the gate's name.
        stream: of a source or a batch the stream; None: not known, or a gate's.
        rows: as stored, with the engine's columns and `number`.
    """

    stage: str
    stream: str | None
    rows: pa.Table

    @property
    def what(self) -> str:
        """Return the lot in words, for messages."""
        place = {SOURCE: f'rejected at source "{self.stream}"', BATCH: f'of poison batches of "{self.stream}"'}
        return "rows " + place.get(self.stage, f'rejected by gate "{self.stage}"')

    def parts(self) -> Iterator[Lot]:
        """Yield it in parts of ROWS_AT_ONCE rows, in order: each is a replay of its own, with its rows in its own record."""
        for first in range(0, self.rows.num_rows, ROWS_AT_ONCE):
            yield Lot(self.stage, self.stream, self.rows.slice(first, ROWS_AT_ONCE))

    def common(self, other: Lot) -> Lot:
        """Return the lot with the rows alone that another one has, too; of equal rows as many as that has."""
        wanted, numbers = stored_rows(other.rows), set[int]()
        for number, key in zip(self.rows[NUMBER].to_pylist(), keys_of(self.rows), strict=True):
            if wanted[key] > 0:
                wanted[key] -= 1
                numbers.add(number)
        return self.only(numbers)

    def within(self, selection: Selection) -> Selection:
        """Return a selection, of which these rows are, without what other batches have rejected."""
        txids = pc.min_max(self.rows[TXID], skip_nulls=False).as_py()
        return replace(selection, first=txids["min"], last=txids["max"]) if None not in txids.values() else selection

    def only(self, numbers: set[int]) -> Lot:
        """Return the lot with the rows of these numbers alone."""
        kept = pc.is_in(self.rows[NUMBER], pa.array(sorted(numbers), pa.int64()))
        return Lot(self.stage, self.stream, self.rows.filter(kept))


def txids_of(text: str) -> tuple[int | None, int | None]:
    """Return the first and the last txid that a text means: `40`, `40-57`, or `backfills` for what backfills rejected."""
    if not text:
        return None, None
    if text == BACKFILLS:
        return -1, -1
    # More digits than any txid has are not read: int() refuses thousands.
    parts = re.fullmatch(r"([0-9]{1,19})(?:-([0-9]{1,19}))?", text)
    first, last = (int(parts[1]), int(parts[2] or parts[1])) if parts else (1, 0)
    if last < first or last > TXID_LIMIT.most:
        raise DefinitionError(
            f"not a range of txids: {shown(text)}",
            hint=f"write it as 40, as 40-57, or as {BACKFILLS} for what backfills rejected",
        )
    return first, last


def check_names(selection: Selection, table: StateTable | None, topology: TridentTopology) -> None:
    """Refuse a gate or a stream that the flow does not have, and that never rejected anything."""
    held = table.stored("true")["stage"].to_pylist() if selection.gates and table is not None else ()
    stages = set(held) - {SOURCE, BATCH}
    gates = sorted({node.gate.name for node in topology.graph if isinstance(node, GateNode)} | stages)
    streams = sorted(spout.stream for spout in topology.spouts)
    for kind, asked, known in (("gate", selection.gates, gates), ("stream", selection.spouts, streams)):
        for name in asked:
            if name not in known:
                raise ReplayError(
                    topology.name,
                    f'rows rejected by {kind} "{name}"',
                    f"the flow has no such {kind}{nearest(name, known)}",
                    f"name one of: {', '.join(known) or 'none'}",
                )


def lots(table: StateTable, selection: Selection, topology: TridentTopology) -> Iterator[Lot]:
    """Yield the selected rows by the place where they enter: sources first, then gates in the order of the flow."""
    held = completed(table.stored(selection.where()))
    if len(topology.spouts) == 1:
        held = _with_stream(held, topology.spouts[0])
    found = zip(held["stage"].to_pylist(), held["stream"].to_pylist(), strict=True)
    keys = sorted(set(found), key=lambda key: _order(key, topology))
    for stage, stream in keys:
        if not selection.takes(stage, stream):
            continue
        mine = pc.and_(pc.equal(held["stage"], stage), _equal(held["stream"], stream))
        rows = held.filter(mine)
        yield Lot(stage, stream, rows.append_column(NUMBER, pa.array(range(rows.num_rows), pa.int64())))


def rounds(found: Iterable[Lot]) -> list[list[Lot]]:
    """Return the parts of lots in order, by what goes under one hold of the flow: about ROWS_AT_ONCE rows."""
    held: list[list[Lot]] = []
    room = 0
    for part in (part for lot in found for part in lot.parts()):
        if part.rows.num_rows > room:
            held.append([])
            room = ROWS_AT_ONCE
        held[-1].append(part)
        room -= part.rows.num_rows
    return held


def completed(rows: pa.Table) -> pa.Table:
    """Return stored rows with all columns of a quarantine: one of an earlier release lacks some."""
    for name in STORED:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.string()))
    kinds = {TXID: pa.int64(), GEN: pa.int64()}
    return rows.select(STORED).cast(pa.schema([(name, kinds.get(name, pa.string())) for name in STORED]))


def stored_rows(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Return rows as they are stored, each with how often it is there: quarantine may hold equal ones."""
    return Counter(keys_of(rows))


def keys_of(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield what tells each stored row from others: a compaction changes its generation alone."""
    yield from zip(*(rows[name].to_pylist() for name in STORED if name != GEN), strict=True)


def _with_stream(rows: pa.Table, only: nodes.SpoutNode) -> pa.Table:
    """Name the stream in rows of an earlier release, of a flow with one stream: there is no doubt."""
    own = pc.and_(pc.is_in(rows["stage"], pa.array([SOURCE, BATCH])), pc.is_null(rows["stream"]))
    named = pc.if_else(own, pa.scalar(only.stream), rows["stream"])
    return rows.set_column(rows.schema.get_field_index("stream"), "stream", named)


def _equal(column: pa.ChunkedArray, value: str | None) -> pa.ChunkedArray:
    return pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)


def _order(key: tuple[str, str | None], topology: TridentTopology) -> tuple[int, str, str]:
    stage, stream = key
    ids = {node.gate.name: node.id for node in topology.graph if isinstance(node, GateNode)}
    return (0 if stage in (SOURCE, BATCH) else ids.get(stage, len(ids) + 10_000), stage, stream or "")


def _text(value: str) -> str:
    return literal("rule", value, pa.string())


class ReplayError(TrideltaError):
    """Quarantined rows cannot be run through the flow again without counting something twice, or losing it."""

    def __init__(self, flow: str, rows: str, problem: str, hint: str) -> None:
        self.flow, self.rows, self.problem = flow, rows, problem
        super().__init__(f'flow "{flow}": {rows} cannot be replayed: {problem}', hint=hint)


_UNIQUE = (
    "expect_column_values_to_be_unique",
    "expect_compound_columns_to_be_unique",
)


@dataclass(frozen=True)
class EntryPlace:
    """The place where quarantined rows enter the flow again, and what must not follow it.

    Attributes:
        node: the spout or the gate before which the rows enter.
        spouts: of its batch group.
        sinks: ids of the persist nodes behind it.
        drops: whether a gate behind it may reject what a row has become.
    """

    node: nodes.SpoutNode | nodes.GateNode
    spouts: tuple[nodes.SpoutNode, ...]
    sinks: tuple[int, ...]
    drops: bool

    @property
    def sliced(self) -> bool:
        return self.spouts[0].slice_by is not None


def entry_of(topology: TridentTopology, lot: Lot) -> EntryPlace:
    """Return the place of a lot's rows.

    Raises:
        ReplayError: the flow does not have it (any more), or something behind it works on whole batches.
    """
    node = _spout(topology, lot) if lot.stage in (SOURCE, BATCH) else _gate(topology, lot)
    graph = topology.graph
    (spouts,) = [
        group for group in spout_groups(topology) if any(node in graph.descendants(spout.id) for spout in group)
    ] or [()]
    sinks = tuple(behind.id for behind in graph.descendants(node.id) if isinstance(behind, nodes.PersistNode))
    if not sinks:
        raise ReplayError(topology.name, lot.what, "no state stands behind their place", instead(topology))
    between = list(_between(graph, node, sinks))
    for step in between:
        problem = step.alone or _compares(step)
        if problem:
            raise ReplayError(topology.name, lot.what, f'"{step.label}" at {step.at} {problem}', instead(topology))
    drops = any(isinstance(step, nodes.GateNode) and step.gate.drops for step in between)
    return EntryPlace(node, spouts, sinks, drops)


def instead(topology: TridentTopology) -> str:
    """Return what to do about rows that cannot be replayed."""
    if any(spout.slice_by is not None for spout in topology.spouts):
        how = f"tridelta backfill {topology.name} --slice VALUE, or its FILE.yaml"
        return f"backfill their slices ({how}): that judges the source's rows again, all together"
    return f"count the source's rows again: remove the checkpoint and tridelta run {topology.name} --on-fresh-checkpoint reset"


def _spout(topology: TridentTopology, lot: Lot) -> nodes.SpoutNode:
    spouts = [spout for spout in topology.spouts if spout.stream == lot.stream]
    if not spouts:
        known = ", ".join(spout.stream for spout in topology.spouts)
        seen = "they name no stream (an earlier release wrote them)" if lot.stream is None else "it has no such stream"
        raise ReplayError(topology.name, lot.what, f"{seen}; its streams are {known}", instead(topology))
    if spouts[0].source.inner is not spouts[0].source:
        problem = "they are events, whose id and order come from their place in the source"
        raise ReplayError(topology.name, lot.what, problem, instead(topology))
    if lot.rows["rule"].to_pylist().count(NO_TIME):
        raise ReplayError(topology.name, lot.what, "they are events without a time", instead(topology))
    return spouts[0]


def _gate(topology: TridentTopology, lot: Lot) -> nodes.GateNode:
    gates = {behind.gate.name: behind for behind in topology.graph if isinstance(behind, nodes.GateNode)}
    if lot.stage not in gates:
        known = ", ".join(gates) or "none"
        raise ReplayError(
            topology.name,
            lot.what,
            f"the flow has no such gate; its gates are {known}{nearest(lot.stage, gates)}",
            "give the gate its former name back, even without checks that drop; or " + instead(topology),
        )
    return gates[lot.stage]


def _between(graph: nodes.Graph, entry: nodes.Node, sinks: tuple[int, ...]) -> Iterator[nodes.Node]:
    """Yield the nodes that are worked out for the sinks: all that lead there, up to the entry."""
    seen, waiting = {entry.id}, list(sinks)
    yield entry
    while waiting:
        node_id = waiting.pop()
        if node_id not in seen:
            seen.add(node_id)
            yield graph[node_id]
            waiting += graph[node_id].parents


def _compares(node: nodes.Node) -> str | None:
    """Return why a gate cannot judge a row alone."""
    if not isinstance(node, nodes.GateNode):
        return None
    checks = [check.name for check in node.gate.checks if check.action == "drop" and check.expectation in _UNIQUE]
    return f"compares the rows of a batch ({checks[0]}), and theirs is over" if checks else None
