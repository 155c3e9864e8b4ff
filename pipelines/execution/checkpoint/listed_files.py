"""The files that each batch took, held against Spark's log of them, where a late process may have written over it.

Spark gives a log its name by a look and a rename, and a rename on S3 is a copy that replaces what is there. A driver that stood
still between the two writes over the listing of the one that took its place, and the next start would take files for new that
were counted. So there the record of a batch says what it took, and a start compares all that Spark will read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelines.places.location import S3, Location, Place
from pipelines.sources.base import file_key
from pipelines.sources.offsets import files_by_listing, listings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
    from pipelines.state.table import StateTable

LISTED = "listed"
"""In the `offsets` of a batch's record: the query, and by source the first and the last listing and the digest of their files."""


def may_be_written_over(spark: Place) -> bool:
    """Return whether a late process may replace a file of Spark's logs: on S3. HDFS refuses a taken name, a disk has locks."""
    return isinstance(spark, Location) and spark.scheme == S3


def listed(checkpoint: Checkpoint, batch: int, taken: Sequence[frozenset[str]]) -> dict[str, Any] | None:
    """Return what the records of a batch say of its files; None: there is nothing to say.

    Args:
        taken: its positions, of each source by itself.
    """
    if not may_be_written_over(checkpoint.spark):
        return None
    sources = {}
    for index, files in enumerate(taken):
        numbers = listings(checkpoint.spark, batch, index) if files else range(0)
        if numbers:
            sources[str(index)] = [numbers.start, numbers.stop - 1, _digest(files)]
    return {"query": checkpoint.folder.name, "sources": sources} if sources else None


class OtherFiles(NamedTuple):
    """A batch that took other files than Spark's log of the source has for it.

    Attributes:
        table: that has the batch.
        listing: the last one that it took.
    """

    table: StateTable
    txid: int
    log: Place
    listing: int


def other_files(checkpoint: Checkpoint, tables: Iterable[StateTable]) -> OtherFiles | None:
    """Return the first batch for which Spark's log of a source has other files than it took; None: there is none.

    Records of earlier releases do not say what they took. A log that ends before a batch is damaged otherwise (`spark_damages`).
    """
    epoch = checkpoint.epoch
    if epoch is None or not may_be_written_over(checkpoint.spark):
        return None
    held: dict[str, Mapping[int, list[str]]] = {}
    same = set[tuple[str, int, int, str]]()
    for table in tables:
        for txid, said in _said(checkpoint, epoch, table):
            if said in same:
                continue
            index, first, last, digest = said
            log = checkpoint.spark / "sources" / index
            if index not in held:
                held[index] = files_by_listing(log)
            if last > max(held[index], default=-1):
                continue
            there = {file_key(file) for number in range(first, last + 1) for file in held[index].get(number, ())}
            if _digest(there) != digest:
                return OtherFiles(table, txid, log, last)
            same.add(said)
    return None


def _said(checkpoint: Checkpoint, epoch: Epoch, table: StateTable) -> Iterator[tuple[int, tuple[str, int, int, str]]]:
    """Yield what a table's records say that batches of this life of the query took: by txid source, listings and digest."""
    for commit in table.commits.batches() if table.exists() else ():
        record = commit.record
        if record is None or (record.flow, record.epoch) != (checkpoint.flow, epoch.number):
            continue
        with suppress(LookupError, TypeError, ValueError, AttributeError):  # it is not ours
            said = record.offsets[LISTED]
            if said["query"] == checkpoint.folder.name:
                own = [
                    (str(int(n)), int(first), int(last), str(of)) for n, (first, last, of) in said["sources"].items()
                ]
                yield from ((record.txid, one) for one in own)


def _digest(files: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(sorted(files)).encode(), digest_size=8).hexdigest()
