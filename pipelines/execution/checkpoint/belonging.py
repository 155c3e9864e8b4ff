"""The check that a checkpoint and its tables belong together: of the same life, and neither older than the other. No Spark here.

Three things tell: the last txid that each table holds in this epoch, the last batch that Spark has planned, and the last one that
the engine has closed. A table holds every closed batch and none that was never planned. Beside the checkpoint the tables'
ids and versions are noted (`tables.json`), so that a table that was created again, or copied back from a backup, is known. Every
commit carries the digest of its batch's plan, so that another checkpoint with as many batches is known too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import merge
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pipelines.errors import ChangeoverError, TrideltaError
from pipelines.execution.checkpoint.damage import read_own
from pipelines.execution.checkpoint.engine_files import TABLES, Checkpoint, Epoch
from pipelines.execution.checkpoint.listed_files import other_files
from pipelines.execution.checkpoint.replay_records import put_in_since
from pipelines.execution.checkpoint.window_begin import Begun, StateRef, state_files
from pipelines.execution.checkpoint.window_files import outputs_in
from pipelines.execution.protocol.groups import group_name, spout_groups
from pipelines.places.location import path_below
from pipelines.state.record import BATCH, SLICE
from pipelines.state.turns import last_txid, rejected_id, stream_id

if TYPE_CHECKING:
    from pipelines.state.lake import Lake
    from pipelines.state.record import BatchRecord
    from pipelines.state.table import StateTable
    from pipelines.trident.topology import TridentTopology

QUARANTINE = "quarantine"
_OWN_FOLDERS = ("states", "channels", QUARANTINE)
_START_OVER = (
    'move {folder} away and run the flow with on_fresh_checkpoint="reset" (empties its states; move away those behind it, too) '
    'or "continue" (goes on behind the last txid with all that the source now holds, what was counted included)'
)
_ADOPT = "to go on with both as they are, knowing that rows are missing or come twice: tridelta adopt {flow}"


class NotTogetherError(TrideltaError):
    """A checkpoint and a table of a flow do not belong together; nothing was run.

    Attributes:
        flow, group: the query. state: the table.
        table_txid: the last txid that the table holds in this epoch, None for none.
        checkpoint_txid: the txid of the checkpoint that it does not go with.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        state: str,
        problem: str,
        *,
        table_txid: int | None,
        checkpoint_txid: int | None,
        hint: str,
    ) -> None:
        self.flow, self.group, self.state = checkpoint.flow, checkpoint.folder.name, state
        self.problem, self.table_txid, self.checkpoint_txid = problem, table_txid, checkpoint_txid
        given = {"flow": checkpoint.flow, "folder": checkpoint.folder}
        super().__init__(
            f'flow "{self.flow}", query "{self.group}": its checkpoint and "{state}" do not belong together: {problem}',
            hint=f"{hint}; or {_START_OVER.format(**given)}; or, {_ADOPT.format(**given)}",
        )


class CheckpointBehindError(NotTogetherError):
    """The checkpoint is older than a table, so that new rows would come under txids that the table knows."""


class OtherCheckpointError(NotTogetherError):
    """The checkpoint has as many batches as the table, but it is not the one that wrote them."""


class TableBehindError(NotTogetherError):
    """A table was lost, created again, or restored to an older version than its checkpoint."""


@dataclass(frozen=True)
class Known:
    """A noted table: Delta's id, a version that it had, and the first txid that this query commits into it."""

    id: str
    version: int
    since: int


def _parsed(tables: Any) -> dict[str, Known]:
    return {name: Known(str(table["id"]), int(table["version"]), int(table["since"])) for name, table in tables.items()}


class Belonging:
    """A checkpoint and the tables that its query writes."""

    def __init__(self, checkpoint: Checkpoint, lake: Lake) -> None:
        self._checkpoint, self._lake = checkpoint, lake

    # --- what is noted ----------------------------------------------------------------------------------------------

    def known(self) -> dict[str, Known]:
        """Return the noted tables by their path in the lake; none before the first start."""
        return self._noted() or {}

    def tables(self, more: Iterable[str] = ()) -> list[StateTable]:
        """Return the noted tables, but for quarantine, and `more` by their path in the lake."""
        names = dict.fromkeys((*more, *self.known()))
        return [self._named(name) for name in names if not name.startswith(QUARANTINE)]

    def _noted(self) -> dict[str, Known] | None:
        """Return the same; None where nothing was ever noted, which is less than that the query writes none of them."""
        return read_own(self._checkpoint.flow, self._checkpoint.folder / TABLES, _parsed)

    def note(self, tables: Iterable[StateTable], *, only_these: bool = True) -> None:
        """Write down the tables as they are, once they are known to belong here.

        Args:
            only_these: what is not among them is the query's no longer.
        """
        epoch, known, first = self._checkpoint.epoch, self.known(), self._noted() is None
        if epoch is None:
            return
        noted = {} if only_these else dict(known)
        for table in tables:
            name = self._name(table)
            if name is not None and table.exists():
                same = name in known and known[name].id == table.id
                since = known[name].since if same else self._since(epoch, first=first)
                noted[name] = Known(table.id, table.version(), since)
        if noted != known:
            self._write(noted)

    def note_on(self, tables: Iterable[StateTable] | None = None, *, also_new: bool = False) -> None:
        """Write down how far noted tables have come; not one that was taken back, which the next start is to see.

        Whoever changes a table under no txid of a batch does so, for else an older copy would pass for the table.

        Args:
            tables: of which; None: of all that are noted.
            also_new: those that are not noted, too, unless nothing is.
        """
        known = self.known()
        tables = [self._named(name) for name in known] if tables is None else tables
        entries = [(table, known.get(self._name(table) or "")) for table in tables]
        further = [
            table for table, entry in entries if (also_new and known if entry is None else _goes_on(table, entry))
        ]
        self.note(further, only_these=False)

    def keep(self, tables: Iterable[StateTable]) -> None:
        """Forget tables that the query writes no longer: another one may go on with them."""
        names, known = {self._name(table) for table in tables}, self.known()
        kept = {name: entry for name, entry in known.items() if name in names or name.startswith(QUARANTINE)}
        if kept != known:
            self._write(kept)

    def begun(self, epoch: Epoch, tables: Iterable[StateTable]) -> None:
        """Write down the tables of a fresh epoch, whose checkpoint Spark has yet to make."""
        noted = {}
        for table in tables:
            name = self._name(table)
            if name is not None and table.exists():
                noted[name] = Known(table.id, table.version(), epoch.txid(epoch.first_batch))
        self._write(noted)

    def _write(self, noted: Mapping[str, Known]) -> None:
        # By the checkpoint, which first sees that its leases are held.
        self._checkpoint.write(TABLES, {name: asdict(entry) for name, entry in noted.items()})

    def _since(self, epoch: Epoch, *, first: bool) -> int:
        """Return the first txid that a table must hold which is noted now: its first start, or where it came later."""
        if first:
            return epoch.txid(epoch.first_batch)
        closed = self._checkpoint.committed_txid()
        return epoch.txid(self._checkpoint.finished_batches()) if closed is None else closed + 1

    def paths(self, tables: Iterable[StateTable]) -> tuple[str, ...]:
        """Return the paths of tables in the lake; those elsewhere are left out."""
        return tuple(name for table in tables if (name := self._name(table)) is not None)

    def _name(self, table: StateTable) -> str | None:
        """Return the table's path in the lake; None for one elsewhere (a bounded run has channels of its own)."""
        path = path_below(table.path, self._lake.root)
        if path is None:
            return None
        return path.as_posix() if path.parts[0] in _OWN_FOLDERS and len(path.parts) == 2 else None

    def knows(self, table: StateTable) -> bool:
        """Return whether a table is noted."""
        return self._name(table) in self.known()

    def is_filled(self, table: StateTable) -> bool:
        """Return whether a table holds what the query has read: it was written in each batch, or a backfill has filled it.

        What is noted says so: a table that was taken out of the flow is forgotten, and holds the batches before that alone; a
        backfill notes those that it has filled when it is through. One that is not noted may come from another query.
        """
        epoch = self._checkpoint.epoch
        if self.knows(table) or epoch is None or not (table.exists() and is_filled(table)):
            return self.knows(table)
        if self._noted() is not None:
            own = any(commit.kind in (BATCH, SLICE) and commit.epoch == epoch.number for commit in table.history())
            return not own and last_txid(table.opened(), self._stream(table, epoch)) is None
        # At an upgrade nothing is noted yet.
        last, closed = table.last_txid(), self._checkpoint.committed_txid()
        return last is None or closed is None or last >= closed

    def _stream(self, table: StateTable, epoch: Epoch) -> str:
        return stream_id(self._checkpoint.flow, table.name, epoch.number)

    def holds(self, tables: Iterable[StateTable], batch: int) -> bool:
        """Return whether one of the tables holds a batch (Spark's id) of this epoch."""
        epoch = self._checkpoint.epoch
        named = [(name, table) for table in tables if (name := self._name(table)) is not None]
        held = [self._held(name, table, epoch) for name, table in named] if epoch is not None else []
        return epoch is None or any(txid is not None and txid >= epoch.txid(batch) for txid in held)

    # --- the check --------------------------------------------------------------------------------------------------

    def check(self, tables: Iterable[StateTable] = (), *, filling: bool = False) -> None:
        """Refuse to go on with a checkpoint and tables that do not belong together.

        Reads the tables' ledgers, which a start needs anyway, and a handful of small files. A stream may be running: what it
        moves on first is read last.

        Args:
            tables: those that the query writes as it is defined now; none: those that are noted.
            filling: a backfill, which may fill a table that was lost: one without a batch of this epoch passes.
        """
        epoch = self._checkpoint.epoch
        if epoch is None:
            return
        noted_ever = self._noted() is not None
        known, closed, begun = self.known(), self._checkpoint.committed_txid(), self._checkpoint.closed_txid()
        all_tables = {name: table for table in tables if (name := self._name(table)) is not None}
        noted = [name for name in known if not all_tables or name.startswith(QUARANTINE)]
        all_tables |= {name: self._named(name) for name in noted if name not in all_tables}
        held = {name: self._held(name, table, epoch) for name, table in all_tables.items()}
        planned = epoch.txid(self._checkpoint.last_batch())
        self._check_engine(begun, planned)
        for name, table in all_tables.items():
            entry = known.get(name)
            # A table that another query has written before may have had more lives than this checkpoint.
            if entry is not None or (not noted_ever and held[name] is not None):
                self._check_epoch(name, table, epoch)
            if filling and held[name] is None:
                continue
            self._check_ahead(table, held[name], planned)
            # A table that came later holds what came since; one that nothing was noted of, at an upgrade, says less.
            if entry is not None or (not noted_ever and held[name] is not None):
                self._check_behind(name, table, entry, epoch, held[name], closed)
            self._check_plan(name, table, epoch, held[name])
        self._check_left_out(epoch, all_tables.values())

    def check_listed(self, tables: Iterable[StateTable] = ()) -> None:
        """Refuse to go on where Spark's log of a source has other files for a batch than the batch took: on S3 alone.

        Args:
            tables: those that the query writes as it is defined now; none: those that are noted.
        """
        tables = list(tables) or [self._named(name) for name in self.known()]
        other = other_files(self._checkpoint, tables)
        if other is not None:
            raise OtherCheckpointError(
                self._checkpoint,
                other.table.name,
                f"batch txid {other.txid} of the table took other files than Spark's log has for it (listing {other.listing} in "
                f"{other.log}), which a late process has written over, so that files would count twice",
                table_txid=other.txid,
                checkpoint_txid=other.txid,
                hint=f"put back what {other.log} held (an earlier version of {other.listing}, or of the compact file behind it)",
            )

    def _named(self, name: str) -> StateTable:
        folder, own = name.split("/")
        return self._lake.table(self._lake.root / name, f"quarantine of {own}" if folder == QUARANTINE else own)

    def _held(self, name: str, table: StateTable, epoch: Epoch) -> int | None:
        """Return the last txid of this epoch that a table holds."""
        if not table.exists():
            return None
        if name.startswith(QUARANTINE):
            # All queries of the flow write it, and not in each batch: only what this one has committed last is known.
            app_id = rejected_id(self._checkpoint.flow, self._checkpoint.folder.name, epoch.number)
            return last_txid(table.opened(), app_id)
        held = [
            commit.txid
            for commit in table.commits.batches()
            if commit.epoch == epoch.number and commit.txid is not None
        ]
        if held:
            return max(held)
        records = table.history()
        cleaned = bool(records) and records[0].version > 0 and all(record.restored is None for record in records)
        return last_txid(table.opened(), self._stream(table, epoch)) if cleaned else None

    def _check_engine(self, closed: int | None, planned: int) -> None:
        """Refuse where the engine's own files know of batches that Spark's part does not."""
        if closed is not None and closed > planned:
            raise CheckpointBehindError(
                self._checkpoint,
                "attempts.json",
                f"Spark's part has planned batches up to txid {planned}, and txid {closed} was committed already",
                table_txid=closed,
                checkpoint_txid=planned,
                hint="put Spark's part of the checkpoint back as it was after its last batch",
            )

    def _check_left_out(self, epoch: Epoch, tables: Iterable[StateTable]) -> None:
        """Refuse to try a batch again that was left out, and whose rows a replay has taken since, into a table or to a gate."""
        path = self._lake.quarantine_path(self._checkpoint.flow)
        found = put_in_since(self._checkpoint, epoch, self._named(f"{QUARANTINE}/{path.name}"), tables)
        if found is not None:
            raise CheckpointBehindError(
                self._checkpoint,
                found.state,
                f"the checkpoint would try batch txid {found.txid}, which was left out, and replay {found.replay} has put its "
                "rows into the table since, or back into quarantine as what a gate refused",
                table_txid=found.txid,
                checkpoint_txid=epoch.txid(self._checkpoint.finished_batches()) - 1,
                hint="put the checkpoint back in which the batch is left out, its attempts.json included",
            )

    def _check_epoch(self, name: str, table: StateTable, epoch: Epoch) -> None:
        newest = 0 if name.startswith(QUARANTINE) or not table.exists() else newest_epoch(table)
        if newest > epoch.number:
            raise CheckpointBehindError(
                self._checkpoint,
                table.name,
                f"the checkpoint is older: it is of epoch {epoch.number}, and the table holds what epoch {newest} has written, "
                "which began with a fresh checkpoint and has read the source, too",
                table_txid=table.last_txid(),
                checkpoint_txid=epoch.txid(self._checkpoint.last_batch()),
                hint="put the newest checkpoint back, or tables and checkpoint of one and the same moment",
            )

    def _check_ahead(self, table: StateTable, held: int | None, planned: int) -> None:
        if held is not None and held > planned:
            raise CheckpointBehindError(
                self._checkpoint,
                table.name,
                f"the checkpoint is older: it has planned batches up to txid {planned}, and the table holds txid {held}, so "
                "new rows would come under txids that the table knows",
                table_txid=held,
                checkpoint_txid=planned,
                hint="put the newest checkpoint back, or tables and checkpoint of one and the same moment",
            )

    def _check_behind(
        self, name: str, table: StateTable, known: Known | None, epoch: Epoch, held: int | None, closed: int | None
    ) -> None:
        problem = self._lost(table, known, epoch)
        whole = name.startswith(QUARANTINE) or closed is None or (known is not None and closed < known.since)
        if problem is None and not whole and (held is None or held < (closed or 0)):
            last = "no batch of this epoch" if held is None else f"batches up to txid {held} only"
            problem = (
                f"the checkpoint has finished txid {closed}, and the table holds {last}: it was lost or is an older one"
            )
        if problem is not None:
            raise TableBehindError(
                self._checkpoint,
                table.name,
                problem,
                table_txid=held,
                checkpoint_txid=closed,
                hint=f"put the table back as it was ({table.path}; a RESTORE is undone by a RESTORE to the version before it)",
            )

    def _lost(self, table: StateTable, known: Known | None, epoch: Epoch) -> str | None:
        """Return what shows that this is not the table of the last start, or an older version of it."""
        if not table.exists():
            return "the table is gone"
        if known is not None and table.id != known.id:
            return "the table was removed and created again"
        since = known.since if known is not None else epoch.txid(epoch.first_batch)
        undone = sorted(txid for txid in table.commits.undone(epoch.number) if txid >= since)
        if undone:
            return f"a RESTORE has undone its txid{'s' * (len(undone) > 1)} {', '.join(map(str, undone[:5]))}"
        besides = table.commits.undone_besides(known.version) if known is not None else []
        if besides:
            return f"a RESTORE has undone its {', '.join(besides[:5])}"
        if known is not None and table.version() < known.version:
            return f"the table is at version {table.version()}, and was at {known.version} before: it is an older copy"
        return None

    def _check_plan(self, name: str, table: StateTable, epoch: Epoch, held: int | None) -> None:
        if held is None or name.startswith(QUARANTINE):
            return
        own = [
            commit
            for commit in table.commits.batches()
            if commit.txid == held and commit.epoch == epoch.number and commit.record
        ]
        wrote = own[-1].plan if own else None
        has = self._checkpoint.plan(held - epoch.first_txid)
        if wrote is not None and has is not None and wrote != has:
            raise OtherCheckpointError(
                self._checkpoint,
                table.name,
                f"batch txid {held} of the table was planned by another checkpoint than the one that is there",
                table_txid=held,
                checkpoint_txid=held,
                hint="put the checkpoint back that wrote the table, or the table that this checkpoint wrote",
            )


def is_filled(table: StateTable) -> bool:
    """Return whether batches or backfills have put something into a table. The log of a backfill may be gone; its claims stay."""
    wrote = any(commit.kind in (BATCH, SLICE) for commit in table.commits.counting())
    return wrote or any(table.commits.claims().values())


def _goes_on(table: StateTable, known: Known) -> bool:
    """Return whether a table is the one that was noted, or what it has become since."""
    same = table.exists() and table.id == known.id and table.version() >= known.version
    return same and not table.commits.undone_besides(known.version)


def newest_epoch(table: StateTable) -> int:
    """Return the last life of the checkpoint that has written what a table holds."""
    return max((commit.epoch or 0 for commit in table.commits.counting()), default=0)


def adopt(lake: Lake, topology: TridentTopology, *, lock_wait_seconds: float = 30.0) -> dict[str, NotTogetherError]:
    """Go on with checkpoints and tables that do not belong together, as they are: an epoch begins where Spark's part stands.

    What is missing in a table stays missing; what a table holds beyond the checkpoint comes again.

    Returns:
        By query what did not belong together; empty if there was nothing to do.
    """
    errors = {}
    for spouts in spout_groups(topology):
        name = group_name(spouts)
        checkpoint = Checkpoint(topology.name, lake.checkpoint_path(topology.name, name))
        reach = {node.id for spout in spouts for node in topology.graph.descendants(spout.id)}
        tables = [lake.written_by(node) for node in topology.persists if node.id in reach]
        tables.append(lake.table(lake.quarantine_path(topology.name), f"quarantine of {topology.name}"))
        with checkpoint.running(lock_wait_seconds), checkpoint.committing(lock_wait_seconds):
            try:
                belonging = Belonging(checkpoint, lake)
                belonging.check(tables)
                belonging.check_listed(tables)
            except NotTogetherError as error:
                errors[name] = error
                _begin_here(checkpoint, lake, [table for table in tables if table.exists()])
    return errors


def _begin_here(checkpoint: Checkpoint, lake: Lake, tables: list[StateTable]) -> None:
    """Begin an epoch over Spark's part as it is, with txids beyond all that the tables have ever held."""
    begun = checkpoint.begin(epoch_beyond(checkpoint, tables, checkpoint.last_batch()))
    Belonging(checkpoint, lake).begun(begun, tables)


def epoch_beyond(checkpoint: Checkpoint, tables: Iterable[StateTable], batch: int) -> Epoch:
    """Return an epoch over Spark's part as it is, with txids beyond that of a batch and all that the tables have ever held."""
    epoch, done = checkpoint.epoch, checkpoint.finished_batches()
    assert epoch is not None  # without one nothing has run
    commits = [commit for table in tables for commit in table.history()]
    number = max([epoch.number, *(commit.epoch or 0 for commit in commits)]) + 1
    last = max([epoch.txid(batch), *(commit.txid for commit in commits if commit.txid is not None)])
    return Epoch(number, last + 1 - done, done)


def lake_of(checkpoint: Checkpoint) -> Lake:
    """Return the lake that a checkpoint lies in, where only the checkpoint is known."""
    from pipelines.state.lake import Lake

    return Lake(checkpoint.folder.parents[2])


@dataclass(frozen=True)
class Named:
    """The windows in the records of a batch (docs/adr/0054): the state behind it; by origin the watermark, in ms."""

    txid: int
    state: StateRef
    clocks: Mapping[str, int]

    def shown(self, query: str) -> dict[str, str]:
        """Return it as the records of a query's batch have it; each value is text, as earlier releases read them."""
        return {**self.state.to_json(), "query": query, "clocks": json.dumps(dict(self.clocks))}

    @classmethod
    def of_record(cls, record: BatchRecord) -> Named:
        """Return what a record says. Those of earlier releases keep the clocks where a channel has its own."""
        assert record.windows
        clocks = json.loads(record.windows["clocks"]) if "clocks" in record.windows else record.clocks
        return cls(record.txid, StateRef.of_json(record.windows), clocks or {})


def named_by(
    query: str, tables: Iterable[StateTable], below: int | None = None, begun: Begun | None = None
) -> Iterator[Named]:
    """Yield what the records of a query's outputs name, newest batch first.

    Args:
        query: whose windows; another one may have written a table before.
        below: only batches before this txid; None: all.
        begun: where the windows began; what they took over there comes behind the last batch before.
    """
    named = [_of_table(query, table, below) for table in tables]
    if begun is not None and begun.state is not None and (below is None or begun.first < below):
        named.append(iter([Named(begun.first, begun.state, begun.clocks)]))
    for _, same in groupby(merge(*named, key=_txid, reverse=True), key=_txid):
        yield next(same)


def keep_named(checkpoint: Checkpoint, lake: Lake, sinks: Sequence[StateTable]) -> None:
    """Write down the newest state of windows where only records of tables name it that are no longer the query's.

    Args:
        checkpoint: of the query; the caller holds its lock.
        sinks: the tables that the query writes as it is defined now.

    Raises:
        ChangeoverError: a batch is in those tables, and Spark has not marked it as done.
    """
    files = state_files(checkpoint.folder)
    begun = Begun.of(files)
    if begun is None:
        return
    belonging = Belonging(checkpoint, lake)
    former = [table for table in belonging.tables(outputs_in(files)) if table.exists()]
    query, epoch = checkpoint.folder.name, checkpoint.epoch
    newest = next(named_by(query, former, None, begun), None)
    present = next(named_by(query, [table for table in sinks if table.exists()], None, begun), None)
    if newest is None or newest.txid < begun.first or newest.state == begun.state:
        return
    if present is not None and present.txid >= newest.txid:
        return
    done = checkpoint.finished_batches()
    if epoch is not None and newest.txid >= epoch.txid(done):
        raise ChangeoverError(checkpoint.flow, query, f"batch {done} is in tables that it writes no longer")
    Begun(newest.txid + 1, newest.state, newest.clocks).write(files)


def is_of(query: str, record: BatchRecord | None) -> bool:
    """Return whether a record names a state of a query's windows; those of earlier releases do not say whose it is."""
    return record is not None and record.windows is not None and record.windows.get("query", query) == query


def _of_table(query: str, table: StateTable, below: int | None) -> Iterator[Named]:
    for commit in reversed(table.commits.batches()):
        record = commit.record
        if record is not None and record.windows and is_of(query, record) and (below is None or record.txid < below):
            yield Named.of_record(record)


def _txid(named: Named) -> int:
    return named.txid
