"""Which state of windows in the batch the records of a query's outputs name (docs/adr/0054)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from typing import TYPE_CHECKING

from pipelines.errors import ChangeoverError
from pipelines.execution.checkpoint.belonging import Belonging
from pipelines.execution.checkpoint.window_files import Begun, StateRef, outputs_in, state_files

if TYPE_CHECKING:
    from pipelines.execution.checkpoint.engine_files import Checkpoint
    from pipelines.state.lake import Lake
    from pipelines.state.record import BatchRecord
    from pipelines.state.table import StateTable


@dataclass(frozen=True)
class Named:
    """What the records of a batch say of its windows: the state behind it, and the watermark of each origin, in ms."""

    txid: int
    state: StateRef
    clocks: Mapping[str, int]


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
            yield Named(record.txid, StateRef.of_json(record.windows), record.clocks or {})


def _txid(named: Named) -> int:
    return named.txid
