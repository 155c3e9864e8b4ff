"""The batch record: what each commit says of itself in Delta's `userMetadata` (docs/architecture.md#state-tables)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

MERGE = "MERGE"
"""Delta's operation by which map states are written."""
RESTORE = "RESTORE"
"""Delta's operation that takes a table back to an older version. It keeps the transaction ids of what it undoes."""
UNCHANGED = "unchanged"
"""In a commit's info: it stands for a MERGE that changed nothing."""
BATCH, SLICE, COMPACTION, RESET, REPLAY = "batch", "slice", "compaction", "reset", "replay"
POISON, FORGOTTEN = "poison", "reset_batch"
"""In quarantine: the rows of a poison batch come in, and go, for the batch has come through."""
EPOCH = "epoch"
"""No rows: an epoch begins with a batch of Spark's, which carries one transaction id (`pipelines.state.turns`)."""

GENERATION = 64
"""Txids a generation: compaction works on closed generations while the stream appends to the open one."""


def generation(txid: int) -> int:
    """Return the generation of a txid; -1 for what was written before the first batch."""
    return txid // GENERATION


class BatchRecord(BaseModel):
    """One commit of one state.

    Attributes:
        kind: `batch` (of a stream), `slice` (a backfill), `compaction`, `reset`, `replay` (of quarantined rows), or
            one of those above.
        flow: the topology that wrote it.
        epoch: which life of the checkpoint; 0 for what no stream wrote.
        txid: the batch; for a slice or a replay the last txid of the stream that it comes behind (-1: none).
        attempt: the try, from 0.
        slice: the slice that was replaced, for `slice`.
        received: rows that came from the source.
        rows: rows written to the table.
        received_hash: the XOR of the hashes of the rows that came from the source.
        fields: for `batch`: the digest of the fields that `received_hash` is about; null in those of earlier releases.
        hash: the XOR of the hashes of the rows written (`pipelines.execution.batch.accounts`).
        offsets: where the batch lies in Spark's checkpoint: `batch`, its id there, and `plan`, the digest of its entry in the
            offset log, by which a checkpoint and a table know each other. On S3 `listed`, too: the files that it took, as digests
            (`pipelines.execution.checkpoint.listed_files`). For `poison`: the plan whose rows were kept.
        gates: for `batch`: the digest of what the gates drop that its rows passed; null in those of earlier releases.
        claims: for `slice`: the source files whose rows of this slice the commit counts, whether the stream has met
            them or not; the stream leaves those rows out when it does. For `compaction`: all claims still alive, by
            slice.
        folded_before: for `compaction` of a log state: rows of lower txids are folded since. Of a channel: let go.
        let_go: for `compaction` of a channel or quarantine: it deleted rows that had been there long enough, so the table
            holds less than before; null in those of earlier releases.
        clocks: of a channel: how far the clock of each origin of the events had come behind the batch, in ms.
        replay: for `replay`: its number in the flow, which is also the version of its transaction id.
        backfill: for `slice`: the name of the pass of a backfill that has made it, the same in states and in quarantine; null in
            those of earlier releases.
        read: for `slice`: by name the version of each sliced table of another flow that it was made of. For `batch`: of each
            table of another flow that its state queries asked.
        read_ids: Delta's id of each table in `read`: the version of one that was made again means nothing. Null in slices of
            earlier releases.
        windows: where windows run in the batch, the file with their state behind it (`file`), the hash of its bytes (`hash`),
            whose they are (`query`), and how far the clock of each origin of their events had come (`clocks`, as JSON).
        group: in quarantine, which all batch groups of a flow share: whose rows the commit is about (null in those of earlier
            releases).
        claims_of: for `compaction` of quarantine: all claims still alive, by batch group and slice.
        bounds: of a log state: by sum the greatest absolute value that the total of any key may have (`pipelines.state.sums`).
        states: for `poison`: by name the version of each state that its rows are behind; null in those of earlier releases.
        made: for `compaction`: by slice the version, the time (in ms) and the `read` of the commit that made it last, before the
            log of these goes; null in those of earlier releases.
        made_ids: for `compaction`: the `read_ids` of these commits, by slice. Not in `made`, which earlier releases read, too.
        commit: a name of its own, by which its writer finds it in the log; null in those by delta-rs of earlier releases.
        readable_from: for the commit before a vacuum: the oldest version whose data files are all still there.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    flow: str
    epoch: int = 0
    txid: int = -1
    attempt: int = 0
    slice: str | None = None
    received: int = 0
    rows: int = 0
    received_hash: int | None = None
    fields: str | None = None
    hash: int | None = None
    offsets: Any = None
    gates: str | None = None
    claims: tuple[str, ...] | dict[str, tuple[str, ...]] | None = None
    backfill: str | None = None
    read: dict[str, int] | None = None
    read_ids: dict[str, str] | None = None
    readable_from: int | None = None
    folded_before: int | None = None
    let_go: bool | None = None
    clocks: dict[str, int] | None = None
    windows: dict[str, str] | None = None
    replay: int | None = None
    group: str | None = None
    claims_of: dict[str, dict[str, tuple[str, ...]]] | None = None
    bounds: dict[str, int] | None = None
    states: dict[str, int] | None = None
    made: dict[str, tuple[int, int, dict[str, int] | None]] | None = None
    made_ids: dict[str, dict[str, str]] | None = None
    commit: str | None = None

    def with_commit_name(self) -> BatchRecord:
        """Return the record of one more commit, with a name of its own."""
        return self.model_copy(update={"commit": uuid4().hex})

    def dump(self) -> str:
        return self.model_dump_json(exclude_none=True)


@dataclass(frozen=True)
class CommitRecord:
    """A row of `history()`: a table version, its time, and its batch record (None for a commit not of the engine)."""

    version: int
    time: datetime
    operation: str
    record: BatchRecord | None
    metrics: Mapping[str, Any] = field(default_factory=dict, compare=False)
    restored: int | datetime | None = None
    """The version, or the time, that a RESTORE put the table back to; None for other commits. A time without a zone is that of a
    session of Spark's, which it does not name (`History`)."""

    @property
    def kind(self) -> str:
        return self.record.kind if self.record else self.operation.lower()

    @property
    def flow(self) -> str | None:
        return self.record.flow if self.record else None

    @property
    def txid(self) -> int | None:
        return self.record.txid if self.record else None

    @property
    def attempt(self) -> int | None:
        return self.record.attempt if self.record else None

    @property
    def epoch(self) -> int | None:
        return self.record.epoch if self.record else None

    @property
    def slice(self) -> str | None:
        return self.record.slice if self.record else None

    @property
    def group(self) -> str | None:
        return self.record.group if self.record else None

    @property
    def plan(self) -> str | None:
        """Return the digest of the batch's plan in Spark's offset log, None where it does not say."""
        offsets = self.record.offsets if self.record else None
        return offsets.get("plan") if isinstance(offsets, Mapping) else None

    @property
    def rows(self) -> int:
        """Rows written; where Spark wrote them, by Delta's own count, since the record is made before the write."""
        written = self.record.rows if self.record else 0
        return written or int(self.metrics.get("numSourceRows" if self.operation == MERGE else "numOutputRows", 0))

    @property
    def written(self) -> int | None:
        """Rows that the commit wrote by Delta's own count, None where it does not say. A MERGE counts the rows that came to
        it: its output counts the rows that it moved as well.
        """
        names = ("numSourceRows", "num_source_rows") if self.operation == MERGE else ("numOutputRows", "num_added_rows")
        return next((int(self.metrics[name]) for name in names if name in self.metrics), None)


def parse_commit(version: int, info: Mapping[str, Any]) -> CommitRecord:
    """Return a Delta `commitInfo` as a CommitRecord. A `userMetadata` that is not ours is left alone."""
    record = None
    text = info.get("userMetadata")
    if text and text.startswith("{"):
        try:
            fields = json.loads(text)
            record = BatchRecord.model_validate(fields) if "kind" in fields and "flow" in fields else None
        except ValueError:
            record = None
    return CommitRecord(
        version=version,
        time=datetime.fromtimestamp(info.get("timestamp", 0) / 1000, UTC),
        operation=info.get("operation", ""),
        record=record,
        metrics={} if UNCHANGED in info else info.get("operationMetrics") or {},
        restored=_restored(info),
    )


def _restored(info: Mapping[str, Any]) -> int | datetime | None:
    """Read where a RESTORE went back to: Delta on Spark and delta-rs write a version, or a time in a form of their own."""
    if info.get("operation") != RESTORE:
        return None
    given = info.get("operationParameters") or {}
    version, time = given.get("version"), given.get("timestamp") or given.get("datetime")
    if version not in (None, "", "null"):
        return int(version)
    text = str(time).strip('"')
    if text.lstrip("-").isdigit():
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return -1  # it does not say: nothing before it is known to count
