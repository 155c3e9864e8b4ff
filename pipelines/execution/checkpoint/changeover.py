"""Checkpoints under a changed flow: which can go on as they are, and how the others begin again without losing their place.

Spark takes a checkpoint for the same sources and the same number of stateful operations alone. A query whose channels or number
of windows have changed gets a fresh checkpoint, and takes up its channels where the old one has stopped: behind the last
commits that it has read, and with the events that still waited for the clock. A table that goes over to another query goes on
with that query's txids, so these are raised beyond what the table holds. No Spark here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from deltalake import DeltaTable

from pipelines.errors import ChangeoverError, StateSchemaError
from pipelines.execution.checkpoint.belonging import Belonging, NotTogetherError, is_of, keep_named
from pipelines.execution.checkpoint.copy import recover
from pipelines.execution.checkpoint.engine_files import CONTINUE, REFUSE, Checkpoint, Epoch
from pipelines.execution.checkpoint.window_begin import WindowPlaceError, ended_in, is_elsewhere, state_files
from pipelines.execution.protocol.coordinator import BatchState
from pipelines.execution.protocol.groups import group_name, spout_groups
from pipelines.graph import events, nodes
from pipelines.planner.changes import plan_changes
from pipelines.sources.channels import Start
from pipelines.sources.offsets import json_offsets
from pipelines.state.delta_log import has_log
from pipelines.state.quarantine import BATCH, GROUP
from pipelines.state.schema import TXID
from pipelines.windows.bucket import NEVER

if TYPE_CHECKING:
    from pipelines.places.location import Place
    from pipelines.state.lake import Lake
    from pipelines.state.table import StateTable
    from pipelines.trident.topology import TridentTopology

_BASE = -1
"""Delta's index in an offset that stands between two commits."""


@dataclass(frozen=True)
class Query:
    """A batch group as it is defined now, and its checkpoint as it is."""

    name: str
    spouts: tuple[nodes.SpoutNode, ...]
    checkpoint: Checkpoint
    sinks: tuple[StateTable, ...]
    in_batch: bool = False
    """Whether windows run in its batch (docs/adr/0054)."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the channels that it reads, in the order of Spark's offset log."""
        inputs = (spout.reads for spout in self.spouts if isinstance(spout, nodes.ChannelSpoutNode))
        return tuple(channel for reads in inputs for channel in reads)

    @property
    def windows(self) -> int:
        """Return how many stateful operations run in the stream itself."""
        steps = (spout.steps for spout in self.spouts if isinstance(spout, nodes.ChannelSpoutNode))
        return sum(isinstance(node, nodes.WindowNode) for chain in steps for node in chain)

    @property
    def windows_before(self) -> int:
        """Return the same of the query that wrote the checkpoint."""
        state = self.checkpoint.spark / "state"
        return sum(path.name.isdigit() for path in state.iterdir()) if state.is_dir() else 0

    @property
    def last_txid(self) -> int | None:
        """Return the highest txid that one of its tables holds."""
        return max((txid for table in self.sinks if (txid := _last(table)) is not None), default=None)


class Changeover:
    """From what is deployed to a topology as it is defined now.

    Args:
        topology: the flow as it is defined now.
    """

    def __init__(self, lake: Lake, topology: TridentTopology) -> None:
        self._lake, self._topology = lake, topology
        self._ids: dict[str, str] = {}
        self._queries = [self._query(spouts) for spouts in spout_groups(topology)]

    def _query(self, spouts: tuple[nodes.SpoutNode, ...]) -> Query:
        graph, name = self._topology.graph, group_name(spouts)
        reach = {node.id for spout in spouts for node in graph.descendants(spout.id)}
        sinks = tuple(self._lake.written_by(node) for node in self._topology.persists if node.id in reach)
        checkpoint = Checkpoint(self._topology.name, self._lake.checkpoint_path(self._topology.name, name))
        in_batch = any(node.id in reach and isinstance(node, nodes.BatchWindowNode) for node in graph)
        return Query(name, spouts, checkpoint, sinks, in_batch)

    # --- before anything is stopped ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a definition that does not fit the tables that are there."""
        for query in self._queries:
            if is_elsewhere(query.checkpoint, query.in_batch) and not self._may_change(query):
                raise WindowPlaceError(self._topology.name, query.name, in_batch=query.in_batch)
        for change in plan_changes(self._topology, self._lake).refused:
            table = self._lake.state_path(change.name), self._lake.channel_path(change.name)
            new = not any(map(has_log, table))
            if not new and not change.details[0].startswith("the checkpoint is fresh"):
                raise StateSchemaError(change.name, change.details[0])

    def refusals(self) -> dict[str, str]:
        """Return by table why a run would refuse it, as the checkpoints say; a new version of a deployed flow may take it.

        It lacks batches of its query (StateBehindError), or does not belong to the query's checkpoint (NotTogetherError).
        """
        found: dict[str, str] = {}
        late = {node.state.name for node in self._topology.persists if isinstance(node, nodes.LatePersistNode)}
        for query in self._queries:
            belonging, checkpoint = Belonging(query.checkpoint, self._lake), query.checkpoint
            former = self._taken_over(query)
            if checkpoint.committed_txid() is not None:
                ran = f"the flow has run {checkpoint.finished_batches()} batch(es)"
                new = [table for table in query.sinks if table.name not in late and not belonging.is_filled(table)]
                lacks = f"{ran}, of which it would lack some or all: backfill it, or start over"
                found |= {table.name: lacks for table in new if not (former and former.is_filled(table))}
            try:
                self._check_own(belonging, query)
                if former and former.known():
                    self._check_own(former, query)
            except NotTogetherError as error:
                found[error.state] = error.problem
        return found

    def _may_change(self, query: Query) -> bool:
        """Return whether a query's windows may begin, end, or come over from their channel with this definition."""
        if not query.in_batch:
            return not windows_on_channels(self._topology, query.name)
        # Where a record names a state, the folder that had it is lost.
        tables = (table for table in query.sinks if table.exists())
        named = any(is_of(query.name, commit.record) for table in tables for commit in table.commits.batches())
        return (
            not named
            or ended_in(state_files(query.checkpoint.folder)) is not None
            or self._reader_left(query) is not None
        )

    def _taken_over(self, query: Query) -> Belonging | None:
        """Return what goes with the query behind a channel whose windows the next run takes over (docs/adr/0063); None: none."""
        ended = ended_in(state_files(query.checkpoint.folder)) is not None
        if not query.in_batch or ended or not is_elsewhere(query.checkpoint, in_batch=True):
            return None
        reader = self._reader_left(query)
        return Belonging(reader, self._lake) if reader else None

    def _reader_left(self, query: Query) -> Checkpoint | None:
        return left_reader(self._lake, self._topology, query.name)

    def moves(self, old: Changeover) -> bool:
        """Return whether queries begin again or are removed: then the old ones should first read all that is there."""
        gone = {query.name for query in old._queries} - {query.name for query in self._queries}
        return bool(gone) or any(self._differs(query) for query in self._queries)

    def left_waiting(self, new: Changeover) -> dict[str, int]:
        """Return how many events still wait for the watermark in windows of the queries that `new` no longer has.

        They stay in the query's checkpoint, and come when it comes back.
        """
        kept = {query.name for query in new._queries}
        # What waits there goes over into the batch.
        kept |= {reader.folder.name for query in new._queries if query.in_batch and (reader := new._reader_left(query))}
        counts = {query.name: self._waiting(query) for query in self._queries if query.name not in kept}
        return {name: count for name, count in counts.items() if count}

    def _waiting(self, query: Query) -> int:
        if not query.windows_before or not query.checkpoint.finished_batches():
            return 0
        start = self.start_of(query)
        count = 0
        for name, txid in start.channels.items():
            late = (pc.field(TXID) <= txid) & (pc.field(events.CLOCK) > start.clock) & pc.field(events.ID).is_valid()
            late &= ~pc.field(TXID).isin(start.left_out.get(name, []))
            count += self._rows(name).count_rows(filter=late)
        return count

    # --- between the old and the new --------------------------------------------------------------------------------

    def make(self, wait_seconds: float = 30.0, *, only: str | None = None) -> tuple[str, list[str]]:
        """Make the checkpoints ready for the new definition.

        Args:
            wait_seconds: how long to wait for another process that runs a query.
            only: the one query to make ready, where others of the flow may be running; None: all.

        Returns:
            What the start is to do with fresh checkpoints (`on_fresh_checkpoint`), and the queries that begin again.

        Raises:
            ChangeoverError: a query stands where a fresh checkpoint could not go on; nothing was changed for it.
            LockedError: another process runs the flow.
            NotTogetherError: a checkpoint and its tables do not belong together.
        """
        restarted = []
        queries = [query for query in self._queries if only in (None, query.name)]
        for query in queries:
            with query.checkpoint.running(wait_seconds):
                recover(query.checkpoint)
                query.checkpoint.finish_putting_aside()
                self._check_together(query)
                if self._differs(query):
                    refuse_skipped(query.checkpoint)
                    query.checkpoint.begin_at(self.start_of(query), self.aside(query.name))
                    restarted.append(query.name)
                elif query.checkpoint.epoch is not None:
                    self._raise_txids(query)
        return (REFUSE if any(self._would_repeat(query) for query in queries) else CONTINUE), restarted

    def _check_together(self, query: Query) -> None:
        """Refuse a checkpoint that does not go with its tables, which another query may seem to have written."""
        belonging = Belonging(query.checkpoint, self._lake)
        own = self._check_own(belonging, query)
        # What those name that it no longer writes is said before they are forgotten.
        keep_named(query.checkpoint, self._lake, query.sinks)
        belonging.keep(own)

    def _check_own(self, belonging: Belonging, query: Query) -> list[StateTable]:
        known = belonging.known()
        own = [table for table in query.sinks if belonging.knows(table) or not known]
        if own:
            belonging.check(own)
        return own

    def _differs(self, query: Query) -> bool:
        """Return whether Spark would refuse the checkpoint."""
        if query.checkpoint.last_batch() < 0:
            return False
        return query.windows_before != query.windows or self.read_by(query.checkpoint) != query.reads

    def read_by(self, checkpoint: Checkpoint) -> tuple[str, ...]:
        """Return the channels that a query has read, in the order of Spark's offset log; none where it has planned no batch."""
        return tuple(name for name, _ in self._offsets(checkpoint)) if checkpoint.last_batch() >= 0 else ()

    def _would_repeat(self, query: Query) -> bool:
        """Return whether a fresh checkpoint would bring rows again that its tables hold; channels without rows bring none."""
        checkpoint = query.checkpoint
        held = any(table.commits.of_source() for table in query.sinks if table.exists())
        if checkpoint.epoch is not None or checkpoint.starts_over or not held:
            return False
        channels = (self._lake.table(self._lake.channel_path(name), name) for name in query.reads)
        if not query.reads or any(_last(channel) is not None for channel in channels):
            return True
        # Said before the channels fill: whoever is cut off here knows it afterwards.
        checkpoint.begin_at(Start({}))
        return False

    def start_of(self, query: Query) -> Start:
        """Return where a query has stopped: which channels it has read, up to which txid, and the watermark there.

        Raises:
            ChangeoverError: it stands where another one cannot go on.
        """
        checkpoint = query.checkpoint
        done = checkpoint.finished_batches()
        if checkpoint.last_batch() >= done and not self._untouched(query, done):
            raise ChangeoverError(
                self._topology.name, query.name, f"batch {done} is in some of its tables and not in all"
            )
        if not done:
            return checkpoint.start or Start({})
        channels = {}
        for name, offset in self._offsets(checkpoint):
            if offset.get("isStartingVersion") or offset["index"] != _BASE:
                raise ChangeoverError(self._topology.name, query.name, f'it is in the middle of a commit of "{name}"')
            channels[name] = _txid_before(self._lake.channel(name), int(offset["reservoirVersion"]))
            if name not in query.reads and channels[name] < (_last(self._lake.channel(name)) or 0):
                problem = f'it has not read all of "{name}", which no query reads any more'
                raise ChangeoverError(self._topology.name, query.name, problem)
        # Without windows nothing waits for the clock.
        clocks = (
            [watermark(self._lake.channel_path(name), txid) for name, txid in channels.items()]
            if query.windows_before
            else []
        )
        clock = min(clocks, default=None)
        return Start(channels, clock, {} if clock is None else self._left_out(query, channels, clock))

    def _left_out(self, query: Query, channels: dict[str, int], clock: int) -> dict[str, list[int]]:
        """Return the txids of channels whose events beyond a clock were in batches that were kept from the windows.

        Quarantine has such a batch as it came to the windows; of one that failed behind them it has what they made. What was
        known when the query began again holds on: rows leave quarantine with their age.
        """
        kept = self._kept_from_windows(query, clock)
        before = query.checkpoint.start
        found = {}
        for name, last in channels.items():
            waits = (pc.field(TXID) <= last) & (pc.field(events.CLOCK) > clock) & pc.field(events.ID).is_valid()
            rows = self._rows(name).to_table(columns=[events.ID, TXID], filter=waits) if kept else None
            ids, txids = (rows[events.ID].to_pylist(), rows[TXID].to_pylist()) if rows is not None else ([], [])
            # A batch is whole commits. Of one that an earlier release has cut nothing is left out that could have waited.
            honest = {txid for id_, txid in zip(ids, txids, strict=True) if id_ not in kept}
            left_out = ({*txids} - honest) | {*(before.left_out.get(name, []) if before else [])}
            if left_out:
                found[name] = sorted(left_out)
        return found

    def _kept_from_windows(self, query: Query, clock: int) -> set[str]:
        """Return the ids of the events beyond a clock that quarantine has of a query's batches, but for those that come again."""
        path = self._lake.quarantine_path(self._topology.name)
        rows = DeltaTable(str(path)).to_pyarrow_dataset() if has_log(path) else None
        if rows is None or GROUP not in rows.schema.names:
            return set()
        own = (pc.field("stage") == BATCH) & (pc.field(GROUP) == query.checkpoint.folder.name)
        own &= ~pc.field(TXID).isin(query.checkpoint.unfinished())
        found = map(json.loads, rows.to_table(columns=["row"], filter=own)["row"].to_pylist())
        return {row[events.ID] for row in found if events.ID in row and row.get(events.CLOCK, NEVER) > clock}

    def _untouched(self, query: Query, batch: int) -> bool:
        """Return whether a planned batch is in none of the query's tables."""
        epoch = query.checkpoint.epoch
        return epoch is None or query.last_txid is None or query.last_txid < epoch.txid(batch)

    def _rows(self, channel: str) -> Any:
        return DeltaTable(str(self._lake.channel_path(channel))).to_pyarrow_dataset()

    def _raise_txids(self, query: Query) -> None:
        """Let the query's txids go on behind those of another query that has written one of its tables.

        Raises:
            ChangeoverError: a batch comes again whose rows quarantine may have under its txid.
        """
        checkpoint, epoch, last = query.checkpoint, query.checkpoint.epoch, query.last_txid
        done = checkpoint.finished_batches()
        if epoch is None or last is None or checkpoint.last_batch() >= done:
            return
        belonging, highest, others = Belonging(checkpoint, self._lake), epoch.number, -1
        for table in (table for table in query.sinks if table.exists()):
            number = max((commit.epoch or 0 for commit in table.history()), default=0)
            highest, others = max(highest, number), max(others, -1 if belonging.knows(table) else number)
        # Each query counts its epochs by itself: what another has written under this one's number would seem to be of this.
        if last >= epoch.txid(done) or others >= epoch.number:
            again = [txid for txid, record in checkpoint.unmarked().items() if not record.plan_lost]
            if again:
                problem = f"batch {min(again)} has failed or was skipped, and its plan is lost: it comes again"
                raise ChangeoverError(self._topology.name, query.name, problem)
            first = max(last + 1, epoch.txid(done))
            checkpoint.begin(Epoch(highest + 1, first - done, done), same_tables=True)

    # --- Spark's offset log -----------------------------------------------------------------------------------------

    def _offsets(self, checkpoint: Checkpoint) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the channels that the last finished batch has read, and where it has come in them; sources are left out."""
        batch = max(checkpoint.finished_batches() - 1, 0)
        lines = (checkpoint.spark / "offsets" / str(batch)).read_text(encoding="utf-8").split("\n")
        for offset in json_offsets(lines):
            name = self._channel_of(offset.get("reservoirId", ""))
            if name is not None:
                yield name, offset

    def _channel_of(self, table_id: str) -> str | None:
        """Return the flow's channel whose Delta table has an id."""
        if table_id and table_id not in self._ids:
            for name in (entry for entry in self._lake.channels() if entry.startswith(f"{self._topology.name}__")):
                self._ids[str(DeltaTable(str(self._lake.channel_path(name))).metadata().id)] = name
        return self._ids.get(table_id)

    def aside(self, query: str) -> Place:
        """Return a folder beside the checkpoints, which is none that the flow has."""
        folder = self._lake.root / "replaced" / self._topology.name
        numbers = (n for n in range(10**6) if not (folder / f"{query}.{n}.replaced").is_dir())
        return folder / f"{query}.{next(numbers)}.replaced"


def watermark(channel: Place, txid: int) -> int:
    """Return the watermark of a channel up to a txid, in ms."""
    words = pc.field(events.ID).is_null() & (pc.field(TXID) <= txid)
    rows = DeltaTable(str(channel)).to_pyarrow_dataset()
    said = pc.max(rows.to_table(columns=[events.CLOCK], filter=words)[events.CLOCK]).as_py()
    return NEVER if said is None else int(said)


def left_reader(lake: Lake, topology: TridentTopology, query: str) -> Checkpoint | None:
    """Return the checkpoint of the query that read the channel behind a query's source, where the flow has that query no more.

    Returns:
        None, too, if several did, one behind the other: what stands between their windows is no part of a batch.
    """
    folder = lake.checkpoint_path(topology.name, query)
    names = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
    readers = [name for name in names if re.fullmatch(rf"{re.escape(query)}__\d+", name)]
    if len(readers) != 1 or readers[0] in {group_name(spouts) for spouts in spout_groups(topology)}:
        return None
    checkpoint = Checkpoint(topology.name, folder.parent / readers[0])
    return checkpoint if checkpoint.epoch is not None else None


def refuse_skipped(checkpoint: Checkpoint) -> None:
    """Refuse a fresh epoch in front of a batch that is still to be left out: it would come again.

    Raises:
        ChangeoverError: only the former definition goes on behind such a batch.
    """
    flow, records = checkpoint.flow, checkpoint.unmarked()
    skipped = [txid for txid, record in records.items() if record.state is BatchState.SKIPPED]
    if skipped:
        raise ChangeoverError(
            flow,
            checkpoint.folder.name,
            f"batch {min(skipped)} was skipped, and the former definition has not gone on behind it",
            f"put the former definition back and run the flow (tridelta run {flow}; a deployed one: tridelta rollback {flow}): "
            "it goes on behind the batch, whose rows stay in quarantine; then change it again",
        )


def windows_on_channels(topology: TridentTopology, query: str) -> bool:
    """Return whether windows of a query's stream run in queries of their own."""
    own = (spouts for spouts in spout_groups(topology) if re.fullmatch(rf"{re.escape(query)}__\d+", group_name(spouts)))
    readers = (spout for spouts in own for spout in spouts if isinstance(spout, nodes.ChannelSpoutNode))
    return any(isinstance(node, nodes.WindowNode) for spout in readers for node in spout.steps)


def _last(table: StateTable) -> int | None:
    """Return the last txid of a table."""
    return table.last_txid() if table.exists() else None


def _txid_before(table: StateTable, version: int) -> int:
    """Return the last txid that a table's commits before a version hold."""
    commits = [(commit.version, commit.txid) for commit in table.commits.batches() if commit.txid is not None]
    before = [txid for at, txid in commits if at < version]
    return max(before) if before else min((txid for _, txid in commits), default=0) - 1
