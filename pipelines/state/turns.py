"""The right to commit into a table: judged on the very snapshot that commits, so that no late writer gets through.

A process may stand still between any two of its lines, for hours, and another takes its place. What it found before means
nothing when it wakes. So a commit names the snapshot that it starts from, the checks are made on that snapshot, and it carries a
transaction id of the stream: Delta refuses it if another commit of that id has come behind the snapshot. Both writers do so.

Commits that are no batches (a slice, a replay, a reset) carry the stream's id as well, with the version that it has. Together
with what a compaction rewrites they carry one more id, of which a batch knows nothing: it refuses a rewrite made of what has
been replaced since, and leaves appends beside it alone. A release of poison rows carries that one, too: Spark would bring back
what it has read before.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import DeltaTable

from pipelines.errors import BehindStateError, TrideltaError
from pipelines.state.kinds import OPAQUE, TRANSACTIONAL
from pipelines.state.quarantine import NAME
from pipelines.state.record import BATCH, FORGOTTEN, POISON, REPLAY, RESET, SLICE, BatchRecord
from pipelines.state.table import StateTable

_TRY_BITS = 20
"""Low bits of the version of a repeatable transaction id: they number the commits of the txid, which has the high bits."""
_BESIDE = (SLICE, REPLAY, RESET, FORGOTTEN)
_COUNTING = (BATCH, *_BESIDE, POISON)
REWRITES = "rewrites"
"""The transaction id of all commits of a table that are no batches."""


class LateWriterError(TrideltaError):
    """A process has come too late to commit: another one has written the table since this one looked at it."""

    def __init__(self, state: str, what: str, seen: str) -> None:
        self.state, self.what, self.seen = state, what, seen
        super().__init__(
            f'{what} comes too late for "{state}": {seen}; nothing was written',
            hint="another process has taken this one's place while it stood still: leave this one stopped, the other goes on. "
            "If none runs, start the flow again",
        )


Transactions = dict[str, int]
"""The transaction ids that a commit carries, by id its version."""


def stream_id(flow: str, state: str, epoch: int) -> str:
    """Return the transaction id of a stream in a table."""
    return f"{flow}/{state}/{epoch}"


def rejected_id(flow: str, group: str, epoch: int) -> str:
    """Return the transaction id of a batch group's rejected rows in quarantine."""
    return stream_id(flow, f"{NAME}/{group}", epoch)


def last_txid(table: DeltaTable, app_id: str) -> int | None:
    """Return the last txid that is committed under a stream's transaction id."""
    plain, repeated = table.transaction_version(app_id), table.transaction_version(_repeatable(app_id))
    known = [txid for txid in (plain, None if repeated is None else repeated >> _TRY_BITS) if txid is not None]
    return max((txid for txid in known if txid >= 0), default=None)


def of_rewrite(table: DeltaTable, record: BatchRecord | None = None) -> Transactions:
    """Return what a commit carries so that Delta refuses it behind another one that is no batch; of a batch's record nothing."""
    if record is not None and record.kind not in _BESIDE:
        return {}
    last = table.transaction_version(REWRITES)
    # A higher one each time: Spark leaves out what comes under a known one.
    return {REWRITES: 0 if last is None else last + 1}


@dataclass(frozen=True)
class Turn:
    """A commit that is to be made.

    Attributes:
        app_id: of a replay its own transaction id, else that of the stream.
        replaces: a batch takes the place of what its txid has written before.
        seen: the version of the table that the rows were made for; None: only the transaction ids are looked at.
    """

    state: StateTable
    record: BatchRecord
    app_id: str
    kind: str
    replaces: bool = False
    seen: int | None = None

    def judge(self, table: DeltaTable) -> Transactions:
        """See that the commit may be made from this snapshot. Return what it carries.

        Raises:
            LateWriterError: the txid, a later one, or what else counts rows was committed since.
        """
        record = self.record
        if record.kind == REPLAY:
            carried = self._of_replay(table)
        elif record.kind in (SLICE, RESET):
            begun = last_txid(table, self.app_id) is not None
            # Behind the epoch's first batch, which a writer of an epoch before has seen, their ids cost and tell nothing.
            carried = _known(table, [self.app_id, *(() if begun else _former(self.app_id))])
            if record.kind == RESET and begun:
                raise LateWriterError(self.state.name, "the reset", f"epoch {record.epoch} has begun")
        else:
            carried = self._of_batch(table)
        check_unchanged(table, self.state, named(record), self.seen, record.group)
        return carried | of_rewrite(table, record)

    def _of_batch(self, table: DeltaTable) -> Transactions:
        """Judge a batch. A transactional state takes a txid once; its version is the txid, also where quarantine takes it again.

        The other kinds take their last txid again: there each commit has a version of its own, so that Spark, which leaves
        out what comes under a known one, takes a repetition too.
        """
        record, app_id, kind = self.record, self.app_id, self.kind
        last, what = last_txid(table, app_id), named(record)
        once = kind == TRANSACTIONAL and not self.replaces
        if kind == OPAQUE:
            _check_order(self.state, record)
        if last is not None and (last > record.txid or (last == record.txid and once)):
            raise LateWriterError(self.state.name, what, f"batch {last} is committed")
        if last == record.txid and kind == OPAQUE and not self.replaces:
            raise LateWriterError(self.state.name, what, "another process has committed it")
        carried = {app_id: record.txid}
        if kind != TRANSACTIONAL:
            again = table.transaction_version(_repeatable(app_id))
            first = record.txid << _TRY_BITS
            carried = {_repeatable(app_id): first if again is None or again < first else again + 1}
        # The first batch of an epoch comes to nobody's id but its own; a writer of any epoch before is to see it.
        return carried if last is not None else carried | _known(table, _former(app_id))

    def _of_replay(self, table: DeltaTable) -> Transactions:
        record, last = self.record, table.transaction_version(self.app_id)
        number = record.replay or 0
        if last is not None and last >= number:
            raise LateWriterError(self.state.name, named(record), f"replay {last} is committed")
        stream = stream_id(record.flow, self.state.name, record.epoch)
        return {self.app_id: number, **_known(table, [stream])}


def _known(table: DeltaTable, streams: list[str]) -> Transactions:
    """Return what a commit carries of streams so that no batch of them comes between: the known versions."""
    known = {name: table.transaction_version(name) for stream in streams for name in (stream, _repeatable(stream))}
    return {name: -1 if version is None else version for name, version in known.items()}


def _former(app_id: str) -> list[str]:
    """Return the stream's ids of all epochs before, whose numbers may jump; none if the id names no epoch."""
    of, _, epoch = app_id.rpartition("/")
    return [f"{of}/{number}" for number in range(int(epoch))] if epoch.isdigit() else []


def named(record: BatchRecord) -> str:
    """Return what a record's commit is called where it is refused."""
    if record.kind == REPLAY:
        return f"replay {record.replay}"
    if record.kind == SLICE:
        return f'slice "{record.slice}"'
    return "the reset" if record.kind == RESET else f"batch {record.txid}"


def check_unchanged(
    table: DeltaTable, state: StateTable, what: str, seen: int | None, group: str | None = None
) -> None:
    """See that nothing that counts rows was committed from the version `seen` up to the snapshot.

    Args:
        group: in quarantine the batch group whose rows are meant, where a replay's may be among them.

    Raises:
        LateWriterError: something was, or the log that would tell is gone.
    """
    if seen is None or seen >= table.version():
        return
    since = [commit for commit in state.history() if seen < commit.version <= table.version()]
    if len(since) < table.version() - seen:
        raise LateWriterError(state.name, what, f"versions behind {seen} are gone from its log")
    own = [commit for commit in since if group is None or commit.group in (None, group)]
    other = next((commit for commit in own if commit.kind in _COUNTING), None)
    if other is not None:
        raise LateWriterError(
            state.name, what, f"version {other.version} ({other.kind} {other.slice or other.txid}) is newer"
        )


def _check_order(state: StateTable, record: BatchRecord) -> None:
    """Apply Trident's own rule for opaque states, over all epochs."""
    last = state.last_txid()
    if last is not None and last > record.txid:
        raise BehindStateError(record.txid, last, state.name)


def _repeatable(app_id: str) -> str:
    return f"{app_id}/turns"
