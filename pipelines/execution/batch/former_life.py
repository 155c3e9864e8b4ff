"""The traces of a batch's first life in the tables: which states hold it, what it had read, what it took in.

A batch comes again where Spark has no mark of it. Tables are asked here, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipelines import logs
from pipelines.errors import ReadPointError, UnknownStateError
from pipelines.execution.batch.plan_run import RECEIVED, XOR, Base, around_own
from pipelines.execution.report import StateCommit
from pipelines.state.kinds import NON_TRANSACTIONAL, OPAQUE, TRANSACTIONAL
from pipelines.state.turns import rejected_id, stream_id

if TYPE_CHECKING:
    from pipelines.execution.batch.group import BatchGroup, Sink
    from pipelines.execution.batch.position import Position
    from pipelines.execution.checkpoint.engine_files import Epoch
    from pipelines.state.table import StateTable

logger = logs.logger(__name__)


class FormerLife:
    """The first life of a batch, as far as the tables know it.

    Attributes:
        seen: by state the version that the batch is made for (`look`).
        rejected_seen: that of quarantine; -1: there was no table.
    """

    def __init__(self, group: BatchGroup, epoch: Epoch) -> None:
        self._group, self._epoch = group, epoch
        self.seen: dict[str, int] = {}
        self.rejected_seen = -1

    def look(self) -> dict[str, int | None]:
        """Note the versions that the batch is made for: what counts rows behind them is another process's.

        Returns:
            By state the last txid of this stream in that version.
        """
        flow, number = self._group.topology.name, self._epoch.number
        standing = {sink.name: sink.writer.standing(stream_id(flow, sink.name, number)) for sink in self._group.sinks}
        self.seen = {name: version for name, (version, _) in standing.items()}
        quarantine = self._group.quarantine
        self.rejected_seen = quarantine.version() if quarantine.table.exists() else -1
        return {name: last for name, (_, last) in standing.items()}

    def knows(self, sink: Sink, last: int | None, txid: int) -> bool:
        """Return whether the table holds this txid already (a replay after a crash before Spark's commit).

        Args:
            last: the last txid of this stream in the version that the batch is made for.
        """
        if sink.writer.declared.kind == NON_TRANSACTIONAL:
            commits = sink.table.commits.batches()
            return any(c.txid == txid and c.epoch == self._epoch.number for c in commits[-1:])
        return last is not None and last >= txid

    def skipping(self, known: Mapping[str, bool], txid: int, position: Position | None = None) -> set[str]:
        """Return the states that take nothing of a batch, for they hold it.

        An opaque one would take back what a replay of quarantine has put in behind it: where one has, the batch was whole. So it
        was where quarantine has it, which comes last. Beside a transactional state, which goes by the verdict of then, it stays.
        Where files of the batch are gone, nobody brings the rows again that it would give up.
        """
        held = [sink for sink in self._group.sinks if known[sink.name]]
        skipped = {sink.name for sink in held if sink.writer.skips(True)}
        opaque = {sink.name for sink in held if sink.writer.declared.kind == OPAQUE}
        if opaque and (self.is_replayed(known, txid) or (skipped and self.is_rejected(txid))):
            return skipped | opaque
        if opaque and position is not None and self._group.sources.lack(position.by_source):
            logger.warning("files of the batch are gone: states keep what they have of it", states=sorted(opaque))
            return skipped | opaque
        return skipped

    def is_replayed(self, known: Mapping[str, bool], txid: int) -> bool:
        """Return whether a replay of quarantine has committed behind the batch in a state that holds it."""
        held = (sink.table.commits for sink in self._group.sinks if known[sink.name])
        return any(commits.is_replayed_behind(self._epoch.number, txid) for commits in held)

    def is_rejected(self, txid: int) -> bool:
        """Return whether quarantine holds rows of this txid from a first life, behind which all states had it."""
        group, writer = self._group, self._group.quarantine
        app_id = rejected_id(group.topology.name, group.name, self._epoch.number)
        last = writer.committed(app_id) if writer.table.exists() else None
        return last is not None and last >= txid

    def replayed(self, sink: Sink, txid: int) -> StateCommit:
        """Return a state's commit of the batch that it has kept."""
        commits = [c for c in sink.table.commits.batches() if c.txid == txid][-1:]
        rows = (commits[0].written or commits[0].rows) if commits else 0
        return StateCommit(sink.name, sink.table.version(), rows, 0.0, replayed=True)

    def received_before(self, sink: Sink, txid: int) -> dict[str, Mapping[str, Any]]:
        """Return what the state's part of the plan took in when it committed this txid: a replay must bring the same.

        Of other fields the hash is another, so the count has to do.
        """
        records = [c.record for c in sink.table.commits.batches() if c.txid == txid and c.record]
        if not records or records[-1].received_hash is None:  # written by Spark, which saw the rows after the record
            return {}
        same = records[-1].fields == self._group.fields
        return {sink.name: {RECEIVED: records[-1].received, XOR: records[-1].received_hash if same else None}}

    def read_before(self, known: Mapping[str, bool], txid: int) -> dict[str, tuple[int, str]]:
        """Return the versions of other flows' tables that the states which hold the batch were made of, if they are kept.

        What this plan does not ask is left alone: a former definition did, and the table may be gone.
        """
        read: dict[str, tuple[int, str]] = {}
        for sink in self._group.sinks:
            commits = sink.table.commits.batches() if known[sink.name] else []
            for own in (commit.record for commit in commits if commit.txid == txid):
                ids = (own.read_ids if own is not None else None) or {}
                named = (own.read if own is not None else None) or {}
                read |= {name: (version, ids.get(name, "")) for name, version in named.items()}
        asked = self._group.queried
        return {name: point for name, point in read.items() if name in asked and self._is_kept(name, *point)}

    def _is_kept(self, name: str, version: int, made: str) -> bool:
        """Return whether a table is that of an id and holds a version still."""
        try:
            table = self._group.lake.state(name)
            last, found = table.last
            if made != found or version > last:
                raise ReadPointError(name, f"version {version}", "the table was made again")
            table.scan(version=version, where="false")
        except (ReadPointError, UnknownStateError) as error:
            logger.warning("batch reads a later version", state=name, version=version, reason=str(error))
            return False
        return True

    def base(self, txid: int, name: str) -> Base:
        """Return what a map state held before the batch, also where the batch is committed already.

        An opaque state knows it row by row (another batch may be folded in since), a transactional one by its version.
        """
        table = self._group.lake.state(name)
        if table.declared.kind == OPAQUE:
            return Base(table, before=txid)
        own = _versions_of(table, txid)
        return Base(*around_own(table, own if table.declared.kind == TRANSACTIONAL else (), behind=False))

    def state_as_of(
        self, txid: int, read: dict[str, tuple[int, str]], name: str, behind: bool
    ) -> tuple[StateTable, int | None]:
        """Return the table of a state query and the version to read.

        A state of this group is read as of this txid if the query stands behind its persist (`BatchGroup.waves` has seen to
        its commit), else as of what was there before the batch: a replay reads what the first attempt read. A state of
        others is read at the version that was its last when the batch asked it first.

        Args:
            read: by name the version and Delta's id of each of those; the first look at one is added.
        """
        table = self._group.lake.state(name)
        if any(sink.name == name for sink in self._group.sinks):
            return around_own(table, _versions_of(table, txid), behind)
        if name not in read:
            read[name] = table.last
        return table, read[name][0]


def _versions_of(table: StateTable, txid: int) -> list[int]:
    return [commit.version for commit in table.commits.batches() if commit.txid == txid]
